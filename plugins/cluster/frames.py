"""What one node sends to another in an entry of its inbox: frames, one after the other.

Theory of operation. A frame holds PUBLISH packets as they came from clients, of one QoS and for one
*lane* of the other node: a client in its process, by which it gives them to its sessions. MQTT
3.1.1 and MQTT 5 have a lane each, as their packets differ. So has each shared subscription of which
one member is to get them. What follows in a lane stays in order, and all messages of a client's
connection that go to subscribers of their own take one lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from penstock.broker.errors import PenstockError
from penstock.broker.message import OF_MQTT_3, Message
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import MAX_PACKET_ID, MQTT_5, PUBLISH
from penstock.broker.mqtt.expiry import EXPIRY, interval_left
from penstock.broker.mqtt.properties import write_properties
from penstock.broker.mqtt.short_packets import end_of_equal_heads, number_packets
from penstock.broker.mqtt.writer import publish_header


class Lane(NamedTuple):
    """What packets are in one order for.

    Attributes:
        version: the protocol version in whose form they are, 4 or 5.
        share: the shared subscription of which one member gets each; "" for all subscribers.
    """

    version: int
    share: str = ""


LANE_4: Final = Lane(4)
LANE_5: Final = Lane(5)

MOST_MESSAGES: Final = 4096
"""The most messages of a frame, so that those of one frame never fill a window."""

MOST_FRAME_BYTES: Final = 131_072
"""A frame to which packets are added is begun anew beyond so many bytes."""

_HEAD: Final = Struct(">BBHII")
"""Version, QoS, bytes of the share's name, messages, bytes of the body; name and body follow."""


class FrameError(PenstockError):
    """An entry of an inbox is not made of frames."""


class Frame(NamedTuple):
    """A part of an entry.

    Attributes:
        lane: of all packets.
        qos: of all packets.
        n_messages: how many packets the body has.
        body: the packets.
    """

    lane: Lane
    qos: int
    n_messages: int
    body: bytes


def read_frames(data: bytes) -> Iterator[Frame]:
    """Yield the frames of an entry.

    Raises:
        FrameError: it ends within one, or a version is unknown.
    """
    position, end = 0, len(data)
    while position < end:
        if position + _HEAD.size > end:
            raise FrameError(f"frame at byte {position} of {end}: ends within its head")
        version, qos, n_name, n_messages, n_bytes = _HEAD.unpack_from(data, position)
        if version not in (4, 5):
            raise FrameError(f"frame at byte {position}: read version {version}; allowed: 4, 5")
        position += _HEAD.size
        start, stop = position + n_name, position + n_name + n_bytes
        if stop > end:
            raise FrameError(f"frame at byte {position}: ends at {stop}; there are {end}")
        lane = Lane(version, data[position:start].decode()) if n_name else _LANES[version]
        yield Frame(lane, qos, n_messages, data[start:stop])
        position = stop


_LANES: Final = {4: LANE_4, 5: LANE_5}


class _OpenFrame:
    """A frame to which packets are added."""

    __slots__ = ("n_bytes", "n_messages", "pieces", "qos")

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.n_messages = 0
        self.n_bytes = 0
        self.pieces: list[bytes] = []


