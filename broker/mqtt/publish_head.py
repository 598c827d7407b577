"""Finds the parts of a PUBLISH in received bytes (section 3.3).

Three modules of `penstock.broker.fast_paths` read the same parts of packets without properties
in line, as a call for each packet costs too much there: `copied_runs`, `acknowledged_runs` and
`single_packet`. A test sends frames of all kinds, malformed ones too, to them and to this reader,
and compares the results.
"""

from __future__ import annotations

from penstock.broker.errors import MalformedPacketError, ProtocolError
from penstock.broker.mqtt.data_types import Buffer, read_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5


def read_publish_head(
    data: Buffer, first_byte: int, start: int, stop: int, version: int
) -> tuple[int, int, int, int]:
    """Find what stands before the payload of a PUBLISH; its topic and properties are not read.

    Args:
        data: bytes that hold the whole packet; others may stand before and behind it.
        first_byte: the first byte of the packet.
        start: the position where its variable header begins; the topic begins two bytes later.
        stop: the position where the packet ends.
        version: protocol version.

    Returns:
        (where the topic ends; Packet Identifier, 0 with QoS 0; where the Property Length stands;
        where the payload begins). The last two are the same below MQTT 5.

    Raises:
        MalformedPacketError: the flags are not allowed, or the packet ends too early.
        ProtocolError: Packet Identifier 0.
    """
    qos = first_byte >> 1 & 3
    if qos == 3:
        raise MalformedPacketError("PUBLISH: read QoS 3; allowed: 0, 1, 2")  # [MQTT-3.3.1-4]
    if start + 2 > stop:
        raise _ends_within("variable header")
    topic_end = position = start + 2 + (data[start] << 8 | data[start + 1])
    packet_id = 0
    if qos:
        position += 2
        if position > stop:
            raise _ends_within("variable header")
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        if not packet_id:  # [MQTT-2.2.1-3]
            raise ProtocolError("PUBLISH: packet id: read 0; allowed: 1 to 65535")
    elif position > stop:
        raise _ends_within("variable header")
    elif first_byte & 0x08:
        raise MalformedPacketError("PUBLISH: DUP set with QoS 0")  # [MQTT-3.3.1-2]
    if version != MQTT_5:
        return topic_end, packet_id, position, position
    if position == stop:
        raise _ends_within("properties")
    n_bytes = data[position]
    payload_at = position + 1
    if n_bytes:
        if n_bytes > 0x7F:
            n_bytes, payload_at = read_variable_byte_integer(data, position)
        payload_at += n_bytes
        if payload_at > stop:
            raise _ends_within("properties")
    return topic_end, packet_id, position, payload_at


def _ends_within(part: str) -> MalformedPacketError:
    return MalformedPacketError(f"PUBLISH ends within its {part}")
