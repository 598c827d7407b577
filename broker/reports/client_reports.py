"""Makes the reports of `penstock.broker.client_report` from sessions, on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.broker.client_report import (
    ClientReport,
    DecisionFigures,
    LedgerFigures,
    LinkFigures,
    SubscriptionFigures,
    TcpFigures,
    WithholdingFigures,
    first_filters,
)

if TYPE_CHECKING:
    from penstock.broker.extensions import Decision
    from penstock.broker.link import Link, TcpLook
    from penstock.broker.message import SizeClass
    from penstock.broker.outbox.last_clients import LastClient
    from penstock.broker.outbox.message_counts import Ledger
    from penstock.broker.outbox.outbox import Outbox
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.large_ahead import LargeAhead
    from penstock.broker.sessions.session import Session

Outcome = Literal["sent", "held", "gone"]


class Subject(NamedTuple):
    """The parts of a client from which its report is made.

    Attributes:
        username: the username of its newest connection, or None.
        listener: the listener of its newest connection; "" before its first.
        n_inflight: messages that were sent and are not acknowledged.
        threshold_l: returns the threshold that the gate compares its RTT with; None where that is
            not known.
        sizes: topic filter to the size class of that subscription, None for both; None instead of
            the mapping where that is not known.
        left_at: monotonic seconds at which it went; None while it is there.
        n_apart: the number of messages that wait for its connection outside of its outbox, as in a
            proxy.
        apart_bytes: the payload bytes of these messages.
        why_away: see `ClientReport`.
        large_ahead: the waits of its small messages behind large ones; None where that is not
            known.
    """

    client_id: str
    is_connected: bool
    username: str | None
    listener: str
    link: Link
    outbox: Outbox
    ledger: Ledger
    n_inflight: int
    threshold_l: Callable[[Link], float | None]
    sizes: Mapping[str, SizeClass | None] | None = None
    left_at: float | None = None
    n_apart: int = 0
    apart_bytes: int = 0
    why_away: str = ""
    large_ahead: LargeAhead | None = None


def subject_of(session: Session) -> Subject:
    """Return what the report of a session's client is made of."""
    core = session.core
    why_away = core.why_away.get(session.client_id)
    return Subject(
        session.client_id,
        session.is_connected,
        session.username,
        session.listener,
        session.link,
        session.outbox,
        session.settle_direct(),
        len(session.inflight),
        threshold_l_in(core),
        {name: subscription.sizes for name, subscription in session.subscriptions.items()},
        why_away="" if why_away is None else why_away(),
        large_ahead=None if session.outbox.order is not None else session.large_ahead,
    )


def subject_of_last(client: LastClient, threshold_l: Callable[[Link], float | None]) -> Subject:
    """Return the same of a client that has gone."""
    return Subject(
        client.client_id,
        is_connected=False,
        username=client.username,
        listener=client.listener,
        link=client.link,
        outbox=client.outbox,
        ledger=client.ledger,
        n_inflight=0,
        threshold_l=threshold_l,
        left_at=client.left_at,
    )


def report(subject: Subject, now: float) -> ClientReport:
    """Return a client's report."""
    return ClientReport(
        client_id=subject.client_id,
        is_connected=subject.is_connected,
        gone_seconds=_age(subject.left_at, now),
        username=subject.username,
        listener=subject.listener,
        why_away=subject.why_away,
        subscriptions=subscription_figures(subject, now),
        link=link_figures(subject, now),
        withholding=withholding_figures(subject, now),
        ledger=ledger_figures(subject, now),
    )


def subscription_figures(subject: Subject, _now: float) -> SubscriptionFigures | None:
    """Return how many subscriptions a client has, and of which size class."""
    sizes = subject.sizes
    if sizes is None:
        return None
    classes = list(sizes.values())
    n_small, n_large = classes.count("small"), classes.count("large")
    return SubscriptionFigures(len(classes), n_small, n_large, first_filters(sizes))


