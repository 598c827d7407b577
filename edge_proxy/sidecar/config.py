"""Reads and checks the proxy's file: listeners, the broker, limits and plugins."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.changes import KeyPath, flatten
from penstock.broker.config.checked_yaml import FileReading, parse_mapping, read_mapping, show
from penstock.broker.config.key_types import STRICT, Positive, PositiveSize, Seconds, Size
from penstock.broker.config.listener_config import SOCKET_KEYS, Listener, read_listeners
from penstock.broker.config.log_options import LogOptions
from penstock.broker.errors import ConfigError
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH
from penstock.edge_proxy.upstream_config import UpstreamKeys

_MAX_PACKET_SIZE: Final = 5 + MAX_REMAINING_LENGTH
_ALL_INTERFACES: Final = frozenset({None, "0.0.0.0", "::"})  # noqa: S104 (recognised, not bound)
_THIS_MACHINE: Final = frozenset({"127.0.0.1", "::1", "localhost"})

_SHORT_FORM: Final = re.compile(r"^listeners(\.default)?(?=\.|$)")
"""Path in problems of the keys of `listener`, which are read as those of `listeners.default`."""

Identity: TypeAlias = Literal["none", "proxy_v2", "user_property"]
"""How the broker is told who a client is."""


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class ProxyLimits:
    """What clients may take of the proxy; the keys under `limits`.

    Attributes:
        connections: clients at a time, each with two open files. None: half of those that the
            process may have, less a reserve.
        connections_per_address: connections from one address, or IPv6 network, at a time.
        maximum_packet_size: bytes of the largest packet, either way.
        connect_bytes: bytes of the largest CONNECT.
        properties: User Properties of one packet. A CONNECT with more is refused, a PUBLISH refused
            to the broker.
        properties_bytes: bytes of the properties of a PUBLISH.
        upstream_receive_maximum: QoS 1 and 2 messages that the broker may send for one client
            unacknowledged, told as an MQTT 5 client's Receive Maximum. Withheld messages must leave
            room for small ones.
        queued_messages: QoS 0 messages that may wait for one client. Then the proxy stops reading
            from the broker, or drops them while something is withheld.
        queued_bytes: their payload bytes.
        connect_timeout_seconds: time from the network connection to a complete CONNECT.
        broker_silence_seconds: how long the proxy answers PINGREQ for a silent broker; then the
            client's connections end. None: it never does.
        write_high_bytes: unsent bytes of a client's connection above which no more messages are
            moved to it.
        write_low_bytes: unsent bytes below which messages are moved again.
    """

    connections: Positive | None = None
    connections_per_address: Positive | None = None
    maximum_packet_size: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = _MAX_PACKET_SIZE
    connect_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 128 * 1024
    properties: Positive = 256
    properties_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 128 * 1024
    upstream_receive_maximum: Annotated[int, Field(ge=1, le=65_535)] = 10_000
    queued_messages: Positive = 10_000
    queued_bytes: PositiveSize = 16 * 1024 * 1024
    connect_timeout_seconds: Seconds = 10.0
    broker_silence_seconds: Seconds | None = 120.0
    write_high_bytes: PositiveSize = 32 * 1024
    write_low_bytes: Annotated[Size, Field(ge=0)] = 8 * 1024

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.write_low_bytes >= self.write_high_bytes:
            raise ValueError("write_low_bytes less than write_high_bytes")


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class ProxyKeys:
    """The top level of the file.

    Attributes:
        upstream: the broker behind the proxy.
        listener: the keys of the only listener, in place of `listeners`.
        listeners: name of a listener to its keys, those of the broker's policy file but `sizes`.
            None: port 1883 of all interfaces.
        identity: how the broker is told who a client is: ``none``; ``proxy_v2``, a PROXY header; or
            ``user_property``, two user properties of an MQTT 5 CONNECT.
        drain_seconds: how long a stop waits for withheld messages to leave and be acknowledged.
        server_reference: another server, for MQTT 5 clients at a stop (MQTT 5.0, 4.11).
        limits: for clients.
        log: the program's log.
        plugins: short name of a plugin to its keys.
    """

    upstream: UpstreamKeys
    listener: dict[str, Any] | None = None
    listeners: dict[str, dict[str, Any] | None] | None = None
    identity: Identity = "none"
    drain_seconds: Annotated[float, Field(ge=0)] = 5.0
    server_reference: Annotated[str, Field(min_length=1)] | None = None
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    log: LogOptions = field(default_factory=LogOptions)
    plugins: dict[str, dict[str, Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """A whole proxy file.

    Attributes:
        file: its name as the user gave it.
        keys: its top level.
        listeners: listeners by name, in the order of the file; at least one.
        plugins: keys of each plugin by its short name, in the order of the file.
        sections: none: a proxy's file has no plugin at its top.
    """

    file: str
    keys: ProxyKeys
    listeners: Mapping[str, Listener]
    plugins: Mapping[str, Mapping[str, Any]]
    sections: Collection[str] = ()

    def values(self) -> dict[KeyPath, Any]:
        """Return the keys of the file, without those of its plugins."""
        flat = flatten(self.listeners, ("listeners",))
        flat |= {("listeners", name): True for name in self.listeners}
        for key in fields(self.keys):
            if key.name not in ("listener", "listeners", "plugins"):
                flat |= flatten(getattr(self.keys, key.name), (key.name,))
        return flat


LIVE: Final[Mapping[KeyPath, bool]] = {
    ("listeners",): True,
    **{("listeners", "*", key): False for key in SOCKET_KEYS},
    ("limits",): True,
    ("drain_seconds",): True,
    ("log",): True,
}
"""Which keys of the proxy's file change live; plugins say it of their own."""


