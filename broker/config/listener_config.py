"""The listeners of a policy file.

A listener takes each key that it does not set itself from the one named `default`. A key that
would do nothing where it stands is refused, as long as it was not inherited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.checked_yaml import FileReading, check_is_no_pipe, join, show
from penstock.broker.config.key_types import STRICT, Size
from penstock.broker.message import SizeClass

DEFAULT_PORT: Final = 1883
DEFAULT_WEBSOCKET_PORT: Final = 8883
"""The default port of a listener of type `ws`, as in aMQTT."""

TLS_VERSIONS: Final = (1.2, 1.3)

DEFAULT_UNSENT_BYTES: Final = 16 * 1024
"""A small message waits for all that the kernel holds unsent, whatever its class; 16 KiB take 6 ms
at 20 Mbit/s. The kernel may hold up to a segment of 64 KiB more for a client with a large TCP
window. On loopback this mark costs nothing."""

_UNIX: Final = "unix:"
_LONGEST_SOCKET_PATH: Final = 107
"""Linux's `sun_path` holds so many bytes beside the terminating one."""

_AMQTT_KEYS: Final = (
    "type",
    "bind",
    "max_connections",
    "ssl",
    "cafile",
    "capath",
    "cadata",
    "certfile",
    "keyfile",
    "reader",
    "writer",
)
_TLS_KEYS: Final = ("crlfile", "require_certificate", "tls_minimum_version", "ciphers")
_WEBSOCKET_KEYS: Final = ("path", "allowed_origins")
_TCP_KEYS: Final = ("unsent_bytes", "send_buffer_bytes", "congestion_control", "rto_max_seconds")

SOCKET_KEYS: Final = (*_TCP_KEYS, "socket_mode")
"""Keys that belong to the listening socket, which stays as it is while it listens."""

_LONGEST_CONGESTION_CONTROL: Final = 15
"""Linux's names have at most so many characters (`TCP_CA_NAME_MAX` less the terminating one)."""

_MAX_SOCKET_BYTES: Final = 2**30
"""A socket option can hold more, but no kernel gives as much."""


RtoMaxSeconds: TypeAlias = Annotated[float, Field(ge=1, le=120)]
"""The longest time between two retransmissions, in the range that Linux accepts."""

Wrong: TypeAlias = Callable[[str, str, str], None]
"""A function that notes a wrong place: its path, what was read, what is allowed."""


@dataclass(frozen=True, kw_only=True)
class ClientCertificates:
    """The keys of a listener that say which certificates of clients count, and the ciphers.

    Attributes:
        cafile: PEM file of the authorities for clients' certificates.
        capath: folder of such files, named by their hashes as `openssl rehash` does.
        cadata: the authorities' certificates as PEM text.
        crlfile: PEM file with a valid revocation list of each authority.
        require_certificate: refuse clients without a certificate. A shown one must always be valid.
        ciphers: OpenSSL's cipher list, for TLS 1.2.
    """

    cafile: str | None = None
    capath: str | None = None
    cadata: str | None = None
    crlfile: str | None = None
    require_certificate: bool = False
    ciphers: str | None = None


