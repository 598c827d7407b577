from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from statistics import mean

import pytest

from penstock.models.withholding.connection import (
    CASES,
    Case,
    Latencies,
    State,
    simulate_connection,
)
from penstock.plugins.withholding.config import PolicyName, WithholdingConfig

LINKS = range(4)


def run(case: Case, policy: PolicyName, seconds: float = 300.0) -> Latencies:
    """Return the latencies of some links together."""
    config = WithholdingConfig(policy=policy)
    found = [simulate_connection(config, case, 1000 * link, seconds) for link in LINKS]
    return Latencies(*(list(chain.from_iterable(lists)) for lists in zip(*found, strict=True)))


def p90(latencies: list[float]) -> float:
    """Return the latency that a tenth exceeds."""
    return sorted(latencies)[int(0.9 * len(latencies))]


def test_messages_take_what_path_and_size_say() -> None:
    """On a path of 1 MB/s and 0.2 s a megabyte takes 1.1 s; small ones behind it wait for it."""
    always_good = Case(
        "", good=State(1_000_000, 0.2), mean_seconds=(math.inf, 1.0), large_seconds=10.0
    )
    found = run(always_good, "none")
    assert found.large == pytest.approx([1.11] * len(found.large), abs=0.02)
    assert min(found.small) == pytest.approx(0.1, abs=0.02)
    assert 0.9 < max(found.small) < 1.13
    assert len(found.large) == 30 * len(LINKS)


def test_message_that_is_caught_takes_until_the_path_is_good() -> None:
    """A path that carries next to nothing: what has begun ends with the bad state."""
    caught = run(CASES["lossy"], "none")
    assert max(caught.large) > 20
    assert max(caught.small) > 20


def test_policies_see_the_same_path_and_the_same_arrivals() -> None:
    """Each message has one latency, whoever decides; equal seeds are equal runs."""
    one, other = (run(CASES["lossy"], policy) for policy in ("none", "adaptive"))
    assert len(one.small) == len(other.small)
    assert len(one.large) == len(other.large)
    assert run(CASES["lossy"], "adaptive") == other


def test_adaptive_protects_small_messages_where_packets_are_lost() -> None:
    """Small messages take at most half on average, and large ones twice as long at most."""
    none, adaptive = (run(CASES["lossy"], policy) for policy in ("none", "adaptive"))
    assert mean(adaptive.small) < 0.5 * mean(none.small)
    assert mean(adaptive.large) < 2 * mean(none.large)


def test_random_arrivals_have_the_same_mean() -> None:
    """Poisson: as many as regular ones in the long run, at other times."""
    regular, at_random = CASES["lossy"], replace(CASES["lossy"], is_random=True)
    assert len(run(at_random, "none").small) == pytest.approx(
        len(run(regular, "none").small), rel=0.1
    )
