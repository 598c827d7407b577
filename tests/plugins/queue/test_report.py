from __future__ import annotations

import base64
from typing import Any

import pytest

from penstock.plugins.queue.report import peek_lines, stats_lines


def figures(**more: Any) -> dict[str, Any]:
    """Return the figures of a queue with a group."""
    group = {
        "settings": {"kind": "lease"},
        "waiting": 1_200,
        "leased": 3,
        "delayed": 0,
        "received": 40,
        "settled": {"ack": 38, "nack": 0},
        "idle_seconds": 0.5,
    }
    queue = {
        "name": "work",
        "messages": 1_203,
        "payload_bytes": 2_048,
        "stored_bytes": 4_096,
        "oldest_seconds": 5_400,
        "removed": {"retention": 4, "purge": 1},
        "set_aside": 0,
        "groups": {"default": group},
    }
    return queue | more


def message(**more: Any) -> dict[str, Any]:
    """Return a message as the API has it."""
    plain = {
        "physical_queue": 1,
        "offset": 17,
        "enqueued_at": 1_795_406_400.25,
        "topic": "plant/1",
        "publisher": "gate",
        "payload": base64.b64encode(b"21.5").decode(),
        "properties": {},
    }
    return plain | more


def test_stats_are_a_table_of_queues_and_one_of_groups() -> None:
    """Columns are aligned, numbers to the right."""
    empty = figures(name="a", messages=0, oldest_seconds=None, groups={})
    assert stats_lines([figures(), empty]) == [
        "queue  messages  payload   stored  oldest  removed unread  set aside",
        "work      1,203  2.0 KiB  4.0 KiB  90 min               5          0",
        "a             0  2.0 KiB  4.0 KiB       -               5          0",
        "",
        "queue  group    kind   waiting  leased  delayed  received  settled  last request",
        "work   default  lease    1,200       3        0        40  38 ack   500 ms ago",
    ]


def test_stats_tell_what_each_strategy_did() -> None:
    """Groups that had requests are told; without a hit there are no messages a hit."""
    none = {"requests": 0, "held": 0, "hit_dequeues": 0, "missed_dequeues": 0, "messages": 0}
    some = {"requests": 40, "held": 3, "hit_dequeues": 16, "missed_dequeues": 2, "messages": 1_000}
    requests = {"by_strategy": {"rds+wake": some, "pms": none}}
    groups = {"default": figures()["groups"]["default"] | {"requests": requests}}
    assert stats_lines([figures(groups=groups)])[-4:] == [
        "",
        "queue  group    dequeue   requests  held  hits  misses  messages a hit",
        "work   default  rds+wake        40     3    16       2            62.5",
        "work   default  pms              0     0     0       0               -",
    ]


def test_stats_tell_which_physical_queues_are_left_out() -> None:
    """Those of this moment, and how often there were any; a queue without any is not shown."""
    calm = figures(name="calm", enqueued={"excluded": [], "exclusions": 0})
    assert len(stats_lines([calm])) == len(stats_lines([figures()]))
    slow = figures(enqueued={"excluded": [2, 5], "exclusions": 1_003})
    back = figures(name="back", enqueued={"excluded": [], "exclusions": 4})
    assert stats_lines([slow, back, calm])[-4:] == [
        "",
        "queue  physical queues left out  times left out",
        "work   2, 5                               1,003",
        "back   -                                      4",
    ]


def test_a_server_without_queues_shows_the_header_alone() -> None:
    """An empty answer is no error."""
    assert len(stats_lines([])) == 1


def test_peek_shows_where_a_message_is_and_how_it_begins() -> None:
    """A payload that is longer than a line is cut."""
    long = message(payload=base64.b64encode(b"x" * 100).decode())
    header, short, cut = peek_lines([message(), long])
    assert header.split() == ["place", "arrived", "topic", "publisher", "bytes", "payload"]
    assert short.split() == ["1:17", "2026-11-23T04:00:00Z", "plant/1", "gate", "4", "21.5"]
    assert cut.endswith(f"  100  {'x' * 60}…")


def test_peek_shows_where_messages_died() -> None:
    """By what the queue knows; the user properties of a publisher say nothing of it."""
    origin = {"queue": "work", "group": "default", "reason": "max_receives", "receives": 5}
    forged = {"user_property": [["penstock-dead-queue", "other"]]}
    header, dead, other = peek_lines(
        [message(properties={"dead_letter": origin}), message(properties=forged)]
    )
    assert "  died in  " in header
    assert "work/default: max_receives, 5 receives" in dead
    assert "other" not in other


def test_a_terminal_is_safe_from_what_clients_send() -> None:
    """Control characters of topics, names and payloads are shown as such."""
    evil = "\x1b[2J"
    payload = base64.b64encode(b"\x1b]0;owned\x07\xff").decode()
    lines = peek_lines([message(topic=evil, publisher=evil, payload=payload)])
    lines += stats_lines([figures(name=evil)])
    assert all(line.isprintable() for line in lines)


def test_an_answer_of_something_else_is_an_error() -> None:
    """The caller tells that another server answers."""
    with pytest.raises(KeyError):
        stats_lines([{}])