def load_proxy_config(path: str | Path) -> ProxyConfig:
    """Read and check a proxy file.

    Raises:
        ConfigError: with every wrong place that was found.
    """
    return parse_proxy_config(read_mapping(path), str(path))


def parse_proxy_config(document: str | Mapping[str, Any], file: str) -> ProxyConfig:
    """Check a proxy file given as YAML text or as a mapping.

    Raises:
        ConfigError: with every wrong place that was found.
    """
    mapping = parse_mapping(document, file) if isinstance(document, str) else document
    reading = FileReading(file)
    keys = reading.checked(ProxyKeys, mapping, "")
    if keys is None:
        raise ConfigError(file, reading.problems)
    listeners = _listeners(keys, reading)
    if not reading.problems:
        _check_no_circle(keys.upstream, listeners.values(), reading)
    if reading.problems:
        raise ConfigError(file, reading.problems)
    plugins = {name: own or {} for name, own in keys.plugins.items()}
    return ProxyConfig(file, keys, listeners, plugins)


def _listeners(keys: ProxyKeys, reading: FileReading) -> dict[str, Listener]:
    """Return the listeners, and note their problems."""
    if keys.listener is not None and keys.listeners is not None:
        reading.wrong("listener", "listeners beside it", "one of the two")
        return {}
    section = keys.listeners or {"default": keys.listener}
    for name, own in section.items():
        if own is not None and own.get("sizes") is not None:
            reading.wrong(
                f"listeners.{name}.sizes",
                show(own["sizes"]),
                "no such key: the size class of a subscription is for the broker to know",
            )
    listeners = read_listeners(section, reading).listeners
    if keys.listener is not None:  # problems are to name the keys of the file
        reading.problems[:] = [
            replace(problem, path=_SHORT_FORM.sub("listener", problem.path))
            for problem in reading.problems
        ]
    return listeners


def _check_no_circle(
    upstream: UpstreamKeys, listeners: Iterable[Listener], reading: FileReading
) -> None:
    """Note each address of the upstream on which the proxy itself listens."""
    for listener in listeners:
        for address in upstream.read_addresses():
            if address.socket_path is not None or listener.socket_path is not None:
                is_same = address.socket_path == listener.socket_path
            else:
                is_same = address.port == listener.port and (
                    address.host == listener.host
                    or (listener.host in _ALL_INTERFACES and address.host in _THIS_MACHINE)
                )
            if is_same:
                reading.wrong(
                    "upstream.address" if upstream.address is not None else "upstream.addresses",
                    f"{address.name}, where the proxy itself listens",
                    "the address of a broker",
                )
