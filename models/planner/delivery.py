"""The prediction of how fast devices' messages reach one subscriber, and where messages are lost.

A message passes three stages of paper 003's model: its device, which waits for a connection or
loses the message; the broker; and the outbox of the subscriber, which keeps messages while it is
off, or loses them. Beside the simulation stands the closed form for services that take no time.

* The devices of a kind are modelled as one peer that is on and off. For the delay of a message that
  is right: it waits for its own device. For full links it is pessimistic, as all devices wait
  together.
* A subscriber's link serves its messages at its mean rate over good and bad phases. What bad phases
  do to latencies is simulated in `link_policies`.
* Where peers stay on for much longer than the time between two messages, only a part of the
  messages is simulated: so many that peers go on and off often enough. The others take their share
  of each server's time. That is exact for the time in an M/M/1 queue, and leaves out the backlog
  after an outage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.kernels.delivery_path import BROKER, NETWORK, SUBSCRIBER, Path, Stage
from penstock.models.kernels.delivery_simulation import DeliveryOutcome, simulate
from penstock.models.planner.costs import Costs
from penstock.models.planner.fleet import Devices, Fleet, Subscribers
from penstock.models.planner.load import (
    PACKET_BYTES,
    broker_work,
    flows,
    idle_ratio,
    slow_start_seconds,
)
from penstock.netem.figures.estimates import Estimate, mean_estimate

RUNS: Final = 8
MESSAGES: Final = 15_000
"""The number of messages in a run."""
CYCLES: Final = 150.0
"""How many mean cycles of the slowest peer a run has at least."""
BACKLOG_SHARE: Final = 0.99
"""The share of outages for which a queue is to be long enough."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to send from devices of a kind to subscribers of a kind.

    Attributes:
        capacity: the most messages that wait for one subscriber; None for any number.
    """

    name: str
    devices: Devices
    subscribers: Subscribers
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The results of a variant.

    Attributes:
        light: the share of messages that would arrive if services took no time; nan where no closed
            form is known.
        wire_seconds: the time that each message is on links, which is added to each response time.
        simulated_ratio: the share of the messages that was simulated.
        backlog_messages: the messages that wait for one subscriber in most of its outages.
        backlog_bytes: the payload bytes of these messages.
    """

    variant: Variant
    outcomes: list[DeliveryOutcome]
    light: float
    wire_seconds: float
    simulated_ratio: float
    backlog_messages: int
    backlog_bytes: float

    @property
    def success(self) -> Estimate:
        """Share of all messages that arrive."""
        return mean_estimate([one.success_ratio for one in self.outcomes])

    @property
    def expired(self) -> Estimate:
        """Share whose lifetime ends."""
        return mean_estimate(
            [sum(each.expired_ratio for each in one.stages) for one in self.outcomes]
        )

    @property
    def lost(self) -> Estimate:
        """Share that is lost or finds a queue full."""
        return mean_estimate(
            [
                sum(each.lost_ratio + each.dropped_ratio for each in one.stages)
                for one in self.outcomes
            ]
        )

    def quantile(self, share: float) -> Estimate:
        """Return the seconds that a share of those that arrive does not exceed."""
        return mean_estimate([one.quantile(share) + self.wire_seconds for one in self.outcomes])


