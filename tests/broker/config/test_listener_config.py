from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from amqtt.contexts import BrokerConfig

from penstock.broker.config.listener_config import Listener, Tls, split_bind
from penstock.broker.config.policy import Policy, parse_policy
from penstock.broker.errors import ConfigError

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "listeners.md"


def problems_of(text: str) -> dict[str, tuple[str, str]]:
    """Return path -> (read, allowed) of a policy that must be refused."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "policy.yaml")
    return {problem.path: (problem.read, problem.allowed) for problem in caught.value.problems}


def with_listeners(**listeners: Any) -> Policy:
    """Return a policy with some listeners."""
    return parse_policy({"listeners": listeners}, "policy.yaml")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Names of files that are there, which is all that is asked before the start."""
    found: dict[str, Any] = {}
    for key in ("certfile", "keyfile", "cafile"):
        file = tmp_path / f"{key}.pem"
        file.touch()
        found[key] = str(file)
    return found


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("", (None, 1883)),
        ("1884", (None, 1884)),
        (":1884", (None, 1884)),
        ("0.0.0.0:1884", ("0.0.0.0", 1884)),
        ("localhost", ("localhost", 1883)),
        ("localhost:", ("localhost", 1883)),
        ("[::1]:1884", ("::1", 1884)),
        ("[::]", ("::", 1883)),
    ],
)
def test_bind_has_the_forms_of_amqtt(bind: str, expected: tuple[str | None, int]) -> None:
    """Each form that aMQTT reads gives the same address and port; IPv6 without its brackets."""
    assert split_bind(bind) == expected


@pytest.mark.parametrize("bind", ["host:x", ":65536", "[::1", "[]:1", "[::1]1883", "a:-1"])
def test_bind_that_is_wrong_says_what_is_allowed(bind: str) -> None:
    """A wrong address is refused with the forms that are allowed."""
    read, allowed = problems_of(f"listeners: {{default: {{bind: '{bind}'}}}}")[
        "listeners.default.bind"
    ]
    assert bind in read
    assert "host:port" in allowed


@pytest.mark.parametrize(
    ("keys", "port"),
    [({"type": "ws", "bind": "127.0.0.1"}, 8883), ({"type": "tcp", "bind": "127.0.0.1"}, 1883)],
)
def test_port_that_is_not_named_is_that_of_amqtt(keys: dict[str, Any], port: int) -> None:
    """There is one for each type, as aMQTT has it."""
    assert with_listeners(default=keys).listeners["default"].port == port


def test_listeners_of_amqtt_with_tls_and_websocket_need_nothing(files: dict[str, Any]) -> None:
    """What aMQTT's documentation shows, with dashes and inherited keys, is read as it is meant."""
    policy = with_listeners(
        default={"max-connections": 500, "type": "tcp", "bind": "0.0.0.0:1883"},
        secure={"bind": "0.0.0.0:8883", "ssl": True, **files},
        web={"bind": "0.0.0.0:8080", "type": "ws"},
        secure_web={"bind": 8443, "type": "ws", "ssl": True, **files},
    )
    tls = Tls(**files)
    assert policy.listeners == {
        "default": Listener("default", "0.0.0.0", 1883, 500),
        "secure": Listener("secure", "0.0.0.0", 8883, 500, tls=tls),
        "web": Listener("web", "0.0.0.0", 8080, 500, is_websocket=True),
        "secure_web": Listener("secure_web", None, 8443, 500, tls=tls, is_websocket=True),
    }
    assert policy.amqtt is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        amqtt = BrokerConfig.from_dict(dict(policy.amqtt))
    assert str(amqtt.listeners["secure_web"].certfile) == files["certfile"]


def test_our_own_keys(files: dict[str, Any]) -> None:
    """Each key of ours reaches the listener, and none of them aMQTT."""
    policy = with_listeners(
        secure={
            "type": "ws",
            "bind": 8883,
            "ssl": True,
            **files,
            "require-certificate": True,
            "tls_minimum_version": 1.3,
            "ciphers": "HIGH",
            "path": "/mqtt",
            "allowed_origins": ["https://example.org"],
            "proxy_protocol": True,
            "max_connections": 5,
            "when_full": "refuse",
            "unsent_bytes": 65536,
            "send_buffer_bytes": 131072,
            "congestion_control": "bbr",
            "sizes": "small",
            "rto_max_seconds": 2,
        },
        local={"bind": "unix:/run/mqtt", "socket_mode": "600"},
    )
    assert policy.listeners["secure"] == Listener(
        "secure",
        None,
        8883,
        5,
        when_full="refuse",
        tls=Tls(**files, require_certificate=True, minimum_version=1.3, ciphers="HIGH"),
        is_websocket=True,
        path="/mqtt",
        allowed_origins=("https://example.org",),
        proxy_protocol=True,
        unsent_bytes=65536,
        send_buffer_bytes=131072,
        congestion_control="bbr",
        sizes="small",
        rto_max_seconds=2.0,
    )
    local = policy.listeners["local"]
    assert (local.socket_path, local.socket_mode) == ("/run/mqtt", 0o600)
    assert policy.amqtt is not None
    assert "path" not in policy.amqtt["listeners"]["secure"]


