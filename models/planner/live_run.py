"""A live run of a scaled fleet on this machine, with a broker and real clients that come and go.

The broker and all clients of a kind are processes of their own. A device keeps its messages while
it has no connection (QoS 1), or loses them (QoS 0), and sends them with the rest of their lifetime.

As root, each client has a link of its own to the broker's network namespace, with the round trip
and the rate of its kind while that is good; else all are on the loopback.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil

from penstock.models.planner.fleet import LinkClass
from penstock.models.planner.scaled_fleet import ScaledFleet
from penstock.models.planner.schedule_replay import Arrivals, Schedule, make_schedule, replay
from penstock.netem.clients.on_off_plan import (
    ALWAYS,
    OnOffClientsPlan,
    OnOffPublisher,
    OnOffRecords,
    OnOffSubscriber,
)
from penstock.netem.links.network import Network
from penstock.netem.links.profiles import Direction, Profile
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    RunningBroker,
    penstock_command,
    reserved_port,
)
from penstock.netem.runs.on_off_run import Popen, run_on_off_clients

PROMPT_SECONDS: Final = 1.0
"""A message counts as prompt up to this latency: it met no outage, or a short one. A busy machine
adds tenths of it."""
END_SECONDS: Final = 2.0
"""How long a run goes on after the model's last arrival."""
QUIET_SECONDS: Final = 1.0
"""A run ends after this time without an arrival."""
WIRE_RATIO: Final = 1500 / 1448
"""Bytes on the wire over those that TCP carries, in full packets."""
PORT: Final = 1883
"""The TCP port of a broker in a network namespace of its own."""


class SubscriberShare(NamedTuple):
    """The messages that one subscriber got of the devices of a kind.

    Attributes:
        created: the messages on its topics.
        arrived: the messages of these that arrived within their lifetime.
        prompt: the messages of these that arrived within `PROMPT_SECONDS`.
        seconds: the time from creation to arrival, of all that arrived together.
    """

    created: int
    arrived: int
    prompt: int
    seconds: float

    @classmethod
    def of(cls, created: int, seconds: np.ndarray[Any, Any]) -> SubscriberShare:
        """Return the share of which each message took some seconds."""
        prompt = int(np.count_nonzero(seconds <= PROMPT_SECONDS))
        return cls(created, len(seconds), prompt, float(seconds.sum()))


Shares = Mapping[tuple[str, str], Sequence[SubscriberShare]]
"""The shares of each subscriber, by the names of devices and subscribers."""


class LiveRunResult(NamedTuple):
    """The results of a run, and the model's for the same schedule.

    Attributes:
        shares: the measured shares.
        replayed: the model's shares of the same subscribers.
        core_ratio: the share of a core that the broker took.
        late_seconds: the lateness that 99 of 100 actions of the clients did not exceed: on a busy
            machine, latencies are the machine's.
    """

    shares: Shares
    replayed: Shares
    core_ratio: float
    late_seconds: float


def has_links() -> bool:
    """Say whether clients can have links of their own: network namespaces need root."""
    return os.geteuid() == 0


def run(scaled: ScaledFleet, seconds: float, rng: np.random.Generator) -> LiveRunResult:
    """Run a scaled fleet.

    Raises:
        NetemError: the broker, a network or clients do not run.
    """
    clients = _Clients(scaled, seconds, rng)
    place = _links(clients) if scaled.has_links else _loopback(clients)
    with tempfile.TemporaryDirectory() as folder, place as (plan, address, popen, hosts):
        directory = Path(folder)
        command = penstock_command(directory, _policy(f"{address}:{plan.port}"))
        broker = RunningBroker("plan", command, directory, *([popen] if popen else []))
        try:
            broker.wait_until_listening(plan.port)
            process = psutil.Process(broker.process.pid)
            begun: list[tuple[float, float]] = []

            def begin(at: float) -> None:
                begun.append((sum(process.cpu_times()[:2]), at))

            records = run_on_off_clients(plan, directory, hosts, begin)
            ((before, begin_at),) = begun
            used = sum(process.cpu_times()[:2]) - before
            core_ratio = used / (time.monotonic() - begin_at)
        finally:
            broker.kill()
    return clients.measured(records, core_ratio)


def _policy(address: str) -> dict[str, Any]:
    return {
        "listeners": {"default": {"type": "tcp", "bind": address}},
        "persistence": {"path": "sessions.db", "durability": "normal"},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}, "probing": {}, "withholding": {}},
    }


