from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.plugins.probing.config import ProbingConfig


def read(**keys: Any) -> ProbingConfig:
    """Return the configuration that these keys of a policy file make."""
    return validate_config(ProbingConfig, keys, "policy.yaml", "plugins.probing")


WILDCARD = "a topic name (topic name 'a/+' holds a wildcard; allowed: no + and no # [MQTT-4.7.0-1])"


def test_no_key_is_needed() -> None:
    """A file that only names the plugin uses both sources each second."""
    config = read()
    assert config == ProbingConfig()
    assert config.sources == ("tcp_info", "puback")
    assert config.probe_period == 1.0


def test_sources_are_a_list_in_the_file() -> None:
    """One source alone may be named."""
    assert read(sources=["puback"]).sources == ("puback",)


@pytest.mark.parametrize(
    ("key", "value", "path", "allowed"),
    [
        ("sources", [], "sources", "at least one source, each once"),
        ("sources", ["puback", "puback"], "sources", "at least one source, each once"),
        ("sources", ["icmp"], "sources.0", "'tcp_info', 'puback' or 'probe'"),
        ("probe_period", 0, "probe_period", "greater than 0"),
        ("max_age_seconds", -1, "max_age_seconds", "greater than 0"),
        ("probe_topic", "a/+", "probe_topic", WILDCARD),
        ("probe_topic", "#", "probe_topic", WILDCARD.replace("a/+", "#")),
        (
            "probe_topic",
            "",
            "probe_topic",
            "a topic name (topic name is empty; allowed: one character or more [MQTT-4.7.3-1])",
        ),
        (
            "probe_topic",
            "$SYS/l",
            "probe_topic",
            "a topic name without $ at its beginning, as the broker's own have",
        ),
        ("probe_bytes", 0, "probe_bytes", "greater than or equal to 1"),
        ("probe_bytes", 1_000_001, "probe_bytes", "less than or equal to 1000000"),
        (
            "probe_topic",
            "other",
            "",
            "probe among sources, where probe_topic or probe_bytes is set",
        ),
        ("probe_bytes", 100, "", "probe among sources, where probe_topic or probe_bytes is set"),
        ("probe_period", 30, "", "max_age_seconds of at least probe_period"),
    ],
)
def test_wrong_value_names_key_value_and_what_is_allowed(
    key: str, value: Any, path: str, allowed: str
) -> None:
    """A user's mistake is told in the words of the file."""
    with pytest.raises(ConfigError) as caught:
        read(**{key: value})
    [problem] = caught.value.problems
    assert problem.path == f"plugins.probing.{path}".rstrip(".")
    assert problem.allowed == allowed


def test_probes_are_as_the_file_says() -> None:
    """By default those of paper 002: 10 KB on the topic latency."""
    assert (read().probe_topic, read().probe_bytes) == ("latency", 10_000)
    config = read(sources=["probe"], probe_topic="rtt/far", probe_bytes=1_000_000)
    assert (config.probe_topic, config.probe_bytes) == ("rtt/far", 1_000_000)


def test_unknown_key_suggests_the_nearest() -> None:
    """A misspelt key is no silence."""
    with pytest.raises(ConfigError, match=r"probe_peroid: read an unknown key.*probe_period"):
        read(probe_peroid=1)
