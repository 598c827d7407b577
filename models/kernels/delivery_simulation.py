"""Messages through the stages of a path (paper 003), stage by stage.

Theory of operation. A stage is first come, first served and no message overtakes another, so the
stages are computed one after the other, each for all messages. The clock of a stage counts the
time that its server works: on it, an ON/OFF server works always, and an interrupted service goes
on where it was. There the departure of message i is::

    departure[i] = min(max(arrival[i], departure[i - 1]) + service[i], deadline[i])

All messages have the same lifetime and come in the order of their creation, so deadlines ascend:
the message in front always expires first, and a message that expires, waiting or served, costs the
server nothing beyond its deadline. Where expired messages are served, deadlines have no part in the
recursion. All but the recursion is done for all messages at once.

A message that a full stage drops, that expires or that is lost on the way takes no further part.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.models.kernels.delivery_path import PEERS, Path, Stage
from penstock.models.kernels.peer_timeline import Timeline, Times

WARM_UP_RATIO = 0.05
"""The share of messages, the first ones, that do not count, because the path is empty when they
begin."""
N_QUANTILES = 2001
_SETTLING_CYCLES = 20
"""How many mean cycles of the slowest peer the peers go on and off after the last message."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The fates of the messages that came to a stage, each a share of those created.

    Attributes:
        dropped_ratio: the messages that found the stage full.
        expired_ratio: the messages whose lifetime ended in the stage.
        lost_ratio: the messages that left the stage while the next peer was off.
        response: the mean seconds that served messages spent in the stage.
    """

    name: str
    arrived_ratio: float
    dropped_ratio: float
    expired_ratio: float
    lost_ratio: float
    response: float


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The results of a simulation.

    Attributes:
        n_messages: the number of messages that counted.
        success_ratio: the share of these messages that the subscriber has processed.
        response: the mean seconds from creation to the end of processing.
        quantiles: ``(2001,) float64``, seconds: response times at equal shares of the successes
            from 0 to 1; nan without any success.
    """

    n_messages: int
    success_ratio: float
    response: float
    quantiles: NDArray[np.float64]
    stages: tuple[StageOutcome, ...]

    def within(self, seconds: float) -> float:
        """Return the share of the successes with at most this response time."""
        return float(np.searchsorted(self.quantiles, seconds, side="right")) / N_QUANTILES

    def quantile(self, share: float) -> float:
        """Return the response time, seconds, that a share of the successes does not exceed."""
        return float(self.quantiles[math.ceil(share * (N_QUANTILES - 1))])


@dataclass(frozen=True, slots=True)
class DeliveryDraws:
    """The random values of a run; a live run may be given the same ones.

    Attributes:
        created: the creation time of each message, ascending, seconds.
        timelines: the times for which each peer of the path is on, by name.
        services: a function that returns the service times at a stage, in seconds, of the messages
            with the given numbers.
    """

    created: Times
    timelines: dict[str, Timeline]
    services: Callable[[Stage, NDArray[np.int_]], Times]


class StagePassage(NamedTuple):
    """The fates of the messages that came to a stage.

    Attributes:
        numbers: the numbers of the messages that came.
        times: the times at which they came, seconds.
        passed: a mask of those that go on to the next stage.
        departures: the times at which those that go on leave the stage.
        fates: the masks of those that were dropped, that expired and that were lost.
    """

    stage: Stage
    numbers: NDArray[np.int_]
    times: Times
    passed: NDArray[np.bool_]
    departures: Times
    fates: tuple[NDArray[np.bool_], ...]


def draw(path: Path, n_messages: int, rng: np.random.Generator) -> DeliveryDraws:
    """Draw the random values of a simulation.

    Creation times and the times of each peer come from random streams of their own, so that two
    paths get the same ones from equal generators.
    """
    creation, services, *peer_rngs = rng.spawn(2 + len(PEERS))
    created = np.cumsum(creation.exponential(1 / path.arrival_rate, n_messages))

    def draw_services(stage: Stage, numbers: NDArray[np.int_]) -> Times:
        return services.exponential(1 / stage.service_rate, len(numbers))

    return DeliveryDraws(created, _timelines(path, float(created[-1]), peer_rngs), draw_services)


