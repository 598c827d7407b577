"""What is read from the own inbox: each entry is given to the broker once, and deleted when done.

Theory of operation. Entries come in the order of the stream. Those of one origin are given to its
forwarders one after the other; origins do not wait for each other. An entry is done when the broker
has taken all of its messages. A node that stood still takes none before it knows that it is still a
member: what it had not read may have been given to others. Who has lost the server reads the stream
again from its start: the numbers of its origin tell what was read before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from logging import Logger
from typing import Final

from penstock.broker.counters import count
from penstock.broker.extensions import LocalClients
from penstock.broker.plugin_guard import is_logged
from penstock.plugins.cluster.engine import origin_of
from penstock.plugins.cluster.forwarder import Forwarder
from penstock.plugins.cluster.frames import Frame, FrameError, Lane, read_frames
from penstock.plugins.cluster.node_sink import Give
from penstock.plugins.redis.stream_reader import StreamReader

MOST_HELD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of entries that are read and not done, beyond which no more are read."""

RETRY_SECONDS: Final = 1.0

KNOWN_SECONDS: Final = 600.0
"""What a node has sent that has left is known for so long: a failover may bring back entries that
were deleted."""

LOOK_SECONDS: Final = 0.05

MOST_READ: Final = 64
"""Entries that are read at once."""

MOST_FORWARDERS: Final = 256
"""Of one origin; beyond, those that are idle end: there may be many shared subscriptions."""

MOST_DELETED: Final = 1000
"""Entries that are deleted by one call."""

DELETE_SECONDS: Final = 0.01
"""Entries that are done within this time are deleted together."""


class _Entry:
    """An entry that is not done.

    Attributes:
        entry_id: its ID in the stream.
        n_bytes: of its frames.
        n_left: messages that the broker has not taken.
    """

    __slots__ = ("_done", "entry_id", "n_bytes", "n_left")

    def __init__(
        self, entry_id: bytes, n_bytes: int, n_left: int, done: Callable[[_Entry], None]
    ) -> None:
        self.entry_id = entry_id
        self.n_bytes = n_bytes
        self.n_left = n_left
        self._done = done

    def done(self, n_messages: int) -> None:
        """Note that the broker has taken messages."""
        self.n_left -= n_messages
        if not self.n_left:
            self._done(self)


class _Origin:
    """Gives the messages of one other node to the broker, in their order."""

    def __init__(self, inbox: Inbox, name: str) -> None:
        self.forwarders: dict[Lane, Forwarder] = {}
        self._inbox = inbox
        self._name = name
        self._frames: deque[tuple[_Entry, Sequence[Frame]]] = deque()
        self._is_giving = False
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"penstock-cluster {name}")

    def add(self, entry: _Entry, frames: Sequence[Frame]) -> None:
        """Give the messages of an entry to the broker, behind those of earlier ones."""
        self._frames.append((entry, frames))
        self._is_giving = True
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether the broker has taken all messages."""
        unacknowledged = (one.n_unacknowledged for one in self.forwarders.values())
        return not self._is_giving and not any(unacknowledged)

    async def _run(self) -> None:
        while True:
            while self._frames:
                entry, frames = self._frames.popleft()
                for frame in frames:
                    await self._give(entry, frame)
            self._is_giving = False
            self._wake.clear()
            await self._wake.wait()

    async def _give(self, entry: _Entry, frame: Frame) -> None:
        try:
            forwarder = self.forwarders.get(frame.lane) or self._forwarder(frame.lane)
            await forwarder.send(frame.body, frame.qos, frame.n_messages, entry.done)
        except Exception as error:  # noqa: BLE001 (what comes behind it is not to wait for good)
            self._inbox.failed(self._name, frame.n_messages, error)
            entry.done(frame.n_messages)

    def _forwarder(self, lane: Lane) -> Forwarder:
        if len(self.forwarders) >= MOST_FORWARDERS:
            idle = [one for one, each in self.forwarders.items() if not each.n_unacknowledged]
            for one in idle:
                self.forwarders.pop(one).close()
        forwarder = Forwarder(
            self._inbox.clients, self._name, lane, self._inbox.give, self._inbox.refused
        )
        self.forwarders[lane] = forwarder
        return forwarder

    async def close(self) -> None:
        """Give nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for forwarder in self.forwarders.values():
            forwarder.close()


