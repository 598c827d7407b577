from __future__ import annotations

from typing import Any

import pytest

from penstock.spark_bridge.progress_totals import OBSERVATION, ProgressTotals


def report(batch: int, rows: int, end: Any = None, **more: Any) -> dict[str, Any]:
    """Return a progress report as Spark gives it."""
    return {"batchId": batch, "numInputRows": rows, "sources": [{"endOffset": end}]} | more


def test_each_batch_counts_once_however_often_it_is_reported() -> None:
    """Spark keeps old reports and repeats idle ones."""
    totals = ProgressTotals()
    reports = [report(0, 5), report(1, 0), report(1, 7), report(2, 0)]
    told = [totals.add(one) for one in reports + reports]
    assert told == [True, False, True, False, False, False, False, False]
    assert (totals["rows"], totals["batches"]) == (12, 2)


def test_only_batches_that_had_rows_take_time() -> None:
    """Waiting for messages is not ingesting them."""
    totals = ProgressTotals()
    for batch, rows in enumerate((5, 0, 5)):
        totals.add(report(batch, rows, durationMs={"triggerExecution": 100}))
    assert totals["milliseconds"] == 200


def test_counts_go_on_in_a_query_that_was_started_again() -> None:
    """A run may follow the queue first and drain it then, with one checkpoint."""
    totals = ProgressTotals()
    totals.add(report(0, 5))
    totals.add(report(1, 3))
    assert totals["rows"] == 8


def test_late_groups_and_observed_counts_are_added_up() -> None:
    """What Spark dropped or marked is counted by reason."""
    totals = ProgressTotals()
    late = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}]
    assert totals.observed() == {}
    for batch in (0, 1):
        observed = {OBSERVATION: {"messages": 9, "malformed": 4}, "other": {"messages": 1}}
        totals.add(report(batch, 9, stateOperators=late, observedMetrics=observed))
    assert totals["late"] == 6
    assert totals.observed() == {"messages": 18, "malformed": 8}


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        ('{"q": {"next": {"0": 5, "1": 9}}}', '{"q": {"next": {"0": 7, "1": 9}}}'),
        ({"q": {"next": {"0": 5, "1": 9}}}, {"q": {"next": {"0": 7, "1": 9}}}),
    ],
)
def test_lag_is_what_waits_behind_the_newest_batch(end: Any, latest: Any) -> None:
    """For each physical queue; another source's offsets are none of a queue."""
    totals = ProgressTotals()
    source = [{"endOffset": end, "latestOffset": latest}]
    totals.add(report(0, 5) | {"sources": source, "processedRowsPerSecond": 2.5})
    assert totals.lag == {"q/0": 2, "q/1": 0}
    assert totals.rate == 2.5
    totals.add(report(1, 0) | {"sources": [{"endOffset": {"logOffset": 1}, "latestOffset": None}]})
    assert (totals.lag, totals.rate) == ({}, 2.5)


def test_the_ends_are_those_of_the_newest_batch() -> None:
    """Each source has an end: what all are done with may be deleted from the queue."""
    totals = ProgressTotals()
    assert totals.ends == []
    totals.add(report(1, 5, '{"q": {"next": {"0": 5}}}'))
    totals.add(report(0, 5, '{"q": {"next": {"0": 2}}}'))
    assert totals.ends == [{"q": {"next": {"0": 5}}}]
    told = [{"q": {"next": {"0": 9}}}, {"logOffset": 1}, {"q": {"next": {"0": 7}}}]
    totals.add(report(2, 5) | {"sources": [{"endOffset": one} for one in told]})
    assert totals.ends == [told[0], told[2]]
    totals.add(report(3, 0, None))
    assert totals.ends == []
