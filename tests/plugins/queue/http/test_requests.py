from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from penstock.plugins.queue.client import Position
from penstock.plugins.queue.http.requests import (
    optional_integer,
    query_of,
    read_action,
    read_group_spec,
    read_handles,
    read_position,
    read_queue_spec,
    read_start,
    seconds,
)
from penstock.plugins.web.service import RequestError


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "receipt_handles: read nothing; allowed: a list of at most 2"),
        ({"receipt_handles": "a"}, 'receipt_handles: read "a"'),
        ({"receipt_handles": ["a"] * 3}, "receipt_handles: read 3 handles"),
        ({"receipt_handles": ["a", 5]}, "receipt_handles: read 5; allowed: texts"),
    ],
)
def test_wrong_handles_are_told(body: dict[str, Any], told: str) -> None:
    """Receipt handles come as a list of texts."""
    with pytest.raises(RequestError) as raised:
        read_handles(body, 2)
    assert told in str(raised.value)


@pytest.mark.parametrize("action", [None, "delete", 5, ["ack"]])
def test_wrong_actions_are_told(action: Any) -> None:
    """There are four."""
    with pytest.raises(RequestError, match=r"action: read .*; allowed: ack, nack, extend, dead"):
        read_action({"action": action})


def test_positions_are_read_by_physical_queue() -> None:
    """JSON's keys are texts, physical queues are numbers; none is the earliest where allowed."""
    body = {"incarnation": "i", "offsets": {"0": 5, "12": 0}}
    assert read_position(body) == Position("i", {0: 5, 12: 0})
    assert read_position({}, "now") == Position("now", {})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"incarnation": "i"}, "offsets: read nothing; allowed: an object of physical queue"),
        ({"incarnation": "i", "offsets": [1]}, "offsets: read [1]"),
        ({"offsets": {}}, "incarnation: read nothing; allowed: text"),
        ({"incarnation": "i", "offsets": {"a": 1}}, 'physical queue: read "a"'),
        ({"incarnation": "i", "offsets": {"0": -1}}, "offsets.0: read -1; allowed: 0 to"),
        ({"incarnation": "i", "offsets": {"0": "5"}}, 'offsets.0: read "5"'),
        ({"incarnation": "i", "offsets": {"0": 2**63}}, "offsets.0: read 9223372036854775808"),
    ],
)
def test_wrong_positions_are_told(body: dict[str, Any], told: str) -> None:
    """An offset is a whole number that a physical queue may have; half a position is none."""
    for incarnation in (None, "now"):
        with pytest.raises(RequestError) as raised:
            read_position(body, incarnation)
        assert told in str(raised.value)


@pytest.mark.parametrize(
    ("value", "start"),
    [("earliest", "earliest"), ("latest", "latest"), (17, 17.0), ("17.5", 17.5), (0, 0.0)],
)
def test_a_start_is_a_word_or_a_time(value: Any, start: Any) -> None:
    """In a body and in a query."""
    assert read_start("to", value) == start


@pytest.mark.parametrize("value", [None, "noon", -1, "nan", "inf", True, [], 1e300])
def test_wrong_starts_are_told(value: Any) -> None:
    """With what they are allowed to be."""
    with pytest.raises(RequestError, match=r"to: read .*; allowed: earliest, latest, or seconds"):
        read_start("to", value)


@pytest.mark.parametrize("value", [-0.1, 61, "5", True, None, float("nan"), float("inf")])
def test_wrong_durations_are_told(value: Any) -> None:
    """A duration is a number of seconds in its range."""
    with pytest.raises(RequestError, match=r"wait_seconds: read .*; allowed: 0 to 60 seconds"):
        seconds("wait_seconds", value, 60)


def test_durations_may_be_whole_or_not() -> None:
    """Seconds may have a fraction; where a timeout of zero means nothing, it is refused."""
    assert (seconds("wait_seconds", 1, 60), seconds("wait_seconds", 0.5, 60)) == (1.0, 0.5)
    with pytest.raises(RequestError, match="read 0; allowed: more than 0 to 60 seconds"):
        seconds("visibility_timeout", 0, 60, is_zero_allowed=False)


def test_a_limit_that_is_not_given_is_none() -> None:
    """Neither is null."""
    found = [optional_integer(body, "n") for body in ({}, {"n": None}, {"n": 7})]
    assert found == [None, None, 7]
    with pytest.raises(RequestError, match="n: read 0"):
        optional_integer({"n": 0}, "n")


def test_settings_that_are_left_out_have_their_defaults() -> None:
    """Only groups that are named are meant."""
    spec = read_queue_spec({"max_bytes": "1 KiB", "tags": {"a": "b"}})
    assert (spec.max_bytes, spec.physical_queues, dict(spec.groups)) == (1024, 4, {})
    assert dict(spec.tags) == {"a": "b"}
    spec = read_queue_spec({"groups": {"g": {"max_receives": 3}}})
    assert [(name, group.max_receives) for name, group in spec.groups.items()] == [("g", 3)]
    assert read_group_spec({}).visibility_timeout == 30


def test_every_wrong_setting_is_told() -> None:
    """All at once, each with its place."""
    with pytest.raises(RequestError) as raised:
        read_queue_spec({"physical_queues": 0, "groups": {"g": {"max_receives": "x"}}})
    assert "physical_queues: read 0" in str(raised.value)
    assert "groups.g.max_receives: read 'x'" in str(raised.value)
    with pytest.raises(RequestError, match="kind: read 'x'"):
        read_group_spec({"kind": "x"})


def test_a_query_is_checked() -> None:
    """Each key once, and no other."""
    assert query_of(make_mocked_request("GET", "/?a=1"), ["a", "b"])["a"] == "1"
    for query, told in (("c=1", 'read "c"; allowed, each once: a, b'), ("a=1&a=2", 'read "a"')):
        with pytest.raises(RequestError, match=told):
            query_of(make_mocked_request("GET", f"/?{query}"), ["a", "b"])
    with pytest.raises(RequestError, match="allowed, each once: none"):
        query_of(make_mocked_request("GET", "/?a=1"), [])
