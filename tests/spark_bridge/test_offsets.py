from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark_bridge.errors import QueueChangedError
from penstock.spark_bridge.offsets import (
    Held,
    Position,
    Range,
    find_losses,
    latest,
    plan_end,
    plan_ranges,
    resume,
)
from tests.helpers.effort import examples

LIFE = "7e3cf3a2"
"""Incarnation of the queue."""


def at(incarnation: str = LIFE, **following: int) -> Position:
    """Return a position; ``at(q0=5)`` stands at offset 5 of physical queue 0."""
    offsets = {int(name[1:]): offset for name, offset in following.items()}
    return Position("telemetry", offsets, incarnation)


def holding(offsets: Mapping[int, tuple[int, int]], incarnation: str = LIFE) -> Held:
    """Return what a queue holds, by physical queue."""
    return Held(incarnation, offsets)


def end(start: Position, offsets: Mapping[int, tuple[int, int]], limit: int | None) -> Position:
    """Return the end of a micro-batch that may read all of the queue."""
    return plan_end(start, latest("telemetry", holding(offsets)), max_messages=limit)


def test_a_position_survives_the_checkpoint() -> None:
    """What Spark wrote is what it reads back, and equal positions have equal texts."""
    position = Position("telemetry", {10: 3, 2: 1}, LIFE)
    text = json.dumps(position.to_json())
    assert text == '{"queue": "telemetry", "incarnation": "7e3cf3a2", "next": {"2": 1, "10": 3}}'
    assert Position.from_json(json.loads(text), "telemetry") == position


def test_a_checkpoint_without_incarnation_is_taken_for_one_of_the_queue() -> None:
    """The older format is read, is written as it was, and gets the incarnation by reading on."""
    text = '{"queue": "telemetry", "next": {"0": 3}}'
    position = Position.from_json(json.loads(text), "telemetry")
    assert json.dumps(position.to_json()) == text
    held = holding({0: (1, 9)})
    assert find_losses(position, held) == []
    assert resume(position, held) == at(q0=3)
    assert plan_ranges(position, at("", q0=5), held) == [Range(0, 3, 5, LIFE)]


def test_a_checkpoint_without_incarnation_that_the_queue_contradicts_is_told() -> None:
    """Offsets past the end are of a queue that was deleted."""
    (loss,) = find_losses(at("", q0=10), holding({0: (0, 9)}))
    assert "ends at offset 9, the checkpoint stands at 10" in loss


def test_a_checkpoint_goes_on_in_an_upgraded_queue_that_had_no_dashes() -> None:
    """The incarnation is the same in both forms."""
    held = holding({0: (0, 9)}, "7e3c-f3a2")
    assert find_losses(at(q0=5), held) == []


def test_a_queue_created_again_is_told_though_its_offsets_fit() -> None:
    """A queue that has grown past the checkpoint's offsets since is another one all the same."""
    held = holding({0: (0, 90), 1: (0, 90)}, "94bb0a51")
    (loss,) = find_losses(at(q0=5, q1=5), held)
    assert "deleted and created again" in loss
    assert "incarnation 7e3cf3a2, the queue's is 94bb0a51" in loss


def test_reading_on_in_a_queue_created_again_starts_at_its_first_message() -> None:
    """Offsets of the checkpoint mean nothing in it, nor does a micro-batch planned before."""
    held = holding({0: (2, 90)}, "94bb0a51")
    position = resume(at(q0=5), held)
    assert position == at("94bb0a51", q0=2)
    assert plan_ranges(at(q0=1), at(q0=5), held) == []
    assert plan_ranges(at(q0=5), at("94bb0a51", q0=9), held) == [Range(0, 2, 9, "94bb0a51")]


@pytest.mark.parametrize("value", [{"offset": 3}, {"queue": "telemetry", "next": {"a": 1}}, {}])
def test_a_checkpoint_of_another_source_is_refused(value: Mapping[str, object]) -> None:
    """A position that is none of ours is told as such."""
    with pytest.raises(QueueChangedError, match="no position in a Penstock queue"):
        Position.from_json(value, "telemetry")


def test_a_checkpoint_of_another_queue_is_refused() -> None:
    """Offsets of one queue would skip or repeat messages of another."""
    with pytest.raises(QueueChangedError, match="belongs to queue 'telemetry', the query reads 'o"):
        Position.from_json(at(q0=1).to_json(), "other")


