"""One connected client: what the handlers of its packets work on.

A `Client` has a `Sender`, which makes packets and deliveries for it, and the `WriteQueue` in which
they collect. `penstock.broker.receiving.connection` brings its packets to the handlers. A client is
*suspended* while access control takes its time: no further packet of it is handled.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker.access_control import Accepted, AuthExchange, ConnectAttempt
from penstock.broker.counters import count
from penstock.broker.errors import PeerError
from penstock.broker.mqtt.enums import MQTT_5, ProtocolVersion
from penstock.broker.mqtt.packets import ConnAck, Disconnect, PubAck, PubRec
from penstock.broker.mqtt.reason_codes import CONNACK_RETURN_CODES, ReasonCode, describe_reason_code
from penstock.broker.mqtt.size_limit import explained
from penstock.broker.mqtt.topic_aliases import NO_ALIASES, OutgoingAliases
from penstock.broker.outbox.delivery import NO_QUEUE
from penstock.broker.sending import eager_coroutine
from penstock.broker.sending.log_fields import Named, peer_name
from penstock.broker.sending.sender import Sender, WriteQueue
from penstock.broker.sending.throttle import Throttle
from penstock.broker.sessions import redelivery
from penstock.broker.sessions.deduplication_release import DeduplicationRelease
from penstock.broker.sessions.session import NONE_UNANSWERED
from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

UNREAD_BYTES: Final = 1024 * 1024
"""Memory that answers may take for a client that does not read them. It is enough for a client that
first sends and then reads; one that only sends must not fill the memory."""

_NONE_INHERITED: Final[frozenset[int]] = frozenset()

_PASSING: Final = frozenset(
    {ReasonCode.UNSPECIFIED_ERROR, ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_SHUTTING_DOWN}
)
"""Reason codes of a sink that may store the message when it comes again."""

LetIn: TypeAlias = Callable[[Accepted, dict[str, Any], float], Awaitable[None] | None]
"""Opens the connection of a client: its names, properties for its CONNACK, now; returns what is
still to be awaited, or None."""


class Authentication:
    """The authentication of one connection.

    Attributes:
        method: Authentication Method of its CONNECT, which no later packet may change.
        attempt: what an exchange starts from.
        exchange: the one that is under way, or None.
        let_in: what to do when the first exchange has succeeded.
    """

    __slots__ = ("attempt", "exchange", "let_in", "method")

    def __init__(self, method: str, attempt: ConnectAttempt, let_in: LetIn) -> None:
        self.method = method
        self.attempt = attempt
        self.exchange: AuthExchange | None = None
        self.let_in = let_in


class PublishReceipt:
    """The acknowledgement that a publisher is owed for one QoS 1 or 2 message.

    It is settled once as many answers have come as it waits for.

    Attributes:
        client: to which the acknowledgement goes out.
        packet_id: of the PUBLISH.
        qos: 1 or 2.
        reason_code: why the message was refused; below 0x80 where it was not.
        reason: the same in words for the publisher, or "".
        is_settled: every answer has come.
        is_stored: the packet identifier is stored in the commit of the message.
        is_repeat: the message may be the repeat of one that a sink has stored.
        sinks: that are to store the message.
        was_routed: subscribers have got the message, here or as it came before.
        n_messages: how many it stands for.
    """

    __slots__ = (
        "_n_waiting",
        "client",
        "is_repeat",
        "is_settled",
        "is_stored",
        "n_messages",
        "packet_id",
        "qos",
        "reason",
        "reason_code",
        "sinks",
        "was_routed",
    )

    def __init__(self, client: Client, packet_id: int, qos: int, n_answers: int) -> None:
        self.client = client
        self.packet_id = packet_id
        self.qos = qos
        self.reason_code = 0
        self.reason = ""
        self.is_settled = False
        self.is_stored = False
        self.is_repeat = False
        self.sinks: tuple[MessageSink, ...] = ()
        self.was_routed = False
        self.n_messages = 1
        self._n_waiting = n_answers

    @property
    def deduplication_id(self) -> bytes:
        """What the message has in common with its repeats alone; see `Receipt`."""
        if self.qos == 1 and not self.is_repeat:
            return b""
        return self.client.session.deduplication_id(self.packet_id)

    def wait_for(self, n_answers: int) -> None:
        """Wait for more answers, while one at least is missing."""
        self._n_waiting += n_answers

    def settle(self, reason_code: int) -> None:
        """Take one answer; the last one sends the acknowledgement."""
        if reason_code >= 0x80:
            self.reason_code = reason_code
        self._n_waiting -= 1
        if self._n_waiting == 0:
            sinks = self.client.core.sinks if self.is_repeat and not self.sinks else self.sinks
            if sinks and self._frees_packet_id():
                self.client.forgetting(self.packet_id, sinks, self._settled).ask()
            else:
                self._settled()

    def _frees_packet_id(self) -> bool:
        """Say whether a sink may know a message whose acknowledgement frees its identifier.

        Any may have stored what is repeated, also where it comes to none now. And one that refuses
        may have stored it in part.
        """
        if self._stays_with_client():
            return False
        if self.qos == 1:
            return self.is_repeat
        return self.client.is_open and self.reason_code >= 0x80

    def _stays_with_client(self) -> bool:
        """Say whether it is not acknowledged: the client keeps the message and comes again.

        No PUBACK of MQTT 3.1.1 can say that a message was refused; and what a patient client
        forwards is lost when it is refused for what passes. A broker that shuts down refuses none.
        """
        if self.reason_code < 0x80:
            return False
        client = self.client
        if client.version != MQTT_5 or self.reason_code == ReasonCode.SERVER_SHUTTING_DOWN:
            return True
        return client.is_patient and bool(self.sinks) and self.reason_code in _PASSING

    def _settled(self) -> None:
        self.is_settled = True
        self._acknowledge_in_order()

    def move_to(self, client: Client) -> None:
        """Owe it on the client's next connection, on which it has sent the message again."""
        self.client = client
        client.owe(self)
        if self.is_settled:
            self._acknowledge_in_order()

    def _acknowledge_in_order(self) -> None:
        """Send what is settled, in the order in which the messages came [MQTT-4.6.0-2]."""
        client = self.client
        if self.qos == 2:
            self.note_received(client.session)
        if not client.is_open:
            return client.core.sessions.look(client.session.client_id)
        receipts = client.receipts
        n_before = client.n_owed
        while receipts and receipts[0].is_settled:
            first = receipts[0]
            if first.reason_code >= 0x80 and first._stays_with_client():  # noqa: SLF001 (its class)
                why = f"not stored by {', '.join(sink.name for sink in first.sinks)}"
                return client.close(ReasonCode(first.reason_code), None, reason_string=why)
            receipts.popleft()
            client.n_owed -= first.n_messages
            first.send()
        if n_before >= client.receive_maximum > client.n_owed:
            client.core.turn.touch(client.outgoing)
        return None

    def note_received(self, session: Session) -> None:
        """Note that a QoS 2 message was received, or may come again as it was refused."""
        if self.reason_code >= 0x80:
            session.incoming.pop(self.packet_id, None)
        else:
            session.incoming[self.packet_id] = self.sinks or (() if self.is_repeat else None)
            if session.journal is not None and not self.is_stored:
                session.journal.incoming_changed(self.packet_id)

    def send(self) -> None:
        """Send the acknowledgement, as the receipt is settled."""
        sender = self.client.sender
        if self.reason_code:
            sender.send_packet(self.acknowledgement())
        else:
            sender.send_receipt(0x40 if self.qos == 1 else 0x50, self.packet_id)

    def singles(self) -> Sequence[PublishReceipt]:
        """Return a receipt for each message, as its connection ends without an answer."""
        return (self,)

    def acknowledgement(self) -> PubAck | PubRec:
        """Return the packet that it stands for, once it is settled."""
        kind = PubAck if self.qos == 1 else PubRec
        code = self.reason_code
        told = self.client.core.options.told(code)
        return kind(self.packet_id, told, explained(self.reason if told == code else ""))


