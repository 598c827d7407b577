from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.fast_paths.message_run import MessageRun
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.frames import frames_of

MESSAGES = [("a", b"1"), ("a", b"2"), ("long/topic", b"x" * 200), ("a", b""), ("a", b"")]
SEGMENTS = [2, 1, 2]


def make_run(version: int, properties: dict[str, Any] | None = None) -> MessageRun:
    """Return a run of `MESSAGES`."""
    packets = [
        write_packet(
            Publish(topic, payload, qos=1, packet_id=9, properties=properties or {}), version
        )
        for topic, payload in MESSAGES
    ]
    names = {topic: (topic, topic.encode()) for topic, _payload in MESSAGES}
    segments = []
    index = at = 0
    for n_messages in SEGMENTS:
        topic, payload = MESSAGES[index]
        size = len(packets[index])
        between = size - packets[index].index(topic.encode()) - len(topic) - len(payload)
        segments.append(
            (n_messages, at, size, at + size - len(payload) - between, len(payload), names[topic])
        )
        index += n_messages
        at += n_messages * size
    data = b"".join(packets)
    return MessageRun(data, segments, 1, version, publisher="p", arrived_at=5.0, now=5.5)


@pytest.mark.parametrize("version", [4, 5])
def test_packets_get_identifiers_that_follow_each_other(version: int) -> None:
    """Nothing else of them changes."""
    data = make_run(version).renumbered(254)
    buffer = ReceiveBuffer(1000)
    packets = [read_packet(first, body, version) for first, body in frames_of(buffer, bytes(data))]
    assert packets == [
        Publish(topic, payload, qos=1, packet_id=254 + index)
        for index, (topic, payload) in enumerate(MESSAGES)
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_each_message_can_be_had_alone(version: int) -> None:
    """Each access returns the same object, as a message is stored once for all sessions."""
    properties = {"content_type": "c", "message_expiry_interval": 60} if version == 5 else {}
    run = make_run(version, properties)
    for index, (topic, payload) in enumerate(MESSAGES):
        message = run.message(index)
        assert (message.topic, message.topic_bytes) == (topic, topic.encode())
        assert (message.payload, message.qos, message.retain) == (payload, 1, False)
        assert (message.publisher, message.arrived_at) == ("p", 5.0)
        assert message.properties == properties
        assert message.expires_at == (65.5 if version == 5 else None)
        assert run.message(index) is message
    assert run.message(0).topic_bytes is run.message(1).topic_bytes


def test_payload_bytes_are_counted_for_any_part() -> None:
    """From one index to before another."""
    run = make_run(4)
    sizes = [len(payload) for _, payload in MESSAGES]
    assert (run.n_messages, run.payload_bytes) == (5, sum(sizes))
    assert run.largest_bytes == 200 + len("long/topic") + 7
    for first in range(6):
        for stop in range(first, 6):
            assert run.payload_bytes_of(first, stop) == sum(sizes[first:stop])
