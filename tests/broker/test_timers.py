from __future__ import annotations

import math

import pytest

from penstock.broker.timers import MIN_CANCELLED, Timers


def never(now: float) -> None:
    """Fail: this must not run."""
    raise AssertionError(now)


def _again(timers: Timers, now: float) -> None:
    timers.at(now + 1.0, never)


def test_actions_run_in_order_of_their_deadlines_once() -> None:
    """An action runs at the first time that is not before its deadline, and never again."""
    timers = Timers()
    ran: list[tuple[str, float]] = []
    timers.at(2.0, lambda now: ran.append(("b", now)))
    timers.at(1.0, lambda now: ran.append(("a", now)))
    timers.at(3.0, lambda now: ran.append(("c", now)))
    assert timers.next_deadline() == 1.0
    timers.run(2.0)
    timers.run(2.5)
    assert ran == [("a", 2.0), ("b", 2.0)]
    assert timers.next_deadline() == 3.0


def test_a_cancelled_timer_never_runs() -> None:
    """Cancelling works any number of times, and no deadline is left of it."""
    timers = Timers()
    timer = timers.at(1.0, never)
    timer.cancel()
    timer.cancel()
    assert timers.next_deadline() is None
    timers.run(5.0)


def test_a_timer_cancelled_by_one_of_the_same_run_does_not_run() -> None:
    """What is due at once is not yet done: the first may cancel the second."""
    timers = Timers()
    second = timers.at(1.0, never)
    timers.at(0.5, lambda _now: second.cancel())
    timers.run(1.0)


def test_no_more_actions_run_than_asked_for() -> None:
    """The rest of what is due runs at the next call, in order."""
    timers = Timers()
    ran: list[str] = []
    for name in "abc":
        timers.at(1.0, lambda _now, name=name: ran.append(name))  # type: ignore[misc]
    timers.run(1.0, 2)
    assert ran == ["a", "b"]
    assert timers.next_at == 1.0
    timers.run(1.0, 2)
    assert ran == ["a", "b", "c"]


def test_a_timer_set_by_an_action_waits_for_the_next_run() -> None:
    """An action that sets a timer in the past cannot keep the run from ending."""
    timers = Timers()
    ran: list[float] = []

    def again(now: float) -> None:
        ran.append(now)
        timers.at(now, again)

    timers.at(1.0, again)
    timers.run(1.0)
    assert ran == [1.0]
    timers.run(1.0)
    assert ran == [1.0, 1.0]


def test_cancelled_timers_do_not_pile_up() -> None:
    """Deadlines far ahead that were cancelled cost no memory until then."""
    timers = Timers()
    ran: list[float] = []
    timers.at(5.0, ran.append)
    for number in range(10 * MIN_CANCELLED):
        timers.at(1e6 + number, never).cancel()
        assert len(timers) <= MIN_CANCELLED + 1
    timers.at(4.0, ran.append)
    timers.run(6.0)
    assert ran == [6.0, 6.0]
    assert len(timers) <= MIN_CANCELLED


def test_what_is_due_after_an_action_that_raises_is_not_lost() -> None:
    """One deadline's fault must not be the next one's."""
    timers = Timers()
    seen: list[float] = []

    def fail(_now: float) -> None:
        raise ZeroDivisionError

    timers.at(1.0, fail)
    timers.at(1.0, seen.append)
    timers.at(2.0, seen.append)
    with pytest.raises(ZeroDivisionError):
        timers.run(3.0)
    assert timers.next_deadline() == 1.0
    timers.run(4.0)
    assert seen == [4.0, 4.0]


def test_nothing_is_due_before_next_at() -> None:
    """A driver that compares with it alone misses no deadline, nor waits for one that is gone."""
    timers = Timers()
    assert timers.next_at == math.inf
    early = timers.at(2.0, never)
    timers.at(3.0, lambda now: _again(timers, now))
    assert timers.next_at == 2.0
    early.cancel()
    assert timers.next_at <= 3.0
    timers.run(3.0)
    assert timers.next_at == 4.0
