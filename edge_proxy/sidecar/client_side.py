"""Packets on their way from the broker to one client: they are parsed, withheld and sent.

Theory of operation. Every packet but PUBLISH is passed on unchanged, at once, whatever waits. So is
a small PUBLISH while the outbox is empty, the client's connection has room and its inflight window
is not full; its bytes stay together with those around it. Where only the connection has no room,
small messages of QoS 0 wait as bytes (`Qos0Backlog`). Every other PUBLISH becomes a delivery in the
outbox, whose gate may withhold it, and is encoded again when it leaves.

Two windows bound QoS 1 and 2. The client's own Receive Maximum bounds what is sent to it and not
acknowledged. What waits here only counts in the broker's window, which is larger: the proxy asks
for `ProxyLimits.upstream_receive_maximum` in CONNECT (`proxied_client`). So withheld messages take
no place from small ones, and reading goes on whatever is withheld.

QoS 0 is only bounded by a limit of what waits. At that limit, a message is dropped and counted if
something is withheld, because PINGRESP and acknowledgements come on the same connection. If nothing
is withheld, the client is merely slow: the proxy stops reading from the broker, which gets the same
back-pressure as without a proxy. Reading also stops while the payload store has no room.

While the proxy does not read, it cannot see the broker's PINGRESP. It then answers PINGREQ itself,
as it does for a silent broker (`pings`), and later discards as many of the broker's PINGRESPs.
PINGREQ is passed on in any case, so that the client's Keep Alive is met at the broker.
"""

from __future__ import annotations

import dataclasses
from typing import Final, cast

from penstock.broker.errors import ProtocolError
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.packets import ConnAck, Connect, PingResp, PubAck, PubRec
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import (
    ReceiveBuffer,
    packet_too_large,
    read_remaining_length,
)
from penstock.broker.mqtt.short_packets import (
    PACKET_BYTES,
    end_of_equal_heads,
    end_of_like,
    packet_ids_at,
)
from penstock.broker.mqtt.writer import publish_header, write_packet
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.priority_outbox import make_outbox
from penstock.broker.payload import JOIN_BELOW_BYTES, STORED_ABOVE_BYTES, PayloadReader
from penstock.broker.sending.outgoing_properties import outgoing_properties
from penstock.broker.sending.sender import Buffer
from penstock.edge_proxy.sidecar.ack_map import AckMap, Outcome
from penstock.edge_proxy.sidecar.direction import Direction, check_first_byte
from penstock.edge_proxy.sidecar.link_samplers import LinkSamplers
from penstock.edge_proxy.sidecar.pings import Pings
from penstock.edge_proxy.sidecar.proxy_state import ProxyState
from penstock.edge_proxy.sidecar.publish_cache import PublishProperties
from penstock.edge_proxy.sidecar.qos0_backlog import Qos0Backlog

MAX_URGENT_BYTES: Final = 64 * 1024
"""Bytes that are written to a full connection of a client before the proxy stops reading from the
broker. They are thousands of acknowledgements, for a client that reads none of them."""

MAX_PACKET_SIZE: Final = 5 + MAX_REMAINING_LENGTH
"""Bytes of the largest packet that MQTT allows."""

MAX_PACKET_IDS: Final = 65_535
"""Number of packet identifiers: the default Receive Maximum of a client (MQTT 5.0, 3.1.2.11.3)."""

RETRY_SECONDS: Final = 1.0
"""After so long, a payload that the store has refused is offered again: there may be room."""

_PINGRESP: Final = 0xD0
_DISCONNECT: Final = 0xE0

_MOST_PUBACKS: Final = 256
"""How many PUBACK packets are handled at once: more would gain nothing."""

_QOS_0: Final = frozenset({0x30, 0x31})
_RUN_BYTES: Final = frozenset({0x32, 0x33, 0x34, 0x35})
"""First bytes of PUBLISH packets of QoS 0, and of other ones without DUP."""

