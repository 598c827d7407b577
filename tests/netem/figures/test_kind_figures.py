from __future__ import annotations

import math

import pytest

from penstock.netem.figures.estimates import Standing
from penstock.netem.figures.kind_figures import KindFigures, kind_verdicts
from penstock.netem.figures.kind_sections import kind_sections
from penstock.netem.figures.measures import Measures, TargetVerdict
from tests.helpers.kinds import MADE_UP, kind_run, kind_scenario
from tests.helpers.netem_runs import INFO, whole_run


def of_made_up(seeds: list[int] | None = None) -> dict[str, TargetVerdict]:
    """Return what came out, by figure."""
    scenario = kind_scenario(seeds=seeds or [1, 2, 3, 4, 5, 6])
    found = kind_verdicts(kind_run(scenario, MADE_UP), "full")
    return {each.figure: each for each in found}


def test_a_policy_closes_a_share_of_what_the_oracle_gains() -> None:
    """The gain is 1 - 1 / 5, and 3 of 4 s are closed; interval and units are those of seeds."""
    figures = KindFigures(kind_run(kind_scenario(), MADE_UP))
    (loss, outage) = figures.cells
    gain = figures.estimate([loss], figures.gain([loss], "oracle"))
    assert gain.value == pytest.approx(0.8)
    assert gain.low == pytest.approx(0.8)
    assert gain.n_units == 6
    share = figures.estimate([loss], figures.share([loss], "adaptive"))
    assert share.value == pytest.approx(3 / 4)
    assert figures.estimate([outage], figures.share([outage], "adaptive")).value == -1.5
    p90 = figures.estimate([loss], figures.p90_over([loss], "adaptive", "none"))
    assert p90.value == pytest.approx(3 / 6)


def test_cells_of_a_kind_count_together() -> None:
    """The units of all: a mean over all of their messages."""
    figures = KindFigures(kind_run(kind_scenario(), MADE_UP))
    found = figures.estimate(figures.cells, figures.mean(figures.cells, "none", "small"))
    assert found.value == pytest.approx(20 / 3)
    assert found.n_units == 12


def test_receivers_of_a_link_are_one_unit() -> None:
    """Their messages count alike."""
    scenario = kind_scenario(kinds=("two",))
    figures = KindFigures(kind_run(scenario, {("two", "none", "small"): [1.0, 3.0]}))
    found = figures.estimate(figures.cells, figures.mean(figures.cells, "none", "small"))
    assert (found.value, found.n_units) == (2.0, 6)
    assert figures.samples(figures.cells, "none", "small")[0] == [1.0, 3.0, 1.0, 3.0]


def test_a_broker_that_was_not_measured_has_no_figure() -> None:
    """Not even where it was on some of the cells."""
    partly = {key: took for key, took in MADE_UP.items() if key[:2] != ("outage", "oracle")}
    figures = KindFigures(kind_run(kind_scenario(), partly))
    assert figures.gain([figures.cells[0]], "oracle") is not None
    assert figures.gain(figures.cells, "oracle") is None
    assert math.isnan(figures.estimate(figures.cells, None).value)


def test_targets_are_judged_for_each_cell() -> None:
    """Each figure against its bound, counted by hand; the worst cell is named."""
    found = of_made_up()
    assert {name: each.standing for name, each in found.items()} == {
        "lanes: small mean over mosquitto's, median of the cells": Standing.MISSED,  # 0.05, 1
        "lanes: large mean over mosquitto's, median of the cells": Standing.MET,  # 1, 1.1
        "lanes: small p99": Standing.MET,
        "adaptive: share of the oracle's gain, where that is over 0.2": Standing.MET,
        "adaptive: small p90 over none's": Standing.MISSED,  # 0.5, 1.15
        "adaptive: large mean over none's, median of the cells": Standing.MISSED,  # 1.8, 1.3
        "adaptive: large mean over none's, where small messages gain over half": Standing.MET,
        "adaptive: large mean over none's, where small messages gain less than a fifth": (
            Standing.MISSED
        ),
    }
    share = found["adaptive: share of the oracle's gain, where that is over 0.2"]
    assert share.found == "of 1, 1 met; worst 0.75 (0.75 to 0.75): loss, cubic, direct"
    p90 = found["adaptive: small p90 over none's"]
    assert p90.found == "of 2, 1 met, 1 missed; worst 1.15 (1.15 to 1.15): outage, cubic, direct"
    # In an outage, no connection helps.
    assert found["lanes: small p99"].found.startswith("of 1, 1 met; worst 500 ms")


