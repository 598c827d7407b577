"""Another node as a route target: what its subscribers are to get goes into its inbox.

Theory of operation. What the sink accepts in one turn of the loop becomes one entry. While some
entries are on their way to the engine, the next one collects: so the entries are the larger the
more there is to send. A publisher of QoS 1 or 2 is acknowledged when the engine has the entry.

Two limits hold publishers back: bytes that the engine has not answered for, and bytes in the inbox
that the other node has not handled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.counters import count
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import Receipt, SinkRun
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.cluster.bounded_sink import MESSAGE_BYTES, BoundedSink, charge
from penstock.plugins.cluster.engine import FencedError, outcome
from penstock.plugins.cluster.frames import (
    LANE_4,
    LANE_5,
    FrameBuffer,
    Lane,
    packet,
)

if TYPE_CHECKING:
    import asyncio

MOST_INBOX_BYTES: Final = 64 * 1024 * 1024
"""Bytes in an inbox beyond which nothing more is put into it."""

MOST_PUTS: Final = 4
"""Entries on their way to one inbox. With more of them each would be smaller, and cost as much."""

ENTRY_BYTES: Final = 262_144
"""An entry leaves at once when it is so large, if few enough are on their way."""

LOOK_AGAIN_SECONDS: Final = 0.1
"""The interval at which a full inbox is looked at."""

GONE: Final = "PENSTOCK gone"
"""The end of the engine's answer where a node has no inbox: it has left."""

Put = Callable[[bytes], "asyncio.Future[int]"]
"""Puts frames into the inbox of one node; the answer is how many bytes are in it. Without frames it
asks for that alone."""


class Shared(NamedTuple):
    """Messages for one member each of a shared subscription.

    Attributes:
        lane: it, and the version.
        qos: of all.
        n_messages: how many.
        packets: their PUBLISH packets.
        done: is called once they are stored for a node, or refused, with the reason code.
    """

    lane: Lane
    qos: int
    n_messages: int
    packets: bytes
    done: Callable[[int], None]


Give = Callable[[Shared], None]
"""Takes messages that the node which was to get them has not taken."""


class _Batch:
    """What is settled together: the messages of one entry.

    Attributes:
        n_messages: how many.
        n_bytes: of those that are on their way.
        receipts: of those for all subscribers of the node.
        shared: those for one member each of a shared subscription.
    """

    __slots__ = ("n_bytes", "n_messages", "receipts", "shared")

    def __init__(self) -> None:
        self.n_messages = 0
        self.n_bytes = 0
        self.receipts: list[Receipt] = []
        self.shared: list[Shared] = []


