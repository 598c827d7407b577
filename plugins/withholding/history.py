"""The history of congestion on the path to one subscriber.

Theory of operation. RTT samples arrive; one above threshold_l belongs to congestion. Five things
are learned from them, in constant memory:

* *Lengths*: from the first sample of a congestion to the first one after it. The last `MAX_LENGTHS`
  are kept. They begin with `PRIOR_LENGTHS`, each twice the one before, which say "it lasts about as
  long again as it has so far" until the subscriber has shown better.
* *Level*: the mean RTT of the present congestion. A sample far off the level begins a new
  congestion: it has another cause, whose length is unrelated to the one before. Far is four mean
  deviations, where RFC 6298 regards a segment as lost. A single such sample, after which all is as
  before, was a packet that was lost and retransmitted: then the old congestion has not ended.
* *Persistence*: the part of a sample's distance from the level that is left in the next sample, as
  the ratio of lag-1 autocovariance to variance, and by the spacing of samples the part left after a
  second. It is 0 where each sample is drawn anew: then the level is all that is known. Where causes
  of congestion overlap, a low sample shows a good moment.
* *After calm*: the mean RTT of the samples that followed a calm one, which is what a message meets
  that is sent because the last sample was good. It includes congestion that began in between, and
  so the harm of rare samples.
* *Seconds for each byte*: where packets are lost, a transfer is slow although RTTs are not. The
  kernel's rate shows it if it was measured while there was enough to send (a full pipe): the newest
  such rate counts until the next look, and those of calm are what to wait for. Between small
  messages the kernel's retransmissions show it, by the TCP throughput equation. They are counted
  relative to what was sent in congestion only: a megabyte sent before it would hide them. The next
  congestion begins with the values at the end of the last one. The equation is for losses that do
  not depend on what is sent. Where connections share a full queue, a transfer may be ten times as
  fast: what earlier transfers in congestion took, over what the equation said, corrects it. A rate
  counts once a later RTT sample shows that congestion had not ended by then.

A path whose samples vary without memory has the same RTT after a calm sample as after any other.
Then nothing is gained by waiting for a calm one, and `adaptive` sees that.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.link import TcpLook
from penstock.plugins.withholding.tcp_rate import seconds_per_byte

LOSS_BASED = frozenset(
    ("bic", "cubic", "highspeed", "htcp", "hybla", "illinois", "reno", "scalable", "veno", "yeah")
)
"""Linux's congestion controls that take a loss for congestion: the TCP throughput equation holds
for them."""

RATE_SECONDS = 300.0
"""Over which the rate of small messages is averaged, as the least RTT is found: an alarm in some
minutes counts."""

CALM_RATE_RATIO = 1 / 2
"""Rate of a transfer over that of calm from which on the path is calm, whatever RTTs are: they are
those of the connection's own queue, or of what waited in congestion that is over."""

MAX_LENGTHS = 48
"""Lengths that are kept: enough that some are left when most have been exceeded, in 350 bytes."""

