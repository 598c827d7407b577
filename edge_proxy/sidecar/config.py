"""The proxy's file: one listener, one broker, limits and plugins; checked completely at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.checked_yaml import parse_mapping, read_mapping, validate_config
from penstock.broker.config.key_types import STRICT, Positive, PositiveSize, Seconds, Size
from penstock.broker.config.listener_config import split_bind
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH

_MAX_PACKET_SIZE: Final = 5 + MAX_REMAINING_LENGTH
_ALL_INTERFACES: Final = frozenset({None, "0.0.0.0", "::"})  # noqa: S104 (recognised, not bound)
_THIS_MACHINE: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class ListenerKeys:
    """Where clients connect; the keys under `listener`.

    Attributes:
        bind: host:port, as in the broker's policy file. Port 1883 of all interfaces by default, so
            that clients need no change when the proxy is put before their broker.
    """

    bind: str | int = "0.0.0.0:1883"

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, bind: str | int) -> str | int:
        _split(bind)
        return bind


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class UpstreamKeys:
    """The broker behind the proxy; the keys under `upstream`.

    Attributes:
        address: host:port, or host alone for port 1883.
        connect_timeout_seconds: time to establish the connection; the client is refused afterwards.
            A broker beside the proxy answers in a millisecond, one in the cloud in less than a
            second.
        connack_timeout_seconds: time from a client's CONNECT to the broker's CONNACK; the client is
            refused afterwards. A broker that asks a directory for the password, or delays its
            answer to a wrong one, takes seconds; most clients give up within half a minute.
    """

    address: str
    connect_timeout_seconds: Seconds = 5.0
    connack_timeout_seconds: Seconds = 30.0

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        host, port = _split(address)
        if host is None or not port:
            raise ValueError("host:port or host, with a port of 1 to 65535")
        return address


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class ProxyLimits:
    """What clients may take of the proxy; the keys under `limits`.

    Attributes:
        connections: clients at a time. None: half of the files that the process may have open, less
            some for everything else, as each client takes two: its own connection and the one to
            the broker.
        maximum_packet_size: bytes of the largest packet that passes, either way. The format's own
            limit by default, so that the proxy accepts whatever the broker accepts.
        connect_bytes: of the largest CONNECT, which is collected whole, from a client that is not
            authenticated yet. The same as Penstock's default, and more than mosquitto's.
        properties: User Properties of one packet that the proxy reads: a client is refused for more
            in its CONNECT; a PUBLISH with more is not delivered but refused to the broker. The same
            as Penstock's default.
        properties_bytes: limit of the bytes of a PUBLISH's properties.
        queued_messages: messages that may wait for one client. At the limit the proxy stops reading
            from the broker; only while something is withheld does it read on and drop QoS 0
            messages. A second of the fastest stream to one client.
        queued_bytes: the same in payload bytes. Sixteen pictures of 1 MB, nearly what
            mosquitto's inflight limit of 20 lets a QoS 1 subscriber have.
        connect_timeout_seconds: time from the network connection to a whole CONNECT. Ten seconds
            are enough on any link that can carry MQTT.
        write_high_bytes: unsent bytes of a client's connection above which nothing leaves its
            outbox. Small by default, as a small message has to wait for these bytes.
        write_low_bytes: unsent bytes below which messages leave again.
    """

    connections: Positive | None = None
    maximum_packet_size: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = _MAX_PACKET_SIZE
    connect_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 128 * 1024
    properties: Positive = 256
    properties_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 128 * 1024
    queued_messages: Positive = 10_000
    queued_bytes: PositiveSize = 16 * 1024 * 1024
    connect_timeout_seconds: Seconds = 10.0
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
        upstream: the broker.
        listener: where clients connect.
        limits: for clients.
        plugins: short name of a plugin to its keys.
    """

    upstream: UpstreamKeys
    listener: ListenerKeys = field(default_factory=ListenerKeys)
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    plugins: dict[str, dict[str, Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """A whole proxy file.

    Attributes:
        file: its name as the user gave it.
        listen_host: address or name to bind; None for all interfaces.
        listen_port: TCP port; 0 lets the kernel choose.
        broker_host: of the broker behind the proxy.
        broker_port: its TCP port.
        broker_timeout_seconds: time to establish a connection to it.
        connack_timeout_seconds: time from a CONNECT to its CONNACK.
        limits: what clients may take.
        plugins: short name of a plugin to its keys, in the order of the file.
    """

    file: str
    listen_host: str | None
    listen_port: int
    broker_host: str
    broker_port: int
    broker_timeout_seconds: float
    connack_timeout_seconds: float
    limits: ProxyLimits
    plugins: Mapping[str, Mapping[str, Any]]


def load_proxy_config(path: str | Path) -> ProxyConfig:
    """Read and check a proxy file.

    Raises:
        ConfigError: with every wrong place that was found.
    """
    return parse_proxy_config(read_mapping(path), str(path))


def parse_proxy_config(document: str | Mapping[str, Any], file: str) -> ProxyConfig:
    """Check a proxy file given as YAML text or as a mapping.

    Raises:
        ConfigError: as `load_proxy_config`.
    """
    mapping = parse_mapping(document, file) if isinstance(document, str) else document
    keys = validate_config(ProxyKeys, mapping, file, "")
    listen_host, listen_port = _split(keys.listener.bind)
    broker_host, broker_port = _split(keys.upstream.address)
    assert broker_host is not None  # noqa: S101 (checked by UpstreamKeys)
    is_same_host = broker_host == listen_host or (
        listen_host in _ALL_INTERFACES and broker_host in _THIS_MACHINE
    )
    if is_same_host and broker_port == listen_port:
        problem = ConfigProblem(
            "upstream.address",
            f"{keys.upstream.address}, where the proxy itself listens",
            "the address of a broker",
        )
        raise ConfigError(file, [problem])
    return ProxyConfig(
        file=file,
        listen_host=listen_host,
        listen_port=listen_port,
        broker_host=broker_host,
        broker_port=broker_port,
        broker_timeout_seconds=keys.upstream.connect_timeout_seconds,
        connack_timeout_seconds=keys.upstream.connack_timeout_seconds,
        limits=keys.limits,
        plugins={name: own or {} for name, own in keys.plugins.items()},
    )


def _split(bind: str | int) -> tuple[str | None, int]:
    return split_bind(f":{bind}" if isinstance(bind, int) else bind)
