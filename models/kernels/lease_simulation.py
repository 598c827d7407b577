"""Messages from senders through a queue to receivers (paper 004, section 6).

A thread of the senders takes the oldest message that waits there, for an exponential time. Threads
overtake one another, so that messages arrive at the queue in another order than they were created.
A thread of the broker receives a message, delivers it for an exponential time, and with probability
q the receiver gets it and its acknowledgement deletes it. Otherwise the message is visible again
when its visibility timeout is over, and is delivered again.

The paper's replicas decide which message a receive gets where order does not matter. Here it gets
the one that became visible first; the means are the same for any choice that knows no service time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.models.kernels.lease_messages import Messages
from penstock.models.kernels.lease_setting import LeaseFigures, LeaseSetting, Order


@dataclass(frozen=True, slots=True)
class LeaseOutcome:
    """The results of a simulation.

    Attributes:
        figures: the figures that the analytic network predicts as well.
        n_deliveries: the number of deliveries of the broker, failed ones included.
        n_duplicates: the number of deliveries of messages that the receiver already had.
    """

    figures: LeaseFigures
    n_messages: int
    n_deliveries: int
    n_duplicates: int


Measure: TypeAlias = Callable[[LeaseOutcome], float]
"""A function that reads a figure of an outcome."""


def delivery(outcome: LeaseOutcome) -> float:
    """Return the mean delivery time, seconds."""
    return outcome.figures.delivery


def waiting(outcome: LeaseOutcome) -> float:
    """Return the mean number of messages that wait."""
    return outcome.figures.waiting


def sender_utilisation(outcome: LeaseOutcome) -> float:
    """Return the utilisation of the senders' threads."""
    return outcome.figures.sender_utilisation


def broker_utilisation(outcome: LeaseOutcome) -> float:
    """Return the utilisation of the broker's threads."""
    return outcome.figures.broker_utilisation


def duplicates(outcome: LeaseOutcome) -> float:
    """Return how many of 100 messages were delivered once more."""
    return 100 * outcome.n_duplicates / outcome.n_messages


def figure_of(figures: LeaseFigures, measure: Measure) -> float:
    """Return the analytic figure that a measure reads."""
    return measure(LeaseOutcome(figures, 1, 0, 0))


class LeaseDraws(NamedTuple):
    """The random values of a run; a live run may be given the same ones.

    Attributes:
        created: the creation time of each message, ascending, seconds.
        services: the seconds for which a thread of the senders works on each message.
        deliveries: an endless iterator over the duration of each delivery of the broker, in
            seconds, and whether it fails, in the order in which deliveries begin.
    """

    created: NDArray[np.float64]
    services: NDArray[np.float64]
    deliveries: Iterator[tuple[float, bool]]


def draw(setting: LeaseSetting, seconds: float, rng: np.random.Generator) -> LeaseDraws:
    """Draw the random values of a simulation.

    Args:
        setting: the parameters of the simulation.
        seconds: the time in which messages are created.
        rng: the source of random values; equal ones give equal senders, and equal services in the
            broker in the order in which they begin.
    """
    creation, sending, receiving = rng.spawn(3)
    created = np.cumsum(
        creation.exponential(
            1 / setting.arrival_rate, int(setting.arrival_rate * seconds * 1.2) + 100
        )
    )
    created = created[created < seconds]
    services = sending.exponential(1 / setting.sender_rate, len(created))
    return LeaseDraws(created, services, _deliveries(setting, receiving))


def _deliveries(setting: LeaseSetting, rng: np.random.Generator) -> Iterator[tuple[float, bool]]:
    n = 1024
    while True:
        services = rng.exponential(1 / setting.broker_rate, n)
        fails = rng.random(n) >= setting.reliability_ratio
        yield from [*zip(services.tolist(), fails.tolist(), strict=True)][::-1]


def simulate(
    setting: LeaseSetting, messages: Messages, seconds: float, rng: np.random.Generator
) -> LeaseOutcome:
    """Run one simulation, from an empty queue until all messages are delivered."""
    created, services, deliveries = draw(setting, seconds, rng)
    begun = _begin_in_senders(created, services, setting.sender_threads)
    sent = begun + services
    queue = _Queue(setting, messages, sent, deliveries)
    queue.run()
    n_messages = len(created)
    delivered = np.array(queue.delivered)
    waited = float((begun - created).sum()) + queue.waited
    figures = LeaseFigures(
        float((delivered - created).mean()) + setting.link_seconds if n_messages else math.nan,
        waited / seconds,
        _busy(begun, sent, seconds) / (setting.sender_threads * seconds),
        _busy(np.array(queue.begun), np.array(queue.ended), seconds)
        / (setting.broker_threads * seconds),
    )
    return LeaseOutcome(figures, n_messages, len(queue.begun), queue.n_duplicates)


