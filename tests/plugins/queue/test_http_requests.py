from __future__ import annotations

from typing import Any

import pytest

from penstock.plugins.queue.http_requests import read_handles, read_messages, read_offsets, seconds
from penstock.plugins.web.service import RequestError


def test_one_message_needs_no_list() -> None:
    """An enqueue of one message is that message."""
    (one,) = read_messages({"topic": "a/b", "text": "ü"}, 5.0, 10)
    assert (one.topic, one.payload, one.qos, one.arrived_at) == ("a/b", "ü".encode(), 1, 5.0)


def test_messages_carry_binary_payloads_publishers_and_properties() -> None:
    """Payloads come in base64; publisher and properties are stored as given."""
    row = {"topic": "a", "payload": "AP8=", "publisher": "p", "properties": {"content_type": "x"}}
    (one,) = read_messages({"messages": [row]}, 0.0, 10)
    assert (one.payload, one.publisher, one.properties) == (b"\x00\xff", "p", {"content_type": "x"})


GOOD = {"topic": "a", "text": ""}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "topic: read nothing; allowed: text"),
        ({"topic": 5, "text": ""}, "topic: read 5; allowed: text"),
        ({"topic": "a/#", "text": ""}, "topic: "),
        ({"topic": "", "text": ""}, "topic: "),
        ({"topic": "\ud800", "text": ""}, "topic: read half a surrogate"),
        ({"topic": "a"}, "payload: read neither; allowed: payload (base64) or text"),
        ({"topic": "a", "text": "", "payload": ""}, "payload: read payload and text"),
        ({"topic": "a", "payload": "?"}, 'payload: read "?"; allowed: base64'),
        ({"topic": "a", "payload": "ü"}, "allowed: base64"),
        ({"topic": "a", "text": "\udc00"}, "text: read half a surrogate"),
        ({**GOOD, "properties": []}, "properties: read []; allowed: a JSON object"),
        ({**GOOD, "publisher": None}, "publisher: read nothing; allowed: text"),
        ({**GOOD, "qos": 1}, 'body: read unknown key "qos"; allowed: payload, properties,'),
        ({"messages": []}, "messages: read 0 messages; allowed: a list of 1 to 3"),
        ({"messages": [GOOD] * 4}, "messages: read 4 messages; allowed: a list of 1 to 3"),
        ({"messages": "no"}, 'messages: read "no"'),
        ({"messages": [GOOD, 7]}, "messages[1]: read 7; allowed: a JSON object"),
        ({"messages": [GOOD, {"topic": "+", "text": ""}]}, "messages[1].topic: "),
        ({"messages": [GOOD], "topic": "a"}, 'unknown key "topic"; allowed: messages'),
    ],
)
def test_wrong_messages_are_told(body: dict[str, Any], told: str) -> None:
    """A mistake names its place, what was read and what is allowed."""
    with pytest.raises(RequestError) as raised:
        read_messages(body, 0.0, 3)
    assert told in str(raised.value)
    assert raised.value.status == 400


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


def test_offsets_are_read_by_physical_queue() -> None:
    """JSON's keys are texts, physical queues are numbers."""
    assert read_offsets({"offsets": {"0": 5, "12": 0}}) == {0: 5, 12: 0}


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        (None, "offsets: read nothing; allowed: an object of physical queue to offset"),
        ([1], "offsets: read [1]"),
        ({"a": 1}, 'physical queue: read "a"'),
        ({"0": -1}, "offsets.0: read -1; allowed: 0 to"),
        ({"0": "5"}, 'offsets.0: read "5"'),
        ({"0": 2**63}, "offsets.0: read 9223372036854775808"),
    ],
)
def test_wrong_offsets_are_told(offsets: Any, told: str) -> None:
    """An offset is a whole number that a physical queue may have."""
    with pytest.raises(RequestError) as raised:
        read_offsets({"offsets": offsets})
    assert told in str(raised.value)


@pytest.mark.parametrize("value", [-0.1, 61, "5", True, None, float("nan"), float("inf")])
def test_wrong_durations_are_told(value: Any) -> None:
    """A duration is a number of seconds in its range."""
    with pytest.raises(RequestError, match=r"wait_seconds: read .*; allowed: 0 to 60 seconds"):
        seconds("wait_seconds", value, 60)


def test_durations_may_be_whole_or_not() -> None:
    """Seconds may have a fraction."""
    assert (seconds("wait_seconds", 1, 60), seconds("wait_seconds", 0.5, 60)) == (1.0, 0.5)
