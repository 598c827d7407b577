"""The keys under `upstream`: addresses of a broker and how to connect to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.checked_yaml import check_is_no_pipe
from penstock.broker.config.key_types import STRICT, Seconds
from penstock.broker.config.listener_config import (
    DEFAULT_PORT,
    TLS_VERSIONS,
    RtoMaxSeconds,
    split_bind,
)

DEFAULT_TLS_PORT: Final = 8883

_DAY: Final = 86_400
_UNIX: Final = "unix:"
_LONGEST_PROTOCOL: Final = 255
"""Bytes of the longest protocol name of ALPN (RFC 7301)."""
_LONGEST_SOCKET_PATH: Final = 107
"""Bytes of the longest path in `sun_path` of Linux."""


@dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """One address of an upstream broker.

    Attributes:
        name: the text in the file.
        host: host name or IP address; "" for a Unix socket.
        port: TCP port; 0 for a Unix socket.
        socket_path: file name of a Unix socket, or None.
    """

    name: str
    host: str = ""
    port: int = 0
    socket_path: str | None = None

    def __str__(self) -> str:
        """Return it for the log, with its port."""
        if self.socket_path is not None:
            return f"{_UNIX}{self.socket_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str, default_port: int = DEFAULT_PORT) -> UpstreamAddress:
    """Return the address in a text: host:port, host, [IPv6 address]:port or unix:/path.

    Raises:
        ValueError: with what is allowed.
    """
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path.startswith("/") or len(path.encode()) > _LONGEST_SOCKET_PATH:
            raise ValueError(f"unix:/path of at most {_LONGEST_SOCKET_PATH} bytes")
        return UpstreamAddress(text, socket_path=path)
    allowed = "host:port, host, [IPv6 address]:port with a port of 1 to 65535, or unix:/path"
    try:
        host, port = split_bind(text, default_port)
    except ValueError:
        raise ValueError(allowed) from None
    if host is None or not port:
        raise ValueError(allowed)
    return UpstreamAddress(text, host, port)


def _check_address(text: str) -> str:
    read_address(text)
    return text


Address = Annotated[str, AfterValidator(_check_address)]
"""Address of a broker: host:port, host, or unix:/path."""


def _check_protocol(name: str) -> str:
    if not 0 < len(name.encode()) <= _LONGEST_PROTOCOL:
        raise ValueError(f"names of protocols of 1 to {_LONGEST_PROTOCOL} bytes")
    return name


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class UpstreamTlsKeys:
    """TLS toward an upstream broker; the keys under `tls`.

    Attributes:
        cafile: PEM file of the authorities of the broker's certificate. None, without `capath`:
            those that the system trusts.
        capath: folder of such, named by their hashes as `openssl rehash` does.
        certfile: PEM file of the certificate for the broker.
        keyfile: PEM file of its private key, without a passphrase.
        server_name: name in the broker's certificate, which SNI asks for; None for the host of the
            address.
        minimum_version: 1.2 or 1.3.
        alpn: protocol names for ALPN, the preferred one first.
        verify: False, for tests, accepts any certificate: anyone on the path can read and change
            everything.
    """

    cafile: str | None = None
    capath: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    server_name: str | None = None
    minimum_version: float = 1.2
    alpn: tuple[Annotated[str, AfterValidator(_check_protocol)], ...] = ()
    verify: bool = True

    @field_validator("alpn", mode="before")
    @classmethod
    def _read_alpn(cls, alpn: Any) -> Any:
        return tuple(alpn) if isinstance(alpn, list) else alpn

    def __post_init__(self) -> None:
        """Check the values against each other, and that the files can be read."""
        if self.minimum_version not in TLS_VERSIONS:
            allowed = " or ".join(str(version) for version in TLS_VERSIONS)
            raise ValueError(f"minimum_version: read {self.minimum_version:g}; allowed: {allowed}")
        if (self.certfile is None) != (self.keyfile is None):
            missing = "keyfile" if self.keyfile is None else "certfile"
            raise ValueError(
                f"{missing}: read nothing; allowed: both certfile and keyfile, or neither"
            )
        if self.server_name == "":
            raise ValueError("server_name: read ''; allowed: a name, or null")
        for key in ("cafile", "capath", "certfile", "keyfile"):
            file = getattr(self, key)
            if file is None:
                continue
            try:
                check_is_no_pipe(file)
            except FileNotFoundError:
                raise ValueError(f"{key}: read {file}; allowed: a path that exists") from None
            except OSError as error:
                raise ValueError(
                    f"{key}: read {file}: {error.strerror or error}; "
                    "allowed: a file that can be read"
                ) from None
        if not self.verify:
            for key in ("cafile", "capath"):
                if getattr(self, key) is not None:
                    raise ValueError(
                        f"{key}: read {getattr(self, key)}; allowed: only with verify: true"
                    )


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class UpstreamKeys:
    """A broker that is connected to; the keys under `upstream`.

    Attributes:
        address: host:port, host alone for port 1883 (8883 with `tls`), or unix:/path.
        addresses: several in place of `address`: new connections go to the first that is up.
        tls: TLS toward the broker.
        connect_timeout_seconds: time to connect to one address, TLS included.
        connack_timeout_seconds: time from CONNECT to CONNACK.
        health_check_seconds: seconds between two checks of each of several addresses. None: each
            new connection tries them from the first.
        rto_max_seconds: the longest retransmission timeout (TCP_RTO_MAX_MS).
        tcp_user_timeout_seconds: a connection is lost after so long without an acknowledgement of
            data under way, or in which the broker reads nothing (TCP_USER_TIMEOUT). None: after a
            quarter of an hour, or never while the broker's machine answers.
    """

    address: Address | None = None
    addresses: tuple[Address, ...] = ()
    tls: UpstreamTlsKeys | None = None
    connect_timeout_seconds: Seconds = 5.0
    connack_timeout_seconds: Seconds = 30.0
    health_check_seconds: Seconds | None = 5.0
    rto_max_seconds: RtoMaxSeconds | None = None
    tcp_user_timeout_seconds: Annotated[float, Field(ge=1, le=_DAY)] | None = 120.0

    @field_validator("tls", mode="before")
    @classmethod
    def _check_tls(cls, tls: Any) -> Any:
        # A section whose keys are all comments: no encryption then would be a bad surprise.
        if tls is None:
            raise ValueError("its keys, {} for their defaults, or no such section")
        return tls

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.address is None and not self.addresses:
            raise ValueError("address: read nothing; allowed: the address of a broker")
        if self.address is not None and self.addresses:
            raise ValueError("addresses: read both; allowed: one of address and addresses")
        read = self.read_addresses()
        twice = [one.name for index, one in enumerate(read) if str(one) in map(str, read[:index])]
        if twice:
            raise ValueError(f"addresses: read {twice[0]} twice; allowed: each address once")
        paths = [one.name for one in read if one.socket_path is not None]
        if self.tls is not None and paths:
            raise ValueError(
                f"tls: read TLS for {paths[0]}; allowed: host:port in addresses beside it"
            )
        if self.rto_max_seconds is not None and len(paths) == len(read):
            raise ValueError(
                f"rto_max_seconds: read {self.rto_max_seconds:g} for {paths[0]}; "
                "allowed: only with an address host:port"
            )

    def read_addresses(self) -> tuple[UpstreamAddress, ...]:
        """Return the addresses in the order in which they are preferred."""
        names = (self.address,) if self.address is not None else self.addresses
        port = DEFAULT_PORT if self.tls is None else DEFAULT_TLS_PORT
        return tuple(read_address(name, port) for name in names)
