"""Small and large messages of subscribers behind a link, in virtual time and a fluid approximation.

Theory of operation. A connection delivers in order: no message overtakes one whose transmission has
begun. A link carries bytes at a rate that stands for TCP's throughput on the path, delivers them
half an RTT later, and changes its state at given times. Between two events, only the number of
bytes left of the message at the head of each connection changes, so the simulation steps from event
to event.

The broker's own gate decides, and the broker's own sampler receives what a connection would report:
acknowledgements of MQTT, and the kernel's figures once in each T_Q. Small messages leave at once,
and wait in the connection behind what is being sent. Large messages wait in the outbox for the
gate, and for room:

* on a direct connection, until the one before has left;
* behind a relay, such as a load balancer, until its buffers have room for them, as the broker sees
  nothing but these: the kernel's RTT is that of a cable, and the link is behind the relay.

In a state that loses packets, each small message may be lost. It is then sent again after 0.3 s,
and again after twice that time for each further loss; the messages behind it wait. Slow start and
slow clients are not modelled.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from penstock.broker.extensions import DeliveryGate
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.network.tcp_info import TcpInfo
from penstock.plugins.probing.config import DEFAULT_PROBE_PERIOD, ProbingConfig
from penstock.plugins.probing.sampler import RttSampler

RELAY_BYTES: Final = 3_000_000
"""The bytes that a relay accepts before the broker notices back-pressure: the relay's own
buffers and those of two sockets, which Linux lets grow to some megabytes."""

CABLE_SECONDS: Final = 0.0002
"""The RTT between the broker and a relay beside it."""

RETRANSMIT_SECONDS: Final = 0.3
"""The time until a lost packet is sent for the second time."""

MOST_RETRANSMIT_SECONDS: Final = 20.0

QUEUE_SECONDS: Final = 0.15
"""How long data waits in the queue before the link while a large message passes and nothing is
lost."""

AFTER_SECONDS: Final = 15.0
"""How long small messages go on after the last large one, so that the end of the last bad state is
seen."""

SETTLE_SECONDS: Final = 300.0
"""How long a run waits after its end for messages that have not arrived."""


class LinkState(NamedTuple):
    """The state of a link for some time.

    Attributes:
        rate: the bytes a second that TCP carries over the link.
        rtt: the round-trip time, seconds.
        loss: the share of packets that are lost.
    """

    rate: float
    rtt: float
    loss: float = 0.0


class LinkChange(NamedTuple):
    """A change of a link's state.

    Attributes:
        at: the time of the change, seconds.
    """

    at: float
    state: LinkState


GOOD: Final = LinkState(2_300_000, 0.04)
"""A link in its good state: 20 Mbit/s, and 20 ms each way."""

GOOD_SECONDS: Final = 17.5
BAD_SECONDS: Final = 17.5
"""Mean lengths of good and bad states; the bursts of paper 002 last for 10 to 25 s."""

BadPhase = Callable[[float, float], list[LinkChange]]
"""A function that makes the changes of one bad state, from its beginning to its end, both in
seconds."""


def in_turn(
    rng: random.Random,
    seconds: float,
    bad: BadPhase,
    *,
    good: LinkState = GOOD,
    mean_good_seconds: float = GOOD_SECONDS,
    mean_bad_seconds: float = BAD_SECONDS,
) -> list[LinkChange]:
    """Return the changes of a link that is good, then bad, and so on, and good in the end."""
    changes, at = [LinkChange(0.0, good)], rng.expovariate(1 / mean_good_seconds)
    while at < seconds:
        end = min(at + rng.expovariate(1 / mean_bad_seconds), seconds)
        changes += [*bad(at, end), LinkChange(end, good)]
        at = end + rng.expovariate(1 / mean_good_seconds)
    return changes


class Traffic(NamedTuple):
    """The messages of one subscriber.

    Attributes:
        small_seconds: mean time between two small ones; infinite for none.
        large_seconds: the mean time between two large messages; infinite for none.
        is_random: whether messages arrive at random times (Poisson) instead of regularly.
    """

    small_seconds: float = 0.5
    large_seconds: float = 5.0
    small_bytes: int = 150
    large_bytes: int = 1_000_000
    is_random: bool = False


class Latencies(NamedTuple):
    """The latencies of a run, in seconds from when a message was due."""

    small: list[float]
    large: list[float]


@dataclass(eq=False, slots=True)
class _MessageUnderWay:
    """A message that has left the broker.

    Attributes:
        left_bytes: the bytes that the link has not yet carried.
        due_at: the time at which the message was due, seconds.
    """

    packet_id: int
    left_bytes: float
    due_at: float
    is_large: bool


@dataclass(eq=False, slots=True)
class _Kernel:
    """The state of a connection as TCP_INFO would tell it: a smoothed RTT, and bytes."""

    srtt: float
    acked_bytes: float = 0.0
    is_waiting: bool = False

    def info(self) -> TcpInfo:
        return TcpInfo(
            rtt=self.srtt,
            rttvar=self.srtt / 8,
            mss=1448,
            unacked=int(self.is_waiting),
            total_retrans=0,
            bytes_acked=int(self.acked_bytes),
            segs_in=0,
            notsent_bytes=0,
            data_segs_out=0,
            delivery_rate=0,
            is_app_limited=True,
        )


class _Sampler(RttSampler):
    """The broker's sampler, over a simulated kernel."""

    kernel: _Kernel

    def read_tcp_info(self, fileno: int) -> TcpInfo:  # noqa: ARG002 (there is no socket)
        return self.kernel.info()


