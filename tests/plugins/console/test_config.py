from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.plugins.console.config import ConsoleConfig


def test_without_keys_it_is_for_this_machine_alone() -> None:
    """The API asks for no password, so others must be let in on purpose."""
    assert validate_config(ConsoleConfig, {}, "policy.yaml", "plugins.console").http == (
        "127.0.0.1:8081"
    )


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"http": "8081"}, "plugins.console.http: read '8081'; allowed: HOST:PORT, with a port"),
        ({"http": "here:99999"}, "plugins.console.http: read 'here:99999'"),
        ({"http": None}, "plugins.console.http: read null"),
        ({"htp": "127.0.0.1:1"}, "plugins.console.htp: read an unknown key"),
    ],
)
def test_wrong_keys_and_values_are_told(keys: dict[str, Any], told: str) -> None:
    """A mistake names the key, what was read and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        validate_config(ConsoleConfig, keys, "policy.yaml", "plugins.console")
    assert told in str(raised.value)
