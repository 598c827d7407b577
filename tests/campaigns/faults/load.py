"""Faults: more clients than a broker can serve, and clients that delay others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from benchmarks.peers import PEERS, Options, running
from tests.campaigns.faults import bystanders, churn
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

RATES: Final = (50, 100, 200, 400)
LEAST_OF_PEAK: Final = 0.5
IDLE_SECONDS: Final = 10.0
STOP_SECONDS: Final = 15.0

GATE_SECONDS: Final = 0.05
READERS: Final = ("retained_all_5", "slow_logger")
ENDS: Final = "sessions_end"
GATE: Final = tuple(case for case in bystanders.CASES if case not in (*READERS, ENDS))


def vanish(broker: Subject, _rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Raise the rate until the reader gets no more, then offer twice as much."""
    most = rate_of_most = 0.0
    for rate in RATES:
        with running(PEERS[broker.name], Options(is_durable=True)) as started:
            figures = churn.churn(started, rate, effort.seconds, waits=False)
        if figures.delivered_per_second > most:
            most, rate_of_most = figures.delivered_per_second, float(rate)
    with running(PEERS[broker.name], Options(is_durable=True)) as started:
        twice = churn.churn(started, 2 * rate_of_most, effort.seconds)
    with running(PEERS[broker.name], Options(is_durable=True)) as started:
        stopped = churn.stop_seconds(started, effort.seconds / 2)
    idle = float("inf") if twice.idle_seconds is None else twice.idle_seconds
    return [
        Finding("most messages that the reader got", most, "a second"),
        Finding(
            "share of that at twice the rate",
            twice.delivered_per_second / most,
            least=LEAST_OF_PEAK,
        ),
        Finding("clients let in at twice the rate", twice.connects_per_second, "a second"),
        Finding("idle after the load", idle, "s", most=IDLE_SECONDS),
        Finding("ends after SIGTERM under load", stopped, "s", most=STOP_SECONDS),
    ]


def stand_by(
    cases: Sequence[str], broker: Subject, _rng: random.Random, effort: Effort
) -> Sequence[Finding]:
    """Measure how late a pair's messages are beside each of some cases."""
    findings = []
    for case in cases:
        lateness = bystanders.measure(broker.name, case, effort.seconds / 2)
        findings.append(
            Finding(f"p99 beside {case}", 1000 * lateness.p99, "ms", 1000 * GATE_SECONDS)
        )
    return findings


def _beside(*cases: str) -> Callable[[Subject, random.Random, Effort], Sequence[Finding]]:
    return partial(stand_by, cases)


CHURN: Final = Fault(
    "churn",
    "50 clients connect, subscribe, publish and vanish, twice as fast as most is delivered",
    vanish,
)
SLOW_READERS: Final = Fault(
    "slow_readers",
    "five clients subscribe to 100,000 retained messages; a reader of `#` is slow beside a flood",
    _beside(*READERS),
)
STALL_GATE: Final = Fault(
    "stall_gate",
    "single packets, as expensive as the limits allow, twice a second beside a pair of clients",
    _beside(*GATE),
)
SESSIONS_END: Final = Fault(
    "sessions_end",
    "100,000 sessions expire within the same second beside a pair of clients",
    _beside(ENDS),
)
