"""A fleet of few devices, and its plan, made once with little effort."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from unittest.mock import patch

from penstock.broker.config.checked_yaml import parse_mapping, validate_config
from penstock.models.planner import back_ends, delivery, link_policies
from penstock.models.planner.fleet import Fleet
from penstock.models.planner.planning import Plan, make_plan

EXAMPLE = Path(__file__).resolve().parents[3] / "plan.example.yaml"

SMALL = """
links:
  wired: {rtt_seconds: 0.02, bytes_per_second: 1 MB}
  mobile:
    rtt_seconds: 0.05
    bytes_per_second: 500 kB
    bad: {rtt_seconds: 0.3, bytes_per_second: 10 kB, loss_ratio: 0.1}
    good_seconds: 20
    bad_seconds: 10
devices:
  cameras:
    {count: 5, messages_per_second: 0.04, payload_bytes: 100 kB, link: wired, topics: cameras/#}
  sensors:
    count: 20
    messages_per_second: 0.1
    payload_bytes: 100
    link: wired
    topics: sensors/#
    lifetime_seconds: 20
    on_seconds: 40
    off_seconds: 10
subscribers:
  operators:
    {count: 4, devices: [cameras, sensors], link: mobile, on_seconds: 60, off_seconds: 20}
back_ends:
  recognition:
    devices: [cameras]
    receivers: 1
    seconds_per_message: 2
    success_ratio: 0.9
    order: key
machine: {cores: 2, memory_bytes: 1 GiB}
"""


def make_fleet(*changes: tuple[str, str]) -> Fleet:
    """Return the small fleet.

    Args:
        changes: words of its text, and those in their place.
    """
    text = SMALL
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return validate_config(Fleet, parse_mapping(text, "small.yaml"), "small.yaml", "")


@cache
def small_plan() -> Plan:
    """Return the plan of the small fleet."""
    with (
        patch.object(delivery, "RUNS", 6),
        patch.object(delivery, "MESSAGES", 3000),
        patch.object(link_policies, "LINKS", 6),
        patch.object(link_policies, "LEAST_SECONDS", 40.0),
        patch.object(link_policies, "MOST_SECONDS", 40.0),
        patch.object(back_ends, "MESSAGES", 200),
        patch.object(back_ends, "EVENTS", 1000),
    ):
        return make_plan(make_fleet(), lambda _: None)
