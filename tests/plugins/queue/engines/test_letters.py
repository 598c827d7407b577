from __future__ import annotations

import json

import pytest

from penstock.plugins.queue.client import Batch
from penstock.plugins.queue.engines.letters import letter_row, redriven
from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.engines.store import Segment

MARKS = {"queue": "q", "group": "g", "reason": "dead", "receives": "3", "physical-queue": "5"}


def stored(properties: str) -> Decoded:
    """Return a segment of one message."""
    batch = Batch([0], ["a/b"], [b"x"], [1], ["dev"], [9.0], [properties])
    return Decoded(Segment(0, 1, 1, 1, 9.0, 9.0, 0), batch)


@pytest.mark.parametrize(
    "properties", ["", '{"content_type": "ü"}', '{"user_property": [["unit", "K"], ["unit", "F"]]}']
)
def test_a_dead_letter_comes_back_as_it_was(properties: str) -> None:
    """It tells where and why it died, until it is moved back."""
    row = letter_row(stored(properties), 0, MARKS)
    assert row[:5] == ("a/b", b"x", 1, "dev", 9.0)
    pairs = json.loads(row[5])["user_property"]
    assert ["penstock-dead-reason", "dead"] in pairs
    queue, number, back = redriven(stored(row[5]), 0)
    assert (queue, number, back[:5]) == ("q", 5, row[:5])
    assert (json.loads(back[5]) if back[5] else {}) == (
        json.loads(properties) if properties else {}
    )


def test_a_letter_that_dies_again_tells_its_last_death() -> None:
    """Once."""
    first = letter_row(stored(""), 0, MARKS)
    second = letter_row(stored(first[5]), 0, MARKS | {"queue": "dead"})
    pairs = json.loads(second[5])["user_property"]
    assert [text for name, text in pairs if name == "penstock-dead-queue"] == ["dead"]


def test_a_message_that_never_died_has_no_origin() -> None:
    """It was published to the queue of dead letters."""
    assert redriven(stored('{"content_type": "t"}'), 0)[:2] == (None, None)
