from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plugins.probing.estimators import (
    LowerQuartile,
    MovingAverage,
    RetransmitRatio,
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


def test_retransmit_ratio_is_of_the_segments_since_the_first_look() -> None:
    """10 new segments, 2 of them again: a fifth; one window later those weigh 1/e."""
    ratio = RetransmitRatio(10.0)
    assert ratio.add(1_000, 900, 50.0) is None
    assert ratio.add(1_010, 902, 50.0) == pytest.approx(0.2)
    left = math.exp(-1)
    assert ratio.add(1_020, 902, 60.0) == pytest.approx(2 * left / (10 * left + 10))


def test_retransmit_ratio_of_who_sends_nothing_is_forgotten() -> None:
    """It stands for the window, and a later one begins anew."""
    ratio = RetransmitRatio(10.0)
    ratio.add(0, 0, 0.0)
    ratio.add(10, 5, 1.0)
    assert ratio.add(10, 5, 11.0) == pytest.approx(0.5)
    assert ratio.add(10, 5, 11.5) is None
    assert ratio.add(20, 5, 12.0) == 0.0


def test_retransmit_ratio_counts_on_past_the_end_of_the_kernels_counters() -> None:
    """They have 32 bits."""
    ratio = RetransmitRatio(10.0)
    ratio.add(2**32 - 5, 2**32 - 1, 0.0)
    assert ratio.add(5, 1, 1.0) == pytest.approx(0.2)


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


WINDOW_SECONDS = 300.0

SPACINGS = [0.05, 0.2, 1.0, 5.0]
"""Seconds between two samples: of the kernel and of PUBACKs, and of a spare T_Q."""


def follow(quartile: LowerQuartile, rtts: Iterable[float], spacing: float, minimum: float) -> None:
    """Let samples come regularly."""
    for rtt in rtts:
        quartile.add(rtt, minimum, spacing)


def steady(spacing: float) -> LowerQuartile:
    """Return what is known of a path after half an hour of 20 ms and 1 ms more now and then."""
    quartile = LowerQuartile(WINDOW_SECONDS)
    follow(quartile, (0.02 + 0.001 * (n % 2) for n in range(int(1800 / spacing))), spacing, 0.02)
    return quartile


@pytest.mark.parametrize("spacing", SPACINGS)
@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0))
@settings(max_examples=10)
def test_lower_quartile_is_that_of_evenly_distributed_samples(
    spacing: float, least: float, spread: float
) -> None:
    """A quarter of the way from the least to the largest, within a third of that distance."""
    rng = random.Random(7)  # noqa: S311 (a test)
    quartile = LowerQuartile(WINDOW_SECONDS)
    rtts = (least + spread * rng.random() for _ in range(int(6 * WINDOW_SECONDS / spacing)))
    follow(quartile, rtts, spacing, least)
    assert quartile.value == pytest.approx(least + spread / 4, abs=spread / 12)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_lower_quartile_does_not_show_congestion_of_half_of_the_time(spacing: float) -> None:
    """Twenty seconds good, twenty bad, again and again: it stays near the good ones."""
    quartile = LowerQuartile(WINDOW_SECONDS)
    rtts = (0.5 if n * spacing // 20 % 2 else 3.0 for n in range(int(2000 / spacing)))
    follow(quartile, rtts, spacing, 0.5)
    assert quartile.value == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_lower_quartile_hardly_rises_in_congestion_of_some_minutes(spacing: float) -> None:
    """At any rate of samples: e-fold in a window, so that an RTT of 100 ms still stands out."""
    quartile = steady(spacing)
    before = quartile.value
    assert before is not None
    assert before < 0.0221
    follow(quartile, [0.1] * int(240 / spacing), spacing, 0.02)
    assert quartile.value is not None
    assert (quartile.value - 0.02) / (before - 0.02) == pytest.approx(math.exp(240 / 300), rel=0.02)


def test_samples_that_come_together_count_once() -> None:
    """They are of the same time."""
    one, other = steady(1.0), steady(1.0)
    follow(one, [0.1], 1.0, 0.02)
    follow(other, [0.1], 1.0, 0.02)
    follow(other, [0.1] * 50, 0.0, 0.02)
    assert one.value == other.value


def test_path_is_not_called_steady_before_it_has_shown_so() -> None:
    """A few samples like the first are not enough; half a minute is."""
    quartile = LowerQuartile(WINDOW_SECONDS)
    follow(quartile, [0.5], 1.0, 0.5)
    assert quartile.value == 1.0
    follow(quartile, [0.5] * 4, 1.0, 0.5)
    assert quartile.value == pytest.approx(0.5 + 0.5 * math.exp(-0.75 * (1 + 1 + 2 / 3 + 2 / 4)))
    follow(quartile, [0.5] * 25, 1.0, 0.5)
    assert quartile.value == pytest.approx(0.5, abs=0.006)
