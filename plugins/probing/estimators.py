"""RTT estimators without I/O, with constant memory for each subscriber."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WINDOW_SECONDS = 300.0
"""The RTT of the uncongested path is learned from a past of this length, the window of Linux's own
minimum RTT: many times a burst of congestion, and short enough to follow a client that has changed
networks."""


@dataclass(eq=False, slots=True)
class WindowedMinimum:
    """Least sample of the recent past, from two halves of a window.

    A sample counts for at least half the window and at most the whole of it, which needs no
    list of samples.

    Attributes:
        window_seconds: the recent past.
        value: least sample of both halves at the last `add`, seconds, or None before it.
    """

    window_seconds: float
    value: float | None = None
    _began_at: float = -math.inf
    _newer: float = math.inf
    _older: float = math.inf

    def add(self, rtt: float, now: float) -> float:
        """Take one sample in seconds, return the least; `now` never runs backwards."""
        age = now - self._began_at
        half_seconds = self.window_seconds / 2
        if age >= 2 * half_seconds:
            self._older = self._newer = math.inf
            self._began_at = now
        elif age >= half_seconds:
            self._older, self._newer = self._newer, math.inf
            self._began_at += half_seconds
        self._newer = min(self._newer, rtt)
        self.value = min(self._newer, self._older)
        return self.value


@dataclass(eq=False, slots=True)
class MovingAverage:
    """Average of recent RTTs, each sample weighted by the time since the one before.

    The plain mean of the first samples, then exponential with the window as time constant, so that
    its value does not depend on the rate of samples (paper 002: "moving average of the recent
    RTTs"; it gives neither length nor weights).

    Attributes:
        value: seconds, or None before the first sample.
    """

    window_seconds: float
    value: float | None = None
    _n_samples: int = 0
    _sampled_at: float = 0.0

    def add(self, rtt: float, now: float) -> None:
        """Take one sample in seconds; `now` never runs backwards."""
        self._n_samples += 1
        if self.value is None:
            self.value = rtt
        else:
            faded = -math.expm1((self._sampled_at - now) / self.window_seconds)
            self.value += max(faded, 1 / self._n_samples) * (rtt - self.value)
        self._sampled_at = now


@dataclass(eq=False, slots=True)
class SourceEstimates:
    """One source's estimates of one subscriber's path.

    Attributes:
        name: the source, such as ``tcp_info``.
        latest: newest sample, seconds; meaningful once `updated_at` is set.
        payload_bytes: the payload bytes of the packet that it was timed on.
        updated_at: monotonic seconds of that sample, or None before the first.
        minimum: least recent sample.
    """

    name: str
    latest: float = 0.0
    payload_bytes: int = 0
    updated_at: float | None = None
    minimum: WindowedMinimum = field(default_factory=lambda: WindowedMinimum(WINDOW_SECONDS))
    average: MovingAverage = field(default_factory=lambda: MovingAverage(WINDOW_SECONDS))

    def add(self, rtt: float, payload_bytes: int, now: float) -> None:
        """Take one sample, timed on a packet with `payload_bytes`."""
        self.minimum.add(rtt, now)
        self.average.add(rtt, now)
        self.latest, self.payload_bytes, self.updated_at = rtt, payload_bytes, now
