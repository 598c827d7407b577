"""Connections to the servers of a fabric, and waiting for what they learn from each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.redis.checks import fields_of
from penstock.plugins.queue.engines.redis.login import CONNECT_SECONDS, Address, Login, named

AGREE_SECONDS: Final = 60.0
"""For servers to tell each other of a change, which they do in a second or two."""
SYNC_SECONDS: Final = 3_600.0
"""For a replica to get a copy of all messages of its master."""
LOOK_SECONDS: Final = 0.1


class FabricError(PenstockError):
    """The cluster is not what it has to be, or a server refuses."""


class Servers:
    """One connection to each server, made when it is needed.

    Args:
        login: to all.
    """

    def __init__(self, login: Login) -> None:
        self._login = login
        self._connections: dict[Address, AbstractConnection] = {}

    async def ask(self, address: Address, *command: Any, seconds: float = CONNECT_SECONDS) -> Any:
        """Return the answer of a command.

        Raises:
            FabricError: there is no server, or it refuses; a refusal is its cause.
        """
        (answer,) = await self.ask_all(address, [command], seconds)
        return answer

    async def ask_all(
        self, address: Address, commands: Iterable[Sequence[Any]], seconds: float = CONNECT_SECONDS
    ) -> list[Any]:
        """Return the answers of commands that leave together.

        Args:
            address: of the server.
            commands: their words.
            seconds: for each answer.

        Raises:
            FabricError: there is no server, or it refuses one; the others are carried out.
        """
        told = list(commands)
        refused: ResponseError | None = None
        answers = []
        try:
            connection = await self._connection(address)
            packed = [word for each in told for word in connection.pack_command(*each)]
            await connection.send_packed_command(packed, check_health=False)
            for _ in told:
                try:
                    answers.append(
                        await connection.read_response(disable_decoding=True, timeout=seconds)
                    )
                except ResponseError as error:
                    refused = refused or error
        except (RedisError, OSError, PenstockError) as error:
            await self._forget(address)
            raise FabricError(f"server {named(address)}: {error}") from error
        except BaseException:  # its answers would be taken for others'
            await self._forget(address)
            raise
        if refused is not None:
            raise FabricError(f"server {named(address)} refuses: {refused}") from refused
        return answers

    async def _connection(self, address: Address) -> AbstractConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._login.connection(address)
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await connection.connect()
            except TimeoutError as error:
                raise OSError(f"no answer for {CONNECT_SECONDS:g} s") from error
            self._connections[address] = connection
        return connection

    async def _forget(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Disconnect."""
        for address in list(self._connections):
            await self._forget(address)

    async def info(self, address: Address, section: str) -> dict[str, str]:
        """Return a section of what a server says of itself.

        Raises:
            FabricError: as `ask`.
        """
        return fields_of(await self.ask(address, "INFO", section))

    async def cluster_info(self, address: Address) -> dict[str, str]:
        """Return what a server says of its cluster.

        Raises:
            FabricError: as `ask`.
        """
        return fields_of(await self.ask(address, "CLUSTER", "INFO"))


async def until(
    is_true: Callable[[], Awaitable[bool]], what: str, seconds: float = AGREE_SECONDS
) -> None:
    """Wait until something is true; an error counts as false, as the next look may tell more.

    Raises:
        FabricError: it has not become true in time.
    """
    give_up_at = time.monotonic() + seconds
    problem = ""
    while True:
        try:
            if await is_true():
                return
            problem = ""
        except FabricError as error:
            problem = f": {error}"
        if time.monotonic() > give_up_at:
            raise FabricError(f"{what}: not after {seconds:g} s{problem}")
        await asyncio.sleep(LOOK_SECONDS)