def test_too_few_units_show_nothing() -> None:
    """One seed has no interval, whatever the value."""
    found = of_made_up(seeds=[1])
    assert {each.standing for each in found.values()} == {Standing.NOT_SHOWN}
    assert not any(each.is_missed for each in found.values())


def test_of_few_seeds_each_kind_is_judged_as_a_whole() -> None:
    """Two seeds of three cells have six units, and each cell by itself has no interval."""
    scenario = kind_scenario(kinds=("loss",), seeds=[1, 2], congestion_controls=("a", "b", "c"))
    measures = kind_run(scenario, MADE_UP)
    found = {each.figure: each for each in kind_verdicts(measures, "full")}
    p90 = found["adaptive: small p90 over none's"]
    assert p90.found == "of 1, 1 met; worst 0.50 (0.50 to 0.50): loss, all, all"
    assert p90.standing is Standing.MET
    assert [row.words for row in KindFigures(measures).rows] == [
        ("loss", "all", "all"),
        ("loss", "a", "direct"),
        ("loss", "b", "direct"),
        ("loss", "c", "direct"),
    ]


def test_a_short_run_judges_no_timing() -> None:
    """All of them are."""
    found = kind_verdicts(kind_run(kind_scenario(), MADE_UP), "short")
    assert {each.word for each in found} == {"not judged"}
    assert not any(each.is_missed for each in found)
    assert found[0].line.startswith("not judged: lanes: small mean over mosquitto's, median of")


def test_a_message_that_never_came_leaves_no_ratio() -> None:
    """It counts with an infinite latency, so that its broker meets nothing."""
    lossy = {**MADE_UP, ("loss", "adaptive", "small"): [math.inf, 1.0]}
    found = kind_verdicts(kind_run(kind_scenario(), lossy), "full")
    standings = {each.figure: each.standing for each in found}
    assert standings["adaptive: small p90 over none's"] is Standing.MISSED


def test_a_scenario_without_kinds_has_no_such_targets() -> None:
    """As most have none."""
    assert kind_verdicts(Measures(INFO.scenario, whole_run()), "full") == []


def test_each_kind_and_each_of_its_cells_has_a_row() -> None:
    """Counted by hand; a kind with one cell has one row."""
    found = {each.name: each for each in kind_sections(kind_run(kind_scenario(), MADE_UP))}
    policies = [dict(zip(found["kinds"].columns, row, strict=True)) for row in found["kinds"].rows]
    assert policies[0] == {
        "kind": "loss",
        "congestion control": "cubic",
        "way": "direct",
        "none, small mean": "5.0 s (5.0 s to 5.0 s)",
        "oracle gains": "80 % (80 % to 80 %)",
        "adaptive closes": "0.75 (0.75 to 0.75)",
        "adaptive, small p90": "0.50 (0.50 to 0.50)",
        "oracle, large mean": "1.50 (1.50 to 1.50)",
        "adaptive, large mean": "1.80 (1.80 to 1.80)",
        "units": "6",
    }
    assert [each["kind"] for each in policies] == ["loss", "outage"]
    (loss, _) = found["kinds lanes"].rows
    lanes = dict(zip(found["kinds lanes"].columns, loss, strict=True))
    assert lanes["mosquitto, small mean"] == "6.0 s (6.0 s to 6.0 s)"
    assert lanes["lanes, small mean"] == "0.05 (0.05 to 0.05)"
    assert lanes["lanes, small p99"] == "500 ms (500 ms to 500 ms)"
    assert lanes["lanes, large mean"] == "1.00 (1.00 to 1.00)"
    assert found["kinds large"].columns[3:] == ["none", "oracle", "adaptive", "units"]
    assert len(found["kinds latency"].rows) == 10


def test_brokers_that_did_not_run_have_no_tables() -> None:
    """Latencies are shown in any case."""
    scenario = kind_scenario()
    for name in ("oracle", "mosquitto"):
        del scenario.brokers[name]
    found = kind_sections(kind_run(scenario, MADE_UP))
    assert [each.name for each in found] == ["kinds latency"]


def test_a_scenario_without_kinds_has_no_such_tables() -> None:
    """As most have none."""
    assert kind_sections(Measures(INFO.scenario, whole_run())) == []
