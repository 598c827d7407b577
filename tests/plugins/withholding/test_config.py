from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.key_types import SIZE_ALLOWED
from penstock.broker.errors import ConfigError
from penstock.plugins.withholding.config import PolicyName, WithholdingConfig
from penstock.plugins.withholding.policies import make_policy


def read(**keys: Any) -> WithholdingConfig:
    """Return the configuration that these keys of a policy file make."""
    return validate_config(WithholdingConfig, keys, "policy.yaml", "plugins.withholding")


def test_defaults_are_those_of_the_paper() -> None:
    """A file that only names the plugin has the paper's sizes and times."""
    config = read()
    assert config == WithholdingConfig()
    assert (config.threshold_s, config.max_withhold) == (10_000, 20.0)
    assert config.congestion_rate == pytest.approx(1 / 17.5)
    assert config.profile == {10_000: 1.0, 1_000_000: 10.0}


def test_auto_learns_threshold_l_and_is_the_default() -> None:
    """The word auto and no word at all mean the same."""
    assert read(threshold_l="auto").threshold_l is None
    assert read().thresholds().fixed is None
    assert read(threshold_l=1).thresholds().fixed == 1.0


def test_each_policy_name_makes_a_policy() -> None:
    """What the file may name is what there is."""
    for name in get_args(PolicyName):
        assert make_policy(name, max_withhold=1.0, congestion_rate=1.0).name == name


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("policy", "historc", "'probabilistic', 'historic' or 'adaptive'"),
        ("threshold_s", -1, SIZE_ALLOWED),
        ("threshold_s", 1.5, SIZE_ALLOWED),
        ("threshold_s", "10 XB", SIZE_ALLOWED),
        ("threshold_l", 0, "seconds above 0, or auto"),
        ("threshold_l", "fast", "seconds above 0, or auto"),
        ("threshold_l", True, "seconds above 0, or auto"),
        ("threshold_l", math.inf, "seconds above 0, or auto"),
        ("learned_from", "maximum", "'minimum' or 'average'"),
        ("congestion_rate", math.nan, "a finite number"),
        ("max_withhold", -20, "greater than 0"),
        ("congestion_rate", 0, "greater than 0"),
        ("profile", {}, "at least one row of payload bytes: latency"),
        ("profile", {10000: 1.0, "10 kB": 1.0}, "each size once"),
        ("profile", {2: 1.0, 1: 2.0}, "latencies that never fall as payload bytes grow"),
        ("profile", 7, "a mapping"),
    ],
)
def test_wrong_value_names_key_value_and_what_is_allowed(
    key: str, value: Any, allowed: str
) -> None:
    """A user's mistake is told in the words of the file."""
    with pytest.raises(ConfigError) as caught:
        read(**{key: value})
    [problem] = caught.value.problems
    assert problem.path == f"plugins.withholding.{key}"
    assert problem.allowed.endswith(allowed)


def test_listener_has_what_it_does_not_say_from_above() -> None:
    """Each of its keys may be left out; null for a size is never, and auto is to learn."""
    config = read(
        threshold_s=10,
        threshold_l=1.0,
        listeners={
            "a": {"threshold_s": 5},
            "b": {"threshold_l": "auto"},
            "c": {"threshold_s": None},
        },
    )
    classes, thresholds = config.size_classes(), config.thresholds()
    assert [classes.threshold_s("t", name) for name in "abcd"] == [5, 10, None, 10]
    assert thresholds.by_listener == {"b": None}
    assert read(threshold_l_by_client={"u": "auto"}).thresholds().by_client == {"u": None}


@pytest.mark.parametrize(
    ("key", "value", "path", "allowed"),
    [
        ("threshold_s_by_topic", {"a": -1}, "threshold_s_by_topic.a", "a whole number of bytes"),
        ("threshold_s_by_topic", {"a#": 1}, "threshold_s_by_topic", r"# stands in 'a#'"),
        ("threshold_s_by_topic", {"$share/g/a": 1}, "threshold_s_by_topic", "without $share"),
        ("priority", "alarms/#", "priority", "list"),
        ("profile", {1: 1.0, 2: math.inf}, "profile.2", "a finite number"),
        ("priority", ["a#"], "priority", r"# stands in 'a#'"),
        ("priority", ["$share/g/a"], "priority", "without $share"),
        ("ordering", "size", "ordering", "'topic' or 'none'"),
        ("supersede", "yes", "supersede", "a valid boolean"),
        ("threshold_l_by_client", {"a*": 0}, "threshold_l_by_client.a*", "above 0, or auto"),
        ("listeners", {"lan": {"threshold_s": -1}}, "listeners.lan.threshold_s", "number of bytes"),
        ("listeners", {"lan": {"threshold_l": -1}}, "listeners.lan.threshold_l", "or auto"),
        ("listeners", {"lan": {"treshold_s": 1}}, "listeners.lan.treshold_s", "perhaps threshold"),
        ("listeners", {"lan": 5}, "listeners.lan", "a mapping"),
    ],
)
def test_wrong_entry_of_a_table_is_found(key: str, value: Any, path: str, allowed: str) -> None:
    """Topic filters and thresholds inside a table are checked one by one."""
    with pytest.raises(ConfigError) as caught:
        read(**{key: value})
    [problem] = caught.value.problems
    assert problem.path == f"plugins.withholding.{path}"
    assert allowed in problem.allowed


def test_unknown_key_suggests_the_nearest() -> None:
    """A misspelt key is no silence."""
    with pytest.raises(ConfigError, match=r"treshold_s: read an unknown key.*perhaps threshold_s"):
        read(treshold_s=1)


def test_configuration_cannot_change() -> None:
    """What was checked stays as it is."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().policy = "none"  # type: ignore[misc]
