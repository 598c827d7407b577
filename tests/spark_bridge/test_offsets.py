from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock.spark_bridge.errors import QueueChangedError
from penstock.spark_bridge.offsets import (
    ONE_TASK_MESSAGES,
    Position,
    QueueContents,
    QueuePosition,
    Range,
    find_losses,
    least,
    ranges_between,
    resume,
    split,
)

LIFE = "7e3cf3a2"
"""Incarnation of the queue."""


def at(incarnation: str = LIFE, **following: int) -> QueuePosition:
    """Return a position; ``at(q0=5)`` stands at offset 5 of physical queue 0."""
    offsets = {int(name[1:]): offset for name, offset in following.items()}
    return QueuePosition(offsets, incarnation)


def holding(offsets: Mapping[int, tuple[int, int]], incarnation: str = LIFE) -> QueueContents:
    """Return what a queue holds, by physical queue."""
    return QueueContents(incarnation, offsets)


def test_a_position_survives_the_checkpoint() -> None:
    """What Spark wrote is what it reads back, and equal positions have equal texts."""
    position = Position({"b": at(q10=3, q2=1), "a": at("94bb0a51", q0=7)})
    text = json.dumps(position.to_json())
    assert text == (
        '{"a": {"incarnation": "94bb0a51", "next": {"0": 7}}, '
        '"b": {"incarnation": "7e3cf3a2", "next": {"2": 1, "10": 3}}}'
    )
    assert Position.from_json(json.loads(text), ["a", "b", "new"]) == position


def test_a_queue_created_again_is_told_though_its_offsets_fit() -> None:
    """A queue that has grown past the checkpoint's offsets since is another one all the same."""
    held = holding({0: (0, 90), 1: (0, 90)}, "94bb0a51")
    (loss,) = find_losses(at(q0=5, q1=5), held)
    assert "deleted and created again" in loss
    assert "incarnation 7e3cf3a2, the queue's is 94bb0a51" in loss


def test_reading_on_in_a_queue_created_again_starts_at_its_first_message() -> None:
    """Offsets of the checkpoint mean nothing in it."""
    held = holding({0: (2, 90)}, "94bb0a51")
    position = resume(at(q0=5), held)
    assert position == at("94bb0a51", q0=2)


@pytest.mark.parametrize(
    "value",
    [{"offset": 3}, {"queue": "telemetry", "next": {"a": 1}}, {"a": {"0": 1}}, {"a": {"next": 5}}],
)
def test_a_checkpoint_of_another_source_is_refused(value: Mapping[str, object]) -> None:
    """A position that is none of ours is told as such."""
    with pytest.raises(QueueChangedError, match="no position in a Penstock queue"):
        Position.from_json(value, ["telemetry", "a"])


def test_a_checkpoint_of_another_queue_is_refused() -> None:
    """Offsets of one queue would skip or repeat messages of another."""
    with pytest.raises(QueueChangedError, match="belongs to queue 'telemetry', the query reads 'o"):
        Position.from_json(Position({"telemetry": at(q0=1)}).to_json(), ["other"])


def test_ranges_join_two_positions() -> None:
    """One range for each physical queue that advances."""
    ranges = ranges_between("q", at(q0=2, q1=5, q2=4), at(q0=6, q1=5, q2=8))
    assert ranges == [Range("q", 0, 2, 6, LIFE), Range("q", 2, 4, 8, LIFE)]


def test_the_least_of_positions_is_below_all_of_them() -> None:
    """In what they have in common; a queue that one alone reads is its own affair."""
    one, other = at(q0=4, q1=2), at(q0=3, q1=5, q2=7)
    least_of = least([Position({"q": one, "alone": one}), Position({"q": other})])
    assert least_of == Position({"q": at(q0=3, q1=2), "alone": one})
    assert least([Position({"q": other}), Position({"q": one})]).queues["q"] == at(q0=3, q1=2)
    gone = replace(other, incarnation="another")
    assert least([Position({"q": one}), Position({"q": gone})]).queues["q"].following == {}


def test_a_name_and_a_beginning_stand_in_the_checkpoint() -> None:
    """Until the end of the next micro-batch, which has the name alone."""
    start = Position({"q": at(q0=3)}).named("mine")
    assert start.to_json()["q"] == {
        "incarnation": LIFE,
        "reader": "mine",
        "first": {"0": 3},
        "next": {"0": 3},
    }
    assert Position.from_json(start.to_json()) == start
    end = Position({"q": replace(start.queues["q"], following={0: 5})})
    assert end.beginnings() == Position({"q": replace(at(q0=3), reader="mine")})
    assert (end.reader, Position({"q": at(q0=3)}).reader) == ("mine", "")
    assert Position({"q": at(q0=3)}).beginnings() == Position({})


def test_long_ranges_are_split_into_as_many_parts_as_are_asked_for() -> None:
    """In proportion, without a gap, and never more parts than messages."""
    long, short = Range("q", 0, 10, 110, LIFE), Range("q", 1, 0, 10, LIFE)
    parts = split([long, short], 11)
    assert [(one.physical_queue, one.start, one.end) for (one,) in parts] == [
        *((0, start, start + 10) for start in range(10, 110, 10)),
        (1, 0, 10),
    ]
    assert split([long, short], 2) == [[long], [short]]
    few = split([Range("q", 0, 5, 8, LIFE)], 10)
    assert [(one.start, one.end) for (one,) in few] == [(5, 6), (6, 7), (7, 8)]
    assert split([], 4) == []


def test_a_few_messages_are_one_task_and_more_are_one_for_each_physical_queue() -> None:
    """Each task writes a file."""
    last = Range("q", 1, 0, 1, LIFE)
    few = [Range("q", 0, 0, ONE_TASK_MESSAGES - 1, LIFE), last]
    assert split(few, 0) == [few]
    more = [Range("q", 0, 0, ONE_TASK_MESSAGES, LIFE), last]
    assert split(more, 0) == [[one] for one in more]
    assert split([], 0) == []


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
