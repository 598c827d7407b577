"""The PROXY protocol, versions 1 and 2: the client's address behind a load balancer.

A proxy writes one header before the client's first byte (haproxy.org, "The PROXY protocol").
Version 1 is a line of text. Version 2 is binary, and may have a checksum and the proxy's
information about the client's TLS.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple, TypeAlias

from penstock.broker.errors import PenstockError

MAX_V1_BYTES: Final = 107
"""A line with its end has at most so many bytes (section 2.1 of the specification)."""

MAX_V2_BYTES: Final = 16 + 4096
"""A whole header has at most so many bytes. The addresses take 216, and the extensions after them
are short, though the format would let a stranger announce 64 KiB."""

_SIGNATURE_1: Final = b"PROXY "
_SIGNATURE_2: Final = b"\r\n\r\n\x00\r\nQUIT\n"

_LOCAL: Final = 0
_PROXY: Final = 1

_IPV4: Final = 1
_IPV6: Final = 2
_ADDRESS_BYTES: Final = {0: 0, _IPV4: 12, _IPV6: 36, 3: 216}
"""The bytes of the addresses, by address family (unspecified, IPv4, IPv6, Unix)."""

_TLV_CRC32C: Final = 0x03
_TLV_SSL: Final = 0x20
_TLV_SSL_COMMON_NAME: Final = 0x22
_TLV_SSL_VERSION: Final = 0x21
_CLIENT_SSL: Final = 0x01
_CLIENT_CERTIFICATE: Final = 0x02 | 0x04


_STREAM: Final = 1
"""The transport protocol of TCP and of stream sockets, in the low half of a family's byte."""

LOCAL_HEADER: Final = _SIGNATURE_2 + bytes((0x20, 0, 0, 0))
"""A header of version 2 for a connection that the proxy makes for itself, such as a health check.
"""

Endpoint: TypeAlias = tuple[str, int]
"""An address: (IP address, port)."""


class ProxyHeaderError(PenstockError):
    """A connection does not begin with a valid header of the PROXY protocol, or none can say it."""


