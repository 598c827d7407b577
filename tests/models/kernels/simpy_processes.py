"""Paper 000's simulation once more, as simpy's processes around the queue's dequeue strategies.

`penstock.models.kernels.dequeue_simulation` keeps its own heap of events, as simpy takes several
times as long. Here the same model stands in simpy's words: physical queues are resources; devices,
back ends and requests are processes.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from random import Random
from typing import Any, TypeAlias

import simpy
from simpy.resources.resource import Request

from penstock.models.kernels.dequeue_simulation import DequeueSetting
from penstock.plugins.queue.strategies.dequeue import (
    DequeueController,
    DequeueRequest,
    make_strategy,
)

Process: TypeAlias = Generator[simpy.Event, Any, None]


class Simulation:
    """A run; `counts` is what its controllers have counted after `seconds`."""

    def __init__(self, setting: DequeueSetting, rng: Random) -> None:
        self.setting = setting
        self.rng = rng
        self.env = simpy.Environment()
        queues = range(setting.physical_queues)
        self.queues = [simpy.Resource(self.env) for _ in queues]
        self.lengths = [0 for _ in queues]
        self.busy = [0] * setting.back_ends
        self.turns = [number % len(queues) for number in range(setting.enqueue_controllers)]
        self.controllers = [self._controller(number) for number in range(setting.controllers)]
        self.held: dict[DequeueRequest, simpy.Event] = {}
        self.holds: dict[DequeueController, simpy.Event] = {}
        for controller in self.controllers:
            self.env.process(self._scheduler(controller))
        for _ in range(setting.devices):
            self.env.process(self._device(rng.random() * setting.period))
        for number in range(setting.back_ends):
            self.env.process(self._back_end(number))

    def counts(self, seconds: float) -> list[int]:
        """Run until so many seconds of the simulation; return what was counted until then.

        Returns:
            [hit dequeues, missed dequeues, messages, requests].
        """
        self.env.run(seconds)
        counts = [controller.counts for controller in self.controllers]
        return [
            sum(one.hit_dequeues for one in counts),
            sum(one.missed_dequeues for one in counts),
            sum(one.messages for one in counts),
            sum(one.requests for one in counts),
        ]

    def _controller(self, number: int) -> DequeueController:
        setting = self.setting
        controller = DequeueController(
            range(setting.physical_queues),
            make_strategy(setting.strategy, setting.sleep_time),
            self._monitor if setting.strategy == "pms" else self._visible,
            setting.max_queues_per_dequeue,
        )
        for _ in range(number):
            controller.take_turn()
        return controller

    def _visible(self) -> dict[int, int]:
        return {number: length for number, length in enumerate(self.lengths) if length}

    def _monitor(self) -> dict[int, int]:
        for queue in self.queues:
            turn = queue.request()
            self.env.process(self._occupy(queue, turn, self.setting.costs.monitoring))
        return self._visible()

    def _occupy(self, queue: simpy.Resource, turn: Request, seconds: float) -> Process:
        yield turn
        yield self.env.timeout(seconds)
        yield queue.release(turn)

    def _device(self, first: float) -> Process:
        yield self.env.timeout(first)
        while True:
            began = self.env.now
            controller = self.rng.randrange(self.setting.enqueue_controllers)
            number = self.turns[controller]
            self.turns[controller] = (number + 1) % len(self.queues)
            self.lengths[number] += 1
            queue = self.queues[number]
            turn = queue.request()
            if self.controllers[0].strategy.wakes_on_arrival:
                for each in self.controllers:
                    self._resume(each.arrived())
                    # What the first ones take is not there for those of the next controller.
                    yield self.env.timeout(0)
            yield from self._occupy(queue, turn, self.setting.costs.enqueue)
            yield self.env.timeout(max(0.0, began + self.setting.period - self.env.now))

    def _back_end(self, number: int) -> Process:
        while True:
            yield self.env.timeout(self.rng.expovariate(self.setting.request_rate))
            if self.busy[number] < self.setting.connections:
                self.busy[number] += 1
                self.env.process(self._dequeue(number))

    def _dequeue(self, back_end: int) -> Process:
        setting, env = self.setting, self.env
        controller = self.controllers[back_end % len(self.controllers)]
        request = controller.begin(
            setting.n_max, env.now, math.inf, min_messages=setting.min_messages
        )
        while True:
            while (number := request.next_try(env.now)) is not None:
                found = min(self.lengths[number], request.missing)
                self.lengths[number] -= found
                costs = setting.costs
                seconds = costs.hit + found * costs.message if found else costs.miss
                queue = self.queues[number]
                yield from self._occupy(queue, queue.request(), seconds)
                request.tried(found)
            if request.decide(env.now):
                break
            self.held[request] = env.event()
            if not self.holds[controller].triggered:
                self.holds[controller].succeed()
            yield self.held[request]
        request.end()
        self.busy[back_end] -= 1

    def _scheduler(self, controller: DequeueController) -> Process:
        while True:
            self.holds[controller] = self.env.event()
            at = controller.next_at
            if at is None or at == math.inf:
                yield self.holds[controller]
                continue
            yield self.env.timeout(at - self.env.now) | self.holds[controller]
            self._resume(controller.due(self.env.now))

    def _resume(self, requests: list[DequeueRequest]) -> None:
        for request in requests:
            self.held.pop(request).succeed()
