"""How many events do the models simulate in a second of processor time?

Rerun: ``python -m benchmarks.model_speed``; a look in seconds with ``--quick``.

Each row is the loop in which a paper's simulation spends its time, alone in this process: without
intervals, tables and plots. An event is a message that comes to a stage or leaves it, a
request, an answer, a deadline, an RTT, or a decision of a policy. Policies, dequeue strategies, the
enqueue controller and leases are the product's own objects, whose time is part of the loop's.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Final, TypeAlias

import numpy as np

from benchmarks.program import JsonFile, Program, Quick, Repeats, describe_run, tell, write_json
from penstock.models.closed_forms import OnOff
from penstock.models.dequeue import simulation as dequeue
from penstock.models.fabric import simulation as fabric
from penstock.models.fabric.setting import Setting as FabricSetting
from penstock.models.patterns import simulation as patterns
from penstock.models.patterns.network import PUBLISHER, SUBSCRIBER, compose
from penstock.models.visibility import simulation as visibility
from penstock.models.visibility.messages import LeasedMessages, Messages, VisibleMessages
from penstock.models.visibility.setting import Order
from penstock.models.visibility.setting import Setting as QueueSetting
from penstock.models.withholding import simulation as withholding
from penstock.models.withholding.sweep import POLICIES
from penstock.models.withholding.trace import generate_trace
from penstock.plugins.withholding.policy import Judgement, Policy, Situation

TARGET: Final = 200_000
"""Least events a second of processor time."""
FULL_SIZE: Final = 1.0
QUICK_SIZE: Final = 0.01

Loop: TypeAlias = Callable[[float], int]
"""Simulates so much, and returns how many events that was; 1 is some 100,000."""


def _patterns(arrival_rate: float, capacity: int | None, lifetime: float) -> Loop:
    path = compose(
        publisher_is_reliable=True,
        subscriber_is_reliable=True,
        peers={PUBLISHER: OnOff(40, 40), SUBSCRIBER: OnOff(15, 15)},
        arrival_rate=arrival_rate,
        capacity=capacity,
        lifetime=lifetime,
    )

    def loop(size: float) -> int:
        return patterns.simulate(path, round(50_000 * size), np.random.default_rng(1)).n_events

    return loop


def _visibility(order: Order, messages: Callable[[Order], Messages]) -> Loop:
    setting = QueueSetting(order, reliability_ratio=0.88)

    def loop(size: float) -> int:
        rng = np.random.default_rng(1)
        return visibility.simulate(setting, messages(order), 800 * size, rng).n_events

    return loop


def _dequeue(strategy: str) -> Loop:
    def loop(size: float) -> int:
        seconds = 40 * size
        setting = dequeue.Setting(strategy, 200, 1.0, seconds=seconds, warm_up=seconds / 4)
        return dequeue.simulate(setting, random.Random(1)).n_events  # noqa: S311 - a simulation

    return loop


def _fabric(size: float) -> int:
    setting = FabricSetting(seconds=40 * size)
    return fabric.simulate(setting, random.Random(1)).n_events  # noqa: S311 - a simulation


class _Counted(Policy):
    """A policy that counts its decisions."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy
        self.n_decisions = 0

    def judge(self, situation: Situation) -> Judgement:
        """Decide on a message."""
        self.n_decisions += 1
        return self._policy.judge(situation)


def _withholding(size: float) -> int:
    trace = generate_trace(random.Random(1), round(50_000 * size))  # noqa: S311 - a simulation
    policy = _Counted(POLICIES["historic"])
    withholding.simulate(policy, trace, withholding.Setting(0.5, 1))
    return len(trace) + policy.n_decisions


LOOPS: Final[Mapping[str, Loop]] = {
    "002: withholding, historic": _withholding,
    "003: patterns, lifetime 30 s": _patterns(2, None, 30),
    "003: patterns, K 10": _patterns(20, 10, float("inf")),
    "000: dequeue, conventional": _dequeue("conventional"),
    "000: dequeue, pms": _dequeue("pms"),
    "000: dequeue, rds": _dequeue("rds"),
    "001: fabric, exclusion": _fabric,
    "004: visibility timeout, out of order": _visibility("any", VisibleMessages),
    "004: visibility timeout, in order": _visibility("arrived", VisibleMessages),
    "004: in order, on the queue's own leases": _visibility("arrived", LeasedMessages),
}
"""By paper and what is simulated."""


def measure(loop: Loop, size: float) -> float:
    """Return events a second of processor time."""
    begin = time.process_time()
    n_events = loop(size)
    return n_events / max(1e-6, time.process_time() - begin)


def to_markdown(found: Mapping[str, list[float]]) -> list[str]:
    """Return the conclusion in a line, and a table."""
    below = [name for name, rates in found.items() if median(rates) < TARGET]
    told = f"Missed in {len(below)} of {len(found)} loops" if below else "Met"
    lines = [
        f"{told}: at least {TARGET:,} simulated events a second of one core.",
        "",
        "| loop | events/s, median | spread | target |",
        "|---|---:|---:|---|",
    ]
    for name, rates in found.items():
        verdict = "missed" if name in below else "met"
        lines.append(
            f"| {name} | {median(rates):,.0f} | {min(rates):,.0f} - {max(rates):,.0f} | {verdict} |"
        )
    return lines


def run(repeats: Repeats = 5, json: JsonFile = None, *, quick: Quick = False) -> None:
    """Measure the loops of the models, by turns."""
    found: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(1 if quick else repeats):
        for name, loop in LOOPS.items():
            found[name].append(measure(loop, QUICK_SIZE if quick else FULL_SIZE))
    described = describe_run()
    write_json(json, {"run": described, "events_per_second": found})
    tell(to_markdown(found), described)


main: Final = Program(run, "python -m benchmarks.model_speed")


if __name__ == "__main__":
    sys.exit(main())
