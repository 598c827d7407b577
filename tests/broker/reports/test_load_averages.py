from __future__ import annotations

import math

import pytest

from penstock.broker.reports.load_averages import WINDOWS, LoadAverages


def test_averages_begin_at_0_and_follow_mosquittos_formula() -> None:
    """The new one is the rate per minute, plus the difference of the old one times exp(-t/T)."""
    loads = LoadAverages()
    assert dict(loads.update({"sockets": 7}, 100.0)) == {f"sockets/{name}": 0 for name in WINDOWS}
    once = dict(loads.update({"sockets": 17}, 110.0))  # 10 in 10 s: 60 per minute
    assert once["sockets/1min"] == pytest.approx(60 * (1 - math.exp(-10 / 60)))
    assert once["sockets/15min"] == pytest.approx(60 * (1 - math.exp(-10 / 900)))
    twice = dict(loads.update({"sockets": 17}, 140.0))
    assert twice["sockets/5min"] == pytest.approx(once["sockets/5min"] * math.exp(-30 / 300))


def test_a_second_look_at_the_same_moment_changes_nothing() -> None:
    """The clock may be coarse."""
    loads = LoadAverages()
    list(loads.update({"sockets": 1}, 5.0))
    assert dict(loads.update({"sockets": 2}, 5.0))["sockets/1min"] == 0
