from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.broker.sending.log_fields import Named, fields_of, peer_name

PEER = peer_name("10.0.0.1:99", "tls", "c")


def fields(words: str, *arguments: object, **extra: Any) -> dict[str, Any]:
    """Return the fields of a line."""
    record = logging.LogRecord("penstock", logging.INFO, "x.py", 1, words, arguments, None)
    record.__dict__ |= extra
    return fields_of(record)


@pytest.mark.parametrize(
    ("words", "arguments", "found"),
    [
        ("queue: %s answers again", ("r",), {"event": "answers_again"}),
        ("stopping", (), {"event": "stopping"}),
        (
            "client %s: keep-alive timeout",
            ("c",),
            {"event": "keep_alive_timeout", "client_id": "c"},
        ),
        (
            "client %s: publish to %s refused: %s; %d so far",
            ("c", "t", "queue_full", 3),
            {"event": "publish_to_refused", "client_id": "c", "reason": "queue_full"},
        ),
        (
            "client %s: subscription to %.*s refused: %s; %d so far",
            ("c", 9, "t", "no right", 3),
            {"event": "subscription_to_refused", "client_id": "c", "reason": "no right"},
        ),
        (
            "%s: closed: %s",
            (PEER, "wrong byte"),
            {
                "event": "closed",
                "client_id": "c",
                "address": "10.0.0.1:99",
                "listener": "tls",
                "reason": "wrong byte",
            },
        ),
        (
            "client %s: connected, user %r, from %s",
            ("c", None, "somewhere"),
            {"event": "connected", "client_id": "c"},
        ),
        (
            "queue %s: physical queue %d is slow",
            ("q", 2),
            {"event": "physical_queue_is_slow", "queue": "q"},
        ),
        ("%s: %s", ("a", "b"), {"event": "message"}),
        ("100 %% of %s", ("a",), {"event": "of"}),
    ],
)
def test_fields_come_from_the_words_before_a_value(
    words: str, arguments: tuple[object, ...], found: dict[str, str]
) -> None:
    """And from the parts of a peer."""
    assert fields(words, *arguments) == found


def test_what_a_call_says_itself_goes_before() -> None:
    """In the order of all lines; what is None is left out."""
    told = Named("who has it", event="two_clients", address="a and b")
    assert list(fields("client %s: %s", "c", told).items()) == [
        ("event", "two_clients"),
        ("client_id", "c"),
        ("address", "a and b"),
    ]
    found = fields("client %s: %s", "c", "x", event="login_failed", user=None, reason="no")
    assert found == {"event": "login_failed", "client_id": "c", "reason": "no"}


def test_lines_of_others_have_an_event() -> None:
    """Whatever a library logs."""
    assert fields_of(logging.makeLogRecord({"msg": ValueError("x")}))["event"] == "message"
    assert fields("%(a)s is there", {"a": 1})["event"] == "is_there"
