"""An invented run of a scenario: two brokers, two streams, a link that is bad from 10 to 20 s."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from penstock.netem.figures.table_files import Format
from penstock.netem.figures.table_rows import (
    DeliveryRow,
    ExpectedRow,
    LinkRow,
    MemoryRow,
    MessageRow,
    Tables,
    WithheldRow,
)
from penstock.netem.links.profiles import Direction
from penstock.netem.runs.impairments import Impairment, TracePlan
from penstock.netem.runs.profile_plan import ProfilePlan
from penstock.netem.runs.results import write_result
from penstock.netem.runs.run_file import ProcessorShare, RunInfo
from penstock.netem.runs.scenario import (
    Broker,
    HostPlan,
    LinkPlan,
    Publisher,
    Scenario,
    Stream,
    Subscriber,
    Target,
    Topology,
)

BROKERS = ("adaptive", "mosquitto")

SCENARIO = Scenario(
    name="made-up",
    title="Made up",
    about="A run that nobody made, to count by hand.",
    topology=Topology(
        {"cloud": HostPlan(), "router": HostPlan(), "edge": HostPlan(), "field": HostPlan()},
        [
            LinkPlan(("cloud", "router"), "good"),
            LinkPlan(("router", "edge"), "good"),
            LinkPlan(("field", "cloud"), "good"),
        ],
    ),
    broker_host="cloud",
    brokers={"adaptive": Broker("penstock"), "mosquitto": Broker("mosquitto")},
    traffic={"small": Stream("small/{n}", 100, 1.0), "large": Stream("large/{n}", 1_000_000, 5.0)},
    publishers={"pub": Publisher("field", ["small", "large"])},
    subscribers={"sub": Subscriber("edge", ["#"])},
    profiles={
        "good": ProfilePlan(Direction(0.02, 2.5e6), Direction(0.02, 2.5e6)),
        "lossy": ProfilePlan(Direction(0.1, 2.5e6, loss=0.2), Direction(0.1, 2.5e6, loss=0.2)),
    },
    impairments=[
        Impairment("router-edge", trace=TracePlan((0.0, 10.0, 20.0), ("good", "lossy", "good")))
    ],
    targets=[
        Target("small p90", "adaptive", over="mosquitto", at_most=0.5, is_timing=True),
        Target("lost", "adaptive", at_most=0),
    ],
    duration_seconds=30.0,
    drain_seconds=10.0,
    seeds=[1],
)

INFO = RunInfo(
    scenario=SCENARIO,
    length="full",
    command="penstock netem run made-up",
    commit="abc1234",
    machine="2 cores, some model, 8 GiB, Linux 6.1",
    python="CPython 3.11.9",
    date="2026-01-02T03:04:05+00:00",
    versions={"adaptive": "Penstock 0.1.0", "mosquitto": "mosquitto 2.0.11"},
    processor=[ProcessorShare("adaptive", 1, 0.05), ProcessorShare("mosquitto", 1, 0.01)],
)


def message(
    number: int, due: float, *, broker: str = "adaptive", stream: str = "small", seed: int = 1
) -> MessageRow:
    """Return a message that left when it was due and arrived 20 ms later, at QoS 1."""
    plan = SCENARIO.traffic[stream]
    topic = plan.topic.replace("{n}", "1")
    return MessageRow(
        broker,
        seed,
        "pub",
        stream,
        topic,
        number,
        plan.payload_bytes,
        1,
        due,
        due + 0.001,
        due + 0.05,
        due + 0.02,
    )


def delivery(
    number: int,
    at: float,
    *,
    broker: str = "adaptive",
    stream: str = "small",
    seed: int = 1,
    qos: int = 1,
    is_duplicate: bool = False,
) -> DeliveryRow:
    """Return a PUBLISH at the one subscriber."""
    return DeliveryRow(broker, seed, "sub", "pub", stream, number, qos, is_duplicate, at)


def expected(
    *, broker: str = "adaptive", stream: str = "small", seed: int = 1, qos: int = 1
) -> ExpectedRow:
    """Return that the one subscriber, in focus, is to get a stream."""
    return ExpectedRow(broker, seed, "sub", "sub", True, "pub", stream, qos, "router-edge")


def whole_run(info: RunInfo = INFO) -> Tables:
    """Return a run in which `adaptive` withholds from 11 to 22 s, and nothing is lost.

    Small messages of `adaptive` take 50 ms, or 200 ms in the bad time; those of `mosquitto` take
    ten times as long there. Large ones take 0.5 s, in the bad time until 22 s and 25 s.
    """
    tables = Tables()
    for broker in info.scenario.brokers:
        is_ours = broker == info.scenario.targets[0].broker
        for seed in info.scenario.seeds:
            for stream, plan in info.scenario.traffic.items():
                tables.expected.append(expected(broker=broker, stream=stream, seed=seed))
                times = range(0, int(info.scenario.duration_seconds), int(plan.period_seconds))
                for number, due in enumerate(map(float, times)):
                    row = message(number, due, broker=broker, stream=stream, seed=seed)
                    tables.messages.append(row)
                    is_bad = 10 <= due < 20
                    if plan.payload_bytes > 10_000:
                        # What is due when it ends waits for those before.
                        waits = is_bad or due == 20
                        at = (22.0 if is_ours else 25.0) + number / 10 if waits else due + 0.5
                    elif is_bad:
                        at = due + (0.2 if is_ours else 2.0)
                    else:
                        at = due + 0.05
                    tables.deliveries.append(
                        delivery(number, at, broker=broker, stream=stream, seed=seed)
                    )
            for at in range(-2, 40):
                grown = (2 if is_ours else 8) * 1_000_000 * (10 <= at < 25)
                tables.memory.append(MemoryRow(broker, seed, float(at), 30_000_000 + grown))
            for profile, begin, end in (("good", 0, 10), ("lossy", 10, 20), ("good", 20, 40)):
                bad = profile == "lossy"
                tables.links.append(
                    LinkRow(broker, seed, "router-edge", profile, bad, float(begin), float(end))
                )
            if is_ours:
                tables.withheld.append(WithheldRow(broker, seed, "sub", 11.0, 22.0, 2))
    return tables


def with_scenario(info: RunInfo = INFO, **changes: object) -> RunInfo:
    """Return a run of the same scenario with something else."""
    scenario = dataclasses.replace(info.scenario, **changes)  # type: ignore[arg-type] # any field
    return dataclasses.replace(info, scenario=scenario)


def write_run(folder: Path, info: RunInfo, tables: Tables, form: Format = Format.PARQUET) -> None:
    """Write a run as the runner does."""
    write_result(folder, tables, info, form)
