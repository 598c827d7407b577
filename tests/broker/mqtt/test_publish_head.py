"""The one reader of a PUBLISH's header: whole, among other bytes, and truncated at every byte."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.errors import MalformedPacketError, PeerError, ProtocolError
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.writer import write_packet

SOME: dict[str, Any] = {"content_type": "text"}
MANY: dict[str, Any] = {"user_property": [("name", "x" * 200)]}
FORMS = [
    (version, qos, properties)
    for version in (3, 4, 5)
    for qos in (0, 1, 2)
    for properties in (({}, SOME, MANY) if version == 5 else ({},))
]


def a_publish(version: int, qos: int, properties: dict[str, Any]) -> bytes:
    """Return a PUBLISH of topic ``a/b`` and a payload of five bytes."""
    packet_id = 0x1234 if qos else 0
    packet = Publish("a/b", b"hello", qos=qos, packet_id=packet_id, properties=properties)
    return write_packet(packet, version)


@pytest.mark.parametrize(("version", "qos", "properties"), FORMS)
@pytest.mark.parametrize(("before", "behind"), [(b"", b""), (b"\xff" * 7, b"\x05" * 300)])
def test_the_parts_of_a_packet_are_found_whatever_stands_around_it(
    version: int, qos: int, properties: dict[str, Any], before: bytes, behind: bytes
) -> None:
    """Where each begins, in the positions of the bytes that were handed over."""
    packet = a_publish(version, qos, properties)
    data = before + packet + behind
    start, n_bytes = read_remaining_length(data, len(before))
    stop = start + n_bytes
    head = read_publish_head(data, packet[0], start, stop, version)
    topic_end, packet_id, properties_at, payload_at = head
    assert data[start + 2 : topic_end] == b"a/b"
    assert packet_id == (0x1234 if qos else 0)
    assert properties_at == topic_end + (2 if qos else 0)
    assert data[payload_at:stop] == b"hello"
    assert payload_at - properties_at == (
        0 if version < 5 else {"": 1, "content_type": 8, "user_property": 211}["".join(properties)]
    )


@pytest.mark.parametrize(("version", "qos", "properties"), FORMS)
def test_a_packet_that_ends_before_its_payload_is_malformed(
    version: int, qos: int, properties: dict[str, Any]
) -> None:
    """At every byte, also where the next packet's bytes stand behind it."""
    packet = a_publish(version, qos, properties)
    start, n_bytes = read_remaining_length(packet, 0)
    for behind in (b"", b"\0" * 400):
        for stop in range(start, start + n_bytes - len(b"hello")):
            with pytest.raises(MalformedPacketError):
                read_publish_head(packet[:stop] + behind, packet[0], start, stop, version)


@pytest.mark.mqtt5("3.3.1-2", "3.3.1-4", "2.2.1-3")
@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("36 07 0001 74 0001 0000", MalformedPacketError, "read QoS 3; allowed: 0, 1, 2"),
        ("38 05 0001 74 0000", MalformedPacketError, "DUP set with QoS 0"),
        ("32 06 0001 74 0000 00", ProtocolError, "packet id: read 0; allowed: 1 to 65535"),
        ("30 08 0001 74 ffffffff 7f", MalformedPacketError, "goes on after byte 4"),
    ],
)
def test_what_is_not_allowed_before_the_payload_is_named(
    data: str, error: type[PeerError], message: str
) -> None:
    """[MQTT-3.3.1-4], [MQTT-3.3.1-2], [MQTT-2.2.1-3], 1.5.5."""
    packet = bytes.fromhex(data)
    with pytest.raises(error, match=message):
        read_publish_head(packet, packet[0], 2, len(packet), 5)
