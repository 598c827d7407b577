"""What congestion has been like on the path to one subscriber.

Theory of operation. RTT samples arrive; one above threshold_l belongs to congestion. Three things
are learned from them, in constant memory:

* *Lengths*: from the first sample of a congestion to the first one after it. The last
  `MAX_LENGTHS` are kept. They begin with `PRIOR_LENGTHS`, each twice the one before, which say
  "it lasts about as long again as it has so far" until the subscriber has shown better.
* *Level*: the mean RTT of the present congestion. A sample far off the level begins a new
  congestion: another cause, whose length has nothing to do with the one before. Far is four mean
  deviations, where RFC 6298 takes a segment for lost.
* *After calm*: the mean RTT of the samples that followed a calm one, which is what a message
  meets that is sent because the last sample was good. It includes the next congestion that began
  in between, and so the harm of rare samples.

A path whose samples vary without memory has after a calm sample the same RTT as after any other:
then nothing is gained by waiting for a calm one, and `adaptive` sees that.
"""

from __future__ import annotations

from array import array
from bisect import insort

MAX_LENGTHS = 48
"""Lengths remembered: enough that some are left when most have been outlived, in 400 bytes."""

PRIOR_LENGTHS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds; what is supposed of a subscriber of which nothing is known."""

GAIN = 1 / 8
"""Least weight of a new sample in level and deviation (alpha of RFC 6298)."""

FAR_DEVIATIONS = 4.0
"""Deviations from the level at which another congestion has begun (K of RFC 6298)."""

NEAR_RATIO = 1 / 8
"""A sample this close to the level, as a part of it, is of the same congestion however steady that
has been: a message would hardly feel the difference."""

SUPPOSED_CALM = 8
"""Samples that are supposed to have followed the first calm one, all like it: one congestion right
after it does not say that calm is worth nothing."""

AFTER_CALM_GAIN = 1 / 256
"""Least weight of a new sample in `after_calm`: congestion after calm is rare and costs much, so
few samples say little."""


class CongestionHistory:
    """Follows one subscriber's path; made and forgotten with its link.

    All RTTs are those of a packet of the latency profile's first row.

    Attributes:
        lengths: lengths of past congestion, ascending, seconds; one at least.
        began_at: monotonic seconds of the first sample of the present congestion, or None while
            the path is calm.
        sampled_at: monotonic seconds at which the newest sample was sent, or None before it.
        known_at: monotonic seconds at which it was known.
        lag_seconds: how long after it was sent the newest calm sample was known.
        level: mean RTT of the present congestion or, in calm, of the last one, seconds; 0 before
            the first.
        after_calm: mean RTT of samples that followed a calm one, seconds, or None before those.
    """

    __slots__ = (
        "_deviation",
        "_n_after_calm",
        "_n_level",
        "_newest_first",
        "after_calm",
        "began_at",
        "known_at",
        "lag_seconds",
        "lengths",
        "level",
        "sampled_at",
    )

    def __init__(self) -> None:
        self.lengths = array("f", PRIOR_LENGTHS)
        self._newest_first = array("f", PRIOR_LENGTHS)
        self.began_at: float | None = None
        self.sampled_at: float | None = None
        self.known_at = 0.0
        self.lag_seconds = 0.0
        self.level = 0.0
        self.after_calm: float | None = None
        self._n_level = 0
        self._n_after_calm = SUPPOSED_CALM
        self._deviation = 0.0

    def observe(self, rtt: float, sent_at: float, known_at: float, threshold_l: float) -> None:
        """Take one RTT sample.

        Args:
            rtt: seconds.
            sent_at: monotonic seconds at which the timed packet was sent.
            known_at: monotonic seconds at which its answer was known; never before that of the
                sample before.
            threshold_l: seconds above which the path is congested.
        """
        if self.sampled_at is not None:
            if self.began_at is None:
                self._follow_calm(rtt)
            # Of two packets whose answers overtake each other, the later answer is the news.
            sent_at = max(sent_at, self.sampled_at)
        self.sampled_at = sent_at
        self.known_at = known_at
        if rtt <= threshold_l:
            self.lag_seconds = known_at - sent_at
            self._end(sent_at)
            if self.after_calm is None:
                self.after_calm = rtt
        else:
            self._observe_congested(rtt, sent_at)

    def is_off_level(self, rtt: float) -> bool:
        """Say whether such an RTT would not belong to the present congestion."""
        return abs(rtt - self.level) > self._far()

    def lose_sight(self) -> None:
        """There is no recent sample: how long the present congestion lasts will not be known."""
        self.began_at = None
        self.sampled_at = None

    def _follow_calm(self, rtt: float) -> None:
        self._n_after_calm += 1
        before = rtt if self.after_calm is None else self.after_calm
        self.after_calm = before + max(1 / self._n_after_calm, AFTER_CALM_GAIN) * (rtt - before)

    def _observe_congested(self, rtt: float, sent_at: float) -> None:
        if self.began_at is not None:
            if self.is_off_level(rtt):
                self._end(sent_at)
            self._widen(abs(rtt - self.level))
        if self.began_at is None:
            self.began_at = sent_at
            self._n_level = 0
            self._deviation = self._deviation or rtt / 2
        self._n_level += 1
        before = self.level if self._n_level > 1 else 0.0
        self.level = before + max(1 / self._n_level, GAIN) * (rtt - before)

    def _widen(self, off: float) -> None:
        """Take one distance into the mean deviation, limited so that a new level is no spread."""
        self._deviation += GAIN * (min(off, self._far()) - self._deviation)

    def _far(self) -> float:
        return max(FAR_DEVIATIONS * self._deviation, NEAR_RATIO * self.level)

    def _end(self, ended_at: float) -> None:
        """Remember the length of the present congestion, if there is one."""
        if self.began_at is None:
            return
        if len(self.lengths) == MAX_LENGTHS:
            self.lengths.remove(self._newest_first.pop())
        length = ended_at - self.began_at
        insort(self.lengths, length)
        self._newest_first.insert(0, length)
        self.began_at = None
