"""A reader of one stream, which waits for entries on a connection of its own.

Theory of operation. A command that waits holds up all others of its connection, so a reader has its
own, to the server that has the stream as `routes` knows it. It asks for a second at a time, and
looks meanwhile whether another server has taken over: a server that stands still does not say so.
A caller may say behind which entry to go on: none comes twice then, but where another server has
taken over, entries that are new may have identifiers that are lower than those of earlier ones. Who
must not miss any of them reads the stream `anew` after each lost connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from penstock.broker.errors import PenstockError
from penstock.broker.plugin_guard import is_logged
from penstock.plugins.redis.calls import FunctionCalls
from penstock.plugins.redis.login import CONNECT_SECONDS, Address
from penstock.plugins.redis.pipeline import NOT_CARRIED_OUT

Entry: TypeAlias = tuple[bytes, list[bytes]]
"""Identifier of an entry, and its fields: each name is followed by its value."""

FROM_START: Final = b"0-0"
"""Stands before all entries."""

_WAIT_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 0.1


class StreamReader:
    """Reads entries as they come.

    Args:
        calls: to the servers.
        key: of the stream.

    Attributes:
        n_connections: how often it has connected.
    """

    def __init__(self, calls: FunctionCalls, key: str) -> None:
        self.n_connections = 0
        self._calls = calls
        self._key = key
        self._connection: AbstractConnection | None = None
        self._address: Address | None = None

    async def read(self, after: bytes, most_entries: int) -> list[Entry]:
        """Return the entries behind one, in their order; none where none came for a second.

        It waits while the server is away, however long that takes. A call that is cancelled has
        read nothing.

        Args:
            after: identifier of an entry; ``0-0`` for the beginning.
            most_entries: at most so many.
        """
        command = (
            *("XREAD", "COUNT", most_entries, "BLOCK", int(1000 * _WAIT_SECONDS)),
            *("STREAMS", self._key, after),
        )
        n_refused = 0
        while True:
            try:
                answer = await self._ask(command)
            except (RedisError, OSError, PenstockError) as error:  # the pipeline tells of faults
                if isinstance(error, ResponseError) and not isinstance(error, NOT_CARRIED_OUT):
                    n_refused += 1
                    if n_refused > 1 and is_logged(n_refused):  # of a server made a replica: once
                        where = self._calls.server
                        self._calls.logger.warning(
                            "the Redis server %s refuses XREAD %s: %s", where, self._key, error
                        )
                await self.close()
                await asyncio.sleep(_RETRY_SECONDS)
            except BaseException:
                await self.close()
                raise
            else:
                return [] if answer is None else [(one[0], one[1]) for one in answer[0][1]]

    async def anew(self, most_entries: int) -> AsyncIterator[list[Entry]]:
        """Yield what `read` returns, for good: all from the start, once more on each connection."""
        after, n_connections = FROM_START, 0
        while True:
            entries = await self.read(after, most_entries)
            if self.n_connections != n_connections:
                n_connections = self.n_connections
                if after != FROM_START:
                    after = FROM_START
                    continue
            yield entries
            if entries:
                after = entries[-1][0]

    async def _ask(self, command: tuple[Any, ...]) -> Any:
        """Return the answer of a command that waits.

        Raises:
            OSError: there is none, or another server has taken over.
        """
        connection = await self._connected()
        await connection.send_packed_command(connection.pack_command(*command), check_health=False)
        reading = asyncio.ensure_future(
            connection.read_response(
                disable_decoding=True, timeout=math.inf, disconnect_on_error=False
            )
        )
        n_looks = int((_WAIT_SECONDS + self._calls.server.patience.timeout_seconds) / _LOOK_SECONDS)
        try:
            for _ in range(n_looks):
                await asyncio.wait((reading,), timeout=_LOOK_SECONDS)
                if reading.done():
                    return reading.result()
                if self._calls.routes.address_of(self._key) != self._address:
                    raise OSError("another server has the stream")
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        raise OSError("no answer")

    async def _connected(self) -> AbstractConnection:
        """Return the connection, which is made where there is none."""
        address = self._calls.routes.address_of(self._key)
        if self._connection is not None and address == self._address:
            return self._connection
        await self.close()
        connection = self._calls.server.connection(address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.n_connections += 1
        self._connection, self._address = connection, address
        return connection

    async def close(self) -> None:
        """Disconnect; may be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
