"""What a publisher is told: that nobody gets a message, and why one was refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import ConnAck, Disconnect, PubAck, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.access import Access
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

NOBODY = ReasonCode.NO_MATCHING_SUBSCRIBERS


def answers(client: VirtualClient, topic: str) -> list[int]:
    """Publish at QoS 1 and 2; return the reason codes of PUBACK and PUBREC."""
    client.publish(topic, b"x", qos=1, packet_id=1)
    client.publish(topic, b"x", qos=2, packet_id=2)
    codes = [client.take(PubAck).reason_code, client.take(PubRec).reason_code]
    client.send(PubRel(2))
    client.inbox.clear()
    return codes


@pytest.mark.mqtt5("3.4.2-1", "3.5.2-1")
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_publisher_is_told_that_nobody_gets_its_message(*, is_checked: bool) -> None:
    """MQTT 5: No matching subscribers; MQTT 3.1.1 has no word for it."""
    access = Access() if is_checked else None
    broker = VirtualBroker(access=access)
    client = broker.connect("p")
    assert answers(client, "t") == [NOBODY, NOBODY]
    assert answers(broker.connect("old", 4), "t") == [0, 0]
    broker.connect("s").subscribe("t")
    assert answers(client, "t") == [0, 0]


def test_a_member_of_a_share_is_a_subscriber() -> None:
    """So is a client that is away: its session gets the message."""
    broker = VirtualBroker()
    client = broker.connect("p")
    broker.connect("s").subscribe("$share/g/shared", 1)
    away = broker.connect("a", clean_start=False, properties={"session_expiry_interval": 99})
    away.subscribe("away", 1)
    away.lose()
    assert answers(client, "shared") == [0, 0]
    assert answers(client, "away") == [0, 0]


def test_a_sink_takes_messages_as_a_subscriber_does() -> None:
    """And what is answered after a message that a sink has not settled says so too."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    client = broker.connect("p")
    client.publish("q/a", b"x", qos=1, packet_id=1)
    client.publish("t", b"x", qos=1, packet_id=2)
    client.publish("t", b"x", qos=2, packet_id=3)
    assert client.inbox == []
    sink.settle()
    broker.settle()
    assert client.inbox == [PubAck(1), PubAck(2, NOBODY), PubRec(3, NOBODY)]
    client.inbox.clear()
    client.send(PubRel(3))
    client.publish("t", b"x", qos=2, packet_id=3)
    assert client.inbox[-1] == PubRec(3, NOBODY)


@pytest.mark.mqtt5("3.1.2-29")
@pytest.mark.parametrize("wants_reasons", [None, 1, 0])
def test_a_refused_publisher_is_told_why_if_it_wants_to_know(wants_reasons: int | None) -> None:
    """Request Problem Information 0 keeps reasons out of PUBACK, and not out of DISCONNECT."""
    access = Access()
    access.refused = {("publish", "secret")}
    properties = {} if wants_reasons is None else {"request_problem_information": wants_reasons}
    client = VirtualBroker(access=access).connect("p", properties=properties)
    for topic, words in (("$SYS/x", "the broker's own"), ("secret", "not authorized")):
        client.publish(topic, b"x", qos=1)
        packet = client.take(PubAck)
        assert packet.reason_code == ReasonCode.NOT_AUTHORIZED
        if wants_reasons == 0:
            assert packet.properties == {}
        else:
            assert words in packet.properties["reason_string"]
    client.publish("t", b"x", properties={"topic_alias": 1000})
    assert "allowed: 1 to 64" in client.take(Disconnect).properties["reason_string"]


@pytest.mark.mqtt5("3.4.2-2", "3.14.2-3", "3.1.2-24")
def test_no_reason_is_longer_than_the_client_takes() -> None:
    """The packet goes without; what does not fit even so does not go."""
    client = VirtualBroker().connect("p", properties={"maximum_packet_size": 40})
    assert client.connack.reason_code == 0
    client.publish("$SYS/x", b"x", qos=1)
    assert client.take(PubAck) == PubAck(1, ReasonCode.NOT_AUTHORIZED)
    client.publish("t/+", b"x")
    assert client.take(Disconnect) == Disconnect(ReasonCode.MALFORMED_PACKET)


def test_a_suback_that_does_not_fit_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """[MQTT-3.1.2-24]: the log names the client, the packet and the size."""
    client = VirtualBroker().connect("small", properties={"maximum_packet_size": 20})
    packet = Publish("t", b"x")
    client.connection.client.sender.send_maximum = 5
    with caplog.at_level("WARNING"):
        client.send_bytes(b"\x82\x07\x00\x01\x00\x00\x01t\x00")
    assert client.inbox == []
    assert "client small" in caplog.text
    assert "SUBACK not sent" in caplog.text
    assert "5 bytes" in caplog.text
    client.send(packet)
    assert not client.is_lost


def test_a_wrong_connect_is_told_why() -> None:
    """CONNACK has the words of the log; they hold no character that a string may not have."""
    client = VirtualClient(VirtualBroker())
    data = bytes.fromhex("10 11 0004 4d515454 05 02 0000 03 11 0000 00 0001 63".replace(" ", ""))
    client.send_bytes(data[:1] + bytes((len(data) - 2,)) + data[2:])
    packet = client.take(ConnAck)
    assert packet.reason_code == ReasonCode.MALFORMED_PACKET
    assert packet.properties["reason_string"]
    assert client.is_lost


PROPERTIES: dict[str, Any] = {
    "user_property": [("b", "1"), ("a", "2"), ("b", "1"), ("", "\N{SNOWMAN}")],
    "correlation_data": b"\x00\xff",
    "response_topic": "answers/here",
    "content_type": "text/plain",
    "payload_format_indicator": 1,
}


@pytest.mark.mqtt5("3.3.2-4", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_of_the_publisher_pass_unaltered(qos: int) -> None:
    """User Properties in their order, to who is there, to who comes back and as retained."""
    broker = VirtualBroker()
    keep: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 99}}
    there, away = broker.connect("there"), broker.connect("away", **keep)
    for client in (there, away):
        client.subscribe("t", qos)
    away.lose()
    ids = {"packet_id": 1} if qos else {}
    publisher = broker.connect("p", properties={"request_problem_information": 0})
    publisher.publish("t", b"x", qos=qos, retain=True, properties=PROPERTIES, **ids)
    late = broker.connect("late")
    late.subscribe("t", qos)
    got = [there.take(Publish), late.take(Publish)]
    if qos:
        got.append(broker.connect("away", **keep).take(Publish))
    for packet in got:
        assert packet.properties == PROPERTIES
        assert packet.properties["user_property"] == PROPERTIES["user_property"]


@pytest.mark.mqtt5("3.1.3-10")
def test_properties_of_a_will_pass_unaltered() -> None:
    """All but the Will Delay Interval, which is the broker's alone."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("#")
    broker.connect("d", will=will(properties={**PROPERTIES, "will_delay_interval": 0})).lose()
    packet = watcher.take(Publish)
    assert packet.properties == PROPERTIES
    assert write_packet(packet, 5)
