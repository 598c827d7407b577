"""Queues between broker and back ends: receivers, visibility timeout, physical queues, N_max.

There are two models. Paper 004's queue runs on the queue's own leases, and predicts how long
messages take with a number of receivers. Paper 000's simulation runs the queue's own dequeue
strategies with the gateway's costs. The gateway is one thread, so it is one server, whatever the
number of physical queues.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.models.kernels import dequeue_simulation as dequeue
from penstock.models.kernels.closed_forms import UnstableError, mmn_waiting
from penstock.models.kernels.lease_messages import LeasedMessages
from penstock.models.kernels.lease_setting import LeaseSetting
from penstock.models.kernels.lease_simulation import LeaseOutcome, simulate
from penstock.models.planner.costs import Costs
from penstock.models.planner.fleet import BackEnd, Fleet
from penstock.netem.figures.estimates import Estimate, mean_estimate

RUNS: Final = 6
MESSAGES: Final = 3000
"""The number of messages in a run."""
SERVICES: Final = 7.0
"""An exponential service takes longer than this many means in one of a thousand cases."""
LEAST_TIMEOUT: Final = 30.0
"""The least visibility timeout, seconds: the product's default."""
BATCH_RATIO: Final = 1 / 3
"""A batch is to be finished within this share of the visibility timeout."""
MOST_N_MAX: Final = 100
"""The product's default of `n_max`."""
MOST_PHYSICAL_QUEUES: Final = 16
CALM_UTILISATION: Final = 0.7
"""The utilisation of receivers up to which few messages wait."""
STRATEGIES: Final = ("conventional", "pms", "rds", "rds+wake")
SLEEP_TIME: Final = 0.1
"""The sleep time of rds and pms, seconds: the product's default."""
EVENTS: Final = 20_000
"""About how many events one simulation of a strategy has."""


@dataclass(frozen=True, slots=True)
class ReceiverResult:
    """The simulated results of one number of receivers.

    Attributes:
        utilisation: rho.
        outcomes: the outcomes of independent runs; empty where they cannot keep up.
        quantile_wait: the seconds that 99 of 100 messages do not wait longer than (M/M/N); infinite
            where the receivers cannot keep up.
    """

    count: int
    utilisation: float
    outcomes: Sequence[LeaseOutcome]
    seconds: float
    quantile_wait: float

    @property
    def delivery(self) -> Estimate:
        """Mean seconds from a message's arrival to its end."""
        return mean_estimate([one.figures.delivery for one in self.outcomes])

    @property
    def twice(self) -> Estimate:
        """Share of the messages that are delivered once more."""
        return mean_estimate([one.n_duplicates / one.n_messages for one in self.outcomes])


def arrival_rate(fleet: Fleet, back_end: BackEnd) -> float:
    """Return messages a second that a back end gets."""
    return sum(each.total_rate for each in fleet.sources(back_end).values())


def visibility_timeout(back_end: BackEnd) -> float:
    """Return seconds that nearly all services keep."""
    return max(LEAST_TIMEOUT, round(SERVICES * back_end.seconds_per_message, 1))


def n_max(back_end: BackEnd) -> int:
    """Return how many messages one receive may have, so that they end within the timeout."""
    fits = BATCH_RATIO * visibility_timeout(back_end) / back_end.seconds_per_message
    return max(1, min(MOST_N_MAX, math.floor(fits)))


def physical_queues(fleet: Fleet, name: str) -> int:
    """Return a power of two of them, one for each receiver where a key keeps them apart."""
    count = max(recommended(fleet, name), fleet.back_ends[name].receivers)
    return min(MOST_PHYSICAL_QUEUES, 1 << (count - 1).bit_length())


def recommended(fleet: Fleet, name: str) -> int:
    """Return the least number of receivers that are busy for no more than a calm share."""
    back_end = fleet.back_ends[name]
    work = arrival_rate(fleet, back_end) * back_end.seconds_per_message / back_end.success_ratio
    return max(1, math.ceil(work / CALM_UTILISATION - 1e-9))


