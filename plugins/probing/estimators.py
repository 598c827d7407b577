"""RTT estimators: numbers in, numbers out, constant memory for each subscriber."""

from __future__ import annotations

import math

WINDOW_SECONDS = 300.0
"""Length of the past from which the RTT of the uncongested path is learned. It is the window of
Linux's own minimum RTT: many times a burst of congestion, and short enough to follow a client that
has changed networks."""

LEAST_EXCESS = 0.001
"""Seconds: the lower quartile does not come closer to the minimum."""


class WindowedMinimum:
    """Least sample of the recent past, from two halves of a window.

    A sample counts for at least half the window and at most the whole of it, which needs no
    list of samples.

    Attributes:
        value: least sample of both halves at the last `add`, seconds, or None before it.
    """

    __slots__ = ("_began_at", "_half_seconds", "_newer", "_older", "value")

    def __init__(self, window_seconds: float) -> None:
        self._half_seconds = window_seconds / 2
        self._began_at = -math.inf
        self._newer = math.inf
        self._older = math.inf
        self.value: float | None = None

    def add(self, rtt: float, now: float) -> float:
        """Take one sample in seconds, return the least; `now` never runs backwards."""
        age = now - self._began_at
        if age >= 2 * self._half_seconds:
            self._older = self._newer = math.inf
            self._began_at = now
        elif age >= self._half_seconds:
            self._older, self._newer = self._newer, math.inf
            self._began_at += self._half_seconds
        self._newer = min(self._newer, rtt)
        self.value = min(self._newer, self._older)
        return self.value


class LowerQuartile:
    """Lower quartile of recent RTTs, by its excess over their minimum, in constant memory.

    Each sample counts for the time since the one before, so that the value does not depend on the
    rate of samples. Time with samples above the estimate raises the excess, e-fold in a window;
    time with samples below lowers it three times as fast. Both balance where RTTs are below it for
    a quarter of the time, so congestion for less than three quarters of the time does not show in
    the long run, and one of half a window raises the excess to 1.6 times.

    Until half of the window has passed, the time so far stands for that half. The excess begins at
    the first RTT: a path is not called steady before it has shown so.

    Attributes:
        value: seconds, or None before the first sample.
    """

    __slots__ = ("_excess", "_seconds", "_window_seconds", "value")

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._seconds = 0.0
        self._excess = 0.0
        self.value: float | None = None

    def add(self, rtt: float, minimum: float, seconds: float) -> None:
        """Take one sample.

        Args:
            rtt: seconds.
            minimum: least recent RTT, seconds, this sample included.
            seconds: since the sample before; whatever it is for the first one.
        """
        if self.value is None:
            excess = max(minimum, LEAST_EXCESS)
        else:
            excess = max(self._excess, LEAST_EXCESS)
            if seconds > 0:
                known = min(self._seconds + seconds, self._window_seconds / 2)
                self._seconds = known
                share = 2 * seconds / known if 2 * seconds < known else 1.0
                excess *= math.exp(share * (0.25 if rtt - minimum > excess else -0.75))
        self._excess = excess
        self.value = minimum + excess


class MovingAverage:
    """Average of recent RTTs, each sample weighted by the time since the one before.

    The plain mean of the first samples, then exponential with the window as time constant, so that
    its value does not depend on the rate of samples (paper 002: "moving average of the recent
    RTTs"; it gives neither length nor weights).

    Attributes:
        value: seconds, or None before the first sample.
    """

    __slots__ = ("_n_samples", "_sampled_at", "_window_seconds", "value")

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._n_samples = 0
        self._sampled_at = 0.0
        self.value: float | None = None

    def add(self, rtt: float, now: float) -> None:
        """Take one sample in seconds; `now` never runs backwards."""
        self._n_samples += 1
        if self.value is None:
            self.value = rtt
        else:
            faded = -math.expm1((self._sampled_at - now) / self._window_seconds)
            self.value += max(faded, 1 / self._n_samples) * (rtt - self.value)
        self._sampled_at = now


class RetransmitRatio:
    """Retransmissions among the data segments of the recent past, the older ones fading.

    Its input is the kernel's totals since the connection began, modulo 2**32.

    Attributes:
        value: 0 to 1; None where no data segment was sent in the last `seconds`.
    """

    __slots__ = ("_faded", "_seconds", "_sent_at", "_totals", "value")

    def __init__(self, seconds: float) -> None:
        """Take the seconds in which a segment fades to 1/e."""
        self._seconds = seconds
        self._totals: tuple[int, int] | None = None
        self._faded = 0.0, 0.0
        self._sent_at = 0.0
        self.value: float | None = None

    def add(self, segments: int, retransmissions: int, now: float) -> float | None:
        """Take the totals of a look, retransmissions included; return `value`.

        Those of the first look are where counting begins: their growth over time is not known.
        """
        before, self._totals = self._totals, (segments, retransmissions)
        if before is None:
            self._sent_at = now
        elif n_segments := (segments - before[0]) % 2**32:
            fading = math.exp((self._sent_at - now) / self._seconds)
            n_again = (retransmissions - before[1]) % 2**32
            self._faded = fading * self._faded[0] + n_segments, fading * self._faded[1] + n_again
            self._sent_at = now
            self.value = min(1.0, self._faded[1] / self._faded[0])
        elif now - self._sent_at > self._seconds:
            self._faded, self.value = (0.0, 0.0), None
        return self.value


class SourceEstimates:
    """What one source of samples knows of one subscriber's path.

    Attributes:
        name: the source, such as ``tcp_info``.
        latest: newest sample, seconds; meaningful once `updated_at` is set.
        payload_bytes: of the packet that it was timed on.
        updated_at: monotonic seconds of that sample, or None before the first.
        minimum: least recent sample.
        quartile: lower quartile of the samples that came while `is_losing` was not set.
        average: moving average.
        is_losing: whether the path loses packets at present. What its RTTs are like then says
            nothing of calm, and may last for most of the time.
    """

    __slots__ = (
        "average",
        "is_losing",
        "latest",
        "minimum",
        "name",
        "payload_bytes",
        "quartile",
        "updated_at",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.latest = 0.0
        self.payload_bytes = 0
        self.updated_at: float | None = None
        self.minimum = WindowedMinimum(WINDOW_SECONDS)
        self.quartile = LowerQuartile(WINDOW_SECONDS)
        self.average = MovingAverage(WINDOW_SECONDS)
        self.is_losing = False

    def add(self, rtt: float, payload_bytes: int, now: float) -> None:
        """Take one sample, timed on a packet with `payload_bytes`."""
        since = 0.0 if self.updated_at is None else now - self.updated_at
        minimum = self.minimum.add(rtt, now)
        if not self.is_losing:
            self.quartile.add(rtt, minimum, since)
        self.average.add(rtt, now)
        self.latest, self.payload_bytes, self.updated_at = rtt, payload_bytes, now