class Inbox:
    """The bookkeeping of the own inbox.

    Args:
        clients: connects local clients.
        delete: deletes entries, given by their IDs, whose frames have so many bytes.
        give: takes messages of a shared subscription that no member here can take.
        is_certain: says whether this node is a member beyond doubt.
        logger: gets faults.

    Attributes:
        n_entries: that were read.
        n_messages: in them.
        n_bytes: of them.
        held_bytes: of those that are not done.
        dropped: entries that were not given to the broker, by reason.
        refused: messages that it has refused for good, by reason.
    """

    def __init__(
        self,
        clients: LocalClients,
        delete: Callable[[Sequence[bytes], int], None],
        give: Give,
        is_certain: Callable[[], bool],
        logger: Logger,
    ) -> None:
        self._is_certain = is_certain
        self.clients = clients
        self.give = give
        self.n_entries = 0
        self.n_messages = 0
        self.n_bytes = 0
        self.held_bytes = 0
        self.dropped: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self._delete = delete
        self._logger = logger
        self._held: dict[bytes, _Entry] = {}
        self._origins: dict[str, _Origin] = {}
        self._last: dict[str, tuple[int, int]] = {}
        self._done_ids: list[bytes] = []
        self._done_bytes = 0
        self._deleting: asyncio.TimerHandle | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def follow(self, reader: StreamReader) -> None:
        """Take entries as they come, until this is cancelled; the reader is then closed.

        Args:
            reader: of the inbox of an epoch of this node. In each epoch, origins number entries
                from the first on.
        """
        self._last.clear()
        self._held.clear()
        self._done_ids, self._done_bytes = [], 0
        try:
            while True:
                try:
                    await self._read(reader)
                except Exception:
                    self._logger.exception("the inbox is read from its start after a fault")
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            await reader.close()

    async def _read(self, reader: StreamReader) -> None:
        async for entries in reader.anew(MOST_READ):
            while not self._is_certain():  # noqa: ASYNC110 (time is a part of it)
                await asyncio.sleep(LOOK_SECONDS)
            for entry_id, fields in entries:
                self._take_fields(entry_id, fields)
            await self._has_room.wait()

    def _take_fields(self, entry_id: bytes, fields: Sequence[bytes]) -> None:
        try:
            origin = origin_of(fields)
        except ValueError as error:
            self._unreadable(entry_id, len(fields[1]), "an unknown node", error)
        else:
            self.take(entry_id, *origin, fields[1])

    def failed(self, node: str, n_messages: int, error: Exception) -> None:
        """Count messages that could not be given to the broker."""
        count(self.dropped, "failed", n_messages)
        if is_logged(self.dropped["failed"]):
            self._logger.error("messages of node %s are dropped", node, exc_info=error)

    def _unreadable(self, entry_id: bytes, n_bytes: int, node: str, error: Exception) -> None:
        """Drop an entry; it would stay in the way."""
        count(self.dropped, "unreadable")
        if is_logged(self.dropped["unreadable"]):
            self._logger.error("an entry of the inbox, by %s, is dropped: %s", node, error)
        self._free(entry_id, n_bytes)

    def take(self, entry_id: bytes, origin: str, epoch: int, number: int, data: bytes) -> None:
        """Take an entry, which may have been read before.

        Args:
            entry_id: its ID in the stream.
            origin: name of the node that has put it there.
            epoch: of that node.
            number: of the entry, among those of the origin's epoch.
            data: its frames.
        """
        if entry_id in self._held:
            return
        if (epoch, number) <= self._last.get(origin, (0, 0)):
            self._free(entry_id, len(data))
            return
        self._last[origin] = (epoch, number)
        self.n_entries += 1
        self.n_bytes += len(data)
        try:
            frames = list(read_frames(data))
        except FrameError as error:
            self._unreadable(entry_id, len(data), f"node {origin}", error)
            return
        n_messages = sum(frame.n_messages for frame in frames)
        if not n_messages:
            self._free(entry_id, len(data))
            return
        self.n_messages += n_messages
        entry = _Entry(entry_id, len(data), n_messages, self._done)
        self._held[entry_id] = entry
        self.held_bytes += len(data)
        if self.held_bytes > MOST_HELD_BYTES:
            self._has_room.clear()
        source = self._origins.get(origin)
        if source is None:
            source = self._origins[origin] = _Origin(self, origin)
        source.add(entry, frames)

    def _done(self, entry: _Entry) -> None:
        self.held_bytes -= entry.n_bytes
        if self.held_bytes <= MOST_HELD_BYTES:
            self._has_room.set()
        if self._held.get(entry.entry_id) is entry:  # else it is of an earlier epoch
            del self._held[entry.entry_id]
            self._free(entry.entry_id, entry.n_bytes)

    def _free(self, entry_id: bytes, n_bytes: int) -> None:
        """Delete an entry soon, together with others."""
        self._done_ids.append(entry_id)
        self._done_bytes += n_bytes
        if self._deleting is None:
            loop = asyncio.get_running_loop()
            self._deleting = loop.call_later(DELETE_SECONDS, self._delete_done)

    def _delete_done(self) -> None:
        self._deleting = None
        ids, self._done_ids = self._done_ids, []
        n_bytes, self._done_bytes = self._done_bytes, 0
        for start in range(0, len(ids), MOST_DELETED):
            self._delete(ids[start : start + MOST_DELETED], 0 if start else n_bytes)

    async def forget(self, origin: str) -> None:
        """End what belongs to a node that has left, once the broker has taken its messages."""
        source, last = self._origins.get(origin), self._last.get(origin)
        asyncio.get_running_loop().call_later(KNOWN_SECONDS, self._forget_last, origin, last)
        while source is not None and self._last.get(origin) == last:
            if source.is_idle:
                del self._origins[origin]
                await source.close()
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _forget_last(self, origin: str, last: tuple[int, int] | None) -> None:
        if self._last.get(origin) == last:
            self._last.pop(origin, None)

    async def close(self) -> None:
        """Give nothing more to the broker; entries that are not done stay in the stream."""
        if self._deleting is not None:
            self._deleting.cancel()
            self._delete_done()
        for source in list(self._origins.values()):
            await source.close()
        self._origins.clear()
