"""Messages of shared subscriptions that change hands (MQTT 5.0, 4.8.2).

Theory of operation. A work queue must not stall for a worker that went away or is stuck. So
what was not sent stays only as long with the member that it was first given to as nobody else
has room: a member that has nothing to do takes a few messages at a time from those that hold
some, who are noted in `SharedSubscription.holders`. Nothing is copied in bulk, whatever has
piled up.

* Not sent, any QoS: another member may take it at any time. At QoS 0 it is handed on at once
  when the connection ends, as nothing is kept for a client that is away.
* QoS 1, sent and unacknowledged: another member may take it as soon as the connection is lost
  (4.8.2 allows it). A job is then not late by the time that its first worker is away, and may
  be done twice, as QoS 1 may; a client that connects anew at once keeps it.
* QoS 2, sent: completed with the same client, and never given to another [MQTT-4.8.2-4],
  [MQTT-4.8.2-5].
* Refused by a reason code: given to nobody [MQTT-4.8.2-6].

When a session ends, all that may change hands does, to members that are away too if there are
no others. In the ledger a message leaves the first member as ``moved`` and is matched anew for
the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.outbox.delivery import Delivery

if TYPE_CHECKING:
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.sessions.core import Core
    from penstock.broker.sessions.journal import Journal
    from penstock.broker.sessions.session import Session

TAKE_MESSAGES: Final = 16
"""What an idle member takes over before others have their turn: a packet's worth of small
messages, so that members that become idle together share what has piled up."""


FEW_MESSAGES: Final = 64
"""What a member may hold to be asked often: to look at so many takes some 20 us. One with a long
backlog would be looked through for each acknowledgement of another."""


ASKED_AGAIN: Final = 4
"""Holders that had nothing which could leave with a member: it asks so many of them each time, with
each acknowledgement maybe. There may be a thousand, and the gate takes some 10 us for each."""


SLICE_MESSAGES: Final = 1000
"""What a session that leaves a share hands on before others have their turn: some 20 ms."""


def may_take_over(session: Session) -> bool:
    """Say whether other members of the session's shares may hold something for it."""
    return any(share.holders for share in session.shares)


def take_over(session: Session, now: float) -> bool:
    """Take from another member what this one, which has nothing to do, can send.

    Args:
        session: connected and a member of a share.
        now: monotonic seconds.

    Returns:
        True where the session has got something.
    """
    connection = session.connection
    if connection is None or session.outbox.n_messages or not connection.has_quota():
        return False
    n_free = min(TAKE_MESSAGES, connection.send_quota - len(session.inflight))
    n_asked_again = 0
    for share in session.shares:
        for subscriber, was_refused in list(share.holders.items()):
            holder = cast("Session", subscriber)
            if holder is session or (was_refused and n_asked_again == ASKED_AGAIN):
                continue
            n_asked_again += was_refused
            deliveries, has_refused = _take_from(holder, share, n_free, session, now)
            if not deliveries:
                del share.holders[holder]
                if has_refused and holder.outbox.n_messages <= FEW_MESSAGES:
                    share.holders[holder] = True  # behind the others, until a path is good
            elif _move(holder, deliveries, now, taker=session):
                return True
    return False


def _take_from(
    holder: Session, share: SharedSubscription, n_messages: int, taker: Session, now: float
) -> tuple[list[Delivery], bool]:
    """Take messages of a share out of a session: inflight ones only where it is away.

    What could not leave with the taker either stays: two members would take it from each other
    for ever. Of large messages one goes, as they leave one at a time, with a fresh decision after
    each: the others would wait anew, and the bound of their wait with them.

    Returns:
        (what was taken, whether there is something large that the taker may not have now).
    """
    name = share.topic_filter
    if holder.connection is None:
        taken = _take_inflight(holder, {name}, n_messages)
        taken += holder.outbox.take_where(lambda d: d.share == name, n_messages - len(taken))
        return taken, False
    if _is_asked(holder.core):
        return [], False  # with whom it is, it may be received: this is known of nobody else yet
    is_open, has_refused = True, False

    def can_leave(delivery: Delivery) -> bool:
        nonlocal is_open, has_refused
        if delivery.share != name:
            return False
        message = delivery.message
        if not message.is_large or not taker.outbox.is_large(message):
            return True
        is_let = is_open and taker.outbox.releases(message, now)
        has_refused |= is_open and not is_let
        is_open = False
        return is_let

    return holder.outbox.take_where(can_leave, n_messages), has_refused


