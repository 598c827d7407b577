"""Publishes messages a second time, in parts.

Theory of operation. The session of the client `SPLIT_ID` has a subscription for each filter whose
messages are to be cut. They wait there, with the broker's persistence, and are cut one after the
other. The splitter acknowledges a message when the broker has acknowledged all of its parts. So a
message that was interrupted, also by ``kill -9``, comes again. The spool then has its identifier
under its packet identifier, so that the second attempt makes the same parts. A packet identifier
may be used for another message only after this entry was deleted: at QoS 2 between PUBREL and
PUBCOMP; at QoS 1 before the PUBACK, so that a kill in between sends the message once more
[MQTT-4.3.2-5].

As messages are cut one after the other, the parts of a later message of a topic stand behind all
parts of the earlier ones, in every session in which they wait.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.broker.counters import count
from penstock.broker.extensions import PUBLISHER_PROPERTY, LocalClients
from penstock.broker.message import SITE_PROPERTY
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.properties import read_publish_properties, write_properties
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.plugin_guard import is_logged
from penstock.edge_proxy.local_client import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    LocalClient,
    LostError,
    PartPublisher,
)
from penstock.edge_proxy.parts.config import PARTS_CLIENTS
from penstock.edge_proxy.parts.cutting import Cutter
from penstock.edge_proxy.parts.part_format import ID_BYTES, NUMBER_BYTES, Part, write_part
from penstock.edge_proxy.parts.parts_context import AGAIN_SECONDS, PartsContext
from penstock.edge_proxy.parts.spool import NUMBERS, SpoolError
from penstock.edge_proxy.uplink.one_shot_clients import prepare_session
from penstock.edge_proxy.uplink.packet_stream import Buffer
from penstock.edge_proxy.uplink.remapping import HOPS_PROPERTY, VIA_PROPERTY

SPLIT_ID: Final = f"{PARTS_CLIENTS}split"
"""Client Identifier of the local client that subscribes to the messages to be cut."""

PART_ID: Final = f"{PARTS_CLIENTS}part"
"""Client Identifier of the local client that publishes their parts."""

AT_ONCE: Final = 8
"""How many parts are published at a time without waiting for their PUBACKs."""

NOTED_PARTS: Final = 128
"""After so many parts, the spool notes how far a message was cut. After a kill, no more than these
are published again."""

WAITING_BYTES: Final = 1_048_576
"""Payload bytes that wait to be cut, above which nothing is read from the session."""

WAITING_MESSAGES: Final = 8
"""How many messages of QoS 1 and 2 the session may send unacknowledged."""

MARKS: Final = frozenset({SITE_PROPERTY, HOPS_PROPERTY, VIA_PROPERTY})
"""User Properties that are on the PUBLISH of each part, as uplinks read and write them."""

_OF_EACH_PART: Final = frozenset({"message_expiry_interval", "subscription_identifier"})
"""Properties that are not those of the whole: on each part, or of a subscription."""


@dataclass(eq=False, slots=True)
class IncomingMessage:
    """A message that is being received, piece by piece.

    Attributes:
        first_byte: first byte of the PUBLISH.
        packet_id: packet identifier of the PUBLISH; 0 with QoS 0.
        arrived_at: monotonic seconds.
        pieces: pieces of the payload that were not taken yet.
        is_lost: whether the connection has ended before.
        news: an event that is set when one of these changes.
    """

    first_byte: int
    topic: bytes
    packet_id: int
    properties: bytes
    total_bytes: int
    arrived_at: float
    pieces: deque[Buffer] = field(default_factory=deque)
    is_fed: bool = False
    is_lost: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def qos(self) -> int:
        """QoS of the message."""
        return self.first_byte >> 1 & 3

    async def take(self) -> Buffer:
        """Return the next piece; b"" after the last one.

        Raises:
            LostError: the rest does not come.
        """
        while not self.pieces:
            if self.is_fed:
                return b""
            if self.is_lost:
                raise LostError("the connection has ended")
            self.news.clear()
            await self.news.wait()
        return self.pieces.popleft()


class SplitSubscriber(LocalClient):
    """The client that subscribes to the messages that are cut.

    Attributes:
        messages: what has come and was not taken: messages, and the packet identifiers of PUBRELs.
        news: an event that is set when `messages` has got something.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(SPLIT_ID, WAITING_MESSAGES)
        self.messages: deque[IncomingMessage | int] = deque()
        self.news = asyncio.Event()
        self._clock = clock
        self._last: IncomingMessage | None = None
        self._waiting_bytes = 0
        self._is_paused = False

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Begin a message."""
        self._last = IncomingMessage(
            first_byte, topic, packet_id, properties, payload_bytes, self._clock()
        )
        self.messages.append(self._last)
        self.news.set()

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Add a piece to it."""
        last = self._last
        if last is not None:
            if piece:
                last.pieces.append(piece)
                self._waiting_bytes += len(piece)
            last.is_fed = not bytes_left
            last.news.set()
        if self._waiting_bytes > WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def taken(self, n_bytes: int) -> None:
        """Note that payload bytes were taken, and resume reading."""
        self._waiting_bytes -= n_bytes
        if self._is_paused and self._waiting_bytes <= WAITING_BYTES:
            self._is_paused = False
            self.transport.resume_reading()

    def released(self, packet_id: int) -> None:
        """Queue a PUBREL behind the messages before it."""
        self.messages.append(packet_id)
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the message fail that was being received."""
        super().connection_lost(exc)
        if self._last is not None:
            self._last.is_lost = True
            self._last.news.set()
        self.news.set()


class Splitter:
    """Cuts the messages of some topic filters.

    Attributes:
        stream: the stream of the messages that are cut here (`part_format`); set once the spool is
            open.
    """

    def __init__(self, of: PartsContext) -> None:
        self._config, self._clients, self._spool, self._in_thread, *_ = of
        self._counts, self._logger, self._clock = of.counts, of.logger, of.clock
        self._prefix = f"{of.config.prefix}/".encode()
        self._publisher = PartPublisher(of.clients, PART_ID, is_patient=True)
        self._subscriber: SplitSubscriber | None = None
        self._cutting: dict[int, tuple[bytes, int]] = {}
        self.stream = b""
        self._number = 0
        self._n_faults = 0

    async def prepare(self) -> None:
        """Subscribe, so that messages wait for `run` from now on, retained ones included.

        Raises:
            PenstockError: the broker does not let it, or the spool cannot be used.
        """
        known = self._clients.subscriptions(SPLIT_ID)
        if known is None:  # packet identifiers start again
            await self._in_thread(self._spool.end_cutting, None)
        self._cutting = await self._in_thread(self._spool.cutting)
        filters = dict.fromkeys(self._config.split, 2)
        new = [name for name in filters if name not in (known or ())]
        await prepare_session(self._clients, SPLIT_ID, filters, known or (), with_retained=new)

    async def _connect(self) -> SplitSubscriber:
        subscriber = SplitSubscriber(self._clock)
        await subscriber.connect(self._clients, tells_publisher=True)
        self._subscriber = subscriber
        return subscriber

    async def run(self) -> None:
        """Cut one message after another until cancelled."""
        while True:
            try:
                await self._serve(self._subscriber or await self._connect())
            except (LostError, SpoolError) as error:
                self._n_faults += 1
                if is_logged(self._n_faults):
                    self._logger.error(  # noqa: TRY400 (the line names the cause)
                        "no message is cut into parts at the moment (%d times): %s",
                        self._n_faults,
                        error,
                    )
            if self._subscriber is not None:
                self._subscriber.disconnect()
            self._subscriber = None
            await asyncio.sleep(AGAIN_SECONDS)

    async def _serve(self, subscriber: SplitSubscriber) -> None:
        while not subscriber.is_lost:
            while subscriber.messages:
                message = subscriber.messages.popleft()
                if isinstance(message, int):
                    await self._forget(message)
                    subscriber.acknowledge(PUBCOMP, message)
                else:
                    await self._take(subscriber, message)
            subscriber.news.clear()
            await subscriber.news.wait()
        raise LostError("the connection has ended")

    async def _forget(self, packet_id: int) -> None:
        if self._cutting.pop(packet_id, None) is not None:
            await self._in_thread(self._spool.end_cutting, packet_id)

    async def _take(self, subscriber: SplitSubscriber, message: IncomingMessage) -> None:
        reason, code = await self._cut(subscriber, message)
        while piece := await message.take():  # what was not cut
            subscriber.taken(len(piece))
        if reason:
            count(self._counts.split_dropped, reason)
            if is_logged(n_dropped := self._counts.split_dropped[reason]):
                self._logger.warning(
                    "%d messages were not cut to their end (%s), the last of topic %r, %d bytes%s",
                    n_dropped,
                    reason,
                    message.topic.decode(),
                    message.total_bytes,
                    f": {describe_reason_code(code)}" if code else "",
                )
        if message.qos == 1:
            await self._forget(message.packet_id)
            subscriber.acknowledge(PUBACK, message.packet_id, code)
        elif message.qos:
            if code:  # there is no PUBREL
                await self._forget(message.packet_id)
            subscriber.acknowledge(PUBREC, message.packet_id, code)

    async def _cut(self, subscriber: SplitSubscriber, message: IncomingMessage) -> tuple[str, int]:
        """Publish the parts of a message.

        Returns:
            (why it was not cut to its end, or ""; the reason code of a refusal, or 0).
        """
        found, _ = read_publish_properties(message.properties, 0)
        publisher = take_publisher(found)
        expiry = found.get("message_expiry_interval")
        properties, marks = divided(found, publisher, tells_publisher=self._config.tells_publisher)
        if publisher.startswith(PARTS_CLIENTS):
            return "", 0  # its parts are at this broker already
        known = self._cutting.get(message.packet_id) if message.first_byte & 8 else None
        message_id, skip_bytes = known or (await self._new_id(), 0)
        if message.qos and known is None:
            await self._note(message, message_id, 0)
        cutter = Cutter(
            message_id,
            message.total_bytes,
            qos=message.qos,
            retain=bool(message.first_byte & 1),
            properties=properties,
            part_bytes=self._config.part_bytes,
            skip_bytes=skip_bytes,
        )
        topic = self._prefix + message.topic
        n_parts = 0
        while not cutter.is_done:
            parts = await self._next(subscriber, message, cutter)
            if expiry is not None:
                seconds = expiry - int(self._clock() - message.arrived_at)
                if seconds <= 0:
                    return "expired", 0
                marks["message_expiry_interval"] = seconds
            code = await self._publish(topic, parts, write_properties(marks, PacketType.PUBLISH))
            if code:
                return "refused", code
            n_parts += len(parts)
            self._counts.split_parts += len(parts)
            if message.qos and n_parts % NOTED_PARTS < AT_ONCE:
                await self._note(message, message_id, cutter.sent_bytes)
        self._counts.split_messages += 1
        return "", 0

    async def _new_id(self) -> bytes:
        """Return a new message identifier, with random bytes for the case of a restored backup."""
        if not self._number % NUMBERS:
            self._number = await self._in_thread(self._spool.reserve_numbers)
        number = self._number.to_bytes(NUMBER_BYTES)
        self._number += 1
        return self.stream + number + secrets.token_bytes(ID_BYTES - len(self.stream + number))

    async def _next(
        self, subscriber: SplitSubscriber, message: IncomingMessage, cutter: Cutter
    ) -> list[Part]:
        """Return the next parts of a message, at least one."""
        parts: list[Part] = []
        while len(parts) < AT_ONCE:
            part = cutter.take()
            if part is not None:
                parts.append(part)
            elif cutter.is_done or (parts and not message.pieces):
                break
            else:
                piece = await message.take()
                cutter.feed(piece)
                subscriber.taken(len(piece))
        return parts

    async def _note(self, message: IncomingMessage, message_id: bytes, sent_bytes: int) -> None:
        self._cutting[message.packet_id] = message_id, sent_bytes
        await self._in_thread(self._spool.cut, message.packet_id, message_id, sent_bytes)

    async def _publish(self, topic: bytes, parts: Sequence[Part], properties: bytes) -> int:
        """Publish parts, repeatedly while the broker has no room for them.

        Returns:
            Reason code of a refusal for another reason; 0 where all are published.
        """
        payloads = [write_part(part) for part in parts]
        while payloads:
            try:
                codes = await self._publisher.publish_all(topic, payloads, properties)
            except LostError:
                codes = [int(ReasonCode.QUOTA_EXCEEDED)] * len(payloads)
            left = []
            for payload, code in zip(payloads, codes, strict=True):
                if code == ReasonCode.QUOTA_EXCEEDED:
                    left.append(payload)
                elif code >= 0x80:
                    return code
            payloads = left
            if payloads:
                await asyncio.sleep(AGAIN_SECONDS)
        return 0

    def close(self) -> None:
        """End the connections; the sessions stay."""
        if self._subscriber is not None:
            self._subscriber.disconnect()
        self._publisher.close()


def take_publisher(properties: dict[str, Any]) -> str:
    """Remove and return the publisher's Client Identifier, which the broker has appended."""
    pairs = properties.get("user_property", ())
    return pairs.pop()[1] if pairs and pairs[-1][0] == PUBLISHER_PROPERTY else ""


