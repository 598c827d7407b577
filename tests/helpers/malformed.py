"""Packets that break the rules, made from a description of the right ones.

The description comes from the specifications' figures and not from the broker's codec: each packet
is a list of fields, and each field says how it can be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

MALFORMED: Final = 0x81
PROTOCOL: Final = 0x82

CLOSED: Final = -1
"""In place of a reason code: the connection closes without a packet."""

TAKEN: Final = 0
"""In place of a reason code: the packet is valid after all."""

BAD_UTF8: Final = {
    "a byte that never occurs": b"\xff",
    "a surrogate": b"\xed\xa0\x80",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "an overlong form": b"\xc0\xaf",
    "an overlong form of NUL": b"\xc0\x80",
    "U+0000": b"\x00",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "half a character": b"\xc3",
    "a continuation byte": b"\x80",
}


class Field(NamedTuple):
    """One field of a packet.

    Attributes:
        kind: "text", "topic", "filter", "binary", "id", "options", "properties", "payload" or
            "bytes" for what is none of these.
        data: the content of the field, without its length.
    """

    kind: str
    data: bytes

    def encode(self) -> bytes:
        """Return the field with the length that it has."""
        if self.kind in ("text", "topic", "filter", "binary"):
            return len(self.data).to_bytes(2, "big") + self.data
        if self.kind == "properties":
            return variable(len(self.data)) + self.data
        return self.data


class Shape(NamedTuple):
    """One packet that a client may send.

    Attributes:
        name: the name of the packet.
        version: the version of the protocol.
        first_byte: the packet type and flags.
        fields: the fields in their order.
        ends: the numbers of fields after which the packet may end.
        too_early: the numbers of fields after which its end is a protocol error.
        where: the name by which `PROPERTIES` knows its properties.
    """

    name: str
    version: int
    first_byte: int
    fields: tuple[Field, ...]
    ends: frozenset[int]
    too_early: frozenset[int] = frozenset()
    where: str = ""

    def with_field(self, index: int, field: bytes) -> bytes:
        """Return the packet with other bytes in the place of a field."""
        parts = [one.encode() for one in self.fields]
        parts[index] = field
        return frame(self.first_byte, b"".join(parts))


class Case(NamedTuple):
    """A case: the bytes that a client sends, and the expected answer.

    Attributes:
        name: the name of the packet and of the fault.
        version: the version with which the client has connected, or tries to.
        data: the bytes of the packet.
        is_connect: whether it is the client's first packet.
        codes: the allowed reason codes of the answer; or `CLOSED` or `TAKEN`.
    """

    name: str
    version: int
    data: bytes
    is_connect: bool
    codes: tuple[int, ...]


def variable(number: int) -> bytes:
    """Return a variable byte integer."""
    encoded = bytearray()
    while True:
        number, low = divmod(number, 128)
        encoded.append(low | (0x80 if number else 0))
        if not number:
            return bytes(encoded)


def frame(first_byte: int, body: bytes) -> bytes:
    """Return a whole packet."""
    return bytes([first_byte]) + variable(len(body)) + body


def _shapes() -> Iterator[Shape]:
    for version in (4, 5):
        yield from _shapes_of(version)


def _shapes_of(version: int) -> Iterator[Shape]:
    is_5 = version == 5

    def properties(data: bytes = b"") -> tuple[Field, ...]:
        return (Field("properties", data),) if is_5 else ()

    def shape(
        name: str,
        first_byte: int,
        *fields: Field,
        ends: set[int] | None = None,
        too_early: set[int] | None = None,
        where: str = "",
    ) -> Shape:
        return Shape(
            f"{name}, version {version}",
            version,
            first_byte,
            fields,
            frozenset(ends if ends is not None else {len(fields)}),
            frozenset(too_early or ()),
            where or name.split(" ", maxsplit=1)[0],
        )

    packet_id = Field("id", b"\x00\x07")
    n_properties = len(properties())
    yield shape(
        "CONNECT",
        0x10,
        Field("bytes", b"\x00\x04MQTT"),
        Field("bytes", bytes([version, 0xF6, 0, 0])),
        *properties(b"\x21\x00\x0a"),
        Field("text", b"wrong"),
        *properties(b"\x18\x00\x00\x00\x05"),
        Field("topic", b"a/will"),
        Field("binary", b"gone"),
        Field("text", b"user"),
        Field("binary", b"secret"),
    )
    for qos in (0, 1, 2):
        head = (Field("topic", b"a/b"), *((packet_id,) if qos else ()), *properties())
        yield shape(
            f"PUBLISH QoS {qos}",
            0x30 | qos << 1,
            *head,
            Field("payload", b"data"),
            ends={len(head), len(head) + 1},
        )
    for name, first_byte in (
        ("PUBACK", 0x40),
        ("PUBREC", 0x50),
        ("PUBREL", 0x62),
        ("PUBCOMP", 0x70),
    ):
        rest = (Field("bytes", b"\x00"), *properties()) if is_5 else ()
        yield shape(name, first_byte, packet_id, *rest, ends={1, 2, 3} if is_5 else {1})
    filters = (Field("filter", b"a/+"), Field("options", b"\x01"))
    yield shape(
        "SUBSCRIBE",
        0x82,
        packet_id,
        *properties(),
        *filters * 2,
        ends={3 + n_properties, 5 + n_properties},
        too_early={1 + n_properties},
    )
    yield shape(
        "UNSUBSCRIBE",
        0xA2,
        packet_id,
        *properties(),
        *filters[:1] * 2,
        ends={2 + n_properties, 3 + n_properties},
        too_early={1 + n_properties},
    )
    yield shape("PINGREQ", 0xC0)
    rest = (Field("bytes", b"\x00"), *properties()) if is_5 else ()
    yield shape("DISCONNECT", 0xE0, *rest, ends={0, 1, 2} if is_5 else {0})


SHAPES: Final = tuple(_shapes())

VERSION_KNOWN_BYTES: Final = 7
"""The least length of a CONNECT's body from which the broker knows in which version to answer."""

