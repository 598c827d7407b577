from __future__ import annotations

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.figures.intervals import intersection, total_seconds, union
from penstock.netem.figures.table_rows import LinkRow, Tables, WithheldRow
from penstock.netem.figures.withheld_times import Accuracy, find_impaired, judge_withholding
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


def test_times_that_touch_or_overlap_are_one() -> None:
    """Order does not matter, and no time is not there."""
    assert union([(5, 6), (1, 2), (2, 3), (1, 1.5), (8, 8)]) == [(1, 3), (5, 6)]
    assert union([]) == []


def test_times_at_once_are_those_in_both() -> None:
    """One long time is cut by several short ones, and the other way round."""
    assert intersection([(0, 10)], [(1, 2), (4, 12)]) == [(1, 2), (4, 10)]
    assert intersection([(1, 2), (4, 12)], [(0, 10)]) == [(1, 2), (4, 10)]
    assert intersection([(0, 1)], [(1, 2)]) == []


def test_a_second_that_is_twice_there_counts_once() -> None:
    """How long it was so, not how often it is said."""
    assert total_seconds([(0, 2), (1, 3), (5, 5.5)]) == 3.5
