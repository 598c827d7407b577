from __future__ import annotations

from dataclasses import replace

from benchmarks.__main__ import ROWS
from benchmarks.rows.rates import BROKER_CPU
from benchmarks.rows.report import (
    Result,
    conclude,
    format_value,
    is_undecided,
    ratio_to_reference,
    results_of,
    to_markdown,
    to_tables,
)
from benchmarks.rows.row import Measurement, Target

ROW = replace(ROWS["qos0_1to1"], target=Target(least_ratio=3))
OURS = Result(ROW, "penstock", [Measurement(300.0), Measurement(100.0), Measurement(900.0, lost=2)])
FAST = Measurement(900.0)
THEIRS = Result(ROW, "mosquitto", [Measurement(100.0), Measurement(150.0), Measurement(120.0)])


def test_ratio_is_of_medians() -> None:
    """One outlier among three repetitions does not move the ratio."""
    assert ratio_to_reference(OURS, [OURS, THEIRS]) == 300 / 120
    assert ratio_to_reference(OURS, [OURS]) is None


def test_first_line_names_the_rows_that_are_missed() -> None:
    """A reader of results meets the verdict before the numbers."""
    lines = to_markdown([OURS, THEIRS])
    assert lines[0] == "rows missed: qos0_1to1 (2.50 x mosquitto; at least 3 x mosquitto)"
    assert lines[2] == (
        "penstock: qos0_1to1 300 delivered/s, 2.50 x mosquitto (at least 3 x mosquitto: missed)"
    )
    assert "rows missed: qos0_1to1 (not compared)" in conclude([OURS])
    assert conclude([THEIRS]) == "penstock was not measured"


def test_stock_plugins_have_half_of_each_ratio_to_reach() -> None:
    """With aMQTT's list, half the rate and twice the lateness are enough; memory has no target."""
    stock = replace(OURS, peer="penstock-stock")
    assert str(stock.target) == "at least 1.5 x mosquitto"
    assert "rows missed: none" in conclude([replace(OURS, measurements=[FAST]), stock, THEIRS])
    slow = replace(stock, measurements=[Measurement(100.0)])
    assert "rows missed: qos0_1to1 (" in conclude([OURS, slow, THEIRS])
    assert "qos0_1to1 penstock-stock (0.83 x mosquitto; at least 1.5" in conclude(
        [OURS, slow, THEIRS]
    )
    assert replace(stock, row=ROWS["latency"]).target.most_ratio == 2.4
    assert replace(stock, row=ROWS["memory_stalled"]).target == Target()


def test_a_payload_store_has_targets_of_its_own() -> None:
    """Payloads in files are held against their limit in memory, which others do not have."""
    told = {"in_all": 40.0, "afterwards": 1.0}
    measured = {
        name: [Measurement(0.5, details=told)] for name in ("penstock", "penstock-spill", "amqtt")
    }
    results = list(results_of(ROWS["memory_stalled"], measured))
    assert conclude(results).startswith(
        "rows missed: memory_stalled_in_all penstock-spill (40.00; at most 36)\n"
    )


def test_rates_near_what_the_load_can_do_are_told() -> None:
    """A broker that is held back by the load is not taken for a slow one."""
    ceiling = Result(ROW, "ceiling", [Measurement(140.0)])
    text = conclude([OURS, THEIRS, ceiling])
    assert "near the ceiling of the load, and perhaps faster: qos0_1to1 penstock (2.14)," in text
    assert "qos0_1to1 mosquitto (0.86)" in text
    far = Result(ROW, "ceiling", [Measurement(1000.0)])
    assert "near the ceiling" not in conclude([OURS, THEIRS, far])


def test_row_is_undecided_where_repetitions_disagree() -> None:
    """Repetitions that all meet a target or all miss it need no further ones."""
    assert is_undecided([OURS, THEIRS])  # 3.0, 0.7 and 7.5 times
    assert not is_undecided([replace(OURS, measurements=[FAST] * 3), THEIRS])
    assert not is_undecided([OURS])
    memory = Result(ROWS["memory_stalled"], "penstock", [Measurement(1.1), Measurement(1.3)])
    assert is_undecided([memory])


def test_memory_is_held_against_the_payload_alone() -> None:
    """A target that is a value needs no peer."""
    row = ROWS["memory_stalled"]
    for value, outcome in ((1.1, "met"), (1.11, "missed")):
        assert f": {outcome})" in conclude([Result(row, "penstock", [Measurement(value)])])


def test_table_shows_median_spread_ratio_and_losses() -> None:
    """Losses are part of the result, beside the value they would flatter."""
    line = to_markdown([OURS, THEIRS])[6]
    assert "| penstock | 300 delivered/s | 3 | 100 - 900 | 2.50 | missed | - | - | - | 2 |" in line


def test_values_keep_their_leading_figures() -> None:
    """Rates are whole numbers, small ratios have two decimals."""
    assert format_value(1234567.8) == "1,234,568"
    assert format_value(1.234) == "1.23"


def test_tables_for_pages_tell_costs_of_options_and_what_is_lost() -> None:
    """Each option stands beside the bare row, and each row in which mosquitto is ahead is named."""
    results = []
    for name, ours, theirs in (
        ("qos0_1to1", 0.2, 6.0),
        ("qos0_1to1_acl", 0.25, 6.5),
        ("qos0_1to1_acl_random", 12.0, 6.4),
    ):
        for peer, cpu in ("penstock", ours), ("mosquitto", theirs):
            told = Measurement(1000 / cpu, details={BROKER_CPU: cpu})
            results.append(Result(ROWS[name], peer, [told]))
    tables = to_tables(results)
    assert tables["options"].rows == [["`qos0_1to1`", "0.20 / 6.00", "0.25 / 6.50", "12.00 / 6.40"]]
    assert tables["options"].columns == ["row", "bare", "acl", "acl, random"]
    assert tables["lost"].cell("mosquitto is ahead", "rows") == "`qos0_1to1_acl_random`"
    assert tables["rows"].cell("`qos0_1to1`", "penstock / mosquitto") == "30.00"
    assert tables["rows"].cell("`qos0_1to1_acl`", "mosquitto, µs each") == "6.50"


def test_tables_for_pages_tell_which_targets_are_missed_or_not_shown() -> None:
    """Where single repetitions disagree on a target, it is neither met nor missed."""
    results = []
    for name, ours, theirs in (
        ("qos0_1to1", [3000.0, 3100.0], [100.0, 100.0]),
        ("qos0_1to10", [300.0, 310.0], [100.0, 100.0]),
        ("qos1_1to1", [290.0, 900.0], [100.0, 100.0]),
        ("memory_queued", [2.0, 2.0], [1.4, 1.4]),
    ):
        for peer, values in ("penstock", ours), ("mosquitto", theirs):
            results.append(Result(ROWS[name], peer, [Measurement(value) for value in values]))
    missed = to_tables(results)["missed"]
    assert missed.cell("missed", "rows") == "`qos0_1to10`, `memory_queued`"
    assert missed.cell("not shown", "rows") == "`qos1_1to1`"
    assert to_tables(results[:2])["missed"].cell("missed", "rows") == "none"