def follow(path: Path, draws: DeliveryDraws) -> Iterator[StagePassage]:
    """Pass messages through one stage after the other, and yield their fates in each."""
    times = draws.created
    numbers = np.arange(len(times))
    for stage in path.stages:
        deadlines = draws.created[numbers] + path.lifetime
        services = draws.services(stage, numbers)
        passed, departures, fates = pass_stage(
            path, stage, times, deadlines, draws.timelines, services
        )
        yield StagePassage(stage, numbers, times, passed, departures, fates)
        numbers, times = numbers[passed], departures


def simulate(path: Path, n_messages: int, rng: np.random.Generator) -> DeliveryOutcome:
    """Run one simulation."""
    draws = draw(path, n_messages, rng)
    first_counted = int(n_messages * WARM_UP_RATIO)
    n_counted = n_messages - first_counted
    outcomes = []
    for step in follow(path, draws):
        counted = step.numbers >= first_counted
        dropped, expired, lost = (
            np.count_nonzero(each & counted) / n_counted for each in step.fates
        )
        in_stage = (step.departures - step.times[step.passed])[counted[step.passed]]
        outcomes.append(
            StageOutcome(
                step.stage.name,
                np.count_nonzero(counted) / n_counted,
                dropped,
                expired,
                lost,
                float(in_stage.mean()) if len(in_stage) else math.nan,
            )
        )
    numbers, times = step.numbers[step.passed], step.departures
    counted = numbers >= first_counted
    responses = times[counted] - draws.created[numbers[counted]]
    if not len(responses):
        nothing = np.full(N_QUANTILES, math.nan)
        return DeliveryOutcome(n_counted, 0.0, math.nan, nothing, tuple(outcomes))
    quantiles = np.quantile(responses, np.linspace(0, 1, N_QUANTILES))
    success_ratio = len(responses) / n_counted
    return DeliveryOutcome(
        n_counted, success_ratio, float(responses.mean()), quantiles, tuple(outcomes)
    )


@dataclass(frozen=True, slots=True)
class DeliveryRuns:
    """The independent runs of a delivery simulation."""

    replications: int = 8
    messages: int = 700_000

    def __post_init__(self) -> None:
        if self.messages < 100 * self.replications:
            raise ValueError(
                f"messages: read {self.messages}; allowed: {100 * self.replications} or more, 100 a"
                " replication"
            )

    def __str__(self) -> str:
        return (
            f"{self.replications} independent runs of {self.messages // self.replications:,}"
            " messages each; means and 95 % confidence intervals (bootstrap over runs)."
        )

    def run(self, path: Path) -> list[DeliveryOutcome]:
        """Simulate a path; equal replications of two paths meet equal peers."""
        n_messages = self.messages // self.replications
        return [
            simulate(path, n_messages, np.random.default_rng(number))
            for number in range(self.replications)
        ]


def _timelines(
    path: Path, last_created: float, rngs: list[np.random.Generator]
) -> dict[str, Timeline]:
    """Draw when each peer is on, far enough beyond the last message."""
    cycles = [peer.on_seconds + peer.off_seconds for peer in path.peers.values()]
    settling = min(path.lifetime, _SETTLING_CYCLES * max(cycles, default=0.0))
    return {
        name: Timeline.draw(path.peers[name], last_created + settling, rng)
        for name, rng in zip(PEERS, rngs, strict=True)
        if name in path.peers
    }


