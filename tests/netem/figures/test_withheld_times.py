"""Times of withholding against times of impairment, counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.figures.records import FlowRow, LinkRow, Tables, WithheldRow
from penstock.netem.figures.withheld_times import Accuracy, find_impaired, judge_withholding
from penstock.netem.runs.bulk_flows import BulkFlow
from tests.helpers.netem_runs import SCENARIO, expected


def bad(link: str, begin: float, end: float) -> LinkRow:
    """Return a bad time of a link."""
    return LinkRow("adaptive", 1, link, "lossy", True, begin, end)


def test_a_subscriber_is_impaired_with_any_link_of_its_way_and_while_it_does_not_read() -> None:
    """Good times of links, other runs and other ways do not count."""
    tables = Tables(
        links=[
            bad("cloud-router", 10, 14),
            bad("router-edge", 12, 20),
            bad("field-cloud", 30, 40),
            bad("router-edge", 50, 60)._replace(seed=2),
            bad("router-edge", 70, 80)._replace(is_impaired=False),
        ]
    )
    assert find_impaired(SCENARIO, tables, "adaptive", 1, "sub") == [(10, 20)]
    stalled = dataclasses.replace(SCENARIO.subscribers["sub"], reads_from_seconds=5.0)
    scenario = dataclasses.replace(SCENARIO, subscribers={"sub": stalled})
    assert find_impaired(scenario, tables, "adaptive", 1, "sub") == [(0, 5), (10, 20)]


def test_a_bulk_flow_on_the_way_is_an_impairment() -> None:
    """While it sends; not one on another way, nor one of another run."""
    flows = {"backup": BulkFlow(("router", "edge")), "other": BulkFlow(("field", "cloud"))}
    scenario = dataclasses.replace(SCENARIO, bulk_flows=flows)
    tables = Tables(
        flows=[
            FlowRow("adaptive", 1, "backup", 3.0, 5.0, 7),
            FlowRow("adaptive", 1, "other", 6.0, 7.0, 7),
            FlowRow("adaptive", 2, "backup", 8.0, 9.0, 7),
        ]
    )
    assert find_impaired(scenario, tables, "adaptive", 1, "sub") == [(3.0, 5.0)]


def test_withholding_outside_of_impairments_and_five_seconds_after_is_found() -> None:
    """11 to 26 s withheld, 10 to 20 s bad: 9 s in it, 5 s of grace, 1 s that nothing explains."""
    tables = Tables(
        expected=[expected()],
        links=[bad("router-edge", 10, 20)],
        withheld=[
            WithheldRow("adaptive", 1, "sub", 11, 26, 3),
            WithheldRow("adaptive", 1, "sub", 2, 2.5, 1),
            WithheldRow("adaptive", 1, "another", 2, 9, 7),
        ],
    )
    found = judge_withholding(SCENARIO, tables, "adaptive", 1)
    assert found == Accuracy(withheld=15.5, impaired=10, both=9, outside=1.5, most_messages=3)
    assert judge_withholding(SCENARIO, tables, "adaptive", 1, "router-edge") == found
    assert judge_withholding(SCENARIO, tables, "adaptive", 1, "field-cloud") == Accuracy()


def test_subscribers_that_are_not_in_focus_do_not_count() -> None:
    """Neither what is withheld from them nor the time for which they are impaired."""
    tables = Tables(
        expected=[expected()._replace(is_focus=False)],
        links=[bad("router-edge", 10, 20)],
        withheld=[WithheldRow("adaptive", 1, "sub", 30, 40, 3)],
    )
    assert judge_withholding(SCENARIO, tables, "adaptive", 1) == Accuracy()


def test_a_subscriber_that_the_scenario_lacks_is_named() -> None:
    """Tables of another scenario are found out."""
    tables = Tables(expected=[expected()._replace(group="stranger")])
    with pytest.raises(NetemError, match="'stranger'; allowed: sub"):
        judge_withholding(SCENARIO, tables, "adaptive", 1)
