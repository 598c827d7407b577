from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.listener_config import Listener
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError
from penstock.edge_proxy.sidecar.config import ProxyLimits, parse_proxy_config
from penstock.edge_proxy.upstream_config import UpstreamKeys
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.withholding.config import WithholdingConfig

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTATION = ROOT / "docs" / "how-to" / "edge-proxy.md"

UPSTREAM = "upstream: {address: broker:1884}\n"


def test_the_address_of_the_broker_is_enough() -> None:
    """All else has defaults: the MQTT port of all interfaces, no plugins."""
    config = parse_proxy_config("upstream: {address: broker.example}", "proxy.yaml")
    assert config.listeners == {"default": Listener(name="default", host="0.0.0.0", port=1883)}
    assert [str(one) for one in config.keys.upstream.read_addresses()] == ["broker.example:1883"]
    assert config.keys.upstream.connect_timeout_seconds == 5.0
    keys = config.keys
    assert (keys.identity, keys.drain_seconds, keys.server_reference) == ("none", 5.0, None)
    assert (config.keys.limits, config.plugins) == (ProxyLimits(), {})


def test_every_key_is_taken() -> None:
    """What stands in the file is what the proxy works with."""
    config = parse_proxy_config(
        "listener: {bind: '[::1]:2000'}\n"
        "upstream: {address: '10.0.0.1:2001', connect_timeout_seconds: 1,\n"
        "  connack_timeout_seconds: 8}\n"
        "identity: proxy_v2\n"
        "drain_seconds: 9\n"
        "server_reference: other.example\n"
        "limits: {connections: 7, connections_per_address: 8,\n"
        "  upstream_receive_maximum: 6, queued_messages: 3,\n"
        "  queued_bytes: 4, maximum_packet_size: 256,\n"
        "  connect_bytes: 300, properties: 9, properties_bytes: 301,\n"
        "  connect_timeout_seconds: 2, write_high_bytes: 6, write_low_bytes: 5}\n"
        "plugins: {probing: , withholding: {policy: none}}",
        "proxy.yaml",
    )
    assert config.listeners == {"default": Listener(name="default", host="::1", port=2000)}
    assert config.keys.upstream == UpstreamKeys(
        address="10.0.0.1:2001", connect_timeout_seconds=1.0, connack_timeout_seconds=8.0
    )
    assert config.keys.identity == "proxy_v2"
    assert (config.keys.drain_seconds, config.keys.server_reference) == (9.0, "other.example")
    assert config.keys.limits == ProxyLimits(
        connections=7,
        connections_per_address=8,
        maximum_packet_size=256,
        connect_bytes=300,
        properties=9,
        properties_bytes=301,
        upstream_receive_maximum=6,
        queued_messages=3,
        queued_bytes=4,
        connect_timeout_seconds=2.0,
        write_high_bytes=6,
        write_low_bytes=5,
    )
    assert config.plugins == {"probing": {}, "withholding": {"policy": "none"}}
    assert parse_proxy_config(UPSTREAM + "listener: {bind: 5}", "f").listeners["default"].port == 5


def test_listeners_are_the_brokers() -> None:
    """Listeners have the keys of a policy file, and inherit those of `default`."""
    listeners = """
      default: {bind: 127.0.0.1:2000, max-connections: 9, ssl: true, certfile: C, keyfile: C}
      web: {bind: 2001, type: ws, path: /mqtt}
      local: {bind: "unix:/run/mqtt.sock", ssl: false, socket_mode: "600"}
    """.replace("C", str(DOCUMENTATION))
    config = parse_proxy_config(f"{UPSTREAM}listeners: {listeners}", "proxy.yaml")
    assert config.listeners == parse_policy(f"listeners: {listeners}", "policy.yaml").listeners
    assert list(config.listeners) == ["default", "web", "local"]
    assert config.listeners["web"].max_connections == 9


def test_two_faults_of_one_listener_are_both_named() -> None:
    """In the words of the short form, where the file has that."""
    with pytest.raises(ConfigError) as caught:
        parse_proxy_config(UPSTREAM + "listener: {ssl: true, type: udp}", "proxy.yaml")
    assert [problem.path for problem in caught.value.problems] == [
        "listener.type",
        "listener.certfile",
    ]


@pytest.mark.parametrize(
    ("text", "place", "read", "allowed"),
    [
        ("", "upstream", "nothing", "no default"),
        ("upstream: {}", "upstream.address", "nothing", "the address of a broker"),
        ("upstream: {address: ':1883'}", "upstream.address", "':1883'", "host:port, host"),
        ("upstream: {address: 'b:0'}", "upstream.address", "'b:0'", "1 to 65535"),
        ("upstream: {address: 'b:x'}", "upstream.address", "'b:x'", "1 to 65535"),
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
        (
            UPSTREAM + "listener: {bind: 1}\nlisteners: {a: {bind: 2}}",
            "listener",
            "listeners beside it",
            "one of the two",
        ),
        (
            UPSTREAM + "listeners: {a: {bind: 1, sizes: small}}",
            "listeners.a.sizes",
            "'small'",
            "no such key: the size class",
        ),
        (UPSTREAM + "listeners: {a: {bnd: 1}}", "listeners.a.bnd", "an unknown", "perhaps bind"),
        (UPSTREAM + "listener: {bnd: 1}", "listener.bnd", "an unknown key", "perhaps bind"),
        (
            UPSTREAM + "listeners: {default: {bind: null}}",
            "listeners",
            "none with a bind",
            "at least one",
        ),
        (UPSTREAM + "identity: header", "identity", "'header'", "'none', 'proxy_v2' or"),
        (UPSTREAM + "drain_seconds: -1", "drain_seconds", "-1", "greater than or equal to 0"),
        (
            "upstream: {addresses: [a, 'unix:/b']}\nlistener: {bind: 'unix:/b'}",
            "upstream.addresses",
            "unix:/b, where the proxy itself listens",
            "a broker",
        ),
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


def test_the_files_in_the_documentation_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader copies works, and does what the text around it says."""
    monkeypatch.chdir(tmp_path)
    for name in ("server.crt", "server.key", "ca.crt", "proxy.crt", "proxy.key"):
        (tmp_path / name).touch()
    texts = re.findall(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    first, second, third = (parse_proxy_config(text, "proxy.yaml") for text in texts)
    assert first.listeners["default"].port == 1883
    assert [one.port for one in first.keys.upstream.read_addresses()] == [1884]
    validate_config(ProbingConfig, first.plugins["probing"], "proxy.yaml", "")
    validate_config(WithholdingConfig, first.plugins["withholding"], "proxy.yaml", "")
    assert list(second.listeners) == ["default", "tls", "web", "local"]
    assert [one.port for one in third.keys.upstream.read_addresses()] == [8883, 8883]
