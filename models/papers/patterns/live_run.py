"""Live runs of paper 003's patterns: a broker and clients that are on and off, beside the model.

The times are the paper's, `TIME_RATIO` times as fast. A path is a publisher, the broker and a
subscriber with a topic of their own; many run at a time, each an independent unit. Model and run
have the same draws: the creation of each message, each time on and off, each service. So what they
differ by is not chance.

| in the paper | in the run |
| --- | --- |
| reliable publisher (D) | QoS 1; what is created while it is off waits in the client |
| unreliable publisher (A) | QoS 0; what is created while its network is off is lost |
| reliable subscriber (E) | a session that is kept, and acknowledgements |
| unreliable subscriber (B) | a clean session |
| lifetime | Message Expiry Interval, in whole seconds |
| server of the broker's queue | one message on its way at a time (Receive Maximum 1), which the subscriber acknowledges when its service is over |
| K of that queue | `queued_messages` of the session |

The broker's own time, the kernel's and the load generator's are in the run alone.
"""  # noqa: E501 - a table

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.kernels.delivery_path import NETWORK, PUBLISHER, SUBSCRIBER, Path, Stage
from penstock.models.kernels.delivery_simulation import DeliveryDraws, draw, follow
from penstock.models.kernels.peer_timeline import Timeline, Times
from penstock.models.papers.model_vs_measured import ComparedFigure, ComparedUnit
from penstock.netem.clients.on_off_plan import (
    ALWAYS,
    OnOffClientsPlan,
    OnOffPublisher,
    OnOffRecords,
    OnOffSubscriber,
)
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    RunningBroker,
    penstock_command,
    reserved_port,
)
from penstock.netem.runs.on_off_run import run_on_off_clients

TIME_RATIO: Final = 5.0
"""How many times faster than the paper's times a run is: a lifetime of 10 s becomes 2 of MQTT's
seconds."""
NO_TIME: Final = 1e6
"""The service rate of a model's stage whose time is left to the live run, messages a second."""
SERVICE_RATE: Final = 64.0
"""The service rate of a subscriber in the paper, messages a second."""
END_SECONDS: Final = 2.0
"""How long a run goes on after the model's last departure."""


class PathKind(NamedTuple):
    """A kind of path; times are the run's, seconds.

    Attributes:
        name: the name in tables, with the paper's times.
        publisher: the times on and off of the publisher, or of its network where it is unreliable.
        publisher_is_reliable: whether the publisher has pattern D; otherwise it has A.
        subscriber_is_reliable: whether the subscriber has pattern E; otherwise it has B.
        lifetime: the lifetime of a message in whole seconds; infinite for none.
        capacity: K of the subscriber's queue; None for no limit.
        arrival_rate: lambda, messages a second.
    """

    name: str
    publisher: OnOff
    subscriber: OnOff
    publisher_is_reliable: bool = True
    subscriber_is_reliable: bool = True
    lifetime: float = math.inf
    capacity: int | None = None
    arrival_rate: float = 2.0

    def path(self) -> Path:
        """Return the path of the model."""
        sender = Stage("publisher", NO_TIME, (PUBLISHER,))
        name = PUBLISHER
        if not self.publisher_is_reliable:
            sender, name = Stage("publisher", NO_TIME, loses_without=(NETWORK,)), NETWORK
        receiver = Stage("subscriber", NO_TIME, loses_without=(SUBSCRIBER,))
        if self.subscriber_is_reliable:
            receiver = Stage("subscriber", SERVICE_RATE, (SUBSCRIBER,), capacity=self.capacity)
        peers = {name: self.publisher, SUBSCRIBER: self.subscriber}
        return Path(self.arrival_rate, (sender, receiver), peers, self.lifetime)

    @property
    def sender(self) -> str:
        """The peer that the publisher waits for, or loses by."""
        return PUBLISHER if self.publisher_is_reliable else NETWORK


