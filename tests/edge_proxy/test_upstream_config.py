from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.edge_proxy.upstream_config import UpstreamKeys


def read(**keys: Any) -> UpstreamKeys:
    """Return checked keys."""
    return validate_config(UpstreamKeys, keys, "proxy.yaml", "upstream")


@pytest.mark.parametrize(
    ("keys", "addresses"),
    [
        ({"address": "10.0.0.7"}, ["10.0.0.7:1883"]),
        ({"address": "broker:1884"}, ["broker:1884"]),
        ({"address": "[::1]:1884"}, ["[::1]:1884"]),
        ({"address": "unix:/run/broker.sock"}, ["unix:/run/broker.sock"]),
        ({"address": "broker", "tls": {}}, ["broker:8883"]),
        ({"addresses": ["a", "b:2", "unix:/c"]}, ["a:1883", "b:2", "unix:/c"]),
    ],
)
def test_addresses(keys: dict[str, Any], addresses: list[str]) -> None:
    """Each kind, with the port of MQTT, or of MQTT over TLS, where none is given; in order."""
    assert [str(one) for one in read(**keys).read_addresses()] == addresses


ADDRESSES = "host:port, host, [IPv6 address]:port with a port of 1 to 65535, or unix:/path"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "upstream.address: read nothing; allowed: the address of a broker"),
        (
            {"address": "a", "addresses": ["b"]},
            "upstream.addresses: read both; allowed: one of address and addresses",
        ),
        ({"address": ":1883"}, f"upstream.address: read ':1883'; allowed: {ADDRESSES}"),
        ({"address": "a:0"}, f"upstream.address: read 'a:0'; allowed: {ADDRESSES}"),
        ({"addresses": ["a", "b:x"]}, f"upstream.addresses.1: read 'b:x'; allowed: {ADDRESSES}"),
        (
            {"addresses": ["a", "a:1883"]},
            "upstream.addresses: read a:1883 twice; allowed: each address once",
        ),
        (
            {"address": "unix:run"},
            "upstream.address: read 'unix:run'; allowed: unix:/path of at most 107 bytes",
        ),
        (
            {"address": "a", "tls": None},
            "upstream.tls: read null; allowed: its keys, {} for their defaults, or no such section",
        ),
        (
            {"address": "unix:/a", "tls": {}},
            "upstream.tls: read TLS for unix:/a; allowed: host:port in addresses beside it",
        ),
        (
            {"address": "a", "tls": {"minimum_version": 1.1}},
            "upstream.tls.minimum_version: read 1.1; allowed: 1.2 or 1.3",
        ),
        (
            {"address": "a", "tls": {"cafile": "/nowhere"}},
            "upstream.tls.cafile: read /nowhere; allowed: a path that exists",
        ),
        (
            {"address": "a", "tls": {"certfile": __file__}},
            "upstream.tls.keyfile: read nothing; allowed: both certfile and keyfile, or neither",
        ),
        (
            {"address": "a", "tls": {"verify": False, "cafile": __file__}},
            f"upstream.tls.cafile: read {__file__}; allowed: only with verify: true",
        ),
        (
            {"address": "a", "rto_max_seconds": 0.5},
            "upstream.rto_max_seconds: read 0.5; allowed: greater than or equal to 1",
        ),
        (
            {"address": "unix:/a", "rto_max_seconds": 5.0},
            "upstream.rto_max_seconds: read 5 for unix:/a; allowed: only with an address host:port",
        ),
        (
            {"address": "a", "tcp_user_timeout_seconds": 0.1},
            "upstream.tcp_user_timeout_seconds: read 0.1; allowed: greater than or equal to 1",
        ),
        (
            {"address": "a", "tls": {"server_name": ""}},
            "upstream.tls.server_name: read ''; allowed: a name, or null",
        ),
        (
            {"address": "a", "tls": {"alpn": ["mqtt", ""]}},
            "upstream.tls.alpn.1: read ''; allowed: names of protocols of 1 to 255 bytes",
        ),
    ],
)
def test_a_wrong_key(keys: dict[str, Any], problem: str) -> None:
    """The error names the place, what was read and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        read(**keys)
    assert [str(one) for one in caught.value.problems] == [problem]


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """A file that could keep its reader waiting is refused."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="a file that can be read"):
        read(address="a", tls={"cafile": str(fifo)})