@dataclass(eq=False)
class _Subscriber:
    """One connection.

    Attributes:
        gate: the gate that decides when large messages leave.
        is_relayed: whether a relay is between the broker and the link.
        probe_period: T_Q, seconds.
        on_way: the messages that have left the broker and that the link has not fully carried, in
            order.
    """

    bottleneck: Bottleneck
    gate: DeliveryGate
    traffic: Traffic
    seed: str
    seconds: float
    is_relayed: bool
    probe_period: float
    found: Latencies = field(default_factory=lambda: Latencies([], []))
    on_way: deque[_MessageUnderWay] = field(default_factory=deque)

    def __post_init__(self) -> None:
        traffic = self.traffic
        self.link = Link(f"subscriber {self.seed}", had_large=True)
        self._sampler = _Sampler(ProbingConfig(), logging.getLogger(__name__))
        self._sampler.kernel = self._kernel = _Kernel(
            CABLE_SECONDS if self.is_relayed else self.bottleneck.state.rtt
        )
        self._large = Message("pictures/1", bytes(traffic.large_bytes), is_large=True)
        self._losses = _rng(self.seed, "losses")
        until = self.seconds + AFTER_SECONDS
        self._small_due = _arrivals(traffic, traffic.small_seconds, self.seed, "small", until)
        self._large_due = _arrivals(
            traffic, traffic.large_seconds, self.seed, "large", self.seconds
        )
        self._waiting: deque[tuple[float, float | None]] = deque()  # due at, held since
        self._acks: list[tuple[float, int, _MessageUnderWay]] = []
        self._n_sent = 0
        self._delivered_at = 0.0
        self._asks = True
        self._ask_at = math.inf
        self.gate.probe_period = self._look_at = self.probe_period

    @property
    def has_large_on_way(self) -> bool:
        """Return whether a large message of this subscriber is on the link."""
        return any(each.is_large for each in self.on_way)

    @property
    def is_done(self) -> bool:
        """Return whether all messages have arrived."""
        return not (self._small_due or self._large_due or self._waiting or self.on_way)

    def next_event(self) -> float:
        """Return when something happens that does not depend on the link, seconds."""
        return min(
            self._look_at,
            self._small_due[0] if self._small_due else math.inf,
            self._large_due[0] if self._large_due else math.inf,
            self._acks[0][0] if self._acks else math.inf,
            self._ask_at if self._waiting else math.inf,
        )

    def step(self, now: float) -> None:
        """Do what is due."""
        while self._small_due and self._small_due[0] <= now:
            self._leave(self._small_due.popleft(), self.traffic.small_bytes, now, is_large=False)
        while self._large_due and self._large_due[0] <= now:
            self._waiting.append((self._large_due.popleft(), None))
            self._asks = True
        while self._acks and self._acks[0][0] <= now:
            self._acknowledged(heappop(self._acks)[2], now)
        if now >= self._look_at:
            self._look(now)
        while self._waiting and self._has_room() and (self._asks or now >= self._ask_at):
            self._ask(now)

    def carry(self, n_bytes: float, now: float) -> None:
        """Take bytes off what leaves; `now` is when the last of them has left."""
        first = self.on_way[0]
        first.left_bytes -= n_bytes
        if not self.is_relayed:
            self._kernel.acked_bytes += n_bytes
        if first.left_bytes <= 0.01:
            self.on_way.popleft()
            self._asks = True
            self._deliver(first, now)

    def give_up(self, now: float) -> None:
        """Count what has not come as late as it is now."""
        self.found.large.extend(now - due_at for due_at, _ in self._waiting)
        for each in self.on_way:
            (self.found.large if each.is_large else self.found.small).append(now - each.due_at)

    def _has_room(self) -> bool:
        if self.is_relayed:
            return sum(each.left_bytes for each in self.on_way) < RELAY_BYTES
        return not self.has_large_on_way

    def _ask(self, now: float) -> None:
        """Ask the gate about the oldest large message that waits."""
        self._asks, self._ask_at = False, math.inf
        due_at, held_since = self._waiting[0]
        sojourn = 0.0 if held_since is None else now - held_since
        verdict = self.gate.decide(self._large, self.link, sojourn, now)
        if verdict.deliver:
            self._waiting.popleft()
            self._leave(due_at, self.traffic.large_bytes, now, is_large=True)
            self.gate.large_sent(self.link, self.traffic.large_bytes, now)
            self._asks = True
            return
        self._ask_at = math.inf if verdict.look_again_at is None else verdict.look_again_at
        self._waiting = deque((at, now if since is None else since) for at, since in self._waiting)

    def _leave(self, due_at: float, n_bytes: int, now: float, *, is_large: bool) -> None:
        self._n_sent += 1
        self.on_way.append(_MessageUnderWay(self._n_sent, n_bytes, due_at, is_large))
        self._kernel.is_waiting = True
        if self.is_relayed:
            self._kernel.acked_bytes += n_bytes
        if now >= self.link.quiet_until:
            self._sampler.sent(self.link, self._n_sent, n_bytes, now)

    def _deliver(self, done: _MessageUnderWay, now: float) -> None:
        state, delay, again = (
            self.bottleneck.state,
            self.bottleneck.state.rtt / 2,
            RETRANSMIT_SECONDS,
        )
        while not done.is_large and state.loss and self._losses.random() < state.loss:
            delay += again
            again = min(2 * again, MOST_RETRANSMIT_SECONDS)
        at = self._delivered_at = max(self._delivered_at, now + delay)
        (self.found.large if done.is_large else self.found.small).append(at - done.due_at)
        heappush(self._acks, (at + state.rtt / 2, done.packet_id, done))

    def _acknowledged(self, done: _MessageUnderWay, now: float) -> None:
        if done.is_large:
            self.gate.large_acknowledged(self.link, now)
            self._asks = True
        if not self.is_relayed:
            rtt = self.bottleneck.state.rtt + self.bottleneck.queue_seconds
            self._kernel.srtt += (rtt - self._kernel.srtt) / 8
        if self._sampler.acknowledged(self.link, done.packet_id, now):
            self._tell()

    def _look(self, now: float) -> None:
        """Let the sampler look at the kernel, as it does once in a period."""
        self._look_at += self.probe_period
        kernel = self._kernel
        if self.has_large_on_way and not self.is_relayed and self.bottleneck.state.rate:
            # Of the hundreds of segments in a second, each has given an RTT.
            kernel.srtt = self.bottleneck.state.rtt + self.bottleneck.queue_seconds
        kernel.is_waiting = bool(self.on_way) and not self.is_relayed
        if self._sampler.sample(self.link, 0, now):
            self._tell()

    def _tell(self) -> None:
        self.gate.observe(self.link)
        self._asks = True


