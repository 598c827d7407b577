from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.models.dequeue.simulation import Costs, Outcome, Setting, simulate

CALM = Setting("conventional", 5, 0.5, devices=10, seconds=4, warm_up=2)
"""100 messages a second, which any strategy carries."""


def run(**changes: Any) -> Outcome:
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
