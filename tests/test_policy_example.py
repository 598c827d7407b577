from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.limits import Limits
from penstock.broker.config.listener_config import ListenerKeys
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.config.policy import Persistence, load_policy
from penstock.broker.config.policy import _PolicyKeys as PolicyKeys
from penstock.edge_proxy.parts.config import PartsConfig
from penstock.plugins.access.config import AccessConfig
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.memory.config import MemoryConfig
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.queue.config import (
    GroupConfig,
    LogicalQueueConfig,
    PublishingConfig,
    QueueConfig,
    QueueHttpLimits,
    RedisConfig,
)
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.withholding.config import WithholdingConfig
from tests.helpers.examples import default_of, in_bytes, section, shown

EXAMPLE = Path(__file__).resolve().parents[1] / "policy.example.yaml"

SECTIONS: dict[tuple[str, ...], type[Any]] = {
    (): PolicyKeys,
    ("listeners", "default"): ListenerKeys,
    ("limits",): Limits,
    ("plugins", "access"): AccessConfig,
    ("mqtt",): MqttOptions,
    ("persistence",): Persistence,
    ("plugins", "memory"): MemoryConfig,
    ("plugins", "probing"): ProbingConfig,
    ("plugins", "withholding"): WithholdingConfig,
    ("plugins", "console"): ConsoleConfig,
    ("plugins", "parts"): PartsConfig,
    ("plugins", "queue"): QueueConfig,
    ("plugins", "console", "http_limits"): HttpLimits,
    ("plugins", "queue", "http_limits"): QueueHttpLimits,
    ("plugins", "queue", "redis"): RedisConfig,
    ("plugins", "queue", "publishing"): PublishingConfig,
    ("plugins", "queue", "queues", "pictures"): LogicalQueueConfig,
    ("plugins", "queue", "queues", "pictures", "groups", "viewers"): GroupConfig,
}
"""Where the keys of each configuration stand in the file."""


def places() -> list[Any]:
    """Return (section, field) for every key of every configuration."""
    return [
        pytest.param(keys, field, id=".".join((*keys, field.name)))
        for keys, config in SECTIONS.items()
        for field in fields(config)
    ]


def test_the_example_loads() -> None:
    """The file is one that the broker takes, with the plugins it is an example of."""
    policy = load_policy(EXAMPLE)
    assert list(policy.plugins) == ["probing", "withholding", "queue"]
    assert policy.amqtt is not None
    assert list(policy.amqtt["plugins"]) == ["amqtt.plugins.authentication.AnonymousAuthPlugin"]
    for name, config in {
        "probing": ProbingConfig,
        "withholding": WithholdingConfig,
        "queue": QueueConfig,
    }.items():
        validate_config(config, policy.plugins[name], EXAMPLE.name, f"plugins.{name}")


@pytest.mark.parametrize(("keys", "field"), places())
def test_every_key_is_shown_and_shown_defaults_are_the_defaults(
    keys: tuple[str, ...], field: Field[Any]
) -> None:
    """No key is left out, and a key behind a comment sign has its true default."""
    is_set, with_defaults = shown(EXAMPLE)
    assert field.name in section(with_defaults, keys)
    if field.name in section(is_set, keys):
        return
    assert in_bytes(section(with_defaults, keys)[field.name]) == in_bytes(default_of(field))


def test_nothing_else_is_shown() -> None:
    """A key behind a comment sign is one that exists: the file loads with all of them set."""
    _, with_defaults = shown(EXAMPLE)
    for keys, config in SECTIONS.items():
        validate_config(config, section(with_defaults, keys), EXAMPLE.name, ".".join(keys))
