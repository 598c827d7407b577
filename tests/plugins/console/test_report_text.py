from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.console.report_text import describe, describe_proxy

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "why.md"

REASON = (
    "adaptive: the path is bad, it would take 40 s: withheld 2.6 s of 20 s "
    "(RTT 1.6 s, threshold_l 0.5 s)"
)

LEDGER_LINE = (
    "messages: 1,020 = 1,000 delivered + 2 inflight + 3 withheld + 4 queued"
    " + 4 dropped (offline) + 7 dropped (queue_full)"
)

TCP: dict[str, Any] = {
    "age_seconds": 0.2,
    "rtt": 1.6,
    "rttvar": 0.1,
    "delivery_rate_bytes_per_second": 9_000,
    "is_app_limited": False,
    "unsent_bytes": 12_000,
    "unacked_segments": 9,
    "retransmissions": 1_207,
    "retransmit_ratio": 0.125,
    "congestion_control": "cubic",
}

RECENT: list[dict[str, Any]] = [
    {
        "outcome": "sent",
        "reason": "historic: L_now 0.5 s < 3.5 s (...)",
        "cause": "calm",
        "topic": "cam/1",
        "payload_bytes": 980_000,
        "withheld_seconds": 12.4,
        "age_seconds": 31.0,
    },
    {
        "outcome": "held",
        "reason": "historic: L_now 8 s >= 3.5 s (...)",
        "cause": "congested",
        "topic": "cam/1",
        "payload_bytes": 1_000_000,
        "withheld_seconds": 0.0,
        "age_seconds": 3.2,
    },
]

DECISION: dict[str, Any] = {
    "outcome": "held",
    "reason": REASON,
    "cause": "congested",
    "topic": "cam/1",
    "payload_bytes": 1_000_000,
    "withheld_seconds": 3.2,
    "age_seconds": 0.6,
}


PASSAGE = {
    "last_seconds": 2.4,
    "bytes_per_second": 430_000.4,
    "bad_bytes_per_second": 25_000.0,
    "pause_seconds": 0.0,
    "on_way_bytes": 0,
    "on_way_seconds": 0.0,
}


def client(**parts: dict[str, Any]) -> dict[str, Any]:
    """Return a report in which something is known of everything, but for what is given."""
    link = {
        "rtt_latest": 1.6,
        "rtt_source": "tcp_info",
        "rtt_bytes": 0,
        "rtt_age_seconds": 0.4,
        "rtt_min": 0.1,
        "threshold_l": 0.5,
        "unsent_bytes": 8_000,
        "outstanding_age_seconds": 2.5,
        "outstanding_bytes": 100,
        "tcp": TCP,
    }
    withholding = {
        "withheld": 3,
        "withheld_total": 5,
        "released_total": 4,
        "look_again_in_seconds": 1.3,
        "last_decision": DECISION,
        "recent": RECENT,
        "small_waits": {"messages": 412, "mean_seconds": 1.23, "since_seconds": 480.0},
        "passage": PASSAGE,
    }
    ledger = {
        "matched": 1_020,
        "delivered": 1_000,
        "inflight": 2,
        "withheld": 3,
        "queued": 4,
        "expired": 0,
        "moved": 0,
        "dropped": {"queue_full": 7, "offline": 4},
        "queued_bytes": 1_000_300,
        "waits_for": f"withheld: {REASON}",
    }
    subscriptions = {"total": 3, "small": 0, "large": 0}
    return {
        "client_id": "dev7",
        "is_connected": True,
        "why_away": "",
        "gone_seconds": None,
        "username": "joe",
        "listener": "default",
        "subscriptions": subscriptions | parts.get("subscriptions", {}),
        "link": link | parts.get("link", {}),
        "withholding": withholding | parts.get("withholding", {}),
        "ledger": ledger | parts.get("ledger", {}),
    }


