from __future__ import annotations

from collections.abc import Generator

from penstock.broker.reports.periodic_work import PeriodicWork
from penstock.broker.timers import Timers


class Work:
    """Three slices in each round, 1 s apart; notes when each is done."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.errors: list[Exception] = []
        self.begun: list[float] = []
        self.done: list[float] = []
        self.fails = False
        self.seconds = 1.0
        self.periodic = PeriodicWork(self.timers, self._work, self.errors.append)

    def _work(self, now: float) -> Generator[float, float, None]:
        self.begun.append(now)
        for n_left in (2, 1, 0):
            if self.fails:
                raise OSError(24, "Too many open files")
            self.done.append(now)
            if n_left:
                now = yield now + self.seconds

    def run_until(self, end: float) -> None:
        """Let time pass."""
        while (at := self.timers.next_deadline()) is not None and at <= end:
            self.timers.run(at)


def test_each_round_is_done_in_slices_and_begins_a_period_after_the_last() -> None:
    """The first one when it was asked for."""
    work = Work()
    work.periodic.start(5.0, 10.0)
    work.run_until(26.0)
    assert work.begun == [5.0, 15.0, 25.0]
    assert work.done == [5.0, 6.0, 7.0, 15.0, 16.0, 17.0, 25.0, 26.0]


def test_a_round_may_begin_at_once() -> None:
    """Its first slice is done before the call returns."""
    work = Work()
    work.periodic.begin(5.0, 10.0)
    assert work.done == [5.0]
    work.run_until(15.0)
    assert work.begun == [5.0, 15.0]


def test_a_round_that_takes_longer_than_a_period_is_finished_first() -> None:
    """Then the next begins at once: none is cut short, none runs beside another."""
    work = Work()
    work.seconds = 6.0
    work.periodic.start(0.0, 10.0)
    work.run_until(24.0)
    assert work.done == [0.0, 6.0, 12.0, 12.0, 18.0, 24.0, 24.0]
    assert work.begun == [0.0, 12.0, 24.0]


def test_a_slice_that_raises_ends_its_round_and_not_the_next_ones() -> None:
    """One moment without files must not stop the work for good."""
    work = Work()
    work.periodic.start(0.0, 10.0)
    work.run_until(0.5)
    work.fails = True
    work.run_until(10.5)
    work.fails = False
    work.run_until(22.5)
    assert work.begun == [0.0, 10.0, 20.0]
    assert work.done == [0.0, 20.0, 21.0, 22.0]
    assert [type(error) for error in work.errors] == [OSError, OSError]
