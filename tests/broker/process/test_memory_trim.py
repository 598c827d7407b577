"""Memory goes back to the system once a good part of what was in use is free."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import psutil
import pytest

from penstock.broker.process.memory_trim import (
    LEAST_BLOCKS,
    LOOKS_AFTERWARDS,
    SpareMemory,
    find_malloc_trim,
)


class Blocks:
    """How many small blocks are in use, as the test says."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks

    def count(self) -> int:
        """Return them."""
        return self.n_blocks


def test_nothing_is_given_back_while_memory_is_needed() -> None:
    """Growth, and a little more and less, cost no look through the heap."""
    blocks = Blocks(300_000)
    spare = SpareMemory(blocks.count)
    for n_blocks in (400_000, 900_000, 900_000 - LEAST_BLOCKS + 1, 900_000):
        blocks.n_blocks = n_blocks
        spare.look()
    assert spare.n_times == 0


def test_each_good_part_that_goes_is_given_back_once() -> None:
    """Memory is given back when no more of it goes, judged from the most since the last time."""
    blocks = Blocks(300_000)
    spare = SpareMemory(blocks.count)
    seen = []
    for n_blocks in (900_000, 600_000, 600_000, 590_000, 300_000, 300_000, 290_000, 290_000):
        blocks.n_blocks = n_blocks
        spare.look()
        seen.append(spare.n_times)
    assert seen == [0, 0, 1, 1, 1, 2, 2, 2]


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_frozen_is_not_collected() -> None:
    """A look through all objects of a program takes 40 ms, in which no client is served."""
    blocks = Blocks(300_000)
    spare = SpareMemory(blocks.count)
    gc.disable()
    try:
        frozen = weakref.ref(Cycle())
        gc.freeze()
        new = weakref.ref(Cycle())
        for n_blocks in (900_000, 300_000, 300_000):
            blocks.n_blocks = n_blocks
            spare.look()
        assert spare.n_times == 1
        assert (frozen() is None, new() is None) == (False, True)
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.memory
def test_what_a_backlog_took_is_the_systems_again() -> None:
    """A message that is kept among thousands that go does not hold them."""
    process = psutil.Process()
    before = process.memory_info().rss
    spare = SpareMemory()
    backlog = [[bytes(1000)] for _ in range(100_000)]
    kept = backlog[::500]
    spare.look()
    most = process.memory_info().rss
    del backlog
    spare.look()
    spare.look()
    assert spare.n_times == 1
    assert process.memory_info().rss - before < (most - before) / 2
    assert len(kept) == 200


LARGE_MESSAGES = """
import resource
from penstock.broker.process.memory_trim import keep_a_little

def receive():
    return b"".join([bytes(250_000) for _ in range(4)])

keep_a_little()
for _ in range(3):
    receive()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    receive()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.memory
@pytest.mark.skipif(find_malloc_trim() is None, reason="another C library")
def test_the_memory_of_a_large_message_serves_for_the_next() -> None:
    """Without being told, the C library lets the system make 450 pages for each of these."""
    command = [sys.executable, "-c", LARGE_MESSAGES]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(told.stdout) < 100


COUNTING = """
import psutil
from penstock.broker.message import Message
from penstock.broker.process.memory_trim import SpareMemory

rss = psutil.Process().memory_info
spare = SpareMemory()
topic, topic_bytes, now = "t", b"t", 0.0
before = rss().rss
backlog, counters = [], []
for number in range(200_000):
    backlog.append(Message(topic, b"", arrived_at=now, topic_bytes=topic_bytes))
    if not number % 100:
        counters.append(number * 1000)
most = rss().rss
spare.look()
del backlog
spare.look()
spare.look()
print((rss().rss - before) / (most - before))
"""


RESTING = """
from penstock.broker.process.gc_control import resident_bytes
from penstock.broker.process.memory_trim import SpareMemory, keep_a_little

keep_a_little()
spare = SpareMemory()
start = resident_bytes()
held = [[bytes([1]) * 100_000, bytes(1_000)] for _ in range(400)]
most = resident_bytes()
for _ in range(N_LOOKS):
    spare.look()
for pair in held:
    del pair[0]
for _ in range(N_LOOKS + 3):
    spare.look()
print((resident_bytes() - start) / (most - start))
"""


@pytest.mark.memory
@pytest.mark.skipif(find_malloc_trim() is None, reason="another C library")
@pytest.mark.parametrize("n_looks", [0, 3, 20])
def test_what_a_few_large_messages_leave_is_given_back_at_rest(n_looks: int) -> None:
    """They are too few blocks to be missed, and something small stands behind each of them.

    It takes no longer than they have waited while the process rested, if they have.
    """
    command = [sys.executable, "-c", RESTING.replace("N_LOOKS", str(n_looks))]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(shown.stdout) < 0.2


@pytest.mark.memory
def test_numbers_that_stay_do_not_hold_the_memory_of_a_backlog() -> None:
    """They have room of their own; a new process, as others have pages with room left."""
    command = [sys.executable, "-c", COUNTING]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(shown.stdout) < 0.06


def test_what_goes_a_little_after_a_backlog_is_given_back_as_well() -> None:
    """The last commits of it are still on their way; then there is an end of it."""
    trimmed = []
    blocks = Blocks(300_000)
    spare = SpareMemory(blocks.count, resident_bytes=lambda: 0)
    spare._malloc_trim = lambda _: trimmed.append(spare.n_times)
    for n_blocks in (900_000, 300_000, 300_000, *[300_000] * 20):
        blocks.n_blocks = n_blocks
        spare.look()
    assert trimmed == [1] * (1 + LOOKS_AFTERWARDS)


def test_memory_that_stays_in_use_is_looked_into_ever_more_seldom() -> None:
    """What many clients have is no spare memory, and each look costs time."""
    n_bytes = [50_000_000]
    n_looks = 0
    trimmed: list[int] = []
    spare = SpareMemory(lambda: 300_000, resident_bytes=lambda: n_bytes[0])
    spare._malloc_trim = lambda _: trimmed.append(n_looks)
    for n_looks in range(100):
        if n_looks in (1, 70):
            n_bytes[0] += 30_000_000
        spare.look()
    assert trimmed == [2, 4, 8, 16, 32, 64, 71, 73, 77, 85]
