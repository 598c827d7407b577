"""The patterns A to F of paper 003 (its figure 6), composed to a path from publisher to subscriber.

A path is a sequence of first-come, first-served stages. Each works always, or while some peers are
on; a stage that sends without acknowledgement loses what leaves it while some peer is off.

| pattern | stages |
| --- | --- |
| A, unreliable publisher | application, ON/OFF with the publisher; transmission, loses while the publisher's network or the broker is off |
| D, reliable publisher | application, ON/OFF while publisher, its network and broker are all on; transmission |
| B, unreliable subscriber | broker's input; transmission, ON/OFF with the broker, loses while the subscriber is off |
| E, reliable subscriber | broker's input; transmission, ON/OFF while broker and subscriber are on |
| C, F, subscriber | processing |
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.models.kernels.closed_forms import (
    LightLoad,
    Limited,
    OnOff,
    check_stable,
    mm1_lifetime,
    mm1_response,
    mm1k,
    onoff_k,
    onoff_response,
    positive,
)

PUBLISHER: Final = "publisher"
NETWORK: Final = "network"
BROKER: Final = "broker"
SUBSCRIBER: Final = "subscriber"
PEERS: Final = (PUBLISHER, NETWORK, BROKER, SUBSCRIBER)
"""The peers that may be off. The network is that of the publisher."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A queue with one server.

    Attributes:
        service_rate: mu, messages a second while the server works.
        works_with: the peers that must all be on for the server to work.
        loses_without: the peers that must all be on when a message leaves; otherwise it is lost.
        capacity: K, messages in queue and server; None for no limit.
    """

    name: str
    service_rate: float
    works_with: tuple[str, ...] = ()
    loses_without: tuple[str, ...] = ()
    capacity: int | None = None

    def __post_init__(self) -> None:
        positive(f"{self.name}: service_rate", self.service_rate)
        if self.capacity is not None and not self.capacity >= 1:
            raise ValueError(
                f"{self.name}: capacity: read {self.capacity!r}; allowed: 1 or more, or none"
            )


@dataclass(frozen=True, slots=True)
class Path:
    """A path from publisher to subscriber.

    Attributes:
        arrival_rate: lambda, messages a second.
        stages: the stages that each message passes, in this order.
        peers: the peers that are ever off; the others are always on.
        lifetime: the seconds after which a message leaves the path, wherever it is (MQTT's Message
            Expiry Interval); infinite for no limit.
        serves_expired: whether an expired message is still served, and dropped after its service;
            otherwise it leaves the queue or the server when its lifetime ends (reneging).

    Raises:
        ValueError: a parameter is missing or impossible.
        UnstableError: a stage without a capacity receives more than it serves, and messages have no
            lifetime.
    """

    arrival_rate: float
    stages: tuple[Stage, ...]
    peers: Mapping[str, OnOff]
    lifetime: float = math.inf
    serves_expired: bool = False

    def __post_init__(self) -> None:
        positive("arrival_rate", self.arrival_rate)
        if not self.lifetime > 0:
            raise ValueError(f"lifetime: read {self.lifetime!r}; allowed: above 0")
        if not self.stages:
            raise ValueError("stages: read none; allowed: one or more")
        for name in self.peers:
            if name not in PEERS:
                raise ValueError(f"peers: read {name!r}; allowed: {', '.join(PEERS)}")
        if self.serves_expired or self.lifetime == math.inf:
            self._check_stages()

    def on_ratio(self, *names: str) -> float:
        """Return the share of the time in which some peers are all on."""
        return math.prod(self.peers[name].on_ratio for name in set(names) & set(self.peers))

    def _check_stages(self) -> None:
        """Name the first stage that overflows; those behind a limit get at most what it serves."""
        rate = self.arrival_rate
        for stage in self.stages:
            served = stage.service_rate * self.on_ratio(*stage.works_with)
            if stage.capacity is None:
                check_stable(stage.name, rate, served)
            rate = min(rate, served) * self._passed_ratio(stage)

    def _passed_ratio(self, stage: Stage) -> float:
        """Return the share that a stage does not lose; what it works with is on as one leaves."""
        return self.on_ratio(*(set(stage.loses_without) - set(stage.works_with)))

    def light_load(self) -> LightLoad | None:
        """Return the path as if services took no time; None where no closed form is known.

        A peer that several stages depend on makes their times off dependent.
        """
        waits: list[OnOff] = []
        seen: list[str] = []
        for stage in self.stages:
            working = [name for name in stage.works_with if name in self.peers]
            lossy = [name for name in stage.loses_without if name in self.peers]
            if len(working) > 1:
                return None
            waits += [self.peers[name] for name in working]
            seen += working + lossy
        if len(waits) > 2 or len(set(seen)) < len(seen):
            return None
        passed = math.prod(map(self._passed_ratio, self.stages))
        return LightLoad(tuple(waits), passed)

    def closed_form(self, number: int) -> Limited | None:
        """Return what a stage does by itself; None where no closed form is known.

        Arrivals are Poisson at the first stage, and behind M/M/1 stages that pass on everything
        (Burke). With lifetimes only the first one's losses are known.
        """
        stage, before = self.stages[number], self.stages[:number]
        servers = [self.peers[name] for name in stage.works_with if name in self.peers]
        rates = self.arrival_rate, stage.service_rate
        if len(servers) > 1 or not all(map(self._passes_on_poisson, before)):
            return None
        if self.lifetime < math.inf:
            if before or servers or stage.capacity is not None or rates[0] == rates[1]:
                return None
            if self.serves_expired:
                return Limited(math.exp((rates[0] - rates[1]) * self.lifetime), math.nan)
            return Limited(mm1_lifetime(*rates, self.lifetime), math.nan)
        if stage.capacity is not None:
            if servers:
                return onoff_k(*rates, servers[0], stage.capacity)
            return mm1k(*rates, stage.capacity)
        if servers:
            return Limited(0.0, onoff_response(*rates, servers[0]))
        return Limited(0.0, mm1_response(*rates))

    def _passes_on_poisson(self, stage: Stage) -> bool:
        dependent = {*stage.works_with, *stage.loses_without} & set(self.peers)
        return not dependent and stage.capacity is None


def compose(
    *,
    publisher_is_reliable: bool,
    subscriber_is_reliable: bool,
    arrival_rate: float = 2.0,
    lifetime: float = math.inf,
    capacity: int | None = None,
    peers: Mapping[str, OnOff],
    serves_expired: bool = False,
    processing_rate: float = 64.0,
    transmission_rate: float = 32.0,
) -> Path:
    """Compose a path of patterns: D or A, then E or B, then F or C.

    Args:
        publisher_is_reliable: whether its messages are acknowledged, so that they wait for the
            broker.
        subscriber_is_reliable: whether the broker keeps the subscriber's messages while it is off.
        arrival_rate: lambda, messages a second.
        lifetime: the lifetime of a message, seconds; infinite for none.
        capacity: K of each stage; None for no limit.
        peers: the peers that are off at times.
        serves_expired: as in `Path`.
        processing_rate: mu of applications and of the broker's input, messages a second.
        transmission_rate: mu of transmissions, messages a second.

    Raises:
        ValueError: a parameter is impossible.
        UnstableError: a stage overflows.
    """
    sender = (NETWORK, BROKER)
    stages = (
        Stage(
            "publisher's application",
            processing_rate,
            (PUBLISHER, *sender) if publisher_is_reliable else (PUBLISHER,),
            capacity=capacity,
        ),
        Stage(
            "publisher's transmission",
            transmission_rate,
            loses_without=() if publisher_is_reliable else sender,
            capacity=capacity,
        ),
        Stage("broker's input", processing_rate, capacity=capacity),
        Stage(
            "broker's transmission",
            transmission_rate,
            (BROKER, SUBSCRIBER) if subscriber_is_reliable else (BROKER,),
            loses_without=() if subscriber_is_reliable else (SUBSCRIBER,),
            capacity=capacity,
        ),
        Stage("subscriber", processing_rate, capacity=capacity),
    )
    return Path(arrival_rate, stages, peers, lifetime, serves_expired)
