"""The policy file of a plan, with which the broker runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from penstock.models.planner import back_ends, link_policies
from penstock.models.planner.planning import Plan

HEAD: Final = """\
# What `penstock plan` recommends: penstock broker -c FILE
#
# It serves this machine alone, and every client. Before you open it to a network, choose another
# authentication plugin and address: docs/how-to/listeners.md. Other keys have their defaults:
# policy.example.yaml.
"""
MEMORY_SHARE: Final = 0.5
"""The share of the machine's memory for waiting payloads where the others go to the disk."""


def write(plan: Plan, file: Path) -> None:
    """Write the policy file; overwrite what is there.

    Raises:
        OSError: it cannot be written.
    """
    text = yaml.safe_dump(policy(plan), sort_keys=False, allow_unicode=True)
    file.write_text(f"{HEAD}\n{text}", encoding="utf-8")


def policy(plan: Plan) -> dict[str, Any]:
    """Return the keys of the policy file."""
    fleet = plan.fleet
    keeps = any(
        who.keeps_session and any(each.qos for each in fleet.sources(who).values())
        for who in fleet.subscribers.values()
    )
    keys: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:1883"}},
        "limits": {"connections": plan.connections},
    }
    if plan.deliveries:
        keys["limits"] |= {
            "queued_messages": plan.queued_messages,
            "queued_bytes": plan.queued_bytes,
        }
    if keeps:
        keys["persistence"] = {"path": "penstock-sessions.db", "durability": "normal"}
    keys["plugins"] = {
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
        "probing": {"probe_period": plan.probe_period},
        "withholding": _withholding(plan),
    }
    if plan.spills:
        limit = round(MEMORY_SHARE * fleet.machine.memory_bytes)
        keys["plugins"]["memory"] = {"store": "spill", "memory_limit": limit}
    if fleet.back_ends:
        keys["plugins"]["queue"] = {
            "engine": "sqlite",
            "path": "penstock-queue.db",
            "http": "127.0.0.1:8080",
            "queues": {name: _queue(plan, name) for name in fleet.back_ends},
        }
    return keys


def _withholding(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"policy": plan.policy, "threshold_l": "auto"}
    threshold_s = plan.sizes.threshold_s
    if threshold_s is not None:
        found["threshold_s"] = threshold_s
    if plan.bad_seconds is not None and threshold_s is not None:
        settings = link_policies.config(plan.policy, plan.bad_seconds, threshold_s)
        if plan.policy in {"conservative", "probabilistic"}:
            found["max_withhold"] = settings.max_withhold
        if plan.policy == "probabilistic":
            found["congestion_rate"] = settings.congestion_rate
    return found


def _queue(plan: Plan, name: str) -> dict[str, Any]:
    back_end = plan.fleet.back_ends[name]
    n_messages, _ = plan.queue_limits(name)
    group: dict[str, Any] = {
        "kind": "lease",
        "visibility_timeout": back_ends.visibility_timeout(back_end),
    }
    found: dict[str, Any] = {
        "topics": [each.topics for each in plan.fleet.sources(back_end).values()],
        "physical_queues": back_ends.physical_queues(plan.fleet, name),
        "max_messages": n_messages,
        "n_max": back_ends.n_max(back_end),
    }
    if back_end.order == "key":
        found["key"], group["order"] = "topic", "key"
    return found | {"groups": {"default": group}}
