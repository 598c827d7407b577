"""Messages of shared subscriptions that change hands (MQTT 5.0, 4.8.2).

Theory of operation. A work queue must not stall because a worker is disconnected or stuck.
An unsent message stays with its first member only while no other member has room: an idle
member takes a few messages at a time from the members that hold some, which are noted in
`SharedSubscription.holders`. Nothing is copied in bulk, however long the backlog is.

* Unsent, any QoS: another member may take it at any time. A QoS 0 message is handed on when the
  connection ends, because no QoS 0 message is kept for a disconnected client.
* QoS 1, sent and unacknowledged: another member may take it once the connection is lost (4.8.2
  allows it). The job does not wait until its first worker reconnects. It may be done twice, as
  QoS 1 allows. A client that reconnects at once keeps it.
* QoS 2, sent: completed with the same client, and never given to another [MQTT-4.8.2-4],
  [MQTT-4.8.2-5].
* Refused with a reason code: given to no other member [MQTT-4.8.2-6].

When a session ends, every message that may change hands does; disconnected members get it if no
member is connected. The ledger books a message as ``moved`` from the first member, and as matched
for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.outbox.delivery import Delivery

if TYPE_CHECKING:
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.journal import Journal
    from penstock.broker.sessions.session import Session

TAKE_MESSAGES: Final = 16
"""Messages that an idle member takes over before the next member's turn: as many small messages as
fill a packet, so that members that become idle together share the backlog."""


FEW_MESSAGES: Final = 64
"""Messages of the longest outbox that is searched often: a search of so many takes some 20 us. A
long backlog would be searched at each acknowledgement of another member."""


ASKED_AGAIN: Final = 4
"""Holders that a member searches again at a time though they had no message that it could send. It
may search at each acknowledgement, there may be a thousand holders, and the gate takes some 10 us
for each."""


SLICE_MESSAGES: Final = 1000
"""Messages that a session hands on in one turn when it leaves a share: some 20 ms."""


def may_take_over(session: Session) -> bool:
    """Say whether other members of the session's shares may hold something for it."""
    return any(share.holders for share in session.shares)


def take_over(session: Session, now: float) -> bool:
    """Take messages from another member, where this member is idle and can send them.

    Returns:
        True where the session has got a message.
    """
    sender = session.sender
    if sender is None or session.outbox.n_messages or not sender.has_quota():
        return False
    n_free = min(TAKE_MESSAGES, sender.send_quota - len(session.inflight))
    n_asked_again = 0
    for share in session.shares:
        own_class = session.listener, share.sizes.get(session)
        for subscriber, refusal in list(share.holders.items()):
            holder = cast("Session", subscriber)
            was_refused = refusal is True
            if holder is session or (was_refused and n_asked_again == ASKED_AGAIN):
                continue
            if isinstance(refusal, dict) and own_class in refusal:
                continue
            n_asked_again += was_refused
            deliveries, has_refused = _take_from(holder, share, n_free, session, now)
            if not deliveries:
                del share.holders[holder]
                if has_refused and holder.outbox.n_messages <= FEW_MESSAGES:
                    share.holders[holder] = True  # behind the others, until a path is good
                elif share.sizes and _holds_any(holder, share):
                    known = refusal if isinstance(refusal, dict) else {}
                    share.holders[holder] = known | {own_class: session}
            elif _move(holder, deliveries, now, taker=session):
                return True
    return False


def _take_from(
    holder: Session, share: SharedSubscription, n_messages: int, taker: Session, now: float
) -> tuple[list[Delivery], bool]:
    """Take messages of a share out of a session: inflight ones only where it is disconnected.

    A message that the taker cannot send either stays; otherwise two members would take it from
    each other endlessly. At most one large message is taken, because large messages leave one at a
    time, with a fresh decision after each: the wait of the others, and its bound, would start anew.

    Returns:
        (the deliveries taken, whether a large message may not leave with the taker at this time).
    """
    name = share.topic_filter

    def is_for_taker(delivery: Delivery) -> bool:
        return delivery.share == name and (not share.sizes or share.takes(taker, delivery.message))

    if holder.client is None:
        taken = _take_inflight(holder, is_for_taker, n_messages)
        taken += holder.outbox.take_where(is_for_taker, n_messages - len(taken))
        return taken, False
    if _is_asked(holder.core):
        return [], False  # the holder is known to be authorized to receive, the taker is not
    is_open, has_refused = True, False

    def can_leave(delivery: Delivery) -> bool:
        nonlocal is_open, has_refused
        if not is_for_taker(delivery):
            return False
        message = delivery.message
        if not message.is_large or not taker.outbox.is_large(message):
            return True
        is_let = is_open and taker.outbox.releases(message, now)
        has_refused |= is_open and not is_let
        is_open = False
        return is_let

    return holder.outbox.take_where(can_leave, n_messages), has_refused


def _holds_any(holder: Session, share: SharedSubscription) -> bool:
    """Say whether a session holds a message of a share that may change hands."""
    name = share.topic_filter
    if any(delivery.share == name for delivery in holder.outbox.waiting()):
        return True
    return holder.client is None and any(
        delivery.qos == 1 and delivery.share == name for delivery in holder.inflight
    )


def _take_inflight(
    holder: Session, is_wanted: Callable[[Delivery], bool], n_messages: int
) -> list[Delivery]:
    inflight = holder.inflight
    taken = [d for d in inflight if d.qos == 1 and is_wanted(d)][:n_messages]
    for delivery in taken:
        inflight.take_back(delivery)
    return taken


