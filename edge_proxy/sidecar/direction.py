"""The two directions through the proxy, and the packets that are allowed in each."""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.broker.errors import MalformedPacketError, ProtocolError
from penstock.broker.mqtt.enums import MQTT_3_1, MQTT_5, PacketType
from penstock.broker.mqtt.reader import USED_FIRST_BYTES_3_1


class Direction(Enum):
    """The direction of bytes: toward the broker or toward the client."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"

    @property
    def sender(self) -> str:
        """The sender of bytes in this direction."""
        return "client" if self is Direction.UPSTREAM else "broker"


_PUBLISH: Final = frozenset(
    0x30 | dup << 3 | qos << 1 | retain
    for dup in (0, 1)
    for qos in (0, 1, 2)
    for retain in (0, 1)
    if qos or not dup  # [MQTT-3.3.1-2]
)
_BOTH_WAYS: Final = _PUBLISH | {0x40, 0x50, 0x62, 0x70}
_FIRST_BYTES: Final = {
    Direction.UPSTREAM: _BOTH_WAYS | {0x10, 0x82, 0xA2, 0xC0, 0xE0},
    Direction.DOWNSTREAM: _BOTH_WAYS | {0x20, 0x90, 0xB0, 0xD0},
}
"""First bytes that are allowed in each direction, by Tables 2-1 and 2-2 of every version."""

_OF_MQTT_5: Final = frozenset({0xE0, 0xF0})
"""First bytes of DISCONNECT and AUTH, which MQTT 5.0 allows in both directions."""

_VERSION_NAMES: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def check_first_byte(first_byte: int, direction: Direction, version: int) -> None:
    """Check that a packet may begin with a byte.

    Raises:
        MalformedPacketError: no packet has this type and these flags [MQTT-2.1.3-1].
        ProtocolError: such a packet is not allowed in this direction in this version.
    """
    if first_byte in _FIRST_BYTES[direction]:
        return
    if version == MQTT_5 and first_byte in _OF_MQTT_5:
        return
    if version == MQTT_3_1 and USED_FIRST_BYTES_3_1.get(first_byte) in _FIRST_BYTES[direction]:
        return
    if first_byte in _OF_MQTT_5 or any(first_byte in each for each in _FIRST_BYTES.values()):
        raise ProtocolError(
            f"{PacketType(first_byte >> 4).name} from the {direction.sender}, "
            f"in MQTT {_VERSION_NAMES[version]}"
        )
    raise MalformedPacketError(
        f"first byte: read 0x{first_byte:02X}; allowed: the packet types and flags of MQTT"
    )