class Bottleneck:
    """A link that one or more subscribers share; each has an equal share of its rate."""

    def __init__(self, changes: Sequence[LinkChange]) -> None:
        """Take the changes, the first at 0, in order."""
        self._changes = deque(changes)
        self.state = self._changes.popleft().state
        self.subscribers: list[_Subscriber] = []

    @property
    def queue_seconds(self) -> float:
        """Return how long data waits in the queue before the link, seconds."""
        if self.state.loss or not any(each.has_large_on_way for each in self.subscribers):
            return 0.0
        return QUEUE_SECONDS

    def run(self, seconds: float) -> None:
        """Let all messages come and arrive."""
        now, end = 0.0, seconds + SETTLE_SECONDS
        while now < end:
            while self._changes and self._changes[0].at <= now:
                self.state = self._changes.popleft().state
            for each in self.subscribers:
                each.step(now)
            if now > seconds + AFTER_SECONDS and all(each.is_done for each in self.subscribers):
                break
            now = self._carry(now)
        for each in self.subscribers:
            each.give_up(now)

    def _carry(self, now: float) -> float:
        """Carry bytes until the next event; return when that is."""
        busy = [each for each in self.subscribers if each.on_way]
        rate = self.state.rate / max(1, len(busy))
        event = min(each.next_event() for each in self.subscribers)
        if self._changes:
            event = min(event, self._changes[0].at)
        if rate:
            event = min(event, *(now + each.on_way[0].left_bytes / rate for each in busy), event)
        event = max(event, now + 1e-9)
        if rate:
            for each in busy:
                each.carry(rate * (event - now), event)
        return event


