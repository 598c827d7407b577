from __future__ import annotations

import io

import pytest

from penstock.netem.links.channel import Counts
from penstock.netem.links.forwarder_messages import (
    Add,
    AddTc,
    Answer,
    Follow,
    Request,
    Switch,
    Tell,
    read_answer,
    take_requests,
    write_message,
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
    """Whatever kind it is, the other end has it whole, and nothing is left."""
    data = bytearray(write_message(request_))
    assert take_requests(data) == [request_]
    assert not data


def test_requests_may_come_in_pieces_and_several_at_once() -> None:
    """How the pipe cuts them does not matter: each comes once, with its last byte."""
    requests: list[Request] = [Tell(1), Switch(2, LOSSY), Tell(3)]
    stream = b"".join(map(write_message, requests))
    assert take_requests(bytearray(stream)) == requests
    arrived = bytearray()
    taken = []
    for n, byte in enumerate(stream):
        arrived.append(byte)
        told = take_requests(arrived)
        taken += told
        if told == [requests[0]]:
            assert n + 1 == len(write_message(requests[0]))
    assert taken == requests


def test_an_answer_is_read_as_it_was_written() -> None:
    """The log and the counts of both directions come back."""
    answer = Answer(log=[(1.5, "good")], upstream=Counts(taken=3, lost=1), downstream=Counts())
    pipe = io.BytesIO(write_message(answer) + write_message(Answer("no such link")))
    assert read_answer(pipe) == answer
    assert read_answer(pipe) == Answer("no such link")
    assert read_answer(pipe) is None
