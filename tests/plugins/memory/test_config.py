from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.plugins.memory.config import MemoryConfig


def checked(**keys: Any) -> MemoryConfig:
    """Return the configuration that a policy file with these keys gives."""
    return validate_config(MemoryConfig, keys, "policy.yaml", "plugins.memory")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"memory_limit": -1}, "plugins.memory.memory_limit: read -1"),
        ({"memory_limit": "32 megs"}, "plugins.memory.memory_limit: read '32 megs'"),
        ({"memory_limit": "MB"}, "a text with a unit of bytes, such as 64 KiB or 10 MB"),
        ({"memory_limit": 1.5}, "plugins.memory.memory_limit"),
        ({"memory_limit": None}, "plugins.memory.memory_limit"),
        ({"disk_limit": "-3 MB"}, "plugins.memory.disk_limit"),
        ({"directory": ""}, "plugins.memory.directory"),
        ({"store": "disk"}, "'reference', 'spill' or 'copy'"),
        ({"limit": 3}, "plugins.memory.limit"),
    ],
)
def test_wrong_values_are_named(keys: dict[str, Any], told: str) -> None:
    """A wrong key or value is told with its place and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        checked(**keys)
    assert told in str(caught.value)
