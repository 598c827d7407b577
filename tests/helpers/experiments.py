"""Scenarios for tests of the code that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.netem.links.profiles import Direction
from penstock.netem.runs.impairments import Impairment, TracePlan
from penstock.netem.runs.profile_plan import ProfilePlan
from penstock.netem.runs.scenario import (
    Broker,
    Edges,
    HostPlan,
    LinkPlan,
    Measurements,
    Publisher,
    Scenario,
    Stream,
    Subscriber,
    Topology,
)

GOOD = ProfilePlan(Direction(0.01, 2_500_000), Direction(0.01, 2_500_000))
BAD = ProfilePlan(Direction(0.1, 2_500_000, loss=0.2), Direction(0.1, 2_500_000, loss=0.2))


SMALL_FILE = """
title: A
about: B
profiles: {good: {}, bad: {downstream: {delay: 0.5}}}
topology:
  hosts: {cloud: {}, edge: {}}
  links: [{between: [cloud, edge], profile: good}]
impairments: [{link: cloud-edge, trace: {at_seconds: [0, 5], profiles: [good, bad]}}]
broker_host: cloud
brokers: {ours: {kind: penstock}, other: {kind: mosquitto}}
traffic: {small: {topic: a/b, payload_bytes: 100, period_seconds: 1}}
publishers: {pub: {host: cloud, streams: [small]}}
subscribers: {sub: {host: edge, filters: [a/#]}}
duration_seconds: 60
targets: [{figure: small p50, broker: ours, over: other, at_most: 0.5}]
"""
"""A whole scenario, as short as one can be."""


def site_scenario(edges: Edges, **changes: Any) -> Scenario:
    """Return an experiment with a site: brokers `direct`, and `edge` with brokers at the site.

    Args:
        edges: the `edges` of the broker `edge`.
        changes: fields of `Scenario` to be others.
    """
    hosts = {name: HostPlan() for name in ("cloud", "site", "floor")}
    links = [LinkPlan(("cloud", "site"), "good"), LinkPlan(("site", "floor"), "good")]
    fields: dict[str, Any] = {
        "topology": Topology(hosts, links),
        "brokers": {"direct": Broker("mosquitto"), "edge": Broker("penstock", edges=edges)},
        "publishers": {
            "office": Publisher("cloud", ["small"]),
            "sensor": Publisher("floor", ["large"]),
        },
        "subscribers": {
            "display": Subscriber("floor", ["alarms/#"]),
            "archive": Subscriber("cloud", ["pictures/#"]),
        },
        "impairments": [Impairment("cloud-site", trace=TracePlan((2.0, 5.0), ("bad", "good")))],
    }
    return scenario(**fields | changes)


def write_scenario(folder: Path, text: str) -> Path:
    """Return a file with this text."""
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def scenario(**changes: Any) -> Scenario:
    """Return a small experiment: a publisher, and a subscriber behind a link that gets bad.

    Args:
        changes: fields of `Scenario` to be others.
    """
    fields: dict[str, Any] = {
        "name": "small",
        "title": "Small",
        "about": "A test.",
        "topology": Topology(
            {"cloud": HostPlan(), "edge": HostPlan()}, [LinkPlan(("cloud", "edge"), "good")]
        ),
        "broker_host": "cloud",
        "brokers": {"penstock": Broker("penstock"), "mosquitto": Broker("mosquitto")},
        "traffic": {
            "small": Stream("alarms/{n}", 100, 0.25, first_seconds=0.1),
            "large": Stream("pictures/{n}", 300_000, 1.0, first_seconds=0.35),
        },
        "publishers": {"sensor": Publisher("cloud", ["small", "large"])},
        "subscribers": {"dashboard": Subscriber("edge", ["alarms/#", "pictures/#"])},
        "profiles": {"good": GOOD, "bad": BAD},
        "impairments": [Impairment("cloud-edge", trace=TracePlan((2.0, 5.0), ("bad", "good")))],
        "measurements": Measurements(),
        "duration_seconds": 8.0,
        "drain_seconds": 60.0,
    }
    return Scenario(**fields | changes)
