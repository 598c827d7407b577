"""Fault: ``kill -9`` of the broker at random moments, while clients publish and receive."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.errors import BenchmarkError
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.flows import V5, V311, Publisher, Subscriber, ledger_difference
from tests.campaigns.faults.subject import Subject

N_KILLS: Final = 200
LONGEST_LIFE_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 15.0
"""After a silence of this length, no more messages are expected."""

POLICY: Final = {
    "persistence": {"path": "sessions.db", "durability": "normal"},
    "limits": {"queued_messages": 10_000_000},
    "sys_interval": 2,
}
LINES: Final = (
    "persistence true",
    "autosave_interval 1",  # it stores every second, the most often that it can
    "max_queued_messages 0",
)


def inflict(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Kill and start the broker again and again; count what was promised and did not come."""
    broker.configure(POLICY, LINES)
    broker.start()
    n_kills = effort.count(N_KILLS, least=2)
    with ExitStack() as stack:
        subscribers = [
            stack.enter_context(Subscriber(broker.port, f"s{n}", version, "load/#"))
            for n, version in enumerate((V311, V5))
        ]
        for subscriber in subscribers:
            if not subscriber.wait(lambda s=subscriber: s.is_subscribed, SETTLE_SECONDS):  # type: ignore[misc]
                raise BenchmarkError(f"{broker.name}: no SUBACK")
        publishers = [
            stack.enter_context(Publisher(broker.port, f"p{n}", version, "load"))
            for n, version in enumerate((V311, V5))
        ]
        flows = (*subscribers, *publishers)
        for number in range(n_kills):
            for flow in flows:
                # paho sends QoS 2 anew where a connection ends before its CONNACK.
                flow.wait(lambda f=flow, n=number: f.n_connects > n, SETTLE_SECONDS)  # type: ignore[misc]
            time.sleep(rng.uniform(0, LONGEST_LIFE_SECONDS))
            broker.kill()
            broker.start()
        for publisher in publishers:
            publisher.end(SETTLE_SECONDS)
        promised = set().union(*(publisher.acknowledged for publisher in publishers))
        for subscriber in subscribers:
            subscriber.wait_for(promised, IDLE_SECONDS)
        difference = ledger_difference(broker.port, SETTLE_SECONDS) if broker.is_ours else None
    without_dup = set().union(*(subscriber.without_dup for subscriber in subscribers))
    without_dup.difference_update(*(publisher.repeated for publisher in publishers))
    exactly_once = [payload for payload in promised if payload.split()[1] == b"2"]
    findings = [
        Finding("kills", n_kills),
        Finding("messages acknowledged to their publishers", len(promised)),
        Finding(
            "acknowledged messages lost",
            sum(len(promised - subscriber.got.keys()) for subscriber in subscribers),
            most=0,
        ),
        Finding(
            "of QoS 2 delivered more than once",
            sum(each.got[payload] > 1 for each in subscribers for payload in exactly_once),
            most=0,
        ),
        Finding("out of their topic's order", sum(s.disordered for s in subscribers), most=0),
        Finding("sent again without DUP", len(without_dup), most=0),
    ]
    if difference is not None:
        findings.append(Finding("ledger: matched less its parts", abs(difference), most=0))
    return findings


KILLS: Final = Fault(
    "kills",
    "the broker is killed (`kill -9`) at random moments while two clients publish at QoS 1 and 2 "
    "to two sessions that are kept; `durability: normal`, mosquitto with `autosave_interval 1`",
    inflict,
)
