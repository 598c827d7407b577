"""Retained messages on their way to a new subscription (MQTT 5.0, 3.3.1.3).

Theory of operation. A few bytes can ask for more retained messages than the memory holds. So a
SUBSCRIBE only notes what is due; the connection's pump goes on with it whenever the outbox has
run dry, and once for each message that left it, so that a client that is always behind gets its
retained messages too. The memory holds the place of a walk, whatever the walk may find, and no
message is dropped because there are more than may wait.

A live message must not be overtaken by an older retained one of its topic: what is still due of a
topic goes out before the live message does. What is published with RETAIN after the SUBSCRIBE
comes as a live message, and the walk passes it over.

A filter is due once, however often a client subscribes to it: a SUBSCRIBE that asks again begins
anew. What is due outlives the connection as the session does, but for subscriptions of QoS 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.broker.access_control import RECEIVE
from penstock.broker.mqtt.topics import SHARE_PREFIX, matches
from penstock.broker.outbox.delivery import Delivery

if TYPE_CHECKING:
    from penstock.broker.message import Message
    from penstock.broker.routing.retained import RetainedWalk
    from penstock.broker.routing.topic_tree import Subscription
    from penstock.broker.sending.sender import Sender
    from penstock.broker.sessions.session import Session

SLICE_MESSAGES: Final = 64
"""Retained messages that are sent, or may wait, before others may have their turn: a quarter of a
millisecond at QoS 0, half of one at QoS 1."""

SLICE_LEVELS: Final = 256
"""Topic levels that are looked at for them; a filter such as ``+/+/x`` may match few of many."""

Granted: TypeAlias = "tuple[Subscription, int, bool]"
"""(subscription, Retain Handling asked for, whether the session had none to this filter)."""

UNSENT_BYTES: Final = 65_536
"""Unsent bytes of a connection from which on no further message is given to it."""


class RetainedDue:
    """The retained messages that one subscription has still to get.

    Attributes:
        session: whose it is.
        subscription: the newest to its filter.
        walk: to what is to come.
        early: topics that went out ahead of the walk, for a live message's sake.
        asked: the message that access control is asked about now, or None.
        is_asking: access control takes its time.
    """

    __slots__ = ("asked", "early", "is_asking", "session", "subscription", "walk")

    def __init__(self, session: Session, subscription: Subscription, walk: RetainedWalk) -> None:
        self.session = session
        self.subscription = subscription
        self.walk = walk
        self.early: set[str] = set()
        self.asked: Message | None = None
        self.is_asking = False

    def next(self, now: float) -> Message | None:
        """Take one step; return the message found there, if it is for this subscription."""
        message = self.walk.step(now)
        if message is None or (self.early and message.topic in self.early):
            return None
        subscription = self.subscription
        if subscription.no_local and message.publisher == self.session.client_id:
            return None  # [MQTT-3.8.3-3]
        return message if subscription.sizes is None or self.takes(message) else None

    def takes(self, message: Message) -> bool:
        """Say whether a message is of the size class that the subscription takes."""
        return self.session.outbox.takes(self.subscription.sizes, message)


def is_anything_due(session: Session) -> bool:
    """Say whether a subscription may be due what is not the broker's own, below ``$``.

    In most brokers nothing is retained, and one SUBSCRIBE may have thousands of filters.
    """
    return bool(session.retained_due or session.core.retained.n_limited)


def subscribed(session: Session, granted: Iterable[Granted]) -> None:
    """Note what a SUBSCRIBE makes due; `begin` follows.

    Retain Handling 0 makes due all that matches [MQTT-3.3.1-9]; 1 the same where the subscription
    is new [MQTT-3.3.1-10]; 2 nothing [MQTT-3.3.1-11].

    Args:
        session: whose subscriptions they are.
        granted: (subscription, Retain Handling, whether there was none to this filter) of each;
            where `is_anything_due` is False, those to filters that begin with ``$`` are enough.
    """
    retained = session.core.retained
    all_due = session.retained_due
    for subscription, retain_handling, is_new in granted:
        name = subscription.topic_filter
        if name.startswith(SHARE_PREFIX):
            continue  # retained messages are for subscriptions of one's own (4.8.2)
        if retain_handling == 0 or (retain_handling == 1 and is_new):
            if name[0] == "$" and session.core.on_sys_subscribed is not None:
                session.core.on_sys_subscribed(name)
            was_due = all_due.pop(name, None) is not None
            if retained.may_match(name):
                all_due[name] = RetainedDue(session, subscription, retained.walk(name))
            elif not was_due:
                continue
            if session.journal is not None:
                session.journal.subscription_changed(name)
        elif name in all_due:  # still owed, to the subscription as it is now
            all_due[name].subscription = subscription


def begin(session: Session, now: float) -> None:
    """Send the first of what is due after a SUBSCRIBE, most often all; leave the rest to pumps."""
    if session.retained_due and session.is_direct:
        send_due(session, now)
    if session.retained_due or session.outbox.n_messages:
        session.is_direct = False
        if session.client is not None:
            session.outgoing.want_pump()


def unsubscribed(session: Session, topic_filter: str) -> None:
    """Nothing more is due to a subscription that is gone [MQTT-3.10.4-2]."""
    session.retained_due.pop(topic_filter, None)


def connection_lost(session: Session) -> None:
    """Nothing more is due at QoS 0: it was for the connection that has ended."""
    all_due = session.retained_due
    for name in [name for name, due in all_due.items() if not due.subscription.qos]:
        del all_due[name]


def send_due(session: Session, now: float, n_messages: int = SLICE_MESSAGES) -> bool:
    """Go on with what is due, by one slice of at most `n_messages`.

    Returns:
        True where it is worth while to go on at once: there is more, or some of it waits.
    """
    all_due = session.retained_due
    n_waiting = session.outbox.n_messages
    due = next(iter(all_due.values()))
    if due.is_asking or not _has_room(session):
        return False
    access = session.core.access
    if access is not None and access.checks_receive:
        due.is_asking = True
        session.core.run(_send_asked(session, due, now, n_messages))
        return not due.is_asking
    sender = _direct_sender(session)
    for _ in range(SLICE_LEVELS):
        message = due.next(now)
        if message is None:
            if due.walk.is_done:
                _finish(due)
                if not all_due:
                    break
                due = next(iter(all_due.values()))
            continue
        if sender is None or message.is_large or (message.qos and due.subscription.qos):
            _give(due, message, now)
            has_room = _has_room(session)
            sender = _direct_sender(session)
        else:  # as `_give` does it
            session.ledger.matched += 1
            identifier = due.subscription.subscription_id
            sender.send_qos0(
                session.core.router.for_one(message) if session.core.copies_payloads else message,
                retain=message.retain,
                subscription_ids=(identifier,) if identifier else (),
                now=now,
            )
            has_room = session.sender is sender and sender.outgoing.out_bytes < UNSENT_BYTES
        n_messages -= 1
        if not n_messages or not has_room:
            break
    return bool(all_due) or session.outbox.n_messages > n_waiting


async def _send_asked(session: Session, due: RetainedDue, now: float, n_messages: int) -> None:
    """Do what `send_due` does at its end, where access control is asked about each message."""
    core = session.core
    try:
        for _ in range(SLICE_LEVELS):
            message = due.next(now)
            if due.walk.is_done:
                break
            if message is None:
                continue
            due.asked = message
            is_allowed = await core.router.is_allowed(session, message.topic, RECEIVE)
            due.asked = None
            if not _is_due(due):
                break  # it was unsubscribed from, or has ended, meanwhile
            if is_allowed and message.topic not in due.early:
                _give(due, message, now)
                n_messages -= 1
            if not n_messages or session.client is None or not _has_room(session):
                break
    finally:
        due.is_asking = False
        due.asked = None
        if due.walk.is_done and _is_due(due):
            _finish(due)
        if session.client is not None:
            session.outgoing.want_pump()


def _finish(due: RetainedDue) -> None:
    """A subscription has got all that was due to it."""
    session = due.session
    del session.retained_due[due.subscription.topic_filter]
    if session.journal is not None:
        session.journal.subscription_changed(due.subscription.topic_filter)


def restore(session: Session, subscription: Subscription) -> None:
    """Begin anew with what was due to a subscription when the broker ended."""
    name = subscription.topic_filter
    session.retained_due[name] = RetainedDue(
        session, subscription, session.core.retained.walk(name)
    )


def send_before(session: Session, topic: str, now: float) -> None:
    """Send what is due of a topic, for a live message of it follows.

    Access control is not asked: it has just let the client receive the live message.
    """
    all_due = session.retained_due
    if topic not in session.core.retained.by_topic and next(iter(all_due.values())).asked is None:
        return  # as for most topics: nothing to look for among what may be thousands of filters
    for due in all_due.values():
        if topic in due.early or not matches(due.subscription.topic_filter, topic):
            continue
        message = due.walk.ahead(topic)
        if message is None and due.asked is not None and due.asked.topic == topic:
            message = due.asked
        if message is None or not due.takes(message):
            continue
        due.early.add(topic)
        subscription = due.subscription
        is_own = message.publisher == session.client_id
        if not message.is_expired(now) and not (is_own and subscription.no_local):
            _give(due, message, now)
            if session.client is not None:
                session.outgoing.want_pump()


def _is_due(due: RetainedDue) -> bool:
    """Say whether it was neither replaced nor unsubscribed from, and the session has not ended."""
    subscription = due.subscription
    return due.session.retained_due.get(subscription.topic_filter) is due


def _has_room(session: Session) -> bool:
    """Say whether the client can take one more, or a few may wait for it."""
    client = session.client
    outbox = session.outbox
    limit = min(SLICE_MESSAGES, max(1, session.core.limits.queued_messages // 2))
    return (
        client is not None
        and client.outgoing.out_bytes < UNSENT_BYTES
        and outbox.n_messages < limit
        and outbox.n_bytes <= session.core.limits.queued_bytes // 2
    )


def _direct_sender(session: Session) -> Sender | None:
    """Return what sends a message that need not wait behind another one; None where it must."""
    sender = session.sender
    if (
        sender is None
        or sender.outgoing.is_paused
        or sender.holds_connack
        or session.outbox.n_messages
        or session.outbox.order is not None
        or session.resend
    ):
        return None
    return sender


def _give(due: RetainedDue, message: Message, now: float) -> None:
    """Send a retained message, or let it wait behind what waits already.

    The caller sees to the next pump. Were it asked for here, a pump that gives a message for each
    that it takes would be followed by the next without others having their turn.
    """
    subscription = due.subscription
    session = due.session
    identifier = subscription.subscription_id
    delivery = Delivery(
        session.core.router.for_one(message),
        min(message.qos, subscription.qos),
        # [MQTT-3.3.1-8] of MQTT 3.1.1; Retain As Published is for live messages. Other forms of a
        # retained message are not retained themselves.
        retain=message.retain,
        subscription_ids=(identifier,) if identifier else (),
    )
    ledger = session.ledger
    ledger.matched += 1
    sender = _direct_sender(session)
    if session.sender is None and not delivery.qos:
        ledger.drop("offline")
    elif sender is not None and not message.is_large and (not delivery.qos or sender.has_quota()):
        sender.send_delivery(delivery, now)
    elif session.outbox.add(delivery):
        session.is_direct = False
