from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Will,
)
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.writer import publish_header, write_packet
from tests.broker.mqtt.strategies import publishes
from tests.broker.mqtt.vectors import VECTORS, Vector


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_each_packet_is_written_to_its_bytes(vector: Vector) -> None:
    """The packet gives the bytes of the specification's figures, in their shortest form."""
    assert write_packet(vector.packet, vector.version).hex(" ") == vector.frame.hex(" ")


@pytest.mark.parametrize("version", [4, 5])
@given(data=st.data())
@settings(deadline=None)
def test_header_and_payload_are_the_packet(version: int, data: st.DataObject) -> None:
    """What is written apart is what is written whole."""
    packet = data.draw(publishes(version))
    header = publish_header(
        packet.topic.encode(),
        len(packet.payload),
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        packet_id=packet.packet_id,
        properties=packet.properties,
        version=version,
    )
    assert header + packet.payload == write_packet(packet, version)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "remaining", [120, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455]
)
def test_header_announces_the_whole_packet(remaining: int, qos: int, version: int) -> None:
    """Remaining Length counts what follows it, over all its lengths (Table 1-1)."""
    payload_bytes = remaining - 5 - (2 if qos else 0) - (1 if version == 5 else 0)
    header = publish_header(b"a/b", payload_bytes, qos=qos, packet_id=1, version=version)
    start, announced = read_remaining_length(header, 0)
    assert announced == remaining
    assert len(header) + payload_bytes == start + remaining


def test_header_of_a_packet_that_cannot_be() -> None:
    """A payload that makes the packet longer than the format allows is our error."""
    with pytest.raises(ValueError, match="268435456; allowed: 0 to 268435455"):
        publish_header(b"a", 268_435_456 - 3, version=4)


def test_header_leaves_properties_out_for_3_1_1() -> None:
    """A message that came with properties goes to MQTT 3.1.1 subscribers without."""
    properties = {"content_type": "text"}
    assert publish_header(b"a", 0, properties=properties, version=4) == b"\x30\x03\0\1a"
    assert b"text" in publish_header(b"a", 0, properties=properties, version=5)


@pytest.mark.parametrize(
    ("code", "sent"), [(0, 0), (2, 2), (0x80, 0x80), (0x87, 0x80), (0xA2, 0x80)]
)
def test_suback_of_3_1_1_has_one_refusal(code: int, sent: int) -> None:
    """0x80 is what MQTT 3.1.1 has for every refusal (3.9.3)."""
    assert write_packet(SubAck(1, (code,)), 4)[-1] == sent


def test_acknowledgement_of_3_1_1_has_no_reason_below_refusal() -> None:
    """No matching subscribers (0x10) is a plain success in MQTT 3.1.1."""
    assert write_packet(PubAck(1, 0x10), 4) == write_packet(PubAck(1), 4)
    assert write_packet(UnsubAck(1, (0x11,)), 4) == b"\xb0\2\0\1"


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (ConnAck(reason_code=0x95), "no CONNACK that says packet too large"),
        (PubAck(1, 0x97), "no PUBACK that says quota exceeded"),
        (PubRec(1, 0x80), "no PUBREC that says unspecified error"),
        (Disconnect(0x8B), "no DISCONNECT that says server shutting down"),
        (Auth(), "no AUTH"),
        (Subscribe(1, (SubscriptionRequest("a", no_local=True),)), "no option but QoS"),
        (Subscribe(1, (SubscriptionRequest("a", retain_as_published=True),)), "no option but QoS"),
        (Subscribe(1, (SubscriptionRequest("a", retain_handling=1),)), "no option but QoS"),
        (Connect(protocol_version=4, password=b""), "no password without a user name"),
    ],
)
def test_what_3_1_1_cannot_say_is_not_said_otherwise(packet: Packet, reason: str) -> None:
    """An acknowledgement that refuses would be read as one that accepts."""
    with pytest.raises(ValueError, match=reason):
        write_packet(packet, 4)


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (PubAck(0), "packet id: read 0; allowed: 1 to 65535"),
        (PubAck(65_536), "packet id: read 65536"),
        (Publish("a", qos=1), "packet id: read 0"),
        (Subscribe(0, (SubscriptionRequest("a"),)), "packet id: read 0"),
        (Connect(keep_alive=65_536), "integer of 2 bytes: read 65536"),
        (Connect(will=Will("t", bytes(65_536))), "65536 bytes; allowed: at most 65535"),
        (Connect(client_id="\0"), "U\\+0000"),
        (Publish("a", properties={"will_delay_interval": 1}), "read 'will_delay_interval'"),
    ],
)
def test_fields_that_do_not_fit_are_named(packet: Packet, reason: str) -> None:
    """A packet that the format has no bytes for is our error, and says where."""
    with pytest.raises(ValueError, match=reason):
        write_packet(packet, 5)