def pass_stage(
    path: Path,
    stage: Stage,
    arrivals: Times,
    deadlines: Times,
    timelines: dict[str, Timeline],
    services: Times,
) -> tuple[NDArray[np.bool_], Times, tuple[NDArray[np.bool_], ...]]:
    """Pass messages through a stage.

    Args:
        path: the path that has the stage.
        stage: the stage that they pass.
        arrivals: ascending, seconds.
        deadlines: the end of each message's lifetime; ascending where the stage has a capacity.
        timelines: the timelines of peers, by name.
        services: the seconds that each takes while the server works.

    Returns:
        Which arrivals go on; when these leave; and which were dropped, expired and lost.
    """
    working = [timelines[name] for name in stage.works_with if name in timelines]
    server = Timeline.together(working) if working else None
    on_clock, last_on_clock = arrivals, deadlines
    if server is not None:
        on_clock, last_on_clock = server.worked(arrivals), server.worked(deadlines)
    entered = np.ones(len(arrivals), np.bool_)
    until = np.full(len(arrivals), math.inf) if path.serves_expired else last_on_clock
    if stage.capacity is None:
        done = serve(on_clock, services, until)
    else:
        done, entered = serve_limited(
            on_clock, services, until, arrivals, deadlines, stage.capacity
        )
    served = entered & (done < last_on_clock)
    leaving = done[served]
    if server is not None:
        leaving = server.when(leaving)
    lost = np.zeros(len(arrivals), np.bool_)
    for name in stage.loses_without:
        if name in timelines:
            lost[served] |= ~timelines[name].is_on(leaving)
    return served & ~lost, leaving[~lost[served]], (~entered, entered & ~served, lost)


def serve(arrivals: Times, services: Times, deadlines: Times) -> Times:
    """Return when each message leaves a server, all on the server's clock.

    Args:
        arrivals: ascending, seconds.
        services: the seconds that each message takes.
        deadlines: the end of each message's lifetime; a message that leaves then or later has
            expired.
    """
    free_at = -math.inf
    departures: list[float] = []
    leave = departures.append
    for arrival, service, deadline in zip(
        arrivals.tolist(), services.tolist(), deadlines.tolist(), strict=True
    ):
        # Comparisons take half as long as min and max.
        if arrival > free_at:  # noqa: PLR1730
            free_at = arrival
        begin = free_at
        free_at += service
        if free_at > deadline:
            # One that has expired before its turn takes nothing, wherever the others' ends are.
            free_at = deadline if deadline > begin else begin  # noqa: FURB136
        leave(free_at)
    return np.array(departures)


def serve_limited(
    arrivals: Times,
    services: Times,
    deadlines: Times,
    came_at: Times,
    expire_at: Times,
    capacity: int,
) -> tuple[Times, NDArray[np.bool_]]:
    """Return when each message leaves a server of K places, and which found one.

    While the server is off its clock stands still, but messages arrive and expire: the messages
    present are therefore counted by wall-clock time.

    Args:
        arrivals: ascending, on the server's clock, seconds.
        services: the seconds that each message takes.
        deadlines: ascending, on the server's clock.
        came_at: the arrivals, in wall-clock time.
        expire_at: the deadlines, in wall-clock time.
        capacity: K.

    Returns:
        Departures on the server's clock; those of dropped messages mean nothing. Whether each
        message found a place.
    """
    free_at = -math.inf
    departures: list[float] = []
    entered: list[bool] = []
    # Of each message that is there: its departure, and where it expires when, by the other clock.
    present: deque[tuple[float, float]] = deque()
    for arrival, service, deadline, now, expires in zip(
        arrivals.tolist(),
        services.tolist(),
        deadlines.tolist(),
        came_at.tolist(),
        expire_at.tolist(),
        strict=True,
    ):
        while present and present[0][0] <= arrival and present[0][1] <= now:
            present.popleft()
        has_room = len(present) < capacity
        entered.append(has_room)
        if has_room:
            free_at = min(max(arrival, free_at) + service, deadline)
            present.append((free_at, expires if free_at >= deadline else -math.inf))
        departures.append(free_at)
    return np.array(departures), np.array(entered, np.bool_)
