"""Makes the reports of `penstock.broker.client_report` from sessions, on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.broker.client_report import (
    ClientReport,
    DecisionFigures,
    LedgerFigures,
    LinkFigures,
    SubscriptionFigures,
    TcpFigures,
    WithholdingFigures,
)

if TYPE_CHECKING:
    from penstock.broker.counters import Metric
    from penstock.broker.link import TcpLook
    from penstock.broker.sessions.core import Core
    from penstock.broker.sessions.session import Session


class Reports:
    """The `ClientReports` that a broker's plugins get."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without clients; `attach` adds the core.

        Args:
            clock: returns monotonic seconds, as the core's `now`.
        """
        self._clock = clock
        self._core: Core | None = None

    def attach(self, core: Core) -> None:
        """Report on this core's clients from now on."""
        self._core = core

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every session, in any order."""
        return [] if self._core is None else self._core.sessions.client_ids()

    def report(self, client_id: str) -> ClientReport | None:
        """Return a client's report; None where it has no session."""
        session = None if self._core is None else self._core.sessions.get(client_id)
        return None if session is None else report(session, self._clock())

    def withholding(self) -> Sequence[Metric]:
        """Return what became of all clients' large messages."""
        return () if self._core is None else self._core.outbox_rules.record.metrics()


def report(session: Session, now: float) -> ClientReport:
    """Return a client's report.

    Args:
        session: of the client.
        now: monotonic seconds.
    """
    return ClientReport(
        client_id=session.client_id,
        is_connected=session.is_connected,
        username=session.username,
        listener=session.listener,
        subscriptions=subscription_figures(session),
        link=link_figures(session, now),
        withholding=withholding_figures(session, now),
        ledger=ledger_figures(session),
    )


def subscription_figures(session: Session) -> SubscriptionFigures:
    """Return how many subscriptions a client has, and of which size class."""
    sizes = [subscription.sizes for subscription in session.subscriptions.values()]
    return SubscriptionFigures(len(sizes), sizes.count("small"), sizes.count("large"))


def link_figures(session: Session, now: float) -> LinkFigures:
    """Return what is known of the path to a client.

    Figures of the last connection are left out while the client is away: samplers do not reset
    them.
    """
    link, is_connected = session.link, session.is_connected
    return LinkFigures(
        rtt_latest=_rounded(link.rtt_latest) if is_connected else None,
        rtt_source=link.rtt_source,
        rtt_bytes=link.rtt_bytes,
        rtt_age_seconds=_age(link.rtt_updated_at, now),
        rtt_min=_rounded(link.rtt_min),
        srtt=_rounded(link.srtt),
        rttvar=_rounded(link.rttvar),
        threshold_l=_rounded(_threshold_l(session)),
        unsent_bytes=link.unsent_bytes if is_connected else 0,
        outstanding_age_seconds=_age(link.outstanding_since, now) if is_connected else None,
        outstanding_bytes=link.outstanding_bytes if is_connected else 0,
        tcp=_tcp_figures(link.tcp, now) if is_connected and link.tcp is not None else None,
    )


def withholding_figures(session: Session, now: float) -> WithholdingFigures:
    """Return what the gate does to a client's large messages."""
    outbox, ledger = session.outbox, session.ledger
    breaking = session.core.breaking
    is_asked = session.is_connected and outbox.is_withholding
    again = outbox.look_again_at if is_asked else None
    return WithholdingFigures(
        withheld=outbox.n_withheld,
        withheld_total=ledger.withheld_total,
        released_total=ledger.released_total,
        broken_off_total=0 if breaking is None else breaking.n_broken_off(session),
        look_again_in_seconds=None if again is None else _rounded(max(0.0, again - now)),
        last_decision=_decision_figures(session, now),
    )


def ledger_figures(session: Session) -> LedgerFigures:
    """Return where a client's messages are."""
    outbox, ledger = session.outbox, session.settle_direct()
    withheld = outbox.n_withheld
    says_why = session.is_connected or not outbox.n_messages
    return LedgerFigures(
        matched=ledger.matched,
        delivered=ledger.delivered,
        inflight=len(session.inflight),
        withheld=withheld,
        queued=outbox.n_messages - withheld,
        expired=ledger.expired,
        moved=ledger.moved,
        dropped=dict(ledger.dropped),
        queued_bytes=outbox.n_bytes,
        waits_for=outbox.why_nothing() if says_why else "not connected",
    )


def _decision_figures(session: Session, now: float) -> DecisionFigures | None:
    outbox = session.outbox
    decision = outbox.last_decision
    if decision is None:
        return None
    verdict, topic, payload_bytes, sojourn, at = decision
    age = max(0.0, now - at)
    is_held = not verdict.deliver and outbox.is_withholding
    return DecisionFigures(
        outcome="sent" if verdict.deliver else "held" if is_held else "gone",
        reason=verdict.reason,
        topic=topic,
        payload_bytes=payload_bytes,
        withheld_seconds=round(sojourn + age if is_held and session.is_connected else sojourn, 6),
        age_seconds=round(age, 6),
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


def _threshold_l(session: Session) -> float | None:
    """Return the threshold that the gate compares the client's RTT with; None if the gate fails."""
    core = session.core
    return core.guard.call(core.gate, core.gate.threshold_l, session.link, otherwise=None)


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else round(max(0.0, now - since), 6)


def _rounded(seconds: float | None) -> float | None:
    """Return a figure to the microsecond, or to the millionth part."""
    return None if seconds is None else round(seconds, 6)
