"""Acknowledgements from a client, in their short form and the long one."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import Disconnect, PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient


@pytest.mark.mqtt5("4.3.2-3")
def test_qos1_is_delivered_when_it_is_acknowledged() -> None:
    """Until the PUBACK it is inflight, then it is booked as delivered."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 1)
    broker.connect("p").publish("t", b"x", qos=1)
    session = client.session
    assert (len(session.inflight), session.ledger.delivered) == (1, 0)
    client.acknowledge()
    assert (len(session.inflight), session.ledger.delivered) == (0, 1)
    session.check_invariants()


def test_a_puback_that_refuses_drops_the_message() -> None:
    """A reason code of 0x80 or above ends the delivery, and is counted."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 1)
    broker.connect("p").publish("t", b"x", qos=1)
    packet_id = client.take(Publish).packet_id
    client.send(PubAck(packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert client.session.ledger.dropped == {"refused": 1}
    client.session.check_invariants()


@pytest.mark.mqtt5("2.2.1-5", "4.3.3-4")
def test_qos2_to_a_subscriber_takes_both_handshakes() -> None:
    """[MQTT-4.3.3]: PUBLISH, PUBREC, PUBREL, PUBCOMP; a PUBREC that comes twice is answered."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 2)
    broker.connect("p").publish("t", b"x", qos=2)
    packet_id = client.take(Publish).packet_id
    client.send(PubRec(packet_id))
    client.send(PubRec(packet_id))
    assert [p.packet_id for p in client.take_all(PubRel)] == [packet_id, packet_id]
    assert client.session.ledger.delivered == 0
    client.send(PubComp(packet_id))
    assert client.session.ledger.delivered == 1
    client.session.check_invariants()


def test_a_pubrec_that_refuses_ends_the_delivery() -> None:
    """[MQTT-4.3.3-4] ends with a reason code of 0x80 or above."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 2)
    broker.connect("p").publish("t", b"x", qos=2)
    client.send(PubRec(client.take(Publish).packet_id, ReasonCode.UNSPECIFIED_ERROR))
    assert client.inbox == []
    assert client.session.ledger.dropped == {"refused": 1}
    client.session.check_invariants()


@pytest.mark.parametrize(("version", "code"), [(4, 0), (5, 0x92)])
def test_acknowledgements_of_nothing_are_counted_and_answered(version: int, code: int) -> None:
    """MQTT 5.0, 3.6.2.1 and 3.7.2.1: 0x92 for packet identifiers that nobody knows."""
    broker = VirtualBroker()
    client = broker.connect("c", version)
    client.send(PubAck(7), PubRec(8), PubRel(9), PubComp(10))
    assert client.inbox == [PubRel(8, code), PubComp(9, code)]
    assert broker.core.counters.unexpected_acknowledgements == 4
    assert not client.is_lost


@pytest.mark.mqtt5("4.3.3-4")
def test_a_pubrec_that_refuses_is_not_answered_where_its_message_is_unknown() -> None:
    """The client expects no PUBREL; one of success is answered by 0x92."""
    broker = VirtualBroker()
    client = broker.connect("c")
    client.send(PubRec(8, ReasonCode.UNSPECIFIED_ERROR))
    assert client.inbox == []
    assert broker.core.counters.unexpected_acknowledgements == 1
    assert not client.is_lost


@pytest.mark.mqtt5("4.3.3-10", "4.13.1-1")
@pytest.mark.mqtt311("4.3.3-2", "4.8.0-1")
@pytest.mark.parametrize("version", [4, 5])
def test_a_pubrel_before_its_pubrec_ends_the_connection(version: int) -> None:
    """By a PUBCOMP the client would take the identifier for free, and its next message be lost."""
    broker = DurableBroker()
    options: dict[str, Any] = {"clean_start": False}
    if version == 5:
        options["properties"] = {"session_expiry_interval": 600}
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    client = broker.connect("c", version, **options)
    broker.commits_at_once = False
    client.publish("t", b"1", qos=2, packet_id=7)
    client.send(PubRel(7))
    assert client.take_all(PubComp) == []
    assert client.is_lost
    if version == 5:
        assert client.take(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    broker.commits_at_once = True
    broker.commit()
    client = broker.connect("c", version, **options)
    client.publish("t", b"1", qos=2, packet_id=7, dup=True)
    client.send(PubRel(7))
    client.publish("t", b"2", qos=2, packet_id=7)
    client.send(PubRel(7))
    assert client.inbox == [PubRec(7), PubComp(7), PubRec(7), PubComp(7)]
    assert subscriber.payloads() == [b"1", b"2"]


@pytest.mark.mqtt5("2.2.1-3")
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("first_byte", [0x40, 0x50, 0x62, 0x70])
def test_packet_identifier_0_stands_for_nothing(version: int, first_byte: int) -> None:
    """[MQTT-2.2.1-3]: such an acknowledgement is a protocol error."""
    broker = VirtualBroker()
    client = broker.connect("c", version)
    client.send_bytes(bytes((first_byte, 2, 0, 0)))
    assert client.is_lost
    if version == 5:
        assert client.take(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def acknowledge(client: VirtualClient, first_byte: int, packet_id: int, tail: str) -> None:
    """Send an acknowledgement that ends in these bytes."""
    body = packet_id.to_bytes(2) + bytes.fromhex(tail)
    client.send_bytes(bytes((first_byte, len(body))) + body)


@pytest.mark.parametrize("tail", ["", "00", "0000"])
def test_a_handshake_is_the_same_in_each_form(tail: str) -> None:
    """3.4.2.1: a reason code of success and empty properties may be left out or not."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    client = broker.connect("s")
    client.subscribe("t", 2)
    publisher.publish("t", b"1", qos=1)
    publisher.take(PubAck)
    acknowledge(client, 0x40, client.take(Publish).packet_id, tail)
    publisher.publish("t", b"2", qos=2)
    publisher.take(PubRec)
    acknowledge(publisher, 0x62, 1, tail)
    assert publisher.take(PubComp).packet_id == 1
    packet_id = client.take(Publish).packet_id
    acknowledge(client, 0x50, packet_id, tail)
    assert client.take(PubRel).packet_id == packet_id
    acknowledge(client, 0x70, packet_id, tail)
    assert client.session.ledger.delivered == 2
    assert not publisher.session.incoming
    client.session.check_invariants()