def link_figures(subject: Subject, now: float) -> LinkFigures:
    """Return what is known of the path to a client.

    Figures of the last connection are left out while the client is away: samplers do not reset
    them.
    """
    link, is_connected = subject.link, subject.is_connected
    return LinkFigures(
        rtt_latest=_rounded(link.rtt_latest) if is_connected else None,
        rtt_source=link.rtt_source,
        rtt_bytes=link.rtt_bytes,
        rtt_age_seconds=_age(link.rtt_updated_at, now),
        rtt_min=_rounded(link.rtt_min),
        threshold_l=_rounded(subject.threshold_l(link)),
        unsent_bytes=link.unsent_bytes if is_connected else 0,
        outstanding_age_seconds=_age(link.outstanding_since, now) if is_connected else None,
        outstanding_bytes=link.outstanding_bytes if is_connected else 0,
        tcp=_tcp_figures(link.tcp, now) if is_connected and link.tcp is not None else None,
        is_connected=is_connected,
    )


def withholding_figures(subject: Subject, now: float) -> WithholdingFigures:
    """Return what the gate does to a client's large messages."""
    outbox, ledger = subject.outbox, subject.ledger
    decision = outbox.last_decision
    is_held = outbox.is_withholding
    again = outbox.look_again_at if subject.is_connected and is_held else None
    last = None
    if decision is not None:
        outcome: Outcome = "sent" if decision.verdict.deliver else "held" if is_held else "gone"
        last = _decision_figures(decision, outcome, now)
        if outcome == "held" and subject.is_connected:
            waited = round(decision.sojourn + last.age_seconds, 6)
            last = last._replace(withheld_seconds=waited)
    return WithholdingFigures(
        withheld=outbox.n_withheld,
        withheld_total=ledger.withheld_total,
        released_total=ledger.released_total,
        look_again_in_seconds=None if again is None else _rounded(max(0.0, again - now)),
        last_decision=last,
        recent=[
            _decision_figures(one, "sent" if one.verdict.deliver else "held", now)
            for one in outbox.recent
        ],
        small_waits=None if subject.large_ahead is None else subject.large_ahead.figures(now),
        passage=outbox.rules.passage(subject.link, now),
    )


def ledger_figures(subject: Subject, _now: float) -> LedgerFigures:
    """Return where a client's messages are."""
    outbox, ledger = subject.outbox, subject.ledger
    withheld = outbox.n_withheld
    if outbox.n_messages and not subject.is_connected:
        waits_for = "not connected"
    else:
        waits_for = "waiting for room" if subject.n_apart else outbox.why_nothing()
    return LedgerFigures(
        matched=ledger.matched,
        delivered=ledger.delivered,
        inflight=subject.n_inflight,
        withheld=withheld,
        queued=outbox.n_messages - withheld + subject.n_apart,
        expired=ledger.expired,
        moved=ledger.moved,
        dropped=dict(ledger.dropped),
        queued_bytes=outbox.n_bytes + subject.apart_bytes,
        waits_for=waits_for,
    )


def _decision_figures(decision: Decision, outcome: Outcome, now: float) -> DecisionFigures:
    verdict, topic, payload_bytes, sojourn, at = decision
    return DecisionFigures(
        outcome=outcome,
        reason=verdict.reason,
        cause=verdict.cause or "other",
        topic=topic,
        payload_bytes=payload_bytes,
        withheld_seconds=round(sojourn, 6),
        age_seconds=round(max(0.0, now - at), 6),
    )


def _tcp_figures(look: TcpLook, now: float) -> TcpFigures:
    return TcpFigures(
        age_seconds=round(max(0.0, now - look.looked_at), 6),
        rtt=_rounded(look.rtt),
        rttvar=_rounded(look.rttvar),
        delivery_rate_bytes_per_second=look.delivery_rate,
        is_app_limited=look.is_app_limited,
        unsent_bytes=look.unsent_bytes,
        unacked_segments=look.unacked_segments,
        retransmissions=look.retransmissions,
        retransmit_ratio=_rounded(look.retransmit_ratio),
        congestion_control=look.congestion_control or None,
    )


def threshold_l_in(core: Core) -> Callable[[Link], float | None]:
    """Return what says the gate's threshold for a link; None if the gate fails."""
    gate = core.gate
    return lambda link: core.guard.call(gate, gate.threshold_l, link, otherwise=None)


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else round(max(0.0, now - since), 6)


def _rounded(seconds: float | None) -> float | None:
    """Return a figure to the microsecond, or to the millionth part."""
    return None if seconds is None else round(seconds, 6)
