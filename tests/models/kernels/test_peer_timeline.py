from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.kernels.peer_timeline import Timeline

SHIFTS = Timeline(np.array([2.0, 10.0, 20.0]), np.array([5.0, 14.0, math.inf]))
"""On from 2 to 5, from 10 to 14, and from 20 on."""


def test_a_server_works_while_it_is_on() -> None:
    """Its clock stands in between; an infinite time stays one."""
    times = np.array([0.0, 2.0, 3.0, 5.0, 7.0, 11.0, 18.0, 21.0, math.inf])
    worked = [0.0, 0.0, 1.0, 3.0, 3.0, 4.0, 7.0, 8.0, math.inf]
    assert SHIFTS.worked(times).tolist() == worked


def test_work_is_done_while_it_is_on() -> None:
    """The time at which so much was worked."""
    assert SHIFTS.when(np.array([0.5, 3.0, 3.5, 8.0])).tolist() == [2.5, 5.0, 10.5, 21.0]


def test_whether_it_is_on() -> None:
    """It is at the begin of an interval, and is not at its end."""
    times = np.array([1.0, 2.0, 4.9, 5.0, 30.0])
    assert SHIFTS.is_on(times).tolist() == [False, True, True, False, True]


def test_together() -> None:
    """When all are on; one alone is itself."""
    other = Timeline(np.array([0.0, 12.0]), np.array([3.0, math.inf]))
    both = Timeline.together([SHIFTS, other])
    assert both.starts.tolist() == [2.0, 12.0, 20.0]
    assert both.ends.tolist() == [3.0, 14.0, math.inf]
    assert Timeline.together([other]) is other


def test_times_are_drawn_as_the_means_say() -> None:
    """In the steady state from the start to the horizon, and on behind it."""
    peer = OnOff(50, 30)
    drawn = [Timeline.draw(peer, 1e5, np.random.default_rng(seed)) for seed in range(40)]
    times = np.linspace(0, 1e5, 1000)
    assert np.mean([each.is_on(times) for each in drawn]) == pytest.approx(peer.on_ratio, rel=0.02)
    assert np.mean([each.is_on(np.zeros(1))[0] for each in drawn]) == pytest.approx(0.6, abs=0.2)
    assert all(each.starts[-1] >= 1e5 and each.ends[-1] == math.inf for each in drawn)
