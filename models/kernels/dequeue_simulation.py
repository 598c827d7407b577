"""The queue's dequeue strategies on paper 000's simulation model (its figures 7 and 8, table 1).

Physical queues are FCFS servers. An enqueue, a dequeue of n messages, a missed dequeue and a look
at the length each occupy one for the time that they cost, so that dequeues take from enqueues what
they need. The dequeue strategies are the product's own, driven with the simulation's clock.
Operations of one physical queue take effect in the order in which they arrive.

The paper leaves open how fast messages come, how many requests a back end may have at a time, and
the period of PMS. The reading here is one of some dozen that were tried on two seeds, and the one
with most of the paper's statements. So these are no finding of the simulation:

* Fifty devices send ten messages a second each, in turn over random enqueue controllers. A
  device sends the next message when the last one is stored and its period is over, so that a busy
  system slows it down. An enqueue controller takes the physical queues round robin.
* Requests of a back end are a Poisson process of rate lambda over ten connections. A request for
  which none is free is not sent: holding requests "decreases the number of dequeue requests".
* A back end has a dequeue controller of its own ("one of the BES corresponds to one D-Ctrl"), and
  its client waits for ever.
* A try is sent to its physical queue when the outcome of the one before is known.

Events are a heap, which is three times as fast as simpy's processes. A test holds both against each
other on the same seeds.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias

from penstock.plugins.queue.strategies.dequeue import (
    DequeueController,
    DequeueRequest,
    make_strategy,
)

Action: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that an operation occupies a physical queue; the defaults are table 1 of paper 000.

    Attributes:
        enqueue: the cost of storing one message, ce0.
        hit: the cost of a dequeue that finds messages, cdh0.
        message: the cost of each message found, its deletion included, cdh.
        miss: the cost of a dequeue that finds nothing, cdm0.
    """

    enqueue: float = 0.001
    hit: float = 0.02
    message: float = 0.001
    miss: float = 0.02
    monitoring: float = 0.0001


@dataclass(frozen=True, slots=True)
class DequeueSetting:
    """The parameters of a run; the defaults are table 1 of paper 000 and the reading above.

    Attributes:
        request_rate: lambda, requests a second of a back end.
        sleep_time: the seconds between two retries of `rds`, or two polls of `pms`.
        controllers: dequeue controllers, over which back ends are dealt.
        connections: the most requests that a back end may have outstanding at a time.
        period: the least time between two messages of a device, seconds.
        enqueue_controllers: the enqueue controllers that store messages.
        physical_queues: the physical queues of the logical queue.
        n_max: the most messages that one request returns.
        min_messages: the number of messages that a request waits for, where the strategy waits.
        max_queues_per_dequeue: the most physical queues that one round of a dequeue tries.
        seconds: the length of the measured time, seconds.
        warm_up: the seconds before the measured time begins.
    """

    strategy: str
    request_rate: float
    sleep_time: float
    controllers: int = 10
    back_ends: int = 10
    connections: int = 10
    devices: int = 50
    period: float = 0.1
    enqueue_controllers: int = 10
    physical_queues: int = 10
    n_max: int = 100
    min_messages: int = 1
    max_queues_per_dequeue: int = 3
    costs: Costs = Costs()
    seconds: float = 40.0
    warm_up: float = 20.0


@dataclass(frozen=True, slots=True)
class DequeueOutcome:
    """The results of a run.

    Attributes:
        messages_per_second: the messages a second that back ends received.
        hit_ratio: the share of hit dequeues among all dequeues.
        messages_per_hit: the mean number of messages that a hit dequeue found.
        requests_per_second: the requests a second of all back ends.
    """

    messages_per_second: float
    hit_ratio: float
    messages_per_hit: float
    requests_per_second: float


def simulate(setting: DequeueSetting, rng: Random) -> DequeueOutcome:
    """Run one simulation."""
    return _Simulation(setting, rng).run()


