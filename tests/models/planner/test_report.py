from __future__ import annotations

from dataclasses import replace

from penstock.models.planner import planning
from penstock.models.planner.planning import Plan
from penstock.models.planner.report import tables
from tests.models.planner.small_plan import make_fleet, small_plan


def settings(plan: Plan) -> dict[str, str]:
    """Return what is to be set to what."""
    return {row[0]: row[1] for row in tables(plan)["settings"].rows}


def test_the_settings_come_first_and_each_says_why() -> None:
    """Who reads one table reads what to do."""
    found = tables(small_plan())
    assert next(iter(found)) == "settings"
    assert all(row[2] for row in found["settings"].rows)
    given = settings(small_plan())
    assert given["`limits.connections`"] == "39"
    assert given["open files (`ulimit -n`)"] == "231"
    assert given["`probing.probe_period` (T_Q)"] == "1 s"
    assert given["`withholding.threshold_s`"] == "10,000 bytes"
    assert given["receivers of recognition"] == "1"
    assert given["queue recognition: `n_max`"] == "5"
    for two_lanes, told in ((set(), "one"), ({"operators"}, "two, by size")):
        found_with = settings(replace(small_plan(), two_lanes=two_lanes))
        assert found_with["connections of operators"] == told
    assert given["`plugins.memory`"] == "not needed"
    assert given["cores"] == "1"


def test_a_limit_says_what_waits_and_a_machine_what_it_lacks() -> None:
    """A limit of 1,000 is no prediction where 59 wait; no disk replaces connections' memory."""
    plan = small_plan()
    rows = {row[0]: row[1:] for row in tables(plan)["settings"].rows}
    assert rows["`limits.queued_messages`"] == [
        "1,000",
        "no plan has less; 59 wait for one subscriber in 99 of 100 of its outages",
    ]
    assert rows["`limits.queued_bytes`"][1].startswith("1.9 MiB wait for one")
    assert "memory of the machine" not in rows
    little = replace(plan, fleet=make_fleet(("1 GiB", "64 MiB")))
    assert settings(little)["memory of the machine"] == "163.6 MiB at least"


def test_d_and_lambda_are_told_with_a_policy_that_has_them() -> None:
    """They are no matter to the others."""
    found = settings(replace(small_plan(), policy="probabilistic"))
    assert found["`withholding.max_withhold` (D)"] == "11.4 s"
    assert found["`withholding.congestion_rate` (lambda)"] == "0.1 /s"
    assert "`withholding.max_withhold` (D)" not in settings(replace(small_plan(), policy="none"))


def test_a_core_that_is_nearly_full_is_told() -> None:
    """Before a burst fills it."""
    plan = small_plan()
    full = [replace(each, rate=0.8) for each in plan.stages if each.name == "broker's core"]
    assert settings(replace(plan, stages=full))["cores"] == "2, or two brokers"
    slow = replace(plan, costs=plan.costs.faster(0.002))
    assert settings(slow)["cores"] == "2"


def test_each_alternative_has_its_row() -> None:
    """Variants of deliveries, policies, numbers of receivers and strategies."""
    found = tables(small_plan())
    assert len(found["deliveries"].rows) == sum(map(len, small_plan().deliveries.values()))
    assert len(found["policies"].rows) == 6
    assert [row[1] for row in found["back ends"].rows] == ["1 (in the file and recommended)", "2"]
    assert [row[1] for row in found["strategies"].rows] == [
        "conventional",
        "pms",
        "rds",
        "rds+wake",
    ]
    assert found["memory"].rows[-1][0] == "together"
    assert found["costs"].rows[0][:2] == ["receive", "4.7 µs"]


def test_tables_without_rows_are_left_out() -> None:
    """A fleet of back ends alone has no deliveries."""
    plan = replace(
        small_plan(),
        fleet=replace(make_fleet(), subscribers={}),
        deliveries={},
        held={},
        two_lanes=set(),
    )
    found = tables(plan)
    assert "deliveries" not in found
    assert "policies" not in found
    assert "`limits.queued_messages`" not in settings(plan)
    assert plan.queued_messages == planning.LEAST_QUEUED_MESSAGES
