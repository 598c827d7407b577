"""What an uplink asks of the cloud for retained messages."""

from __future__ import annotations

import itertools
import logging

import pytest

from penstock.broker.mqtt.topics import matches
from penstock.edge_proxy.uplink.cloud_subscriptions import MARKER_SECONDS, CloudSubscriptions
from penstock.edge_proxy.uplink.remapping import DownRule, Remapping
from penstock.edge_proxy.uplink.subscriptions import Request

MARKER = "penstock/uplink/x"


def make(retained: dict[str, int], *, marker_topic: str | None = MARKER) -> CloudSubscriptions:
    """Return what has a new connection to a cloud without its session.

    Args:
        retained: what the site has of the cloud's: topic to payload bytes.
        marker_topic: of its markers.
    """
    numbers = itertools.count(1)
    asking = CloudSubscriptions(
        Remapping([], [DownRule("down/#", remote_prefix="r/", when="always")]),
        linger_seconds=0.0,
        marker_topic=marker_topic,
        retained=lambda name: [(t, n) for t, n in retained.items() if matches(name, t)],
        new_token=lambda: b"%d" % next(numbers),
        logger=logging.getLogger("tests"),
    )
    asking.subscriptions.connected(session_present=False)
    return asking


def test_a_site_without_retained_messages_needs_no_marker() -> None:
    """Nothing is to be cleared, and the filter is known for complete."""
    asking = make({"other": 1})
    asks = asking.take(0.0)
    assert asks.marker is None
    assert asks.subscribe == [Request("r/down/#", 2, True)]
    asking.subscribed("r/down/#", 2)
    assert asking.take(0.0).add_records == ["2/r/down/#"]
    assert asking.next_deadline() is None


def test_what_does_not_come_again_is_cleared_when_the_marker_has_come() -> None:
    """Even where retained messages come before the SUBACK."""
    asking = make({"down/a": 1, "down/b": 1})
    assert asking.take(0.0).marker == b"1"
    asking.retained_came("down/b")
    asking.marker_came(b"1")
    asking.subscribed("r/down/#", 2)
    asks = asking.take(0.0)
    assert (asks.clear, asks.marker, asks.ends_marker) == (["down/a"], None, True)
    assert asks.add_records == ["2/r/down/#"]
    assert asking.next_deadline() is None


def test_large_messages_get_a_marker_of_their_own() -> None:
    """Which ends as the first one would have."""
    asking = make({"down/a": 20_000})
    asking.take(0.0)
    asking.subscribed("r/down/#", 2)
    asking.marker_came(b"1")
    asks = asking.take(0.0)
    assert asks.marker == b"2".ljust(20_000)
    assert (asks.subscribe, asks.clear, asks.ends_marker) == ([], [], False)
    assert asks.marker is not None
    asking.marker_came(asks.marker)
    asks = asking.take(0.0)
    assert (asks.clear, asks.ends_marker) == (["down/a"], True)


@pytest.mark.parametrize("how", ["publish", "subscribe", "silence"])
def test_where_the_cloud_forbids_the_marker_nothing_is_cleared(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what to allow, and the filter counts as complete."""
    asking = make({"down/a": 1})
    asking.take(0.0)
    asking.subscribed("r/down/#", 2)
    if how == "publish":
        asking.marker_refused()
    elif how == "subscribe":
        asking.subscribed(MARKER, 0x87)
    else:
        asking.retained_came("down/b")
        asking.take(50.0)
        assert asking.next_deadline() == 50.0 + MARKER_SECONDS
    asks = asking.take(50.0 + MARKER_SECONDS)
    assert asks.clear == []
    assert MARKER in caplog.text
    assert asking.next_deadline() is None
    assert asks.add_records == ["2/r/down/#"] or how != "silence"


def test_without_a_marker_s_topic_nothing_is_cleared() -> None:
    """`clear_retained: false`."""
    assert make({"down/a": 1}, marker_topic=None).take(0.0).marker is None


def test_a_long_outage_asks_again_and_a_short_one_does_not() -> None:
    """Though the cloud has the session."""
    asking = make({"down/a": 1})
    asking.take(0.0)
    asking.subscribed("r/down/#", 2)
    asking.marker_came(b"1")
    asking.take(0.0)
    asking.lost()
    asking.subscriptions.connected(session_present=True, refreshes=False)
    assert not asking.take(0.0).subscribe
    asking.lost()
    asking.subscriptions.connected(session_present=True, refreshes=True)
    asks = asking.take(0.0)
    assert (asks.subscribe, asks.marker) == ([Request("r/down/#", 2, True)], b"2")


def test_a_marker_of_an_earlier_connection_means_nothing() -> None:
    """The cloud retains it, and half of the retained messages may have come with it."""
    asking = make({"down/a": 1})
    assert asking.take(0.0).marker == b"1"
    asking.lost()
    asking.subscriptions.connected(session_present=False)
    assert asking.take(0.0).marker == b"2"
    asking.marker_came(b"1")
    assert asking.is_waiting
    assert asking.take(0.0).clear == []


def test_a_marker_stands_for_those_before_it() -> None:
    """A broker may send the last one alone, as each replaces the one before."""
    asking = make({"down/a": 1})
    asking.take(0.0)
    asking.subscribed("r/down/#", 2)
    asking.subscriptions.connected(session_present=True, refreshes=True)
    assert asking.take(0.0).marker == b"2"
    asking.marker_came(b"2")
    assert not asking.is_waiting
    assert asking.take(0.0).clear == ["down/a"]