class _Clients:
    """The clients of a run, their schedules, and the model's predictions for these."""

    def __init__(self, scaled: ScaledFleet, seconds: float, rng: np.random.Generator) -> None:
        fleet = scaled.fleet
        self.scaled = scaled
        self.publishers: list[OnOffPublisher] = []
        self.subscribers: list[OnOffSubscriber] = []
        self.replayed: dict[tuple[str, str], list[SubscriberShare]] = {}
        self._sources: list[str] = []
        self._names: list[str] = []
        self._picked: list[dict[str, list[int]]] = []
        self.end_seconds = seconds
        schedules: list[Schedule] = []
        of_kind: dict[str, list[int]] = {}
        for source, kind in fleet.devices.items():
            for number in range(kind.count):
                made = make_schedule(kind, seconds, rng)
                of_kind.setdefault(source, []).append(len(schedules))
                schedules.append(made)
                self._sources.append(source)
                self.publishers.append(
                    OnOffPublisher(
                        f"{source}-{number}",
                        f"plan/{source}/{number}",
                        _times(made),
                        made.created.tolist(),
                        payload_bytes=kind.payload_bytes,
                        qos=1 if kind.qos else 0,
                        lifetime=float("inf")
                        if kind.lifetime_seconds is None
                        else kind.lifetime_seconds,
                    )
                )
        for name, who in fleet.subscribers.items():
            for number in range(who.count):
                made = make_schedule(who, seconds, rng)
                picked = {
                    source: sorted(
                        rng.choice(
                            of_kind[source], scaled.picked[source, name], replace=False
                        ).tolist()
                    )
                    for source in who.devices
                }
                given = {
                    source: [schedules[n] for n in numbers] for source, numbers in picked.items()
                }
                for source, found in replay(scaled, name, given, made).items():
                    self._add(source, name, found)
                self._names.append(name)
                self._picked.append(picked)
                filters = [self.publishers[n].topic for each in picked.values() for n in each]
                self.subscribers.append(
                    OnOffSubscriber(f"{name}-{number}", filters, _times(made), who.keeps_session)
                )
        self.end_seconds += END_SECONDS

    def _add(self, source: str, name: str, found: Arrivals) -> None:
        shares = self.replayed.setdefault((source, name), [])
        shares.append(SubscriberShare.of(found.created, found.seconds))
        self.end_seconds = max(self.end_seconds, found.last)

    def links(self) -> list[LinkClass]:
        """Return the link of each client, publishers first."""
        fleet = self.scaled.fleet
        return [
            *(fleet.links[fleet.devices[each].link] for each in self._sources),
            *(fleet.links[fleet.subscribers[each].link] for each in self._names),
        ]

    def plan(self, port: int) -> OnOffClientsPlan:
        """Return what clients do."""
        return OnOffClientsPlan(
            port, self.end_seconds, self.publishers, self.subscribers, QUIET_SECONDS
        )

    def measured(self, records: OnOffRecords, core_ratio: float) -> LiveRunResult:
        """Return what was measured, beside the model's."""
        took: list[dict[str, list[float]]] = [
            {source: [] for source in picked} for picked in self._picked
        ]
        for each in records.worked:
            created = self.publishers[each.publisher].created[each.number]
            took[each.subscriber][self._sources[each.publisher]].append(each.at - created)
        shares: dict[tuple[str, str], list[SubscriberShare]] = {}
        for name, picked, found in zip(self._names, self._picked, took, strict=True):
            for source, numbers in picked.items():
                n_created = sum(len(self.publishers[n].created) for n in numbers)
                share = SubscriberShare.of(n_created, np.array(found[source]))
                shares.setdefault((source, name), []).append(share)
        return LiveRunResult(shares, self.replayed, core_ratio, records.late_seconds())


def _times(schedule: Schedule) -> list[tuple[float, float]]:
    if schedule.timeline is None:
        return list(ALWAYS)
    timeline = schedule.timeline
    return [*zip(timeline.starts.tolist(), timeline.ends.tolist(), strict=True)]


Place = tuple[OnOffClientsPlan, str, Popen | None, Mapping[str, Popen] | None]
"""The place of a run: the clients' plan, the broker's address, the function that starts the
broker, and those that start clients on each host."""


@contextmanager
def _loopback(clients: _Clients) -> Iterator[Place]:
    with reserved_port() as port:
        yield clients.plan(port), "127.0.0.1", None, None


@contextmanager
def _links(clients: _Clients) -> Iterator[Place]:
    """Give each client a link of its own: one host has all devices, one all subscribers."""
    n_publishers = len(clients.publishers)
    with Network() as network:
        server = network.host("broker")
        hosts = {name: network.host(name) for name in ("devices", "subscribers")}
        addresses = []
        for number, link in enumerate(clients.links()):
            host = hosts["devices" if number < n_publishers else "subscribers"]
            addresses.append(network.link(server, host, profile(link)).server_address)
        plan = replace(
            clients.plan(PORT),
            publishers=[
                replace(each, host="devices", address=address)
                for each, address in zip(clients.publishers, addresses, strict=False)
            ],
            subscribers=[
                replace(each, host="subscribers", address=address)
                for each, address in zip(clients.subscribers, addresses[n_publishers:], strict=True)
            ],
        )
        yield plan, "0.0.0.0", server.popen, {name: each.popen for name, each in hosts.items()}  # noqa: S104 - of the namespace


def profile(link: LinkClass) -> Profile:
    """Return a link's good phase as one of an emulated network."""
    rate = link.bytes_per_second * WIRE_RATIO
    direction = Direction(link.rtt_seconds / 2, rate, queue_bytes=round(rate) + 15_000)
    return Profile("good", direction, direction)