class _Simulation:
    """The events of a run, by time."""

    def __init__(self, setting: DequeueSetting, rng: Random) -> None:
        self._setting = setting
        self._rng = rng
        self._now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Action]] = []
        # As the operations that have arrived leave them.
        self._lengths = [0] * setting.physical_queues
        self._free_at = [0.0] * setting.physical_queues
        self._busy = [0] * setting.back_ends
        self._turns = [
            number % setting.physical_queues for number in range(setting.enqueue_controllers)
        ]
        self._controllers = [self._controller(number) for number in range(setting.controllers)]
        self._wakes = self._controllers[0].strategy.wakes_on_arrival
        self._resume: dict[DequeueRequest, Action] = {}
        self._timers: dict[DequeueController, float] = {}

    def _controller(self, number: int) -> DequeueController:
        setting = self._setting
        controller = DequeueController(
            range(setting.physical_queues),
            make_strategy(setting.strategy, setting.sleep_time),
            self._monitor if setting.strategy == "pms" else self._visible,
            setting.max_queues_per_dequeue,
        )
        for _ in range(number):
            controller.take_turn()
        return controller

    def run(self) -> DequeueOutcome:
        setting = self._setting
        for _ in range(setting.devices):
            self._at(self._rng.random() * setting.period, self._enqueue)
        for number in range(setting.back_ends):
            self._await_request(number)
        self._run_until(setting.warm_up)
        before = self._counts()
        self._run_until(setting.warm_up + setting.seconds)
        hits, misses, messages, requests = (
            after - earlier for after, earlier in zip(self._counts(), before, strict=True)
        )
        return DequeueOutcome(
            messages / setting.seconds,
            hits / max(hits + misses, 1),
            messages / max(hits, 1),
            requests / setting.seconds,
        )

    def _counts(self) -> tuple[int, ...]:
        counts = [controller.counts for controller in self._controllers]
        return (
            sum(one.hit_dequeues for one in counts),
            sum(one.missed_dequeues for one in counts),
            sum(one.messages for one in counts),
            sum(one.requests for one in counts),
        )

    def _run_until(self, end: float) -> None:
        events = self._events
        while events[0][0] <= end:
            self._now, _, action = heapq.heappop(events)
            action()

    def _at(self, when: float, action: Action) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def _occupy(self, number: int, seconds: float) -> float:
        """Add an operation to a physical queue; return when it is done."""
        done = self._free_at[number] = max(self._now, self._free_at[number]) + seconds
        return done

    def _visible(self) -> dict[int, int]:
        return {number: length for number, length in enumerate(self._lengths) if length}

    def _monitor(self) -> dict[int, int]:
        for number in range(len(self._lengths)):
            self._occupy(number, self._setting.costs.monitoring)
        return self._visible()

    def _enqueue(self) -> None:
        controller = self._rng.randrange(self._setting.enqueue_controllers)
        number = self._turns[controller]
        self._turns[controller] = (number + 1) % len(self._lengths)
        self._lengths[number] += 1
        stored_at = self._occupy(number, self._setting.costs.enqueue)
        self._at(max(stored_at, self._now + self._setting.period), self._enqueue)
        if self._wakes:
            for each in self._controllers:
                for request in each.arrived():
                    self._resume.pop(request)()

    def _await_request(self, back_end: int) -> None:
        after = self._rng.expovariate(self._setting.request_rate)
        self._at(self._now + after, partial(self._request, back_end))

    def _request(self, back_end: int) -> None:
        self._await_request(back_end)
        if self._busy[back_end] < self._setting.connections:
            self._busy[back_end] += 1
            controller = self._controllers[back_end % len(self._controllers)]
            request = controller.begin(
                self._setting.n_max, self._now, math.inf, min_messages=self._setting.min_messages
            )
            self._try_next(back_end, controller, request)

    def _try_next(
        self, back_end: int, controller: DequeueController, request: DequeueRequest
    ) -> None:
        number = request.next_try(self._now)
        if number is not None:
            costs = self._setting.costs
            found = min(self._lengths[number], request.missing)
            self._lengths[number] -= found
            done = self._occupy(number, costs.hit + found * costs.message if found else costs.miss)
            self._at(done, partial(self._tried, back_end, controller, request, found))
        elif request.decide(self._now):
            request.end()
            self._busy[back_end] -= 1
        else:
            self._resume[request] = partial(self._try_next, back_end, controller, request)
            self._await_retry(controller)

    def _tried(
        self, back_end: int, controller: DequeueController, request: DequeueRequest, found: int
    ) -> None:
        request.tried(found)
        self._try_next(back_end, controller, request)

    def _await_retry(self, controller: DequeueController) -> None:
        """Set the one timer that a controller needs, for the first of its held requests."""
        at = controller.next_at
        if at is not None and at < self._timers.get(controller, math.inf):
            self._timers[controller] = at
            self._at(at, partial(self._retry, controller))

    def _retry(self, controller: DequeueController) -> None:
        if self._timers.get(controller) == self._now:
            del self._timers[controller]
        for request in controller.due(self._now):
            self._resume.pop(request)()
        self._await_retry(controller)
