from __future__ import annotations

from typing import Any

import pytest

from broker.config import validate_config
from broker.errors import ConfigError
from plugins.probing.config import ProbingConfig


def read(**keys: Any) -> ProbingConfig:
    """Return the configuration that these keys of a policy file make."""
    return validate_config(ProbingConfig, keys, "policy.yaml", "plugins.probing")


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
        ("sources", ["icmp"], "sources.0", "'tcp_info' or 'puback'"),
        ("probe_period", 0, "probe_period", "greater than 0"),
        ("estimator", "mean", "estimator", "'last', 'ewma' or 'minimum'"),
        ("max_age_seconds", -1, "max_age_seconds", "greater than 0"),
        ("max_timed_bytes", -1, "max_timed_bytes", "greater than or equal to 0"),
        ("window_seconds", "5 min", "window_seconds", "a valid number"),
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


def test_unknown_key_suggests_the_nearest() -> None:
    """A misspelt key is no silence."""
    with pytest.raises(ConfigError, match=r"probe_peroid: read an unknown key.*probe_period"):
        read(probe_peroid=1)
