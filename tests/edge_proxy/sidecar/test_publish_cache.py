from __future__ import annotations

import sys

import pytest

from penstock.broker.errors import MalformedPacketError, PeerError, ProtocolError
from penstock.broker.mqtt.packets import PubAck, PubRec
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.edge_proxy.sidecar.publish_cache import (
    LONGEST_KNOWN,
    MAX_TOPICS,
    KnownTopic,
    TopicCache,
)
from tests.helpers.proxied_clients import VirtualClient, publish


class Question:
    """A gate's threshold_s that takes note of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, topic: str) -> int | None:
        """Answer with the length of the topic; None for `never`."""
        self.asked.append(topic)
        if topic == "broken":
            raise RuntimeError(topic)
        return None if topic == "never" else len(topic)


def test_the_gate_is_asked_once_for_each_topic() -> None:
    """What it answers holds for every later message of the topic."""
    question = Question()
    cache = TopicCache(question)
    assert cache.look_up("größe".encode()) == KnownTopic("größe", 5)
    assert cache.look_up("größe".encode()) == KnownTopic("größe", 5)
    assert cache.look_up(b"never").threshold_s == sys.maxsize
    assert question.asked == ["größe", "never"]


@pytest.mark.parametrize("topic", [b"a/+", b"#", b"\xff", b"a\0b"])
def test_what_is_no_topic_name_is_refused(topic: bytes) -> None:
    """Wildcards, NUL and what is not UTF-8 [MQTT-3.3.2-2] [MQTT-1.5.4-2]."""
    with pytest.raises(MalformedPacketError):
        TopicCache(Question()).look_up(topic)


def test_an_empty_topic_is_refused_as_an_alias() -> None:
    """[MQTT-3.1.2-27]: the broker was told that no Topic Alias is understood."""
    with pytest.raises(ProtocolError, match="Topic Alias Maximum") as caught:
        TopicCache(Question()).look_up(b"")
    assert isinstance(caught.value, PeerError)
    assert caught.value.reason_code == ReasonCode.TOPIC_ALIAS_INVALID


def test_the_number_of_known_topics_is_bounded() -> None:
    """However many topics a broker has, the cache does not grow without end."""
    question = Question()
    cache = TopicCache(question)
    for number in range(MAX_TOPICS + 1):
        cache.look_up(b"%d" % number)
    cache.look_up(b"%d" % MAX_TOPICS)
    cache.look_up(b"0")
    assert len(question.asked) == MAX_TOPICS + 2
    assert len(cache.known) == 2


def test_long_topics_are_not_kept() -> None:
    """They would fill the memory, few as they are."""
    question = Question()
    cache = TopicCache(question)
    topic = (LONGEST_KNOWN + 1) * b"t"
    assert cache.look_up(topic) == cache.look_up(topic)
    assert not cache.known


@pytest.mark.parametrize(("qos", "answers"), [(0, []), (1, [PubAck]), (2, [PubRec])])
@pytest.mark.parametrize("many", [[("", "")] * 257, [("", "x" * 60_000)] * 3])
def test_a_message_with_more_properties_than_are_read_is_refused_to_the_broker(
    many: list[tuple[str, str]], qos: int, answers: list[type[PubAck | PubRec]]
) -> None:
    """To read 209,000 of them would hold all clients up; the broker need not send it again."""
    proxied = VirtualClient.connected()
    message = publish("a", qos=qos, packet_id=1 if qos else 0, properties={"user_property": many})
    proxied.broker_sends(message, publish("b"))
    assert proxied.topics() == ["b"]
    assert proxied.to_broker() == [kind(1, ReasonCode.QUOTA_EXCEEDED) for kind in answers]
    client = proxied.proxied.client
    assert client.ledger.dropped == {"properties": 1}
    client.check_invariants()


def test_subscription_identifiers_are_no_user_properties() -> None:
    """A broker adds one for each subscription that matches, however many there are."""
    proxied = VirtualClient.connected()
    many = {"subscription_identifier": list(range(1, 1001))}
    proxied.broker_sends(publish("a", packet_id=1, properties=many))
    assert proxied.topics() == ["a"]
    assert not proxied.proxied.client.ledger.dropped
