"""What a withholding policy is given, and what it answers.

Notation (paper 002): L_now is the expected one-way latency of the message if it is sent now,
`RTT_latest / 2` (equation 1); ΔS the sojourn, T_Q the `probe_period`, D `max_withhold`, λ
`congestion_rate`.

Policies of the paper decide by RTTs. The policy `adaptive` decides by a `Passage`: how long large
messages have taken on the way to this subscriber. One connection delivers in order, so what a large
message takes from its first byte to its acknowledgement is what a small one behind it waits. The
client's acknowledgement ends that time whatever lies between: a lossy link, a slow one, or the
buffers of a load balancer. So it is noted of each large message when it left, when it was
acknowledged, and whether the path was bad when it left.

An RTT sample of a packet that left behind a large message tells how long that message took, and
nothing of the path. Such samples are left out, so that a picture on its way does not look like
congestion. Messages of QoS 0 are not noted, as nothing acknowledges them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

PAUSE_RATIO = 1.0
"""The pause after a slow message over what that took. Where the rate of a link has fallen, its RTT
is good as soon as the message is through, so small messages see a free link half of the time."""

MOST_PAUSE_SECONDS = 5.0
"""A longer pause costs large messages more than it spares small ones: many messages are slow
because the path was bad for a while, which has ended."""

RECENT_SECONDS = 10.0
"""A sample counts for so long: the shortest congestion of paper 002. An older one may be of
congestion that has ended."""


@dataclass(eq=False, slots=True)
class Passage:
    """Large messages of one subscriber: those on their way, and what the last ones took.

    All are of QoS 1 or 2. A message *took* the time from when it left, or from when the one before
    it had passed, until its acknowledgement, less the RTT of the path. It was *slow* if that is
    more than the exposure.

    Attributes:
        exposure: seconds.
        bytes_on_way: payload bytes of large messages that are not acknowledged.
        seconds_per_byte: what the newest one took over its bytes; None before the first.
        bad_seconds_per_byte: the same of the newest one that passed a bad path; None before the
            first.
        pause_until: when the pause after a slow one ends; monotonic seconds.
        last_seconds: what the newest one took, RTT included, for reports; None before the first.
        known_at: when the newest RTT estimate was known; kept for the caller, monotonic seconds.
    """

    exposure: float
    bytes_on_way: int = 0
    seconds_per_byte: float | None = None
    bad_seconds_per_byte: float | None = None
    pause_until: float = -math.inf
    last_seconds: float | None = None
    known_at: float = -math.inf
    _on_way: list[tuple[float, int, bool]] = field(default_factory=list)
    """Messages on their way, oldest first: (when it left, bytes, whether the path was bad)."""
    _ended_at: float = -math.inf
    _rtt: float = 0.0
    _sampled_at: float = -math.inf
    _hint: float = 0.0
    _hint_at: float = -math.inf
    _passed: tuple[float, bool, bool] | None = None
    """The last message that has passed, until a sample shows how the path was: (seconds for each
    byte, whether the path was bad when it left, whether it was slow)."""

    @property
    def oldest_at(self) -> float:
        """When the oldest message on its way left, monotonic seconds; there is one."""
        return self._on_way[0][0]

    def sent(self, n_bytes: int, *, is_bad: bool, now: float) -> None:
        """Note a large message that leaves."""
        self._on_way.append((now, n_bytes, is_bad))
        self.bytes_on_way += n_bytes

    def acknowledged(self, now: float) -> None:
        """Note that the oldest large message on its way has passed."""
        if not self._on_way:  # it was sent again, on a new connection
            return
        sent_at, n_bytes, was_bad = self._on_way.pop(0)
        self.bytes_on_way -= n_bytes
        took = self.last_seconds = now - max(sent_at, self._ended_at)
        if now - self._sampled_at <= RECENT_SECONDS:
            took = max(0.0, took - self._rtt)
        self._ended_at = now
        self.seconds_per_byte = took / max(1, n_bytes)
        if took > self.exposure:
            self.pause_until = now + min(PAUSE_RATIO * took, MOST_PAUSE_SECONDS)
            self._passed = self.seconds_per_byte, was_bad, True
        else:
            self.pause_until = -math.inf
            if was_bad and self._passed is None:
                self._passed = self.seconds_per_byte, was_bad, False

    def observe(self, rtt: float, sent_at: float, threshold_l: float, now: float) -> None:
        """Take the RTT of a packet that the client has acknowledged.

        Args:
            rtt: seconds.
            sent_at: when its packet left; monotonic seconds.
            threshold_l: RTT above which the path is bad, seconds.
            now: when its answer came; monotonic seconds.
        """
        if self._was_behind(sent_at):
            return
        self._rtt, self._sampled_at = rtt, now
        passed, self._passed = self._passed, None
        if passed is None:
            return
        seconds_per_byte, was_bad, is_slow = passed
        if rtt > threshold_l:
            if was_bad or is_slow:
                self.bad_seconds_per_byte = seconds_per_byte
        elif was_bad:
            # The bad time ended while it passed, so that would have taken at least as long.
            self.pause_until = -math.inf
            if self.bad_seconds_per_byte is not None:
                self.bad_seconds_per_byte = max(self.bad_seconds_per_byte, seconds_per_byte)

    def observe_hint(self, rtt: float, sent_at: float, now: float) -> None:
        """Take the kernel's RTT: it may show that the path is bad, and nothing else.

        It ends at the next TCP endpoint, such as a load balancer.

        Args:
            rtt: seconds.
            sent_at: when the first packet left that it may include; monotonic seconds.
            now: monotonic seconds.
        """
        if not self._was_behind(sent_at):
            self._hint, self._hint_at = rtt, now

    def is_bad(self, threshold_l: float, unanswered_since: float | None, now: float) -> bool:
        """Say whether the path is bad: an RTT above threshold_l, or an answer that is overdue.

        Args:
            threshold_l: seconds.
            unanswered_since: when the oldest packet left whose answer is awaited, monotonic
                seconds, or None.
            now: monotonic seconds.
        """
        if self._rtt > threshold_l and now - self._sampled_at <= RECENT_SECONDS:
            return True
        if self._hint > threshold_l and self._sampled_at < self._hint_at >= now - RECENT_SECONDS:
            return True
        if unanswered_since is None:
            return False
        if self._on_way and unanswered_since >= self.oldest_at:
            return False  # it waits behind a large message
        return now - max(unanswered_since, self._ended_at) > threshold_l

    def _was_behind(self, sent_at: float) -> bool:
        """Say whether a packet was behind a large message, so that its RTT tells of that."""
        return sent_at < self._ended_at or bool(self._on_way and sent_at >= self.oldest_at)

    def connection_lost(self) -> None:
        """Forget what was on its way; what the last ones took stays."""
        self._on_way.clear()
        self.bytes_on_way = 0


class Situation(NamedTuple):
    """The input of a policy; times are in seconds.

    Attributes:
        l_now: L_now, scaled to the message's size.
        threshold_l: RTT of the uncongested path, scaled to the message's size.
        sojourn: ΔS, how long the message has been withheld so far.
        probe_period: T_Q, time until the next RTT estimate.
        is_overdue: whether L_now is that of a packet that has not been answered so far.
        now: monotonic seconds.
        passage: of the subscriber's large messages, for policies that learn.
    """

    l_now: float
    threshold_l: float
    sojourn: float
    probe_period: float
    is_overdue: bool = False
    now: float = 0.0
    n_bytes: int = 0
    is_bad: bool = False
    passage: Passage | None = None


class Judgement(NamedTuple):
    """A policy's answer.

    Attributes:
        cause: one of `penstock.broker.outbox.large_messages.CAUSES`.
        release_sojourn: ΔS in seconds above which a withheld message is delivered, unless news of
            the path causes an earlier decision.
    """

    delivers: bool
    cause: str
    why: str
    release_sojourn: float = 0.0


@dataclass(frozen=True)
class Policy(ABC):
    """Common to all policies.

    A policy is a frozen object: the broker, the proxy and the simulation ask the same one. All
    inequalities are strict.

    Attributes:
        max_withhold: D, seconds; infinite for policies without it.
    """

    name: ClassVar[str]
    learns: ClassVar[bool] = False
    """Whether `judge` reads `Situation.passage`."""
    max_withhold: float = math.inf

    @abstractmethod
    def judge(self, situation: Situation) -> Judgement:
        """Decide whether a large message is delivered now, and why."""
