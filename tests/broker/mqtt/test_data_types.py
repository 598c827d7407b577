from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.errors import MalformedPacketError, PeerError
from penstock.broker.mqtt import data_types
from tests.broker.mqtt.strategies import TEXTS

Reader = Callable[[bytes, int], tuple[Any, int]]
Writer = Callable[[Any], bytes]

BYTE = (data_types.read_byte, data_types.write_byte)
TWO = (data_types.read_two_byte_integer, data_types.write_two_byte_integer)
FOUR = (data_types.read_four_byte_integer, data_types.write_four_byte_integer)
VARIABLE = (data_types.read_variable_byte_integer, data_types.write_variable_byte_integer)
STRING = (data_types.read_utf8_string, data_types.write_utf8_string)
BINARY = (data_types.read_binary_data, data_types.write_binary_data)
PAIR = (data_types.read_string_pair, data_types.write_string_pair)

VALUES: list[tuple[tuple[Reader, Writer], Any, str]] = [
    (BYTE, 0, "00"),
    (BYTE, 255, "ff"),
    (TWO, 0, "0000"),
    (TWO, 0x1234, "1234"),
    (TWO, 65535, "ffff"),
    (FOUR, 0, "00000000"),
    (FOUR, 0x12345678, "12345678"),
    (FOUR, 4_294_967_295, "ffffffff"),
    # Table 1-1 of MQTT 5.0: least and greatest of each length.
    (VARIABLE, 0, "00"),
    (VARIABLE, 127, "7f"),
    (VARIABLE, 128, "8001"),
    (VARIABLE, 16_383, "ff7f"),
    (VARIABLE, 16_384, "808001"),
    (VARIABLE, 2_097_151, "ffff7f"),
    (VARIABLE, 2_097_152, "80808001"),
    (VARIABLE, 268_435_455, "ffffff7f"),
    (STRING, "", "0000"),
    # Figure 1-2 of MQTT 5.0: A and U+2A6D4.
    (STRING, "A\U0002a6d4", "0005 41 f0aa9b94"),
    (STRING, "\ufeffx", "0004 efbbbf 78"),
    (STRING, "x" * 65_535, "ffff" + "78" * 65_535),
    (STRING, "y" * 256, "0100" + "79" * 256),
    (BINARY, b"", "0000"),
    (BINARY, bytes(258), "0102" + "00" * 258),
    (BINARY, b"\x00\xff", "0002 00ff"),
    (PAIR, ("a", "é"), "0001 61 0002 c3a9"),
]


@pytest.mark.mqtt5("1.5.4-3", "1.5.5-1")
@pytest.mark.mqtt311("1.5.3-3")
@pytest.mark.parametrize(("data_type", "value", "digits"), VALUES)
def test_each_value_has_its_bytes(
    data_type: tuple[Reader, Writer], value: object, digits: str
) -> None:
    """Values are written as section 1.5 has them, and read back at any position."""
    read, write = data_type
    encoded = bytes.fromhex(digits)
    assert write(value) == encoded
    assert read(encoded, 0) == (value, len(encoded))
    assert read(b"\xaa" + encoded + b"\xbb", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(("data_type", "value", "digits"), VALUES)
def test_each_value_truncated_is_malformed(
    data_type: tuple[Reader, Writer], value: object, digits: str
) -> None:
    """No reader goes past the end of its packet."""
    read, _ = data_type
    encoded = bytes.fromhex(digits)
    for end in {*range(min(20, len(encoded))), len(encoded) - 1}:
        with pytest.raises(MalformedPacketError, match=r"goes on after the end of the packet"):
            read(encoded[:end], 0)
    assert value is not None


@pytest.mark.mqtt5("1.5.4-1", "1.5.4-2")
@pytest.mark.mqtt311("1.5.3-1", "1.5.3-2")
@pytest.mark.parametrize(
    ("digits", "reason"),
    [
        ("0003 eda080", "MQTT-1.5.4-1"),  # U+D800
        ("0003 edbfbf", "MQTT-1.5.4-1"),  # U+DFFF
        ("0002 c0af", "MQTT-1.5.4-1"),  # an overlong form
        ("0001 ff", "MQTT-1.5.4-1"),
        ("0002 c3", "goes on after the end"),
        ("0001 00", "MQTT-1.5.4-2"),
        ("0003 610062", "MQTT-1.5.4-2"),
    ],
)
def test_string_that_is_not_utf8_is_malformed(digits: str, reason: str) -> None:
    """Surrogates, ill-formed UTF-8 and U+0000 are refused [MQTT-1.5.4-1] [MQTT-1.5.4-2]."""
    with pytest.raises(MalformedPacketError, match=reason):
        data_types.read_utf8_string(bytes.fromhex(digits), 0)


def test_variable_byte_integer_of_five_bytes_is_malformed() -> None:
    """Four bytes at most (1.5.5)."""
    with pytest.raises(MalformedPacketError, match=r"after byte 4"):
        data_types.read_variable_byte_integer(bytes.fromhex("8080808001"), 0)


@pytest.mark.mqtt5("1.5.5-1")
@pytest.mark.parametrize("digits", ["8000", "ff8000", "80808000"])
def test_variable_byte_integer_longer_than_needed_is_malformed(digits: str) -> None:
    """The fewest bytes that hold the value [MQTT-1.5.5-1]."""
    with pytest.raises(MalformedPacketError, match=r"1\.5\.5-1"):
        data_types.read_variable_byte_integer(bytes.fromhex(digits), 0)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (data_types.write_byte, 256),
        (data_types.write_byte, -1),
        (data_types.write_two_byte_integer, 65536),
        (data_types.write_four_byte_integer, 2**32),
        (data_types.write_variable_byte_integer, 268_435_456),
        (data_types.write_variable_byte_integer, -1),
        (data_types.write_utf8_string, "a\0"),
        (data_types.write_utf8_string, "\ud800"),
        (data_types.write_utf8_string, "é" * 32_768),
        (data_types.write_binary_data, bytes(65_536)),
        (data_types.write_string_pair, ("a", "\0")),
    ],
)
def test_values_that_do_not_fit_are_not_written(write: Writer, value: object) -> None:
    """A value of our own that the format has no bytes for is our error, not the peer's."""
    with pytest.raises(ValueError, match=r".") as error:
        write(value)
    assert not isinstance(error.value, PeerError)


def test_error_of_an_integer_says_what_is_allowed() -> None:
    """The range is that of its bytes."""
    with pytest.raises(ValueError, match=r"integer of 2 bytes: read 65536; allowed: 0 to 65535$"):
        data_types.write_two_byte_integer(65_536)


@given(TEXTS)
def test_strings_survive(text: str) -> None:
    """Every string of valid characters is read as it was written."""
    encoded = data_types.write_utf8_string(text)
    assert data_types.read_utf8_string(encoded, 0) == (text, len(encoded))


@given(st.integers(0, 268_435_455))
def test_variable_byte_integers_survive(value: int) -> None:
    """Every value is read as it was written, in the fewest bytes."""
    encoded = data_types.write_variable_byte_integer(value)
    assert data_types.read_variable_byte_integer(encoded, 0) == (value, len(encoded))
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
