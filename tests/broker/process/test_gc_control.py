"""Cycles are freed, in quiet moments, and the objects that stay are looked at seldom."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import psutil
import pytest

from penstock.broker.process.gc_control import (
    LEAST_GROWTH_BLOCKS,
    LEAST_GROWTH_BYTES,
    MOST_NEW_OBJECTS,
    Collector,
)


class Ring:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def new_ring() -> weakref.ref[Ring]:
    """Make one, and lose it."""
    return weakref.ref(Ring())


class Process:
    """What the collector asks of the process it is in, as the test says."""

    def __init__(self) -> None:
        self.n_blocks = 100_000
        self.now = 1000.0
        self.used = 10.0
        self.n_bytes = 50_000_000
        self.kept = (0, 0)
        self.collector = Collector(
            count_blocks=lambda: self.n_blocks,
            clock=lambda: self.now,
            used=lambda: self.used,
            resident_bytes=lambda: self.n_bytes,
            kept=lambda: self.kept,
        )

    def rest(self, used: float) -> None:
        """Let a second pass, in which the processor was used for this part of it; then look."""
        self.now += 1.0
        self.used += used
        self.collector.look()


@pytest.fixture
def process() -> Iterator[Process]:
    """Give a process with a collector, and its tests' own process back to Python."""
    yield Process()
    gc.enable()


def test_a_cycle_is_freed_at_the_next_rest(process: Process) -> None:
    """As of a request that failed: its exception and its frame refer to each other."""
    ring = new_ring()
    assert ring() is not None
    process.rest(used=0.1)
    assert ring() is None


def test_nothing_is_looked_at_while_there_is_much_to_do(process: Process) -> None:
    """What is new then is what waits for subscribers: many objects, and nobody else is served."""
    ring = new_ring()
    process.rest(used=0.9)
    process.rest(used=0.1)
    assert ring() is not None


def test_old_cycles_are_freed_once_the_objects_have_doubled(process: Process) -> None:
    """They may be what grows."""
    ring = new_ring()
    process.rest(used=0.9)
    process.n_blocks += LEAST_GROWTH_BLOCKS
    process.rest(used=0.9)
    assert ring() is not None
    process.n_blocks += 1
    process.rest(used=0.9)
    assert ring() is None


def test_all_are_looked_at_again_only_after_they_have_grown_as_much_again(process: Process) -> None:
    """A broker with millions of objects would stand still again and again."""
    process.n_blocks = 3 * LEAST_GROWTH_BLOCKS
    process.rest(used=0.9)
    ring = new_ring()
    process.rest(used=0.9)
    process.n_blocks *= 2
    process.rest(used=0.9)
    assert ring() is not None
    process.n_blocks += 1
    process.rest(used=0.9)
    assert ring() is None


def test_old_cycles_are_freed_once_the_memory_has_grown(process: Process) -> None:
    """A few that hold large payloads are no many blocks, also in a broker that never rests."""
    ring = new_ring()
    process.n_bytes = 75_000_000 + LEAST_GROWTH_BYTES
    process.rest(used=0.9)
    assert ring() is not None
    process.n_bytes += 1
    process.rest(used=0.9)
    assert ring() is None
    later = new_ring()
    process.rest(used=0.9)
    assert later() is not None


def test_what_the_program_keeps_is_no_growth(process: Process) -> None:
    """500,000 retained messages are no cycles, and a look at them would hold all up for 0.5 s."""
    ring = new_ring()
    process.kept = (3_500_000, 500_000_000)
    process.n_blocks += 3_500_000 + LEAST_GROWTH_BLOCKS
    process.n_bytes += 500_000_000 + LEAST_GROWTH_BYTES
    process.rest(used=0.9)
    assert ring() is not None
    process.n_blocks += 1
    process.rest(used=0.9)
    assert ring() is None


def test_what_the_program_has_ceased_to_keep_goes_a_little_later(process: Process) -> None:
    """100,000 sessions that expire wait for their commits, and their memory for the system."""
    ring = new_ring()
    process.kept = (3_500_000, 500_000_000)
    process.n_blocks += 3_500_000
    process.n_bytes += 500_000_000
    process.rest(used=0.9)
    process.kept = (0, 0)
    process.rest(used=0.9)
    assert ring() is not None
    for _ in range(200):
        process.rest(used=0.9)
    assert ring() is None


def test_very_many_new_objects_are_not_searched(process: Process) -> None:
    """Who waits for the processor uses little of it, however much there is to do."""
    ring = new_ring()
    kept: list[list[int]] = [[] for _ in range(MOST_NEW_OBJECTS + 1)]
    process.rest(used=0.1)
    assert ring() is not None
    assert kept


def test_memory_beyond_what_the_program_keeps_is_growth(process: Process) -> None:
    """A few cycles may hold large payloads."""
    ring = new_ring()
    process.kept = (0, 500_000_000)
    process.n_bytes += 500_000_000 + 25_000_000 + LEAST_GROWTH_BYTES
    process.rest(used=0.9)
    assert ring() is not None
    process.n_bytes += 1
    process.rest(used=0.9)
    assert ring() is None


def test_growth_is_measured_by_all_that_has_to_be_looked_at(process: Process) -> None:
    """The more there is, the dearer is the look, and the more garbage may wait for it."""
    process.kept = (10 * LEAST_GROWTH_BLOCKS, 0)
    process.n_blocks = 12 * LEAST_GROWTH_BLOCKS
    process.rest(used=0.9)
    ring = new_ring()
    process.n_blocks *= 2
    process.rest(used=0.9)
    assert ring() is not None
    process.n_blocks += 1
    process.rest(used=0.9)
    assert ring() is None


def test_memory_that_has_gone_meanwhile_may_not_come_back_unseen(process: Process) -> None:
    """What counts as growth is counted from the least since all were looked at."""
    process.n_bytes = 1_000_000_000
    process.rest(used=0.9)
    process.n_bytes = 50_000_000
    process.rest(used=0.9)
    ring = new_ring()
    process.n_bytes = 200_000_000
    process.rest(used=0.9)
    assert ring() is None


@pytest.mark.memory
def test_memory_is_that_of_this_process() -> None:
    """Without a test's word for it: half as much again and more than 100 MB are seen."""
    n_bytes = psutil.Process().memory_info().rss // 2 + 200_000_000
    collector = Collector()
    try:
        ring = new_ring()
        gc.freeze()
        more = bytes(n_bytes).replace(b"\0", b"\1")
        collector.look()
        assert len(more) == n_bytes
        assert ring() is None
    finally:
        gc.unfreeze()
        gc.enable()