@dataclass(frozen=True)
class Tls(ClientCertificates):
    """The TLS settings of a listener.

    Attributes:
        certfile: PEM file of the certificate, then those between it and its root.
        keyfile: PEM file of the certificate's private key, without a passphrase.
        minimum_version: 1.2 or 1.3.
    """

    certfile: str
    keyfile: str
    minimum_version: float = 1.2

    def files(self) -> list[str]:
        """Return each file that is read, behind its key."""
        named = ("certfile", "keyfile", "cafile", "capath", "crlfile")
        return [f"{key} {getattr(self, key)}" for key in named if getattr(self, key)]


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The keys of a listener that are used as they are in the file.

    Attributes:
        when_full: above `max_connections`, ``wait``, as with aMQTT, or ``refuse``.
        path: the only path for WebSocket clients.
        allowed_origins: web sites whose pages may connect by WebSocket.
        proxy_protocol: each connection begins with a PROXY protocol header.
        unsent_bytes: unsent bytes of a connection in the kernel (TCP_NOTSENT_LOWAT), which no
            message overtakes.
        send_buffer_bytes: the same with those unacknowledged (SO_SNDBUF).
        congestion_control: the kernel's algorithm (TCP_CONGESTION).
        rto_max_seconds: the longest retransmission timeout (TCP_RTO_MAX_MS).
        sizes: messages, ``small`` or ``large``, for this listener's clients, after their SUBSCRIBE
            and `mqtt.sizes_by_client`; None for both.
    """

    when_full: Literal["wait", "refuse"] = "wait"
    path: str | None = None
    allowed_origins: tuple[str, ...] | None = None
    proxy_protocol: bool = False
    unsent_bytes: Annotated[Size, Field(ge=1, le=_MAX_SOCKET_BYTES)] | None = DEFAULT_UNSENT_BYTES
    send_buffer_bytes: Annotated[Size, Field(ge=4096, le=_MAX_SOCKET_BYTES)] | None = None
    congestion_control: (
        Annotated[str, Field(min_length=1, max_length=_LONGEST_CONGESTION_CONTROL)] | None
    ) = None
    rto_max_seconds: RtoMaxSeconds | None = None
    sizes: SizeClass | None = None


@dataclass(frozen=True)
class Listener(ConnectionOptions):
    """One address on which clients connect.

    Attributes:
        name: the listener's key under `listeners`.
        host: address or name to bind; None for all interfaces.
        is_loopback: a `host` of None stands for the addresses of loopback instead.
        port: TCP port; 0 lets the kernel choose.
        max_connections: connections at a time; 0 for no limit.
        socket_path: file name of a Unix socket, which takes the place of host and port, or None.
        socket_mode: permissions of that file.
        tls: None for none.
        unused_certfile: a certificate that is named and that no listener shows, or None.
        is_websocket: MQTT travels in WebSocket messages.
    """

    name: str
    host: str | None
    port: int
    max_connections: int = 0
    socket_path: str | None = None
    socket_mode: int = 0o660
    tls: Tls | None = None
    unused_certfile: str | None = None
    is_websocket: bool = False
    is_loopback: bool = False


@checked_dataclass(frozen=True, config=STRICT)
class ListenerKeys(ConnectionOptions, ClientCertificates):
    """The keys of one listener: those of aMQTT 0.12, `ListenerConfig`, and ours.

    Attributes:
        type: `tcp`, or `ws` for WebSocket.
        bind: ``host:port``, a port, or ``unix:/path``. Without authentication by a plugin, all
            interfaces become loopback, and another network address ends the start.
        max_connections: connections at a time; 0 for no limit.
        ssl: TLS, with `certfile` and `keyfile`.
        certfile: PEM file of the certificate and its intermediate ones. SIGHUP reads all TLS files
            again.
        keyfile: PEM file of its private key, without a passphrase.
        tls_minimum_version: 1.2 or 1.3.
        socket_mode: octal permissions of a Unix socket.
        reader: of aMQTT's type ``external``; refused.
        writer: of aMQTT's type ``external``; refused.
    """

    type: str = "tcp"
    bind: str | int | None = f"0.0.0.0:{DEFAULT_PORT}"
    max_connections: int = 0
    ssl: bool = False
    certfile: str | None = None
    keyfile: str | None = None
    tls_minimum_version: float = 1.2
    socket_mode: str | int = "660"
    reader: str | None = None
    writer: str | None = None


class ListenersRead(NamedTuple):
    """The section `listeners` of a file.

    Attributes:
        keys: name to keys, those of `default` included.
        listeners: the listeners with a `bind`, by name, in the order of the file.
    """

    keys: dict[str, ListenerKeys]
    listeners: dict[str, Listener]


def read_listeners(
    section: Mapping[str, Mapping[str, Any] | None], reading: FileReading
) -> ListenersRead:
    """Read the section `listeners` of a file."""
    own_keys = {
        name: reading.underscored(own or {}, join("listeners", name))
        for name, own in section.items()
    }
    default = own_keys.get("default", {})
    checked: dict[str, ListenerKeys | None] = {}
    for name, own in own_keys.items():
        inherited = default if "default" not in checked or checked["default"] else {}
        checked[name] = reading.checked(ListenerKeys, {**inherited, **own}, join("listeners", name))
    keys = {name: listener for name, listener in checked.items() if listener is not None}
    listeners = _listeners(keys, own_keys, reading.wrong)
    if not listeners and not reading.problems:
        reading.wrong("listeners", "none with a bind", "at least one listener with a bind")
    return ListenersRead(keys, listeners)


def _listeners(
    listeners: Mapping[str, ListenerKeys], own_keys: Mapping[str, Mapping[str, Any]], wrong: Wrong
) -> dict[str, Listener]:
    read: dict[str, Listener] = {}
    names: dict[tuple[str | None, int, str | None], str] = {}
    for name, keys in listeners.items():
        path = join("listeners", name)
        _check_type(keys, path, wrong)
        _check_own_keys(keys, own_keys.get(name, {}), path, wrong)
        if keys.bind is None:
            continue
        try:
            listener = _listener(name, keys, path, wrong)
        except ValueError as error:
            wrong(join(path, "bind"), show(keys.bind), str(error))
            continue
        place = (listener.host, listener.port, listener.socket_path)
        other = names.setdefault(place, name)
        if (listener.port or listener.socket_path) and other != name:
            wrong(
                join(path, "bind"),
                f"{keys.bind}, as listener {other} has",
                "another address or port for each listener",
            )
        read[name] = listener
    # Under `default` a certificate may stand for the others.
    shown = {listener.tls.certfile for listener in read.values() if listener.tls is not None}
    return {
        name: listener
        if listener.tls is not None or listeners[name].certfile in shown
        else replace(listener, unused_certfile=listeners[name].certfile)
        for name, listener in read.items()
    }


def _listener(name: str, keys: ListenerKeys, path: str, wrong: Wrong) -> Listener:
    """Return one listener.

    Raises:
        ValueError: its `bind` is wrong; with what is allowed.
    """
    bind = bind_text(keys.bind)
    socket_path = _socket_path(bind)
    is_websocket = keys.type == "ws"
    if socket_path is None:
        host, port = split_bind(bind, DEFAULT_WEBSOCKET_PORT if is_websocket else DEFAULT_PORT)
    else:
        host, port = None, 0
    return Listener(
        name=name,
        host=host,
        port=port,
        max_connections=max(0, keys.max_connections),
        socket_path=socket_path,
        socket_mode=_socket_mode(keys, path, wrong),
        tls=_tls(keys, path, wrong) if keys.ssl else None,
        is_websocket=is_websocket,
        **_part(keys, ConnectionOptions),
    )


def _part(
    keys: ConnectionOptions, cls: type[ConnectionOptions | ClientCertificates]
) -> dict[str, Any]:
    """Return the keys that one of its base classes has."""
    return {field.name: getattr(keys, field.name) for field in fields(cls)}


def _socket_path(bind: str) -> str | None:
    """Return the file name of a Unix socket, or None where `bind` is an address.

    Raises:
        ValueError: with what is allowed.
    """
    if not bind.startswith(_UNIX):
        return None
    path = bind.removeprefix(_UNIX)
    if not path.startswith("/") or len(path.encode()) > _LONGEST_SOCKET_PATH:
        raise ValueError(f"unix:/path of at most {_LONGEST_SOCKET_PATH} bytes")
    return path


def _socket_mode(keys: ListenerKeys, path: str, wrong: Wrong) -> int:
    # A number without quotes has another value: YAML takes 0660 for 432, and 660 for decimal.
    read = keys.socket_mode
    if isinstance(read, str) and re.fullmatch(r"0?[0-7]{3}", read):
        return int(read, 8)
    wrong(join(path, "socket_mode"), show(read), "three octal digits in quotes, such as '660'")
    return 0


def _check_type(keys: ListenerKeys, path: str, wrong: Wrong) -> None:
    if keys.type not in ("tcp", "ws", "external"):
        wrong(join(path, "type"), show(keys.type), "tcp or ws; with TLS, either has ssl: true")
    if keys.type == "external":
        wrong(
            join(path, "type"),
            "external",
            "tcp or ws; a program that hands its own connections to aMQTT cannot to Penstock",
        )
    for key in ("reader", "writer"):
        if getattr(keys, key) is not None:
            wrong(
                join(path, key),
                show(getattr(keys, key)),
                "null: only listeners of type external have it",
            )


def _check_own_keys(keys: ListenerKeys, own: Mapping[str, Any], path: str, wrong: Wrong) -> None:
    """Refuse what stands under a listener itself and would do nothing there."""
    defaults = ListenerKeys()
    is_unix = bind_text(keys.bind or "").startswith(_UNIX)
    for needed, is_there, names in (
        ("ssl: true", keys.ssl, _TLS_KEYS),
        ("type: ws", keys.type == "ws", _WEBSOCKET_KEYS),
        ("max_connections", keys.max_connections > 0, ("when_full",)),
        ("bind: unix:/path", is_unix, ("socket_mode",)),
        ("an address of TCP", not is_unix, _TCP_KEYS),
    ):
        for key in names:
            if not is_there and key in own and getattr(keys, key) != getattr(defaults, key):
                wrong(join(path, key), show(getattr(keys, key)), f"only beside {needed}")
    if keys.path is not None and not keys.path.startswith("/"):
        wrong(join(path, "path"), show(keys.path), "a path that begins with /, or null for any")
    if (keys.certfile is None) != (keys.keyfile is None):
        missing = "keyfile" if keys.keyfile is None else "certfile"
        wrong(join(path, missing), "nothing", "both certfile and keyfile, or neither")
    for key in ("cafile", "capath", "certfile", "keyfile", "crlfile"):
        read = getattr(keys, key)
        if read is None:
            continue
        try:
            check_is_no_pipe(read)
        except FileNotFoundError:
            wrong(join(path, key), read, "a path that exists")
        except OSError as error:
            wrong(join(path, key), f"{read}: {error.strerror or error}", "a file that can be read")


def _tls(keys: ListenerKeys, path: str, wrong: Wrong) -> Tls:
    if keys.certfile is None and keys.keyfile is None:
        wrong(join(path, "certfile"), "nothing", "a certificate, with its keyfile, for ssl: true")
    if not (keys.cafile or keys.capath or keys.cadata):
        allowed = "only with cafile, capath or cadata, whose certificates count"
        if keys.require_certificate:
            wrong(join(path, "require_certificate"), "true", allowed)
        if keys.crlfile is not None:
            wrong(join(path, "crlfile"), show(keys.crlfile), allowed)
    if keys.tls_minimum_version not in TLS_VERSIONS:
        wrong(
            join(path, "tls_minimum_version"),
            show(keys.tls_minimum_version),
            " or ".join(str(version) for version in TLS_VERSIONS),
        )
    return Tls(
        certfile=keys.certfile or "",
        keyfile=keys.keyfile or "",
        minimum_version=keys.tls_minimum_version,
        **_part(keys, ClientCertificates),
    )


def amqtt_keys(keys: ListenerKeys) -> dict[str, Any]:
    """Return what aMQTT reads of a listener."""
    own = asdict(keys)
    read = {key: own[key] for key in _AMQTT_KEYS}
    read["bind"] = None if keys.bind is None else bind_text(keys.bind)
    return read


def listener_keys(listener: Listener) -> dict[str, Any]:
    """Return the keys of the policy file that make a listener; None for those of no effect."""
    keys: dict[str, Any] = _part(listener, ConnectionOptions)
    address = listener.host or ("localhost" if listener.is_loopback else "")
    keys["bind"] = (
        show_address(address, listener.port)
        if listener.socket_path is None
        else f"{_UNIX}{listener.socket_path}"
    )
    keys["socket_mode"] = None if listener.socket_path is None else f"{listener.socket_mode:o}"
    keys["type"] = "ws" if listener.is_websocket else "tcp"
    keys["max_connections"] = listener.max_connections
    keys["ssl"] = listener.tls is not None
    if listener.tls is not None:
        keys |= asdict(listener.tls)
        keys["tls_minimum_version"] = keys.pop("minimum_version")
    return keys


def split_bind(bind: str, default_port: int = DEFAULT_PORT) -> tuple[str | None, int]:
    """Return host and port of a listener's `bind`, in the forms that aMQTT reads.

    These are an address or name with a port, ``[::1]:1883`` for IPv6, and either part alone;
    no host means all interfaces.

    Raises:
        ValueError: with what is allowed.
    """
    allowed = (
        "host:port, :port, port, host or [IPv6 address]:port, with a port of 0 to 65535, "
        "or unix:/path"
    )
    if bind.startswith("["):
        address, bracket, rest = bind[1:].partition("]")
        if not bracket or not address or (rest and not rest.startswith(":")):
            raise ValueError(allowed)
        host, port = address, rest.removeprefix(":")
    elif ":" in bind:
        host, _, port = bind.rpartition(":")
    elif bind.isdecimal():
        host, port = "", bind
    else:
        host, port = bind, ""
    if port and not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ValueError(allowed)
    return host or None, int(port) if port else default_port


def show_address(host: str, port: int) -> str:
    """Return host and port as a `bind` or a URL has them, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_text(bind: str | int | None) -> str:
    """Return a `bind` as text; a number is a port."""
    return f":{bind}" if isinstance(bind, int) else bind or ""
