from __future__ import annotations

import pytest

from benchmarks import bystanders
from benchmarks.bystanders import CASES, Found, main, measure, overlapping_filters, to_markdown
from benchmarks.rows.latency import Lateness
from penstock.broker.mqtt.topics import matches


def test_the_overlapping_filters_all_match_and_are_all_different() -> None:
    """Else the case would be cheaper than it says."""
    filters = overlapping_filters()
    topic = "/".join("a" * bystanders.OVERLAPPING_LEVELS) + "/0"
    assert len(set(filters)) == len(filters) == 8192
    assert all(matches(each, topic) for each in filters)


def test_the_table_tells_milliseconds() -> None:
    """Alone and beside the case."""
    alone, beside = (Lateness(p50, 2 * p50, 3 * p50, 4 * p50, 0.0, 7, 0.0) for p50 in (0.001, 0.01))
    (row,) = to_markdown([Found("penstock", "large", alone, beside)])[2:]
    assert row == "| large | penstock | 2.00 | 10.00 | 20.00 | 40.00 | 7 |"


def test_mistake_in_the_arguments_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what is allowed."""
    assert main(["--cases", "nothing"]) == 2
    assert "slow_logger" in capsys.readouterr().err


def test_the_messages_of_a_pair_come_beside_a_case() -> None:
    """A look at one case that is quickly made, so that the program cannot rot."""
    assert "long_filters" in CASES
    found = measure("penstock", "long_filters", 0.2)
    assert not found.beside.lost
