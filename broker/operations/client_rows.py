"""Single clients, as operators see them: a row of a list, a report, subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.broker.mqtt.topics import parse_share
from penstock.broker.operations_contract import ClientRow, SubscriptionRow, TopicRow
from penstock.broker.reports.client_reports import (
    report,
    subject_of,
    subject_of_last,
    threshold_l_in,
)

if TYPE_CHECKING:
    from penstock.broker.client_report import ClientReport
    from penstock.broker.message import SizeClass
    from penstock.broker.outbox.outbox import Outbox
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
"""The names of protocol versions, by the level that a CONNECT has."""

SEEN_IN_A_SLICE: Final = 500
"""So many sessions and waiting messages are looked at in one slice, some 0.3 ms."""


def report_of(core: Core, client_id: str, now: float) -> ClientReport | None:
    """Return a client's report; None where it has no session and is not remembered."""
    session = core.sessions.get(client_id)
    if session is not None:
        return report(subject_of(session), now)
    last = core.last_clients.get(client_id)
    if last is None:
        return None
    return report(subject_of_last(last, threshold_l_in(core)), now)


def row_of(session: Session, now: float) -> ClientRow:
    """Return a session's row."""
    client = session.client
    withheld = withheld_total = queued = queued_bytes = inflight = delivered = dropped = 0
    rtt = None
    if not session.is_unused:  # asking it would make it a used one
        outbox, ledger = session.outbox, session.settle_direct()
        withheld, withheld_total = outbox.n_withheld, ledger.withheld_total
        queued, queued_bytes = outbox.n_messages - withheld, outbox.n_bytes
        inflight = len(session.inflight)
        delivered, dropped = ledger.delivered, sum(ledger.dropped.values())
        rtt = None if client is None else session.link.rtt_latest
    return ClientRow(
        client_id=session.client_id,
        username=session.username,
        address="" if client is None else client.remote_address,
        listener=session.listener,
        version=VERSIONS.get(session.version, ""),
        is_connected=client is not None,
        connected_seconds=None if client is None else max(0.0, now - client.connected_at),
        rtt=rtt,
        withheld=withheld,
        withheld_total=withheld_total,
        queued=queued,
        queued_bytes=queued_bytes,
        inflight=inflight,
        delivered=delivered,
        dropped=dropped,
    )


def subscription_rows(session: Session) -> Iterator[SubscriptionRow]:
    """Yield a session's subscriptions."""
    for subscription in session.subscriptions.values():
        share_name, topic_filter = parse_share(subscription.topic_filter)
        yield SubscriptionRow(
            session.client_id, topic_filter, subscription.qos, share_name, subscription.sizes
        )


async def waiting_topics(
    outboxes: Iterable[Outbox | None], clock: Callable[[], float]
) -> list[TopicRow]:
    """Return what waits in outboxes by topic and size class; other tasks run in between."""
    found: dict[tuple[str, SizeClass], list[float]] = {}
    n_seen = 0
    for outbox in outboxes:
        n_seen += 1
        for delivery in () if outbox is None else list(outbox.waiting()):
            n_seen += 1
            message = delivery.message
            size: SizeClass = "small" if delivery.after is None else "large"
            sums = found.setdefault((message.topic, size), [0, 0, message.arrived_at])
            sums[0] += 1
            sums[1] += message.payload_bytes
            sums[2] = min(sums[2], message.arrived_at)
            if not n_seen % SEEN_IN_A_SLICE:
                await asyncio.sleep(0)
        if not n_seen % SEEN_IN_A_SLICE:
            await asyncio.sleep(0)
    now = clock()
    return [
        TopicRow(topic, size, int(n), int(n_bytes), round(max(0.0, now - oldest_at), 3))
        for (topic, size), (n, n_bytes, oldest_at) in found.items()
    ]
