from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import parse_mapping, validate_config
from penstock.broker.config.limits import Limits
from penstock.broker.config.listener_config import ListenerKeys
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.config.policy import Persistence, load_policy
from penstock.broker.config.policy import _PolicyKeys as PolicyKeys
from penstock.plugins.access.config import AccessConfig
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.memory.config import MemoryConfig
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.queue.config import LogicalQueueConfig, QueueConfig, QueueHttpLimits
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.withholding.config import WithholdingConfig
from tests.helpers.sizes import in_bytes

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
    ("plugins", "queue"): QueueConfig,
    ("plugins", "console", "http_limits"): HttpLimits,
    ("plugins", "queue", "http_limits"): QueueHttpLimits,
    ("plugins", "queue", "queues", "pictures"): LogicalQueueConfig,
}
"""Where the keys of each configuration stand in the file."""


def section(mapping: Mapping[str, Any], keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Return what stands below some keys."""
    for key in keys:
        mapping = mapping.get(key) or {}
    return mapping


@cache
def shown() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the file as it is, and with its shown defaults set."""
    text = EXAMPLE.read_text()
    with_defaults = re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE)
    return parse_mapping(text, EXAMPLE.name), parse_mapping(with_defaults, EXAMPLE.name)


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


def test_withholding_and_probing_share_their_period() -> None:
    """The policies count on estimates that come as often as probing makes them."""
    plugins = load_policy(EXAMPLE).plugins
    assert plugins["withholding"]["probe_period"] == plugins["probing"]["probe_period"]


@pytest.mark.parametrize(("keys", "field"), places())
def test_every_key_is_shown_and_shown_defaults_are_the_defaults(
    keys: tuple[str, ...], field: Field[Any]
) -> None:
    """No key is left out, and a key behind a comment sign has its true default."""
    is_set, with_defaults = shown()
    assert field.name in section(with_defaults, keys)
    if field.name in section(is_set, keys):
        return
    default = field.default
    if default is MISSING:
        assert field.default_factory is not MISSING
        default = field.default_factory()
    default = pydantic_default(default)
    if is_dataclass(default):  # a section of its own
        assert not isinstance(default, type)
        default = asdict(default)
    assert in_bytes(section(with_defaults, keys)[field.name]) == in_bytes(default)


def pydantic_default(default: Any) -> Any:
    """Return a default behind what pydantic may have wrapped it in."""
    factory = getattr(default, "default_factory", None)
    return factory() if factory is not None else getattr(default, "default", default)


def test_nothing_else_is_shown() -> None:
    """A key behind a comment sign is one that exists: the file loads with all of them set."""
    _, with_defaults = shown()
    for keys, config in SECTIONS.items():
        validate_config(config, section(with_defaults, keys), EXAMPLE.name, ".".join(keys))
