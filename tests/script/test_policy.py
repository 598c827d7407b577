from __future__ import annotations

from pathlib import Path

import pytest

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


def changes(**wanted: str) -> list[tuple[str, str]]:
    """Return the lines that differ from those of the demo's own broker."""
    usual = derive(EXAMPLE.read_text(), PLACES).splitlines()
    other = derive(EXAMPLE.read_text(), PLACES, **wanted).splitlines()
    return [pair for pair in zip(usual, other, strict=True) if pair[0] != pair[1]]


def test_the_broker_without_withholding_differs_in_one_line() -> None:
    """What the demo compares is the policy and nothing else; the policy is the example's."""
    name = default_policy(EXAMPLE.read_text())
    assert name != "none"
    assert changes(policy="none") == [(f"    policy: {name}", "    policy: none")]


def test_congestion_control_is_that_of_the_listener() -> None:
    """Where it is asked for, the broker's connections have it, and not the machine's."""
    derived = parse_policy(derive(EXAMPLE.read_text(), PLACES, congestion_control="cubic"), "")
    assert derived.listeners["default"].congestion_control == "cubic"
    assert len(changes(congestion_control="cubic")) == 1


@pytest.mark.parametrize(
    ("example", "missing"),
    [
        (EXAMPLE.read_text().replace("127.0.0.1:1883", "[::1]:1883"), r"127\.0\.0\.1:1883"),
        (EXAMPLE.read_text() + "    policy: none\n", r"policy: NAME.* 2 times"),
    ],
)
def test_an_example_that_has_changed_is_noticed(example: str, missing: str) -> None:
    """Where what is to be replaced does not stand there once, nothing is replaced in silence."""
    with pytest.raises(ValueError, match=missing):
        derive(example, PLACES, policy="none")


def test_ports_that_are_taken_are_replaced() -> None:
    """Each port is free and there is one for each that was wanted."""
    wanted = free_ports([0, 0])
    ports = free_ports([wanted[0], wanted[0]])
    assert ports[0] == wanted[0]
    assert len(set(ports)) == 2
