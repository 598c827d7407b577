from __future__ import annotations

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.edge_proxy.sidecar.config import (
    ListenerKeys,
    ProxyKeys,
    ProxyLimits,
    UpstreamKeys,
    load_proxy_config,
    parse_proxy_config,
)
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.withholding.config import WithholdingConfig
from tests.helpers.examples import default_of, in_bytes, section, shown

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "proxy.example.yaml"
DOCUMENTATION = ROOT / "docs" / "edge-proxy.md"

SECTIONS: dict[tuple[str, ...], type[Any]] = {
    (): ProxyKeys,
    ("listener",): ListenerKeys,
    ("upstream",): UpstreamKeys,
    ("limits",): ProxyLimits,
    ("plugins", "probing"): ProbingConfig,
    ("plugins", "withholding"): WithholdingConfig,
    ("plugins", "console"): ConsoleConfig,
    ("plugins", "console", "http_limits"): HttpLimits,
}
"""Where the keys of each configuration stand in the example."""

UPSTREAM = "upstream: {address: broker:1884}\n"


def test_the_address_of_the_broker_is_enough() -> None:
    """All else has defaults: the MQTT port of all interfaces, no plugins."""
    config = parse_proxy_config("upstream: {address: broker.example}", "proxy.yaml")
    assert (config.listen_host, config.listen_port) == ("0.0.0.0", 1883)
    assert (config.broker_host, config.broker_port) == ("broker.example", 1883)
    assert config.broker_timeout_seconds == 5.0
    assert (config.limits, config.plugins) == (ProxyLimits(), {})


def test_every_key_is_taken() -> None:
    """What stands in the file is what the proxy works with."""
    config = parse_proxy_config(
        "listener: {bind: '[::1]:2000'}\n"
        "upstream: {address: '10.0.0.1:2001', connect_timeout_seconds: 1,\n"
        "  connack_timeout_seconds: 8}\n"
        "limits: {connections: 7, queued_messages: 3, queued_bytes: 4, maximum_packet_size: 256,\n"
        "  connect_bytes: 300, properties: 9, properties_bytes: 301,\n"
        "  connect_timeout_seconds: 2, write_high_bytes: 6, write_low_bytes: 5}\n"
        "plugins: {probing: , withholding: {policy: none}}",
        "proxy.yaml",
    )
    assert (config.listen_host, config.listen_port) == ("::1", 2000)
    assert (config.broker_host, config.broker_port) == ("10.0.0.1", 2001)
    assert config.broker_timeout_seconds == 1.0
    assert config.connack_timeout_seconds == 8.0
    assert config.limits == ProxyLimits(7, 256, 300, 9, 301, 3, 4, 2.0, 6, 5)
    assert config.plugins == {"probing": {}, "withholding": {"policy": "none"}}
    assert parse_proxy_config(UPSTREAM + "listener: {bind: 5}", "f").listen_port == 5


@pytest.mark.parametrize(
    ("text", "place", "read", "allowed"),
    [
        ("", "upstream", "nothing", "no default"),
        ("upstream: {}", "upstream.address", "nothing", "no default"),
        ("upstream: {address: ':1883'}", "upstream.address", "':1883'", "host:port or host"),
        ("upstream: {address: 'b:0'}", "upstream.address", "'b:0'", "1 to 65535"),
        ("upstream: {address: 'b:x'}", "upstream.address", "'b:x'", "0 to 65535"),
        ("upstream: {address: 1883}", "upstream.address", "1883", "string"),
        (
            "upstream: {address: b, adress: b}",
            "upstream.adress",
            "an unknown key",
            "perhaps address",
        ),
        (
            "upstream: {address: b, connect_timeout_seconds: 0}",
            "upstream.connect_timeout_seconds",
            "0",
            "greater than 0",
        ),
        (UPSTREAM + "listener: {bind: 'a:b:c'}", "listener.bind", "'a:b:c'", "host:port"),
        (UPSTREAM + "limits: {queued_bytes: 0}", "limits.queued_bytes", "0", "greater than"),
        (UPSTREAM + "limits: {write_low_bytes: 40000}", "limits", "{", "less than write_high"),
        (UPSTREAM + "plugins: [probing]", "plugins", "['probing']", "mapping"),
        (UPSTREAM + "plugin: {}", "plugin", "an unknown key", "perhaps plugins"),
        (
            "upstream: {address: 'localhost:1883'}",
            "upstream.address",
            "localhost:1883, where the proxy itself listens",
            "a broker",
        ),
        (
            "upstream: {address: 'h:7'}\nlistener: {bind: 'h:7'}",
            "upstream.address",
            "h:7, where",
            "a broker",
        ),
    ],
)
def test_a_wrong_file_names_place_read_and_allowed(
    text: str, place: str, read: str, allowed: str
) -> None:
    """A user finds the place and what belongs there."""
    with pytest.raises(ConfigError) as caught:
        parse_proxy_config(text, "proxy.yaml")
    assert caught.value.file == "proxy.yaml"
    (problem,) = caught.value.problems
    assert problem.path == place
    assert read in problem.read
    assert allowed in problem.allowed


def test_the_example_loads() -> None:
    """The file is one that the proxy takes, with the plugins it is an example of."""
    config = load_proxy_config(EXAMPLE)
    assert list(config.plugins) == ["probing", "withholding"]
    assert config.plugins["probing"]["probe_period"] == 1.0


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        pytest.param(keys, field, id=".".join((*keys, field.name)))
        for keys, config in SECTIONS.items()
        for field in fields(config)
    ],
)
def test_every_key_is_shown_and_shown_defaults_are_the_defaults(
    keys: tuple[str, ...], field: Field[Any]
) -> None:
    """No key is left out, and a key behind a comment sign has its true default."""
    is_set, with_defaults = shown(EXAMPLE)
    assert field.name in section(with_defaults, keys)
    if field.name not in section(is_set, keys):
        shown_default = section(with_defaults, keys)[field.name]
        assert in_bytes(shown_default) == in_bytes(default_of(field))


def test_nothing_else_is_shown() -> None:
    """A key behind a comment sign is one that exists."""
    _, with_defaults = shown(EXAMPLE)
    for keys, config in SECTIONS.items():
        validate_config(config, section(with_defaults, keys), EXAMPLE.name, ".".join(keys))


def test_the_file_in_the_documentation_loads() -> None:
    """What a reader copies works, and does what the text around it says."""
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    config = parse_proxy_config(text, "proxy.yaml")
    assert (config.listen_port, config.broker_port) == (1883, 1884)
    validate_config(ProbingConfig, config.plugins["probing"], "proxy.yaml", "")
    validate_config(WithholdingConfig, config.plugins["withholding"], "proxy.yaml", "")
