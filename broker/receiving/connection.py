"""One client's network connection, without the network.

Theory of operation. The driver hands over each chunk of received bytes with the time. Every
whole packet in it is handled before anything is written; what is to be sent collects in
`out`, which the driver writes once. A chunk that is one small packet goes to
`penstock.broker.receiving.lone_packets`, any other to `penstock.broker.receiving.scanning`; what is
left of it is kept here.

A connection is *suspended* while access control takes its time, and then handles nothing
more; `wants_reading` then tells the driver to stop reading, as it does while
`penstock.broker.sending.throttle` or `penstock.broker.receiving.rate_limit` slows this publisher
down, or the journal, as the disk is behind. What takes many steps is not done all at once either:
the rest of a chunk waits until the others have had their turn, and the driver calls `go_on`. How
packets leave is the other half, `penstock.broker.sending.sender`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock.broker import run_now
from penstock.broker.counters import count
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.mqtt.enums import MQTT_5, ProtocolVersion
from penstock.broker.mqtt.packets import Disconnect
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.size_limit import explained
from penstock.broker.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from penstock.broker.outbox.delivery import NO_QUEUE
from penstock.broker.payload import JOIN_BELOW_BYTES
from penstock.broker.quotas.received_bytes import FREE_BYTES
from penstock.broker.quotas.room import Held
from penstock.broker.receiving.authenticating import Authentication
from penstock.broker.receiving.connecting import refuse_connect
from penstock.broker.receiving.lone_packets import LEAST_BYTES, take_lone
from penstock.broker.receiving.rate_limit import RateLimit, n_publishes
from penstock.broker.receiving.receipts import PublishReceipt
from penstock.broker.receiving.scanning import scan
from penstock.broker.sending.sender import UNREAD_BYTES, Sender
from penstock.broker.sessions import redelivery
from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from penstock.broker.sessions.core import Core
    from penstock.broker.sessions.session import Session

_NONE_INHERITED: Final[frozenset[int]] = frozenset()


class Connection(Sender):
    """The server's side of one network connection.

    Attributes:
        authentication: by which method the client authenticates, or None.
        listener: name of the listener in the policy file.
        incoming_aliases: Topic Aliases that the client uses.
        ssl_object: the TLS connection, or None.
        certificate_name: common name of the client's verified certificate, or None.
        refusal: what its CONNECT is to be answered with, whatever it says; or None.
        holds: says whether access control would still let the client in; or None.
        inherited: packet identifiers of QoS 2 messages that earlier connections left unreleased.
        receive_maximum: QoS 1 and 2 messages the client may have unacknowledged.
        awaiting: messages that wait for room in their subscribers' outboxes, oldest first.
        awaiting_bytes: of these.
        receipts: QoS 1 and 2 messages that are owed an acknowledgement, oldest first.
        is_answered: what it sent first is a CONNECT, in a version in which a mistake can be told.
        is_bridge: the client has said that it is another broker's bridge.
        known_properties: of a PUBLISH that came in a run, found good; see
            `penstock.broker.receiving.runs`.
        maximum_packet_size: bytes of the largest packet that is taken from an accepted client.
        is_closing: to be closed once `out` is written; nothing more is received.
        suspended: what the driver must run before more is received, or None.
        timer: of the CONNECT timeout, then of the keep-alive.
    """

    __slots__ = (
        "_backlog",
        "_buffer",
        "_has_peer_left",
        "_is_counted",
        "_keep_alive",
        "_last_received",
        "_layer_bytes",
        "_most_lone_bytes",
        "_rate",
        "_rate_timer",
        "_waits_for_disk",
        "authentication",
        "awaiting",
        "awaiting_bytes",
        "certificate_name",
        "holds",
        "incoming_aliases",
        "inherited",
        "is_answered",
        "is_bridge",
        "is_closing",
        "known_properties",
        "listener",
        "maximum_packet_size",
        "receipts",
        "receive_maximum",
        "refusal",
        "remote_address",
        "remote_port",
        "ssl_object",
        "suspended",
        "timer",
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
        ssl_object: Any = None,
        certificate_name: str | None = None,
        refusal: ReasonCode | None = None,
    ) -> None:
        """Take a network connection.

        Args:
            core: the broker.
            now: monotonic seconds at which it was accepted.
            listener: name of the listener in the policy file.
            remote_address: of the peer.
            remote_port: of the peer.
            driver: whatever the driver wants to find again in a touched connection.
            ssl_object: the TLS connection, or None.
            certificate_name: common name of the client's verified certificate, or None.
            refusal: what its CONNECT is to be answered with, or None.
        """
        super().__init__(core, driver)
        self.listener = listener
        self.ssl_object = ssl_object
        self.certificate_name = certificate_name
        self.refusal = refusal
        self.holds: Callable[[], bool] | None = None
        self.remote_address = remote_address
        self.remote_port = remote_port
        self.receipts: deque[PublishReceipt] = NO_QUEUE
        self.awaiting: deque[Held] = NO_QUEUE
        self.awaiting_bytes = 0
        self.authentication: Authentication | None = None
        self.is_bridge = False
        self.is_closing = False
        self.suspended: Coroutine[Any, Any, None] | None = None
        self._backlog: list[bytes] = []
        self._buffer = ReceiveBuffer(core.limits.maximum_packet_size)
        self.maximum_packet_size = core.limits.maximum_packet_size
        self._most_lone_bytes = 0
        self.receive_maximum = core.limits.receive_maximum
        self._rate = RateLimit(core.limits, now) if core.limits.has_publish_rate else None
        self._rate_timer: Timer | None = None
        self._waits_for_disk = False
        self._has_peer_left = False
        self._is_counted = False
        self._layer_bytes = 0
        self.incoming_aliases = IncomingAliases(core.options.topic_alias_maximum)
        self.inherited = _NONE_INHERITED
        self.known_properties = b""
        self.is_answered = False
        self._keep_alive = 0.0
        self._last_received = now
        core.counters.connections_total += 1
        self.timer: Timer | None = core.timers.at(
            now + core.limits.connect_timeout_seconds, self._connect_timeout
        )

    # -- what the driver calls ------------------------------------------------------------

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle every packet that is complete with this chunk.

        What the peer did never raises here: the connection closes itself.
        """
        self._last_received = now
        if self.is_closing:
            return
        if self._backlog or self.suspended is not None:
            self._backlog.append(chunk)
            self._count_held(now)
            return
        if (
            LEAST_BYTES <= len(chunk) <= self._most_lone_bytes
            and not self._buffer.pending_bytes
            and take_lone(self, chunk, now)
        ):
            return
        behind = b""
        if self._buffer.is_large:
            n_bytes = self._buffer.missing_bytes
            chunk, behind = chunk[:n_bytes], chunk[n_bytes:]
        try:
            data = self._buffer.receive_data(chunk)
            if data:
                if self._rate is None:
                    self._receive(data, now)
                else:
                    self._receive_at_rate(self._rate, data, now)
        except PeerError as error:
            self.peer_failed(error, now)
        if behind and not self.is_closing:
            self._put_off(behind)
        if (
            self._buffer.pending_bytes + self.incoming_aliases.n_bytes > FREE_BYTES
            or self._backlog
            or self._is_counted
        ):
            self._count_held(now)

    def _count_held(self, now: float) -> None:
        """Count what is kept of what has come: the broker may close whoever keeps the most."""
        if self.is_closing:
            return
        n_bytes = self._buffer.pending_bytes + self.incoming_aliases.n_bytes + self._layer_bytes
        if self._backlog:
            n_bytes += sum(map(len, self._backlog))
        self._is_counted = n_bytes > FREE_BYTES
        self.core.received.count(self, n_bytes, now)

    def held_in_layer(self, n_bytes: int) -> None:
        """Count what a layer below holds, as WebSocket does of a frame that is not whole."""
        if n_bytes > FREE_BYTES or self._layer_bytes:
            self._layer_bytes = n_bytes
            self._count_held(self._last_received)

    def resume(self, now: float) -> None:
        """Go on after `suspended` has run to its end."""
        self.suspended = None
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Handle what was put off: nothing keeps it any more, or it `wants_turn`."""
        backlog, self._backlog = self._backlog, []
        self.core.turn.touch(self)
        for chunk in backlog:
            self.receive_data(chunk, now)

    def connection_lost(self, now: float) -> None:
        """The network connection has ended, from whichever side."""
        if not self.is_closing:
            self._detach(now)

    @property
    def missing_bytes(self) -> int:
        """Bytes that only complete the packet which has begun to come: most are just kept."""
        return self._buffer.missing_bytes

    @property
    def wants_reading(self) -> bool:
        """Whether the driver should read from the network."""
        return not self._backlog and self._may_receive()

    @property
    def wants_turn(self) -> bool:
        """Whether the driver should call `go_on` after the others have had their turn."""
        return bool(self._backlog) and self._rate_timer is None and self._may_receive()

    @property
    def has_backlog(self) -> bool:
        """Whether some of what an accepted client has sent was put off."""
        return self.is_open and bool(self._backlog)

    @property
    def is_held_up(self) -> bool:
        """Whether more can be handled only after `suspended`, or when the publish rate allows."""
        return self.is_open and (self.suspended is not None or bool(self._backlog))

    def _may_receive(self) -> bool:
        if self.suspended is not None:
            return False
        return self._has_peer_left or not (
            self._waits_for_disk
            or self.throttle.blockers
            or self.unread_bytes > UNREAD_BYTES
            or (len(self.receipts) >= self.receive_maximum and self.version != MQTT_5)
            or self.awaiting_bytes > self.core.room.each_bytes
        )

    def peer_left(self, now: float) -> None:
        """The peer is gone: it is sent nothing more, and nobody can slow it down.

        What has come from it is still handled, as far as the driver lets it: `connection_lost`
        comes after that, or after `drop_input`.
        """
        self._has_peer_left = True
        if self.timer is not None and self.is_open:
            self.timer.cancel()  # its keep-alive does not count for what it has left
            self.timer = None
        self.throttle.let_go()
        if self.is_open:
            self.core.sessions.peer_left(self.session, self, now)

    def drop_input(self, rest: bytes) -> None:
        """Drop what has come from a peer that is gone, and count the messages in it.

        Args:
            rest: what the driver has not handed over yet.
        """
        if not (rest or self._backlog):
            return
        backlog, self._backlog = self._backlog, []
        n_messages = n_publishes(self._buffer.receive_data(b"".join([*backlog, rest])))
        if n_messages:
            count(self.core.counters.publish_refused, "publisher gone", n_messages)
            self.core.logger.info(
                "%s: gone; %d of the messages that it had sent were not handled",
                self.peer(),
                n_messages,
            )

    def wait_for_disk(self, *, waits: bool) -> None:
        """Receive nothing while what is to be stored comes faster than it is."""
        self._waits_for_disk = waits
        turn = self.core.turn
        if waits:
            turn.steps = turn.most_steps  # the rest of the chunk waits too
        turn.touch(self)

    # -- receiving ------------------------------------------------------------------------

    def _receive_at_rate(self, rate: RateLimit, data: bytes, now: float) -> None:
        """Handle what the client's publish rate allows now, and the rest when it does.

        Raises:
            PeerError: as `_receive`; message rate too high, where that is not waited for.
        """
        stop = rate.take(data, now)
        if stop:
            self._receive(data[:stop], now)
        if self.is_closing:
            return
        if self._backlog:
            for rest in self._backlog:
                rate.give_back(rest)
            self._put_off(data[stop:])
            return
        if stop == len(data):
            return
        if self.core.limits.publish_rate_exceeded == "disconnect":
            raise ProtocolError("publishes too fast", ReasonCode.MESSAGE_RATE_TOO_HIGH)
        self._backlog.append(data[stop:])
        self.core.counters.publishers_slowed += 1
        self._rate_timer = self.core.timers.at(now + rate.wait_seconds, self._rate_allows)
        self.core.turn.touch(self)

    def _rate_allows(self, now: float) -> None:
        self._rate_timer = None
        self.go_on(now)

    def _put_off(self, data: bytes) -> None:
        """Keep bytes that were not handled, in their order, for `go_on`."""
        if data:
            self._backlog.append(data)
            self.core.turn.touch(self)

    def _receive(self, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`, as far as the steps go; keep the rest.

        Raises:
            PeerError: for a packet that is malformed or not allowed.
        """
        position = scan(self, data, now)
        if self.suspended is not None:
            self._backlog.append(data[position:])
        elif self.is_closing:
            pass
        elif (turn := self.core.turn).steps >= turn.most_steps:
            self._put_off(data[position:])
        else:
            self._buffer.unread(data, position)

    def owe(self, receipt: PublishReceipt) -> None:
        """Note that a message is owed an acknowledgement, behind those that came before it."""
        if self.receipts is NO_QUEUE:
            self.receipts = deque()
        self.receipts.append(receipt)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a handler now; where it has to wait, receive nothing more until it is done."""
        rest = run_now.start(coroutine)
        if rest is not None:
            self.suspended = rest
            self.core.turn.touch(self)

    # -- the life of the connection ---------------------------------------------------------

    def open(
        self,
        session: Session,
        *,
        keep_alive: int,
        receive_maximum: int,
        topic_alias_maximum: int,
    ) -> None:
        """Bind an accepted client's session to this connection.

        Args:
            session: without a connection.
            keep_alive: seconds; 0 for none.
            receive_maximum: QoS 1 and 2 messages the client takes unacknowledged.
            topic_alias_maximum: Topic Aliases the client takes.
        """
        self.session = session
        self.is_open = True
        if self._rate is None and self.core.takes_runs and self.core.catch_up is None:
            self._most_lone_bytes = min(JOIN_BELOW_BYTES, self.maximum_packet_size)
        self.send_quota = min(receive_maximum, self.core.limits.inflight_messages)
        self.copy_maximum = min(self.send_maximum, self.core.copy_maximum)
        topic_alias_maximum = min(topic_alias_maximum, self.core.options.outgoing_topic_aliases)
        if topic_alias_maximum:
            self.aliases = OutgoingAliases(topic_alias_maximum)
            self.copy_maximum = 0
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if keep_alive:  # [MQTT-3.1.2-22]
            self._keep_alive = keep_alive * 1.5 + self.core.keep_alive_grace
            self.timer = self.core.timers.at(
                self._last_received + self._keep_alive, self._keep_alive_due
            )
        if session.incoming:
            self.inherited = frozenset(session.incoming)
        session.connection = self
        session.resend = deque(session.inflight) if session.inflight else NO_QUEUE
        session.outbox.link_changed()
        self.core.counters.clients_connected += 1
        if session.shares:
            redelivery.member_came(session)
        self.want_pump()

    def _connect_timeout(self, now: float) -> None:
        self.core.logger.info("%s: no CONNECT in time", self.peer())
        count(self.core.counters.connections_refused, "timeout")
        self.timer = None
        self._end(now)

    def _keep_alive_due(self, now: float) -> None:
        if not self.wants_reading:  # what the client says meanwhile is not heard
            self._last_received = now
        due = self._last_received + self._keep_alive
        if now < due:
            self.timer = self.core.timers.at(due, self._keep_alive_due)
            return
        self.timer = None
        self.core.logger.info("client %s: keep-alive timeout", self.session.client_id)
        reason = f"no packet in {self._keep_alive:g} s; allowed: 1.5 times the Keep Alive"
        self.close(ReasonCode.KEEP_ALIVE_TIMEOUT, now, reason_string=reason)

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
        is_5 = self.version == ProtocolVersion.MQTT_5
        self.is_heard_out = is_5 if self.is_open else self.is_answered
        if self.is_open:
            self.close(error.reason_code, now, **explained(error.detail))
        else:
            if self.is_answered:
                refuse_connect(self, error.reason_code, **explained(error.detail))
            self._end(now)

    def close(self, reason_code: ReasonCode, now: float | None, **properties: Any) -> None:
        """End the connection, telling an MQTT 5 client why [MQTT-3.14.0-1].

        Args:
            reason_code: of the DISCONNECT.
            now: monotonic seconds; None for the time of the last chunk.
            properties: of the DISCONNECT.
        """
        if self.is_closing:
            return
        is_answered = not self.drop_held()
        if self.is_open and is_answered and self.version == ProtocolVersion.MQTT_5:
            self.send_packet(Disconnect(reason_code, properties))
        self.core.logger.debug("%s: %s", self.peer(), describe_reason_code(reason_code))
        self._end(self._last_received if now is None else now)

    def shut_down(self, now: float) -> None:
        """End the connection as the broker stops; a client is told where else to go, if known."""
        reference = self.core.options.server_reference
        if reference is None:
            self.close(ReasonCode.SERVER_SHUTTING_DOWN, now)
        else:
            self.close(ReasonCode.USE_ANOTHER_SERVER, now, server_reference=reference)

    def break_off(self, now: float) -> None:
        """End the connection in the middle of a packet: nothing more can be said on it."""
        self.is_broken_off = True
        self.wants_more = False
        self.drop_out()
        self._end(now)

    def _end(self, now: float) -> None:
        self.core.turn.touch(self)
        self._detach(now)

    def disconnected(self, now: float) -> None:
        """The client has said DISCONNECT: nothing more is sent."""
        self._end(now)

    def _detach(self, now: float) -> None:
        """Leave the session, once."""
        self.is_closing = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        self.throttle.leave()
        self.drop_held()
        if self._is_counted:
            self.core.received.forget(self)
            self._buffer.clear()
        if self.is_open:
            self.is_open = False
            if self.awaiting:
                self.core.room.forget(self)
            self.core.sessions.connection_lost(self.session, self, now)
