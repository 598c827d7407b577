"""Sessions: the state of a client that outlives its network connection (MQTT 5.0, 4.1).

Theory of operation. `Session.deliver` takes a message for the client. It hands a small one to the
sender at once while nothing waits and the client has room; any other goes to the outbox. `pump`
takes messages from the outbox while there is room. A large message ends the pump: it leaves alone,
and the gate is asked again when the transport has taken it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.delivery import NO_QUEUE, Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.priority_outbox import make_outbox
from penstock.broker.routing.topic_tree import Subscription
from penstock.broker.sending.sender import PUMP_BYTES
from penstock.broker.sessions.large_ahead import large_sent
from penstock.broker.sessions.probes import send_probe
from penstock.broker.sessions.redelivery import may_take_over, take_over
from penstock.broker.sessions.retained_delivery import (
    SLICE_MESSAGES,
    RetainedDue,
    send_before,
    send_due,
)
from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink
    from penstock.broker.outbox.inflight import Inflight
    from penstock.broker.outbox.outbox import Outbox
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.sending.sender import Sender, WriteQueue
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client, PublishReceipt
    from penstock.broker.sessions.deduplication_release import DeduplicationRelease
    from penstock.broker.sessions.journal import SessionWatcher
    from penstock.broker.sessions.large_ahead import LargeAhead

CLIENT_BYTES: Final = 12
"""Bytes that stand for a Client Identifier in the origin of a session that is not durable. An
origin of a durable one is shorter, so the two are never the same."""

NONE_UNANSWERED: Final[Mapping[int, PublishReceipt]] = MappingProxyType({})

DIRECT_BYTES: Final = 1024 * 1024
"""The most bytes that one turn may write past the outbox. A chunk of packets must not cause more
for
one client before its transport has said whether there is room."""


PUMP_MESSAGES: Final = 32
"""Messages that one pump moves at most. Each takes some 5 us, so that the driver can see every
fraction of a millisecond whether others have waited long enough; a write for so many costs little
of that."""


class Session:
    """One client's subscriptions and messages on their way to and from it.

    Invariants: the ledger balances (`check_invariants`); `is_direct` is True only while there
    is a connection with room and nothing waits, is to be sent again or due.

    Attributes:
        client_id: Client Identifier.
        known_as: the same for access control and No Local; of a lane that takes the large messages
            of another one, that one's.
        username: user name of the newest connection, or None.
        listener: name of the newest connection's listener; "" before there was one.
        counted_user: user for whom `SessionQuota` counts the session; "" for none.
        counted_address: address for which it does; "" for none.
        version: protocol version of the newest connection.
        client: the connected client, or None.
        sender: the client's, or None.
        is_unused: whether it is an `UnusedSession`.
        outgoing: the client's; only while it is connected.
        is_direct: a small message may be written at once, with nothing to overtake.
        subscriptions: by topic filter.
        subscription_bytes: about what they take of the memory; the topic tree counts them.
        retained_due: retained messages that its subscriptions have still to get, by their
            topic filters, in order; a client may have very many.
        shares: the shared subscriptions that this session is a member of.
        outbox: what waits to be sent.
        inflight: what was sent and is not acknowledged.
        resend: what was inflight when the last connection ended, still to be sent again.
        incoming: packet identifiers of QoS 2 messages received and not yet released
            [MQTT-4.3.3-10]; to the receipt while a sink has not settled it, then to the sinks that
            may know its deduplication identifier, and to `DeduplicationRelease` while these forget
            it. (): any sink may know it. None: none does.
        unanswered: receipts of messages that the last connection left without an answer: of QoS 1,
            and of QoS 2 where a sink may have refused what subscribers have got.
        origin: what deduplication identifiers of the client's messages begin with; b"" until it is
            needed. No other session ever has that of a durable one.
        ledger: the account of this subscriber; call `settle_direct` before reading it.
        n_direct: messages delivered at QoS 0 without passing the outbox since then.
        n_refused: the client's own messages that were not routed.
        link: what is known of the path to this client.
        expiry_interval: seconds the session outlives its connection; None: it does not expire.
        will: the will of the newest CONNECT, or None.
        will_timer: runs while a delayed will waits.
        expiry_timer: runs while the client is away.
        look_timer: runs while the gate wants to be asked again.
        large_ahead: what small messages have waited for behind large ones; None before the first.
        probe: the newest probe: it waits for room while it has no packet identifier, or was sent.
        overflow_timer: runs from a message that found the outbox full to the cut-off for it.
        journal: told of what must outlive the process; None where nothing of it must.
    """

    __slots__ = (
        "client",
        "client_id",
        "core",
        "counted_address",
        "counted_user",
        "expiry_interval",
        "expiry_timer",
        "incoming",
        "inflight",
        "is_direct",
        "journal",
        "known_as",
        "large_ahead",
        "ledger",
        "link",
        "listener",
        "look_timer",
        "n_direct",
        "n_refused",
        "origin",
        "outbox",
        "outgoing",
        "overflow_timer",
        "probe",
        "resend",
        "retained_due",
        "sender",
        "shares",
        "subscription_bytes",
        "subscriptions",
        "unanswered",
        "username",
        "version",
        "will",
        "will_timer",
    )

    is_unused: ClassVar = False

    def __init__(self, client_id: str, core: Core) -> None:
        self.client_id = self.known_as = client_id
        self.core = core
        self.username: str | None = None
        self.counted_user = self.counted_address = ""
        self.listener = ""
        self.version = 4
        self.client: Client | None = None
        self.sender: Sender | None = None
        self.outgoing: WriteQueue
        self.is_direct = False
        self.subscriptions: dict[str, Subscription] = {}
        self.subscription_bytes = 0
        self.retained_due: OrderedDict[str, RetainedDue] = OrderedDict()
        self.shares: tuple[SharedSubscription, ...] = ()
        self.ledger: Ledger
        self.n_direct = 0
        self.n_refused = 0
        self.link: Link
        self.outbox: Outbox
        self.inflight: Inflight
        self.resend: deque[Delivery] = NO_QUEUE
        self.incoming: dict[
            int, PublishReceipt | DeduplicationRelease | tuple[MessageSink, ...] | None
        ] = {}
        self.unanswered: Mapping[int, PublishReceipt] = NONE_UNANSWERED
        self.origin = b""
        self.expiry_interval: float | None = 0.0
        self.will: Will | None = None
        self.will_timer: Timer | None = None
        self.expiry_timer: Timer | None = None
        self.look_timer: Timer | None = None
        self.overflow_timer: Timer | None = None
        self.journal: SessionWatcher | None = None
        self.probe: Delivery | None = None
        self.large_ahead: LargeAhead | None = None

    def deduplication_id(self, packet_id: int) -> bytes:
        """Return what a message of the client has in common with its repeats alone.

        A session that is not durable has the origin of the sessions of its client before it, so
        that a client that does not forget its messages with its session can be told from others
        after the broker was killed.
        """
        if not self.origin:
            self.origin = blake2b(self.client_id.encode(), digest_size=CLIENT_BYTES).digest()
        return self.origin + packet_id.to_bytes(2, "big")

    @property
    def is_local(self) -> bool:
        """Whether it is of a client in the broker's own process: no figure of clients counts it."""
        return self.client_id.startswith(LOCAL_CLIENT_PREFIX)

    @property
    def is_connected(self) -> bool:
        """Whether the client has a network connection now."""
        return self.client is not None

    @property
    def is_durable(self) -> bool:
        """Whether the session outlives the process."""
        return self.journal is not None

    def keep_for_share(self) -> None:
        """Let the journal store what the session holds for shares with durable members."""
        journal = self.core.journal
        if self.journal is None and journal is not None:
            journal.keep_for_share(self)

    def deliver(
        self,
        message: Message,
        qos: int,
        *,
        retain: bool,
        subscription_ids: tuple[int, ...],
        now: float,
        share: str = "",
    ) -> None:
        """Take a message for this client: write it now, let it wait, or drop and count it.

        It is delivered with this QoS, RETAIN flag and these Subscription Identifiers. A share is
        the topic filter of the shared subscription by which it comes, or "".
        """
        ledger = self.ledger
        ledger.matched += 1
        sender = self.sender
        if sender is None:
            if self.retained_due:
                send_before(self, message.topic, now)
            order = self.outbox.order
            if qos or (order is not None and order.is_taken_over):  # it is sent soon
                journal = self.core.journal
                is_new = qos and not share  # what a share moves here may be stored
                delivery = Delivery(
                    message, qos, retain=retain, subscription_ids=subscription_ids, share=share
                )
                if is_new and journal and journal.drops_for(self) and journal.lacks_room(message):
                    self.outbox.refuse(message, "not_stored")
                    journal.make_room(self, delivery)
                    return
                if not self.outbox.add(delivery):
                    self._overflowed(now)
            else:
                ledger.drop("offline")
            return
        # As `sends_at_once`.
        if self.is_direct and not message.is_large and self.outgoing.out_bytes < DIRECT_BYTES:
            if not qos:
                sender.send_qos0(message, retain=retain, subscription_ids=subscription_ids, now=now)
                return
            if sender.has_quota():
                delivery = Delivery(
                    message, qos, retain=retain, subscription_ids=subscription_ids, share=share
                )
                sender.send_delivery(delivery, now)
                return
        if self.retained_due:
            send_before(self, message.topic, now)
        delivery = Delivery(
            message, qos, retain=retain, subscription_ids=subscription_ids, share=share
        )
        if self.outbox.add(delivery):
            self.is_direct = False
            self.outgoing.want_pump()
        else:
            self._overflowed(now)
        client = self.client
        if (
            (self.outgoing.is_paused or self.outbox.n_messages > sender.send_quota)
            and client is not None
            and not (throttle := client.throttle).is_slow
        ):
            self.core.turn.congested.append((throttle, self.outbox, message.payload_bytes))

    def sends_at_once(self, qos: int) -> bool:
        """Say whether a small message would be sent at once, past the outbox.

        This is the rule for every way that a message takes. `deliver` tests the same in line, to
        save a call for each message, and so do the runs of `penstock.broker.fast_paths`.
        """
        sender = self.sender
        return (
            self.is_direct
            and sender is not None
            and self.outgoing.out_bytes < DIRECT_BYTES
            and (not qos or sender.has_quota())
        )

    def has_room_for(self, message: Message, n_copies: int = 1) -> bool:
        """Say whether copies of a message may wait for this client, as far as its own limits go.

        What has limits that are not those of all drops messages at them, unless it refuses them.
        """
        outbox = self.outbox.place_of(message)
        rules = outbox.rules
        if rules.is_of_one and not rules.refuses:
            return True
        most_messages = rules.max_messages - n_copies
        most_bytes = rules.max_bytes - n_copies * message.size_bytes
        if outbox.n_messages > most_messages or outbox.n_bytes > most_bytes:
            outbox.drop_expired(message.arrived_at)
        return outbox.n_messages <= most_messages and outbox.n_bytes <= most_bytes

    def _overflowed(self, now: float) -> None:
        """A message was dropped: where the policy says so, let the client find that out.

        Not at once: the message is just being routed, and what ends now may have a will.
        """
        if self.core.limits.queue_full == "disconnect" and self.overflow_timer is None:
            self.overflow_timer = self.core.timers.at(now, self._cut_off)

    def _cut_off(self, now: float) -> None:
        """Close the connection, or end the session that has none, for its full outbox.

        A client that is away learns only by the missing session that it has missed messages.
        """
        self.overflow_timer = None
        self.core.logger.warning(
            "client %s: its outbox was full: %s",
            self.client_id,
            "session ended" if self.client is None else "connection closed",
        )
        if self.client is not None:
            self.client.close(ReasonCode.QUOTA_EXCEEDED, now)
        else:
            self.core.sessions.end(self, now)

    def link_changed(self) -> None:
        """Ask the gate again: a sampler has a new estimate."""
        self.outbox.link_changed()
        if self.client is not None and (
            self.outbox.n_messages or any(share.holders for share in self.shares)
        ):
            self.outgoing.want_pump()

    def settle_direct(self) -> Ledger:
        """Book what was delivered directly, and return the ledger."""
        self.ledger.matched += self.n_direct
        self.ledger.delivered += self.n_direct
        self.n_direct = 0
        return self.ledger

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        self.outbox.check_invariants()
        self.inflight.check_invariants()
        held = self.outbox.n_messages + len(self.inflight)
        assert self.settle_direct().outstanding() == held, "ledger"  # noqa: S101 (the check)
        if self.is_direct:
            assert self.client is not None, "direct"  # noqa: S101
            assert not self.outbox.n_messages, "direct"  # noqa: S101
            assert not self.resend, "direct"  # noqa: S101
            assert not self.retained_due, "direct"  # noqa: S101


