from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from penstock.broker.config import limits, listener_config, mqtt_options, policy
from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.key_types import Rate, Size, read_size, show_size
from penstock.broker.errors import ConfigError
from penstock.edge_proxy.sidecar import config as proxy_config
from penstock.netem.links import link_file, profiles
from penstock.netem.runs import scenario
from penstock.plugins.access import config as access_config
from penstock.plugins.console import config as console_config
from penstock.plugins.memory import config as memory_config
from penstock.plugins.probing import config as probing_config
from penstock.plugins.queue import config as queue_config
from penstock.plugins.withholding import config as withholding_config

FILES: tuple[ModuleType, ...] = (
    limits,
    listener_config,
    mqtt_options,
    policy,
    proxy_config,
    link_file,
    profiles,
    scenario,
    access_config,
    console_config,
    memory_config,
    probing_config,
    queue_config,
    withholding_config,
)
"""Modules whose dataclasses are what configuration files may hold."""

SIZES_BY_NAME = {
    "disk_limit",
    "maximum_packet_size",
    "memory_limit",
    "publish_bytes_per_second",
    "rate",
    "threshold_s",
    "threshold_s_by_topic",
}
"""Keys that are numbers of bytes, or hold some, and do not end in `_bytes`."""


def config_classes() -> Iterator[type[Any]]:
    """Return each dataclass that a configuration file fills in."""
    for module in FILES:
        for found in vars(module).values():
            is_of_a_file = hasattr(found, "__pydantic_config__")
            if isinstance(found, type) and is_dataclass(found) and is_of_a_file:
                yield found


def keys_of_bytes() -> Iterator[tuple[str, Any]]:
    """Return name and type of each key that is a number of bytes."""
    for found in dict.fromkeys(config_classes()):
        hints = typing.get_type_hints(found, include_extras=True)
        for field in fields(found):
            if field.name.endswith("_bytes") or field.name in SIZES_BY_NAME:
                yield f"{found.__name__}.{field.name}", hints[field.name]


KEYS = dict(keys_of_bytes())


def keys_of_times() -> Iterator[tuple[type[Any], str]]:
    """Return each key of broker, plugins and proxy that is a number which need not be whole."""
    for found in dict.fromkeys(config_classes()):
        hints = typing.get_type_hints(found)
        for field in fields(found):
            is_float = float in {hints[field.name], *typing.get_args(hints[field.name])}
            if is_float and ".netem." not in found.__module__:
                yield found, field.name


def test_each_kind_of_file_has_keys_of_bytes() -> None:
    """The walk finds those of broker, plugins, proxy and networks."""
    assert {
        "Limits.queued_bytes",
        "ListenerKeys.unsent_bytes",
        "Persistence.max_pending_bytes",
        "WithholdingConfig.threshold_s",
        "QueueHttpLimits.body_bytes",
        "ProxyLimits.queued_bytes",
        "Stream.payload_bytes",
        "Direction.rate",
    } <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_of_bytes_takes_units(key: str) -> None:
    """A plain number and a text with a unit say the same."""
    reader = TypeAdapter(KEYS[key])
    validate = functools.partial(reader.validate_python, strict=True)
    if "by_topic" in key:
        assert validate({"a": "64 KiB"}) == validate({"a": 65_536}) == {"a": 65_536}
        return
    read = validate("32 KiB")
    assert read == validate(32_768) == 32_768
    assert type(read) in {int, float}


@pytest.mark.parametrize(
    ("written", "n_bytes"),
    [
        (0, 0),
        (32_000_000, 32_000_000),
        ("32 MB", 32_000_000),
        ("32mb", 32_000_000),
        ("1.5 GiB", 3 << 29),
        ("64 KiB", 65_536),
        ("7 B", 7),
        ("7", 7),
        (-1, None),
        ("-3 MB", None),
        ("32 megs", None),
        ("128,000,000", None),
        ("1.500.000", None),
        ("10 MB/s", None),
        ("10 MB 5", None),
        ("0.5 kB", 500),
        ("0 MB", 0),
        ("0.0 MB", 0),
        ("0.1", None),
        ("0.1 B", None),
        ("1.5", None),
        ("1.5 b", None),
        ("0.0001 KiB", None),
        ("8 bit", None),
        ("10 kbit", None),
        ("1 MIBIT", None),
        ("2026-01-01", None),
        (1.5, None),
        (True, None),
        (None, None),
    ],
)
def test_what_is_a_size(written: object, n_bytes: int | None) -> None:
    """Decimal and binary units, as the International System and IEC 80000-13 have them."""
    assert read_size(written) == n_bytes


@pytest.mark.parametrize("n_bytes", [0, 700, 65_536, 3 << 29, 5 << 40])
def test_a_size_in_the_log_can_be_written_into_the_file(n_bytes: int) -> None:
    """The units are those of configuration files."""
    assert read_size(show_size(n_bytes)) == n_bytes


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        (0.5, 0.5),
        (5, 5.0),
        ("5 MB", 5e6),
        ("x", None),
        ("5 MB/s", None),
        ("5 Mbit", None),
        (True, None),
    ],
)
def test_what_is_a_rate(written: object, rate: float | None) -> None:
    """Bytes per second: any number, or what passes in one second."""
    reader = TypeAdapter(Rate)
    if rate is None:
        with pytest.raises(ValidationError, match="such as 64 KiB or 10 MB"):
            reader.validate_python(written, strict=True)
    else:
        assert reader.validate_python(written, strict=True) == rate


def test_a_size_is_a_plain_int() -> None:
    """It is compared with on every message, and a subclass would be slower."""
    assert type(TypeAdapter(Size).validate_python("1 MB")) is int


@pytest.mark.parametrize(
    ("found", "key"),
    [pytest.param(*each, id=f"{each[0].__name__}.{each[1]}") for each in keys_of_times()],
)
def test_no_number_is_infinite(found: type[Any], key: str) -> None:
    """`.inf` would be waited for, and no timer can."""
    with pytest.raises(ConfigError) as caught:
        validate_config(found, {key: math.inf}, "policy.yaml", "")
    assert key in {problem.path for problem in caught.value.problems}
