"""Sections 3.4 to 3.7: PUBACK, PUBREC, PUBREL and PUBCOMP.

The virtual clients read with the table of reason codes at hand: a packet with a code that is not
its own would raise.
"""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.conformance.clients import answer, pair
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient


@pytest.fixture
def access() -> Access:
    """Return access control that refuses the topic "no"."""
    access = Access()
    access.refused = {("publish", "no"), ("subscribe", "no")}
    return access


@pytest.mark.mqtt5("3.4.2-1", "3.5.2-1")
@pytest.mark.parametrize("topic", ["yes", "no", "$SYS/no"])
@pytest.mark.parametrize(("qos", "kind"), [(1, PubAck), (2, PubRec)])
def test_an_answer_to_publish_has_a_code_of_its_table(
    access: Access, topic: str, qos: int, kind: type[PubAck | PubRec]
) -> None:
    """Success, or why not."""
    client = VirtualBroker(access=access).connect()
    client.publish(topic, qos=qos, packet_id=9)
    packet = client.take(kind)
    assert packet.packet_id == 9
    yes = (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    assert packet.reason_code in (yes if topic == "yes" else (ReasonCode.NOT_AUTHORIZED,))


@pytest.mark.mqtt5("3.6.2-1", "3.7.2-1")
def test_pubrel_and_pubcomp_say_success_or_not_found() -> None:
    """They have no other code."""
    publisher, subscriber = pair(VirtualBroker(), 5, 2)
    publisher.publish("t", b"x", qos=2, packet_id=5)
    publisher.send(PubRel(5), PubRel(5))
    assert publisher.take_all(PubComp) == [
        PubComp(5),
        PubComp(5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
    ]
    packet_id = subscriber.take(Publish).packet_id
    subscriber.send(PubRec(packet_id), PubComp(packet_id), PubRec(packet_id))
    assert subscriber.take_all(PubRel) == [
        PubRel(packet_id),
        PubRel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
    ]


@pytest.mark.mqtt5(
    "3.4.2-2", "3.4.2-3", "3.5.2-2", "3.5.2-3", "3.6.2-2", "3.6.2-3", "3.7.2-2", "3.7.2-3"
)
def test_answers_fit_into_the_smallest_packets(access: Access) -> None:
    """Neither Reason String nor User Property makes one longer than its code needs."""
    broker = VirtualBroker(access=access)
    client = broker.connect("c", properties={"maximum_packet_size": 20})
    client.subscribe("t", 2)
    assert _size(client, Publish("yes", qos=1, packet_id=1)) <= 5
    assert _size(client, Publish("no", qos=1, packet_id=2)) == 5
    assert _size(client, Publish("yes", qos=2, packet_id=3)) <= 5
    assert _size(client, Publish("no", qos=2, packet_id=4)) == 5
    assert _size(client, PubRel(3)) == 4
    assert _size(client, PubRel(3)) == 5
    broker.connect("p").publish("t", b"x", qos=2)
    packet_id = client.take(Publish).packet_id
    assert _size(client, PubRec(packet_id)) == 4
    client.send(PubComp(packet_id))
    assert _size(client, PubRec(packet_id)) == 5


@pytest.mark.mqtt5("3.9.2-1", "3.9.2-2", "3.11.2-1", "3.11.2-2")
def test_suback_and_unsuback_fit_into_the_smallest_packets(access: Access) -> None:
    """They hold identifier and codes, and no word more than the client has room for."""
    client = VirtualBroker(access=access).connect("c", properties={"maximum_packet_size": 20})
    assert _size(client, Subscribe(1, (SubscriptionRequest("no"),))) == 6
    assert _size(client, Unsubscribe(2, ("no",))) == 6


def _size(client: VirtualClient, packet: Packet) -> int:
    """Send a packet and return how many bytes come back."""
    return len(answer(client, packet))