def test_nothing_waiting_ends_where_it_began() -> None:
    """Spark runs no micro-batch then: equal positions, equal texts."""
    assert end(at(q0=5, q1=5), {0: (3, 5), 1: (5, 5)}, None) == at(q0=5, q1=5)


def test_without_limit_a_batch_takes_everything() -> None:
    """ReadAllAvailable means all."""
    assert end(at(q0=0, q1=5), {0: (0, 10), 1: (5, 6)}, None) == at(q0=10, q1=6)


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    """All physical queues advance through about the same time."""
    held = {0: (0, 900), 1: (0, 100)}
    assert end(at(q0=0, q1=0), held, 100) == at(q0=90, q1=10)


def test_a_limit_below_the_number_of_queues_still_advances() -> None:
    """One message at a time is slow, never stuck."""
    held = {0: (0, 2), 1: (0, 2), 2: (0, 2)}
    assert end(at(q0=0, q1=0, q2=0), held, 1) == at(q0=1, q1=0, q2=0)


def test_a_target_ends_the_run_though_more_came() -> None:
    """Available-now reads what was there at its start, then ends."""
    assert plan_end(at(q0=0, q1=0), at(q0=20)) == at(q0=20, q1=0)
    assert plan_end(at(q0=20, q1=0), at(q0=20)) == at(q0=20, q1=0)


def test_ranges_join_two_positions() -> None:
    """One range for each physical queue that advances."""
    held = holding({0: (0, 10), 1: (0, 10), 2: (4, 10)})
    ranges = plan_ranges(at(q0=2, q1=5), at(q0=6, q1=5, q2=8), held)
    assert ranges == [Range(0, 2, 6, LIFE), Range(2, 4, 8, LIFE)]


def test_a_new_physical_queue_is_read_from_its_first_message() -> None:
    """More physical queues in the policy file need no new checkpoint."""
    assert resume(at(q0=5), holding({0: (5, 9), 1: (0, 3)})) == at(q0=5, q1=0)


def test_nothing_is_lost_while_the_queue_holds_what_is_unread() -> None:
    """Messages that are read and not committed yet are no loss."""
    assert find_losses(at(q0=5), holding({0: (3, 9), 1: (0, 4)})) == []
    assert find_losses(at(q0=5), holding({0: (5, 5)})) == []


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({1: (0, 4)}, "physical queue 0 is gone, the checkpoint stands at offset 5"),
        ({0: (0, 4)}, "ends at offset 4, the checkpoint stands at 5: the queue was created anew"),
        ({0: (8, 9)}, "offsets 5 to 7 of physical queue 0 left the queue before this query read"),
    ],
)
def test_each_kind_of_loss_is_told_apart(held: dict[int, tuple[int, int]], told: str) -> None:
    """A queue that lost unread messages is never skipped over in silence."""
    (loss,) = find_losses(at(q0=5), holding(held))
    assert told in loss


def test_reading_on_after_a_loss_starts_at_what_is_there() -> None:
    """fail_on_data_loss=false goes on with the rest."""
    assert resume(at(q0=5, q1=5, q2=5), holding({0: (8, 9), 1: (0, 4)})) == at(q0=8, q1=0)


@settings(max_examples=examples(200), deadline=None)
@given(
    data=st.data(),
    limit=st.none() | st.integers(1, 7),
)
def test_every_message_is_planned_once_whatever_crashes(
    data: st.DataObject, limit: int | None
) -> None:
    """Exactly once: batches replayed after a crash are the same, and together miss nothing."""
    held = {0: (0, 0), 1: (0, 0)}
    start = at(q0=0, q1=0)
    read: list[tuple[int, int]] = []
    for step in range(data.draw(st.integers(1, 8))):
        if step == 3:
            held[2] = (0, 0)
        for number, (first, following) in held.items():
            held[number] = (first, following + data.draw(st.integers(0, 5)))
        past = end(resume(start, holding(held)), held, limit)
        ranges = plan_ranges(start, past, holding(held))
        if data.draw(st.booleans()):
            grown = {number: (first, last + 3) for number, (first, last) in held.items()}
            assert plan_ranges(start, past, holding(grown)) == ranges
        read += [(r.physical_queue, offset) for r in ranges for offset in range(r.start, r.end)]
        if data.draw(st.booleans()):
            for number, offset in past.following.items():
                held[number] = (offset, held[number][1])
        start = past
    assert len(read) == len(set(read))
    assert sorted(read) == sorted(
        (number, offset) for number, past in start.following.items() for offset in range(past)
    )
