from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.thresholds import LatencyProfile

PAPER = {10_000: 1.0, 1_000_000: 10.0}

rising_tables = st.dictionaries(
    st.integers(1, 10**8), st.floats(0.001, 1000), min_size=1, max_size=6
).map(lambda table: dict(zip(sorted(table), sorted(table.values()), strict=True)))


def test_rows_of_the_table_are_met() -> None:
    """At the sizes of the table the ratio of its latencies holds."""
    profile = LatencyProfile({100: 0.2, 10_000: 0.3, 1_000_000: 3.0})
    assert profile.relative(100) == 1.0
    assert profile.relative(10_000) == pytest.approx(1.5)
    assert profile.relative(1_000_000) == pytest.approx(15.0)


def test_between_rows_latency_is_straight_on_logarithmic_axes() -> None:
    """Half way between 10 KB and 1 MB in orders of magnitude, latency is half way too."""
    assert LatencyProfile(PAPER).relative(100_000) == pytest.approx(math.sqrt(10))


def test_above_the_last_row_the_last_two_are_continued() -> None:
    """100 MB is two orders above 1 MB: another factor of ten."""
    assert LatencyProfile(PAPER).relative(100_000_000) == pytest.approx(100.0)


@pytest.mark.parametrize("payload_bytes", [0, 1, 9_999, 10_000])
def test_up_to_the_first_row_latency_is_least(payload_bytes: int) -> None:
    """A bare acknowledgement takes as long as the smallest size of the table."""
    assert LatencyProfile(PAPER).relative(payload_bytes) == 1.0


def test_single_row_means_that_size_does_not_matter() -> None:
    """With one row every size has its latency."""
    assert LatencyProfile({500: 3.0}).relative(10**9) == 1.0


@pytest.mark.parametrize("table", [{1000: 1.0, 1001: 50.0}, {1: 1e-300, 2: 1e300}])
def test_rows_that_lie_close_together_are_continued_to_a_bound(table: dict[int, float]) -> None:
    """No size is beyond numbers; a subscriber's decision is not an error."""
    assert LatencyProfile(table).relative(1_000_000) == pytest.approx(1e9)


def test_order_of_rows_does_not_matter() -> None:
    """Rows are sorted by size."""
    turned = dict(reversed(PAPER.items()))
    assert LatencyProfile(turned).relative(300_000) == LatencyProfile(PAPER).relative(300_000)


@given(rising_tables, st.lists(st.integers(0, 10**9), min_size=2))
def test_larger_messages_never_take_less_time(table: dict[int, float], sizes: list[int]) -> None:
    """The relative latency rises with the size and is at least 1."""
    profile = LatencyProfile(table)
    relatives = [profile.relative(size) for size in sorted(sizes)]
    assert relatives[0] >= 1.0
    assert all(small <= large * (1 + 1e-9) for small, large in pairwise(relatives))


@pytest.mark.parametrize(
    ("table", "allowed"),
    [
        ({}, "at least one row"),
        ({0: 1.0}, "at least 1"),
        ({1: 0.0}, "above 0"),
        ({1: math.inf}, "finite"),
        ({1: math.nan}, "finite"),
        ({1: 2.0, 2: 1.0}, "never fall"),
    ],
)
def test_wrong_table_says_what_is_allowed(table: dict[int, float], allowed: str) -> None:
    """Each rule of the table has its text."""
    with pytest.raises(ValueError, match=allowed):
        LatencyProfile(table)
