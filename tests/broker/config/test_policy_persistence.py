"""The policy file's section on persistence."""

from __future__ import annotations

import pytest

from penstock.broker.config.policy import Persistence, parse_policy
from penstock.broker.errors import ConfigError


def test_without_the_section_nothing_is_kept() -> None:
    """As it always was."""
    assert parse_policy("", "policy.yaml").persistence is None


def test_an_empty_section_is_refused() -> None:
    """Who writes its name wants something kept; nothing says what."""
    with pytest.raises(
        ConfigError, match=r"persistence: read nothing; allowed: its keys, \{\} for"
    ):
        parse_policy("persistence:", "policy.yaml")


def test_the_section_alone_is_durable() -> None:
    """Whoever asks for persistence and no more gets the sure kind."""
    assert parse_policy("persistence: {}", "policy.yaml").persistence == Persistence()
    assert Persistence().durability == "full"


def test_keys_with_dashes_are_read() -> None:
    """As everywhere in the file."""
    text = "persistence: {path: x.db, commit-wait-seconds: 0.01}"
    found = parse_policy(text, "policy.yaml").persistence
    assert found == Persistence(path="x.db", commit_wait_seconds=0.01)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "''"),
        ("durability", "some"),
        ("commit_wait_seconds", "2"),
        ("max_pending_messages", "0"),
        ("max_pending_bytes", "-1"),
        ("file", "x.db"),
    ],
)
def test_wrong_values_are_named(key: str, value: str) -> None:
    """With the key and what was read."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"persistence: {{{key}: {value}}}", "policy.yaml")
    (problem,) = caught.value.problems
    assert problem.path == f"persistence.{key}"


def test_two_ways_of_persistence_are_one_too_many() -> None:
    """AMQTT's plugin refuses to load where sessions are: said before, not while running."""
    plugin = "plugins: {amqtt.contrib.persistence.SessionDBPlugin: {}}"
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"persistence: {{}}\n{plugin}", "policy.yaml")
    (problem,) = caught.value.problems
    assert str(problem) == (
        "persistence: read amqtt.contrib.persistence.SessionDBPlugin beside it; "
        "allowed: one of the two"
    )
    assert parse_policy(f"persistence: {{durability: memory}}\n{plugin}", "policy.yaml").amqtt
