from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.mqtt.proxy_header import (
    LOCAL_HEADER,
    MAX_V1_BYTES,
    MAX_V2_BYTES,
    ProxyHeader,
    ProxyHeaderError,
    crc32c,
    read_proxy_header,
    write_proxy_header,
)

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
ADDRESSES_4 = ipaddress.ip_address("203.0.113.9").packed + ipaddress.ip_address("10.0.0.1").packed
ADDRESSES_6 = ipaddress.ip_address("2001:db8::9").packed + ipaddress.ip_address("::1").packed
PORTS = struct.pack("!HH", 50_000, 1883)


def version_2(body: bytes, *, command: int = 0x21, family: int = 0x11) -> bytes:
    """Return a binary header."""
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2, "big") + body


def extension(kind: int, value: bytes) -> bytes:
    """Return one type, length and value."""
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


def ssl_extension(
    common_name: bytes = b"pump-7", *, client: int = 0x07, verify: int = 0, kind: int = 0x22
) -> bytes:
    """Return what a proxy tells of the client's TLS."""
    inner = extension(0x21, b"TLSv1.3") + extension(kind, common_name)
    return extension(0x20, bytes([client]) + verify.to_bytes(4, "big") + inner)


def with_checksum(body: bytes) -> bytes:
    """Return a binary header with its right checksum at the end."""
    zeroed = version_2(body + extension(0x03, bytes(4)))
    return zeroed[:-4] + crc32c(zeroed).to_bytes(4, "big")


RIGHT = {
    "TCP4": (b"PROXY TCP4 203.0.113.9 10.0.0.1 50000 1883\r\n", ("203.0.113.9", 50_000, None)),
    "TCP6": (b"PROXY TCP6 2001:db8::9 ::1 50000 1883\r\n", ("2001:db8::9", 50_000, None)),
    "UNKNOWN": (b"PROXY UNKNOWN\r\n", ("", 0, None)),
    "UNKNOWN with more": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ("", 0, None)),
    "longest line": (b"PROXY UNKNOWN " + b"f" * (MAX_V1_BYTES - 16) + b"\r\n", ("", 0, None)),
    "IPv4": (version_2(ADDRESSES_4 + PORTS), ("203.0.113.9", 50_000, None)),
    "IPv6": (version_2(ADDRESSES_6 + PORTS, family=0x21), ("2001:db8::9", 50_000, None)),
    "Unix": (version_2(bytes(216), family=0x31), ("", 0, None)),
    "unspecified": (version_2(b"", family=0), ("", 0, None)),
    "LOCAL": (version_2(b"", command=0x20, family=0), ("", 0, None)),
    "LOCAL with more": (version_2(bytes(40), command=0x20), ("", 0, None)),
    "with extensions": (
        version_2(ADDRESSES_4 + PORTS + extension(0xEE, b"x") + ssl_extension()),
        ("203.0.113.9", 50_000, "pump-7"),
    ),
    "with checksum": (with_checksum(ADDRESSES_4 + PORTS), ("203.0.113.9", 50_000, None)),
    "certificate not verified": (
        version_2(ADDRESSES_4 + PORTS + ssl_extension(verify=1)),
        ("203.0.113.9", 50_000, None),
    ),
    "TLS without a certificate": (
        version_2(ADDRESSES_4 + PORTS + ssl_extension(client=0x01)),
        ("203.0.113.9", 50_000, None),
    ),
    "certificate without a name": (
        version_2(ADDRESSES_4 + PORTS + ssl_extension(kind=0x23)),
        ("203.0.113.9", 50_000, None),
    ),
}