VALUES: Final[dict[int, bytes]] = {
    0x01: b"\x01",
    0x02: b"\x00\x00\x00\x09",
    0x03: b"\x00\x01t",
    0x08: b"\x00\x01r",
    0x09: b"\x00\x01c",
    0x0B: b"\x05",
    0x11: b"\x00\x00\x00\x09",
    0x12: b"\x00\x01i",
    0x13: b"\x00\x09",
    0x15: b"\x00\x01m",
    0x16: b"\x00\x01d",
    0x17: b"\x01",
    0x18: b"\x00\x00\x00\x09",
    0x19: b"\x01",
    0x1A: b"\x00\x01i",
    0x1C: b"\x00\x01s",
    0x1F: b"\x00\x01w",
    0x21: b"\x00\x09",
    0x22: b"\x00\x09",
    0x23: b"\x00\x01",
    0x24: b"\x01",
    0x25: b"\x01",
    0x26: b"\x00\x01k\x00\x01v",
    0x27: b"\x00\x00\x09\x00",
    0x28: b"\x01",
    0x29: b"\x01",
    0x2A: b"\x01",
}
"""A valid value of each property (MQTT 5.0, table 2-4)."""

PROPERTIES: Final[dict[str, frozenset[int]]] = {
    "CONNECT": frozenset({0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27}),
    "WILL": frozenset({0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26}),
    "PUBLISH": frozenset({0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26}),
    "PUBACK": frozenset({0x1F, 0x26}),
    "PUBREC": frozenset({0x1F, 0x26}),
    "PUBREL": frozenset({0x1F, 0x26}),
    "PUBCOMP": frozenset({0x1F, 0x26}),
    "SUBSCRIBE": frozenset({0x0B, 0x26}),
    "UNSUBSCRIBE": frozenset({0x26}),
    "DISCONNECT": frozenset({0x11, 0x1C, 0x1F, 0x26}),
}
"""The properties that each packet may carry (MQTT 5.0, table 2-4)."""

OUT_OF_RANGE: Final[dict[int, bytes]] = {
    0x01: b"\x02",
    0x0B: b"\x00",
    0x17: b"\x02",
    0x19: b"\x02",
    0x21: b"\x00\x00",
    0x27: b"\x00\x00\x00\x00",
}
"""A forbidden value of each of these properties, which is a protocol error."""


