"""Restores sessions from rows; after a restart, with retained messages and wills."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.properties import WILL, read_properties
from penstock.broker.outbox.delivery import Delivery, Repeat
from penstock.broker.routing.topic_tree import Subscription
from penstock.broker.session_rows import DeliveryRow, MessageRow, Stored, WillRow
from penstock.broker.sessions import redelivery, retained_delivery

if TYPE_CHECKING:
    from penstock.broker.durable.journal import Journal
    from penstock.broker.durable.session_journal import SessionJournal
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session


def restore(
    core: Core, journal: Journal, stored: Stored, *, epoch: float, now: float, away: float = 0.0
) -> None:
    """Bring a broker without clients into the state of its last commit.

    Time went on for messages while the broker was down. It did not for sessions and delayed wills,
    as no client could come back. A client that was connected when the broker ended counts as
    disconnected from now on, as the database holds no later time. It may have been sent what waited
    in the last commit, which its row says from then on. What was acknowledged is restored whatever
    the limits are, and counts towards them: nothing more is accepted until there is room. The size
    class of each message is decided again.

    Args:
        core: the broker, whose plugins have started and which has no clients.
        journal: the journal of the core.
        stored: read from the database.
        epoch: seconds of the database's clock at which the monotonic clock was 0.
        now: monotonic seconds.
        away: seconds of the database's clock for which no broker ran.

    Raises:
        PeerError: stored properties cannot be decoded.
        KeyError: a row refers to one that does not exist.
    """
    restored = restore_sessions(core, journal, stored, epoch=epoch, now=now, away=away)
    messages, lost, absent = restored.messages, restored.lost, restored.absent
    redelivery.restored(core, journal, restored.of_shares, now)
    for retained in stored.retained:
        message = messages[retained.message]
        journal.restored_retained(message)
        if retained.message in lost or not core.retained.set(message, is_restored=True):
            journal.retained_changed(message.topic)
    for session, subscription in restored.due:
        retained_delivery.restore(session, subscription)
    for will in stored.wills:
        session = _restore_will(core, journal, will)
        absent.setdefault(session, now)
    for session, since in absent.items():
        if session.journal is not None and session.journal.lost_at is None:
            session.journal.connection_lost(since)
        core.sessions.count_absence(session, since, now)


class Restored(NamedTuple):
    """What a restore of sessions leaves to be done.

    Attributes:
        messages: of all rows.
        lost: rows of messages whose payload is lost.
        absent: each session, and the monotonic seconds when it lost its connection.
        of_shares: deliveries that no session has.
        due: subscriptions that retained messages are due for.
    """

    messages: dict[int, Message]
    lost: set[int]
    absent: dict[Session, float]
    of_shares: list[Delivery]
    due: list[tuple[Session, Subscription]]


def restore_sessions(
    core: Core, journal: Journal, stored: Stored, *, epoch: float, now: float, away: float = 0.0
) -> Restored:
    """Restore sessions and what they have; arguments are as of `restore`."""
    sessions: dict[int, Session] = {}
    absent: dict[Session, float] = {}
    owns: dict[int, SessionJournal] = {}
    due: list[tuple[Session, Subscription]] = []
    newest = stored.deliveries[-1].row if stored.deliveries else 0
    for known in stored.sessions:
        session = sessions[known.row] = core.sessions.create(known.client_id)
        session.username = session.link.username = known.username
        session.listener = session.link.listener = known.listener
        core.sessions.quota.count(session, known.username, "")
        session.version = known.version
        session.expiry_interval = known.expiry_interval
        session.origin = known.origin
        lost_at = None if known.lost_at is None else min(now, known.lost_at - epoch + away)
        absent[session] = now if lost_at is None else lost_at
        sent_up_to = newest if lost_at is None else known.sent_up_to
        owns[known.row] = journal.restored(session, known.row, lost_at, sent_up_to)
    for granted in stored.subscriptions:
        session = sessions[granted.session]
        session.subscriptions[granted.topic_filter] = subscription = Subscription(
            session,
            granted.topic_filter,
            granted.qos,
            no_local=bool(granted.no_local),
            retain_as_published=bool(granted.retain_as_published),
            subscription_id=granted.subscription_id,
            sizes=granted.sizes,
        )
        if core.consuming is not None and core.consuming.source_of(granted.topic_filter):
            core.consuming.add(session, subscription)
        elif core.kept is not None and core.kept.routes(session, granted.topic_filter):
            core.kept.add(subscription)
        else:
            core.tree.add(subscription)
        if granted.is_retained_due and granted.qos:  # at QoS 0 the lost connection took them along
            due.append((session, subscription))
    for incoming in stored.incoming:
        sessions[incoming.session].incoming[incoming.packet_id] = ()
    messages = messages_of(core, journal, stored.messages, epoch)
    lost = {message.row for message in stored.messages if message.payload is None}
    of_shares: list[Delivery] = []
    for row in stored.deliveries:
        is_lost = row.message in lost
        if not row.session:
            delivery = Delivery(messages[row.message], row.qos, share="" if is_lost else row.share)
            journal.restored_delivery(delivery, row.row)
            of_shares.append(delivery)
            continue
        # QoS 2 leaves only after the commit of its packet identifier.
        is_repeat = row.qos == 1 and row.row <= owns[row.session].sent_up_to
        delivery = _delivery(messages[row.message], row, Repeat if is_repeat else Delivery)
        _deliver(journal, sessions[row.session], delivery, row, is_lost=is_lost)
    for own in owns.values():
        own.watch()
    return Restored(messages, lost, absent, of_shares, due)


def messages_of(
    core: Core, journal: Journal, rows: list[MessageRow], epoch: float
) -> dict[int, Message]:
    """Return the messages of rows, which the journal has noted; arguments are as of `restore`."""
    messages: dict[int, Message] = {}
    thresholds: dict[str, int] = {}
    arrivals: dict[float, float] = {}  # messages share these numbers: see `Core.arrived_at`
    for row in rows:
        payload = b"" if row.payload is None else row.payload
        threshold_s = thresholds.get(row.topic)
        if threshold_s is None:
            asked = core.threshold_s(row.topic)
            threshold_s = thresholds[row.topic] = sys.maxsize if asked is None else asked
        properties = None
        if row.properties is not None:
            properties, _ = read_properties(row.properties, 0, PacketType.PUBLISH)
        message = messages[row.row] = Message(
            row.topic,
            payload,
            qos=row.qos,
            retain=bool(row.retain),
            arrived_at=arrivals.setdefault(row.arrived_at, row.arrived_at - epoch),
            is_large=len(payload) > threshold_s,
            expires_at=None if row.expires_at is None else row.expires_at - epoch,
            properties=properties,
            publisher=row.publisher,
        )
        journal.restored_message(message, row.row)
    return messages


def _delivery(message: Message, row: DeliveryRow, kind: type[Delivery]) -> Delivery:
    ids = row.subscription_ids
    return kind(
        message,
        row.qos,
        retain=bool(row.retain),
        subscription_ids=tuple(map(int, ids.split(","))) if ids else (),
        share=row.share,
    )


def _deliver(
    journal: Journal, session: Session, delivery: Delivery, row: DeliveryRow, *, is_lost: bool
) -> None:
    """Put a delivery where it was: inflight, or waiting behind earlier ones.

    Where `is_lost`, the payload store could not read the payload when the message was stored.
    """
    journal.restored_delivery(delivery, row.row)
    session.ledger.matched += 1
    is_kept = not is_lost
    if is_lost:
        session.ledger.drop("payload_lost")
    elif row.packet_id:
        session.inflight.restore(delivery, row.packet_id, is_released=bool(row.is_released))
    else:
        is_kept = session.outbox.add(delivery, is_restored=True)
    if not is_kept and session.journal is not None:
        session.journal.changed(delivery)


def _restore_will(core: Core, journal: Journal, row: WillRow) -> Session:
    """Restore a will; return its session, one that ends at once where the client has none."""
    session = core.sessions.get(row.client_id)
    if session is None:
        session = core.sessions.create(row.client_id)
        session.username = session.link.username = row.username
        session.listener = session.link.listener = row.listener
        session.expiry_interval = 0.0
    properties, _ = read_properties(row.properties, 0, WILL)
    will = Will(row.topic, row.payload, row.qos, bool(row.retain), properties)
    core.sessions.set_will(session, will)
    journal.restored_will(row.client_id)
    return session