def test_a_client_with_a_bad_link_and_a_held_message() -> None:
    """Everything an operator asks first, in as many lines."""
    assert describe(client()) == [
        "dev7: connected, user joe, listener default",
        "link: RTT 1.6 s, from tcp_info 400 ms ago: congested, above threshold_l, 500 ms",
        "  least RTT: 100 ms",
        "  unanswered for 2.5 s: 100 bytes",
        "  unsent: 8,000 bytes in the broker, 12,000 bytes in the kernel",
        (
            "  TCP (cubic): 9,000 bytes a second, 1,207 segments retransmitted, "
            "12.5% of the recent ones"
        ),
        "large messages: 5 were withheld, 4 of them sent then",
        "  held now, for 3.2 s: 1,000,000 bytes on cam/1, looked at again in 1.3 s at the latest",
        "  2 more are withheld",
        f"  because {REASON}",
        (
            "  the last one took 2.4 s, 430,000 bytes a second; "
            "on the bad path: 25,000 bytes a second"
        ),
        "  31.0 s ago: released after 12.4 s (calm): 980,000 bytes on cam/1",
        "  3.2 s ago: held (congested): 1,000,000 bytes on cam/1",
        (
            "  412 small messages waited 1.2 s on average behind large ones in the last 8 minutes; "
            "with two lanes they would not: docs/how-to/lanes.md"
        ),
        LEDGER_LINE,
        "  1,000,300 bytes wait: withheld",
    ]


def test_why_a_client_is_not_connected_is_told() -> None:
    """Where what connects it says so, as an uplink does."""
    found = client() | {"is_connected": False, "why_away": "for 4 s: refused"}
    assert describe(found)[0] == (
        "dev7: not connected (for 4 s: refused), user joe, listener default"
    )


def test_a_client_that_has_gone_is_told_as_it_was() -> None:
    """When it went stands first; what it had subscribed to is not known any more."""
    found = client() | {"is_connected": False, "gone_seconds": 12.0, "subscriptions": None}
    lines = describe(found)
    assert lines[0] == "dev7: gone for 12.0 s, user joe, listener default"
    assert lines[1:] == describe(client())[1:]


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"large": 1}, "subscriptions: 3, 1 to large messages alone"),
        (
            {"small": 2, "large": 1},
            "subscriptions: 3, 2 to small messages alone and 1 to large messages alone",
        ),
    ],
)
def test_subscriptions_of_one_size_class_are_named(sizes: dict[str, int], line: str) -> None:
    """A client that misses messages of the other class may not know why."""
    assert describe(client(subscriptions=sizes))[1] == line


def test_the_documentation_shows_what_is_printed() -> None:
    """The example of docs/how-to/why.md is this one."""
    text = DOCUMENTATION.read_text()
    assert "$ penstock why dev7\n" + "\n".join(describe(client())) + "\n```" in text


def test_the_state_of_a_proxy() -> None:
    """Each address of its broker with the reason why it is down, its clients and its payloads."""
    up = {"address": "a:1883", "is_up": True, "since_seconds": 7.0, "why": "", "connections": 1200}
    up["silent"] = 0
    down = {**up, "address": "b:1883", "is_up": False, "why": "no\x1b answer", "connections": 5}
    down["silent"] = 4
    there = {"matched": 5, "delivered": 3, "inflight": 0, "withheld": 0, "queued": 0}
    messages = {**there, "expired": 0, "moved": 1, "dropped": {"queue_full": 1}}
    state = {
        "upstreams": [up, down],
        "clients": {"connected": 1200, "gone": 3, "refused": {"connections": 2}},
        "messages": messages,
        "payload_store": {"payloads": 2, "memory_bytes": 20_000},
    }
    assert describe_proxy(state) == [
        "upstream a:1883: up for 7.0 s, connections: 1,200",
        "upstream b:1883: down for 7.0 s (no\\x1b answer), silent on 4, connections: 5",
        "clients: 1,200 connected, 3 gone, 2 refused (connections)",
        "messages: 5 = 3 delivered + 1 moved + 1 dropped (queue_full)",
        "payload store: payloads 2, memory_bytes 20,000",
    ]


def test_a_client_of_which_nothing_is_known() -> None:
    """A line for each thing that could be known, and no numbers made up."""
    link = dict.fromkeys(client()["link"]) | {"rtt_source": "", "unsent_bytes": 0}
    places = ("matched", "delivered", "inflight", "withheld", "queued", "expired", "moved")
    ledger = dict.fromkeys(places, 0) | {"dropped": {}, "waits_for": "empty"}
    found = client(
        link=link, withholding={"last_decision": None, "small_waits": None}, ledger=ledger
    )
    found |= {"is_connected": False, "username": None, "listener": ""}
    assert describe(found) == [
        "dev7: not connected",
        "link: no RTT yet",
        "large messages: none yet",
        "messages: 0",
    ]


def test_waits_that_nobody_notices_are_not_told() -> None:
    """A second connection is not for them; the JSON report has them."""
    found = client()
    waits = found["withholding"]["small_waits"]
    for mean, is_told in ((0.13, False), (0.5, True)):
        found["withholding"]["small_waits"] = waits | {"mean_seconds": mean}
        assert any("small messages waited" in line for line in describe(found)) == is_told