@pytest.mark.parametrize(
    ("keys", "key", "read"),
    [
        ({"unsent_bytes": 0}, "unsent_bytes", "0"),
        ({"unsent_bytes": 2**31}, "unsent_bytes", str(2**31)),
        ({"send_buffer_bytes": 100}, "send_buffer_bytes", "100"),
        ({"send_buffer_bytes": "1 kB"}, "send_buffer_bytes", "'1 kB'"),
        ({"bind": "unix:/run/mqtt", "unsent_bytes": 4096}, "unsent_bytes", "4096"),
        ({"sizes": "medium"}, "sizes", "'medium'"),
        ({"congestion_control": ""}, "congestion_control", "''"),
        ({"congestion_control": "sixteen-letters-"}, "congestion_control", "'sixteen-letters-'"),
        ({"congestion_control": 3}, "congestion_control", "3"),
        ({"bind": "unix:/x", "congestion_control": "bbr"}, "congestion_control", "'bbr'"),
        ({"rto_max_seconds": 0.9}, "rto_max_seconds", "0.9"),
        ({"rto_max_seconds": 121}, "rto_max_seconds", "121"),
        ({"rto_max_seconds": "2 s"}, "rto_max_seconds", "'2 s'"),
        ({"bind": "unix:/x", "rto_max_seconds": 2}, "rto_max_seconds", "2.0"),
    ],
)
def test_what_the_kernel_is_asked_for_is_checked(keys: dict[str, Any], key: str, read: str) -> None:
    """What a socket may take, and only of a socket that has it."""
    problems = problems_of(yaml.safe_dump({"listeners": {"default": keys}}))
    assert problems[f"listeners.default.{key}"][0] == read


def test_what_is_inherited_and_does_nothing_is_no_mistake(files: dict[str, Any]) -> None:
    """A key of `default` may be for some of the listeners alone."""
    keys = {"bind": None, "ssl": True, **files, "require_certificate": True, "path": "/mqtt"}
    policy = with_listeners(
        default=keys | {"type": "ws"}, plain={"bind": 1, "type": "tcp", "ssl": False}
    )
    assert policy.listeners["plain"].tls is None


@pytest.mark.parametrize(
    ("keys", "key", "read", "allowed"),
    [
        ("type: external", "type", "external", "tcp or ws"),
        ("type: wss", "type", "'wss'", "tcp or ws; with TLS, either has ssl: true"),
        ("type: mqtt", "type", "mqtt", "tcp"),
        ("reader: x", "reader", "x", "external"),
        ("ssl: on", "certfile", "nothing", "a certificate"),
        ("certfile: x", "keyfile", "nothing", "both"),
        ("cafile: /no/x", "cafile", "/no/x", "exists"),
        ("require_certificate: true", "require_certificate", "True", "only beside ssl: true"),
        ("ciphers: HIGH", "ciphers", "HIGH", "only beside ssl: true"),
        ("ssl: on, tls_minimum_version: 1.1", "tls_minimum_version", "1.1", "1.2 or 1.3"),
        ("ssl: on, require_certificate: on", "require_certificate", "true", "cafile"),
        (f"ssl: on, crlfile: {__file__}", "crlfile", __file__, "only with cafile"),
        (f"crlfile: {__file__}", "crlfile", __file__, "only beside ssl: true"),
        ("crlfile: /no/x", "crlfile", "/no/x", "exists"),
        ("path: /mqtt", "path", "/mqtt", "only beside type: ws"),
        ("type: ws, path: mqtt", "path", "mqtt", "begins with /"),
        ("allowed_origins: [x]", "allowed_origins", "x", "only beside type: ws"),
        ("socket_mode: '600'", "socket_mode", "600", "only beside bind: unix:/path"),
        ("bind: 'unix:/x', socket_mode: 600", "socket_mode", "600", "in quotes, such as '660'"),
        ("bind: 'unix:/x', socket_mode: '999'", "socket_mode", "999", "octal"),
        ("bind: 'unix:x'", "bind", "unix:x", "unix:/path"),
        (f"bind: 'unix:/{'x' * 107}'", "bind", "xx", "107 bytes"),
        ("when_full: refuse", "when_full", "refuse", "only beside max_connections"),
        ("max_connections: 1, when_full: go", "when_full", "go", "'wait' or 'refuse'"),
    ],
)
def test_wrong_key_of_a_listener(keys: str, key: str, read: str, allowed: str) -> None:
    """A wrong key or value names its path, what stands there and what may."""
    problems = problems_of(f"listeners: {{default: {{{keys}}}}}")
    path = f"listeners.default.{key}"
    assert path in problems, problems
    assert read in problems[path][0]
    assert allowed in problems[path][1]


@pytest.mark.parametrize("key", ["certfile", "keyfile", "cafile"])
def test_fifo_in_place_of_a_file_of_tls_is_refused(files: dict[str, Any], key: str) -> None:
    """To open it would wait for somebody who writes."""
    keys = files | {key: f"{files[key]}.fifo"}
    os.mkfifo(keys[key])
    written = ", ".join(f"{name}: {keys[name]}" for name in ("certfile", "keyfile", "cafile"))
    problems = problems_of(f"listeners: {{default: {{ssl: true, {written}}}}}")
    path = f"listeners.default.{key}"
    assert problems[path] == (f"{keys[key]}: Not a regular file", "a file that can be read")


def test_policy_of_the_documentation_is_one_that_loads(files: dict[str, Any]) -> None:
    """What is copied from docs/how-to/listeners.md starts a broker, where the files are there."""
    text, access = re.findall(
        r"^```yaml\n(.*?)^```$", DOCUMENTATION.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    for key in ("certfile", "keyfile"):
        text = re.sub(rf"{key}: \S+", f"{key}: {files[key]}", text)
    policy = parse_policy(text + access, "listeners.md")
    assert list(policy.plugins) == ["access"]
    assert list(policy.listeners) == ["default", "secure", "web", "local", "balanced"]


def test_the_same_socket_twice() -> None:
    """Two listeners cannot share the file of a Unix socket."""
    problems = problems_of("listeners: {a: {bind: 'unix:/x'}, b: {bind: 'unix:/x'}}")
    assert "listener a" in problems["listeners.b.bind"][0]