def _begin_in_senders(
    created: NDArray[np.float64], services: NDArray[np.float64], threads: int
) -> NDArray[np.float64]:
    """Return when each message is taken up by a thread, first come, first served."""
    free_at = [0.0] * threads
    begun = []
    for at, service in zip(created.tolist(), services.tolist(), strict=True):
        begin = max(at, free_at[0])
        heapq.heapreplace(free_at, begin + service)
        begun.append(begin)
    return np.array(begun)


def _busy(begun: NDArray[np.float64], ended: NDArray[np.float64], seconds: float) -> float:
    return float((np.minimum(ended, seconds) - np.minimum(begun, seconds)).sum())


_ENDS = 0
_TIMEOUT = 1


class _Queue:
    """The broker's part of a run.

    Attributes:
        delivered: the time at which the receiver first got each message.
        waited: the total time, in seconds, for which visible messages waited for a delivery.
        n_duplicates: the number of duplicates, as in `LeaseOutcome`.
    """

    def __init__(
        self,
        setting: LeaseSetting,
        messages: Messages,
        sent: NDArray[np.float64],
        deliveries: Iterator[tuple[float, bool]],
    ) -> None:
        self._setting = setting
        self._messages = messages
        # With its index, a message waits for those before it; the time of that counts as waiting.
        comes = sent if setting.order == "any" else np.maximum.accumulate(sent)
        order = np.argsort(comes, kind="stable")
        self._arrivals = [*zip(comes[order].tolist(), order.tolist(), strict=True)]
        self._waits_since = sent.tolist()
        self._deliveries = deliveries
        self._next = next(deliveries)
        self._events: list[tuple[float, int, int, int]] = []
        self._receives = [0] * len(sent)
        self._is_settled = [False] * len(sent)
        self._idle = setting.broker_threads
        self._fails: dict[int, bool] = {}
        self.delivered = [math.inf] * len(sent)
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.waited = 0.0
        self.n_duplicates = 0

    def run(self) -> None:
        """Deliver all messages."""
        events, arrivals = self._events, self._arrivals
        n_arrived = 0
        while events or n_arrived < len(arrivals):
            if n_arrived < len(arrivals) and (not events or arrivals[n_arrived][0] <= events[0][0]):
                now, message = arrivals[n_arrived]
                self._messages.add(message, now)
                n_arrived += 1
            else:
                now, kind, delivery, message = heapq.heappop(events)
                if kind == _ENDS:
                    self._end(now, delivery, message)
                elif self._is_current(delivery, message):
                    self._messages.expire(message, now)
                    self._waits_since[message] = now
            # What happens at one time is all done before deliveries begin.
            if (not events or events[0][0] > now) and (
                n_arrived == len(arrivals) or arrivals[n_arrived][0] > now
            ):
                while self._idle and self._begin(now):
                    pass

    def _is_current(self, delivery: int, message: int) -> bool:
        """Say whether no later receive, and no acknowledgement, ended a delivery's lease."""
        return self._receives[message] == delivery and not self._is_settled[message]

    def _begin(self, now: float) -> bool:
        """Begin to deliver a message; say whether there was one."""
        setting = self._setting
        service, fails = self._next
        end = now + service
        deadline = math.inf
        if setting.visibility_timeout is not None:
            deadline = now + setting.visibility_timeout
        message = self._messages.take(now, deadline)
        if message < 0:
            return False
        self._next = next(self._deliveries)
        self.begun.append(now)
        self.ended.append(end)
        delivery = len(self.begun)
        self._receives[message] = delivery
        self._fails[delivery] = fails
        self.waited += now - self._waits_since[message]
        self._idle -= 1
        heapq.heappush(self._events, (end, _ENDS, delivery, message))
        if deadline < math.inf:
            heapq.heappush(self._events, (deadline, _TIMEOUT, delivery, message))
        return True

    def _end(self, now: float, delivery: int, message: int) -> None:
        self._idle += 1
        if self._fails.pop(delivery):
            if self._setting.visibility_timeout is None:
                self._messages.give_back(message)
                self._waits_since[message] = now
            return
        if self.delivered[message] < math.inf:
            self.n_duplicates += 1
        else:
            self.delivered[message] = now
        if self._is_current(delivery, message):
            self._is_settled[message] = True
            self._messages.settle(message)


@dataclass(frozen=True, slots=True)
class LeaseRuns:
    """The independent runs of a queue's simulation.

    Attributes:
        seconds: the time in which messages are created, seconds.
    """

    replications: int = 20
    seconds: float = 100.0

    def __str__(self) -> str:
        return (
            f"{self.replications} independent runs of {self.seconds:g} s; means and 95 % confidence"
            " intervals (bootstrap over runs)."
        )

    def run(self, setting: LeaseSetting, make: Callable[[Order], Messages]) -> list[LeaseOutcome]:
        """Simulate a setting; equal replications of two settings meet equal messages."""
        return [
            simulate(setting, make(setting.order), self.seconds, np.random.default_rng(number))
            for number in range(self.replications)
        ]
