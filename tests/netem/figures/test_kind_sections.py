from __future__ import annotations

from penstock.netem.figures.kind_sections import kind_sections
from penstock.netem.figures.measures import Measures
from tests.helpers.kinds import MADE_UP, kind_run, kind_scenario
from tests.helpers.netem_runs import INFO, whole_run


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