def member_came(session: Session) -> None:
    """Note that a member has subscribed or connected: it may take from disconnected members."""
    for share in session.shares:
        for member in share.members:
            other = member.session
            if other.client is None and (other.outbox.n_messages or len(other.inflight)):
                share.holders[other] = False
    if session.client is not None:
        session.outgoing.want_pump()


def connection_lost(session: Session, now: float) -> None:
    """Offer the messages of a member whose connection has ended to the other members."""
    lively = {s.topic_filter: s for s in session.shares if s.has_connected_member()}
    if not lively:
        return
    waiting = session.outbox.take_where(lambda d: not d.qos and d.share in lively)
    _move(session, waiting, now)
    if session.outbox.n_messages or len(session.inflight):
        for share in lively.values():
            share.holders[session] = False
            _wake(share)


def unsubscribed(session: Session, topic_filter: str, now: float) -> None:
    """Give the unsent messages of a session that has left a share to the other members.

    Inflight messages are completed with the session [MQTT-3.10.4-3], and so are the others where
    no other member is connected. A long backlog moves slice by slice, with turns of other clients
    between; a message of a later slice may be sent to the session's client meanwhile.
    """
    share = session.core.tree.shares.get(topic_filter)
    if share is None or not share.has_connected_member() or share.member_of(session) is not None:
        return
    taken = session.outbox.take_where(
        lambda d: d.share == topic_filter and share.has_taker(d.message), SLICE_MESSAGES
    )
    _move(session, taken, now)
    if len(taken) == SLICE_MESSAGES:
        session.core.timers.at(now, lambda at: unsubscribed(session, topic_filter, at))


def refused(session: Session, is_refused: Callable[[Delivery], bool], now: float) -> None:
    """Take from a session what it may no longer receive; messages of a share go to other members.

    The session has no connection. A QoS 2 message that the client has received is completed with
    it.
    """
    inflight = session.inflight
    sent = [d for d in inflight if is_refused(d) and not inflight.is_released(d.packet_id)]
    for delivery in sent:
        inflight.take_back(delivery)
    shares = session.core.tree.shares
    taken = [d for d in sent if d.qos == 1] + session.outbox.take_where(is_refused)
    moved = [d for d in taken if d.share in shares]
    n_left = sum(d.qos != 1 for d in sent) + len(taken) - len(moved)
    session.ledger.drop("not_authorized", n_left)
    _move(session, moved, now)


def session_ended(session: Session, now: float) -> None:
    """Hand on what a session holds of shares, before it ends; it has left them already."""
    shares = session.core.tree.shares
    if not shares:
        return

    def is_for_others(delivery: Delivery) -> bool:
        share = shares.get(delivery.share)
        return share is not None and share.has_taker(delivery.message)

    deliveries = _take_inflight(session, is_for_others, len(session.inflight))
    deliveries += session.outbox.take_where(is_for_others)
    _move(session, deliveries, now)


def restored(core: Core, journal: Journal, deliveries: Sequence[Delivery], now: float) -> None:
    """Give deliveries that belong to no session after a restart to members of their shares.

    All sessions are restored, with their subscriptions. The deliveries have their rows; they have
    no share where the payload is lost.
    """
    moved: list[Delivery] = []
    for delivery in deliveries:
        if delivery.share in core.tree.shares:
            moved.append(delivery)
        else:
            core.ended.matched += 1
            core.ended.drop("session_ended" if delivery.share else "payload_lost")
            journal.arrived(delivery)
    core.run(_move_asked(core, moved, now))


def _wake(share: SharedSubscription) -> None:
    for member in share.members:
        if member.session.client is not None:
            member.session.outgoing.want_pump()


def _is_asked(core: Core) -> bool:
    """Say whether access control decides who may receive a message."""
    return core.access is not None and core.access.checks_receive


def _move(
    giver: Session, deliveries: Sequence[Delivery], now: float, taker: Session | None = None
) -> bool:
    """Give messages that were taken out of a session to other members of their shares.

    The giver's ledger books them as moved or expired. Without a taker, the share chooses the
    member.

    Returns:
        True where the taker has got some.
    """
    core = giver.core
    moved: list[Delivery] = []
    for delivery in deliveries:
        if delivery.message.is_expired(now):
            giver.ledger.expired += 1
        else:
            giver.ledger.moved += 1
            moved.append(delivery)
    if not moved:
        return False
    if _is_asked(core):
        n_before = taker.ledger.matched if taker is not None else 0
        core.run(_move_asked(core, moved, now))
        return taker is not None and taker.ledger.matched > n_before
    for delivery in moved:
        share = core.tree.shares[delivery.share]
        message = delivery.message
        member = share.member_of(taker) if taker is not None else share.choose(message, now)
        if member is not None:
            core.router.deliver_shared(message, share, member, now)
        else:
            _drop_refused(core)
    core.turn.congested.clear()  # there is no publisher to slow down
    return True


async def _move_asked(core: Core, moved: Sequence[Delivery], now: float) -> None:
    """Do the last part of `_move` where access control decides about each member."""
    journal = core.journal
    if journal is not None:
        for delivery in moved:
            journal.departed(delivery)
    for delivery in moved:
        message = delivery.message
        share = core.tree.shares.get(delivery.share)
        member = None
        if share is not None:
            member = await core.router.choose_allowed(share, message, now)
        if share is not None and member is not None:
            core.router.deliver_shared(message, share, member, now)
            core.turn.congested.clear()  # there is no publisher to slow down
        else:
            _drop_refused(core)
        if journal is not None:
            journal.arrived(delivery)


def _drop_refused(core: Core) -> None:
    """Book a message of a share that has left a member and that no other member takes."""
    core.ended.matched += 1
    core.ended.drop("share_refused")
