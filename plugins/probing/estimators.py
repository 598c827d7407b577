"""RTT estimators: numbers in, numbers out, constant memory for each subscriber."""

from __future__ import annotations

import math
from collections.abc import Sequence

ALPHA = 1 / 8
"""Gain of the smoothed RTT (RFC 6298, 2.3)."""

BETA = 1 / 4
"""Gain of the RTT variance (RFC 6298, 2.3)."""


LEAST_EXCESS = 0.001
"""Seconds: the lower quartile does not come closer to the minimum."""


class SmoothedRtt:
    """Exponentially weighted RTT and its variance (RFC 6298, section 2).

    Attributes:
        srtt: smoothed RTT, seconds, or None before the first sample.
        rttvar: RTT variance, seconds, or None before the first sample.
    """

    __slots__ = ("rttvar", "srtt")

    def __init__(self) -> None:
        self.srtt: float | None = None
        self.rttvar: float | None = None

    def add(self, rtt: float, share: float = 1.0) -> float:
        """Take one sample; return the smoothed RTT.

        The first one R gives ``SRTT = R, RTTVAR = R / 2``. Each further one R' gives
        ``RTTVAR = (1 - beta) * RTTVAR + beta * |SRTT - R'|``, then
        ``SRTT = (1 - alpha) * SRTT + alpha * R'`` (RFC 6298, 2.2 and 2.3).

        Args:
            rtt: seconds.
            share: its fraction of alpha and beta, 0 to 1. Where there are several samples in one
                RTT, their shares sum up to 1, so that the average covers the same time as with one
                (RFC 7323, appendix G).
        """
        if self.srtt is None or self.rttvar is None:
            self.srtt = rtt
            self.rttvar = rtt / 2
        else:
            self.rttvar += share * BETA * (abs(self.srtt - rtt) - self.rttvar)
            self.srtt += share * ALPHA * (rtt - self.srtt)
        return self.srtt


class WindowedMinimum:
    """Least sample of the recent past, from two halves of a window.

    A sample counts for at least half the window and at most the whole of it, which needs no
    list of samples. Both halves are empty before the first sample.

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
        value: 0 to 1; None where no data segment was sent in the last `recent_seconds`.
    """

    __slots__ = (
        "_faded_retransmissions",
        "_faded_segments",
        "_recent_seconds",
        "_retransmissions",
        "_segments",
        "_sent_at",
        "value",
    )

    def __init__(
        self, segments: int, retransmissions: int, now: float, recent_seconds: float
    ) -> None:
        """Begin with the totals of the first look: their growth over time is not known.

        Args:
            segments: data segments, retransmissions included.
            retransmissions: of them.
            now: monotonic seconds.
            recent_seconds: in which a segment fades to 1/e.
        """
        self._recent_seconds = recent_seconds
        self._segments = segments
        self._retransmissions = retransmissions
        self._faded_segments = 0.0
        self._faded_retransmissions = 0.0
        self._sent_at = now
        self.value: float | None = None

    def add(self, segments: int, retransmissions: int, now: float) -> float | None:
        """Take the totals of the next look; return `value`."""
        n_segments = (segments - self._segments) % 2**32
        if n_segments:
            faded = math.exp((self._sent_at - now) / self._recent_seconds)
            n_again = (retransmissions - self._retransmissions) % 2**32
            self._faded_segments = faded * self._faded_segments + n_segments
            self._faded_retransmissions = faded * self._faded_retransmissions + n_again
            self._segments = segments
            self._retransmissions = retransmissions
            self._sent_at = now
            self.value = min(1.0, self._faded_retransmissions / self._faded_segments)
        elif self.value is not None and now - self._sent_at > self._recent_seconds:
            self._faded_segments = self._faded_retransmissions = 0.0
            self.value = None
        return self.value


class SourceEstimates:
    """What one source of samples knows of one subscriber's path.

    Attributes:
        name: the source, such as ``tcp_info``.
        latest: newest estimate, seconds; meaningful once `updated_at` is set.
        payload_bytes: of the packet that the newest sample was timed on.
        updated_at: monotonic seconds of the newest sample, or None before the first.
        smoothed: RFC 6298 over all samples.
        minimum: least sample of `window_seconds`.
        quartile: lower quartile of the samples that came while `is_losing` was not set.
        average: moving average over `window_seconds`.
        is_losing: whether the path loses packets at present. What its RTTs are like then says
            nothing of calm, and may last for most of the time.
    """

    __slots__ = (
        "_is_smoothed",
        "_recent_minimum",
        "average",
        "is_losing",
        "latest",
        "minimum",
        "name",
        "payload_bytes",
        "quartile",
        "smoothed",
        "updated_at",
    )

    def __init__(
        self, name: str, *, estimator: str, recent_seconds: float, window_seconds: float
    ) -> None:
        """Begin without samples.

        Args:
            name: the source.
            estimator: what `latest` is: ``last`` sample, ``ewma`` (the smoothed RTT) or
                ``minimum`` (least sample of the last `recent_seconds`).
            recent_seconds: window of the estimator ``minimum``.
            window_seconds: window of `minimum` and `average`.
        """
        self.name = name
        self.latest = 0.0
        self.payload_bytes = 0
        self.updated_at: float | None = None
        self.smoothed = SmoothedRtt()
        self.minimum = WindowedMinimum(window_seconds)
        self.quartile = LowerQuartile(window_seconds)
        self.average = MovingAverage(window_seconds)
        self.is_losing = False
        self._is_smoothed = estimator == "ewma"
        self._recent_minimum: WindowedMinimum | None = None
        if estimator == "minimum":
            self._recent_minimum = WindowedMinimum(recent_seconds)

    def add(self, rtt: float, payload_bytes: int, now: float) -> None:
        """Take one sample, timed on a packet with `payload_bytes`."""
        self.add_all(((rtt, payload_bytes),), now)

    def add_all(self, samples: Sequence[tuple[float, int]], now: float) -> None:
        """Take samples that came together.

        Args:
            samples: at least one: (seconds, payload bytes of the timed packet), the oldest packet
                first; with the estimator ``last`` the last sample becomes `latest`.
            now: monotonic seconds.
        """
        since = math.inf if self.updated_at is None else now - self.updated_at
        for rtt, payload_bytes in samples:
            share = min(1.0, since / rtt) if rtt > 0 else 1.0
            srtt = self.smoothed.add(rtt, share / len(samples))
            self._take(rtt, srtt, payload_bytes, now)

    def add_smoothed(self, srtt: float, rttvar: float, now: float) -> None:
        """Take an RTT that its source has smoothed already, timed on bare segments."""
        self.smoothed.srtt = srtt
        self.smoothed.rttvar = rttvar
        self._take(srtt, srtt, 0, now)

    def _take(self, rtt: float, srtt: float, payload_bytes: int, now: float) -> None:
        since = 0.0 if self.updated_at is None else now - self.updated_at
        minimum = self.minimum.add(rtt, now)
        if not self.is_losing:
            self.quartile.add(rtt, minimum, since)
        self.average.add(rtt, now)
        self.payload_bytes = payload_bytes
        self.updated_at = now
        if self._recent_minimum is not None:
            self.latest = self._recent_minimum.add(rtt, now)
        else:
            self.latest = srtt if self._is_smoothed else rtt
