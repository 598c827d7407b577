from __future__ import annotations

from benchmarks.__main__ import ROWS
from benchmarks.report import (
    Result,
    conclude,
    format_value,
    ratio_to_reference,
    to_markdown,
)
from benchmarks.rows import Measurement

ROW = ROWS["qos0_1to1"]
OURS = Result(ROW, "penstock", [Measurement(300.0), Measurement(100.0), Measurement(900.0, lost=2)])
THEIRS = Result(ROW, "mosquitto", [Measurement(100.0), Measurement(150.0), Measurement(120.0)])


def test_ratio_is_of_medians() -> None:
    """One outlier among three repetitions does not move the ratio."""
    assert ratio_to_reference(OURS, [OURS, THEIRS]) == 300 / 120
    assert ratio_to_reference(OURS, [OURS]) is None


def test_first_line_says_whether_the_target_is_met() -> None:
    """A reader of results meets the conclusion before the numbers."""
    line = to_markdown([OURS, THEIRS], {}).splitlines()[0]
    assert line == (
        "penstock: qos0_1to1 300 delivered/s, 2.50 x mosquitto (at least 3 x mosquitto: missed)"
    )
    assert "not compared" in conclude([OURS])
    assert conclude([THEIRS]) == "penstock was not measured"


def test_memory_is_held_against_the_payload_alone() -> None:
    """A target that is a value needs no peer."""
    row = ROWS["memory_stalled"]
    for value, outcome in ((1.2, "met"), (1.21, "missed")):
        assert f": {outcome})" in conclude([Result(row, "penstock", [Measurement(value)])])


def test_table_shows_median_spread_ratio_and_losses() -> None:
    """Losses are part of the result, beside the value they would flatter."""
    line = to_markdown([OURS, THEIRS], {}).splitlines()[4]
    assert "| penstock | 300 delivered/s | 100 - 900 | 2.50 | - | 2 |" in line


def test_values_keep_their_leading_figures() -> None:
    """Rates are whole numbers, small ratios have two decimals."""
    assert format_value(1234567.8) == "1,234,568"
    assert format_value(1.234) == "1.23"
