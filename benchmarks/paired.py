"""How much more processor time does one broker take for the same messages than another?

Differences of a few percent drown in three kinds of noise, each of which is met in its own way:

* What one read gives a broker differs from run to run with who is scheduled when, and a broker that
  reads much at once takes little for each message. So messages go in bursts: the next one when
  all of the last have arrived and are acknowledged, so that both brokers read them alike.
* A machine is faster in one moment than in the next, by half on a busy one. So both brokers run
  side by side, and take turns of a few milliseconds in the order A B B A; each such four give a
  ratio. Both are pinned to one processor, on which nothing else of the benchmark runs.
* Each start of a program lays out its memory anew, which alone is worth some 3 %. So both are
  started many times. Each start gives one figure, the median of its ratios; the interval is a
  bootstrap of these.

Processor time is that of the kernel's clock of each process, user and kernel mode together.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.errors import BenchmarkError
from benchmarks.loads.wire import WireError
from benchmarks.peers import Peer, RunningPeer, running
from benchmarks.rows.rates import Runnable

_PROCESSOR_CLOCK: Final = 2
"""CPUCLOCK_SCHED of Linux: what the scheduler counted, in nanoseconds, for all threads."""

WARM_UP_RATIOS: Final = 5
"""Not counted: caches fill."""

RESAMPLES: Final = 4_000
COVERAGE: Final = 0.95

Connect = Callable[[RunningPeer], AbstractContextManager[Runnable]]


@dataclass(frozen=True, slots=True)
class Bursts:
    """Messages that both brokers are sent.

    Attributes:
        connect: makes a load on a started broker.
        messages: of a burst, over all publishers.
        turn_messages: of a turn, in whole bursts.
        inflight_messages: as in `peers.Setting`.
    """

    connect: Connect
    messages: int
    turn_messages: int = 2_000
    inflight_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and where it is, by 95 %.

    Attributes:
        low: lower end.
        median: of all starts.
        high: upper end.
    """

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        """Return it as percentages."""
        return f"{self.median:+.1%} ({self.low:+.1%} to {self.high:+.1%})"

    def verdict(self, target: float) -> str:
        """Say whether all of it is below a target, above it, or neither."""
        if self.high < target:
            return "Met"
        return "Missed" if self.low > target else "Not resolved"


def interval_of(figures: Sequence[float]) -> Interval:
    """Return the median of the figures of all starts and its interval, by a bootstrap."""
    generator = random.Random(0)  # noqa: S311 - no secret; the same each time
    medians = sorted(
        statistics.median(generator.choices(figures, k=len(figures))) for _ in range(RESAMPLES)
    )
    outside = int(RESAMPLES * (1 - COVERAGE) / 2)
    return Interval(medians[outside], statistics.median(figures), medians[-1 - outside])


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process, to the nanosecond (Linux: posix-timers.h)."""
    return time.clock_gettime(~pid << 3 | _PROCESSOR_CLOCK)


@contextmanager
def _processor_of_brokers() -> Iterator[set[int]]:
    """Leave the first processor to the brokers, and yield it; all, where there is but one."""
    allowed = os.sched_getaffinity(0)
    first = {min(allowed)}
    os.sched_setaffinity(0, allowed - first or allowed)
    try:
        yield first
    finally:
        os.sched_setaffinity(0, allowed)


class _Contender:
    """A started broker with its load."""

    def __init__(self, stack: ExitStack, peer: Peer, bursts: Bursts, processors: set[int]) -> None:
        broker = running(peer, inflight_messages=bursts.inflight_messages)
        self._broker = stack.enter_context(broker)
        self._pid = self._broker.process.pid
        os.sched_setaffinity(self._pid, processors)
        self._load = stack.enter_context(bursts.connect(self._broker))
        self._messages = bursts.messages
        self._n_bursts = max(1, bursts.turn_messages // bursts.messages)

    def turn(self) -> float:
        """Return the processor seconds for a turn.

        Raises:
            BenchmarkError: not all arrived.
        """
        before = processor_seconds(self._pid)
        lost = sum(self._load.run(self._messages).lost for _ in range(self._n_bursts))
        if lost:
            raise BenchmarkError(f"{self._broker.name} lost {lost} messages")
        return processor_seconds(self._pid) - before


def measure_start(
    one: Peer, other: Peer, bursts: Bursts, ratios: int, *, is_reversed: bool
) -> float:
    """Start two brokers, and return the first one's processor time over the other's, less 1.

    Args:
        one: a broker.
        other: what it is compared with.
        bursts: that both are sent.
        ratios: of which the median is returned; four turns each.
        is_reversed: whether the other one is started first.

    Raises:
        BenchmarkError: a broker did not work.
    """
    with ExitStack() as stack, _processor_of_brokers() as processors:
        try:
            started = [
                _Contender(stack, peer, bursts, processors)
                for peer in ((other, one) if is_reversed else (one, other))
            ]
            a, b = reversed(started) if is_reversed else started
            found = []
            for _ in range(WARM_UP_RATIOS + ratios):
                taken = [contender.turn() for contender in (a, b, b, a)]
                found.append((taken[0] + taken[3]) / (taken[1] + taken[2]) - 1)
        except (WireError, OSError) as error:
            raise BenchmarkError(f"{one.name}, {other.name}: {error}") from error
    return statistics.median(found[WARM_UP_RATIOS:])
