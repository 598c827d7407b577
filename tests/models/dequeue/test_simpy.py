"""The simulation against the same model as simpy's processes."""

from __future__ import annotations

from random import Random

import pytest

from penstock.models.dequeue.simulation import Costs, Setting, simulate
from tests.models.dequeue.simpy_processes import Simulation

BITS = 2.0**-30
"""Times are multiples of it, so that their sums are exact in whatever order they are made."""

COSTS = Costs(*(each // BITS * BITS for each in (0.00107, 0.0201, 0.00091, 0.0198, 0.00011)))
"""Of which no few make up another, so that two operations hardly ever end in the same moment."""


class Draws(Random):
    """Draws exact times."""

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return super().random() // BITS * BITS

    def expovariate(self, lambd: float = 1.0) -> float:
        """Return a time."""
        return super().expovariate(lambd) // BITS * BITS


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("strategy", "sleep_time"),
    [("conventional", 1.0), ("pms", 0.23), ("rds", 0.21), ("rds+wake", 1.0)],
)
def test_simpys_processes_measure_the_same(
    strategy: str, sleep_time: float, *, busy: bool, seed: int
) -> None:
    """Two ways of saying the model have the same messages, hits, misses and requests."""
    setting = Setting(
        strategy,
        50 if busy else 5,
        sleep_time // BITS * BITS,
        controllers=1 if strategy in ("pms", "rds") else 10,
        devices=100 if busy else 10,
        period=0.125,
        costs=COSTS,
        seconds=4,
        warm_up=2,
    )
    measured = simulate(setting, Draws(seed))
    same = Simulation(setting, Draws(seed))
    before = same.counts(setting.warm_up)
    after = same.counts(setting.warm_up + setting.seconds)
    hits, misses, messages, requests = (
        later - earlier for later, earlier in zip(after, before, strict=True)
    )
    assert messages
    assert (
        measured.messages_per_second,
        measured.hit_ratio,
        measured.messages_per_hit,
        measured.requests_per_second,
    ) == (messages / 4, hits / (hits + misses), messages / hits, requests / 4)
