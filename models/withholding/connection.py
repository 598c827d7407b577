"""Small and large messages of one subscriber on one connection, in a fluid approximation.

The paper's simulation has large messages alone, each on a path of its own. Here they share a
connection with small ones, as in the broker: bytes leave in order, and nothing overtakes a large
message that has begun. The broker's own gate decides, and is told what the broker would tell it.

* The path is good and bad in turn, for exponentially distributed times. In each state it carries
  bytes at a rate, which stands for what TCP makes of it, and delivers them half an RTT later.
* In a bad state each packet of a small message may be lost; it is then sent again after 0.3 s, and
  each time after twice as long. What comes behind it waits, as TCP keeps the order.
* RTT samples are those of small messages, one at a time, and each T_Q the kernel's smoothed RTT.
  Each large message is acknowledged.

Time goes in steps of 10 ms. Not modelled: slow start, cross traffic, the client.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.plugins.probing.config import (
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_PROBE_PERIOD,
    DEFAULT_PUBACK_SPACING_SECONDS,
    DEFAULT_WINDOW_SECONDS,
)
from penstock.plugins.probing.estimators import SourceEstimates
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate

STEP_SECONDS: Final = 0.01

SMALL_BYTES: Final = 150
"""Of a small message with its headers."""

RETRANSMIT_SECONDS: Final = 0.3
"""Until a lost packet is sent for the second time."""

AFTER_SECONDS: Final = 15.0
"""For which small messages go on after the last large one."""

SETTLE_SECONDS: Final = 200.0
"""After the end, in which the path is good, for what has not come."""


class State(NamedTuple):
    """A path.

    Attributes:
        rate: bytes that TCP carries in a second.
        rtt: seconds.
        loss: share of packets that are lost.
    """

    rate: float
    rtt: float
    loss: float = 0.0


GOOD: Final = State(2_300_000, 0.04)
"""20 ms each way and 20 Mbit/s."""


LOSSY: Final = State(6_000, 0.2, 0.2)
"""100 ms each way and 20 % loss, of which cubic makes next to nothing."""


@dataclass(frozen=True)
class Case:
    """A path and its messages.

    Attributes:
        about: in words.
        good: the path at first.
        bad: the path in between.
        mean_seconds: mean time for which it is good, and bad; infinite for always.
        small_seconds: mean time between two small messages; infinite for none.
        large_seconds: the same of large ones.
        is_random: whether messages come at random (Poisson) and not regularly.
        small_bytes: of a small message with its headers.
        large_bytes: of a large one.
    """

    about: str
    good: State = GOOD
    bad: State = LOSSY
    mean_seconds: tuple[float, float] = (17.5, 17.5)
    small_seconds: float = 0.5
    large_seconds: float = 5.0
    is_random: bool = False
    small_bytes: int = SMALL_BYTES
    large_bytes: int = 1_000_000


CASES: Final = {
    "lossy": Case("20 % loss and 100 ms each way for 17.5 s on average, cubic"),
    "long": Case("the same for 60 s", mean_seconds=(17.5, 60.0)),
    "bbr": Case("lossy with bbr", bad=State(1_000_000, 0.2, 0.2)),
    "shared": Case(
        "another connection fills the link, for 10 s on average of 30",
        bad=State(900_000, 0.24, 0.01),
        mean_seconds=(20.0, 10.0),
    ),
    "cliff": Case("1 Mbit/s in place of 20", bad=State(115_000, 0.04)),
    "no small": Case("lossy without small messages", small_seconds=math.inf),
    "rare small": Case("lossy, a small one in 30 s", small_seconds=30.0, is_random=True),
    "busy": Case(
        "half a second of RTT, large ones for most of the time",
        good=State(400_000, 0.5),
        mean_seconds=(math.inf, 1.0),
        small_seconds=1.0,
        large_seconds=4.0,
    ),
    "field": Case(
        "the same, 100 ms more and lossy for two thirds of the time",
        good=State(400_000, 0.48),
        bad=State(5_000, 0.58, 0.2),
        mean_seconds=(20.0, 40.0),
        small_seconds=4.0,
        large_seconds=8.0,
    ),
}


class Latencies(NamedTuple):
    """What a run gave, in seconds from when a message was due.

    Attributes:
        small: of small messages, in order of arrival.
        large: of large ones.
    """

    small: list[float]
    large: list[float]


@dataclass(eq=False)
class _Sending:
    """A message that is leaving.

    Attributes:
        left_bytes: of it.
        due_at: seconds.
        is_large: size class.
        timed_at: seconds at which it left, where its acknowledgement is a sample.
    """

    left_bytes: float
    due_at: float
    is_large: bool
    timed_at: float | None = None


@dataclass(eq=False)
class _Kernel:
    """What TCP_INFO would say."""

    srtt: float
    moved_bytes: float = 0.0


@dataclass(eq=False)
class Connection:
    """One subscriber.

    Attributes:
        case: its path and messages.
        gate: asked about large messages.
        seed: of the path, its losses and the arrivals; equal for all policies that are compared.
        seconds: for which messages come.
        probe_period: T_Q, seconds between two looks at the kernel's figures.
    """

    case: Case
    gate: WithholdingGate
    seed: int
    seconds: float
    probe_period: float = DEFAULT_PROBE_PERIOD
    now: float = 0.0
    found: Latencies = field(default_factory=lambda: Latencies([], []))
    link: Link = field(default_factory=lambda: Link("simulated"))

    def __post_init__(self) -> None:
        case = self.case
        self._large_bytes = case.large_bytes
        self._large = Message("pictures/1", bytes(self._large_bytes), is_large=True)
        self._changes = _changes(case, self.seed, self.seconds)
        self._losses = _rng(self.seed, "losses")
        # Small messages go on for a while, so that the end of the last bad state is seen.
        small_until = self.seconds + AFTER_SECONDS
        self._small_due = deque(_arrivals(case, case.small_seconds, self.seed, small_until))
        self._large_due = deque(_arrivals(case, case.large_seconds, self.seed + 1, self.seconds))
        self._state = case.good
        self._waiting: deque[tuple[float, float | None]] = deque()  # due at, held since
        self._sending: deque[_Sending] = deque()
        self._kernel = _Kernel(case.good.rtt)
        self._sources = [
            SourceEstimates(
                name,
                estimator="last",
                recent_seconds=DEFAULT_MAX_AGE_SECONDS,
                window_seconds=DEFAULT_WINDOW_SECONDS,
            )
            for name in ("tcp_info", "puback")
        ]
        self._acknowledged: list[tuple[float, float]] = []  # at, of a packet sent at
        self._large_acknowledged: deque[float] = deque()
        self._timed_at: float | None = None
        self._time_next_at = 0.0
        self.gate.probe_period = self.probe_period
        self._look_at = self.probe_period
        self._delivered_at = 0.0
        self._asks = True
        self._ask_at: float | None = None

    def run(self) -> Latencies:
        """Let all messages come and arrive; what has not come in the end counts as late."""
        end = self.seconds + SETTLE_SECONDS
        while self.now < end and (self._small_due or self._large_due or self._is_busy()):
            self._step()
            self.now += STEP_SECONDS
        for due_at, _ in self._waiting:
            self.found.large.append(self.now - due_at)
        for each in self._sending:
            (self.found.large if each.is_large else self.found.small).append(self.now - each.due_at)
        return self.found

    def _is_busy(self) -> bool:
        return self.now < self.seconds or bool(self._waiting or self._sending)

    def _step(self) -> None:
        while self._changes and self._changes[0][0] <= self.now:
            self._state = self._changes.popleft()[1]
        while self._small_due and self._small_due[0] <= self.now:
            small = _Sending(self.case.small_bytes, self._small_due.popleft(), is_large=False)
            if self._timed_at is None and self.now >= self._time_next_at:
                small.timed_at = self._timed_at = self.now
            self._sending.append(small)
        while self._large_due and self._large_due[0] <= self.now:
            self._waiting.append((self._large_due.popleft(), None))
            self._asks = True
        in_transfer = any(each.is_large for each in self._sending)
        if self._waiting and not in_transfer:
            self._ask()
        self._carry(in_transfer=in_transfer)
        self._sample()

    def _ask(self) -> None:
        """Ask the gate about the oldest large message, if there is something new."""
        if not self._asks and (self._ask_at is None or self.now < self._ask_at):
            return
        self._asks = False
        due_at, held_since = self._waiting[0]
        self.link.outstanding_since = self._timed_at
        sojourn = 0.0 if held_since is None else self.now - held_since
        verdict = self.gate.decide(self._large, self.link, sojourn, self.now)
        self._ask_at = verdict.look_again_at
        if verdict.deliver:
            self._waiting.popleft()
            self._sending.append(_Sending(self._large_bytes, due_at, is_large=True))
            self.gate.large_sent(self.link, self._large_bytes, self.now)
            self._asks = True
        else:
            held = ((at, self.now if since is None else since) for at, since in self._waiting)
            self._waiting = deque(held)

    def _carry(self, *, in_transfer: bool) -> None:
        """Send for one step."""
        state, kernel = self._state, self._kernel
        budget = state.rate * STEP_SECONDS
        moved = 0.0
        while self._sending and budget > 0:
            first = self._sending[0]
            n_bytes = min(budget, first.left_bytes)
            first.left_bytes -= n_bytes
            budget -= n_bytes
            moved += n_bytes
            if first.left_bytes <= 0:
                self._sending.popleft()
                self._deliver(first)
        kernel.moved_bytes += moved
        if in_transfer:
            kernel.srtt += STEP_SECONDS / state.rtt / 8 * (state.rtt - kernel.srtt)

    def _deliver(self, done: _Sending) -> None:
        state, kernel = self._state, self._kernel
        delay, again = state.rtt / 2, RETRANSMIT_SECONDS
        if not done.is_large:
            while state.loss and self._losses.random() < state.loss:
                delay += again
                again *= 2
        at = self._delivered_at = max(self._delivered_at, self.now + delay)
        (self.found.large if done.is_large else self.found.small).append(at - done.due_at)
        if done.is_large:
            self._large_acknowledged.append(at + state.rtt / 2)
        if done.timed_at is not None:
            heappush(self._acknowledged, (at + state.rtt / 2, done.timed_at))
        kernel.srtt += (state.rtt - kernel.srtt) / 8

    def _sample(self) -> None:
        """Tell the gate what samplers would, as `RttSampler` does."""
        by_kernel, by_puback = self._sources
        has_news = False
        while self._acknowledged and self._acknowledged[0][0] <= self.now:
            _, sent_at = heappop(self._acknowledged)
            by_puback.add(self.now - sent_at, 100, self.now)
            self._timed_at, has_news = None, True
            self._time_next_at = self.now + DEFAULT_PUBACK_SPACING_SECONDS
        link = self.link
        while self._large_acknowledged and self._large_acknowledged[0] <= self.now:
            self._large_acknowledged.popleft()
            self._asks |= self.gate.large_acknowledged(link, self.now)
        if self.now >= self._look_at:
            self._look_at += self.probe_period
            has_news |= self._look_at_kernel()
        counting = [
            source
            for source in (by_kernel, by_puback)
            if source.updated_at is not None
            and self.now - source.updated_at <= DEFAULT_MAX_AGE_SECONDS
        ]
        if not counting:
            if link.rtt_latest is not None:
                link.rtt_latest = None
                self._tell()
            return
        if not has_news:
            return
        source = max(counting, key=lambda each: each.latest)
        newer = (by_puback.updated_at or 0.0) > (by_kernel.updated_at or 0.0)
        if source is by_kernel and newer and by_puback in counting:
            source = by_puback
        link.rtt_latest, link.rtt_updated_at = source.latest, source.updated_at
        link.rtt_source = source.name
        link.rtt_min, link.rtt_quartile = source.minimum.value, source.quartile.value
        link.threshold_l = source.average.value
        self._tell()

    def _look_at_kernel(self) -> bool:
        """Take the kernel's RTT; return whether something was acknowledged."""
        kernel = self._kernel
        has_news = kernel.moved_bytes > 0
        if has_news:
            self._sources[0].add_smoothed(kernel.srtt, kernel.srtt / 8, self.now)
        kernel.moved_bytes = 0.0
        return has_news

    def _tell(self) -> None:
        self.gate.observe(self.link)
        self._asks = True


