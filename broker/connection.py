"""One client's network connection, without the network.

Theory of operation. The driver hands over each chunk of received bytes with the time. Every
whole packet in it is handled before anything is written; what is to be sent collects in
`out`, which the driver writes once. Most of what a busy broker receives are QoS 0 PUBLISH
packets for subscribers that need no more than a copy of the very bytes: `_scan` recognises a
run of such packets on one topic by their equal beginnings and passes the whole run on as one
slice. Everything else goes packet by packet.

A connection is *suspended* while access control takes its time, and then handles nothing
more. It is *throttled* for a moment while a subscriber that keeps up otherwise has no room:
`wants_reading` tells the driver to stop reading, so that TCP slows the publisher down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from broker import eager, handlers
from broker.errors import PeerError, ProtocolError
from broker.events import PacketReceived, PacketSent
from broker.message import Message
from broker.mqtt.enums import MAX_REMAINING_LENGTH, PacketType, ProtocolVersion
from broker.mqtt.packets import Disconnect, Packet, PubRel
from broker.mqtt.reader import read_packet
from broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from broker.mqtt.receive_buffer import ReceiveBuffer, packet_too_large, read_remaining_length
from broker.mqtt.writer import publish_header, write_packet
from broker.outbox import Delivery
from broker.publishing import (
    PublishReceipt,
    acknowledgement,
    deliver_run,
    receive_publish,
)
from broker.timers import Timer

if TYPE_CHECKING:
    from broker.core import Core, FastPlan
    from broker.session import Session

JOIN_BELOW_BYTES: Final = 4096
"""A payload up to this size is joined to its header; a longer one is written by reference."""

THROTTLE_SECONDS: Final = 0.02
"""The longest that one subscriber without room holds up a publisher. A subscriber on this
machine or in this data centre drains in less; one on a bad link does not, and is then not
waited for until it has caught up."""

_PUBACK_SUCCESS: Final = b"\x40\x02"


class Connection:
    """The server's side of one network connection.

    Attributes:
        core: the broker.
        session: the client's session; only after CONNECT was accepted.
        version: protocol version.
        out: buffers to write, in order; the driver takes them by `data_to_send`.
        out_bytes: what they sum up to.
        receipts: QoS 1 and 2 messages that are owed an acknowledgement, oldest first.
        send_maximum: bytes of the largest packet this client takes.
        send_quota: QoS 1 and 2 messages that may be inflight to this client.
        is_open: CONNECT was accepted and the connection has not ended.
        is_closing: to be closed once `out` is written; nothing more is received.
        is_paused: the transport has more unsent bytes than it should.
        is_slow: a publisher has waited for this client in vain; none does again until the
            outbox has been empty.
        is_touched: on the core's list for the driver.
        wants_more: there is more to send than the last turn took.
        suspended: what the driver must run before more is received, or None.
    """

    __slots__ = (
        "_backlog",
        "_blockers",
        "_buffer",
        "_closes_at",
        "_keep_alive",
        "_last_received",
        "_maximum_packet_size",
        "_pump_wanted",
        "_receive_maximum",
        "_throttle_timer",
        "_throttled",
        "core",
        "driver",
        "is_closing",
        "is_open",
        "is_paused",
        "is_slow",
        "is_touched",
        "listener",
        "out",
        "out_bytes",
        "receipts",
        "remote_address",
        "remote_port",
        "send_maximum",
        "send_quota",
        "session",
        "suspended",
        "timer",
        "version",
        "wants_more",
    )

    def __init__(
        self,
        core: Core,
        now: float,
        *,
        listener: str = "default",
        remote_address: str = "",
        remote_port: int = 0,
        driver: Any = None,
    ) -> None:
        """Take a network connection that was accepted just now.

        Args:
            core: the broker.
            now: monotonic seconds.
            listener: name of the listener in the policy file.
            remote_address: of the peer.
            remote_port: of the peer.
            driver: whatever the driver wants to find again in a touched connection.
        """
        self.core = core
        self.driver = driver
        self.listener = listener
        self.remote_address = remote_address
        self.remote_port = remote_port
        self.session: Session
        self.version = int(ProtocolVersion.MQTT_5)
        self.out: list[bytes | memoryview] = []
        self.out_bytes = 0
        self.receipts: deque[PublishReceipt] = deque()
        self.send_quota = 0
        self.is_open = False
        self.is_closing = False
        self.is_paused = False
        self.is_slow = False
        self.is_touched = False
        self.wants_more = False
        self.suspended: Coroutine[Any, Any, None] | None = None
        self._backlog: list[bytes] = []
        self._blockers: set[Connection] = set()
        self._throttled: set[Connection] = set()
        self._throttle_timer: Timer | None = None
        self._buffer = ReceiveBuffer(core.limits.maximum_packet_size)
        self._maximum_packet_size = core.limits.maximum_packet_size
        self._receive_maximum = core.limits.receive_maximum
        self.send_maximum = MAX_REMAINING_LENGTH + 5
        self._pump_wanted = False
        self._keep_alive = 0.0
        self._last_received = now
        core.counters.connections_total += 1
        self._closes_at = now + core.limits.connect_timeout_seconds
        self.timer: Timer | None = core.timers.at(self._closes_at, self._connect_timeout)

    # -- what the driver calls ------------------------------------------------------------

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle every packet that is complete with this chunk.

        What the peer did never raises here: the connection closes itself.
        """
        self._last_received = now
        if self.is_closing:
            return
        if self.suspended is not None:
            self._backlog.append(chunk)
            return
        try:
            data = self._buffer.receive_data(chunk)
            if data:
                self._scan(data, now)
        except PeerError as error:
            self.peer_failed(error, now)

    def resume(self, now: float) -> None:
        """Go on after `suspended` has run to its end."""
        self.suspended = None
        backlog, self._backlog = self._backlog, []
        self.core.touch(self)
        for chunk in backlog:
            self.receive_data(chunk, now)

    def connection_lost(self, now: float) -> None:
        """The network connection has ended, from whichever side."""
        self.is_closing = True
        self._detach(now)

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return what is to be written now, and start anew."""
        out, self.out = self.out, []
        self.core.counters.bytes_sent += self.out_bytes
        self.out_bytes = 0
        return out

    @property
    def wants_reading(self) -> bool:
        """Whether the driver should read from the network."""
        return not (
            self.suspended is not None
            or self._blockers
            or len(self.receipts) >= self._receive_maximum
        )

    def pause_sending(self) -> None:
        """The transport has too many unsent bytes: yield nothing until `resume_sending`."""
        self.is_paused = True
        if self.is_open:
            self.session.is_direct = False

    def resume_sending(self) -> None:
        """The transport has room again."""
        self.is_paused = False
        self.want_pump()

    def want_pump(self) -> None:
        """Ask the driver for a `pump`: something may be able to leave."""
        if not self._pump_wanted:
            self._pump_wanted = True
            self.core.touch(self)

    def pump(self, unsent_bytes: int, now: float) -> None:
        """Move from the outbox into `out` what may be sent now.

        Args:
            unsent_bytes: what the transport has taken and not sent.
            now: monotonic seconds.
        """
        if not self._pump_wanted:
            return
        self._pump_wanted = False
        self.wants_more = False
        if not self.is_open or self.is_paused:
            return
        session = self.session
        session.link.unsent_bytes = unsent_bytes
        room = self.core.limits.write_high_bytes
        while self.out_bytes < room:
            if session.resend:
                self._send_again(session.resend.popleft())
                continue
            has_quota = len(session.inflight) < self.send_quota
            delivery = session.outbox.take(now, has_quota=has_quota)
            if delivery is None:
                break
            self.send_delivery(delivery, now)
            if delivery.message.is_large:
                self.wants_more = True
                break
        else:
            self.wants_more = True
        self._after_pump(session)

    def _after_pump(self, session: Session) -> None:
        if self.wants_more:
            self._pump_wanted = True
        elif session.outbox.n_messages <= self.send_quota:
            if not session.outbox.n_messages:
                session.is_direct = True
                self.is_slow = False
            for publisher in self._throttled:
                publisher.unblock(self)
            self._throttled.clear()
        self._set_look_timer(session)

    def _set_look_timer(self, session: Session) -> None:
        """See that the gate is asked again when it wants to be."""
        at = session.outbox.look_again_at
        timer = session.look_timer
        if timer is not None and timer.at == at and timer.action is not None:
            return
        if timer is not None:
            timer.cancel()
        session.look_timer = None
        if at is not None:
            session.look_timer = self.core.timers.at(at, lambda _now: self.want_pump())

    # -- receiving ------------------------------------------------------------------------

    def _scan(self, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`; keep the rest.

        Raises:
            PeerError: for a packet that is malformed or not allowed.
        """
        core = self.core
        counters = core.counters
        fast_plans = core.fast_plans[self.version] if self.is_open else {}
        offset = 1 if self.version == ProtocolVersion.MQTT_5 else 0
        maximum = self._maximum_packet_size
        end = len(data)
        position = 0
        n_packets = 0
        while end - position >= 2:
            first_byte = data[position]
            length = data[position + 1]
            start = position + 2
            if length > 0x7F:
                start, length = read_remaining_length(data, position)
                if not start:
                    break
            stop = start + length
            if stop - position > maximum:
                raise packet_too_large(stop - position, maximum)
            if stop > end:
                break
            if first_byte == 0x30 and length > 2:
                topic_end = start + 2 + ((data[start] << 8) | data[start + 1])
                plan = fast_plans.get(data[start + 2 : topic_end])
                n_bytes = stop - topic_end - offset
                if (
                    plan is not None
                    and 0 <= n_bytes <= plan.threshold_s
                    and not (offset and data[topic_end])
                ):
                    run_start = position
                    size = stop - position
                    begin = data[position : topic_end + offset]
                    while stop + size <= end and data.startswith(begin, stop):
                        stop += size
                    position = stop
                    n_messages = (stop - run_start) // size
                    n_packets += n_messages
                    counters.publish_received += n_messages
                    header_bytes = topic_end + offset - run_start
                    self._pass_on(plan, data[run_start:stop], n_messages, header_bytes, now)
                    continue
            n_packets += 1
            self._handle(first_byte, data, position, start, stop, now)
            position = stop
            if self.is_closing or self.suspended is not None:
                break
            if not fast_plans and self.is_open:
                fast_plans = core.fast_plans[self.version]
                offset = 1 if self.version == ProtocolVersion.MQTT_5 else 0
        counters.packets_received += n_packets
        counters.bytes_received += position
        if self.suspended is not None:
            self._backlog.insert(0, data[position:])
        elif not self.is_closing:
            self._buffer.unread(data, position)

    def _pass_on(
        self, plan: FastPlan, run: bytes, n_messages: int, header_bytes: int, now: float
    ) -> None:
        """Copy a run of equal-sized QoS 0 PUBLISH packets of one topic to its subscribers."""
        core = self.core
        n_bytes = len(run)
        size = n_bytes // n_messages
        n_sent = 0
        waiting: list[Session] = []
        for session in plan.sessions:
            connection = session.connection
            if session.is_direct and connection is not None and size <= connection.send_maximum:
                connection.out.append(run)
                connection.out_bytes += n_bytes
                if not connection.is_touched:
                    core.touch(connection)
                session.n_direct += n_messages
                n_sent += n_messages
            else:
                waiting.append(session)
        core.counters.packets_sent += n_sent
        core.counters.publish_sent += n_sent
        if waiting:
            deliver_run(self, plan.plan, waiting, run, size, header_bytes, now)
            self.throttle(now)

    def _handle(
        self, first_byte: int, data: bytes, position: int, start: int, stop: int, now: float
    ) -> None:
        """Handle one whole packet.

        Raises:
            PeerError: it is malformed or not allowed.
        """
        core = self.core
        packet_type = first_byte >> 4
        if not self.is_open:
            if packet_type != PacketType.CONNECT:  # [MQTT-3.1.0-1]
                raise ProtocolError("the first packet is not CONNECT")
        elif core.listeners.packet_received:
            chunk = memoryview(data)[position:stop]
            event = PacketReceived(self.session, first_byte, stop - position, (chunk,))
            core.tell(core.listeners.packet_received, event)
        if packet_type == PacketType.PUBLISH:
            core.counters.publish_received += 1
            receive_publish(self, data, first_byte, start, stop, now)
        elif first_byte == 0x40 and stop - start == 2:
            handlers.acknowledged(self, (data[start] << 8) | data[start + 1], 1, now)
        else:
            packet = read_packet(first_byte, data[start:stop], self.version)
            handlers.handle(self, packet, now)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a handler now; where it has to wait, receive nothing more until it is done."""
        rest = eager.start(coroutine)
        if rest is not None:
            self.suspended = rest
            self.core.touch(self)

    def check_receive_maximum(self) -> None:
        """Check that an MQTT 5 client keeps to Receive Maximum [MQTT-3.3.4-9].

        An MQTT 3.1.1 client knows none: it is slowed down by not reading.

        Raises:
            ProtocolError: receive maximum exceeded.
        """
        if self.version != ProtocolVersion.MQTT_5:
            return
        n_messages = len(self.session.incoming)
        n_messages += sum(1 for receipt in self.receipts if receipt.qos == 1)
        if n_messages > self._receive_maximum:
            raise ProtocolError(
                f"{n_messages} QoS 1 and 2 messages unacknowledged; "
                f"allowed: {self._receive_maximum}",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def receipt_settled(self, receipt: PublishReceipt) -> None:
        """Send what is settled, in the order in which the messages came [MQTT-4.6.0-2]."""
        session = self.session
        if receipt.qos == 2:
            if receipt.reason_code:
                session.incoming.pop(receipt.packet_id, None)
            else:
                session.incoming[receipt.packet_id] = None
        if not self.is_open:
            return None
        receipts = self.receipts
        n_before = len(receipts)
        while receipts and receipts[0].is_settled:
            first = receipts.popleft()
            if first.reason_code and self.version != ProtocolVersion.MQTT_5:
                # No PUBACK can say it: the client keeps the message and comes again.
                return self.close(ReasonCode(first.reason_code), None)
            if first.qos == 1 and not first.reason_code:
                self.send_puback(first.packet_id)
            else:
                self.send_packet(acknowledgement(first))
        if n_before >= self._receive_maximum > len(receipts):
            self.core.touch(self)
        return None

    # -- sending --------------------------------------------------------------------------

    def send_packet(self, packet: Packet) -> None:
        """Put a packet other than PUBLISH into `out`."""
        frame = write_packet(packet, self.version)
        self._put(frame[0], frame, b"")

    def send_puback(self, packet_id: int) -> None:
        """Put the PUBACK of a message that was accepted into `out`."""
        frame = _PUBACK_SUCCESS + packet_id.to_bytes(2, "big")
        self._put(0x40, frame, b"")

    def send_qos0(
        self, message: Message, *, retain: bool, subscription_ids: tuple[int, ...]
    ) -> bool:
        """Put a QoS 0 PUBLISH into `out`; return False where the client takes none so large."""
        header = publish_header(
            message.topic_bytes,
            message.payload_bytes,
            qos=0,
            retain=retain,
            properties=self._properties(message, subscription_ids, self._last_received),
            version=self.version,
        )
        return self._put_publish(header, message.read_payload())

    def send_delivery(self, delivery: Delivery, now: float) -> None:
        """Send what was taken from the outbox, and book it."""
        message = delivery.message
        session = self.session
        ledger = session.ledger
        qos = delivery.qos
        try:
            payload = message.read_payload()
        except OSError as error:
            self.core.on_extension_error(type(self.core.payload_store).__name__, error)
            ledger.drop("payload_lost")
            return
        packet_id = session.inflight.start(delivery) if qos else 0
        header = publish_header(
            message.topic_bytes,
            message.payload_bytes,
            qos=qos,
            retain=delivery.retain,
            packet_id=packet_id,
            properties=self._properties(message, delivery.subscription_ids, now),
            version=self.version,
        )
        if not self._put_publish(header, payload):
            if qos:
                session.inflight.finish(packet_id, qos)
            ledger.drop("packet_too_large")
        elif not qos:
            ledger.delivered += 1
        else:
            for sampler in self.core.samplers:
                sampler.sent(session.link, packet_id, message.payload_bytes, now)

    def _send_again(self, delivery: Delivery) -> None:
        """Repeat what the last connection left unacknowledged [MQTT-4.4.0-1]."""
        session = self.session
        packet_id = delivery.packet_id
        if session.inflight.is_released(packet_id):
            self.send_packet(PubRel(packet_id))
            return
        message = delivery.message
        try:
            payload = message.read_payload()
        except OSError as error:
            self.core.on_extension_error(type(self.core.payload_store).__name__, error)
            session.inflight.finish(packet_id, delivery.qos)
            session.ledger.drop("payload_lost")
            return
        header = publish_header(
            message.topic_bytes,
            message.payload_bytes,
            qos=delivery.qos,
            retain=delivery.retain,
            dup=True,
            packet_id=packet_id,
            properties=self._properties(message, delivery.subscription_ids, self._last_received),
            version=self.version,
        )
        if not self._put_publish(header, payload):
            session.inflight.finish(packet_id, delivery.qos)
            session.ledger.drop("packet_too_large")

    def _properties(
        self, message: Message, subscription_ids: tuple[int, ...], now: float
    ) -> dict[str, Any]:
        """Return the properties of an outgoing PUBLISH (MQTT 5.0, 3.3.2.3)."""
        if self.version != ProtocolVersion.MQTT_5:
            return _NO_PROPERTIES
        if not message.properties and not subscription_ids:
            return _NO_PROPERTIES
        properties = dict(message.properties)
        if message.expires_at is not None:  # [MQTT-3.3.2-6]
            properties["message_expiry_interval"] = max(1, round(message.expires_at - now))
        if subscription_ids:
            properties["subscription_identifier"] = list(subscription_ids)
        return properties

    def _put_publish(self, header: bytes, payload: bytes) -> bool:
        size = len(header) + len(payload)
        if size > self.send_maximum:  # [MQTT-3.1.2-24]
            return False
        self.core.counters.publish_sent += 1
        self._put(header[0], header, payload)
        return True

    def _put(self, first_byte: int, header: bytes, payload: bytes) -> None:
        """Put one packet into `out`."""
        core = self.core
        size = len(header) + len(payload)
        self.out_bytes += size
        core.counters.packets_sent += 1
        if not payload:
            self.out.append(header)
        elif len(payload) <= JOIN_BELOW_BYTES:
            self.out.append(header + payload)
        else:
            self.out.append(header)
            self.out.append(payload)
        if core.listeners.packet_sent:
            session = self.session if self.is_open else None
            event = PacketSent(session, first_byte, size, (header, payload))
            core.tell(core.listeners.packet_sent, event)
        if not self.is_touched:
            core.touch(self)

    # -- the life of the connection ---------------------------------------------------------

    def open(
        self,
        session: Session,
        *,
        keep_alive: int,
        receive_maximum: int,
        maximum_packet_size: int | None,
    ) -> None:
        """Bind an accepted client's session to this connection.

        Args:
            session: without a connection.
            keep_alive: seconds; 0 for none.
            receive_maximum: QoS 1 and 2 messages the client takes unacknowledged.
            maximum_packet_size: bytes the client takes, or None for any.
        """
        self.session = session
        self.is_open = True
        self.send_quota = min(receive_maximum, self.core.limits.inflight_messages)
        if maximum_packet_size is not None:
            self.send_maximum = maximum_packet_size
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if keep_alive:  # [MQTT-3.1.2-22]
            self._keep_alive = keep_alive * 1.5 + self.core.keep_alive_grace
            self.timer = self.core.timers.at(
                self._last_received + self._keep_alive, self._keep_alive_due
            )
        session.connection = self
        session.resend.extend(session.inflight)
        session.outbox.link_changed()
        self.core.counters.clients_connected += 1
        self.want_pump()

    def _connect_timeout(self, now: float) -> None:
        self.core.logger.info("%s: no CONNECT in time", self.peer())
        self.timer = None
        self._end(now)

    def _keep_alive_due(self, now: float) -> None:
        due = self._last_received + self._keep_alive
        if now < due:
            self.timer = self.core.timers.at(due, self._keep_alive_due)
            return
        self.timer = None
        self.core.logger.info("client %s: keep-alive timeout", self.session.client_id)
        self.close(ReasonCode.KEEP_ALIVE_TIMEOUT, now)

    def peer(self) -> str:
        """Name the peer for the log."""
        address = f"{self.remote_address}:{self.remote_port} on listener {self.listener}"
        return f"client {self.session.client_id} ({address})" if self.is_open else address

    def peer_failed(self, error: PeerError, now: float) -> None:
        """Close for what the peer sent; no other client notices.

        `receive_data` calls it itself; the driver does for what `suspended` raised.
        """
        self.core.logger.warning("%s: closed: %s", self.peer(), error)
        peer_errors = self.core.counters.peer_errors
        peer_errors[error.reason_code] = peer_errors.get(error.reason_code, 0) + 1
        if self.is_open:
            self.close(error.reason_code, now)
        else:
            handlers.refuse_connect(self, error.reason_code)
            self._end(now)

    def close(self, reason_code: ReasonCode, now: float | None) -> None:
        """End the connection, telling an MQTT 5 client why [MQTT-3.14.0-1].

        Args:
            reason_code: of the DISCONNECT.
            now: monotonic seconds; None for the time of the last chunk.
        """
        if self.is_closing:
            return
        if self.is_open and self.version == ProtocolVersion.MQTT_5:
            self.send_packet(Disconnect(reason_code))
        self.core.logger.debug("%s: %s", self.peer(), describe_reason_code(reason_code))
        self._end(self._last_received if now is None else now)

    def _end(self, now: float) -> None:
        self.is_closing = True
        self.core.touch(self)
        self._detach(now)

    def disconnected(self, now: float) -> None:
        """The client has said DISCONNECT: nothing more is sent."""
        self._end(now)

    def _detach(self, now: float) -> None:
        """Leave the session, once."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for publisher in self._throttled:
            publisher.unblock(self)
        self._throttled.clear()
        for blocker in self._blockers:
            blocker._throttled.discard(self)  # noqa: SLF001 (of the same class)
        self._blockers.clear()
        if self.is_open:
            self.is_open = False
            self.core.sessions.connection_lost(self.session, self, now)

    # -- slowing a publisher down -----------------------------------------------------------

    def throttle(self, now: float) -> None:
        """Stop reading for a moment where a subscriber that keeps up otherwise has no room."""
        congested = self.core.congested
        if not congested:
            return
        for connection in congested:
            self._blockers.add(connection)
            connection._throttled.add(self)  # noqa: SLF001 (of the same class)
        congested.clear()
        if self._throttle_timer is None:
            at = now + THROTTLE_SECONDS
            self._throttle_timer = self.core.timers.at(at, self._throttle_over)
            self.core.touch(self)

    def _throttle_over(self, _now: float) -> None:
        self._throttle_timer = None
        for blocker in self._blockers:
            blocker.is_slow = True
            blocker._throttled.discard(self)  # noqa: SLF001 (of the same class)
        self._blockers.clear()
        self.core.touch(self)

    def unblock(self, blocker: Connection) -> None:
        """A subscriber has room again."""
        self._blockers.discard(blocker)
        if not self._blockers and self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
            self.core.touch(self)


_NO_PROPERTIES: Final[dict[str, Any]] = {}