WRONG = {
    "MQTT": b"\x10\x0d\x00\x04MQTT",
    "HTTP": b"GET / HTTP/1.1",
    "PROXY alone": b"PROXY\r\n",
    "nothing behind": b"PROXY \r\n",
    "unknown word": b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
    "too few words": b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
    "too many words": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
    "two spaces": b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
    "wrong family": b"PROXY TCP4 ::1 ::1 1 2\r\n",
    "no address": b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n",
    "no ASCII": "PROXY TCP4 1.2.3.٤ 1.2.3.4 1 2\r\n".encode(),
    "address with a zone": b"PROXY TCP6 fe80::1%eth0 fe80::1 1 2\r\n",
    "port too large": b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
    "port with a sign": b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
    "line without an end": b"PROXY UNKNOWN " + b"f" * MAX_V1_BYTES,
    "version 1 in binary": version_2(b"", command=0x11),
    "unknown command": version_2(b"", command=0x22),
    "too long": SIGNATURE + b"\x21\x11" + (MAX_V2_BYTES - 15).to_bytes(2, "big"),
    "addresses cut off": version_2((ADDRESSES_4 + PORTS)[:-1]),
    "IPv6 addresses cut off": version_2(ADDRESSES_4 + PORTS, family=0x21),
    "extension cut off": version_2(ADDRESSES_4 + PORTS + b"\x04\x00\x05x"),
    "extension without length": version_2(ADDRESSES_4 + PORTS + b"\x04\x00"),
    "TLS's extension cut off": version_2(
        ADDRESSES_4 + PORTS + extension(0x20, b"\x07" + bytes(4) + b"\x22\x00\x09x")
    ),
    "name that is no UTF-8": version_2(ADDRESSES_4 + PORTS + ssl_extension(b"\xff")),
    "checksum wrong": with_checksum(ADDRESSES_4 + PORTS)[:-1] + b"\x00",
    "checksum too short": version_2(ADDRESSES_4 + PORTS + extension(0x03, b"xx")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_each_form_is_read_and_the_rest_is_the_clients(name: str) -> None:
    """Address, port and name; what follows the header does not matter."""
    data, expected = RIGHT[name]
    for rest in (b"", b"\x10\x00", b"\r\n", data):
        assert read_proxy_header(data + rest) == ProxyHeader(len(data), *expected)


@pytest.mark.parametrize("name", RIGHT)
def test_every_truncation_waits_for_more(name: str) -> None:
    """A header may come byte by byte."""
    data, _ = RIGHT[name]
    for n_bytes in range(len(data)):
        assert read_proxy_header(data[:n_bytes]) is None


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_header_is_refused(name: str) -> None:
    """And no later than when it has come whole."""
    with pytest.raises(ProxyHeaderError, match=r"allowed|version"):
        read_proxy_header(WRONG[name])


def test_checksum_is_castagnolis() -> None:
    """The check value of CRC-32C (RFC 3720, B.4, gives others of the same polynomial)."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


@given(st.binary(max_size=64), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE]))
def test_any_bytes_are_a_header_or_not_yet_or_refused(data: bytes, beginning: bytes) -> None:
    """Nothing else escapes, whatever a stranger sends."""
    whole = beginning + data
    try:
        header = read_proxy_header(whole)
    except ProxyHeaderError:
        return
    assert header is None or header.n_bytes <= len(whole)


@given(
    st.ip_addresses(),
    st.integers(0, 65_535),
    st.lists(st.tuples(st.integers(0x30, 0xFF), st.binary(max_size=20)), max_size=5),
)
def test_address_and_port_come_as_they_went(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    port: int,
    extensions: list[tuple[int, bytes]],
) -> None:
    """In either version, whatever stands behind them."""
    kind = 0x11 if address.version == 4 else 0x21
    more = b"".join(extension(*one) for one in extensions)
    binary = version_2(
        address.packed * 2 + struct.pack("!HH", port, 1) + more + ssl_extension(), family=kind
    )
    line = f"PROXY TCP{address.version} {address} {address} {port} 1\r\n".encode()
    assert read_proxy_header(binary) == ProxyHeader(len(binary), str(address), port, "pump-7")
    assert read_proxy_header(line) == ProxyHeader(len(line), str(address), port)


# -- writing ----------------------------------------------------------------------------------

V4 = ("203.0.113.9", 50_000)
V6 = ("2001:db8::9", 50_000)


@pytest.mark.parametrize("tls_version", [None, "TLSv1.3"])
@pytest.mark.parametrize("common_name", [None, "größe"])
@pytest.mark.parametrize(
    ("source", "destination"),
    [
        (V4, ("10.0.0.1", 1883)),
        (V6, ("::1", 1883)),
        (V6, ("fe80::1%eth0", 1883)),
        (V6, None),
        (V4, None),
        (None, None),
    ],
)
def test_what_is_written_is_read_again(
    source: tuple[str, int] | None,
    destination: tuple[str, int] | None,
    tls_version: str | None,
    common_name: str | None,
) -> None:
    """Each header that a proxy writes is one that the broker reads."""
    header = write_proxy_header(
        source, destination, tls_version=tls_version, common_name=common_name
    )
    address, port = source or ("", 0)
    assert read_proxy_header(header + b"rest") == ProxyHeader(
        len(header), address, port, common_name
    )


def test_addresses_of_two_families_are_written_as_ipv6() -> None:
    """The IPv4 address is mapped into IPv6 (RFC 4291, 2.5.5.2)."""
    header = write_proxy_header(V4, ("::1", 1883))
    assert header[13] == 0x21
    read = read_proxy_header(header)
    assert read is not None
    assert read.port == 50_000
    assert ipaddress.IPv6Address(read.address).ipv4_mapped == ipaddress.IPv4Address(V4[0])


def test_header_as_in_the_specification() -> None:
    """Signature, version and command, family, length, addresses and ports; section 2.2."""
    assert write_proxy_header(("1.2.3.4", 0x0506), ("7.8.9.10", 0x0B0C)) == (
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x01\x02\x03\x04\x07\x08\x09\x0a\x05\x06\x0b\x0c"
    )
    assert read_proxy_header(LOCAL_HEADER) == ProxyHeader(16)


def test_a_name_that_is_too_long_is_no_other_name() -> None:
    """It is refused, not cut."""
    with pytest.raises(ProxyHeaderError, match="a common name of 5000 characters"):
        write_proxy_header(None, None, common_name="x" * 5000)