def simulate(
    changes: Sequence[LinkChange],
    make_gate: Callable[[Bottleneck], DeliveryGate],
    traffic: Traffic,
    seed: int,
    seconds: float,
    *,
    n_subscribers: int = 1,
    is_relayed: bool = False,
    probe_period: float = DEFAULT_PROBE_PERIOD,
) -> Latencies:
    """Return the latencies of the subscribers behind one link, all together.

    Args:
        changes: the changes of the link, the first at 0, in order.
        make_gate: a function that makes the gate of one subscriber; its argument is the link, for a
            gate that knows its state.
        traffic: the traffic of each subscriber.
        seed: the seed of arrivals and losses; equal for each gate that is compared.
        seconds: the time for which messages come.
        n_subscribers: the number of subscribers that share the link.
        is_relayed: whether a relay is between the broker and the link.
        probe_period: T_Q, seconds.
    """
    bottleneck = Bottleneck(changes)
    bottleneck.subscribers = [
        _Subscriber(
            bottleneck,
            make_gate(bottleneck),
            traffic,
            f"{seed} {number}",
            seconds,
            is_relayed,
            probe_period,
        )
        for number in range(n_subscribers)
    ]
    bottleneck.run(seconds)
    found = [each.found for each in bottleneck.subscribers]
    return Latencies(
        [latency for each in found for latency in each.small],
        [latency for each in found for latency in each.large],
    )


def _rng(seed: str, what: str) -> random.Random:
    return random.Random(f"{seed} {what}")  # noqa: S311 (a simulation)


def _arrivals(
    traffic: Traffic, mean_seconds: float, seed: str, what: str, until: float
) -> deque[float]:
    """Return when messages come, from a random phase on."""
    found: deque[float] = deque()
    if mean_seconds == math.inf:
        return found
    rng = _rng(seed, what)
    at = mean_seconds * rng.random()
    while at < until:
        found.append(at)
        at += rng.expovariate(1 / mean_seconds) if traffic.is_random else mean_seconds
    return found
