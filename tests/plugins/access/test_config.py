from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.plugins.access.config import AccessConfig, Rules


def read(**keys: Any) -> AccessConfig:
    """Return the configuration that these keys of a policy file make."""
    return validate_config(AccessConfig, keys, "policy.yaml", "plugins.access")


def test_by_default_nobody_connects() -> None:
    """A file that only names the plugin opens nothing."""
    assert read() == AccessConfig()
    assert not read().allow_anonymous
    assert read().all_rules() == [AccessConfig()]


def test_a_listeners_rules_stand_alone() -> None:
    """Nothing is taken from the keys above."""
    config = read(password_file="p", listeners={"inner": {"allow_anonymous": True}})
    assert config.listeners == {"inner": Rules(allow_anonymous=True)}
    assert [rules.password_file for rules in config.all_rules()] == ["p", None]


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"passwords": "p"}, "plugins.access.passwords"),
        ({"password_file": ""}, "plugins.access.password_file"),
        ({"certificate_username": "dn"}, "plugins.access.certificate_username"),
        ({"listeners": {"a": {"acl": "x"}}}, "plugins.access.listeners.a.acl"),
        ({"listeners": {"a": {"listeners": {}}}}, "plugins.access.listeners.a.listeners"),
    ],
)
def test_wrong_keys_and_values_are_named(keys: dict[str, Any], path: str) -> None:
    """By their place in the file."""
    with pytest.raises(ConfigError) as caught:
        read(**keys)
    assert [problem.path for problem in caught.value.problems] == [path]
