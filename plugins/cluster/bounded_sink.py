"""A route target whose messages wait for the engine's answer: their bytes have a bound."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.extensions import MessageSink, SinkCounts
from penstock.broker.message import Message

MESSAGE_BYTES: Final = 64
"""Counted for each message besides topic and payload."""


class BoundedSink(MessageSink):
    """Holds publishers back while too many bytes are on their way to the engine.

    Attributes:
        topic_filters: none at first; they come and go.
        counts: the counts for the ledger.
        most_bytes: that may be on their way, and one message of any size.
        bytes_on_way: what is.
    """

    most_bytes: int = 8 * 1024 * 1024

    def __init__(self) -> None:
        self.topic_filters: list[str] = []
        self.counts = SinkCounts()
        self.bytes_on_way = 0
        self._has_refused = False
        self._finished: asyncio.Future[None] | None = None

    def lacks(self) -> str:
        """Return why there is no room; "" where there is some."""
        return "engine_away" if self.bytes_on_way >= self.most_bytes else ""

    def reserve(self, message: Message) -> str:
        """Hold room for a message; see `MessageSink`."""
        reason = self.lacks()
        if reason:
            self._has_refused = True
        else:
            self.bytes_on_way += charge(message)
        return reason

    def release(self, message: Message) -> None:
        """Give back the room of a message; see `MessageSink`."""
        self._free(charge(message))

    def reserve_run(self, n_messages: int, n_bytes: int) -> bool:
        """Hold room for a run; see `MessageSink`."""
        if self.lacks():
            self._has_refused = True
            return False
        self.bytes_on_way += n_bytes + n_messages * MESSAGE_BYTES
        return True

    def release_run(self, n_messages: int, n_bytes: int) -> None:
        """Give back the room of a run; see `MessageSink`."""
        self._free(n_bytes + n_messages * MESSAGE_BYTES)

    def _free(self, n_bytes: int) -> None:
        self.bytes_on_way -= n_bytes
        if self._finished is not None and not self.bytes_on_way and not self._finished.done():
            self._finished.set_result(None)
        if self._has_refused and self.bytes_on_way < self.most_bytes // 2 and not self.lacks():
            self._has_refused = False
            self.on_room()

    async def finish(self) -> None:
        """Wait until the engine has answered for all that was accepted."""
        while self.bytes_on_way:
            self._finished = asyncio.get_running_loop().create_future()
            await self._finished


def charge(message: Message) -> int:
    """Return the bytes of a message on its way."""
    return message.size_bytes + len(message.topic_bytes) + MESSAGE_BYTES
