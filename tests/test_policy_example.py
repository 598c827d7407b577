"""The programs take the three example files, and the page of all keys is the code's."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.broker.config.policy import load_policy
from penstock.broker.counters import attributes_of
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.plugin_loader import load_plugins
from penstock.edge_proxy.sidecar.config import load_proxy_config
from script.key_reference import PAGE, POLICY, PROXY, page

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = [*POLICY.items(), *PROXY.items()]


@pytest.mark.parametrize(
    ("name", "plugins"), [("policy", ["probing", "withholding", "queue"]), ("edge", ["uplink"])]
)
def test_an_example_is_a_policy_file(name: str, plugins: list[str]) -> None:
    """The broker takes it, with each plugin's keys, and it is short enough to be read."""
    file = ROOT / f"{name}.example.yaml"
    policy = load_policy(file)
    assert list(policy.plugins) == plugins
    load_plugins(policy, operations=BrokerOperations(lambda: 0.0))
    assert len(file.read_text().splitlines()) <= 40


def test_the_proxy_takes_its_example() -> None:
    """With the plugins that protect small messages."""
    config = load_proxy_config(ROOT / "proxy.example.yaml")
    assert list(config.plugins) == ["probing", "withholding"]
    assert config.plugins["probing"]["probe_period"] == 1.0


@pytest.mark.parametrize("name", ["policy", "proxy", "edge"])
def test_a_key_behind_a_comment_sign_is_one_that_exists(name: str, tmp_path: Path) -> None:
    """Who takes the sign away gets what the line says, and no error."""
    text = (ROOT / f"{name}.example.yaml").read_text()
    text = re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE)
    text = text.replace("  amqtt.plugins.authentication.AnonymousAuthPlugin", "  #")
    for named in ("server.crt", "server.key", "ca.crt", "password", "passwords", "topics"):
        text = re.sub(rf"\b{re.escape(named)}\b", str(tmp_path / named), text)
        (tmp_path / named).touch()
    text = text.replace("    ssl: true ", "    ssl: false ")
    file = tmp_path / "example.yaml"
    file.write_text(text)
    if name == "proxy":
        assert load_proxy_config(file).keys.identity == "proxy_v2"
    else:
        assert load_policy(file).plugins


def test_the_page_of_keys_is_the_code_s() -> None:
    """`python -m script.key_reference` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(("place", "cls"), SECTIONS, ids=[f"{c.__name__}" for _, c in SECTIONS])
def test_every_key_is_told(place: str, cls: type) -> None:
    """By a line under Attributes that begins a sentence; nothing is told that is no key."""
    told = attributes_of(cls)
    assert {field.name for field in fields(cls)} == set(told), place
    assert all(told.values())


def test_only_what_must_be_given_is_shown_without_a_default() -> None:
    """A section whose keys have defaults need not stand in the file."""
    text = PAGE.read_text(encoding="utf-8")
    assert "| `backlog` | `{}` |" in text
    without = re.findall(r"^\| `(\w+)` \|  \|", text, re.MULTILINE)
    assert without == ["name", "certificate", "key", "site", "uplinks", "upstream", "upstream"]
