"""Limits of retained messages, on a virtual clock: n are kept, n + 1 is refused or not kept."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PubAck, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.routing.retained import LEVEL_BYTES, RETAINED_BYTES
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

OF_MESSAGE = RETAINED_BYTES + LEVEL_BYTES + Message("a", b"1", publisher="c").memory_bytes + 1

LIMITS = [Limits(retained_messages=2), Limits(retained_bytes=2 * OF_MESSAGE)]

PLAIN_AND_CHECKED = [None, Access()]


def full(limits: Limits, access: Access | None = None, version: int = 5) -> VirtualClient:
    """Return a client that has retained as many messages as it may, and subscribes to all."""
    broker = VirtualBroker(limits, access=access)
    client = broker.connect("c", version)
    for topic in "ab":
        client.publish(topic, b"1", retain=True)
    assert len(broker.core.retained) == 2
    client.subscribe("#")
    assert len(client.take_all(Publish)) == 2
    return client


def retained(client: VirtualClient) -> dict[str, object]:
    """Return what is retained, by topic."""
    found = client.broker.core.retained.by_topic
    return {topic: message.payload for topic, message in found.items()}


@pytest.mark.parametrize("access", PLAIN_AND_CHECKED, ids=["plain", "checked"])
@pytest.mark.parametrize("limits", LIMITS, ids=["messages", "bytes"])
def test_mqtt_5_is_told_that_there_is_no_room(limits: Limits, access: Access | None) -> None:
    """At QoS 1 and 2, by Quota exceeded; the message goes to nobody."""
    client = full(limits, access)
    client.publish("c", b"3", qos=1, retain=True)
    reason = {"reason_string": "no room for one more retained message"}
    assert client.take(PubAck) == PubAck(1, ReasonCode.QUOTA_EXCEEDED, reason)
    client.publish("c", b"3", qos=2, packet_id=2, retain=True)
    assert client.take(PubRec) == PubRec(2, ReasonCode.QUOTA_EXCEEDED, reason)
    client.publish("a", b"22", qos=1, retain=True)
    may_grow = limits.retained_messages == 2
    assert client.take_all(PubAck)[0].reason_code == (0 if may_grow else 0x97)
    assert client.payloads() == ([b"22"] if may_grow else [])
    assert retained(client) == {"a": b"22" if may_grow else b"1", "b": b"1"}
    counters = client.broker.core.counters
    assert counters.publish_refused == {"quota exceeded (0x97)": 2 if may_grow else 3}
    assert counters.retained_discarded == 0


@pytest.mark.parametrize("access", PLAIN_AND_CHECKED, ids=["plain", "checked"])
@pytest.mark.parametrize(("version", "qos"), [(5, 0), (4, 0), (4, 1), (4, 2)])
@pytest.mark.mqtt311("3.3.1-7")
def test_who_cannot_be_told_has_the_message_routed(
    version: int, qos: int, access: Access | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not kept, and what the topic had before is not its last message any more."""
    client = full(LIMITS[1], access, version)
    for topic in ("c", "a"):
        client.publish(topic, b"33", qos=qos, retain=True)
        client.send(PubRel(1))
    assert client.payloads() == [b"33", b"33"]
    assert retained(client) == {"b": b"1"}
    assert client.broker.core.counters.retained_discarded == 2
    assert "retained message on c not kept" in caplog.text
    assert not client.is_lost


@pytest.mark.parametrize("version", [4, 5])
def test_removing_and_replacing_need_no_room(version: int) -> None:
    """An empty payload makes room, and a topic that is kept may change its message."""
    client = full(LIMITS[1], version=version)
    client.publish("a", b"2", qos=1, retain=True)
    client.publish("b", b"", qos=1, retain=True)
    client.publish("c", b"3", qos=1, retain=True)
    assert retained(client) == {"a": b"2", "c": b"3"}
    assert [packet.reason_code for packet in client.take_all(PubAck)] == [0, 0, 0]


def test_a_will_beyond_the_limits_is_routed() -> None:
    """Nobody is there to be told."""
    client = full(LIMITS[0])
    client.broker.connect("w", will=will("c", b"gone", retain=True)).lose()
    assert client.payloads() == [b"gone"]
    assert retained(client) == {"a": b"1", "b": b"1"}
