from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.netem.links.channel import Counts
from penstock.netem.links.forwarder_messages import (
    ANSWER,
    REQUEST,
    Add,
    AddTc,
    Answer,
    Follow,
    Request,
    Switch,
    Tell,
)
from penstock.netem.links.link_variation import OnOff, Trace
from penstock.netem.links.profiles import GOOD, LOSSY, OPEN, Bursts, Direction, Profile

BURSTY = Profile("bursty", Direction(loss=Bursts(0.1, 0.5)), Direction(0.1, 1e6, queue_bytes=9))


@pytest.mark.parametrize(
    "request_",
    [
        Add(3, ("one", "two"), BURSTY, "1 3"),
        AddTc(3, "wires", ("cloud", "edge"), BURSTY),
        Switch(3, LOSSY),
        Follow(3, OnOff(GOOD, LOSSY, 1.5, 2.5, 9), 12.5),
        Follow(3, Trace((0.0, 1.0), (OPEN, BURSTY), 4.0), 12.5),
        Tell(3),
    ],
)
def test_a_request_is_read_as_it_was_written(request_: Request) -> None:
    """One line holds it whole, whatever kind it is."""
    line = REQUEST.dump_json(request_)
    assert b"\n" not in line
    assert REQUEST.validate_json(line) == request_


def test_an_answer_is_read_as_it_was_written() -> None:
    """The log and the counts of both directions come back."""
    answer = Answer(log=[(1.5, "good")], upstream=Counts(taken=3, lost=1), downstream=Counts())
    assert ANSWER.validate_json(ANSWER.dump_json(answer)) == answer


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b'{"do": "stop", "link": 1}',
        b'{"do": "tell", "link": "1"}',
        b'{"do": "tell", "link": 1, "more": 2}',
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    """Another word, another type or a further key is an error."""
    with pytest.raises(ValidationError):
        REQUEST.validate_json(line)
