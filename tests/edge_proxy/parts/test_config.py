"""The keys of the plugin."""

from __future__ import annotations

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.edge_proxy.parts.config import PartsConfig


@pytest.mark.parametrize("name", ["#", "+/#", "penstock-parts/+"])
def test_parts_are_not_cut_into_parts(name: str) -> None:
    """A session that waits for what it publishes itself would wait for ever."""
    with pytest.raises(ConfigError, match=r"plugins\.parts: .*filters under split that do not"):
        validate_config(PartsConfig, {"split": [name]}, "policy.yaml", "plugins.parts")
    validate_config(PartsConfig, {"split": ["+/firmware"]}, "policy.yaml", "plugins.parts")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("prefix", "$parts", "a topic name that is not below $"),
        ("prefix", "parts/", "without a / at its end"),
        ("prefix", "a/+", "a topic name"),
        ("split", ["a/#/b"], "a topic filter"),
        ("split", ["$share/g/a"], "a topic filter that is not below"),
        ("assemble", ["$SYS/#"], "topic filters that are not below"),
        ("part_bytes", 1_000, "1024"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object, told: str) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match=rf"plugins\.parts\.{key}") as error:
        validate_config(PartsConfig, {key: value}, "policy.yaml", "plugins.parts")
    assert told in str(error.value)
