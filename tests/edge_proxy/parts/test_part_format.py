"""The bytes of a part."""

from __future__ import annotations

from hashlib import sha256

import pytest

from penstock.edge_proxy.parts.part_format import (
    HEAD_BYTES,
    Part,
    PartError,
    Trailer,
    read_part,
    write_part,
)

ID = bytes(range(16))
DIGEST = sha256(b"abcdef").digest()

FIRST = Part(ID, 0, 6, 1, retain=True, trailer=None, data=b"abcd")
LAST = Part(ID, 4, 6, 2, retain=False, trailer=Trailer(DIGEST, b"\x04\x03\x00\x01t"), data=b"ef")
KEPT = FIRST._replace(is_kept=True)
EMPTY = Part(ID, 0, 0, 0, retain=False, trailer=Trailer(DIGEST, b"\0"), data=b"")

VECTORS = [
    (FIRST, b"PART\x01\x05" + ID + b"\0\0\0\0" + b"\0\0\0\x06" + b"abcd"),
    (KEPT, b"PART\x01\x15" + ID + b"\0\0\0\0" + b"\0\0\0\x06" + b"abcd"),
    (LAST, b"PART\x01\x0a" + ID + b"\0\0\0\x04" + b"\0\0\0\x06" + DIGEST + b"\x04\x03\x00\x01tef"),
    (EMPTY, b"PART\x01\x08" + ID + b"\0\0\0\0" + b"\0\0\0\0" + DIGEST + b"\0"),
]


@pytest.mark.parametrize(("part", "payload"), VECTORS)
def test_a_part_is_written_and_read_as_the_page_says(part: Part, payload: bytes) -> None:
    """One table, both ways."""
    assert write_part(part) == payload
    assert read_part(payload) == part


@pytest.mark.parametrize(("part", "payload"), VECTORS)
def test_a_part_that_is_cut_off_is_none(part: Part, payload: bytes) -> None:
    """Only data of a part that is not the last may be shorter: it is a shorter part then."""
    least = HEAD_BYTES + 1 if part.trailer is None else len(payload)
    for n_bytes in range(least):
        with pytest.raises(PartError):
            read_part(payload[:n_bytes])
    with pytest.raises(PartError):
        read_part(payload + b"xyz")


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (0, 0x70, "read b'pART'"),
        (4, 2, "read version 2; allowed: 1"),
        (5, 0x07, "read flags 0x7"),
        (5, 0x25, "read flags 0x25"),
        (5, 0x0D, "a last part"),
        (25, 9, "read data up to byte 13; allowed: up to 6"),
        (25, 2, "the last has the hash"),
    ],
)
def test_what_is_no_part_is_named(place: int, value: int, told: str) -> None:
    """What was read, and what is allowed."""
    payload = bytearray(write_part(FIRST))
    payload[place] = value
    with pytest.raises(PartError, match=told):
        read_part(bytes(payload))


def test_properties_that_are_none_are_no_part() -> None:
    """Nor are a Topic Alias and a Subscription Identifier, with which it could not be published."""
    for properties in (b"\x02\xff\xff", b"\x03\x23\x00\x01", b"\x02\x0b\x01"):
        with pytest.raises(PartError, match="properties"):
            read_part(write_part(LAST._replace(trailer=Trailer(DIGEST, properties))))
