"""Single clients, as operators see them: a row of a list, a report, subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.operations_contract import ClientRow
from penstock.broker.reports.client_reports import (
    report,
    subject_of,
    subject_of_last,
    threshold_l_in,
)

if TYPE_CHECKING:
    from penstock.broker.client_report import ClientReport
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
"""The names of protocol versions, by the level that a CONNECT has."""


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
    """Return a session's row.

    Args:
        session: of the client.
        now: monotonic seconds.
    """
    client = session.client
    withheld = queued = queued_bytes = inflight = delivered = dropped = 0
    rtt = None
    if not session.is_unused:  # asking it would make it a used one
        outbox, ledger = session.outbox, session.settle_direct()
        withheld = outbox.n_withheld
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
        queued=queued,
        queued_bytes=queued_bytes,
        inflight=inflight,
        delivered=delivered,
        dropped=dropped,
    )