def _cycle(on_seconds: float, cycle: float) -> OnOff:
    return OnOff(on_seconds / TIME_RATIO, (cycle - on_seconds) / TIME_RATIO)


_EVEN: Final = (_cycle(40, 80), _cycle(15, 30))
_LONG: Final = (_cycle(50, 80), _cycle(20, 30))

CELLS: Final = (
    PathKind("D, E: on 40/15 s, lifetime 10 s", *_EVEN, lifetime=2.0),
    PathKind("D, E: on 40/15 s, lifetime 30 s", *_EVEN, lifetime=6.0),
    PathKind("D, E: on 50/20 s, lifetime 30 s", *_LONG, lifetime=6.0),
    PathKind("D, B: on 40/15 s, lifetime 10 s", *_EVEN, True, False, 2.0),
    PathKind("D, B: on 40/15 s, lifetime 30 s", *_EVEN, True, False, 6.0),
    PathKind("A, B: on 40/15 s", *_EVEN, False, False),
    PathKind("D, E: on 50/20 s, K 10", *_LONG, capacity=10, arrival_rate=4.0),
)


@dataclass(frozen=True, slots=True)
class PathRuns:
    """The paths of each kind that run at a time, and for how long.

    Attributes:
        seconds: the time in which messages are created, seconds.
    """

    paths: int = 24
    seconds: float = 60.0


class PathFigures(NamedTuple):
    """The fates of the messages of one path.

    Attributes:
        created: the messages that were created.
        done: the messages that were done within their lifetime.
        seconds: the time from creation to the end of the service, of all messages that were done
            together.
    """

    created: int
    done: int
    seconds: float
    full: int


@dataclass(frozen=True, slots=True)
class PathUnit:
    """A path of a run, and what the model says of it."""

    cell: PathKind
    draws: DeliveryDraws
    services: Times
    modelled: PathFigures
    last_seconds: float


def run(runs: PathRuns, seed: int, tell: Callable[[str], None]) -> list[ComparedFigure]:
    """Run all kinds of paths; those with a limit on a broker that has it.

    Raises:
        NetemError: broker or clients do not run.
    """
    found = []
    for capacity in dict.fromkeys(cell.capacity for cell in CELLS):
        cells = [cell for cell in CELLS if cell.capacity == capacity]
        tell(f"patterns: {len(cells) * runs.paths} paths for {runs.seconds:g} s")
        units, records = run_cells(cells, runs, seed)
        measured = _measured(units, records)
        late = records.late_seconds()
        for cell in cells:
            pairs = [
                (unit.modelled, figures)
                for unit, figures in zip(units, measured, strict=True)
                if unit.cell is cell
            ]
            found += _compared(cell, pairs, late)
    return found


def run_cells(
    cells: Sequence[PathKind],
    runs: PathRuns,
    seed: int,
    at_end: Callable[[int], None] | None = None,
) -> tuple[list[PathUnit], OnOffRecords]:
    """Run some kinds of paths on a broker.

    Returns:
        Each path with its figures.

    Raises:
        NetemError: broker or clients do not run.
    """
    units = [
        _make(cell, runs.seconds, np.random.default_rng([seed, number]))
        for cell in cells
        for number in range(runs.paths)
    ]
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        directory = File(folder)
        command = penstock_command(directory, policy(port, cells[0].capacity))
        broker = RunningBroker("patterns", command, directory)
        try:
            broker.wait_until_listening(port)
            records = run_on_off_clients(make_plan(units, port), directory)
            if at_end is not None:
                at_end(port)
        finally:
            broker.kill()
    return units, records


def policy(port: int, capacity: int | None) -> dict[str, Any]:
    """Return the broker's policy: what finds the queue full is refused, each time."""
    limits: dict[str, Any] = {}
    if capacity is not None:
        limits = {"queued_messages": capacity, "queue_full": "reject", "queue_full_seconds": None}
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "limits": limits,
        "plugins": {ANONYMOUS: {"allow_anonymous": True}},
    }