def cases() -> Iterator[Case]:
    """Yield every case."""
    for shape in SHAPES:
        yield from (
            *_truncated(shape),
            *_with_more(shape),
            *_wrong_flags(shape),
            *_wrong_fields(shape),
            *(_wrong_properties(shape) if shape.version == 5 else ()),
        )
    yield from _of_a_server()


def _case(shape: Shape, fault: str, data: bytes, *codes: int) -> Case:
    return Case(f"{shape.name}: {fault}", shape.version, data, shape.where == "CONNECT", codes)


def _truncated(shape: Shape) -> Iterator[Case]:
    """The packet ends at each byte, with the length that it then has."""
    ends: dict[int, int] = {}
    body = b""
    for n_fields in range(len(shape.fields) + 1):
        ends[len(body)] = n_fields
        body += shape.fields[n_fields].encode() if n_fields < len(shape.fields) else b""
    payload = len(shape.fields[-1].data) if shape.where == "PUBLISH" else 0
    for size in range(len(body)):
        n_fields = ends.get(size, -1)
        code = MALFORMED
        if n_fields in shape.ends or size > len(body) - payload:
            code = CLOSED if shape.where == "DISCONNECT" else TAKEN
        elif n_fields in shape.too_early:
            code = PROTOCOL
        elif shape.where == "CONNECT" and size < VERSION_KNOWN_BYTES:
            code = CLOSED
        yield _case(
            shape, f"{size} bytes of {len(body)}", frame(shape.first_byte, body[:size]), code
        )


def _with_more(shape: Shape) -> Iterator[Case]:
    """The packet goes on after its end."""
    if shape.where == "PUBLISH":
        return
    body = b"".join(field.encode() for field in shape.fields)
    for more in (b"\x00", b"\xff", b"\x00" * 300):
        yield _case(
            shape, f"{len(more)} bytes more", frame(shape.first_byte, body + more), MALFORMED
        )


def _wrong_flags(shape: Shape) -> Iterator[Case]:
    """The fixed header has other flags (table 2-2)."""
    body = b"".join(field.encode() for field in shape.fields)
    kind, right = shape.first_byte & 0xF0, shape.first_byte & 0x0F
    for flags in range(16):
        if shape.where == "PUBLISH":
            if flags & 6 == 6 or (not flags & 6 and flags & 8):
                yield _case(shape, f"flags {flags:04b}", frame(kind | flags, body), MALFORMED)
        elif flags != right:
            code = CLOSED if shape.where == "CONNECT" else MALFORMED
            yield _case(shape, f"flags {flags:04b}", frame(kind | flags, body), code)
    if shape.where == "CONNECT":
        for flags in (0xF7, 0xFE, 0xF2 & ~0x04):  # reserved; will QoS 3; will QoS without will
            wrong = bytes([shape.version, flags, 0, 0])
            yield _case(shape, f"connect flags {flags:08b}", shape.with_field(1, wrong), MALFORMED)


def _wrong_fields(shape: Shape) -> Iterator[Case]:
    """A field has a wrong length or content."""
    for index, field in enumerate(shape.fields):
        if field.kind in ("text", "topic", "filter", "binary"):
            rest = b"".join(one.encode() for one in shape.fields[index + 1 :])
            too_long = (len(field.data) + len(rest) + 1).to_bytes(2, "big") + field.data
            yield _case(
                shape, f"field {index} beyond the end", shape.with_field(index, too_long), MALFORMED
            )
        if field.kind in ("text", "topic", "filter"):
            for fault, bad in BAD_UTF8.items():
                wrong = Field(field.kind, b"a" + bad).encode()
                yield _case(
                    shape, f"field {index} has {fault}", shape.with_field(index, wrong), MALFORMED
                )
        names = {"topic": (b"a/#", b"+", b"a+"), "filter": (b"a#", b"#/a", b"a+/b", b"")}
        for name in names.get(field.kind, ()):
            wrong = Field(field.kind, name).encode()
            fault = f"field {index} is {name.decode()!r}"
            yield _case(shape, fault, shape.with_field(index, wrong), MALFORMED)
        if field.kind == "filter":
            for name in (b"$share//a", b"$share/g", b"$share/g/", b"$share/+/a"):
                wrong = Field(field.kind, name).encode()
                fault = f"field {index} is {name.decode()}"
                yield _case(shape, fault, shape.with_field(index, wrong), MALFORMED)
        if field.kind == "id":
            yield _case(shape, "packet identifier 0", shape.with_field(index, b"\0\0"), PROTOCOL)
        if field.kind == "options":
            yield _case(shape, "QoS 3", shape.with_field(index, b"\x03"), PROTOCOL)
            yield _case(shape, "reserved bits", shape.with_field(index, b"\x40"), MALFORMED)
            if shape.version == 5:
                yield _case(shape, "retain handling 3", shape.with_field(index, b"\x30"), PROTOCOL)


