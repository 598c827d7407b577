"""Results for tests of what is made of them: runs would take long."""

from __future__ import annotations

from penstock.models.papers.fabric.setting import FabricSetting
from penstock.models.papers.fabric.simulation import FabricOutcome
from penstock.models.papers.fabric.sweep import FabricResults, settings


def small_results(*, n_failed: int = 0, second_keeps: float = 1.0) -> FabricResults:
    """Return results of two runs in which nothing happens.

    Args:
        n_failed: errors in the second of the first failure.
        second_keeps: share of the rate that is stored from the second failure on.
    """
    return FabricResults(
        {each: [_outcome(each, n_failed, second_keeps)] * 2 for each in settings()}
    )


def _outcome(setting: FabricSetting, n_failed: int, second_keeps: float) -> FabricOutcome:
    rate = int(setting.rate)
    stored = [rate] * 20 + [int(second_keeps * rate)] * 20
    failed = [0] * 10 + [n_failed] + [0] * 29
    served = {node: [rate // 5] * 40 for node in "ABCDE"}
    return FabricOutcome(stored, failed, [0] * 40, served, median_seconds=0.01, slowest_seconds=0.1)
