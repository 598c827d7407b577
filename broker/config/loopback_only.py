"""A broker that cannot authenticate clients serves only its own machine.

An address of all interfaces is replaced by loopback. Any other address that is not of this machine
is an error: clients elsewhere would see a refused connection, and only the log would say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from penstock.broker.config.listener_config import Listener, show_address
from penstock.broker.errors import ConfigError, ConfigProblem

WHAT_TO_WRITE: Final = (
    "to serve other machines, name users: plugins: {access: {password_file: FILE}}, with a FILE "
    "that penstock passwd FILE USER writes; or allow anonymous clients: plugins: {access: "
    "{allow_anonymous: true}}"
)

_LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (it is replaced)


def is_local(listener: Listener) -> bool:
    """Say whether a listener is reachable only from this machine."""
    if listener.socket_path is not None or listener.host == "localhost":
        return True
    try:
        return listener.host is not None and ip_address(listener.host).is_loopback
    except ValueError:  # a host name, which may have any address
        return False


def demands_certificate(listener: Listener) -> bool:
    """Say whether clients are authenticated by their certificates before they can connect."""
    return listener.tls is not None and listener.tls.require_certificate


def local_listeners(listeners: Mapping[str, Listener], file: str) -> dict[str, Listener]:
    """Return listeners changed to serve only this machine.

    A listener that demands a certificate authenticates its clients by it, and is not changed.

    Raises:
        ConfigError: with each listener that cannot be restricted to this machine.
    """
    local: dict[str, Listener] = {}
    problems: list[ConfigProblem] = []
    for name, listener in listeners.items():
        if demands_certificate(listener):
            local[name] = listener
            continue
        if listener.proxy_protocol:
            # A proxy that sends the header forwards clients of other machines.
            problems.append(_problem(name, "proxy_protocol", "true", "false"))
        kept = _kept_local(listener)
        if kept is None:
            read = show_address(listener.host or "", listener.port)
            problems.append(_problem(name, "bind", read, "an address such as 127.0.0.1:1883"))
        else:
            local[name] = kept
    if problems:
        raise ConfigError(file, problems)
    return local


def _kept_local(listener: Listener) -> Listener | None:
    # A browser on this machine runs pages of any web site; allowed origins have to be named.
    origins = listener.allowed_origins or ()
    kept = replace(listener, allowed_origins=origins) if listener.is_websocket else listener
    if is_local(listener):
        return kept
    if listener.host is None:
        return replace(kept, is_loopback=True)
    if listener.host in _LOOPBACK_OF:
        return replace(kept, host=_LOOPBACK_OF[listener.host])
    return None


def _problem(name: str, key: str, read: str, instead: str) -> ConfigProblem:
    allowed = f"{instead}, while clients are not authenticated; {WHAT_TO_WRITE}"
    return ConfigProblem(f"listeners.{name}.{key}", read, allowed)
