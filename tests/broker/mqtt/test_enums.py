from __future__ import annotations

from penstock.broker.mqtt.data_types import write_variable_byte_integer
from penstock.broker.mqtt.enums import (
    MAX_PACKET_ID,
    MAX_REMAINING_LENGTH,
    MAX_STRING_BYTES,
    PacketType,
    ProtocolVersion,
    QoS,
)


def test_packet_types_are_those_of_table_2_1() -> None:
    """The sixteen values of four bits, without the reserved 0."""
    assert " ".join(packet_type.name for packet_type in PacketType) == (
        "CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE "
        "UNSUBACK PINGREQ PINGRESP DISCONNECT AUTH"
    )
    assert list(PacketType) == list(range(1, 16))


def test_qos_and_versions_are_numbers_of_the_wire() -> None:
    """QoS 0 to 2; protocol levels 3 and 4 are MQTT 3.1 and 3.1.1."""
    assert list(QoS) == [0, 1, 2]
    assert list(ProtocolVersion) == [3, 4, 5]


def test_limits_are_those_of_their_bytes() -> None:
    """Two bytes for packet ids and string lengths, four of seven bits for a length."""
    assert MAX_PACKET_ID == MAX_STRING_BYTES == 2**16 - 1
    assert write_variable_byte_integer(MAX_REMAINING_LENGTH) == b"\xff\xff\xff\x7f"