def simulate_connection(
    config: WithholdingConfig,
    case: Case,
    seed: int,
    seconds: float,
    probe_period: float = DEFAULT_PROBE_PERIOD,
) -> Latencies:
    """Return the latencies of one connection.

    Args:
        config: of the gate.
        case: the path and the messages.
        seed: of everything that chance decides: the same for each policy.
        seconds: for which messages come.
        probe_period: T_Q, seconds.
    """
    return Connection(case, WithholdingGate(config), seed, seconds, probe_period).run()


def _rng(seed: int, what: str) -> random.Random:
    return random.Random(f"{seed} {what}")  # noqa: S311 (a simulation)


def _changes(case: Case, seed: int, seconds: float) -> deque[tuple[float, State]]:
    """Return when the path changes to what; it is good in the end."""
    rng = _rng(seed, "path")
    states, at, n = (case.good, case.bad), 0.0, 0
    found: deque[tuple[float, State]] = deque()
    while at < seconds:
        found.append((at, states[n % 2]))
        mean = case.mean_seconds[n % 2]
        at += rng.expovariate(1 / mean) if mean < math.inf else math.inf
        n += 1
    found.append((seconds, case.good))
    return found


def _arrivals(case: Case, mean_seconds: float, seed: int, until: float) -> list[float]:
    """Return when messages come, from a random phase on."""
    if mean_seconds == math.inf:
        return []
    rng = _rng(seed, "arrivals")
    at = mean_seconds * rng.random()
    found = []
    while at < until:
        found.append(at)
        at += rng.expovariate(1 / mean_seconds) if case.is_random else mean_seconds
    return found