@pytest.mark.parametrize(
    ("link", "line"),
    [
        (
            {"threshold_l": 2.0},
            "link: RTT 1.6 s, from tcp_info 400 ms ago: calm, not above threshold_l, 2.0 s",
        ),
        ({"threshold_l": None}, "link: RTT 1.6 s, from tcp_info 400 ms ago"),
        (
            {"rtt_latest": None, "rtt_age_seconds": 75.0},
            "link: no recent RTT; the last was from tcp_info 75.0 s ago",
        ),
    ],
)
def test_an_rtt_is_held_against_its_threshold(link: dict[str, Any], line: str) -> None:
    """Calm or congested, where there is a threshold; how old it is, where it is too old."""
    assert describe(client(link=link))[1] == line


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (
            {"outcome": "sent", "withheld_seconds": 0.0},
            "  the last was sent 600 ms ago, at once: 1,000,000 bytes on cam/1",
        ),
        ({"outcome": "sent"}, "  the last was sent 600 ms ago, after 3.2 s: 1,000,000 bytes on"),
        (
            {"outcome": "gone"},
            "  the last was held 600 ms ago and has expired, was dropped or moved: 1,",
        ),
    ],
)
def test_what_became_of_the_last_large_message(decision: dict[str, Any], line: str) -> None:
    """Sent at once, sent after a wait, or not sent at all; and in each case why."""
    lines = describe(client(withholding={"last_decision": DECISION | decision}))
    found = next(n for n, one in enumerate(lines) if one.startswith(line))
    assert lines[found + 1] == f"  because {REASON}"


def test_a_client_whose_large_messages_were_all_sent_at_once() -> None:
    """No counts of what never happened."""
    decision = DECISION | {"outcome": "sent", "withheld_seconds": 0.0}
    never = {"withheld_total": 0, "released_total": 0, "last_decision": decision}
    assert "large messages: none was withheld" in describe(client(withholding=never))
    once = {"withheld_total": 1, "released_total": 0}
    told = describe(client(withholding=once))
    assert "large messages: 1 was withheld, 0 of them sent then" in told


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"pause_seconds": 1.2, "on_way_bytes": 1_000_000, "on_way_seconds": 0.5},
            [
                (
                    "  the last one took 2.4 s, 430,000 bytes a second; "
                    "on the bad path: 25,000 bytes a second"
                ),
                "  a pause after a slow one, for 1.2 s more",
                "  on the way, not acknowledged: 1,000,000 bytes, for 500 ms",
            ],
        ),
        (
            {"bytes_per_second": None, "bad_bytes_per_second": None},
            ["  the last one took 2.4 s; on the bad path: not known yet"],
        ),
        ({"last_seconds": None}, []),
    ],
)
def test_how_large_messages_pass_is_told(changes: dict[str, Any], lines: list[str]) -> None:
    """What the gate goes by, below what it has decided; nothing of what does not apply."""
    found = describe(client(withholding={"passage": PASSAGE | changes}))
    at = found.index(f"  because {REASON}") + 1
    assert found[at : at + len(lines)] == lines
    assert found[at + len(lines)].startswith("  31.0 s ago: released")


def test_a_rate_of_a_path_that_had_too_little_to_send_is_a_least_one() -> None:
    """The kernel says so; the path may carry more."""
    found = describe(client(link={"tcp": TCP | {"is_app_limited": True}}))
    assert "  TCP (cubic): 9,000 bytes a second or more, " in "\n".join(found)
    unknown = {"delivery_rate_bytes_per_second": None, "retransmit_ratio": None}
    unknown["congestion_control"] = None
    found = describe(client(link={"tcp": TCP | unknown}))
    assert "  TCP: 1,207 segments retransmitted" in found


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0004, "0.4 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (1.06, "1.1 s"), (75.0, "75.0 s")],
)
def test_a_time_has_three_digits_in_milliseconds_and_else_tenths(
    seconds: float, words: str
) -> None:
    """Just below a second, too, where the digits would round to 1e+03 ms."""
    assert describe(client(link={"rtt_min": seconds}))[2] == f"  least RTT: {words}"


def test_nothing_a_client_has_named_moves_the_cursor() -> None:
    """Client ids, users and topics are others' to choose."""
    evil = "a\x1b[2J\nb\u202e"
    found = client(withholding={"last_decision": DECISION | {"topic": evil, "reason": evil}})
    found |= {"client_id": evil, "username": evil}
    assert all(line.isprintable() for line in describe(found))