def _take_inflight(
    holder: Session, names: dict[str, SharedSubscription] | set[str], n_messages: int
) -> list[Delivery]:
    inflight = holder.inflight
    taken = [d for d in inflight if d.qos == 1 and d.share in names][:n_messages]
    for delivery in taken:
        inflight.take_back(delivery)
    return taken


def member_came(session: Session) -> None:
    """A member is there anew: it may take what others hold that are away."""
    for share in session.shares:
        for member in share.members:
            other = member.session
            if other.connection is None and (other.outbox.n_messages or len(other.inflight)):
                share.holders[other] = False
    if session.connection is not None:
        session.connection.want_pump()


def connection_lost(session: Session, now: float) -> None:
    """A member's connection has ended: let others have what it cannot send."""
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
    """A session has left a share: what it has not begun to send is for the others.

    What it was sent is completed with it [MQTT-3.10.4-3], and so is the rest where no other
    member is there to take it. Very many go slice by slice, with turns for others between; what is
    not among them yet may go to the client meanwhile.
    """
    share = session.core.tree.shares.get(topic_filter)
    if share is None or not share.has_connected_member() or share.member_of(session) is not None:
        return
    taken = session.outbox.take_where(lambda d: d.share == topic_filter, SLICE_MESSAGES)
    _move(session, taken, now)
    if len(taken) == SLICE_MESSAGES:
        session.core.timers.at(now, lambda at: unsubscribed(session, topic_filter, at))


def refused(session: Session, is_refused: Callable[[Delivery], bool], now: float) -> None:
    """Take from a session what it may not receive any more; of a share, others may.

    What it has received already is completed with it.

    Args:
        session: without a connection.
        is_refused: says of a delivery whether it goes.
        now: monotonic seconds.
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
    """A session, a member of no share any more, is about to drop all it holds: hand it on."""
    shares = session.core.tree.shares
    if not shares:
        return
    deliveries = _take_inflight(session, shares, len(session.inflight))
    deliveries += session.outbox.take_where(lambda d: d.share in shares)
    _move(session, deliveries, now)


def restored(core: Core, journal: Journal, deliveries: Sequence[Delivery], now: float) -> None:
    """Give what a restart found in nobody's hands to members of its shares.

    Args:
        core: its sessions and their subscriptions are there.
        journal: of the core.
        deliveries: read from the database, with their rows; without a share where the payload
            is lost.
        now: monotonic seconds.
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
        connection = member.session.connection
        if connection is not None:
            connection.want_pump()


def _is_asked(core: Core) -> bool:
    """Say whether access control is asked who may receive what."""
    return core.access is not None and core.access.checks_receive


def _move(
    giver: Session, deliveries: Sequence[Delivery], now: float, taker: Session | None = None
) -> bool:
    """Give messages that were taken out of a session to other members of their shares.

    Args:
        giver: booked as having given them away.
        deliveries: of shares that have members.
        now: monotonic seconds.
        taker: who gets them; None for whose turn it is.

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
    core.turn.congested.clear()  # there is no publisher to slow down
    return True


async def _move_asked(core: Core, moved: Sequence[Delivery], now: float) -> None:
    """As the end of `_move`, where access control is asked about each member."""
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
            core.ended.matched += 1
            core.ended.drop("share_refused")
        if journal is not None:
            journal.arrived(delivery)
