"""Messages that arrived together, for the same subscribers, at the same QoS.

A run keeps the received bytes, and the packets to send are made of them all at once. It makes a
`Message` of a single packet only for an outbox, or for an inflight window whose acknowledgements do
not arrive in order. So does a lone message, which came by itself and went to one subscriber.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5, ProtocolVersion
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.short_packets import number_packets

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.outbox.delivery import RunPart
    from penstock.broker.sending.core_context import CoreContext
    from penstock.broker.sessions.client import PublishReceipt

Segment: TypeAlias = tuple[int, int, int, int, int, tuple[str, bytes]]
"""Packets of a run that follow each other and have one topic, one length and one form.

In order: how many; where the first begins, in the bytes of the run; bytes of each; where the
Packet Identifier of the first stands, in the bytes of the run; payload bytes of each, which end the
packet; Topic Name, as text and in UTF-8. A plain tuple, as one is made for each message where no
neighbours are alike.
"""


LoneMessage: TypeAlias = tuple[
    int, int, bytes, tuple[str, bytes], str, float, "PublishReceipt | None"
]
"""A QoS 1 message without properties that came by itself and went to one subscriber.

In order: the Packet Identifier that it went with; its payload bytes; the PUBLISH as it came, which
ends with the payload; Topic Name, as text and in UTF-8; Client Identifier of its publisher; when it
arrived, as `Core.arrived_at` has it; what its publisher is owed, where the session is durable. A
plain tuple: a `MessageRun` with its place in the inflight window takes 0.7 us to make, this takes
0.05.
"""


def read_lone(lone: LoneMessage) -> Message:
    """Return a message that came by itself, a new object each time."""
    _, payload_bytes, data, (topic, topic_bytes), publisher, arrived_at, _ = lone
    return Message(
        topic,
        data[len(data) - payload_bytes :],
        qos=1,
        arrived_at=arrived_at,
        publisher=publisher,
        topic_bytes=topic_bytes,
    )


def without_retain(data: bytes, segments: list[Segment]) -> bytes:
    """Return whole PUBLISH packets without RETAIN, as they go to established subscriptions."""
    packets = bytearray(data)
    for n_messages, start, packet_bytes, _, _, _ in segments:
        stop = start + n_messages * packet_bytes
        packets[start:stop:packet_bytes] = bytes((data[start] & ~1,)) * n_messages
    return bytes(packets)


def run_of_lone(lone: LoneMessage) -> MessageRun:
    """Return a message that came by itself as a run of one."""
    _, payload_bytes, data, topic, publisher, arrived_at, _ = lone
    start = 2 if data[1] <= 0x7F else 3
    packet_id_at = start + 2 + len(topic[1])
    has_properties = packet_id_at + 2 + payload_bytes < len(data)  # their length, which is 0
    version = int(ProtocolVersion.MQTT_5 if has_properties else ProtocolVersion.MQTT_3_1_1)
    segment = (1, 0, len(data), packet_id_at, payload_bytes, topic)
    return MessageRun(data, [segment], 1, version, publisher, arrived_at, arrived_at)


class MessageRun:
    """QoS 1 or 2 messages of one publisher, none of them large or a repeat.

    Immutable by agreement, as messages are, but for what the journal notes; sessions share it.

    Attributes:
        data: whole PUBLISH packets, one after the other, as they came, but for RETAIN.
        segments: what they are, in order; one at least.
        qos: they were published with.
        retain: RETAIN flag that they were published with; `data` has none, as they leave so.
        n_messages: how many.
        payload_bytes: of all.
        largest_bytes: of the largest packet.
        messages: those of which a `Message` was made, by their place in the run; None for none.
        share: topic filter of the shared subscription by which they go, or "".
        row: owned by the journal: the number that the row of its first message has, or would have;
            0 while it has none.
        parts: owned by the journal: the parts of durable sessions that are not acknowledged.
    """

    __slots__ = (
        "_arrived_at",
        "_publisher",
        "_received_at",
        "_version",
        "data",
        "largest_bytes",
        "messages",
        "n_messages",
        "parts",
        "payload_bytes",
        "qos",
        "retain",
        "row",
        "segments",
        "share",
    )

    def __init__(
        self,
        data: bytes,
        segments: list[Segment],
        qos: int,
        version: int,
        publisher: str,
        arrived_at: float,
        now: float,
        *,
        retain: bool = False,
    ) -> None:
        """Make a run of packets that were found to be correct.

        Args:
            data: whole packets.
            segments: in their order.
            qos: of all.
            version: protocol version that they are written in.
            publisher: Client Identifier.
            arrived_at: monotonic seconds; what its messages note, see `Core.arrived_at`.
            now: monotonic seconds; from where on their Message Expiry Intervals run.
            retain: RETAIN flag of all.
        """
        self.data = without_retain(data, segments) if retain else data
        self.retain = retain
        self.qos = qos
        self.segments = segments
        self._version = version
        self._publisher = publisher
        self._arrived_at = arrived_at
        self._received_at = now
        self.messages: dict[int, Message] | None = None
        self.share = ""
        self.row = 0
        self.parts: list[RunPart] = []
        n_messages, _, largest_bytes, _, n_bytes, _ = segments[0]
        payload_bytes = n_messages * n_bytes
        if len(segments) > 1:
            for n_more, _, packet_bytes, _, n_bytes, _ in segments[1:]:
                n_messages += n_more
                payload_bytes += n_more * n_bytes
                largest_bytes = max(largest_bytes, packet_bytes)
        self.n_messages = n_messages
        self.payload_bytes = payload_bytes
        self.largest_bytes = largest_bytes

    def part(self, data: bytes, segments: list[Segment]) -> MessageRun:
        """Return a run of some of these messages, with the segments as they stand in `data`."""
        times = self._arrived_at, self._received_at
        run = MessageRun(data, segments, self.qos, self._version, self._publisher, *times)
        run.share = self.share
        return run

    def renumbered(self, first_packet_id: int) -> bytes | bytearray:
        """Return the packets with Packet Identifiers that follow each other, up to 65,535."""
        data = self.data
        if self.n_messages == 1:
            at = self.segments[0][3]
            return data[:at] + first_packet_id.to_bytes(2, "big") + data[at + 2 :]
        packets = bytearray(data)
        for n_messages, start, packet_bytes, packet_id_at, _, _ in self.segments:
            if n_messages == 1:
                packets[packet_id_at] = first_packet_id >> 8
                packets[packet_id_at + 1] = first_packet_id & 0xFF
            else:
                stop = start + n_messages * packet_bytes
                number_packets(packets, packet_id_at, stop, packet_bytes, first_packet_id)
            first_packet_id += n_messages
        return packets

    def payload_bytes_of(self, first: int, stop: int) -> int:
        """Return the payload bytes of the messages from one index to before another."""
        if stop - first == self.n_messages:
            return self.payload_bytes
        total = 0
        index = 0
        for n_messages, _, _, _, n_bytes, _ in self.segments:
            n_common = min(stop, index + n_messages) - max(first, index)
            if n_common > 0:
                total += n_common * n_bytes
            index += n_messages
        return total

    def message(self, index: int) -> Message:
        """Return one of the messages, the same object each time."""
        messages = self.messages
        if messages is None:
            messages = self.messages = {}
        message = messages.get(index)
        if message is None:
            message = messages[index] = self._read(index)
        return message

    def _read(self, index: int) -> Message:
        for segment in self.segments:
            if index < segment[0]:
                break
            index -= segment[0]
        return self._read_of(segment, index)

    def fresh(self) -> Iterator[Message]:
        """Yield all messages, new objects each time."""
        for segment in self.segments:
            for index in range(segment[0]):
                yield self._read_of(segment, index)

    def _read_of(self, segment: Segment, index: int) -> Message:
        _, start, packet_bytes, packet_id_at, payload_bytes, (topic, topic_bytes) = segment
        offset = index * packet_bytes
        stop = start + offset + packet_bytes
        properties = None
        expires_at = None
        if self._version == MQTT_5:
            at = packet_id_at + offset + 2
            properties, _ = read_publish_properties(self.data, at)
            expires_at = expiry_time(properties, self._received_at)
        return Message(
            topic,
            self.data[stop - payload_bytes : stop],
            qos=self.qos,
            retain=self.retain,
            arrived_at=self._arrived_at,
            expires_at=expires_at,
            properties=properties,
            publisher=self._publisher,
            topic_bytes=topic_bytes,
        )

    def rows(self, first: int, epoch: float) -> Iterator[tuple[object, ...]]:
        """Yield the rows of the messages; see `penstock.broker.outbox.delivery.Run`."""
        index = 0
        for n_messages, start, packet_bytes, packet_id_at, payload_bytes, (
            topic,
            _,
        ) in self.segments:
            encoded = self.data[packet_id_at + 2 : start + packet_bytes - payload_bytes]
            properties = expires_at = None
            if len(encoded) > 1:
                properties = encoded
                expires_at = expiry_time(read_publish_properties(encoded, 0)[0], self._received_at)
            alike = (
                self.qos,
                self.retain,
                self._arrived_at + epoch,
                None if expires_at is None else expires_at + epoch,
                properties,
                self._publisher,
            )
            for place in range(max(first, index), index + n_messages):
                stop = start + (place - index + 1) * packet_bytes
                payload = self.data[stop - payload_bytes : stop]
                yield self.row + place, topic, payload, *alike
            index += n_messages


def tell_sent(core: CoreContext, link: Link, first: int, run: MessageRun, now: float) -> None:
    """Tell the samplers of a run that was sent, from its first Packet Identifier on."""
    for sampler in core.timing:
        packet_id = first
        try:
            if run.n_messages == 1:
                sampler.sent(link, first, run.payload_bytes, now)
                continue
            for n_packets, _, _, _, n_bytes, _ in run.segments:
                sampler.sent_run(link, packet_id, n_packets, n_bytes, now)
                packet_id += n_packets
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not the client's)
            core.guard.failed(sampler, error)