PRIOR_LENGTHS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds; assumed for a subscriber without a history."""

GAIN = 1 / 8
"""Least weight of a new sample in level and deviation (alpha of RFC 6298), and of a look in the
losses. As many samples as it averages over are supposed to have followed the first calm one, all
equal to it, so that one congestion right after it does not make calm worthless."""

SLOW_GAIN = GAIN**3
"""Least weight of a new sample in `after_calm`, and of a lower rate in `best_rate`: congestion
after calm is rare and costs much, so few samples say little."""

FAR_DEVIATIONS = 4.0
"""Deviations from the level at which another congestion has begun (K of RFC 6298)."""

NEAR_RATIO = 1 / 8
"""A sample this close to the level, as a fraction of it, belongs to the same congestion however
steady that has been: a message would hardly feel the difference."""

SUPPOSED_LOSS_RATIO = 0.03
"""Loss that is supposed of a subscriber's first congestion; otherwise a large message would be sent
in the second before a loss is seen. Losses above it are congestion that the kernel sees."""

REMEMBERED_SEGMENTS = 80.0
"""Segments sent in congestion over which losses are averaged: enough to tell a fifth from a
twentieth."""


def supposed_seconds() -> float:
    """Return the seconds before the first count in which one small message is supposed to come.

    That is one in a congestion of mean length, as far as lengths are supposed: the first alarms of
    a new subscriber are protected.
    """
    return sum(PRIOR_LENGTHS) / len(PRIOR_LENGTHS)


class _Suspended(NamedTuple):
    """A congestion that may have ended; all in seconds but for the number of its samples."""

    began_at: float
    ended_at: float
    level: float
    n_level: int


@dataclass(eq=False, slots=True)
class CongestionHistory:
    """Follows one subscriber's path; made and forgotten with its link.

    All RTTs are those of a packet of the latency profile's first row.

    Attributes:
        lengths: lengths of past congestion, ascending, seconds; at least one.
        began_at: monotonic seconds of the first sample of the present congestion, or None while
            the path is calm.
        sampled_at: monotonic seconds at which the newest sample's packet was sent, or None before
            the first.
        known_at: monotonic seconds at which its RTT was known.
        lag_seconds: from sending to knowing of the newest calm sample.
        latest: RTT of the newest sample in congestion, seconds.
        spacing_seconds: mean time between two samples of one congestion.
        level: mean RTT of the present congestion or, in calm, of the last one, seconds; 0 before
            the first.
        after_calm: mean RTT of samples that followed a calm one, seconds, or None before the first.
        seconds_per_byte: of a long transfer in congestion, from its losses so far; 0 before the
            first look in congestion, and where the kernel cannot be asked.
        slowness_ratio: mean time that a byte took in congestion over `seconds_per_byte`; the
            equation itself counts as one sample.
        full_rate: newest rate of a full pipe, bytes per second; None before the first.
        full_rate_at: monotonic seconds of the look that found it.
        best_rate: the best of these, forgotten slowly.
        calm_seconds_per_byte: mean time for a byte from the full-pipe rates of calm; None before
            the first.
        is_loss_based: whether the connection's congestion control slows down for each loss; True
            before the first look.
        is_seen_by_kernel: whether the kernel's RTT or losses show the congestion. They do not where
            it is beyond the connection's end, such as a relay, whose rates say nothing then.
        small_per_second: small messages that came lately, 1/s.
    """

    lengths: array[float] = field(default_factory=lambda: array("f", PRIOR_LENGTHS))
    _newest_first: bytes = field(default_factory=lambda: bytes(range(len(PRIOR_LENGTHS))))
    """Of each length its place in `lengths`, that of the newest first."""
    began_at: float | None = None
    sampled_at: float | None = None
    known_at: float = 0.0
    lag_seconds: float = 0.0
    _interval: float = 0.0
    _interval_squared: float = 0.0
    latest: float = 0.0
    spacing_seconds: float = 0.0
    level: float = 0.0
    after_calm: float | None = None
    _n_level: int = 0
    _n_after_calm: int = field(default_factory=lambda: round(1 / GAIN))
    _deviation: float = 0.0
    _variance: float = 0.0
    _covariance: float = 0.0
    _suspended: _Suspended | None = None
    _looked_at: float = 0.0
    _n_sent: float = field(default_factory=lambda: GAIN * REMEMBERED_SEGMENTS)
    _n_lost: float = field(default_factory=lambda: SUPPOSED_LOSS_RATIO * GAIN * REMEMBERED_SEGMENTS)
    _counted: tuple[int, int] | None = None
    seconds_per_byte: float = 0.0
    slowness_ratio: float = 1.0
    _n_slowness: int = 1
    _unproven: float = 0.0
    """Sample of `slowness_ratio` by the newest full-pipe rate; 0 for none."""
    full_rate: int | None = None
    full_rate_at: float = 0.0
    best_rate: float | None = None
    calm_seconds_per_byte: float | None = None
    is_loss_based: bool = True
    is_seen_by_kernel: bool = True
    small_per_second: float = field(default_factory=lambda: 1 / supposed_seconds())
    _n_small: int | None = None
    _counted_at: float = 0.0
    _count_seconds: float = field(default_factory=supposed_seconds)
    large_bytes: int = 0
    _large_at: float = 0.0
    _drained_at: float = 0.0
    _drained_before: float = 0.0

    def observe(self, rtt: float, sent_at: float, known_at: float, threshold_l: float) -> None:
        """Take one RTT sample.

        Args:
            rtt: seconds.
            sent_at: monotonic seconds at which the timed packet was sent.
            known_at: monotonic seconds at which its answer was known; never earlier than for the
                sample before.
            threshold_l: seconds above which the path is congested.
        """
        spacing = 0.0
        if self.sampled_at is not None:
            seconds = known_at - self.known_at
            self._interval += GAIN * (seconds - self._interval)
            self._interval_squared += GAIN * (seconds * seconds - self._interval_squared)
            if self.began_at is None:
                self._follow_calm(rtt)
            # Answers may overtake each other; the later answer is the newer sample.
            spacing = sent_at - self.sampled_at
            if spacing < 0:
                sent_at, spacing = self.sampled_at, 0.0
        if self._unproven and sent_at > self.full_rate_at:
            if rtt > threshold_l:
                self._correct_equation(self._unproven)
            self._unproven = 0.0
        self.sampled_at = sent_at
        self.known_at = known_at
        if rtt <= threshold_l:
            self.lag_seconds = known_at - sent_at
            self._end(sent_at)
            if self.after_calm is None:
                self.after_calm = rtt
        else:
            self._observe_congested(rtt, sent_at, spacing)

    def observe_small(self, n_messages: int, now: float) -> None:
        """Take the number of small messages that have come so far.

        Args:
            n_messages: since the subscriber's session began.
            now: monotonic seconds.
        """
        before, seconds = self._n_small, now - self._counted_at
        if before is None:
            # Those that came before the first RTT are of the supposed seconds.
            self.small_per_second += n_messages / self._count_seconds
            self._n_small, self._counted_at = n_messages, now
        elif seconds > 0:
            # The plain mean at first, then exponential.
            counted = self._count_seconds
            if counted < RATE_SECONDS:
                counted = self._count_seconds = min(RATE_SECONDS, counted + seconds)
            n_new = n_messages - before if n_messages > before else 0
            weight = seconds / counted if seconds < counted else 1.0
            self.small_per_second += weight * (n_new / seconds - self.small_per_second)
            self._n_small, self._counted_at = n_messages, now

    def observe_large(self, n_bytes: int, least_seconds: float, now: float) -> None:
        """Take note of a large message that has left.

        It leaves when the kernel has taken the one before, so packets wait for this one alone.

        Args:
            n_bytes: of its payload.
            least_seconds: that it takes in calm, by the latency profile.
            now: monotonic seconds at which it left.
        """
        self._drained_before, self._large_at = self._drained_at, now
        seconds = max(least_seconds, n_bytes * self.calm_slowness())
        self._drained_at = now + seconds

    def own_seconds(self, sent_at: float) -> float:
        """Return for how long a packet waited for the connection's own large messages in calm.

        Args:
            sent_at: monotonic seconds at which the packet was sent.
        """
        until = self._drained_at if self._large_at <= sent_at else self._drained_before
        return until - sent_at if until > sent_at else 0.0

    def observe_look(self, look: TcpLook) -> None:
        """Take the kernel's figures, once for each look; after `observe`."""
        if look.looked_at <= self._looked_at:
            return
        self._looked_at = look.looked_at
        self.is_loss_based = look.congestion_control in LOSS_BASED
        if self.began_at is None:
            self._counted = None
        else:
            self._follow_losses(look)
        rate = look.delivery_rate
        # The kernel keeps a full pipe's rate until a faster one: the same rate is not a new sample.
        if rate is not None and not look.is_app_limited and rate != self.full_rate:
            self._observe_rate(rate, look.looked_at)

    def _observe_rate(self, rate: int, at: float) -> None:
        """Take the rate of a full pipe."""
        self.full_rate, self.full_rate_at = rate, at
        best = rate if self.best_rate is None else self.best_rate
        self.best_rate = max(rate, best + SLOW_GAIN * (rate - best))
        calm = self.calm_seconds_per_byte
        is_as_in_calm = calm is not None and rate * calm > CALM_RATE_RATIO
        if self.began_at is not None and self.is_seen_by_kernel:
            if self.seconds_per_byte:
                self._unproven = 1 / (rate * self.seconds_per_byte)
            if is_as_in_calm:
                self._end(at)
        if self.began_at is None:
            # In steps, so that a rate of the last bad phase hardly counts.
            before = calm or 1 / rate
            step = GAIN * before
            self.calm_seconds_per_byte = before + max(-step, min(step, 1 / rate - before))

    def measured_slowness(self, now: float, n_bytes: int) -> float:
        """Return the time for a byte by the last transfer in congestion, seconds; 0 for unknown.

        A rate found in the present congestion counts for as long as so many bytes take at it.

        Args:
            now: monotonic seconds.
            n_bytes: of the message that is to be sent.
        """
        rate, age = self.full_rate, now - self.full_rate_at
        if rate is None or age * rate > n_bytes:
            return 0.0
        # The rate of a transfer that was over before this congestion says nothing of it.
        if self.began_at is not None and self.full_rate_at < self.began_at:
            return 0.0
        return 1 / rate

    def assumed_slowness(self, level: float) -> float:
        """Return the expected time for a byte in congestion before a transfer was measured.

        Args:
            level: RTT in this congestion, seconds, for the assumption before the first look.

        Returns:
            Seconds for each byte: with loss-based congestion control by the TCP throughput
            equation, corrected by earlier transfers, with any other as in calm.
        """
        if not self.is_loss_based:
            return self.calm_slowness()
        if not self.seconds_per_byte:
            return seconds_per_byte(level, 0.0, SUPPOSED_LOSS_RATIO)
        return self.slowness_ratio * self.seconds_per_byte

    def calm_slowness(self) -> float:
        """Return the time for a byte of a long transfer in calm, seconds; 0 where it is unknown.

        Where no such transfer was seen in calm, as on a link that a large message fills, it is that
        of the fastest one.
        """
        if self.calm_seconds_per_byte is not None:
            return self.calm_seconds_per_byte
        return 1 / self.best_rate if self.best_rate is not None else 0.0

    def until_next_sample(self) -> float:
        """Return the expected time from any moment until the next sample is known, seconds.

        That is half the mean of squared intervals over their mean: a moment falls into a long
        interval more often than into a short one.
        """
        return self._interval_squared / (2 * self._interval) if self._interval else 0.0

    def persistence(self) -> float:
        """Return the part of a distance from the level that is left a second later, 0 to 1."""
        if self._covariance <= 0.0 or self.spacing_seconds <= 0.0:
            return 0.0
        left_in_next = min(1.0, self._covariance / self._variance)
        return math.pow(left_in_next, 1 / self.spacing_seconds)

    def is_off_level(self, rtt: float) -> bool:
        """Say whether an RTT is too far off to belong to the present congestion."""
        return abs(rtt - self.level) > self._far_from(self.level)

    def lose_sight(self) -> None:
        """There is no recent sample: the length of the present congestion will not be known."""
        self.began_at = None
        self.sampled_at = None
        self._suspended = None
        self._unproven = 0.0

    def _correct_equation(self, ratio: float) -> None:
        self._n_slowness += 1
        self.slowness_ratio += max(GAIN, 1 / self._n_slowness) * (ratio - self.slowness_ratio)

    def _follow_calm(self, rtt: float) -> None:
        self._n_after_calm += 1
        before = rtt if self.after_calm is None else self.after_calm
        self.after_calm = before + max(1 / self._n_after_calm, SLOW_GAIN) * (rtt - before)

    def _follow_losses(self, look: TcpLook) -> None:
        """Count what was sent and lost since the last look, if that was in congestion, too."""
        before, self._counted = self._counted, (look.segments, look.retransmissions)
        n_all, n_all_lost = self._n_sent, self._n_lost
        # A new connection's counters begin at 0 again.
        if before is not None and look.segments > before[0]:
            n_sent, n_lost = look.segments - before[0], look.retransmissions - before[1]
            if not 0 <= n_lost <= n_sent:
                n_lost = 0 if n_lost < 0 else n_sent
            # Hundreds that were sent while a backlog was its own congestion say nothing of the
            # next bad phase.
            most = GAIN * REMEMBERED_SEGMENTS
            counted = most / n_sent if n_sent > most else 1.0
            n_all += counted * n_sent
            n_all_lost += counted * n_lost
            if n_all > REMEMBERED_SEGMENTS:
                n_all_lost *= REMEMBERED_SEGMENTS / n_all
                n_all = REMEMBERED_SEGMENTS
            self._n_sent, self._n_lost = n_all, n_all_lost
        rtt, loss_ratio = look.rtt or 0.0, n_all_lost / n_all
        # Of an RTT that is a small part of the level, a message would hardly feel anything.
        self.is_seen_by_kernel = rtt > NEAR_RATIO * self.level or loss_ratio > SUPPOSED_LOSS_RATIO
        if n_all == GAIN * REMEMBERED_SEGMENTS:  # none counted yet
            rtt = max(rtt, self.level)  # the kernel's smoothed RTT has only begun to rise
        self.seconds_per_byte = seconds_per_byte(rtt, look.rttvar or 0.0, loss_ratio)

    def _observe_congested(self, rtt: float, sent_at: float, spacing: float) -> None:
        if self.began_at is not None:
            off, far = abs(rtt - self.level), self._far_from(self.level)
            is_off = off > far
            # Limited, so that a new level is no spread.
            self._deviation += GAIN * ((far if is_off else off) - self._deviation)
            if self._suspended is not None and self._resume(self._suspended, rtt, off):
                pass
            elif is_off:
                self._suspend(self.began_at, sent_at)
            elif self._suspended is not None:
                self._end_suspended()
        if self.began_at is None:
            self.began_at = sent_at
            self._n_level = 0
            self._deviation = self._deviation or rtt / 2
        n_level = self._n_level = self._n_level + 1
        if n_level == 1:
            self.level = rtt
        else:
            level = self.level
            off_before, off = self.latest - level, rtt - level
            self._variance += GAIN * (off_before * off_before - self._variance)
            self._covariance += GAIN * (off_before * off - self._covariance)
            before_spacing = self.spacing_seconds or spacing
            self.spacing_seconds = before_spacing + GAIN * (spacing - before_spacing)
            self.level = level + (GAIN if n_level * GAIN > 1 else 1 / n_level) * off
        self.latest = rtt

    def _suspend(self, began_at: float, ended_at: float) -> None:
        """End the present congestion on trial, as one sample suggests.

        If it has only one sample itself, it is forgotten, and the one before stays suspended.
        """
        if self._suspended is None:
            self._suspended = _Suspended(began_at, ended_at, self.level, self._n_level)
        self.began_at = None

    def _resume(self, old: _Suspended, rtt: float, off: float) -> bool:
        """Continue the suspended congestion, if the sample is closer to it.

        Args:
            old: the suspended one.
            rtt: of the sample, seconds.
            off: its distance from the present level, seconds.
        """
        if abs(rtt - old.level) > min(self._far_from(old.level), off):
            return False
        self.began_at, self.level, self._n_level = old.began_at, old.level, old.n_level
        self._suspended = None
        return True

    def _end_suspended(self) -> None:
        """The suspended congestion has ended: a second sample shows another level, or calm."""
        if self._suspended is not None:
            self._remember(self._suspended.ended_at - self._suspended.began_at)
            self._suspended = None

    def _far_from(self, level: float) -> float:
        return max(FAR_DEVIATIONS * self._deviation, NEAR_RATIO * level)

    def _end(self, ended_at: float) -> None:
        """Remember the length of the present congestion, if there is one."""
        self._end_suspended()
        if self.began_at is not None:
            self._remember(ended_at - self.began_at)
            self.began_at = None

    def _remember(self, length: float) -> None:
        lengths, places = self.lengths.tolist(), list(self._newest_first)
        if len(lengths) == MAX_LENGTHS:
            oldest = places.pop()
            del lengths[oldest]
            places = [place - (place > oldest) for place in places]
        new = bisect_right(lengths, length)
        lengths.insert(new, length)
        # New objects: an array that grows keeps more memory than its items need.
        self._newest_first = bytes([new, *(place + (place >= new) for place in places)])
        self.lengths = array("f", lengths)