class NodeSink(BoundedSink):
    """The route target of one other node.

    Args:
        node: its name.
        put: puts frames into its inbox.
        give: takes messages of shared subscriptions when the node has left.
        loop: the event loop.
        clock: returns monotonic seconds.

    Attributes:
        name: unique among the broker's sinks.
        node: its name.
        inbox_bytes: what the engine has last said.
        failure: why the last entry was not stored; "" where it was.
        n_entries: that were stored.
    """

    def __init__(
        self,
        node: str,
        put: Put,
        give: Give,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self.name = f"cluster.{node}"
        super().__init__()
        self.node = node
        self.inbox_bytes = 0
        self.failure = ""
        self.n_entries = 0
        self._put = put
        self._give = give
        self._loop = loop
        self._clock = clock
        self._buffer = FrameBuffer()
        self._batch = _Batch()
        self._n_puts = 0
        self._is_scheduled = False
        self._is_closed = False
        self._is_forgotten = False
        self._unclear: list[_Batch] = []  # for which there was no inbox
        self._look: asyncio.TimerHandle | None = None

    # -- room ----------------------------------------------------------------------------------

    def lacks(self) -> str:
        """Return why there is no room; "" where there is some."""
        if self.inbox_bytes > MOST_INBOX_BYTES:
            return "inbox_full"
        reason = super().lacks()
        return reason if self._n_puts else reason and "inbox_full"

    # -- messages ------------------------------------------------------------------------------

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message for which room is held; see `MessageSink`."""
        n_bytes = charge(message)
        try:
            version, head, payload = packet(message, self._clock())
        except OSError:
            self._free(n_bytes)
            self.counts.matched += 1
            count(self.counts.dropped, "payload_lost")
            if receipt is not None:
                receipt.settle(ReasonCode.UNSPECIFIED_ERROR)
            return
        lane = LANE_5 if version == MQTT_5 else LANE_4
        self._buffer.add(lane, message.qos, 1, head, payload)
        if receipt is not None:
            self._batch.receipts.append(receipt)
        self._added(1, n_bytes)

    def accept_shared(self, shared: Shared) -> None:
        """Take messages for one member each of a shared subscription; no room is held for them."""
        n_bytes = len(shared.packets) + shared.n_messages * MESSAGE_BYTES
        self.bytes_on_way += n_bytes
        self._buffer.add(shared.lane, shared.qos, shared.n_messages, shared.packets)
        self._batch.shared.append(shared)
        self._added(shared.n_messages, n_bytes)

    def accept_run(self, run: SinkRun, receipt: Receipt | None) -> None:
        """Take messages that came together; see `MessageSink`."""
        packets, n_messages, version, qos, _ = run
        n_bytes = len(packets) + n_messages * MESSAGE_BYTES
        if not qos:
            reason = self.lacks()
            if reason:
                self.counts.matched += n_messages
                count(self.counts.dropped, reason, n_messages)
                return
            self.bytes_on_way += n_bytes
        lane = LANE_5 if version == MQTT_5 else LANE_4
        self._buffer.add(lane, qos, n_messages, packets)
        if receipt is not None:
            self._batch.receipts.append(receipt)
        self._added(n_messages, n_bytes)

    def _added(self, n_messages: int, n_bytes: int) -> None:
        batch, counts = self._batch, self.counts
        batch.n_messages += n_messages
        batch.n_bytes += n_bytes
        counts.matched += n_messages
        counts.queued += n_messages
        if self._is_closed:
            self.drop()
        elif not self._is_scheduled:
            self._soon()
        elif self._buffer.n_bytes > ENTRY_BYTES:
            self._flush()

    # -- entries -------------------------------------------------------------------------------

    def _soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if not self._buffer.n_bytes or self._n_puts >= MOST_PUTS or self._is_closed:
            return
        batch, self._batch = self._batch, _Batch()
        data = self._buffer.take()
        self._n_puts += 1
        self._put(data).add_done_callback(partial(self._put_done, batch))

    def _put_done(self, batch: _Batch, future: asyncio.Future[int]) -> None:
        if future.cancelled():
            self._answered(batch, None, PenstockError("the plugin is closed"))
            return
        error = future.exception()
        self._answered(batch, None if error is not None else future.result(), error)

    def _answered(
        self, batch: _Batch, inbox_bytes: int | None, error: BaseException | None
    ) -> None:
        """Settle what was in an entry, and send what has collected.

        A node without an inbox has left, or the engine has lost its data: that is not clear yet.
        """
        counts = self.counts
        self._n_puts -= 1
        is_over = self._is_closed or self._is_forgotten
        if not is_over and str(error).endswith(GONE):
            self._unclear.append(batch)
            self._flush()
            return
        counts.queued -= batch.n_messages
        reason_code = 0
        if inbox_bytes is not None:
            self.n_entries += 1
            self.failure = ""
            counts.stored += batch.n_messages
            self._note_inbox(inbox_bytes)
        elif self._is_closed and not self._is_forgotten:
            n_given = sum(shared.n_messages for shared in batch.shared)
            for reason, n in (("node_left", batch.n_messages - n_given), ("moved", n_given)):
                if n:
                    count(counts.dropped, reason, n)
        else:
            self.failure = str(error)
            reason_code = outcome(error)
            count(counts.dropped, "not_stored", batch.n_messages)
        for receipt in batch.receipts:
            receipt.settle(reason_code)
        for shared in batch.shared:
            if inbox_bytes is None and not reason_code:
                self._give(shared)
            else:
                shared.done(reason_code)
        self._flush()
        self._free(batch.n_bytes)

    def _note_inbox(self, n_bytes: int) -> None:
        """Take note of what is in the inbox; look again where that is too much."""
        self.inbox_bytes = n_bytes
        if n_bytes > MOST_INBOX_BYTES and self._look is None and not self._is_closed:
            self._look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._put(b"").add_done_callback(self._looked)

    def _looked(self, future: asyncio.Future[int]) -> None:
        failed = future.cancelled() or future.exception() is not None
        self._note_inbox(self.inbox_bytes if failed else future.result())
        self._free(0)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop what waits: the node has left, and what it has not got is for nobody."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
        self.drop()

    def engine_has_forgotten(self) -> None:
        """Refuse what waits and what comes: the engine has lost what is for the node, which lives.

        Another sink takes its place.
        """
        self._is_forgotten = True
        self._settle_waiting(PenstockError("the engine has lost its data"))

    def drop(self) -> None:
        """Drop what waits: this node's next epoch is not to send what came in an earlier one."""
        self._settle_waiting(FencedError("this node was taken for dead"))

    def _settle_waiting(self, error: PenstockError) -> None:
        batch, self._batch = self._batch, _Batch()
        self._buffer.take()
        unclear, self._unclear = self._unclear, []
        for one in (*unclear, batch):
            self._n_puts += 1  # as if it had been on its way
            self._answered(one, None, error)
