"""Results for tests of what is made of them: runs would take long."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.kernels.lease_setting import LeaseFigures, LeaseSetting, analytic
from penstock.models.kernels.lease_simulation import LeaseOutcome
from penstock.models.papers.visibility.sweep import (
    IN_ORDER,
    RELIABILITIES,
    THREADS,
    VisibilityResults,
    equal,
    settings,
)


def small_results(*, extra: float = 0.1) -> VisibilityResults:
    """Return results of two replications, in which order costs a time.

    Args:
        extra: seconds that a message takes longer in order.
    """
    by_setting = {each: _outcomes(each, extra) for each in settings()}
    leased = {
        each: by_setting[each]
        for q in RELIABILITIES
        for each in (equal(IN_ORDER, threads, q) for threads in THREADS)
    }
    return VisibilityResults(by_setting, leased)


def _outcomes(setting: LeaseSetting, extra: float) -> list[LeaseOutcome]:
    figures: LeaseFigures = analytic(replace(setting, order="any"))
    if setting.order == IN_ORDER:
        figures = replace(
            figures,
            delivery=figures.delivery + extra,
            waiting=figures.waiting + extra * setting.arrival_rate,
        )
    return [LeaseOutcome(figures, 100, 110, 3)] * 2
