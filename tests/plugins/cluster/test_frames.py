"""What one node sends to another, from packets to frames and back."""

from __future__ import annotations

import pytest

from penstock.broker.message import OF_MQTT_3, Message
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.writer import publish_header
from penstock.plugins.cluster.frames import (
    LANE_4,
    LANE_5,
    MOST_MESSAGES,
    FrameBuffer,
    FrameError,
    Lane,
    by_topic,
    packet,
    packet_head,
    packets_of,
    read_frames,
    renumbered,
)


def published(topic: str, payload: bytes, qos: int, packet_id: int, version: int = 5) -> bytes:
    """Return a PUBLISH."""
    head = publish_header(
        topic.encode(), len(payload), qos, packet_id=packet_id, properties=b"\0", version=version
    )
    return head + payload


def packet_ids(packets: bytes, version: int = 5) -> list[int]:
    """Return the Packet Identifiers of PUBLISH packets."""
    found = []
    for one in packets_of(packets):
        start = 2 if one[1] < 0x80 else 3
        found.append(read_publish_head(one, one[0], start, len(one), version)[1])
    return found


def test_neighbours_of_one_lane_and_qos_share_a_frame_in_their_order() -> None:
    """A frame costs the receiver a step; the packets of many publishers are few frames."""
    buffer = FrameBuffer()
    buffer.add(LANE_5, 0, 1, b"one")
    buffer.add(LANE_4, 0, 2, b"four", b"five")
    buffer.add(LANE_5, 0, 1, b"two")
    buffer.add(LANE_5, 1, 1, b"three")
    assert buffer.n_bytes > 0
    assert list(read_frames(buffer.take())) == [
        (LANE_5, 0, 2, b"onetwo"),
        (LANE_5, 1, 1, b"three"),
        (LANE_4, 0, 2, b"fourfive"),
    ]
    assert buffer.n_bytes == 0
    assert not buffer.take()


def test_a_frame_has_no_more_messages_than_a_window_takes() -> None:
    """Each of QoS 1 takes a Packet Identifier at the receiver."""
    buffer = FrameBuffer()
    for _ in range(3):
        buffer.add(LANE_5, 1, MOST_MESSAGES // 2, b"x")
    assert [frame.n_messages for frame in read_frames(buffer.take())] == [
        MOST_MESSAGES,
        MOST_MESSAGES // 2,
    ]


def test_an_entry_cut_anywhere_is_an_error_that_says_where() -> None:
    """What another version has written must not be read as something else."""
    buffer = FrameBuffer()
    buffer.add(LANE_5, 1, 1, b"packet")
    data = buffer.take()
    for end in range(1, len(data)):
        with pytest.raises(FrameError, match="frame at byte"):
            list(read_frames(data[:end]))
    with pytest.raises(FrameError, match="read version 99"):
        list(read_frames(b"\x63" + data[1:]))


@pytest.mark.parametrize("version", [4, 5])
def test_packets_get_successive_identifiers_over_the_end_of_their_range(version: int) -> None:
    """The identifiers of a run are its publisher's; its receiver has others."""
    packets = [published("a/b", b"x" * n, 1, 5, version) for n in (3, 3, 3, 200, 0, 3)]
    packets += [published(f"t/{n}", b"yy", 1, 9, version) for n in range(20)]
    data = b"".join(packets)
    numbered = renumbered(data, MAX_PACKET_ID - 1)
    expected = [MAX_PACKET_ID - 1, MAX_PACKET_ID, *range(1, len(packets) - 1)]
    assert packet_ids(numbered, version) == expected
    assert len(numbered) == len(data)
    assert renumbered(renumbered(numbered, 5), MAX_PACKET_ID - 1) == numbered


def test_a_long_run_is_numbered_as_one_by_one() -> None:
    """A run is numbered at once, however long it is."""
    data = b"".join(published("topic", b"payload", 2, 1) for _ in range(1000))
    assert packet_ids(renumbered(data, 77)) == list(range(77, 1077))


def test_a_message_keeps_its_properties_and_what_is_left_of_its_expiry() -> None:
    """The other node's subscribers get what those of this one get."""
    message = Message(
        "t",
        b"data",
        qos=1,
        retain=True,
        expires_at=20.0,
        properties={"message_expiry_interval": 60, "user_property": [("a", "b")]},
    )
    data = packet_head(message, 4, now=10.0) + b"data"
    assert data[0] == 0x33
    topic_end, _, at, payload_at = read_publish_head(data, data[0], 2, len(data), 5)
    assert data[4:topic_end] == b"t"
    assert data[payload_at:] == b"data"
    assert read_publish_properties(data, at)[0] == {
        "message_expiry_interval": 10,
        "user_property": [("a", "b")],
    }


def test_each_shared_subscription_has_frames_of_its_own() -> None:
    """One member gets each of its messages, in the form of their publisher's version."""
    buffer = FrameBuffer()
    for lane in (Lane(5, "$share/g/t"), Lane(4, "$share/g/ä"), Lane(5, "$share/g/t")):
        buffer.add(lane, 1, 1, b"packet")
    assert list(read_frames(buffer.take())) == [
        (Lane(5, "$share/g/t"), 1, 2, b"packetpacket"),
        (Lane(4, "$share/g/ä"), 1, 1, b"packet"),
    ]


def test_a_message_is_sent_in_the_form_of_its_publisher_s_version() -> None:
    """So it stays in the order of the publisher's runs."""
    message = Message("t", b"data", qos=1)
    assert packet(message, 0.0) == (5, b"\x32\x0a\x00\x01t\x00\x01\x00", b"data")
    message.properties = OF_MQTT_3
    assert packet(message, 0.0) == (4, b"\x32\x09\x00\x01t\x00\x01", b"data")


def test_packets_of_one_topic_stay_together() -> None:
    """Also where they have not one length; a topic may come again."""
    packets = [published(*one, 7, 4) for one in (("t", b"1", 1), ("t", b"2", 1), ("t", b"", 1))]
    packets += [published("u", b"3" * 200, 1, 7, 4), published("t", b"4", 1, 7, 4)]
    found = [(b"t", 3, b"".join(packets[:3])), (b"u", 1, packets[3]), (b"t", 1, packets[4])]
    assert list(by_topic(b"".join(packets))) == found