def divided(
    properties: Mapping[str, Any], publisher: str, *, tells_publisher: bool
) -> tuple[bytes, dict[str, Any]]:
    """Divide the properties of a message that is cut.

    Args:
        properties: properties of the message, without the publisher that the broker has appended.
        publisher: the publisher's Client Identifier.
        tells_publisher: see `PartsConfig`.

    Returns:
        (encoded properties of the whole, properties of each part without its expiry).
    """
    whole = {name: value for name, value in properties.items() if name not in _OF_EACH_PART}
    pairs: list[tuple[str, str]] = list(whole.pop("user_property", ()))
    marks = [pair for pair in pairs if pair[0] in MARKS]
    pairs = [pair for pair in pairs if pair[0] not in MARKS]
    if not marks:  # a message of another site keeps its publisher
        pairs = [pair for pair in pairs if pair[0] != PUBLISHER_PROPERTY]
        if tells_publisher:
            pairs.append((PUBLISHER_PROPERTY, publisher))
    if pairs:
        whole["user_property"] = pairs
    return write_properties(whole, PacketType.PUBLISH), {"user_property": marks} if marks else {}


def end_session(clients: LocalClients) -> bool:
    """End the session of `SPLIT_ID`, as nothing is cut any more; return whether it existed."""
    return bool(clients.end_sessions(lambda client_id: client_id == SPLIT_ID))