def _make(cell: PathKind, seconds: float, rng: np.random.Generator) -> PathUnit:
    path = cell.path()
    n_messages = max(1, round(cell.arrival_rate * seconds))
    # A service is drawn for each message, so that it is known when the message is created.
    services = rng.exponential(1 / SERVICE_RATE, n_messages)
    drawn = draw(path, n_messages, rng)
    if not cell.subscriber_is_reliable:
        services = np.zeros(n_messages)

    def services_of(stage: Stage, numbers: NDArray[np.int_]) -> Times:
        if stage.service_rate == NO_TIME:
            return np.full(len(numbers), 1 / NO_TIME)
        found: Times = services[numbers]
        return found

    draws = DeliveryDraws(drawn.created, drawn.timelines, services_of)
    *_, last = follow(path, draws)
    done = last.numbers[last.passed]
    full = int(np.count_nonzero(last.fates[0]))
    response = float((last.departures - draws.created[done]).sum())
    ends = [float(draws.created[-1]), *map(float, last.departures[-1:])]
    modelled = PathFigures(n_messages, len(done), response, full)
    return PathUnit(cell, draws, services, modelled, max(ends))


def make_plan(units: Sequence[PathUnit], port: int) -> OnOffClientsPlan:
    """Return what the clients of some paths do."""
    publishers, subscribers = [], []
    for number, unit in enumerate(units):
        cell, topic = unit.cell, f"path/{number}"
        publishers.append(
            OnOffPublisher(
                f"publisher-{number}",
                topic,
                _times(unit.draws.timelines.get(cell.sender)),
                unit.draws.created.tolist(),
                unit.services.tolist(),
                qos=1 if cell.publisher_is_reliable else 0,
                lifetime=cell.lifetime,
            )
        )
        subscribers.append(
            OnOffSubscriber(
                f"subscriber-{number}",
                [topic],
                _times(unit.draws.timelines.get(SUBSCRIBER)),
                cell.subscriber_is_reliable,
                1 if cell.subscriber_is_reliable else None,
            )
        )
    end = max(unit.last_seconds for unit in units) + END_SECONDS
    return OnOffClientsPlan(port, end, publishers, subscribers)


def _times(timeline: Timeline | None) -> list[tuple[float, float]]:
    if timeline is None:
        return list(ALWAYS)
    return [*zip(timeline.starts.tolist(), timeline.ends.tolist(), strict=True)]


def _measured(units: Sequence[PathUnit], records: OnOffRecords) -> list[PathFigures]:
    """Return the figures of each path; its publisher, subscriber and topic have its number."""
    done, seconds, full = [0] * len(units), [0.0] * len(units), [0] * len(units)
    for each in records.worked:
        done[each.publisher] += 1
        seconds[each.publisher] += each.at - float(units[each.publisher].draws.created[each.number])
    for answer in records.answered:
        full[answer.publisher] += answer.reason_code >= 0x80
    return [
        PathFigures(len(unit.draws.created), *found)
        for unit, found in zip(units, zip(done, seconds, full, strict=True), strict=True)
    ]


def _compared(
    cell: PathKind, pairs: Sequence[tuple[PathFigures, PathFigures]], late_seconds: float
) -> list[ComparedFigure]:
    def units(one: str, other: str) -> list[ComparedUnit]:
        return [
            ComparedUnit(
                (getattr(ours, one), getattr(ours, other)),
                (getattr(theirs, one), getattr(theirs, other)),
            )
            for ours, theirs in pairs
        ]

    rows = [ComparedFigure("003", f"{cell.name}: success", units("done", "created"), late_seconds)]
    if cell.publisher_is_reliable:  # without a wait, a response is the machine's time alone
        name = f"{cell.name}: response, s"
        rows.append(ComparedFigure("003", name, units("seconds", "done"), late_seconds))
    if cell.capacity is not None:
        name = f"{cell.name}: found it full"
        rows.append(ComparedFigure("003", name, units("full", "created"), late_seconds))
    return rows
