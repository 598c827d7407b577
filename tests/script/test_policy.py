from __future__ import annotations

from pathlib import Path

import yaml

from penstock.broker.config.policy import parse_policy
from script.demo_program.policy import EXAMPLE, Places, default_policy, derive, free_ports

ELSEWHERE = Path("elsewhere")
PLACES = Places(Path("policy.yaml"), 2883, 2884, ELSEWHERE / "queue.db", ELSEWHERE / "sessions.db")


def test_a_derived_policy_differs_in_places_alone() -> None:
    """The demo runs the example with other ports, another file and figures each second."""
    example = parse_policy(EXAMPLE.read_text(), "example")
    derived = parse_policy(derive(EXAMPLE.read_text(), PLACES), "derived")
    assert derived.listeners["default"].port == 2883
    assert derived.sys_interval == 1
    assert derived.plugins["withholding"] == example.plugins["withholding"]
    assert derived.plugins["probing"] == example.plugins["probing"]
    places: dict[str, object] = {"http": "127.0.0.1:2884", "path": "elsewhere/queue.db"}
    places["publishing"] = {"path": "elsewhere/queue.publishing.db"}
    assert derived.plugins["queue"] == {**example.plugins["queue"], **places}
    assert derived.persistence is not None
    assert example.persistence is not None
    assert derived.persistence.path == "elsewhere/sessions.db"
    assert derived.persistence.durability == example.persistence.durability
    assert (derived.limits, derived.amqtt is None) == (example.limits, example.amqtt is None)


def test_the_broker_without_withholding_differs_in_the_policy_alone() -> None:
    """What the demo compares is the policy and nothing else; the policy is the example's."""
    name = default_policy(EXAMPLE.read_text())
    assert name != "none"
    usual, other = (
        yaml.safe_load(derive(EXAMPLE.read_text(), PLACES, policy=policy))
        for policy in (None, "none")
    )
    assert usual["plugins"]["withholding"].pop("policy") == name
    assert other["plugins"]["withholding"].pop("policy") == "none"
    assert usual == other


def test_congestion_control_is_that_of_the_listener() -> None:
    """Where it is asked for, the broker's connections have it, and not the machine's."""
    derived = parse_policy(derive(EXAMPLE.read_text(), PLACES, congestion_control="cubic"), "")
    assert derived.listeners["default"].congestion_control == "cubic"


def test_ports_that_are_taken_are_replaced() -> None:
    """Each port is free and there is one for each that was wanted."""
    wanted = free_ports([0, 0])
    ports = free_ports([wanted[0], wanted[0]])
    assert ports[0] == wanted[0]
    assert len(set(ports)) == 2
