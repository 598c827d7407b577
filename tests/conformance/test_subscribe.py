"""Sections 3.8 to 3.11: SUBSCRIBE and UNSUBSCRIBE, and their answers."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.conformance.clients import (
    IN_EACH_VERSION,
    MALFORMED,
    PROTOCOL_ERROR,
    assert_closed,
    frame,
    keep,
)
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker

# -- SUBSCRIBE


@pytest.mark.mqtt5("3.8.3-2", "4.13.1-1")
@pytest.mark.mqtt311("3.8.3-3", "4.8.0-1")
@IN_EACH_VERSION
def test_a_subscribe_without_filters_is_refused(version: int) -> None:
    """There is one at least."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(frame(0x82, "0001" + ("00" if version == 5 else "")))
    assert_closed(client, PROTOCOL_ERROR)


@pytest.mark.mqtt5("3.8.3-5")
@pytest.mark.mqtt311("3.8.3-4")
@pytest.mark.parametrize(
    ("version", "options"),
    [(5, 0x40), (5, 0x80), (4, 0x04), (4, 0x08), (4, 0x10), (4, 0x80), (4, 0x03)],
)
def test_reserved_bits_of_the_options_are_refused(version: int, options: int) -> None:
    """And so is a QoS of 3; nothing of such a packet is subscribed."""
    broker = VirtualBroker()
    client = broker.connect("c", version)
    properties = "00" if version == 5 else ""
    client.send_bytes(frame(0x82, f"0001 {properties} 0001 61 00 0001 62 {options:02x}"))
    assert_closed(client, PROTOCOL_ERROR if options == 3 else MALFORMED)
    assert broker.core.tree.n_subscriptions == 0


@pytest.mark.mqtt5("3.8.4-1", "3.8.4-2", "3.8.4-5", "3.8.4-6", "3.8.4-7", "3.9.3-1", "3.9.3-2")
@pytest.mark.mqtt311("3.8.4-1", "3.8.4-2", "3.8.4-4", "3.8.4-5", "3.9.3-1", "3.9.3-2")
@IN_EACH_VERSION
def test_one_suback_answers_for_each_filter_in_order(version: int) -> None:
    """What is granted and what is refused, in the words of the version; twice the same too."""
    access = Access()
    access.refused.add(("subscribe", "no"))
    client = VirtualBroker(access=access).connect("c", version)
    requests = [("a", 2), ("no", 1), ("b", 0), ("a", 1)]
    client.send(Subscribe(77, tuple(SubscriptionRequest(name, qos) for name, qos in requests)))
    refused = ReasonCode.NOT_AUTHORIZED if version == 5 else 0x80
    suback = client.take(SubAck)
    assert (suback.packet_id, suback.reason_codes) == (77, (2, refused, 0, 1))
    client.inbox.clear()
    client.publish("a", b"x", qos=2)
    assert client.take(Publish).qos == 1  # the last one to "a" holds


@pytest.mark.mqtt5("3.8.4-3", "3.8.4-4")
@pytest.mark.mqtt311("3.8.4-3")
@IN_EACH_VERSION
def test_a_second_subscription_to_a_filter_takes_the_place_of_the_first(version: int) -> None:
    """One copy, at the new QoS; retained messages come again; nothing queued is lost."""
    broker = VirtualBroker()
    publisher = broker.connect("p", version)
    publisher.publish("t", b"kept", qos=1, retain=True)
    client = broker.connect("s", version, **keep(version, receive_maximum=1))
    client.subscribe("t", 1)
    assert client.acknowledge() == [b"kept"]
    for number in range(2, 5):
        publisher.publish("t", b"%d" % number, qos=1, packet_id=number)
    client.subscribe("t", 0)
    came = [payload for _ in range(4) for payload in client.acknowledge()]
    assert sorted(came) == [b"2", b"3", b"4", b"kept"]
    publisher.publish("t", b"5", qos=1, packet_id=5)
    (packet,) = client.take_all(Publish)
    assert (packet.payload, packet.qos) == (b"5", 0)


@pytest.mark.mqtt5("3.8.4-8")
@pytest.mark.mqtt311("3.8.4-6")
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@IN_EACH_VERSION
def test_the_lower_qos_counts_for_retained_messages_too(
    version: int, published: int, granted: int
) -> None:
    """Whether a message comes at once or is brought by the subscribe."""
    broker = VirtualBroker()
    publisher, client = broker.connect("p", version), broker.connect("s", version)
    publisher.publish("t", b"kept", qos=published, retain=True, packet_id=published)
    assert client.subscribe("t", granted) == granted
    publisher.publish("t", b"new", qos=published, packet_id=published and published + 1)
    assert [p.qos for p in client.take_all(Publish)] == [min(published, granted)] * 2


# -- UNSUBSCRIBE


@pytest.mark.mqtt5("3.10.3-2", "4.13.1-1")
@pytest.mark.mqtt311("3.10.3-2", "4.8.0-1")
@IN_EACH_VERSION
def test_an_unsubscribe_without_filters_is_refused(version: int) -> None:
    """There is one at least."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(frame(0xA2, "0001" + ("00" if version == 5 else "")))
    assert_closed(client, PROTOCOL_ERROR)


@pytest.mark.mqtt5("3.10.4-1", "3.10.4-5", "3.11.3-2")
@pytest.mark.mqtt311("3.10.4-1", "3.10.4-5")
@pytest.mark.parametrize("other", ["a/+", "A/#", "a/b", "#", "a/#/", "+/#"])
@IN_EACH_VERSION
def test_only_the_very_same_filter_is_removed(version: int, other: str) -> None:
    """What another filter would match counts for nothing; the answer comes all the same."""
    broker = VirtualBroker()
    client = broker.connect("c", version)
    client.subscribe("a/#")
    is_valid = other != "a/#/"
    client.send(Unsubscribe(5, (other if is_valid else "a",)))
    code = (ReasonCode.NO_SUBSCRIPTION_EXISTED,) if version == 5 else ()
    assert client.inbox == [UnsubAck(5, code)]
    client.inbox.clear()
    client.publish("a/b", b"x")
    assert client.payloads() == [b"x"]
    client.send(Unsubscribe(6, ("a/#",)))
    assert client.inbox == [UnsubAck(6, (0,) if version == 5 else ())]
    client.inbox.clear()
    client.publish("a/b", b"x")
    assert client.inbox == []


@pytest.mark.mqtt5("3.10.4-2", "3.10.4-3")
@pytest.mark.mqtt311("3.10.4-2", "3.10.4-3")
@IN_EACH_VERSION
def test_what_is_under_way_is_finished_after_unsubscribe(version: int) -> None:
    """Also over a reconnect; what comes later does not."""
    broker = VirtualBroker()
    publisher, client = broker.connect("p", version), broker.connect("s", version, **keep(version))
    client.subscribe("t", 2)
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2, packet_id=2)
    first, second = client.take_all(Publish)
    client.send(Unsubscribe(3, ("t",)))
    client.take(UnsubAck)
    publisher.publish("t", b"late", qos=1, packet_id=3)
    client.send(PubRec(second.packet_id))
    assert client.inbox == [PubRel(second.packet_id)]
    client.lose()
    again = broker.connect("s", version, **keep(version))
    assert [(type(packet), packet.packet_id) for packet in again.inbox] == [  # type: ignore[union-attr]
        (Publish, first.packet_id),
        (PubRel, second.packet_id),
    ]
    again.send(PubAck(first.packet_id), PubComp(second.packet_id))
    assert again.session.settle_direct().delivered == 2
