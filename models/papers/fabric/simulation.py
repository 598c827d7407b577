"""Clients, enqueue controllers and nodes of paper 001's section 3.4, in virtual time.

Each node has an enqueue controller of its own, the object that the queue has, which learns of slow
nodes from its own messages alone. A load balancer deals the clients' messages over the controllers.
Only storing is simulated: throughput counts messages whose client heard in time that they are
stored.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from penstock.models.papers.fabric.cluster import Cluster
from penstock.models.papers.fabric.consistent_hashing import ConsistentHashing
from penstock.models.papers.fabric.rings import RingQueue
from penstock.models.papers.fabric.setting import NODES, FabricSetting
from penstock.plugins.queue.strategies.slowdown_exclusion import Attempt, SlowdownExclusion

N_KEYS = 2000
"""The number of clients whose keys consistent hashing spreads."""


@dataclass(slots=True)
class FabricOutcome:
    """The results of a run; lists have an entry for each second.

    Attributes:
        stored: the messages whose clients were told in time that they are stored.
        failed: the errors returned to clients whose message was not stored in time.
        refused: the errors of clients whose enqueue controller was dead.
        served: the messages of which each node was master, by node.
        repeated: the number of messages that were sent to a second physical queue.
        stored_twice: the number of repeated messages that are stored in both queues, which
            deduplication would prevent.
        median_seconds: the median time until clients heard that their message is stored.
        slowest_seconds: the time until then that 99.9 % of the messages do not exceed.
    """

    stored: list[int]
    failed: list[int]
    refused: list[int]
    served: dict[str, list[int]]
    repeated: int = 0
    stored_twice: int = 0
    median_seconds: float = math.nan
    slowest_seconds: float = math.nan


class _Message:
    """A client's message."""

    __slots__ = ("arrived", "controller", "is_ended", "n_stored", "tried")

    def __init__(self, arrived: float, controller: int) -> None:
        self.arrived = arrived
        self.controller = controller
        self.tried: tuple[RingQueue, ...] = ()
        self.is_ended = False
        self.n_stored = 0


