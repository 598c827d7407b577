"""The data types of the wire format (MQTT 5.0 section 1.5; MQTT 3.1.1 has the first four).

Each reader takes the bytes of one packet and a position, and returns the value and the position
after it. It raises `MalformedPacketError` where the bytes are truncated or not of the type. Each
writer returns bytes and raises ValueError where the value does not fit the type.
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MAX_STRING_BYTES

Buffer: TypeAlias = "bytes | memoryview"
"""The bytes of packets."""


def read_byte(data: Buffer, start: int) -> tuple[int, int]:
    """Read one byte."""
    if start >= len(data):
        raise _truncated("byte", start)
    return data[start], start + 1


def read_two_byte_integer(data: Buffer, start: int) -> tuple[int, int]:
    """Read 16 bits, most significant byte first."""
    end = start + 2
    if end > len(data):
        raise _truncated("two byte integer", start)
    return data[start] << 8 | data[start + 1], end


def read_four_byte_integer(data: Buffer, start: int) -> tuple[int, int]:
    """Read 32 bits, most significant byte first."""
    end = start + 4
    if end > len(data):
        raise _truncated("four byte integer", start)
    return int.from_bytes(data[start:end]), end


def read_variable_byte_integer(data: Buffer, start: int) -> tuple[int, int]:
    """Read 0 to 268,435,455 in one to four bytes, and no more than are needed [MQTT-1.5.5-1]."""
    value = 0
    shift = 0
    for position in range(start, min(start + 4, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacketError(
                    f"variable byte integer at byte {start} ends in a byte of zero; allowed: the "
                    "fewest bytes that hold the value [MQTT-1.5.5-1]"
                )
            return value, position + 1
        shift += 7
    if shift == 28:
        raise MalformedPacketError(
            f"variable byte integer at byte {start} goes on after byte 4; allowed: 1 to 4 bytes"
        )
    raise _truncated("variable byte integer", start)


def read_utf8_string(data: Buffer, start: int) -> tuple[str, int]:
    """Read a UTF-8 Encoded String; a byte order mark stays in it [MQTT-1.5.4-3].

    Raises:
        MalformedPacketError: it is not UTF-8, encodes a surrogate [MQTT-1.5.4-1] or U+0000
            [MQTT-1.5.4-2], or is truncated.
    """
    begin = start + 2
    if begin > len(data):
        raise _truncated("UTF-8 string", start)
    end = begin + (data[start] << 8 | data[start + 1])
    if end > len(data):
        raise _truncated("UTF-8 string", start)
    try:
        text = str(data[begin:end], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacketError(
            f"UTF-8 string at byte {start}: {error.reason} in its byte {error.start}; allowed: "
            "well-formed UTF-8 [MQTT-1.5.4-1]"
        ) from None
    if "\0" in text:
        raise MalformedPacketError(
            f"UTF-8 string at byte {start} holds U+0000; allowed: any other character "
            "[MQTT-1.5.4-2]"
        )
    return text, end


def read_binary_data(data: Buffer, start: int) -> tuple[bytes, int]:
    """Read 0 to 65,535 bytes after their length."""
    begin = start + 2
    end = begin + int.from_bytes(data[start:begin])
    if end > len(data):
        raise _truncated("binary data", start)
    return bytes(data[begin:end]), end


def read_string_pair(data: Buffer, start: int) -> tuple[tuple[str, str], int]:
    """Read a name and a value [MQTT-1.5.7-1]."""
    name, position = read_utf8_string(data, start)
    value, end = read_utf8_string(data, position)
    return (name, value), end


def write_byte(value: int) -> bytes:
    """Write 0 to 255."""
    return _write_integer(value, 1)


def write_two_byte_integer(value: int) -> bytes:
    """Write 0 to 65,535."""
    return _write_integer(value, 2)


def write_four_byte_integer(value: int) -> bytes:
    """Write 0 to 4,294,967,295."""
    return _write_integer(value, 4)


def write_variable_byte_integer(value: int) -> bytes:
    """Write 0 to 268,435,455 in the fewest bytes [MQTT-1.5.5-1]."""
    if 0 <= value < 0x80:
        return value.to_bytes(1)
    if not 0 <= value <= MAX_REMAINING_LENGTH:
        raise ValueError(
            f"variable byte integer: read {value}; allowed: 0 to {MAX_REMAINING_LENGTH}"
        )
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def write_utf8_string(text: str) -> bytes:
    """Write a string of at most 65,535 bytes in UTF-8, without surrogates and U+0000."""
    if "\0" in text:
        raise ValueError("UTF-8 string: read U+0000; allowed: any other character [MQTT-1.5.4-2]")
    return write_binary_data(text.encode())


def write_binary_data(value: bytes) -> bytes:
    """Write at most 65,535 bytes after their length."""
    size_bytes = len(value)
    if size_bytes > MAX_STRING_BYTES:
        raise ValueError(
            f"string or binary data: read {size_bytes} bytes; allowed: at most {MAX_STRING_BYTES}"
        )
    return size_bytes.to_bytes(2) + value


def write_string_pair(pair: tuple[str, str]) -> bytes:
    """Write a name and a value."""
    name, value = pair
    return write_utf8_string(name) + write_utf8_string(value)


def _write_integer(value: int, size_bytes: int) -> bytes:
    """Write an unsigned integer, most significant byte first."""
    try:
        return value.to_bytes(size_bytes)
    except OverflowError:
        most = (1 << 8 * size_bytes) - 1
        raise ValueError(
            f"integer of {size_bytes} bytes: read {value}; allowed: 0 to {most}"
        ) from None


def _truncated(kind: str, start: int) -> MalformedPacketError:
    """Return the error for a value that is truncated by the end of its packet."""
    return MalformedPacketError(f"{kind} at byte {start} goes on after the end of the packet")
