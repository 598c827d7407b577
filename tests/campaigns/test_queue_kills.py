from __future__ import annotations

import json
from typing import Any

import pytest

from tests.campaigns import queue_kills
from tests.campaigns.queue_kills import (
    QUICK_KILLS,
    QUICK_LIFE_SECONDS,
    Record,
    Sent,
    Server,
    drawn,
    judge,
    n_disordered,
    read_record,
    run,
)


def lines(*events: Any) -> str:
    """Return the log of a consumer."""
    return "".join(json.dumps(event) + "\n" for event in events)


def received(at: float, payload: str, offset: int, count: int = 1, asked: float = 0.0) -> list[Any]:
    """Return an answer with one message, asked for just before unless it is said when."""
    return ["got", asked or at - 0.1, at, [[payload, 0, offset, count]]]


def acknowledged(at: float, *offsets: int) -> list[list[Any]]:
    """Return an acknowledgement and its confirmation."""
    places = [[0, offset] for offset in offsets]
    return [["settling", at, places], ["settled", at + 0.1, places]]


def judged(
    *events: Any, promised: set[str], repeated: tuple[str, ...] = (), kills: tuple[float, ...] = ()
) -> dict[str, float]:
    """Return the values of promises that the events break, where all groups wrote the same."""
    record = read_record([lines(*events)])
    findings = judge(
        Sent(promised, set(repeated), kills), dict.fromkeys(queue_kills.GROUPS, record)
    )
    return {each.name: each.value for each in findings if each.is_met is False}


RIGHT = (
    received(1, "p 1 0", 0),
    *acknowledged(1.1, 0),
    received(2, "p 1 1", 1),
    received(5, "p 1 1", 1, 2),
    *acknowledged(5.1, 1),
)
BOTH = {"p 1 0", "p 1 1"}


def test_what_at_least_once_allows_breaks_nothing() -> None:
    """A message that was not acknowledged comes again, with a higher receive count."""
    assert judged(*RIGHT, promised=BOTH) == {}


@pytest.mark.parametrize(
    ("event", "promise"),
    [
        (received(9, "p 1 1", 7), "others stored more than once"),
        (received(9, "p 1 0", 0, 2), "received after a confirmed acknowledgement"),
        (received(3, "p 1 1", 1), "received again under the same receive count"),
        (received(1.05, "p 1 2", 2), "out of their key's order"),
    ],
)
def test_each_broken_promise_is_found(event: list[Any], promise: str) -> None:
    """One line too much in the logs of the consumers."""
    assert judged(*RIGHT, event, promised=BOTH).get(promise, 0) > 0


def test_what_a_publisher_repeated_at_qos_1_may_be_stored_again() -> None:
    """The second copy breaks neither that promise nor the order."""
    again = received(9, "p 1 1", 7)
    assert judged(*RIGHT, received(8, "p 1 2", 2), again, promised=BOTH, repeated=("p 1 1",)) == {}


def test_a_kill_of_the_server_may_forget_the_last_receives() -> None:
    """Their count then comes again; a kill at another time excuses nothing."""
    again = received(9, "p 1 1", 1, 2)
    events = (*RIGHT[:-2], again)
    promise = "received again under the same receive count"
    assert judged(*events, promised=BOTH, kills=(5.5,)) == {}
    assert judged(*events, promised=BOTH, kills=(4.5, 8.5)) == {promise: 2}


def test_a_lost_message_is_found_for_each_group() -> None:
    """What was promised to its publisher and has come nowhere."""
    broken = judged(*RIGHT, promised=BOTH | {"p 2 2"})
    assert broken == {f"of these lost for group {name}": 1 for name in queue_kills.GROUPS}


def record(*events: Any) -> Record:
    """Return the record of one group."""
    return read_record([lines(*events)])


def test_an_earlier_message_of_a_key_is_not_asked_for_behind_a_later_one() -> None:
    """Another key's message may come at any time."""
    assert n_disordered(record(*RIGHT, received(6, "q 1 0", 2))) == 0
    assert n_disordered(record(*RIGHT, received(6, "p 1 0", 0, 2))) == 1
    # Asked for before the later one was there: its answer may only have been read late.
    assert n_disordered(record(*RIGHT, received(6, "p 1 0", 0, 2, asked=1.9))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_quick_run_kills_servers_and_consumers(seed: int) -> None:
    """As many of each, whatever the seed; in an order that the seed says."""
    kills = drawn(6, seed)
    assert sorted(kills) == [False] * 3 + [True] * 3
    assert drawn(6, seed) == kills


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("kind", QUICK_KILLS)
def test_kills_at_random_moments_break_no_promise(kind: Server) -> None:
    """What was acknowledged is delivered to each group, in order by key, and stored once."""
    findings = run(kind, QUICK_KILLS[kind], 1, QUICK_LIFE_SECONDS)
    assert not [each for each in findings if each.is_met is False]
    found = {each.name: each.value for each in findings}
    assert found["messages acknowledged to their publishers"] > 0
    assert found["kills of the server"] > 0
    assert found["kills of consumers"] > 0