class _MadeWhenUsed:
    """An attribute that an `UnusedSession` makes, with three others, for who asks for it.

    `__getattr__` would say the same, and make each look at any attribute of the session six times
    as slow.
    """

    __slots__ = ("_name",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, session: UnusedSession, owner: type) -> Any:
        session.use()
        return getattr(session, self._name)


class UnusedSession(Session):
    """A session that nothing was sent to, nor subscribed for: many clients come, publish and go.

    It has no link, ledger, outbox and inflight window. Who asks for one of them makes all four, and
    from then on it is a `Session` like others.
    """

    __slots__ = ()

    is_unused: ClassVar = True
    inflight = _MadeWhenUsed()
    ledger = _MadeWhenUsed()
    link = _MadeWhenUsed()
    outbox = _MadeWhenUsed()

    def use(self) -> None:
        """Make what it lacks, and tell gate and samplers of the connection that it has, if any."""
        core = self.core
        self.__class__ = Session  # type: ignore[assignment]  # of the same slots
        self.ledger = Ledger()
        self.link = link = Link(self.client_id, self.username, self.listener)
        self.outbox = make_outbox(link, self.ledger, core.outbox_rules)
        self.inflight = core.new_inflight()
        client = self.client
        if client is None:
            return
        core.guard.call(core.gate, core.gate.connected, link, (), otherwise="")
        core.connected(link, client.last_received)
        self.outbox.link_changed()
        self.is_direct = not (self.outgoing.is_paused or client.sender.held)
        self.outgoing.want_pump()


