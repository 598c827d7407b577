"""Packet types, protocol versions and the limits of the wire format."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class PacketType(IntEnum):
    """Control Packet types: the high four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class QoS(IntEnum):
    """Quality of Service of one delivery."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


class ProtocolVersion(IntEnum):
    """The protocol level byte of CONNECT."""

    MQTT_3_1 = 3
    MQTT_3_1_1 = 4
    MQTT_5 = 5


MQTT_5: Final = int(ProtocolVersion.MQTT_5)
"""The version as a plain number, for code that runs for each packet: looking up an enum member and
comparing with it takes 0.15 us, ten times as long."""

MQTT_3_1: Final = int(ProtocolVersion.MQTT_3_1)
"""The plain number of the version with a different CONNECT and CONNACK."""

PUBLISH: Final = int(PacketType.PUBLISH)
"""The plain number of the type of most packets."""


BRIDGE_BIT: Final = 0x80
"""This bit of the protocol level identifies a bridge in versions without another way."""

MAX_PACKET_ID: Final = 65_535
MAX_REMAINING_LENGTH: Final = 268_435_455
"""Largest value of a variable byte integer, in bytes [MQTT-1.5.5]."""
MAX_STRING_BYTES: Final = 65_535