def counts(fleet: Fleet, name: str) -> list[int]:
    """Return numbers of receivers to compare: the file's, the least that keep up, and calm ones."""
    back_end = fleet.back_ends[name]
    work = arrival_rate(fleet, back_end) * back_end.seconds_per_message / back_end.success_ratio
    least = math.floor(work) + 1
    calm = recommended(fleet, name)
    return sorted({least, calm, back_end.receivers, calm + max(1, calm // 2)})


def predict(fleet: Fleet, costs: Costs, name: str, count: int) -> ReceiverResult:
    """Simulate a back end with a number of receivers."""
    back_end = fleet.back_ends[name]
    rate, service_rate = arrival_rate(fleet, back_end), 1 / back_end.seconds_per_message
    seconds = MESSAGES / rate
    offered = rate / back_end.success_ratio
    try:
        setting = LeaseSetting(
            "any",
            1,
            count,
            back_end.success_ratio,
            rate,
            1 / costs.enqueue,
            service_rate,
            visibility_timeout(back_end) if back_end.success_ratio < 1 else None,
        )
        mean_wait = mmn_waiting(offered, service_rate, count)
    except UnstableError:
        return ReceiverResult(count, offered / (count * service_rate), (), seconds, math.inf)
    outcomes = [
        simulate(setting, LeasedMessages("any"), seconds, np.random.default_rng(number))
        for number in range(RUNS)
    ]
    spare = count * service_rate - offered
    wait = max(0.0, math.log(max(1e-9, 100 * mean_wait * spare)) / spare)
    return ReceiverResult(count, offered / (count * service_rate), outcomes, seconds, wait)


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The simulated results of one dequeue strategy.

    Attributes:
        outcome: the outcome at the back end's load.
        busy_ratio: the share of the gateway's core that requests and messages take.
    """

    name: str
    outcome: dequeue.DequeueOutcome
    busy_ratio: float


def gateway_costs(costs: Costs) -> dequeue.Costs:
    """Return what operations of the queue take of the gateway's thread."""
    return dequeue.Costs(
        enqueue=costs.enqueue,
        hit=2 * costs.request,  # a receive and a settle
        message=costs.dequeue,
        miss=costs.request,
        monitoring=costs.enqueue / 10,
    )


def strategies(fleet: Fleet, costs: Costs, name: str) -> list[StrategyResult]:
    """Simulate each dequeue strategy with the receivers of a back end."""
    back_end = fleet.back_ends[name]
    rate = arrival_rate(fleet, back_end)
    asked = back_end.requests_per_second
    seconds = EVENTS / (rate + back_end.receivers * asked)
    n_devices = min(100, math.ceil(rate))
    found = []
    for strategy in STRATEGIES:
        setting = dequeue.DequeueSetting(
            strategy,
            asked,
            SLEEP_TIME,
            controllers=1,
            back_ends=back_end.receivers,
            connections=1,
            devices=n_devices,
            period=n_devices / rate,
            enqueue_controllers=1,
            physical_queues=1,
            n_max=n_max(back_end),
            max_queues_per_dequeue=1,
            costs=gateway_costs(costs),
            seconds=seconds,
            warm_up=seconds / 4,
        )
        outcome = dequeue.simulate(setting, random.Random(0))  # noqa: S311 (a simulation)
        found.append(StrategyResult(strategy, outcome, _busy(outcome, gateway_costs(costs))))
    return found


def _busy(outcome: dequeue.DequeueOutcome, costs: dequeue.Costs) -> float:
    messages = outcome.messages_per_second
    hits = messages / outcome.messages_per_hit if outcome.messages_per_hit else 0.0
    misses = hits / outcome.hit_ratio - hits if outcome.hit_ratio else outcome.requests_per_second
    return messages * (costs.enqueue + costs.message) + hits * costs.hit + misses * costs.miss