def variants(fleet: Fleet, source: str, subscribers: str) -> Iterator[Variant]:
    """Yield what the fleet has, then what could be done in its place."""
    devices, who = fleet.devices[source], fleet.subscribers[subscribers]
    yield Variant("as in the file", devices, who)
    if devices.qos:
        kept = replace(who, keeps_session=not who.keeps_session)
        yield (
            Variant(f"{'a kept' if kept.keeps_session else 'a clean'} session", devices, kept)
            if who.off_seconds
            else Variant("QoS 0", replace(devices, qos=0), who)
        )
    if devices.qos == 0:
        yield Variant("QoS 1", replace(devices, qos=1), who)
    if devices.lifetime_seconds is not None:
        longer = replace(devices, lifetime_seconds=2 * devices.lifetime_seconds)
        yield Variant("twice the lifetime", longer, who)
    n_waiting = backlog(devices, who)
    if n_waiting:
        yield Variant(f"at most {n_waiting:,} waiting", devices, who, n_waiting)
        few = max(1, n_waiting // 10)
        if few == n_waiting:
            return
        yield Variant(f"at most {few:,} waiting", devices, who, few)


def backlog(devices: Devices, who: Subscribers) -> int:
    """Return how many messages wait for one subscriber in most of its outages, rounded up."""
    if who.off_seconds is None or not (who.keeps_session and devices.qos):
        return 0
    longest = min(-math.log(1 - BACKLOG_SHARE) * who.off_seconds, _lifetime(devices))
    return round_up(devices.total_rate * who.share_ratio * longest)


def round_up(number: float) -> int:
    """Return a number of things, to two digits, as people write limits."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1))
    return math.ceil(number / step - 1e-9) * step


def _lifetime(devices: Devices) -> float:
    return math.inf if devices.lifetime_seconds is None else devices.lifetime_seconds


def predict(fleet: Fleet, costs: Costs, source: str, name: str, variant: Variant) -> Delivery:
    """Simulate a variant."""
    path, simulated_ratio, wire = _path(fleet, costs, source, name, variant)
    light = path.light_load()
    outcomes = [simulate(path, MESSAGES, np.random.default_rng(number)) for number in range(RUNS)]
    n_waiting = backlog(variant.devices, variant.subscribers)
    if variant.capacity is not None:
        n_waiting = min(n_waiting, variant.capacity)
    return Delivery(
        variant,
        outcomes,
        math.nan if light is None or variant.capacity else light.within(path.lifetime),
        wire,
        simulated_ratio,
        n_waiting,
        n_waiting * variant.devices.payload_bytes,
    )


def _path(
    fleet: Fleet, costs: Costs, source: str, name: str, variant: Variant
) -> tuple[Path, float, float]:
    """Return a path, the share of messages that it has, and the seconds on links."""
    devices, who = variant.devices, variant.subscribers
    up, down = fleet.links[devices.link], fleet.links[who.link]
    rate = devices.total_rate * who.share_ratio
    peers = {}
    if devices.on_seconds is not None and devices.off_seconds is not None:
        peers[NETWORK] = OnOff(devices.on_seconds, devices.off_seconds)
    if who.on_seconds is not None and who.off_seconds is not None:
        peers[SUBSCRIBER] = OnOff(who.on_seconds, who.off_seconds)
    cycles = [each.on_seconds + each.off_seconds for each in peers.values()]
    slowest = max(cycles, default=0.0)
    thinned = min(rate, MESSAGES / (CYCLES * slowest)) if slowest else rate
    others = sum(each.bytes_per_second for each in flows(fleet, name) if each.devices != source)
    n_bytes = devices.payload_bytes + PACKET_BYTES
    per_link = max(down.mean_rate - others, 1e-3 * down.mean_rate) / n_bytes
    work = broker_work(fleet, costs)
    total = sum(each.rate for each in work)
    per_broker = total / sum(each.ratio for each in work)  # messages/s of one core
    is_kept = who.keeps_session and devices.qos > 0
    capacity = variant.capacity
    if capacity is not None:
        capacity = max(1, round(capacity * thinned / rate))
    left = rate - thinned
    stages = (
        Stage(
            "device",
            devices.count * up.mean_rate / n_bytes,
            (NETWORK,) if devices.qos else (),
            () if devices.qos else (NETWORK,),
        ),
        Stage("broker", max(per_broker - (total - thinned), 1e-3 * per_broker), (BROKER,)),
        Stage(
            "subscriber",
            max(per_link - left, 1e-3 * per_link),
            (SUBSCRIBER,) if is_kept else (),
            () if is_kept else (SUBSCRIBER,),
            capacity,
        ),
    )
    wire = up.rtt_seconds / 2 + down.rtt_seconds / 2 + n_bytes / up.bytes_per_second
    of_all = sum(each.rate for each in flows(fleet, name))
    wire += idle_ratio(devices.messages_per_second, up) * slow_start_seconds(n_bytes, up)
    wire += idle_ratio(of_all, down) * slow_start_seconds(n_bytes, down)
    return Path(thinned, stages, peers, _lifetime(devices)), thinned / rate, wire