class ProxyHeader(NamedTuple):
    """A whole header.

    Attributes:
        n_bytes: the length of the header; the bytes after it are the client's.
        address: the client's address; "" where the proxy does not know it or sends the header for
            itself.
        port: the port of the client, or 0.
        common_name: the common name of the client's certificate, where the proxy has verified one;
            or None.
    """

    n_bytes: int
    address: str = ""
    port: int = 0
    common_name: str | None = None


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Read the header at the beginning of a connection.

    Returns:
        The header, or None where more bytes are needed.

    Raises:
        ProxyHeaderError: there is no header, or an invalid one.
    """
    beginning = data[: len(_SIGNATURE_2)]
    if _SIGNATURE_1.startswith(beginning[: len(_SIGNATURE_1)]):
        return _read_version_1(data)
    if _SIGNATURE_2.startswith(beginning):
        return _read_version_2(data)
    raise ProxyHeaderError(f"begins with {bytes(beginning)!r}; allowed: a PROXY protocol header")


def _read_version_1(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:MAX_V1_BYTES].partition(b"\r\n")
    if not end:
        if len(data) >= MAX_V1_BYTES:
            raise ProxyHeaderError(f"version 1: no end of line in {MAX_V1_BYTES} bytes")
        return None
    n_bytes = len(line) + 2
    words = line.split(b" ")
    if words[1] == b"UNKNOWN":  # the rest of the line is ignored
        return ProxyHeader(n_bytes)
    if words[1] not in (b"TCP4", b"TCP6") or len(words) != 6:
        raise ProxyHeaderError(f"version 1: read {line!r}; allowed: TCP4, TCP6 or UNKNOWN")
    source, destination, *ports = words[2:]
    kind = ipaddress.IPv4Address if words[1] == b"TCP4" else ipaddress.IPv6Address
    try:
        address = kind(source.decode("ascii"))
        kind(destination.decode("ascii"))
    except ValueError as error:  # non-ASCII text raises a ValueError, too
        raise ProxyHeaderError(f"version 1: read {line!r}; allowed: two addresses") from error
    if b"%" in line:  # a remote address has no interface
        raise ProxyHeaderError(f"version 1: read {line!r}; allowed: addresses without a zone")
    for port in ports:
        if not port.isdigit() or len(port) > 5 or int(port) > 65_535:
            raise ProxyHeaderError(f"version 1: read port {port!r}; allowed: 0 to 65535")
    return ProxyHeader(n_bytes, str(address), int(ports[0]))


def _read_version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < 16:
        return None
    version, command = data[12] >> 4, data[12] & 0x0F
    family = data[13] >> 4
    n_bytes = 16 + int.from_bytes(data[14:16], "big")
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError(
            f"version 2: read version and command 0x{data[12]:02X}; allowed: 0x20, 0x21"
        )
    if n_bytes > MAX_V2_BYTES:
        raise ProxyHeaderError(f"version 2: {n_bytes} bytes; allowed: {MAX_V2_BYTES}")
    n_address_bytes = _ADDRESS_BYTES.get(family, 0)
    if command == _PROXY and n_bytes < 16 + n_address_bytes:
        raise ProxyHeaderError(f"version 2: {n_bytes} bytes are too few for its addresses")
    if len(data) < n_bytes:
        return None
    header = data[:n_bytes]
    if command == _LOCAL:  # the proxy's own connection, such as a health check
        return ProxyHeader(n_bytes)
    common_name = _read_extensions(header, 16 + n_address_bytes)
    if family == _IPV4:
        address, port = str(ipaddress.IPv4Address(header[16:20])), header[24:26]
    elif family == _IPV6:
        address, port = str(ipaddress.IPv6Address(header[16:32])), header[48:50]
    else:
        return ProxyHeader(n_bytes, common_name=common_name)
    return ProxyHeader(n_bytes, address, int.from_bytes(port, "big"), common_name)


def _read_extensions(header: bytes, start: int) -> str | None:
    """Check the extensions after the addresses; return the common name of a verified certificate.

    Raises:
        ProxyHeaderError: the checksum is wrong, or an extension goes beyond the end.
    """
    common_name = None
    for kind, begin, end in _extensions(header, start, len(header)):
        if kind == _TLV_CRC32C:
            if end - begin != 4:
                raise ProxyHeaderError("version 2: a checksum that has not 4 bytes")
            zeroed = header[:begin] + bytes(4) + header[end:]
            if crc32c(zeroed) != int.from_bytes(header[begin:end], "big"):
                raise ProxyHeaderError("version 2: the checksum is wrong")
        elif kind == _TLV_SSL and end - begin >= 5:
            client, verify = header[begin], header[begin + 1 : begin + 5]
            if client & _CLIENT_SSL and client & _CLIENT_CERTIFICATE and verify == bytes(4):
                common_name = _common_name(header, begin + 5, end)
    return common_name


def _common_name(header: bytes, start: int, stop: int) -> str | None:
    for kind, begin, end in _extensions(header, start, stop):
        if kind == _TLV_SSL_COMMON_NAME:
            try:
                return header[begin:end].decode()
            except UnicodeDecodeError as error:
                raise ProxyHeaderError("version 2: a common name that is no UTF-8") from error
    return None


def _extensions(header: bytes, start: int, stop: int) -> list[tuple[int, int, int]]:
    """Return (type, first byte of the value, end of the value) of each extension.

    Raises:
        ProxyHeaderError: one goes beyond the end.
    """
    found = []
    while start < stop:
        begin = start + 3
        end = begin + int.from_bytes(header[start + 1 : begin], "big")
        if begin > stop or end > stop:
            raise ProxyHeaderError("version 2: an extension that reaches over the end")
        found.append((header[start], begin, end))
        start = end
    return found


def write_proxy_header(
    source: Endpoint | None,
    destination: Endpoint | None,
    *,
    tls_version: str | None = None,
    common_name: str | None = None,
) -> bytes:
    """Return a header of version 2 for a client's connection.

    Args:
        source: the client's own address; None where it has no address, as on a Unix socket.
        destination: the address that it has connected to; None where that is unknown.
        tls_version: the version of TLS, such as ``TLSv1.3``; None where it does not speak TLS.
        common_name: the common name of its certificate, which was verified; None where it has shown
            none.

    Raises:
        ProxyHeaderError: the name is too long for a header.
    """
    family, addresses = _write_addresses(source, destination)
    extensions = b""
    if tls_version is not None or common_name is not None:
        has_name = common_name is not None
        inner = b"" if tls_version is None else _extension(_TLV_SSL_VERSION, tls_version.encode())
        if common_name is not None:
            inner += _extension(_TLV_SSL_COMMON_NAME, common_name.encode())
        client = _CLIENT_SSL | (_CLIENT_CERTIFICATE if has_name else 0)
        # Anything but 0 says that there is no certificate that was verified.
        verify = bytes(4) if has_name else bytes((0, 0, 0, 1))
        extensions = _extension(_TLV_SSL, bytes((client,)) + verify + inner)
    n_bytes = len(addresses) + len(extensions)
    if 16 + n_bytes > MAX_V2_BYTES:
        raise ProxyHeaderError(
            f"version 2: {16 + n_bytes} bytes with a common name of {len(common_name or '')} "
            f"characters; allowed: {MAX_V2_BYTES}"
        )
    kind = family << 4 | _STREAM if family else 0
    beginning = _SIGNATURE_2 + bytes((0x20 | _PROXY, kind)) + n_bytes.to_bytes(2, "big")
    return beginning + addresses + extensions


def _write_addresses(source: Endpoint | None, destination: Endpoint | None) -> tuple[int, bytes]:
    """Return the address family and the addresses as a header has them."""
    if source is None:
        return 0, b""
    ours = _address(source[0])
    other = _address(destination[0]) if destination is not None else type(ours)(0)
    ports = source[1].to_bytes(2, "big") + (destination or ("", 0))[1].to_bytes(2, "big")
    if ours.version == other.version == 4:
        return _IPV4, ours.packed + other.packed + ports
    return _IPV6, _as_ipv6(ours) + _as_ipv6(other) + ports


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text.partition("%")[0])  # a remote address has no interface


def _as_ipv6(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    mapped = b"" if address.version == 6 else bytes(10) + b"\xff\xff"
    return mapped + address.packed


def _extension(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _bit in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C: Final = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Return the checksum with the Castagnoli polynomial (RFC 3720, B.4)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _CRC32C[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
