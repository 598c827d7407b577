from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.models.kernels.dequeue_simulation import (
    Costs,
    DequeueOutcome,
    DequeueSetting,
    simulate,
)
from tests.models.kernels.simpy_processes import Simulation

CALM = DequeueSetting("conventional", 5, 0.5, devices=10, seconds=4, warm_up=2)
"""100 messages a second, which any strategy carries."""


def run(**changes: Any) -> DequeueOutcome:
    """Simulate with one seed."""
    return simulate(replace(CALM, **changes), Random(1))  # noqa: S311 (a simulation)


@pytest.mark.parametrize("strategy", ["conventional", "pms", "rds", "rds+wake"])
def test_back_ends_receive_what_devices_send(strategy: str) -> None:
    """A system that is not busy loses nothing and invents nothing."""
    assert run(strategy=strategy).messages_per_second == pytest.approx(100, rel=0.15)


def test_the_seed_decides() -> None:
    """A run can be had again, and another seed gives another."""
    rngs = [Random(seed) for seed in (1, 1, 2)]  # noqa: S311 (a simulation)
    first, again, other = (simulate(CALM, rng) for rng in rngs)
    assert first == again != other


def test_a_back_end_has_no_more_requests_than_connections() -> None:
    """A held request takes its connection; one that is answered frees it (paper 000)."""
    empty = {"devices": 0, "request_rate": 200}
    assert run(**empty).hit_ratio == 0
    assert run(**empty).requests_per_second > 100
    assert run(**empty, strategy="rds").requests_per_second == 0


def test_dequeues_take_what_enqueues_need() -> None:
    """Enqueues and dequeues share the physical queues, so dear misses cost messages (eq. 2)."""
    busy = {"devices": 50, "period": 0.01, "request_rate": 100}
    dear, cheap = run(**busy), run(**busy, costs=Costs(hit=0.001, miss=0.001))
    assert dear.messages_per_second < cheap.messages_per_second / 2


def test_polls_occupy_physical_queues() -> None:
    """A poll of PMS costs cM a physical queue (eq. 5)."""
    polling = {"strategy": "pms", "sleep_time": 0.05, "devices": 50, "period": 0.01}
    dear = run(**polling, costs=Costs(monitoring=0.005))
    assert dear.messages_per_second < run(**polling).messages_per_second


BITS = 2.0**-30
"""Times are multiples of it, so that their sums are exact in whatever order they are made."""

COSTS = Costs(*(each // BITS * BITS for each in (0.00107, 0.0201, 0.00091, 0.0198, 0.00011)))
"""Costs of operations, chosen so that two operations hardly ever end at the same moment."""


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
    setting = DequeueSetting(
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
