"""Calls of a library's functions, each at the server that has its keys.

    calls = FunctionCalls(server, Library("penstock_x_", 1, "penstock.plugins.x"), logger)
    await calls.open()
    answer = await plain(calls.call("put", ["penstock:{a}:inbox"], b"data", is_stored=True))

Calls to one server leave in the order in which they are made, and are repeated where a connection
was lost: so a function must do nothing twice. See `penstock.plugins.redis.pipeline`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from logging import Logger
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import OutOfMemoryError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.redis.errors import EngineStartError, StorageError, StorageFullError
from penstock.plugins.redis.library import Library
from penstock.plugins.redis.login import Address
from penstock.plugins.redis.routes import Routes
from penstock.plugins.redis.server import RedisServer


class FunctionCalls:
    """Calls functions.

    Args:
        server: where the servers are.
        library: the functions, which each server gets where it has them not.
        logger: gets faults.

    Attributes:
        server: where the servers are.
        routes: the routes to them.
        logger: gets faults.
    """

    def __init__(self, server: RedisServer, library: Library, logger: Logger) -> None:
        self.server = server
        self.logger = logger
        self.routes = Routes(server.finder(), self._connect, server.patience, logger)
        self._library = library
        self._functions = library.prefix

    async def _connect(self, address: Address) -> AbstractConnection:
        return await self.server.connect(self.logger, address, self._library)

    async def open(self) -> None:
        """Connect to all servers and check them.

        Raises:
            EngineStartError: one cannot be used.
        """
        try:
            await self.routes.open()
        except StorageError as error:
            await self.close()
            raise EngineStartError(f"Redis server {self.server}: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Wait for the answers of what was called, and disconnect; may be called again."""
        await self.routes.close()

    def call(
        self,
        function: str,
        keys: Sequence[str],
        *args: Any,
        is_stored: bool = False,
        is_kept: bool = False,
    ) -> asyncio.Future[Any]:
        """Call a function.

        The future fails with a `StorageError` where no server has answered in time, or without the
        replicas that are wanted, or where the calls are closed; with a `ResponseError` where the
        server refuses, see `refusal`.

        Args:
            function: its name without the library's.
            keys: one at least; all are in one slot.
            args: what it gets behind the keys.
            is_stored: whether replicas are waited for, as they are for the library's `stored`.
            is_kept: whether it waits for a server, and for replicas, however long that takes.
        """
        name = self._functions + function
        is_stored = is_stored or function in self._library.stored
        return self.routes.call(
            keys[0], "FCALL", name, len(keys), *keys, *args, is_stored=is_stored, is_kept=is_kept
        )


async def plain(
    call: asyncio.Future[Any], meaning: Callable[[ResponseError], PenstockError] | None = None
) -> Any:
    """Return the answer of a call, which goes on where its caller is cancelled.

    Args:
        call: the call.
        meaning: returns what an error of the server means; None for `refusal`.

    Raises:
        StorageError: the server could not be asked, or refused.
    """
    try:
        return await asyncio.shield(call)
    except ResponseError as error:
        raise (meaning or refusal)(error) from error


def heed(call: asyncio.Future[Any]) -> None:
    """Take the error of a call that is done and that nobody waits for."""
    if not call.cancelled():
        call.exception()


def refusal(error: ResponseError) -> StorageError:
    """Return what an error of a server means."""
    if isinstance(error, OutOfMemoryError):
        return StorageFullError(f"the Redis server's memory is full: {error}")
    return StorageError(f"the Redis server refuses: {error}")
