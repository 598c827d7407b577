"""The Message Expiry Interval counts down by whole seconds, and never too fast."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.expiry import EXPIRY, expiry_time, interval_left


def test_a_message_without_the_property_never_expires() -> None:
    """MQTT 5.0, 3.3.2.3.3: if absent, the message does not expire."""
    assert expiry_time({}, 100.0) is None
    assert expiry_time({"content_type": "text"}, 100.0) is None


def test_an_interval_runs_from_the_message_s_arrival() -> None:
    """0 is an interval, too: such a message is for whoever can have it at once."""
    assert expiry_time({EXPIRY: 10}, 100.0) == 110.0
    assert expiry_time({EXPIRY: 0}, 100.0) == 100.0


@pytest.mark.mqtt5("3.3.2-6")
@pytest.mark.parametrize(
    ("waited", "left"),
    [
        (0.0, 10),
        (0.4, 10),
        (0.6, 10),
        (0.99, 10),
        (1.0, 9),
        (1.0 - 1e-9, 9),  # a clock's rounding error is no time
        (1.0 + 1e-9, 9),
        (8.5, 2),
        (9.0, 1),
        (9.9999, 1),  # 0 would say that it has expired
        (10.0, 0),
        (25.0, 0),
    ],
)
def test_the_interval_loses_the_whole_seconds_that_were_waited(waited: float, left: int) -> None:
    """A fraction of a second is not waited yet; what is sent again later than that has 0 left."""
    assert interval_left(1000.0 + 10, 1000.0 + waited) == left


def test_servers_in_a_row_that_do_not_wait_do_not_wear_an_interval_out() -> None:
    """Ten servers that take 0.6 s each hand on ten seconds of ten, and 1 s each takes one each."""
    intervals = {}
    for seconds in (0.6, 1.0):
        now, interval = 0.0, 10
        for _server in range(10):
            expires_at = expiry_time({EXPIRY: interval}, now)
            assert expires_at is not None
            now += seconds
            interval = interval_left(expires_at, now)
        intervals[seconds] = interval
    assert intervals == {0.6: 10, 1.0: 0}