class _Run:
    """One simulation."""

    def __init__(self, setting: FabricSetting, rng: Random) -> None:
        self._setting = setting
        self._rng = rng
        self._cluster = Cluster(setting, rng)
        self._controllers = [
            SlowdownExclusion(self._cluster.rings.queues, setting.slowdown_detection_time)
            for _ in NODES
        ]
        self._by_key = self._hash_keys() if setting.distribution == "hashing" else []
        self._has_deadline = [False] * len(NODES)
        self._sent: dict[Attempt[RingQueue], _Message] = {}
        self._events: list[tuple[float, int, int, Any]] = []
        """When; order among equals; number of the controller; what happens there: an attempt is
        answered, or a message of consistent hashing; messages (in a list) are to be repeated; None:
        something may be overdue."""
        self._n_planned = 0
        self._turn = 0
        self._balancer_phase = rng.random() * setting.balancer_seconds
        self._latencies: list[float] = []
        n_bins = math.ceil(setting.seconds)
        self.outcome = FabricOutcome([0] * n_bins, [0] * n_bins, [0] * n_bins, self._cluster.served)

    def _hash_keys(self) -> Sequence[RingQueue]:
        """Return the physical queue of each key; the circle is another one in each run."""
        salt = self._rng.random()
        names = {f"{queue} {salt}": queue for queue in self._cluster.rings.queues}
        circle = ConsistentHashing(list(names))
        return [names[circle.node_of(f"client {number}")] for number in range(N_KEYS)]

    def run(self) -> FabricOutcome:
        """Let messages come until the time is over, and wait for all answers."""
        setting, rng, events = self._setting, self._rng, self._events
        arrival = rng.expovariate(setting.rate)
        while True:
            if arrival < setting.seconds and (not events or arrival <= events[0][0]):
                self._arrive(arrival)
                arrival += rng.expovariate(setting.rate)
            elif events:
                now, _, controller, what = heapq.heappop(events)
                if what is None:
                    self._look_for_overdue(controller, now)
                elif isinstance(what, list):
                    self._repeat(controller, what, now)
                else:
                    self._answer(controller, what, now)
            else:
                break
        latencies, outcome = sorted(self._latencies), self.outcome
        if latencies:
            outcome.median_seconds = latencies[len(latencies) // 2]
            outcome.slowest_seconds = latencies[int(len(latencies) * 0.999)]
        return outcome

    def _at(self, when: float, controller: int, what: Any) -> None:
        self._n_planned += 1
        heapq.heappush(self._events, (when, self._n_planned, controller, what))

    def _arrive(self, now: float) -> None:
        """Deal a message to the controller of a node that the balancer takes for a live one."""
        n = len(NODES)
        # A node is known to be dead, and to be back, from the balancer's next look on.
        period = self._setting.balancer_seconds
        seen = now - (now + self._balancer_phase) % period if period else now
        for _ in range(n):
            controller = self._turn
            self._turn = (controller + 1) % n
            if not self._cluster.is_standing(NODES[controller], seen):
                break
        if self._cluster.is_standing(NODES[controller], now):
            self._count(self.outcome.refused, now)
            return
        message = _Message(now, controller)
        if self._by_key:
            queue = self._by_key[self._rng.randrange(N_KEYS)]
            answered_at = self._cluster.stored_at(queue, now)
            if answered_at - now > self._setting.patience:
                self._count(self.outcome.failed, now + self._setting.patience)
            else:
                self._at(answered_at, controller, message)
        else:
            self._send(message, now, self._controllers[controller].begin(now))

    def _send(self, message: _Message, now: float, attempt: Attempt[RingQueue]) -> None:
        controller = message.controller
        message.tried = (*message.tried, attempt.target)
        self._sent[attempt] = message
        answered_at = self._cluster.stored_at(attempt.target, now)
        if answered_at < math.inf:
            self._at(answered_at, controller, attempt)
        if not self._has_deadline[controller]:
            self._has_deadline[controller] = True
            self._at(now + self._setting.slowdown_detection_time, controller, None)

    def _answer(self, controller: int, what: Any, now: float) -> None:
        if isinstance(what, _Message):
            message = what
        else:
            message = self._sent.pop(what)
            self._controllers[controller].answered(what, now)
        message.n_stored += 1
        if message.n_stored == 2:
            self.outcome.stored_twice += 1
        if message.is_ended:
            return
        message.is_ended = True
        if self._cluster.is_standing(NODES[controller], now):
            self._count(self.outcome.refused, now)  # its controller died before the answer came
            return
        self._count(self.outcome.stored, now)
        self._latencies.append(now - message.arrived)

    def _look_for_overdue(self, controller: int, now: float) -> None:
        exclusion = self._controllers[controller]
        self._has_deadline[controller] = False
        self._repeat(controller, [self._sent[late] for late in exclusion.overdue(now)], now)
        deadline = exclusion.next_deadline()
        if deadline is not None and not self._has_deadline[controller]:
            self._has_deadline[controller] = True
            self._at(deadline, controller, None)

    def _repeat(self, controller: int, messages: Sequence[_Message], now: float) -> None:
        """Send messages elsewhere, or tell their clients that they are not stored."""
        setting, wait = self._setting, []
        is_dead = self._cluster.is_standing(NODES[controller], now)
        for message in messages:
            if message.is_ended:
                continue
            is_over = now - message.arrived >= setting.patience
            if is_dead or is_over or setting.distribution != "repeat":
                message.is_ended = True
                self._count(self.outcome.refused if is_dead else self.outcome.failed, now)
                continue
            attempt = self._controllers[controller].repeat(now, message.tried)
            if attempt is None:
                wait.append(message)
            else:
                self.outcome.repeated += len(message.tried) == 1
                self._send(message, now, attempt)
        if wait:
            self._at(now + setting.slowdown_detection_time, controller, wait)

    def _count(self, where: list[int], now: float) -> None:
        """Count in the second of the time; errors behind the end of a run count in its last."""
        if now < self._setting.seconds:
            where[int(now)] += 1
        elif where is not self.outcome.stored:
            where[-1] += 1


def simulate(setting: FabricSetting, rng: Random) -> FabricOutcome:
    """Run one simulation."""
    return _Run(setting, rng).run()
