from __future__ import annotations

import math
from random import Random

import pytest

from penstock.models.papers.fabric.cluster import Cluster
from penstock.models.papers.fabric.rings import RingQueue
from penstock.models.papers.fabric.setting import FabricSetting, Fault

FAST = 1e9
"""Messages/s of a node: services take no time."""
KILLED = Fault("D", 1.0)
HOME, COPIED, FAR = RingQueue(0, "D"), RingQueue(0, "C"), RingQueue(0, "A")
"""Killed nodes by ring 1: its master is D; its second copy is on D; it is on A, B and C."""


def rng() -> Random:
    """Return the chance of a test."""
    return Random(1)  # noqa: S311 (a simulation)


def cluster(*faults: Fault, needs_all_copies: bool = True) -> Cluster:
    """Return five nodes that serve at once."""
    setting = FabricSetting(
        faults=faults, needs_all_copies=needs_all_copies, capacity=FAST, copy_seconds=0.25
    )
    return Cluster(setting, rng())


@pytest.mark.parametrize("needs_all_copies", [True, False])
def test_a_message_is_stored_when_copies_have_it(*, needs_all_copies: bool) -> None:
    """After the way to them and back."""
    nodes = cluster(needs_all_copies=needs_all_copies)
    assert nodes.stored_at(HOME, 2.0) == pytest.approx(2.25)
    assert nodes.served["D"][2] == 1


@pytest.mark.parametrize(
    ("queue", "copies", "stored_at"),
    [
        (HOME, "all", math.inf),
        (HOME, "most", math.inf),
        (COPIED, "all", 11.25),
        (COPIED, "most", 2.25),
        (FAR, "all", 2.25),
    ],
)
def test_what_a_dead_node_holds_up(queue: RingQueue, copies: str, stored_at: float) -> None:
    """Its own queues, and those that wait for its copy until it is isolated."""
    nodes = cluster(KILLED, needs_all_copies=copies == "all")
    assert nodes.stored_at(queue, 2.0) == pytest.approx(stored_at)


@pytest.mark.parametrize("needs_all_copies", [True, False])
def test_another_node_takes_over_from_an_isolated_one(*, needs_all_copies: bool) -> None:
    """The next of the ring is the master from then on."""
    nodes = cluster(KILLED, needs_all_copies=needs_all_copies)
    assert nodes.stored_at(HOME, 12.0) == pytest.approx(12.25)
    assert nodes.served["E"][12] == 1


@pytest.mark.parametrize(("copies", "stored_at"), [("all", 22.25), ("most", 22.0)])
def test_two_dead_nodes_hold_up_what_is_on_both(copies: str, stored_at: float) -> None:
    """Until the second failure is detected; then new copies are made, or one is enough."""
    nodes = cluster(KILLED, Fault("E", 12.0), needs_all_copies=copies == "all")
    assert nodes.stored_at(COPIED, 13.0) == pytest.approx(stored_at)


def test_a_frozen_node_answers_when_it_goes_on() -> None:
    """Nothing is lost; one that is frozen for longer than the detection time is isolated first."""
    assert cluster(Fault("D", 1.0, 6.0)).stored_at(HOME, 2.0) == pytest.approx(6.25)
    assert cluster(Fault("D", 1.0, 6.0)).stored_at(COPIED, 2.0) == pytest.approx(6.25)
    long = cluster(Fault("D", 1.0, 20.0))
    assert long.stored_at(COPIED, 2.0) == pytest.approx(11.25)
    assert long.stored_at(HOME, 21.0) == pytest.approx(21.25)
    assert long.served["D"][21] == 1


def test_a_slow_node_takes_longer() -> None:
    """As often as it is slower, as master and as a copy; only while it is."""
    nodes = cluster(Fault("D", 1.0, 6.0, slowness=10))
    assert nodes.stored_at(COPIED, 2.0) == pytest.approx(4.5)
    assert nodes.stored_at(COPIED, 7.0) == pytest.approx(7.25)
    setting = FabricSetting(faults=(Fault("D", 0.0, 9.0, slowness=100),), capacity=100.0)
    one = Cluster(setting, rng())
    slow = [one.stored_at(HOME, 0.0) for _ in range(20)][-1]
    assert slow == pytest.approx(20, rel=0.9)
    assert [one.stored_at(FAR, 0.0) for _ in range(20)][-1] < 1


def test_messages_of_a_node_wait_for_each_other() -> None:
    """First come, first served; nodes do not wait for each other."""
    nodes = Cluster(FabricSetting(capacity=10.0), rng())
    times = [nodes.stored_at(HOME, 0.0) for _ in range(50)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5, rel=0.6)
    assert nodes.stored_at(FAR, 0.0) < 1


def test_a_store_that_pauses_answers_behind_the_pause() -> None:
    """Once a second, for as long as it pauses."""
    setting = FabricSetting(capacity=FAST, copy_seconds=0.0, pauses=(0.3, 0.3))
    nodes = Cluster(setting, rng())
    waits = [nodes.stored_at(HOME, number / 100) - number / 100 for number in range(100)]
    assert max(waits) == pytest.approx(0.3, abs=0.02)
    assert sum(wait > 0.001 for wait in waits) == pytest.approx(30, abs=1)
