"""The Message Expiry Interval: when a message expires, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

EXPIRY: Final = "message_expiry_interval"
"""The property's name in the tables of properties."""

_ALMOST_A_SECOND: Final = 0.999
"""Added before the fraction is cut off, it rounds up and forgives a rounding error of 1 ms."""


def expiry_time(properties: Mapping[str, Any], now: float) -> float | None:
    """Return when a message expires that is received or published at a time.

    Returns:
        Monotonic seconds; None where it never expires.
    """
    interval = properties.get(EXPIRY)
    return None if interval is None else now + interval


def interval_left(expires_at: float, now: float) -> int:
    """Return the Message Expiry Interval that a message is sent with [MQTT-3.3.2-6].

    MQTT 5.0 (3.3.2.3.3) wants "the received value minus the time that the Application Message has
    been waiting in the Server", in whole seconds, and does not say how to round. Here the time of
    waiting is rounded down, so that the interval is rounded up. A message that is sent on at once
    keeps its interval, however many servers and proxies it passes, and none deletes a message
    before its publisher's interval has passed, which only then it must [MQTT-3.3.2-5]. The price:
    each of them may add up to a second. To round to the nearest would delete some messages early.

    A message that has not expired has one second left at least, as 0 says that it has. 0 is what a
    message has that is sent again after it has expired [MQTT-4.3.3-7].
    """
    seconds = expires_at - now
    return max(1, int(seconds + _ALMOST_A_SECOND)) if seconds > 0 else 0
