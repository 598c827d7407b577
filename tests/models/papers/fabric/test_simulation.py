from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.models.papers.fabric.setting import Distribution, FabricSetting, Fault
from penstock.models.papers.fabric.simulation import FabricOutcome, simulate

CALM = FabricSetting(rate=300.0, seconds=6.0)
KILLED = replace(CALM, faults=(Fault("D", 2.0),), failure_detection_time=3.0)
FROZEN = replace(CALM, faults=(Fault("D", 2.0, 4.0),), failure_detection_time=9.0)


def run(setting: FabricSetting) -> FabricOutcome:
    """Run one simulation."""
    return simulate(setting, Random(1))  # noqa: S311 (a simulation)


@pytest.mark.parametrize("distribution", ["hashing", "exclusion", "repeat"])
def test_without_a_fault_all_is_stored(distribution: Distribution) -> None:
    """At the rate at which it comes, on all nodes, and the same on the same seed."""
    found = run(replace(CALM, distribution=distribution))
    assert sum(found.stored) == pytest.approx(1800, rel=0.1)
    assert (sum(found.failed), sum(found.refused), found.repeated) == (0, 0, 0)
    assert found == run(replace(CALM, distribution=distribution))
    assert all(sum(served) == pytest.approx(360, rel=0.5) for served in found.served.values())
    assert 0 < found.median_seconds < found.slowest_seconds < 0.1


def test_hashing_fails_until_the_node_is_isolated() -> None:
    """What belongs to it is an error, for the failure detection time."""
    found = run(replace(KILLED, distribution="hashing"))
    assert sum(found.failed) == pytest.approx(300 / 5 * 3, rel=0.4)
    assert sum(found.served["D"][2:]) == 0


def test_exclusion_fails_for_the_slowdown_detection_time() -> None:
    """And for a message of each trial: a fraction of what consistent hashing costs."""
    hashing, exclusion = (
        run(replace(KILLED, distribution=each)) for each in ("hashing", "exclusion")
    )
    assert 0 < sum(exclusion.failed) < sum(hashing.failed) / 3
    assert exclusion.repeated == 0


@pytest.mark.parametrize("needs_all_copies", [True, False])
def test_what_is_repeated_elsewhere_is_stored(*, needs_all_copies: bool) -> None:
    """No client sees the failure, but those of the dead server's own controller."""
    found = run(replace(KILLED, needs_all_copies=needs_all_copies))
    assert sum(found.failed) == 0
    assert found.repeated > 0
    assert sum(found.refused) < 300 / 5 * 2


def test_what_a_frozen_node_has_got_is_stored_twice() -> None:
    """It goes on with what was repeated meanwhile: deduplication is for that."""
    found = run(FROZEN)
    assert sum(found.failed) == 0
    assert 0 < found.stored_twice <= found.repeated
    assert sum(found.served["D"][5:]) > 0


def test_a_balancer_that_always_knows_loses_only_what_is_under_way() -> None:
    """The look of the balancer is the time in which a dead controller costs errors."""
    slow, quick = (
        run(replace(KILLED, balancer_seconds=seconds, seconds=5.0)) for seconds in (2.0, 0.01)
    )
    assert sum(quick.refused) < 10 < sum(slow.refused)


def test_repeats_do_not_make_too_much_load_worse() -> None:
    """Nodes that are all too slow go on serving what they have, each message once."""
    found = run(replace(CALM, rate=2400.0, patience=60.0))
    assert sum(found.failed) == 0
    assert sum(map(sum, found.served.values())) == pytest.approx(6 * 2000, rel=0.1)
    assert found.repeated < 0.2 * 2400 * 6


def test_who_has_no_patience_is_told() -> None:
    """A message that no node can store is an error, in time."""
    faults = tuple(Fault(node, 1.0) for node in "BCDE")
    found = run(replace(CALM, faults=faults, patience=2.0, failure_detection_time=60.0))
    assert sum(found.failed) > 100
    assert sum(found.stored[2:]) < 10