def pump(client: Client, unsent_bytes: int, now: float) -> None:
    """Move from the outbox into `out` what may be sent, beside what the transport has not sent."""
    outgoing = client.outgoing
    sender = client.sender
    if outgoing.is_unreadable:  # a DISCONNECT would be read as a part of the payload
        client.close(ReasonCode.UNSPECIFIED_ERROR, now)
        outgoing.drop_out()
    if not outgoing.is_pump_wanted:
        return
    outgoing.is_pump_wanted = False
    outgoing.wants_more = False
    if not client.is_open or outgoing.is_paused or sender.keeps_outbox():
        return
    session = client.session
    if session.is_unused or session.client is not client:  # nothing waits, or its peer is gone
        return
    is_refilled = False
    n_left = PUMP_MESSAGES
    inflight = session.inflight
    session.link.unsent_bytes = unsent_bytes
    if session.probe is not None:
        send_probe(session, sender, now)
    while n_left and outgoing.out_bytes + sender.held_bytes < PUMP_BYTES:
        n_left -= 1
        if session.resend:
            # The quota is this connection's [MQTT-3.3.4-9]; the last one's may have been more.
            if len(inflight) - len(session.resend) >= sender.send_quota:
                break
            repeat = session.resend.popleft()
            sender.send_again(repeat, now)
            if repeat.after is not None:
                _large_sent(session, repeat, now)
            continue
        delivery = session.outbox.take(now, has_quota=sender.has_quota())
        if delivery is None:
            if session.retained_due and not outgoing.wants_more and send_due(session, now):
                outgoing.wants_more = True  # after others had their turn
            elif is_refilled or not session.shares or not take_over(session, now):
                break
            else:
                is_refilled = True
            continue
        is_large = delivery.after is not None
        sender.send_delivery(delivery, now)
        if session.retained_due:
            send_due(session, now, 1)
        if is_large:
            _large_sent(session, delivery, now)
            outgoing.wants_more = True
            break
    else:  # it may have been all: found in the next pump only, what comes till then would wait
        outgoing.wants_more = bool(
            session.outbox.n_messages
            or session.resend
            or session.retained_due
            or (session.shares and may_take_over(session))
        )
    outgoing.wants_more |= is_refilled  # there may be more of it
    _after_pump(client, session, now)


