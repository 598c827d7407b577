from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.listener_config import Listener
from penstock.broker.config.loopback_only import is_local, local_listeners
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError


def listener_with(**keys: Any) -> Listener:
    """Return a listener of a policy file."""
    return parse_policy({"listeners": {"lan": keys}}, "p").listeners["lan"]


def kept_local(**keys: Any) -> Listener:
    """Return a listener as it serves this machine alone."""
    return local_listeners({"lan": listener_with(**keys)}, "p")["lan"]


@pytest.mark.parametrize(
    ("bind", "host", "is_loopback"),
    [
        ("0.0.0.0:1883", "127.0.0.1", False),
        ("[::]:1883", "::1", False),
        (":1883", None, True),
        ("127.0.0.2:1883", "127.0.0.2", False),
        ("[::1]:1883", "::1", False),
        ("localhost:1883", "localhost", False),
    ],
)
def test_all_interfaces_become_loopback(bind: str, host: str | None, *, is_loopback: bool) -> None:
    """What is of this machine alone stays as it is; ports stay."""
    kept = kept_local(bind=bind)
    assert (kept.host, kept.port, kept.is_loopback) == (host, 1883, is_loopback)


def test_unix_socket_is_of_this_machine() -> None:
    """It stays as it is."""
    listener = listener_with(bind="unix:/run/mqtt")
    assert is_local(listener)
    assert kept_local(bind="unix:/run/mqtt") == listener


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"bind": "192.0.2.1:1884"}, "listeners.lan.bind: read 192.0.2.1:1884; allowed: an addr"),
        ({"bind": "[2001:db8::1]"}, "listeners.lan.bind: read [2001:db8::1]:1883; allowed: an ad"),
        ({"bind": "broker.example"}, "listeners.lan.bind: read broker.example:1883; allowed: an"),
        (
            {"bind": "127.0.0.1:1883", "proxy_protocol": True},
            "listeners.lan.proxy_protocol: read true; allowed: false, while clients are not",
        ),
    ],
)
def test_what_serves_others_is_refused(keys: dict[str, Any], told: str) -> None:
    """The error names the key and what to write."""
    with pytest.raises(ConfigError) as caught:
        kept_local(**keys)
    assert str(caught.value).startswith(f"p: {told}")
    assert "plugins: {access: {password_file: FILE}}" in str(caught.value)


def test_pages_of_web_sites_have_to_be_named() -> None:
    """A browser on this machine runs pages of any; clients that are no browsers name no origin."""
    assert kept_local(type="ws").allowed_origins == ()
    sites = ("https://good.example",)
    assert kept_local(type="ws", allowed_origins=list(sites)).allowed_origins == sites


def test_listener_that_demands_a_certificate_authenticates() -> None:
    """It stays as it is, whatever it binds."""
    tls = {"ssl": True, "certfile": __file__, "keyfile": __file__, "cafile": __file__}
    listener = listener_with(bind="192.0.2.1", require_certificate=True, **tls)
    assert local_listeners({"lan": listener}, "p") == {"lan": listener}
    assert kept_local(bind="0.0.0.0", **tls).host == "127.0.0.1"
