from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.probing.estimators import (
    MovingAverage,
    SourceEstimates,
    WindowedMinimum,
)

rtts = st.floats(1e-6, 100)
timed_rtts = st.lists(st.tuples(st.floats(0, 50), rtts), min_size=1, max_size=60)


@given(timed_rtts)
def test_windowed_minimum_covers_half_to_whole_window(timed: list[tuple[float, float]]) -> None:
    """The least of the last half window is always covered, nothing older than the window is."""
    minimum = WindowedMinimum(100.0)
    now, seen = 0.0, []
    for gap, rtt in timed:
        now += gap
        seen.append((now, rtt))
        value = minimum.add(rtt, now)
        assert value <= min(r for at, r in seen if at > now - 50)
        assert value >= min(r for at, r in seen if at >= now - 100 - 1e-9)


def test_windowed_minimum_forgets_after_a_silence() -> None:
    """A sample after more than a window stands alone."""
    minimum = WindowedMinimum(100.0)
    minimum.add(0.1, 0.0)
    assert minimum.add(0.5, 100.0) == 0.5


def test_moving_average_begins_as_plain_mean() -> None:
    """The first sample does not weigh more than the second."""
    average = MovingAverage(300.0)
    average.add(1.0, 0.0)
    average.add(2.0, 1.0)
    average.add(6.0, 2.0)
    assert average.value == pytest.approx(3.0)


def test_moving_average_fades_with_time_and_not_with_samples() -> None:
    """After one window of another RTT the old one weighs 1/e, however often it was sampled."""
    for step in (0.1, 1.0, 10.0):
        average = MovingAverage(100.0)
        for second in range(2_000):
            average.add(1.0, second)
        for n in range(1, round(100 / step) + 1):
            average.add(0.0, 1_999 + n * step)
        assert average.value == pytest.approx(math.exp(-1), rel=0.01)


@given(timed_rtts)
def test_moving_average_stays_within_its_samples(timed: list[tuple[float, float]]) -> None:
    """A weighted mean is never outside of what it is made from."""
    average, now = MovingAverage(300.0), 0.0
    for gap, rtt in timed:
        now += gap
        average.add(rtt, now)
    samples = [rtt for _, rtt in timed]
    assert average.value is not None
    assert min(samples) * (1 - 1e-9) <= average.value <= max(samples) * (1 + 1e-9)


def test_a_source_knows_the_newest_sample_the_least_and_the_average() -> None:
    """And of which packet and time the newest is."""
    source = SourceEstimates("puback")
    source.add(0.1, 100, 0.0)
    source.add(0.9, 200, 1.0)
    assert (source.latest, source.payload_bytes, source.updated_at) == (0.9, 200, 1.0)
    assert (source.minimum.value, source.average.value) == (0.1, 0.5)


def test_pure_modules_load_without_clock_chance_and_io() -> None:
    """Estimators, timer and stall detector import with asyncio, time and the like blocked."""
    blocked = ["asyncio", "selectors", "socket", "ssl", "threading", "time", "random"]
    program = (
        f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\n"
        "from penstock.plugins.probing import estimators, puback, stall\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