def _large_sent(session: Session, delivery: Delivery, now: float) -> None:
    """Tell of a large message that was handed to the connection; at QoS 2 not of its PUBREL."""
    large_sent(session, delivery, now)
    inflight = session.inflight
    if inflight.holds(delivery) and not inflight.is_released(delivery.packet_id):
        session.outbox.large_sent(delivery, now)


def _after_pump(client: Client, session: Session, now: float) -> None:
    if client.core.room.waiting:
        client.core.room.made(session, now)
    outgoing = client.outgoing
    if outgoing.wants_more:
        outgoing.is_pump_wanted = True
        # New messages are sent between retained ones, and do not wait for all of them.
        if session.retained_due and session.outbox.n_messages <= SLICE_MESSAGES:
            client.throttle.let_go()
    elif session.outbox.n_messages <= client.sender.send_quota:
        if not (session.outbox.n_messages or session.resend or session.retained_due):
            session.is_direct = session.outbox.order is None
            client.throttle.is_slow = False
        client.throttle.let_go()
    kept = client.core.kept
    if kept is not None and kept.has(session):
        kept.pumped(session)
    _set_look_timer(session, outgoing, now)


def _set_look_timer(session: Session, outgoing: WriteQueue, now: float) -> None:
    """Set a timer for the next decision of the gate.

    Where that time has passed already, the inflight window was full: the acknowledgement that
    makes room causes the next pump, and a timer would fire at once, again and again.
    """
    at = session.outbox.look_again_at
    if at is not None and at <= now:
        at = None
    timer = session.look_timer
    if timer is not None and timer.at == at and timer.action is not None:
        return
    if timer is not None:
        timer.cancel()
    session.look_timer = None
    if at is not None:
        session.look_timer = session.core.timers.at(at, lambda _now: outgoing.want_pump())
