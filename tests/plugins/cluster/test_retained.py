"""Which of two retained messages of a topic stays, and when their publishers are acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LocalClients
from penstock.broker.message import Message
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.plugins.cluster.retained import RetainedSink
from tests.plugins.cluster.test_node_sink import Answer, turns


class Kept:
    """What a broker retains.

    Attributes:
        by_topic: payloads.
        publishers: of those that were taken over.
    """

    def __init__(self) -> None:
        self.by_topic: dict[str, bytes] = {}
        self.publishers: dict[str, str] = {}

    def set_retained(
        self, packet: bytes, version: int, *, publisher: str = "", age: float = 0.0
    ) -> bool:
        """Take one over."""
        assert age >= 0
        end, _, _, payload_at = read_publish_head(packet, packet[0], 2, len(packet), version)
        topic = packet[4:end].decode()
        self.publishers[topic] = publisher
        if payload_at < len(packet):
            self.by_topic[topic] = packet[payload_at:]
        else:
            self.by_topic.pop(topic, None)
        return True

    def walk_retained(self) -> Iterator[Message]:
        """Yield all."""
        for topic, payload in list(self.by_topic.items()):
            yield Message(topic, payload, retain=True)


class Node:
    """A node, with an engine that the test answers for.

    Attributes:
        kept: what its broker retains.
        calls: of the engine: topic, value, what is done with the answer.
        sink: the sink.
    """

    def __init__(self) -> None:
        self.kept = Kept()
        self.calls: list[tuple[str, bytes, asyncio.Future[object]]] = []
        self.sink = RetainedSink(
            self._retain,
            cast("LocalClients", self.kept),
            asyncio.get_running_loop().time,
            logging.getLogger("test"),
        )

    def _retain(self, topic: str, value: bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.calls.append((topic, value, future))
        return future

    def publish(self, payload: bytes, topic: str = "t") -> Answer:
        """Retain a message at this node, as its broker does."""
        message = Message(topic, payload, qos=1, retain=True, publisher="p")
        answer = Answer()
        assert self.sink.reserve(message) == ""
        self.kept.by_topic[topic] = payload
        self.sink.accept(message, answer)
        return answer

    async def answer(self) -> bytes:
        """Answer for the oldest call and return its value."""
        _, value, future = self.calls.pop(0)
        future.set_result(1)
        await turns()
        return value


async def test_a_message_is_acknowledged_when_all_nodes_will_have_it() -> None:
    """It comes to them with its publisher's name; an empty one clears the topic."""
    node, other = Node(), Node()
    answer = node.publish(b"1")
    await turns()
    assert not answer.codes
    value = await node.answer()
    assert answer.codes == [0]
    assert (node.sink.counts.stored, node.sink.bytes_on_way) == (1, 0)
    other.sink.follow("t", value)
    assert other.kept.by_topic == {"t": b"1"}
    assert other.kept.publishers == {"t": "p"}
    node.publish(b"")
    other.sink.follow("t", await node.answer())
    assert not other.kept.by_topic


async def test_an_own_message_that_is_under_way_is_not_replaced_by_one_before_it() -> None:
    """Those behind it replace it: all nodes end with the last one of the stream."""
    node, other = Node(), Node()
    other.publish(b"other 1")
    other_1 = await other.answer()
    other.publish(b"other 2")
    other_2 = await other.answer()
    node.publish(b"own 1")
    node.publish(b"own 2")
    node.sink.follow("t", other_1)
    assert node.kept.by_topic == {"t": b"own 2"}
    for _ in range(2):
        await node.answer()
        node.sink.own_seen("t")
    node.sink.follow("t", other_2)
    assert node.kept.by_topic == {"t": b"other 2"}


async def test_what_the_engine_has_not_stored_is_told_to_the_publisher() -> None:
    """And what others set later counts."""
    node, other = Node(), Node()
    answer = node.publish(b"own")
    node.calls.pop()[2].set_exception(PenstockError("OOM"))
    await turns()
    assert answer.codes == [0x97]
    assert node.sink.counts.dropped == {"not_stored": 1}
    other.publish(b"other")
    node.sink.follow("t", await other.answer())
    assert node.kept.by_topic == {"t": b"other"}


async def test_who_reads_all_anew_drops_what_is_gone_and_keeps_what_is_under_way() -> None:
    """It was too far behind the stream to follow it."""
    node, other = Node(), Node()
    other.publish(b"there", "there")
    there = await other.answer()
    node.publish(b"answered", "answered")
    answered = await node.answer()
    node.publish(b"gone", "gone")
    await node.answer()
    node.publish(b"under way", "under way")
    node.sink.restart()
    for topic, value in (("there", there), ("answered", answered)):
        node.sink.follow(topic, value)
    await node.sink.keep_only({"there", "answered"})
    assert node.kept.by_topic == {
        "there": b"there",
        "answered": b"answered",
        "under way": b"under way",
    }


async def test_an_engine_that_is_away_holds_publishers_back() -> None:
    """Who waits is told of room."""
    node = Node()
    rooms: list[str] = []
    node.sink.on_room = lambda: rooms.append("room")
    node.publish(bytes(RetainedSink.most_bytes))
    assert node.sink.reserve(Message("t", b"1", qos=1, retain=True)) == "engine_away"
    await node.answer()
    assert rooms == ["room"]


async def test_what_cannot_be_read_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Those behind it are taken over: else the node would read all anew, again and again."""
    node = Node()
    node.sink.follow("short", b"?")
    node.sink.follow("without a packet", bytes(10))
    assert not node.kept.by_topic
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "retained message of topic short:" in caplog.text


async def test_what_an_engine_has_lost_is_brought_within_the_count_of_what_is_on_its_way() -> None:
    """Else the bound would be wider from then on, by all that was brought."""
    node = Node()
    node.sink.bring(Message("t", b"1", retain=True))
    assert node.sink.bytes_on_way > 0
    node.calls[0][2].set_result(None)
    await turns()
    assert node.sink.bytes_on_way == 0
