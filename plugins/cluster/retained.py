"""Retained messages of the cluster: every node has all of them, in one order for each topic.

Theory of operation. A retained message is stored in the engine, which puts it into the stream of
changes, too; so the stream says which of two for one topic came last. A node keeps its own message
at once, before it is in the stream. What others have set before that comes later by the stream, and
must not replace it: while an own message of a topic has not come back by the stream, those of
others for the topic are passed over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from logging import Logger
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LocalClients, Receipt
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.writer import publish_header
from penstock.broker.plugin_guard import is_logged
from penstock.plugins.cluster.bounded_sink import BoundedSink, charge
from penstock.plugins.cluster.engine import outcome
from penstock.plugins.cluster.frames import packet_head

_SLICE: Final = 200
"""So many messages are taken over before others get their turn."""

_HEAD: Final = Struct(">dH")
"""Unix time at which a message was retained, in seconds; the length of its publisher's name."""

Retain = Callable[[str, bytes], "asyncio.Future[object]"]
"""Stores what a topic has, or b"" for nothing; it comes back by the stream if it is stored."""


class RetainedSink(BoundedSink):
    """The route target of all retained messages, and what takes over those of other nodes.

    Args:
        retain: stores one.
        clients: sets those of others.
        clock: returns monotonic seconds.
        logger: gets faults.

    Attributes:
        name: unique among the broker's sinks.
        n_taken_over: messages of other nodes that were taken over.
        n_lacking: of those, how many were not kept for want of room.
    """

    name = "cluster.retained"
    takes_retained = True

    def __init__(
        self,
        retain: Retain,
        clients: LocalClients,
        clock: Callable[[], float],
        logger: Logger,
    ) -> None:
        super().__init__()
        self.n_taken_over = 0
        self.n_lacking = 0
        self._retain = retain
        self._clients = clients
        self._clock = clock
        self._logger = logger
        self._unseen: dict[str, int] = {}
        self._unanswered: dict[str, int] = {}

    # -- own messages --------------------------------------------------------------------------

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Store a message, or that its topic has none; see `MessageSink`."""
        topic = message.topic
        self.counts.matched += 1
        self.counts.queued += 1
        try:
            value = self._value(message)
        except OSError as error:
            self._answered(message, receipt, error)
            return
        future = self._retain(topic, value)
        self._unseen[topic] = self._unseen.get(topic, 0) + 1
        self._unanswered[topic] = self._unanswered.get(topic, 0) + 1
        future.add_done_callback(partial(self._done, message, receipt))

    def bring(self, message: Message) -> None:
        """Store a message that the engine has lost; there is no publisher to hold back."""
        self.bytes_on_way += charge(message)
        self.accept(message, None)

    def _value(self, message: Message) -> bytes:
        payload = message.read_payload()
        if not payload:
            return b""
        publisher = message.publisher.encode()
        head = packet_head(message, len(payload), self._clock())
        stored = _HEAD.pack(time.time(), len(publisher))
        return b"".join((stored, publisher, head, payload))

    def _done(
        self, message: Message, receipt: Receipt | None, future: asyncio.Future[object]
    ) -> None:
        _subtract(self._unanswered, message.topic)
        cancelled = PenstockError("the plugin is closed") if future.cancelled() else None
        error = cancelled or future.exception()
        if error is not None:
            _subtract(self._unseen, message.topic)
        self._answered(message, receipt, error)

    def _answered(
        self, message: Message, receipt: Receipt | None, error: BaseException | None
    ) -> None:
        counts = self.counts
        counts.queued -= 1
        if error is None:
            counts.stored += 1
        else:
            n_lost = counts.dropped["not_stored"] = counts.dropped.get("not_stored", 0) + 1
            if is_logged(n_lost):
                self._logger.warning(
                    "cluster: %d retained messages are not on other nodes, the last of topic %s: "
                    "%s",
                    n_lost,
                    message.topic,
                    error,
                )
        if receipt is not None:
            receipt.settle(0 if error is None else outcome(error))
        self.release(message)

    # -- the stream ----------------------------------------------------------------------------

    def own_seen(self, topic: str) -> None:
        """Take note that an own message has come by the stream."""
        _subtract(self._unseen, topic)

    def follow(self, topic: str, value: bytes) -> None:
        """Take over what another node has set by the stream.

        Args:
            topic: Topic Name.
            value: as `Retain` has it.
        """
        if topic in self._unseen:
            return
        self.n_taken_over += 1
        packet, publisher, age = _cleared(topic), "", 0.0
        try:
            if value:
                stored_at, n_name = _HEAD.unpack_from(value)
                packet = value[_HEAD.size + n_name :]
                publisher = value[_HEAD.size : _HEAD.size + n_name].decode()
                age = max(0.0, time.time() - stored_at)
            if not self._clients.set_retained(packet, MQTT_5, publisher=publisher, age=age):
                self.n_lacking += 1
                if is_logged(self.n_lacking):
                    self._logger.warning(
                        "cluster: %d retained messages of other nodes are not kept, the last of "
                        "topic %s: retained_messages or retained_bytes reached",
                        self.n_lacking,
                        topic,
                    )
        except (PenstockError, ValueError, LookupError, StructError) as error:
            self._logger.warning("cluster: retained message of topic %s: %s", topic, error)

    def restart(self) -> None:
        """Take note that all is read anew: what is stored by now does not come by the stream."""
        self._unseen = dict(self._unanswered)

    async def keep_only(self, topics: set[str]) -> None:
        """Clear what no topic of the engine has, after all of them were taken over."""
        gone = []
        for number, message in enumerate(self._clients.walk_retained()):
            if message.topic not in topics and message.topic not in self._unseen:
                gone.append(message.topic)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        for number, topic in enumerate(gone):
            self.follow(topic, b"")
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)


def _cleared(topic: str) -> bytes:
    return publish_header(topic.encode(), 0, 0, retain=True, properties=b"\0", version=MQTT_5)


def _subtract(counts: dict[str, int], topic: str) -> None:
    n_left = counts.pop(topic, 0) - 1
    if n_left > 0:
        counts[topic] = n_left
