from __future__ import annotations

import pytest

from script.demo_program.books import (
    Percentiles,
    compare,
    percentiles,
    read_ledger,
    read_sink_ledger,
)


def test_what_is_missing_and_what_is_there_twice_is_named() -> None:
    """A message that is not there is missing; one that is there twice is repeated."""
    comparison = compare({1, 2, 3, 4}, [4, 1, 4, 9])
    assert (comparison.missing, comparison.repeated, comparison.found) == ([2, 3], [4], 2)
    assert comparison.problems("here", "numbers", once=True) == [
        "here: 2 numbers missing: 2, 3",
        "here: 1 numbers twice: 4",
    ]
    assert len(comparison.problems("here", "numbers", once=False)) == 1


def test_what_is_complete_has_no_problems() -> None:
    """Every message once, in whatever order, is as it should be."""
    assert compare({"a", "b"}, ["b", "a"]).problems("here", "topics", once=True) == []


def test_of_many_missing_messages_some_are_shown() -> None:
    """A problem fits a line."""
    problem = compare(set(range(100)), []).problems("here", "numbers", once=True)
    assert problem == ["here: 100 numbers missing: 0, 1, 2, 3, 4, ..."]


def test_percentiles_of_a_known_distribution() -> None:
    """Half of the times from 0 to 100 s are below 50 s, and nine in ten below 90 s."""
    assert percentiles(list(range(101))) == Percentiles(101, 50, 90, 99)


@pytest.mark.parametrize(("latencies", "found"), [([], None), ([3.0], Percentiles(1, 3, 3, 3))])
def test_percentiles_of_next_to_nothing(latencies: list[float], found: Percentiles | None) -> None:
    """Nothing has no percentiles; a single value is each of them."""
    assert percentiles(latencies) == found


def test_a_ledger_balances_when_every_place_is_counted() -> None:
    """Matched is the sum of all places, those of dropped messages by their reason."""
    figures = {
        "ledger/matched": 26,
        "ledger/delivered": 10,
        "ledger/inflight": 1,
        "ledger/withheld": 2,
        "ledger/queued": 3,
        "ledger/expired": 1,
        "ledger/moved": 5,
        "ledger/dropped/offline": 3,
        "ledger/dropped/queue_full": 1,
        "ledger/queued_bytes": 5_000,
    }
    ledger = read_ledger(figures)
    assert ledger.is_balanced
    assert not ledger.is_settled
    assert not read_ledger(figures | {"ledger/matched": 27}).is_balanced


def test_a_ledger_is_settled_when_nothing_is_on_its_way() -> None:
    """Delivered, expired and dropped are ends; the other places are not."""
    figures = {"ledger/matched": 3, "ledger/delivered": 2, "ledger/dropped/offline": 1}
    assert read_ledger(figures).is_settled
    assert not read_ledger({"ledger/matched": 3, "ledger/delivered": 2}).is_settled


def test_a_sinks_ledger_is_its_own() -> None:
    """The account of one queue leaves those of others out."""
    figures = {
        "ledger/sinks/queue.a/matched": 5,
        "ledger/sinks/queue.a/stored": 3,
        "ledger/sinks/queue.a/dropped/full": 2,
        "ledger/sinks/queue.b/matched": 9,
    }
    assert read_sink_ledger(figures, "queue.a").is_balanced
    assert not read_sink_ledger(figures, "queue.b").is_balanced
