from __future__ import annotations

import pytest

from penstock.broker.errors import MalformedPacketError, ProtocolError
from penstock.edge_proxy.sidecar.direction import Direction, check_first_byte

FROM_A_CLIENT_ONLY = {0x10, 0x82, 0xA2, 0xC0, 0xE0}
FROM_A_BROKER_ONLY = {0x20, 0x90, 0xB0, 0xD0}
PUBLISH = {0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D}
BOTH = {0x40, 0x50, 0x62, 0x70} | PUBLISH
DISCONNECT_AND_AUTH = {0xE0, 0xF0}
"""MQTT 5.0 has both in each direction; earlier servers send no DISCONNECT, and there is no AUTH."""

PACKETS = BOTH | FROM_A_CLIENT_ONLY | FROM_A_BROKER_ONLY | DISCONNECT_AND_AUTH


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("version", [4, 5])
def test_each_first_byte_goes_where_the_tables_let_it(direction: Direction, version: int) -> None:
    """Tables 2-1 and 2-2: direction of flow and flags; everything else is refused."""
    is_upstream = direction is Direction.UPSTREAM
    allowed = BOTH | (FROM_A_CLIENT_ONLY if is_upstream else FROM_A_BROKER_ONLY)
    if version == 5:
        allowed |= DISCONNECT_AND_AUTH
    for first_byte in range(256):
        if first_byte in allowed:
            check_first_byte(first_byte, direction, version)
            continue
        with pytest.raises(ProtocolError if first_byte in PACKETS else MalformedPacketError):
            check_first_byte(first_byte, direction, version)


def test_the_error_names_packet_and_sender() -> None:
    """A log line says who has sent what."""
    with pytest.raises(ProtocolError, match=r"SUBSCRIBE from the broker, in MQTT 5\.0"):
        check_first_byte(0x82, Direction.DOWNSTREAM, 5)
    with pytest.raises(ProtocolError, match=r"AUTH from the client, in MQTT 3\.1\.1"):
        check_first_byte(0xF0, Direction.UPSTREAM, 4)
    with pytest.raises(MalformedPacketError, match="read 0x36"):
        check_first_byte(0x36, Direction.UPSTREAM, 5)


@pytest.mark.parametrize("first_byte", [0x4F, 0x6A, 0x8A, 0xAB, 0xC1, 0xE8])
def test_flags_that_mqtt_3_1_does_not_use_pass(first_byte: int) -> None:
    """DUP of a SUBSCRIBE that is sent again, for one; they are reserved since MQTT 3.1.1."""
    check_first_byte(first_byte, Direction.UPSTREAM, 3)
    with pytest.raises(MalformedPacketError):
        check_first_byte(first_byte, Direction.UPSTREAM, 4)


@pytest.mark.parametrize("first_byte", [0x36, 0x38, 0x60, 0x91, 0x00])
def test_other_flags_pass_in_no_version(first_byte: int) -> None:
    """Nor does SUBACK go to a broker."""
    with pytest.raises((MalformedPacketError, ProtocolError)):
        check_first_byte(first_byte, Direction.UPSTREAM, 3)
