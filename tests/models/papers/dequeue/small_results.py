"""Results for tests of what is made of them: runs would take long."""

from __future__ import annotations

from penstock.models.kernels.dequeue_simulation import DequeueOutcome
from penstock.models.papers.dequeue.sweep import RUNS, SLEEP_TIMES, DequeueResults

PAPER = {
    "conventional": [(1000.0, 0.8, 4.0), (480.0, 0.6, 1.7)],
    "pms": [(800.0, 0.7, 4.2), (520.0, 0.5, 2.6)],
    "pms, one controller": [(1000.0, 0.9, 5.0), (900.0, 0.9, 5.0)],
    "rds": [(1000.0, 0.8, 4.0), (950.0, 0.8, 2.9)],
    "rds+wake": [(1000.0, 0.9, 4.0), (900.0, 0.9, 2.0)],
    "rds+wake, at least 50": [(1000.0, 0.9, 4.0), (900.0, 0.9, 9.0)],
}
"""By label, at lambda 10 and 200: as the paper has it."""


def small_results(**changes: list[tuple[float, float, float]]) -> DequeueResults:
    """Return results of six seeds that hardly differ, with other figures for some labels."""
    figures = PAPER | changes
    by_rate = {
        label: {
            rate: _outcomes(*found) for rate, found in zip((10, 200), figures[label], strict=True)
        }
        for label in RUNS
    }
    by_sleep_time = {
        each: _outcomes(figures["rds"][1][0] - abs(each - 5.0), 0.8, 2.9) for each in SLEEP_TIMES
    }
    return DequeueResults((10, 200), by_rate, by_sleep_time)


def _outcomes(received: float, hit_ratio: float, messages_per_hit: float) -> list[DequeueOutcome]:
    return [
        DequeueOutcome(received + 0.01 * seed, hit_ratio, messages_per_hit, 9.0)
        for seed in range(6)
    ]
