"""An invented run of a scenario with kinds of links; the test gives the latencies."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.netem.figures.measures import Measures
from penstock.netem.figures.table_rows import DeliveryRow, ExpectedRow, MessageRow, Tables
from penstock.netem.links.profiles import Direction
from penstock.netem.runs.impairments import OnOffPlan
from penstock.netem.runs.kind_links import with_kinds
from penstock.netem.runs.kinds import EachKind, LinkKind
from penstock.netem.runs.profile_plan import ProfilePlan
from penstock.netem.runs.scenario import Broker, HostPlan, Scenario, Stream, Topology

SEEDS = [1, 2, 3, 4, 5, 6]

BROKERS = {
    "mosquitto": Broker("mosquitto"),
    "none": Broker("penstock"),
    "adaptive": Broker("penstock"),
    "oracle": Broker("oracle"),
    "lanes": Broker("penstock", lanes="sizes"),
}

MADE_UP = {
    # Mean 5 s, of which the oracle leaves 1, and the policy 2.
    ("loss", "mosquitto", "small"): [4.0, 8.0],
    ("loss", "none", "small"): [4.0, 6.0],
    ("loss", "adaptive", "small"): [1.0, 3.0],
    ("loss", "oracle", "small"): [1.0, 1.0],
    ("loss", "lanes", "small"): [0.1, 0.5],
    ("loss", "mosquitto", "large"): [10.0],
    ("loss", "none", "large"): [10.0],
    ("loss", "adaptive", "large"): [18.0],
    ("loss", "oracle", "large"): [15.0],
    ("loss", "lanes", "large"): [10.0],
    # Nothing to be gained.
    ("outage", "mosquitto", "small"): [9.0],
    ("outage", "none", "small"): [10.0],
    ("outage", "adaptive", "small"): [11.5],
    ("outage", "oracle", "small"): [9.0],
    ("outage", "lanes", "small"): [9.0],
    ("outage", "mosquitto", "large"): [10.0],
    ("outage", "none", "large"): [10.0],
    ("outage", "adaptive", "large"): [13.0],
    ("outage", "oracle", "large"): [10.0],
    ("outage", "lanes", "large"): [11.0],
}
"""The latencies of the messages of each unit in seconds, by kind, broker and stream."""


def kind_scenario(
    *,
    kinds: tuple[str, ...] = ("loss", "outage"),
    seeds: list[int] = SEEDS,
    congestion_controls: tuple[str, ...] = ("cubic",),
) -> Scenario:
    """Return a scenario with kinds, each directly alone."""
    plans = {
        "loss": LinkKind(on_off=OnOffPlan("good", "lossy", 2.0, 2.0)),
        "outage": LinkKind(on_off=OnOffPlan("good", "dead", 2.0, 2.0)),
        "two": LinkKind(on_off=OnOffPlan("good", "lossy", 2.0, 2.0), receivers=2),
    }
    return with_kinds(
        Scenario(
            name="made-up",
            title="Made up",
            about="Links that nobody made.",
            topology=Topology({"cloud": HostPlan()}, []),
            broker_host="cloud",
            brokers=dict(BROKERS),
            traffic={
                "small": Stream("alarms/{to}", 100, 1.0),
                "large": Stream("pictures/{to}", 1_000_000, 1.0),
            },
            duration_seconds=20.0,
            profiles={
                "good": ProfilePlan(Direction(0.02), Direction(0.02)),
                "lossy": ProfilePlan(Direction(0.1), Direction(0.1, loss=0.2)),
                "dead": ProfilePlan(Direction(0.1), Direction(0.1, loss=1.0)),
            },
            kinds={name: plans[name] for name in kinds},
            each_kind=EachKind("good", ["small", "large"], list(congestion_controls)),
            seeds=seeds,
        )
    )


def kind_run(scenario: Scenario, latencies: Mapping[tuple[str, str, str], list[float]]) -> Measures:
    """Return a run in which messages took a given time.

    Args:
        scenario: the scenario of `kind_scenario`.
        latencies: the latencies of the messages of each unit in seconds, by kind, broker and
            stream; equal with each seed and for each receiver.
    """
    tables = Tables()
    for cell in scenario.cells():
        for receiver in cell.receivers:
            for broker in scenario.brokers:
                for stream, plan in scenario.traffic.items():
                    for seed in scenario.seeds:
                        took = latencies.get((cell.kind, broker, stream))
                        if took is None:
                            continue
                        publisher = f"to-{receiver}"
                        tables.expected.append(
                            ExpectedRow(
                                broker,
                                seed,
                                receiver,
                                receiver,
                                True,
                                publisher,
                                stream,
                                1,
                                f"cloud-{cell.name}",
                            )
                        )
                        for number, seconds in enumerate(took):
                            due = float(number)
                            tables.messages.append(
                                MessageRow(
                                    broker,
                                    seed,
                                    publisher,
                                    stream,
                                    plan.topic,
                                    number,
                                    plan.payload_bytes,
                                    1,
                                    due,
                                    due,
                                    due,
                                    None,
                                )
                            )
                            tables.deliveries.append(
                                DeliveryRow(
                                    broker,
                                    seed,
                                    receiver,
                                    publisher,
                                    stream,
                                    number,
                                    1,
                                    False,
                                    due + seconds,
                                )
                            )
    return Measures(scenario, tables)