_ANSWERS: Final = frozenset({0x40, 0x50, 0x62, 0x70})
"""First bytes of PUBACK, PUBREC, PUBREL and PUBCOMP."""

_LEAST_RUN_BYTES: Final = 4
"""Bytes of the fixed header of a short PUBLISH and the length of its topic."""

_BEFORE_CONNACK: Final = frozenset({PacketType.CONNACK, PacketType.AUTH})


class ClientSide:
    """The packets for one client, and the account of them.

    Invariants: until `close`, ``ledger.matched`` is the sum of delivered, expired, dropped, waiting
    and inflight messages; no more than `receive_maximum` messages are inflight. See
    `check_invariants`.

    Attributes:
        refusals: packets for the broker about messages that expired or had too many properties.
        outbox: the waiting messages, but those in `qos0_backlog`.
        qos0_backlog: small messages of QoS 0 that wait for a full connection. They came before
            those in `outbox`.
        acks: knows where each QoS 1 and 2 message is.
        ledger: the counts of this client's messages.
        connack: the broker's CONNACK; None before it.
        disconnect: reason code of the broker's DISCONNECT; None before it.
        pings: PINGREQ packets without an answer, and whether the broker is silent.
        is_paused: whether the client's transport has called `pause_writing`.
        is_unreadable: whether a payload cannot be read back from its store, so that the connection
            must end.
        wants_pump: whether something may be able to leave.
    """

    def __init__(self, shared: ProxyState, link: Link, connect: Connect) -> None:
        self._shared = shared
        self._link = link
        self._version = connect.protocol_version
        self._limits = shared.limits
        self._buffer = ReceiveBuffer(shared.limits.maximum_packet_size)
        self._unread_chunks: list[bytes] = []
        self._leftover = b""
        self._is_stopped = False
        self._retry_at: float | None = None
        self._look_again_at: float | None = None
        self._is_window_told = False
        self._properties = PublishProperties(shared.limits)
        self._urgent_bytes = 0
        self._out: list[Buffer | PayloadReader] = []
        self._out_bytes = 0
        self._has_reader = False
        # Packet id to (arrival, whether it is large), of what left the outbox unacknowledged.
        self._arrivals: dict[int, tuple[float, bool]] = {}
        self._n_expired = 0  # of those that were acknowledged to the broker
        self.ledger = Ledger()
        self.outbox = make_outbox(link, self.ledger, shared.outbox_rules)
        self.qos0_backlog = Qos0Backlog()
        self.acks = AckMap()
        self.samplers = LinkSamplers(shared.samplers, link, shared.guard)
        self.receive_maximum: int = connect.properties.get("receive_maximum", MAX_PACKET_IDS)
        self.refusals: list[bytes] = []
        self.connack: ConnAck | None = None
        self.disconnect: int | None = None
        self.pings = Pings(connect.keep_alive, shared.limits.broker_silence_seconds)
        self.is_paused = False
        self.is_unreadable = False
        self.wants_pump = False

    @property
    def n_waiting(self) -> int:
        """Messages that wait to be sent."""
        return self.outbox.n_messages + self.qos0_backlog.n_messages

    # -- from the broker ------------------------------------------------------------------

    @property
    def wants_reading(self) -> bool:
        """Whether to go on reading from the broker."""
        return not self._is_stopped and self._urgent_bytes <= MAX_URGENT_BYTES

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle bytes from the broker.

        Raises:
            PeerError: the broker breaks the protocol.
        """
        pings = self.pings
        pings.heard_at = now
        if pings.silent_since is not None:
            pings.heard_again()
        if self._is_stopped:
            self._unread_chunks.append(chunk)
            return
        data = self._buffer.receive_data(chunk)
        if data:
            self._scan(data, now)

    def _scan(self, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`; keep the rest."""
        end = len(data)
        begin = position = 0
        passes: bool | None
        waits = self.is_paused or self.qos0_backlog.n_messages > 0
        try:
            while position < end:
                run_end = self._take_run(data, position, now, waits=waits)
                if run_end:
                    if waits and data[position] in _QOS_0:
                        self._pass_on(data, begin, position)
                        begin = run_end
                    position = run_end
                    continue
                start, stop = self._read_header(data, position)
                if not start or stop > end:
                    break
                first_byte = data[position]
                if first_byte >> 4 != PacketType.PUBLISH:
                    passes = self._receive_other(data[position:stop], start - position)
                elif self._is_full(first_byte >> 1 & 3):
                    self._stop(data[position:])
                    return
                else:
                    passes = self._receive_publish(data, first_byte, start, stop, now)
                    if passes is None:
                        self._stop(data[position:], now + RETRY_SECONDS)
                        return
                if not passes:
                    self._pass_on(data, begin, position)
                    begin = stop
                position = stop
        finally:
            self._pass_on(data, begin, position)
        self._buffer.unread(data, position)

    def _stop(self, leftover: bytes, retry_at: float | None = None) -> None:
        """Stop reading from the broker.

        Args:
            leftover: received bytes, beginning with the message that has no room.
            retry_at: monotonic seconds at which to try again; None for when the outbox has room.
        """
        self._is_stopped = True
        self._leftover = leftover
        self._retry_at = retry_at
        self._answer_pings()

    def _receive_other(self, packet: bytes, start: int) -> bool:
        """Handle a packet other than PUBLISH; return whether it is passed on unchanged."""
        if packet[0] == _PINGRESP:
            return self.pings.answered()
        if packet[0] >> 4 == PacketType.CONNACK:
            if self.connack is not None:
                raise ProtocolError("a second CONNACK")
            read = read_packet(packet[0], packet[start:], self._version)
            self.connack = cast("ConnAck", read)
            if "server_keep_alive" in self.connack.properties:
                self.pings.keep(self.connack.properties["server_keep_alive"])
            return self._tell_maximum_packet_size(self.connack)
        if packet[0] == _DISCONNECT:
            self.disconnect = packet[start] if len(packet) > start else 0
        return True

    def _tell_maximum_packet_size(self, connack: ConnAck) -> bool:
        """Put the proxy's own limit into a CONNACK of MQTT 5, where it is lower.

        Returns:
            Whether the packet can pass as it is.
        """
        maximum = self._limits.maximum_packet_size
        allowed = connack.properties.get("maximum_packet_size", MAX_PACKET_SIZE)
        if self._version != MQTT_5 or maximum >= allowed or connack.reason_code:
            return True
        properties = {**connack.properties, "maximum_packet_size": maximum}
        told = dataclasses.replace(connack, properties=properties)
        self._put(write_packet(told, self._version))
        return False

    # -- PINGREQ -----------------------------------------------------------------------------

    def pinged(self, now: float) -> None:
        """Note that the client has sent a PINGREQ, which is passed on."""
        self.pings.pinged(now)
        if self._is_stopped or self.pings.is_covered:
            self._answer_pings()

    def _answer_pings(self) -> None:
        """Answer PINGREQ in place of a broker that is silent, or is not being read from."""
        if self.pings.n_unanswered and self._urgent_bytes <= MAX_URGENT_BYTES:
            self._put(write_packet(PingResp(), self._version) * self.pings.take_unanswered())

    # -- PUBLISH -----------------------------------------------------------------------------

    def _read_header(self, data: bytes, position: int) -> tuple[int, int]:
        """Return the offsets (start, end) of a packet's body; (0, 0) while bytes are missing."""
        check_first_byte(data[position], Direction.DOWNSTREAM, self._version)
        if self.connack is None and data[position] >> 4 not in _BEFORE_CONNACK:
            name = PacketType(data[position] >> 4).name
            raise ProtocolError(f"{name} before CONNACK [MQTT-3.2.0-1]")
        start, length = read_remaining_length(data, position)
        size_bytes = start + length - position
        if start and size_bytes > self._limits.maximum_packet_size:
            raise packet_too_large(size_bytes, self._limits.maximum_packet_size)
        return start, start + length

    def _pass_on(self, data: bytes, begin: int, end: int) -> None:
        """Send whole packets unchanged."""
        if begin < end:
            self._put(data if end - begin == len(data) else data[begin:end])

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self.is_paused:
            self._urgent_bytes += len(data)

    def _is_full(self, qos: int) -> bool:
        """Say whether there is no room for a PUBLISH of a QoS, so that reading must stop."""
        if qos:
            window = self._limits.upstream_receive_maximum
            if self.acks.n_waiting < window:
                return False
            if self._version == MQTT_5 and not self._is_window_told:
                self._is_window_told = True
                self._shared.logger.warning(
                    "client %s: the broker sends more than %d unacknowledged messages, the Receive "
                    "Maximum that it was told [MQTT-3.3.4-9]; it is not read from until some leave",
                    self._link.client_id,
                    window,
                )
            return True
        return not self.outbox.n_withheld and not self._room_for_qos_0(1)

    def _room_for_qos_0(self, payload_bytes: int) -> int:
        """Return how many more messages of QoS 0 and of a size may wait."""
        limits = self._limits
        n_messages, n_bytes = self._waiting_at_qos_0()
        # The last message may be larger than what is left.
        by_bytes = -(-(limits.queued_bytes - n_bytes) // max(1, payload_bytes))
        return max(0, min(limits.queued_messages - n_messages, by_bytes))

    def _waiting_at_qos_0(self) -> tuple[int, int]:
        """Return (messages of QoS 0 that wait, their payload bytes)."""
        outbox, acks, backlog = self.outbox, self.acks, self.qos0_backlog
        return (
            outbox.n_messages - acks.n_waiting + backlog.n_messages,
            outbox.n_bytes - acks.waiting_bytes + backlog.n_bytes,
        )

    def _receive_publish(
        self, data: bytes, first_byte: int, start: int, stop: int, now: float
    ) -> bool | None:
        """Handle one PUBLISH.

        Returns:
            Whether it is passed on unchanged; None where the payload store has no room, and nothing
            has changed.
        """
        qos = first_byte >> 1 & 3
        topic_end, packet_id, properties_at, payload_at = read_publish_head(
            data, first_byte, start, stop, self._version
        )
        topic = self._shared.topics.look_up(data[start + 2 : topic_end])
        try:
            properties = self._properties.read(data, properties_at, payload_at)
        except ProtocolError as error:
            if error.reason_code != ReasonCode.QUOTA_EXCEEDED:
                raise
            self._drop_for_properties(qos, packet_id)
            return False
        acks = self.acks
        is_dup = first_byte & 0x08 != 0
        if qos and acks.is_repeat(packet_id, is_dup=is_dup):
            return False
        payload_bytes = stop - payload_at
        is_large = payload_bytes > topic.threshold_s
        if (
            not is_large
            and not self.outbox.n_messages
            and not self.qos0_backlog.n_messages
            and not self.is_paused
            and (not qos or acks.n_inflight < self.receive_maximum)
        ):
            self.ledger.matched += 1
            if qos:
                acks.pass_on(packet_id, qos)
            self._book_as_sent(qos, packet_id, payload_bytes, now)
            return True
        if not qos and not self._room_for_qos_0(1):
            return self._drop("queue_full")
        payload = self._shared.keep(data[payload_at:stop])
        if payload is None:
            return None if qos or not self.outbox.n_withheld else self._drop("broker_full")
        self.ledger.matched += 1
        message = Message(
            topic.name,
            payload,
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
            acks.hold(delivery, is_dup=is_dup)
        self.outbox.add(delivery)
        self.wants_pump = True
        return False

    def _take_run(self, data: bytes, position: int, now: float, *, waits: bool) -> int:
        """Handle several packets at once that need no work one by one.

        It does what `_receive_publish` does for ordinary packets, for which each packet of a busy
        stream then costs a comparison of its first bytes instead of some microseconds. Unusual and
        wrong packets are left to the plain way.

        Args:
            data: received bytes.
            position: offset of the first packet.
            now: monotonic seconds.
            waits: QoS 0 is to wait. The caller passes on everything else that is handled.

        Returns:
            Offset of the end of the last packet handled; 0 where the first one is left to the plain
            way.
        """
        if self.connack is None:
            return 0
        if data[position] in _ANSWERS:
            head = data[position : position + 2]
            stop = position + PACKET_BYTES
            if head[1:] != b"\2" or stop > len(data):
                return 0
            return end_of_equal_heads(data, head, stop, PACKET_BYTES, len(data))
        if self.outbox.n_messages:
            return 0
        if data[position] in _QOS_0:
            return self._take_qos_0(data, position, waits=waits)
        return 0 if waits else self._pass_run(data, position, now)

    def _take_qos_0(self, data: bytes, position: int, *, waits: bool) -> int:
        """Handle packets of QoS 0, of any topics and sizes; see `_take_run`."""
        limits = self._limits
        if waits and self._shared.outbox_rules.is_first is not None:
            return 0  # a later message may have to go first
        topics = self._shared.topics.known
        offset = 1 if self._version == MQTT_5 else 0
        end = len(data)
        n_messages = 0
        while end - position >= _LEAST_RUN_BYTES and data[position] in _QOS_0:
            start, length = position + 2, data[position + 1]
            if length > 0x7F:
                start, length = read_remaining_length(data, position)
            stop = start + length
            size = stop - position
            if not start or stop > end or length < 2 or size > limits.maximum_packet_size:
                break
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            payload_at = topic_end + offset
            if payload_at > stop:
                break
            if offset and data[topic_end]:
                payload_at += data[topic_end]
                if waits or data[topic_end:payload_at] != self._properties.newest:
                    break  # what waits may expire
            topic = topics.get(data[start + 2 : topic_end])
            payload_bytes = stop - payload_at
            if topic is None or not 0 <= payload_bytes <= topic.threshold_s:
                break
            run_end = end
            if waits:
                if payload_bytes > STORED_ABOVE_BYTES:
                    break  # it waits in the store
                room = min(self._room_for_qos_0(payload_bytes), limits.write_high_bytes // size)
                if not room:
                    break
                run_end = min(end, position + room * size)
            run_end = end_of_equal_heads(data, data[position:payload_at], stop, size, run_end)
            n_found = (run_end - position) // size
            if waits:
                self.qos0_backlog.add(data[position:run_end], n_found, n_found * payload_bytes)
            n_messages += n_found
            position = run_end
        self.ledger.matched += n_messages
        if not waits:
            self.ledger.delivered += n_messages
        return position if n_messages else 0

    def _pass_run(self, data: bytes, position: int, now: float) -> int:
        """Count packets of QoS 1 or 2 that are like the first one as sent; see `_take_run`."""
        first_byte = data[position]
        end = len(data)
        if first_byte not in _RUN_BYTES or end - position < _LEAST_RUN_BYTES:
            return 0
        start, length = position + 2, data[position + 1]
        if length > 0x7F:
            start, length = read_remaining_length(data, position)
        stop = start + length
        size = stop - position
        if not start or stop > end or length < 2 or size > self._limits.maximum_packet_size:
            return 0
        topic_end = start + 2 + (data[start] << 8 | data[start + 1])
        properties_at = payload_at = topic_end + 2
        if self._version == MQTT_5:
            payload_at += 1
            if payload_at > stop:
                return 0
            properties_bytes = data[properties_at]
            if properties_bytes:
                payload_at += properties_bytes
                if data[properties_at:payload_at] != self._properties.newest:
                    return 0
        topic = self._shared.topics.known.get(data[start + 2 : topic_end])
        if topic is None or not 0 <= stop - payload_at <= topic.threshold_s:
            return 0
        n_messages = min(self.receive_maximum - self.acks.n_inflight, (end - position) // size)
        if n_messages <= 0:
            return 0
        properties = data[properties_at:payload_at]
        last = position + (n_messages - 1) * size
        run_end = end_of_like(data, position, stop, topic_end, properties, last)
        packet_ids = packet_ids_at(data, topic_end, run_end, size)
        if not self.acks.pass_run_on(packet_ids, first_byte >> 1 & 3):
            return 0
        self.samplers.sent_run(packet_ids, stop - payload_at, now)
        self.ledger.matched += len(packet_ids) // 2
        return run_end

    def _drop(self, reason: str) -> bool:
        """Drop a message that has just come; return False, as it is not passed on."""
        self.ledger.matched += 1
        self.ledger.drop(reason)
        return False

    def _drop_for_properties(self, qos: int, packet_id: int) -> None:
        """Refuse a message with more properties than the proxy reads.

        If the connection were closed instead, the broker would send the message again to a
        persistent session, and the client would never get anything else.
        """
        self._drop("properties")
        if qos:
            self._refuse(qos, packet_id, ReasonCode.QUOTA_EXCEEDED)

    def _refuse(self, qos: int, packet_id: int, reason_code: ReasonCode) -> None:
        """Tell the broker that a QoS 1 or 2 message is not delivered."""
        kind = PubAck if qos == 1 else PubRec
        self.refusals.append(write_packet(kind(packet_id, reason_code), self._version))

    # -- to the client ----------------------------------------------------------------------

    def pause_sending(self) -> None:
        """Note that the client's connection has too many unsent bytes."""
        self.is_paused = True

    def resume_sending(self) -> None:
        """Note that the client's connection has room again."""
        self.is_paused = False
        self._urgent_bytes = 0
        self.wants_pump = True

    def link_changed(self) -> None:
        """Ask the gate again, as a sampler has a new estimate."""
        self.outbox.link_changed()
        self.wants_pump = True

    @property
    def has_more(self) -> bool:
        """Whether `pump` or `data_to_send` has more to do once what there was is written."""
        return self.is_unreadable or (not self.is_paused and (self.wants_pump or self._has_reader))

    def pump(self, now: float) -> None:
        """Take messages that may be sent now from the outbox.

        Raises:
            PeerError: in bytes from the broker that were not parsed before, as there was no room.
        """
        while self.wants_pump and not self.is_paused:
            self.wants_pump = False
            self._fill_out(now)
            if self.wants_pump or not self._is_stopped or not self._may_go_on_reading(now):
                return
            self._go_on_reading(now)

    def _fill_out(self, now: float) -> None:
        """Take messages from the outbox; set `wants_pump` where more can follow after these."""
        outbox, acks = self.outbox, self.acks
        while self._out_bytes < self._limits.write_high_bytes:
            if self.qos0_backlog.n_messages:  # everything in the outbox came later
                run, n_messages = self.qos0_backlog.take()
                self._put(run)
                self.ledger.delivered += n_messages
                continue
            delivery = outbox.take(now, has_quota=acks.n_inflight < self.receive_maximum)
            if delivery is None:
                break
            is_sent = self._send(delivery, now)
            if self.is_unreadable:
                return
            if is_sent and delivery.after is not None:
                if delivery.qos:
                    outbox.large_sent(delivery, now)
                self.wants_pump = True
                break
        else:
            self.wants_pump = True
        # A time in the past means that the client's window is full: an acknowledgement comes first.
        again = outbox.look_again_at
        self._look_again_at = again if again is not None and again > now else None
        if self.ledger.expired != self._n_expired:
            self._n_expired = self.ledger.expired
            self._refuse_expired(now)

    def next_deadline(self) -> float | None:
        """Return when `handle_timeout` is due, in monotonic seconds; None for never."""
        first = self.samplers.next_at
        ping_at = self.pings.due_at
        if ping_at is not None and (first is None or ping_at < first):
            first = ping_at
        if not self.is_paused and not self.wants_pump:  # otherwise something else comes first
            for at in (self._look_again_at, self._retry_at):
                if at is not None and (first is None or at < first):
                    first = at
        return first

    def handle_timeout(self, fileno: int, now: float) -> None:
        """Sample the client's path, and set `wants_pump` where the gate or the store is due."""
        if self.samplers.sample(fileno, now):
            self.link_changed()
        for at in (self._look_again_at, self._retry_at):
            if at is not None and now >= at:
                self.wants_pump = True
        self.pings.handle_timeout(now, is_read=self.wants_reading)
        if self.pings.is_covered:
            self._answer_pings()

    def _may_go_on_reading(self, now: float) -> bool:
        if self._retry_at is not None:
            return now >= self._retry_at
        limits = self._limits
        n_messages, n_bytes = self._waiting_at_qos_0()
        return (
            self.acks.n_waiting <= limits.upstream_receive_maximum // 2
            and n_messages <= limits.queued_messages // 2
            and n_bytes <= limits.queued_bytes // 2
        )

    def _go_on_reading(self, now: float) -> None:
        self._is_stopped = False
        self._retry_at = None
        leftover, self._leftover = self._leftover, b""
        self._scan(leftover, now)
        while self._unread_chunks and not self._is_stopped:
            self.receive_data(self._unread_chunks.pop(0), now)

    def data_to_send(self) -> list[Buffer]:
        """Return what is to be written now; of a payload that is read in pieces, the next piece.

        While the transport is full, such a payload is not read, and what follows it waits.
        """
        out = self._out
        if not self._has_reader:
            self._out = []
            self._out_bytes = 0
            return cast("list[Buffer]", out)
        index = next(i for i, each in enumerate(out) if isinstance(each, PayloadReader))
        ready = cast("list[Buffer]", out[:index])
        reader = cast("PayloadReader", out[index])
        if not self.is_paused:
            piece = self._shared.read(reader.read)
            if piece is None:
                self.is_unreadable = True
                return ready
            ready.append(piece)
        self._out = out[index:] if len(reader) else out[index + 1 :]
        self._has_reader = any(isinstance(each, PayloadReader) for each in self._out)
        self._out_bytes -= sum(map(len, ready))
        return ready

    @property
    def has_rest(self) -> bool:
        """Whether the rest of a packet is still to be written, and can be read."""
        return bool(self._out) and not self.is_unreadable

    def _send(self, delivery: Delivery, now: float) -> bool:
        """Send a message that has left the outbox; return False if it cannot be read."""
        message = delivery.message
        qos = delivery.qos
        payload = self._shared.begin_to_read(message.payload)
        if payload is None:
            # The broker still has a message of QoS 1 or 2 and sends it on the next connection.
            self.is_unreadable = qos > 0
            if not qos:
                self.ledger.drop("payload_lost")
            return False
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
        if isinstance(payload, PayloadReader):
            self._put(header)
            self._out.append(payload)
            self._out_bytes += len(payload)
            self._has_reader = True
        elif len(payload) <= JOIN_BELOW_BYTES:
            self._put(header + payload)
        else:
            self._put(header)
            self._put(payload)
        self._book_as_sent(qos, delivery.packet_id, message.payload_bytes, now)
        return True

    def _book_as_sent(self, qos: int, packet_id: int, payload_bytes: int, now: float) -> None:
        if qos:
            self.samplers.sent(packet_id, payload_bytes, now)
        else:
            self.ledger.delivered += 1

    def _refuse_expired(self, now: float) -> None:
        """Tell the broker which messages have expired, to free its inflight window.

        A reason code of 0x80 or above ends the exchange [MQTT-4.4.0-2], and is true, as the client
        never gets the message. Only MQTT 5.0 has expiry, so that there always is such a code.
        """
        for delivery in self.acks.take_expired(now):
            code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            self._refuse(delivery.qos, delivery.packet_id, code)

    # -- acknowledgements and the end -------------------------------------------------------

    def acknowledged(self, packet_type: int, packet_id: int, reason_code: int, now: float) -> bool:
        """Handle a client's acknowledgement; return whether it is passed on to the broker."""
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
        if self.outbox.n_messages:
            self.wants_pump = True  # there may be room in the client's window
        is_first_answer = packet_type != PacketType.PUBCOMP and outcome is not Outcome.UNKNOWN
        sent_at = self._link.outstanding_since
        if is_first_answer and self.samplers.acknowledged(packet_id, now):
            self.link_changed()
        is_timed = sent_at is not None and self._link.outstanding_since != sent_at
        if is_first_answer and packet_id in self._arrivals and self._arrivals[packet_id][1]:
            self.outbox.large_acknowledged(now)
        if is_timed or self._arrivals:
            self._observe_latency(packet_id, outcome, sent_at if is_timed else None, now)
        return True

    def acknowledged_run(self, data: bytes, position: int) -> int:
        """Handle several PUBACK packets without a reason code for small messages at once.

        Returns:
            Offset of the end of the last one; `position` where the first one is for `acknowledged`.
        """
        if self._arrivals or self.samplers.wants_acknowledgements:
            return position
        n_packets = min((len(data) - position) // PACKET_BYTES, _MOST_PUBACKS)
        stop = position + n_packets * PACKET_BYTES
        heads = data[position:stop:PACKET_BYTES]
        lengths = data[position + 1 : stop : PACKET_BYTES]
        n_packets -= max(len(heads.lstrip(b"\x40")), len(lengths.lstrip(b"\x02")))
        if n_packets <= 0:
            return position
        stop = position + n_packets * PACKET_BYTES
        n_finished = self.acks.finish_run(packet_ids_at(data, position + 2, stop, PACKET_BYTES))
        self.ledger.delivered += n_finished
        if n_finished and self.outbox.n_messages:
            self.wants_pump = True  # there is room in the client's window
        return position + n_finished * PACKET_BYTES

    def _observe_latency(
        self, packet_id: int, outcome: Outcome, sent_at: float | None, now: float
    ) -> None:
        """Record the latency of a large message, or of a small one that a sampler has timed."""
        arrived_at, is_large = self._arrivals.get(packet_id, (sent_at, False))
        rules, link = self._shared.outbox_rules, self._link
        if is_large and outcome is Outcome.DELIVERED and arrived_at is not None:
            rules.observe_latency(link, "large", "acknowledged", now - arrived_at)
        elif not is_large and sent_at is not None and arrived_at is not None:
            rules.observe_latency(link, "small", "acknowledged", now - arrived_at)
        if outcome is not Outcome.RECEIVED:
            self._arrivals.pop(packet_id, None)

    def close(self) -> None:
        """End: drop waiting messages of QoS 0, and leave those of QoS 1 and 2 to the broker."""
        self.outbox.drop_qos0("connection_lost")
        self.ledger.drop("connection_lost", self.qos0_backlog.clear())
        self.ledger.moved += self.ledger.outstanding()
        self.samplers.forget()
        gate = self._shared.gate
        self._shared.guard.call(gate, gate.forget, self._link, otherwise=None)

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        self.outbox.check_invariants()
        held = self.n_waiting + self.acks.n_inflight
        assert self.ledger.outstanding() == held, "ledger"  # noqa: S101 (this is the check)
        n_waiting = sum(1 for delivery in self.outbox.waiting() if delivery.qos)
        assert self.acks.n_waiting <= n_waiting, "acks"  # noqa: S101
        assert self.acks.n_inflight <= self.receive_maximum, "window"  # noqa: S101
        assert self.acks.waiting_bytes <= self.outbox.n_bytes, "waiting_bytes"  # noqa: S101
