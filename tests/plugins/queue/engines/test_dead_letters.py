from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.plugins.queue.engines.dead_letters import letter_row, redriven
from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.engines.store import Segment
from penstock.plugins.queue.wire.frames import Batch

ORIGIN: dict[str, Any] = {
    "queue": "q",
    "physical_queue": 5,
    "group": "g",
    "reason": "dead",
    "receives": 3,
}


def stored(properties: str) -> Decoded:
    """Return a segment of one message."""
    batch = Batch([0], ["a/b"], [b"x"], [1], ["dev"], [9.0], [properties])
    return Decoded(Segment(0, 1, 1, 1, 9.0, 9.0, 0), batch)


@pytest.mark.parametrize(
    "properties",
    [
        "",
        '{"content_type": "ü"}',
        '{"user_property": [["unit", "K"], ["unit", "F"]]}',
        '{"user_property": [["penstock-dead-queue", "other"], ["dead_letter", "other"]]}',
    ],
)
def test_a_dead_letter_comes_back_as_it_was(properties: str) -> None:
    """It tells where and why it died, until it is moved back; a publisher's words stay his."""
    row = letter_row(stored(properties), 0, **ORIGIN)
    assert row[:5] == ("a/b", b"x", 1, "dev", 9.0)
    before = json.loads(properties) if properties else {}
    assert json.loads(row[5]) == before | {"dead_letter": ORIGIN}
    queue, number, back = redriven(stored(row[5]), 0)
    assert (queue, number, back[:5]) == ("q", 5, row[:5])
    assert (json.loads(back[5]) if back[5] else {}) == before


def test_a_letter_that_dies_again_tells_its_last_death() -> None:
    """Once."""
    first = letter_row(stored(""), 0, **ORIGIN)
    second = letter_row(stored(first[5]), 0, **ORIGIN | {"queue": "dead"})
    assert json.loads(second[5]) == {"dead_letter": ORIGIN | {"queue": "dead"}}


@pytest.mark.parametrize(
    "properties",
    [
        '{"content_type": "t"}',
        '{"user_property": [["penstock-dead-queue", "q"], ["penstock-dead-physical-queue", "0"]]}',
        '{"content_type": "dead_letter"}',
    ],
)
def test_a_message_that_never_died_has_no_origin(properties: str) -> None:
    """It was published to the queue of dead letters, whatever its publisher says."""
    assert redriven(stored(properties), 0) == (None, None, ("a/b", b"x", 1, "dev", 9.0, properties))