def _wrong_properties(shape: Shape) -> Iterator[Case]:
    """Properties that are unknown, out of place, twice, cut off or out of range."""
    places = [index for index, field in enumerate(shape.fields) if field.kind == "properties"]
    for number, index in enumerate(places):
        where = "WILL" if number else shape.where

        def wrong(fault: str, data: bytes, *codes: int, index: int = index) -> Case:
            field = Field("properties", data).encode()
            return _case(shape, fault, shape.with_field(index, field), *codes)

        for identifier in range(256):
            value = VALUES.get(identifier)
            one = variable(identifier) + (value or b"")
            named = f"property 0x{identifier:02X} of {where}"
            if value is None:
                yield wrong(f"{named}, unknown", one + b"\0", MALFORMED)
            elif identifier not in PROPERTIES[where]:
                yield wrong(f"{named}, out of place", one, MALFORMED)
            else:
                if identifier != 0x26:
                    yield wrong(f"{named}, twice", one * 2, PROTOCOL)
                for size in range(1, len(one)):  # what follows may be taken for its value
                    yield wrong(f"{named}, {size} bytes", one[:size], MALFORMED, PROTOCOL)
                if identifier in OUT_OF_RANGE:
                    bad = variable(identifier) + OUT_OF_RANGE[identifier]
                    yield wrong(f"{named}, out of range", bad, PROTOCOL)
                if (
                    value[:2] == b"\x00\x01"
                    and len(value) in (3, 6)
                    and identifier not in (9, 0x16)
                ):
                    for fault, bad in BAD_UTF8.items():
                        text = Field("text", b"a" + bad).encode()
                        data = variable(identifier) + text + value[3:]
                        yield wrong(f"{named}, {fault}", data, MALFORMED)
        last = shape.fields[index:]
        n_bytes = sum(len(field.encode()) for field in last)
        data = shape.fields[index].data
        yield _case(
            shape,
            f"properties of {where} beyond the end",
            shape.with_field(index, variable(n_bytes) + data),
            MALFORMED,
        )
        yield _case(
            shape,
            f"five bytes of length of the properties of {where}",
            shape.with_field(index, b"\xff\xff\xff\xff\x01"),
            MALFORMED,
        )


def _of_a_server() -> Iterator[Case]:
    """Packets that only a server sends, and types that do not exist."""
    for version in (4, 5):
        none = b"\0" if version == 5 else b""
        wrong = {
            "CONNACK": (frame(0x20, b"\0\0" + none), PROTOCOL),
            "SUBACK": (frame(0x90, b"\0\1" + none + b"\0"), PROTOCOL),
            "UNSUBACK": (frame(0xB0, b"\0\1" + none * 2), PROTOCOL),
            "PINGRESP": (frame(0xD0, b""), PROTOCOL),
            "AUTH": (frame(0xF0, b""), PROTOCOL),
            "five bytes of length": (b"\x30\xff\xff\xff\xff\x01", MALFORMED),
            **{f"type 0, flags {flags}": (frame(flags, b""), MALFORMED) for flags in range(16)},
        }
        for name, (data, code) in wrong.items():
            full_name = f"other packets, version {version}: {name}"
            yield Case(full_name, version, data, is_connect=False, codes=(code,))
