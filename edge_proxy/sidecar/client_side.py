"""The way from the broker to one client: packets are parsed, withheld and sent.

Theory of operation. Every packet but PUBLISH is passed on unchanged, at once, whatever waits. So is
a small PUBLISH while the outbox is empty and the client's connection has room: the received bytes,
together with their neighbours. Every other PUBLISH becomes a delivery in the outbox, whose gate may
withhold it, and is encoded again when it leaves.

A full outbox has one of two effects. If nothing is withheld, the client is merely slow: the proxy
stops reading from the broker, and the broker sees the same back-pressure as without a proxy. If
something is withheld, reading must go on, because PINGRESP and acknowledgements come the same way:
a QoS 0 message is then dropped and counted. QoS 1 and 2 are never dropped: for them reading stops,
which the broker's own inflight limit makes rare.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.errors import ProtocolError
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.packets import PubAck, PubRec
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import (
    ReceiveBuffer,
    packet_too_large,
    read_remaining_length,
)
from penstock.broker.mqtt.writer import publish_header, write_packet
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.ledger import Ledger
from penstock.broker.outbox.priority_outbox import make_outbox
from penstock.broker.payload import JOIN_BELOW_BYTES
from penstock.broker.sending.outgoing_properties import outgoing_properties
from penstock.edge_proxy.sidecar.ack_map import AckMap, Outcome
from penstock.edge_proxy.sidecar.direction import Direction, check_first_byte
from penstock.edge_proxy.sidecar.link_samplers import LinkSamplers
from penstock.edge_proxy.sidecar.shared import Shared

MAX_URGENT_BYTES: Final = 64 * 1024
"""Bytes passed on to a client's full connection before the proxy stops reading from the broker:
thousands of acknowledgements, to a client that reads none of them."""


class ClientSide:
    """The way to one client.

    Invariant: ``ledger.matched`` is the sum of delivered, expired, dropped, waiting and inflight
    messages; see `check_invariants`.

    Attributes:
        out: buffers to write to the client, in order.
        out_bytes: their total length.
        refusals: packets for the broker, about messages that expired or had too many properties.
        outbox: the waiting messages.
        acks: where each QoS 1 and 2 message is.
        ledger: the account of this client.
        samplers: of this client's path.
        connack: the CONNACK's body once it has come, before that None.
        is_paused: the client's transport has called `pause_writing`.
        wants_pump: something may be able to leave.
    """

    def __init__(self, shared: Shared, link: Link, version: int) -> None:
        """Make the way to a client that has sent its CONNECT.

        Args:
            shared: of the proxy.
            link: to this client.
            version: protocol version.
        """
        self._shared = shared
        self._link = link
        self._version = version
        self._limits = shared.limits
        self._buffer = ReceiveBuffer(shared.limits.maximum_packet_size)
        self._backlog: list[bytes] = []
        self._leftover = b""
        self._is_stopped = False
        self._urgent_bytes = 0
        # Packet id to (arrival, whether it is large), of what left the outbox unacknowledged.
        self._arrivals: dict[int, tuple[float, bool]] = {}
        self._n_expired = 0  # of those that were acknowledged to the broker
        self.ledger = Ledger()
        self.outbox = make_outbox(link, self.ledger, shared.outbox_rules)
        self.acks = AckMap()
        self.samplers = LinkSamplers(shared.samplers, link, shared.guard)
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.refusals: list[bytes] = []
        self.connack: bytes | None = None
        self.is_paused = False
        self.wants_pump = False

    # -- from the broker ------------------------------------------------------------------

    @property
    def wants_reading(self) -> bool:
        """Whether to go on reading from the broker."""
        return not self._is_stopped and self._urgent_bytes <= MAX_URGENT_BYTES

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Take bytes from the broker.

        Raises:
            PeerError: the broker breaks the protocol.
        """
        if self._is_stopped:
            self._backlog.append(chunk)
            return
        data = self._buffer.receive_data(chunk)
        if data:
            self._scan(data, now)

    def _scan(self, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`; keep the rest."""
        end = len(data)
        begin = position = 0
        try:
            while position < end:
                start, stop = self._read_header(data, position)
                if not start or stop > end:
                    break
                first_byte = data[position]
                if first_byte >> 4 != PacketType.PUBLISH:
                    if first_byte >> 4 == PacketType.CONNACK:
                        self.connack = data[start:stop]
                elif self._is_full() and not self._may_drop(first_byte):
                    self._is_stopped = True
                    self._leftover = data[position:]
                    return
                elif not self._receive_publish(data, first_byte, start, stop, now):
                    self._pass_on(data, begin, position)
                    begin = stop
                position = stop
        finally:
            self._pass_on(data, begin, position)
        self._buffer.unread(data, position)

    def _read_header(self, data: bytes, position: int) -> tuple[int, int]:
        """Return (where the body starts, where it ends); (0, 0) while bytes are missing."""
        check_first_byte(data[position], Direction.DOWNSTREAM, self._version)
        start, length = read_remaining_length(data, position)
        size_bytes = start + length - position
        if start and size_bytes > self._limits.maximum_packet_size:
            raise packet_too_large(size_bytes, self._limits.maximum_packet_size)
        return start, start + length

    def _pass_on(self, data: bytes, begin: int, end: int) -> None:
        """Put a run of whole packets into `out` unchanged."""
        if begin < end:
            self._put(data if end - begin == len(data) else data[begin:end])

    def _put(self, data: bytes) -> None:
        self.out.append(data)
        self.out_bytes += len(data)
        if self.is_paused:
            self._urgent_bytes += len(data)

    def _is_full(self) -> bool:
        outbox, limits = self.outbox, self._limits
        return outbox.n_messages >= limits.queued_messages or outbox.n_bytes >= limits.queued_bytes

    def _may_drop(self, first_byte: int) -> bool:
        """Say whether a PUBLISH that finds the outbox full is dropped."""
        is_qos_0 = not first_byte & 0x06
        return is_qos_0 and self.outbox.n_withheld > 0

    def _receive_publish(
        self, data: bytes, first_byte: int, start: int, stop: int, now: float
    ) -> bool:
        """Take one PUBLISH; return whether it is passed on unchanged.

        Args:
            data: received bytes.
            first_byte: of the packet.
            start: where its variable header begins in `data`.
            stop: where it ends.
            now: monotonic seconds.
        """
        qos = first_byte >> 1 & 3
        topic_end, packet_id, properties_at, payload_at = read_publish_head(
            data, first_byte, start, stop, self._version
        )
        topic = self._shared.topics.look_up(data[start + 2 : topic_end])
        try:
            properties = self._read_properties(data, properties_at, payload_at)
        except ProtocolError as error:
            if error.reason_code != ReasonCode.QUOTA_EXCEEDED:
                raise
            self._drop_for_properties(qos, packet_id)
            return False
        is_dup = first_byte & 0x08 != 0
        if qos and not self.acks.expect(packet_id, qos, is_dup=is_dup):
            return False
        self.ledger.matched += 1
        payload_bytes = stop - payload_at
        is_large = payload_bytes > topic.threshold_s
        if not is_large and not self.outbox.n_messages and not self.is_paused:
            self._book_as_sent(qos, packet_id, payload_bytes, now)
            return True
        if self._is_full():
            self.ledger.drop("queue_full")
            return False
        message = Message(
            topic.name,
            self._shared.payloads.keep(data[payload_at:stop]),
            qos=qos,
            retain=first_byte & 0x01 != 0,
            is_large=is_large,
            arrived_at=now,
            expires_at=expiry_time(properties, now),
            properties=properties,
            topic_bytes=data[start + 2 : topic_end],
        )
        delivery = Delivery(message, qos, retain=message.retain)
        delivery.packet_id = packet_id
        if qos:
            self.acks.hold(delivery)
        self.outbox.add(delivery)
        self.wants_pump = True
        return False

    def _drop_for_properties(self, qos: int, packet_id: int) -> None:
        """Refuse a message with more properties than the proxy reads.

        If the connection were closed instead, the broker would send the message again to a session
        that persists, and the client would never get anything else.
        """
        self.ledger.matched += 1
        self.ledger.drop("properties")
        if qos:
            self._refuse(qos, packet_id, ReasonCode.QUOTA_EXCEEDED)

    def _refuse(self, qos: int, packet_id: int, reason_code: ReasonCode) -> None:
        """Tell the broker that a QoS 1 or 2 message is not delivered."""
        kind = PubAck if qos == 1 else PubRec
        self.refusals.append(write_packet(kind(packet_id, reason_code), self._version))

    def _read_properties(self, data: bytes, start: int, stop: int) -> dict[str, Any]:
        """Return the properties of a PUBLISH.

        Args:
            data: received bytes.
            start: where the Property Length stands.
            stop: where the payload begins.

        Raises:
            PeerError: they are malformed, not allowed, or too many: quota exceeded.
        """
        if stop - start <= 1:
            return _NO_PROPERTIES
        limits = self._limits
        if stop - start > limits.properties_bytes:
            n_bytes, _ = read_variable_byte_integer(data, start)
            if n_bytes > limits.properties_bytes:
                raise ProtocolError("properties of PUBLISH", ReasonCode.QUOTA_EXCEEDED)
        properties, _ = read_publish_properties(data, start, limits.properties)
        if "topic_alias" in properties:
            raise ProtocolError(
                "PUBLISH with a Topic Alias; allowed: none, as Topic Alias Maximum is 0 "
                "[MQTT-3.1.2-27]",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        return properties

    # -- to the client ----------------------------------------------------------------------

    def pause_sending(self) -> None:
        """The client's connection has too many unsent bytes."""
        self.is_paused = True

    def resume_sending(self) -> None:
        """The client's connection has room again."""
        self.is_paused = False
        self._urgent_bytes = 0
        self.wants_pump = True

    def link_changed(self) -> None:
        """Ask the gate again: a sampler has a new estimate."""
        self.outbox.link_changed()
        self.wants_pump = True

    def pump(self, unsent_bytes: int, now: float) -> None:
        """Move messages that may be sent now from the outbox into `out`.

        Args:
            unsent_bytes: what the client's connection has taken and not sent.
            now: monotonic seconds.

        Raises:
            PeerError: in bytes from the broker that were not parsed before for want of room.
        """
        if not self.wants_pump or self.is_paused:
            return
        self.wants_pump = False
        outbox = self.outbox
        self._link.unsent_bytes = unsent_bytes
        while self.out_bytes < self._limits.write_high_bytes:
            delivery = outbox.take(now)
            if delivery is None:
                break
            self._send(delivery, now)
            if delivery.after is not None:
                self.wants_pump = True
                break
        else:
            self.wants_pump = True
        if self.ledger.expired != self._n_expired:
            self._n_expired = self.ledger.expired
            self._refuse_expired(now)
        if self._is_stopped and self._has_room():
            self._go_on_reading(now)

    def _has_room(self) -> bool:
        outbox, limits = self.outbox, self._limits
        return (
            outbox.n_messages <= limits.queued_messages // 2
            and outbox.n_bytes <= limits.queued_bytes // 2
        )

    def _go_on_reading(self, now: float) -> None:
        self._is_stopped = False
        leftover, self._leftover = self._leftover, b""
        self._scan(leftover, now)
        while self._backlog and not self._is_stopped:
            self.receive_data(self._backlog.pop(0), now)

    def _send(self, delivery: Delivery, now: float) -> None:
        message = delivery.message
        qos = delivery.qos
        is_dup = False
        if qos:
            is_dup = self.acks.sent(delivery.packet_id)
            is_large = delivery.after is not None
            self._arrivals[delivery.packet_id] = message.arrived_at, is_large
        header = publish_header(
            message.topic_bytes,
            message.payload_bytes,
            qos=qos,
            retain=delivery.retain,
            dup=is_dup,
            packet_id=delivery.packet_id,
            properties=outgoing_properties(message, (), now),
            version=self._version,
        )
        payload = message.read_payload()
        if len(payload) <= JOIN_BELOW_BYTES:
            self._put(header + payload)
        else:
            self._put(header)
            self._put(payload)
        self._book_as_sent(qos, delivery.packet_id, message.payload_bytes, now)

    def _book_as_sent(self, qos: int, packet_id: int, payload_bytes: int, now: float) -> None:
        if qos:
            self.samplers.sent(packet_id, payload_bytes, now)
        else:
            self.ledger.delivered += 1

    def _refuse_expired(self, now: float) -> None:
        """Tell the broker which messages will not be delivered, to free its inflight window.

        A reason code of 0x80 or above ends the exchange [MQTT-4.4.0-2] and is true: the client
        never gets the message. Only MQTT 5.0 has expiry, so there always is such a code.
        """
        for delivery in self.acks.take_expired(now):
            code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            self._refuse(delivery.qos, delivery.packet_id, code)

    # -- acknowledgements and the end -------------------------------------------------------

    def acknowledged(self, packet_type: int, packet_id: int, reason_code: int, now: float) -> bool:
        """Take a client's acknowledgement; return whether the broker may see it."""
        outcome = self.acks.acknowledge(packet_type, packet_id, reason_code)
        if outcome is Outcome.HELD:
            self._shared.logger.warning(
                "client %s: %s for packet id %d, which was not sent yet, is not passed on",
                self._link.client_id,
                PacketType(packet_type).name,
                packet_id,
            )
            return False
        if outcome is Outcome.DELIVERED:
            self.ledger.delivered += 1
        elif outcome is Outcome.REFUSED:
            self.ledger.drop("refused")
        is_first_answer = packet_type != PacketType.PUBCOMP and outcome is not Outcome.UNKNOWN
        sent_at = self._link.outstanding_since
        if is_first_answer and self.samplers.acknowledged(packet_id, now):
            self.link_changed()
        is_timed = sent_at is not None and self._link.outstanding_since != sent_at
        if is_timed or self._arrivals:
            self._observe_latency(packet_id, outcome, sent_at if is_timed else None, now)
        return True

    def _observe_latency(
        self, packet_id: int, outcome: Outcome, sent_at: float | None, now: float
    ) -> None:
        """Take the latency of a large message, or of a small one that a sampler has timed.

        Args:
            packet_id: of the acknowledged message.
            outcome: of the acknowledgement.
            sent_at: monotonic seconds at which a timed message was sent; None for others.
            now: monotonic seconds.
        """
        arrived_at, is_large = self._arrivals.get(packet_id, (sent_at, False))
        record = self._shared.outbox_rules.record
        if is_large and outcome is Outcome.DELIVERED and arrived_at is not None:
            record.observe_latency("large", "acknowledged", now - arrived_at)
        elif not is_large and sent_at is not None and arrived_at is not None:
            record.observe_latency("small", "acknowledged", now - arrived_at)
        if outcome is not Outcome.RECEIVED:
            self._arrivals.pop(packet_id, None)

    def close(self) -> None:
        """Drop waiting messages of QoS 0; the broker still has those of QoS 1 and 2."""
        self.outbox.drop_qos0("connection_lost")
        self.samplers.forget()
        gate = self._shared.gate
        self._shared.guard.call(gate, gate.forget, self._link, otherwise=None)

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        self.outbox.check_invariants()
        held = self.outbox.n_messages + self.acks.n_inflight
        assert self.ledger.outstanding() == held, "ledger"  # noqa: S101 (this is the check)
        n_waiting = sum(1 for delivery in self.outbox.waiting() if delivery.qos)
        assert self.acks.n_waiting <= n_waiting, "acks"  # noqa: S101


_NO_PROPERTIES: Final[dict[str, Any]] = {}
