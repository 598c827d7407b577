"""How fast the lane of large messages may send: below what the path carries while small ones wait.

Theory of operation. Both lanes share the link of the site. What the large lane sends fills the
queue before the narrowest part of the path, and each small message waits in that queue. One message
of the small lane at a time is timed until the cloud's broker acknowledges it, on the level of MQTT.
The least time of the last minute or two is the calm level. A message that takes longer than
``CALM_RATIO`` times that, and some milliseconds for jitter, is delayed; one that is still
unacknowledged after so long is, too.

While small messages are delayed, the large lane is paced: at ``FIRST_RATIO`` of the rate at which
the kernel has seen its bytes delivered, so that the queue shrinks, and lower step by step if they
stay delayed. With the first message in time it runs at full rate again; so it does where no small
message was timed for a while.
"""

from __future__ import annotations

import math
from typing import Final

LOOK_SECONDS: Final = 0.1
"""Between two looks at the large lane while it sends: some round trips of most paths."""

CALM_RATIO: Final = 1.5
CALM_SLACK_SECONDS: Final = 0.02
"""What the acknowledgement of a small message may take beyond the calm level: jitter of a path, and
of a broker that has other work."""

CALM_WINDOW_SECONDS: Final = 60.0
"""The calm level is the least of this window and of the one before it: a path that has become
longer counts as calm after two of them."""

FRESH_SECONDS: Final = 2.0
"""For so long a delay says that small messages are delayed, if no other one is timed."""

FIRST_RATIO: Final = 0.8
STEP_RATIO: Final = 0.8
LEAST_RATIO: Final = 0.25
"""Of the measured delivery rate: the first pace, each pace of the one before it, and the last. A
quarter lets any queue run empty, and large messages still arrive where others fill the path."""

LEAST_STEP_SECONDS: Final = 0.5
"""Between two steps: a queue has to run empty before a pace shows in a round trip."""


class Pacing:
    """The pace of the large lane, by what is timed on the small one."""

    def __init__(self) -> None:
        self._measured_rate = 0.0
        self._rate: float | None = None
        self._stepped_at = 0.0
        self._forget()

    def _forget(self) -> None:
        self._sent_at: float | None = None
        self._last = 0.0
        self._last_at = -math.inf
        self._least = self._least_before = math.inf
        self._window_at = -math.inf

    # -- the small lane ------------------------------------------------------------------------

    def sent(self, now: float) -> None:
        """Begin to time a message; until `acknowledged`, no other one may be timed."""
        self._sent_at = now

    def acknowledged(self, now: float) -> None:
        """Take the acknowledgement of the timed message."""
        if self._sent_at is None:
            return
        seconds, self._sent_at = now - self._sent_at, None
        if now - self._window_at >= CALM_WINDOW_SECONDS:
            self._window_at = now
            self._least_before, self._least = self._least, math.inf
        self._least = min(self._least, seconds)
        self._last, self._last_at = seconds, now

    def connection_lost(self) -> None:
        """Forget what was timed: the next connection may take another path."""
        self._forget()

    def delay(self, now: float) -> float:
        """Return how long small messages take, in seconds; 0.0 where they are not delayed."""
        most = CALM_RATIO * min(self._least, self._least_before) + CALM_SLACK_SECONDS
        last = self._last if now - self._last_at < FRESH_SECONDS else 0.0
        overdue = 0.0 if self._sent_at is None else now - self._sent_at
        delay = max(last, overdue)
        return delay if delay > most else 0.0

    # -- the large lane ------------------------------------------------------------------------

    def rate(self, delivery_rate: float | None, now: float) -> float | None:
        """Return the bytes per second at which the large lane may send; None for full rate.

        Args:
            delivery_rate: bytes per second at which its bytes were delivered lately; None where
                there was too little to send to tell.
            now: monotonic seconds.
        """
        if delivery_rate is not None and self._rate is None:
            self._measured_rate = delivery_rate
        delay = self.delay(now)
        if not delay or not self._measured_rate:
            self._rate = None
        elif self._rate is None:
            self._rate = FIRST_RATIO * self._measured_rate
            self._stepped_at = now
        elif now - self._stepped_at >= max(LEAST_STEP_SECONDS, delay):
            self._rate = max(LEAST_RATIO * self._measured_rate, STEP_RATIO * self._rate)
            self._stepped_at = now
        return self._rate