class Client:
    """One client's network connection, and what is owed on it both ways.

    Attributes:
        core: the broker.
        outgoing: the bytes on their way to the client.
        sender: makes them from packets and deliveries.
        throttle: its back-pressure, as a publisher and as a subscriber.
        listener: name of the listener in the policy file.
        remote_address: of the peer.
        remote_port: of the peer.
        session: the client's session; only after CONNECT was accepted.
        version: protocol version; set it by `set_version`.
        is_open: CONNECT was accepted and the connection has not ended.
        authentication: by which method the client authenticates, or None.
        incoming_aliases: Topic Aliases that the client uses.
        ssl_object: the TLS connection, or None.
        certificate_name: common name of the client's verified certificate, or None.
        refusal: what its CONNECT is to be answered with, whatever it says; or None.
        holds: says whether access control would still let the client in; or None.
        inherited: packet identifiers of QoS 2 messages that earlier connections left unreleased.
        receive_maximum: QoS 1 and 2 messages the client may have unacknowledged.
        receipts: QoS 1 and 2 messages that are owed an acknowledgement, oldest first.
        n_owed: how many these are; a receipt may stand for several.
        awaiting: the client's own messages that wait for room in the outboxes of subscribers,
            oldest first (`penstock.broker.routing.queue_capacity.Held`).
        awaiting_bytes: of these.
        is_answered: what it sent first is a CONNECT, in a version in which a mistake can be told.
        has_begun_session: the session began with this connection.
        is_bridge: the client has said that it is another broker's bridge.
        is_local: it is a part of the broker's own process; see
            `penstock.broker.extensions.LocalClients`.
        is_patient: what it publishes waits for room and for the disk, and is refused for neither:
            it forwards what others were told is safe.
        is_forwarded: what it publishes was routed by another broker; see the same.
        share: the shared subscription that each of these messages is for; "" for none.
        is_relay: it publishes for a user; see `penstock.broker.extensions.RELAY_CLIENT_PREFIX`.
        maximum_packet_size: bytes of the largest packet that is taken from an accepted client.
        n_filters_refused: how many of its subscriptions were refused.
        is_closing: to be closed once `out` is written; nothing more is received.
        is_heard_out: to be closed when the peer has read why: what it sends to a closed socket
            may cost it what it has not read yet.
        suspended: what the driver must run before more is received, or None.
        timer: of the CONNECT timeout, then of the keep-alive.
        backlog: what has come and is not handled yet, as something keeps it.
        is_counted: `ReceivedBytes` counts what is kept of what has come.
        has_peer_left: the peer is gone, and what it has sent is still handled.
        last_received: monotonic seconds of the last chunk.
        end_reason: the reason code for which it was closed; 0 where the client has disconnected,
            None where the connection was lost.
        connected_at: monotonic seconds of the chunk that had the CONNECT.
    """

    __slots__ = (
        "_keep_alive",
        "_waits_for_disk",
        "authentication",
        "awaiting",
        "awaiting_bytes",
        "backlog",
        "certificate_name",
        "connected_at",
        "core",
        "end_reason",
        "has_begun_session",
        "has_peer_left",
        "holds",
        "incoming_aliases",
        "inherited",
        "is_answered",
        "is_bridge",
        "is_closing",
        "is_counted",
        "is_forwarded",
        "is_heard_out",
        "is_local",
        "is_open",
        "is_patient",
        "is_relay",
        "last_received",
        "listener",
        "maximum_packet_size",
        "n_filters_refused",
        "n_owed",
        "outgoing",
        "receipts",
        "receive_maximum",
        "refusal",
        "remote_address",
        "remote_port",
        "sender",
        "session",
        "share",
        "ssl_object",
        "suspended",
        "throttle",
        "timer",
        "version",
    )

    def __init__(
        self,
        core: Core,
        now: float,
        served: Any,
        listener: str,
        remote_address: str,
        remote_port: int,
        ssl_object: Any,
        certificate_name: str | None,
        refusal: ReasonCode | None,
    ) -> None:
        """Take a network connection; arguments are as those of `Connection`."""
        self.core = core
        self.outgoing = WriteQueue(core, served)
        self.sender = Sender(self.outgoing)
        self.throttle = Throttle(core, self.outgoing)
        self.listener = listener
        self.remote_address = remote_address
        self.remote_port = remote_port
        self.session: Session
        self.version = MQTT_5
        self.is_open = False
        self.ssl_object = ssl_object
        self.certificate_name = certificate_name
        self.refusal = refusal
        self.holds: Callable[[], bool] | None = None
        self.receipts: deque[PublishReceipt] = NO_QUEUE
        self.n_owed = 0
        self.awaiting: deque[Any] = NO_QUEUE
        self.awaiting_bytes = 0
        self.authentication: Authentication | None = None
        self.has_begun_session = False
        self.is_bridge = False
        self.is_local = False
        self.is_patient = False
        self.is_relay = False
        self.is_forwarded = False
        self.share = ""
        self.is_closing = False
        self.is_heard_out = False
        self.suspended: Coroutine[Any, Any, None] | None = None
        self.backlog: list[bytes] | tuple[()] = ()
        self.is_counted = False
        self.maximum_packet_size = core.limits.maximum_packet_size
        self.receive_maximum = core.limits.receive_maximum
        self._waits_for_disk = False
        self.has_peer_left = False
        self.incoming_aliases = NO_ALIASES
        self.inherited = _NONE_INHERITED
        self.n_filters_refused = 0
        self.is_answered = False
        self._keep_alive = 0.0
        self.end_reason: int | None = None
        self.last_received = self.connected_at = now
        core.counters.connections_total += 1
        self.timer: Timer | None = core.timers.at(
            now + core.limits.connect_timeout_seconds, self._time_is_up
        )

    @property
    def wants_reading(self) -> bool:
        """Whether the driver should read from the network."""
        return not self.backlog and self.may_receive

    @property
    def may_receive(self) -> bool:
        """Whether more of what has come may be handled."""
        if self.suspended is not None:
            return False
        return self.has_peer_left or not (
            self._waits_for_disk
            or self.throttle.blockers
            or self.outgoing.unread_bytes > UNREAD_BYTES
            or (self.n_owed >= self.receive_maximum and self._sends_too_much)
            or (self.awaiting_bytes and self._has_much_held())
        )

    @property
    def _sends_too_much(self) -> bool:
        """Whether a client is to wait that has as many messages unacknowledged as it may.

        One in the process passes on what a broker sends: MQTT 5 lets that one send so many, and its
        acknowledgements behind them are to be read.
        """
        if self.version != MQTT_5:
            return True
        return self.is_local and self.n_owed > self.receive_maximum

    @property
    def keeps_no_receive_maximum(self) -> bool:
        """Whether it is slowed down, and not cut off, where it sends more unacknowledged."""
        return self.version != MQTT_5 or self.is_local

    def _has_much_held(self) -> bool:
        is_patient = self.is_patient and self.version == MQTT_5
        return self.core.room.has_much_held(self, is_patient=is_patient)

    def peer(self) -> Named:
        """Name the peer for the log."""
        address = f"{self.remote_address}:{self.remote_port}"
        client_id = self.session.client_id if self.is_open else None
        return peer_name(address, self.listener, client_id)

    def set_version(self, version: int) -> None:
        """Set the protocol version, as the CONNECT has it."""
        self.version = self.sender.version = version

    def put_off(self, data: bytes) -> None:
        """Keep bytes that are not handled yet, behind those that were put off before."""
        if self.backlog:
            self.backlog.append(data)
        else:
            self.backlog = [data]

    def wait_for_disk(self, *, waits: bool) -> None:
        """Receive nothing while what is to be stored comes faster than it is."""
        self._waits_for_disk = waits
        turn = self.core.turn
        if waits:
            turn.steps = turn.most_steps  # the rest of the chunk waits too
        turn.touch(self.outgoing)

    def owe(self, receipt: PublishReceipt) -> None:
        """Note that a message is owed an acknowledgement, behind those that came before it."""
        if self.receipts is NO_QUEUE:
            self.receipts = deque()
        self.receipts.append(receipt)
        self.n_owed += receipt.n_messages

    def forgetting(
        self, packet_id: int, sinks: Sequence[MessageSink], then: Callable[[], None]
    ) -> DeduplicationRelease:
        """Return what has sinks forget one of the client's messages, and then calls `then`."""
        session, sessions = self.session, self.core.sessions
        return DeduplicationRelease(
            self.sender,
            session.deduplication_id(packet_id),
            sinks,
            then,
            lambda: sessions.get(session.client_id) is session,
        )

    @property
    def waits_for_room(self) -> bool:
        """Whether a message without room is held, and not refused by a reason code."""
        return self.version != MQTT_5 or self.forwards

    @property
    def forwards(self) -> bool:
        """Whether it forwards messages of which others were told that they are safe."""
        return self.is_relay or self.is_patient

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a handler now; where it has to wait, receive nothing more until it is done."""
        rest = eager_coroutine.start(coroutine)
        if rest is not None:
            self.suspended = rest
            self.core.turn.touch(self.outgoing)

    def open(
        self, session: Session, *, keep_alive: int, receive_maximum: int, topic_alias_maximum: int
    ) -> None:
        """Bind an accepted client's session to this connection; a Keep Alive of 0 s is none.

        The maximums are those that the client takes.
        """
        core = self.core
        sender = self.sender
        self.connected_at = self.last_received
        self.session = sender.session = session
        self.is_open = sender.is_open = True
        sender.send_quota = min(receive_maximum, core.limits.inflight_messages)
        topic_alias_maximum = min(topic_alias_maximum, core.options.outgoing_topic_aliases)
        if topic_alias_maximum:
            sender.aliases = OutgoingAliases(topic_alias_maximum)
        self._keep_alive = keep_alive * 1.5 + core.keep_alive_grace if keep_alive else math.inf
        due = self.last_received + self._keep_alive
        timer = self.timer
        # That of the CONNECT timeout serves, if it comes no later: many clients are gone by then.
        if timer is not None and (due < timer.at or not keep_alive):
            timer.cancel()
            timer = self.timer = None
        if timer is None and keep_alive:  # [MQTT-3.1.2-22]
            self.timer = core.timers.at(due, self._time_is_up)
        if session.incoming:
            self.inherited = frozenset(session.incoming)
        session.client = self
        session.sender = sender
        session.outgoing = self.outgoing
        if not session.is_unused:
            session.resend = deque(session.inflight) if session.inflight else NO_QUEUE
            session.outbox.link_changed()
            self.outgoing.want_pump()
        if not self.is_local:
            counters = core.counters
            counters.clients_connected += 1
            most = max(counters.clients_connected_maximum, counters.clients_connected)
            counters.clients_connected_maximum = most
        if session.shares:
            redelivery.member_came(session)
        if core.consuming is not None and session.subscriptions:
            core.consuming.connected(session)
        self.opened()

    def opened(self) -> None:
        """Take note that the client is accepted: for subclasses."""

    def _time_is_up(self, now: float) -> None:
        if self.is_open:
            self._keep_alive_due(now)
        else:
            self._connect_timeout(now)

    def _connect_timeout(self, now: float) -> None:
        self.core.logger.info("%s: no CONNECT in time", self.peer())
        count(self.core.counters.connections_refused, "timeout")
        self.timer = None
        self.end(now)

    def _keep_alive_due(self, now: float) -> None:
        if not self.wants_reading:  # what has come to the kernel is not read
            served = self.outgoing.served
            heard_at = now if served is None else served.heard_at(now)
            self.last_received = max(self.last_received, heard_at)
        due = self.last_received + self._keep_alive
        if now < due:
            self.timer = self.core.timers.at(due, self._time_is_up)
            return
        self.timer = None
        self.core.logger.info("client %s: keep-alive timeout", self.session.client_id)
        reason = f"no packet in {self._keep_alive:g} s; allowed: 1.5 times the Keep Alive"
        self.close(ReasonCode.KEEP_ALIVE_TIMEOUT, now, reason_string=reason)

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
                self.refuse_connect(error.reason_code, **explained(error.detail))
            self.end(now)

    def close(self, reason_code: ReasonCode, now: float | None, **properties: Any) -> None:
        """End the connection, telling an MQTT 5 client why [MQTT-3.14.0-1].

        The properties are those of the DISCONNECT; `now` is None for the time of the last chunk.
        """
        if self.is_closing:
            return
        self.end_reason = reason_code
        is_answered = not self.sender.drop_held()
        if self.is_open and is_answered and self.version == ProtocolVersion.MQTT_5:
            self.sender.send_packet(Disconnect(reason_code, properties))
        if self.core.logger.isEnabledFor(logging.DEBUG):
            why = describe_reason_code(reason_code)
            fields = {"event": "closing", "reason": why}
            self.core.logger.debug("%s: %s", self.peer(), why, extra=fields)
        self.end(self.last_received if now is None else now)

    def shut_down(self, now: float) -> None:
        """End the connection as the broker stops; a client is told where else to go, if known."""
        reference = self.core.options.server_reference
        if reference is None:
            self.close(ReasonCode.SERVER_SHUTTING_DOWN, now)
        else:
            self.close(ReasonCode.USE_ANOTHER_SERVER, now, server_reference=reference)

    def end(self, now: float) -> None:
        """End the connection once what is in `out` is written: nothing more is said or heard."""
        self.core.turn.touch(self.outgoing)
        self.detach(now)

    def detach(self, now: float) -> None:
        """Leave the session, once."""
        self.is_closing = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.is_counted:
            self.core.received.forget(self)
        self.throttle.leave()
        if self.sender.held:
            self.sender.drop_held()
        if self.is_open:
            self.is_open = self.sender.is_open = False
            if self.awaiting:
                self.core.room.forget(self)
            self.session.unanswered = (
                {
                    owed.packet_id: owed
                    for receipt in self.receipts
                    for owed in receipt.singles()
                    if owed.qos == 1 or owed.was_routed
                }
                if self.receipts
                else NONE_UNANSWERED
            )
            self.core.sessions.connection_lost(self.session, self, now)

    def refuse_connect(self, reason_code: ReasonCode, **properties: Any) -> None:
        """Answer a CONNECT that is not accepted, where the version has a word for it.

        [MQTT-3.2.2-7] of MQTT 5.0; MQTT 3.1.1 closes without CONNACK where it has no return code.
        MQTT 5 clients get the properties.
        """
        if self.version == MQTT_5 or reason_code in CONNACK_RETURN_CODES:
            self.sender.send_packet(ConnAck(False, reason_code, properties))