class FrameBuffer:
    """Collects the frames of one entry. Neighbours of one lane and QoS share a frame.

    Attributes:
        n_bytes: of all frames, roughly.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._lanes: dict[Lane, list[_OpenFrame]] = {}

    def add(self, lane: Lane, qos: int, n_messages: int, *pieces: bytes) -> None:
        """Add packets, given in pieces, behind all others of a lane."""
        frames = self._lanes.get(lane)
        if frames is None:
            frames = self._lanes[lane] = []
        frame = frames[-1] if frames else None
        if (
            frame is None
            or frame.qos != qos
            or frame.n_messages + n_messages > MOST_MESSAGES
            or frame.n_bytes > MOST_FRAME_BYTES
        ):
            frame = _OpenFrame(qos)
            frames.append(frame)
            self.n_bytes += _HEAD.size
        n_bytes = sum(map(len, pieces))
        frame.pieces += pieces
        frame.n_messages += n_messages
        frame.n_bytes += n_bytes
        self.n_bytes += n_bytes

    def take(self) -> bytes:
        """Return the frames as the data of an entry, and begin anew."""
        parts: list[bytes] = []
        for lane, frames in self._lanes.items():
            for frame in frames:
                name, n = lane.share.encode(), frame.n_messages
                parts.append(_HEAD.pack(lane.version, frame.qos, len(name), n, frame.n_bytes))
                parts.append(name)
                parts += frame.pieces
        self._lanes.clear()
        self.n_bytes = 0
        return b"".join(parts)


# -- packets ---------------------------------------------------------------------------------------


def packet_head(message: Message, payload_bytes: int, now: float) -> bytes:
    """Return what stands before the payload of a message in the form of MQTT 5.

    Args:
        message: the message.
        payload_bytes: of its payload.
        now: monotonic seconds.
    """
    properties = dict(message.properties)
    if message.expires_at is not None:
        properties[EXPIRY] = interval_left(message.expires_at, now)
    encoded = write_properties(properties, PUBLISH) if properties else b"\0"
    return publish_header(
        message.topic_bytes,
        payload_bytes,
        message.qos,
        message.retain,
        packet_id=1,
        properties=encoded,
        version=MQTT_5,
    )


def old_packet_head(message: Message, payload_bytes: int) -> bytes:
    """Return what stands before the payload of a message in the form of MQTT 3.1.1."""
    return publish_header(
        message.topic_bytes, payload_bytes, message.qos, message.retain, packet_id=1, version=4
    )


def packet(message: Message, now: float) -> tuple[int, bytes, bytes]:
    """Return the version of a message's publisher, and its packet in that form: head and payload.

    Raises:
        OSError: the payload cannot be read back from its store.
    """
    payload = message.read_payload()
    if message.properties is OF_MQTT_3:
        return 4, old_packet_head(message, len(payload)), payload
    return MQTT_5, packet_head(message, len(payload), now), payload


def packets_of(body: bytes) -> Iterator[bytes]:
    """Yield the packets of a frame one by one."""
    position = 0
    while position < len(body):
        length, start = read_variable_byte_integer(body, position + 1)
        yield body[position : start + length]
        position = start + length


def by_topic(packets: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield each Topic Name of PUBLISH packets, how many in a row have it, and these."""
    topic, first, position, n_packets, end = b"", 0, 0, 0, len(packets)
    while position < end:
        length, start = read_variable_byte_integer(packets, position + 1)
        topic_end = start + 2 + (packets[start] << 8 | packets[start + 1])
        found = packets[start + 2 : topic_end]
        if found != topic:
            if position:
                yield topic, n_packets, packets[first:position]
            topic, first, n_packets = found, position, 0
        stop, n_bytes = start + length, start + length - position
        next_at = end_of_equal_heads(packets, packets[position:topic_end], stop, n_bytes, end)
        n_packets += (next_at - position) // n_bytes
        position = next_at
    yield topic, n_packets, packets[first:]


def renumbered(packets: bytes, packet_id: int) -> bytes:
    """Return PUBLISH packets of QoS 1 or 2 with successive Packet Identifiers.

    Neighbours of one topic and length cost one step together.

    Args:
        packets: whole packets.
        packet_id: the Packet Identifier of the first; `MAX_PACKET_ID` is followed by 1.
    """
    out = bytearray(packets)
    position, end = 0, len(packets)
    while position < end:
        length = packets[position + 1]
        start = position + 2
        if length > 0x7F:
            length, start = read_variable_byte_integer(packets, position + 1)
        id_at = start + 2 + (packets[start] << 8 | packets[start + 1])
        stop = start + length
        head = packets[position:id_at]
        if not packets.startswith(head, stop):  # unlike its neighbour: no slices for one packet
            out[id_at] = packet_id >> 8
            out[id_at + 1] = packet_id & 0xFF
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            position = stop
            continue
        n_bytes = stop - position
        stop = end_of_equal_heads(packets, head, stop, n_bytes, end)
        n_left = (stop - position) // n_bytes
        while n_left:
            n = min(n_left, MAX_PACKET_ID + 1 - packet_id)
            number_packets(out, id_at, id_at + (n - 1) * n_bytes + 2, n_bytes, packet_id)
            id_at += n * n_bytes
            n_left -= n
            packet_id += n
            if packet_id > MAX_PACKET_ID:
                packet_id = 1
        position = stop
    return bytes(out)
