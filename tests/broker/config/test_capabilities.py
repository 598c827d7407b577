"""What the broker does not offer, by the options of the policy file: said and refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    PubRec,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

UTF_8: dict[str, Any] = {"payload_format_indicator": 1}


def broker_with(**options: Any) -> VirtualBroker:
    """Return a broker with these options."""
    return VirtualBroker(options=MqttOptions(**options))


def refused(broker: VirtualBroker, connect: Connect) -> ConnAck:
    """Send a CONNECT that must be refused and return its CONNACK."""
    client = VirtualClient(broker, connect.protocol_version)
    client.send(connect)
    assert client.is_lost
    assert len(broker.core.sessions) == 0
    return client.take(ConnAck)


@pytest.mark.mqtt5("3.2.2-9")
def test_connack_says_what_is_not_offered() -> None:
    """And nothing of what is, since that is what silence means."""
    names = {
        "maximum_qos": 1,
        "retain_available": 0,
        "wildcard_subscription_available": 0,
        "subscription_identifier_available": 0,
        "shared_subscription_available": 0,
    }
    everything = VirtualBroker().connect().connack.properties
    assert not everything.keys() & names.keys()
    assert not everything.keys() & {"response_information", "server_reference", "reason_string"}
    less = broker_with(
        maximum_qos=1,
        retain_available=False,
        wildcard_subscription_available=False,
        subscription_identifiers_available=False,
        shared_subscription_available=False,
    ).connect()
    assert {name: less.connack.properties[name] for name in names} == names


@pytest.mark.mqtt5("3.2.2-11", "3.2.2-14")
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("options", "packet", "code"),
    [
        ({"maximum_qos": 0}, Publish("t", b"x", 1, packet_id=1), 0x9B),
        ({"maximum_qos": 1}, Publish("t", b"x", 2, packet_id=1), 0x9B),
        ({"retain_available": False}, Publish("t", b"x", retain=True), 0x9A),
        ({"retain_available": False}, Publish("t", b"x", 1, retain=True, packet_id=1), 0x9A),
    ],
)
def test_a_publish_that_needs_more_ends_the_connection(
    options: dict[str, Any], packet: Publish, code: int, version: int
) -> None:
    """With the reason code of the specification; older versions have no word for it."""
    broker = broker_with(**options)
    watcher = broker.connect("w")
    watcher.subscribe("t")
    client = broker.connect("p", version)
    client.publish("t", b"fine")
    client.send(packet)
    assert client.is_lost
    if version == 5:
        assert client.take(Disconnect).reason_code == code
    assert client.inbox == []
    assert watcher.payloads() == [b"fine"]
    assert len(broker.core.retained) == 0


@pytest.mark.mqtt5("3.2.2-10")
@pytest.mark.parametrize("version", [4, 5])
def test_subscriptions_are_granted_up_to_the_maximum_qos(version: int) -> None:
    """A SUBSCRIBE may ask for any."""
    broker = broker_with(maximum_qos=1)
    client = broker.connect("s", version)
    assert [client.subscribe("t", qos) for qos in (0, 1, 2)] == [0, 1, 1]
    assert client.session.subscriptions["t"].qos == 1


@pytest.mark.mqtt5("3.2.2-12", "3.2.2-13")
@pytest.mark.parametrize(
    ("options", "options_of_will", "code"),
    [
        ({"maximum_qos": 1}, {"qos": 2}, ReasonCode.QOS_NOT_SUPPORTED),
        ({"retain_available": False}, {"retain": True}, ReasonCode.RETAIN_NOT_SUPPORTED),
        (
            {"check_payload_format": True},
            {"payload": b"\xff", "properties": UTF_8},
            ReasonCode.PAYLOAD_FORMAT_INVALID,
        ),
    ],
)
def test_a_will_that_needs_more_is_refused(
    options: dict[str, Any], options_of_will: dict[str, Any], code: int
) -> None:
    """CONNACK says why; the same will is taken where the broker offers all."""
    connect = Connect(client_id="c", will=will(**options_of_will))
    connack = refused(broker_with(**options), connect)
    assert connack.reason_code == code
    assert "Will" in connack.properties["reason_string"]
    assert VirtualBroker().connect("c", will=will(**options_of_will)).connack.reason_code == 0


@pytest.mark.parametrize(
    ("options", "packet", "code"),
    [
        (
            {"wildcard_subscription_available": False},
            Subscribe(1, (SubscriptionRequest("a"), SubscriptionRequest("a/+"))),
            ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
        ),
        (
            {"subscription_identifiers_available": False},
            Subscribe(1, (SubscriptionRequest("a"),), {"subscription_identifier": [1]}),
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        ),
        (
            {"shared_subscription_available": False},
            Subscribe(1, (SubscriptionRequest("a"), SubscriptionRequest("$share/g/a"))),
            ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        ),
    ],
)
def test_a_subscribe_that_needs_more_ends_the_connection(
    options: dict[str, Any], packet: Packet, code: int
) -> None:
    """MQTT 5.0, 3.2.2.3.11 to 3.2.2.3.13: the client was told."""
    client = broker_with(**options).connect()
    client.send(packet)
    assert client.take(Disconnect).reason_code == code
    assert client.is_lost


def test_mqtt_3_1_1_is_told_of_a_share_by_its_suback() -> None:
    """It was told nothing before: the other filters of its SUBSCRIBE are taken."""
    client = broker_with(shared_subscription_available=False).connect("c", 4)
    assert client.subscribe("$share/g/a") == 0x80
    assert client.subscribe("a") == 0


@pytest.mark.mqtt311("3.8.3-2")
def test_mqtt_3_1_1_is_told_of_a_wildcard_by_its_suback() -> None:
    """It was told nothing before: the other filters of its SUBSCRIBE are taken."""
    client = broker_with(wildcard_subscription_available=False).connect("c", 4)
    assert client.subscribe("a/#") == 0x80
    assert client.subscribe("a") == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_not_what_it_says_is_refused(qos: int) -> None:
    """MQTT 5.0, 3.3.2.3.2: payload format invalid, where the acknowledgement can say it."""
    broker = broker_with(check_payload_format=True)
    watcher = broker.connect("w")
    watcher.subscribe("#")
    client = broker.connect("p")
    ids = {"packet_id": 1} if qos else {}
    client.publish("t", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n".encode(), properties=UTF_8)
    client.publish("t", b"\xff any bytes")
    client.publish("t", b"\xff", qos=qos, properties=UTF_8, **ids)
    kinds: list[type[Disconnect | PubAck | PubRec]] = [Disconnect, PubAck, PubRec]
    packet = client.take(kinds[qos])
    assert packet.reason_code == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert "UTF-8" in packet.properties["reason_string"]
    assert client.is_lost == (qos == 0)
    assert len(watcher.payloads()) == 2


@pytest.mark.mqtt5("3.3.2-4")
def test_the_payload_format_is_not_checked_by_default() -> None:
    """The indicator passes as it came; whether it is true is between the clients."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("#")
    broker.connect("p").publish("t", b"\xff", properties=UTF_8)
    assert watcher.take(Publish).properties == UTF_8


@pytest.mark.parametrize(
    ("redirect", "code"),
    [("temporary", ReasonCode.USE_ANOTHER_SERVER), ("permanent", ReasonCode.SERVER_MOVED)],
)
def test_every_client_is_sent_to_another_server(redirect: str, code: int) -> None:
    """MQTT 5.0, 4.11: with the reference; MQTT 3.1.1 is told that the server is unavailable."""
    broker = broker_with(server_reference="b.example:1883 c.example", redirect=redirect)
    connack = refused(broker, Connect(client_id="c"))
    assert connack.reason_code == code
    assert connack.properties == {"server_reference": "b.example:1883 c.example"}
    old = refused(broker, Connect(client_id="c", protocol_version=4))
    assert old.reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert broker.core.counters.peer_errors == {}


@pytest.mark.parametrize("reference", [None, "b.example"])
def test_a_broker_that_stops_says_where_else_to_go(reference: str | None) -> None:
    """Use another server, with the reference; without one, the server is shutting down."""
    broker = broker_with(server_reference=reference)
    client, old = broker.connect("c"), broker.connect("old", 4)
    client.connection.client.shut_down(broker.now)
    old.connection.client.shut_down(broker.now)
    broker.settle()
    expected = (
        Disconnect(ReasonCode.USE_ANOTHER_SERVER, {"server_reference": "b.example"})
        if reference
        else Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    )
    assert client.take(Disconnect) == expected
    assert client.is_lost
    assert old.is_lost
    assert old.inbox == []


@pytest.mark.mqtt5("3.1.2-28")
def test_response_information_goes_to_who_asks() -> None:
    """With the Client Identifier in its place, which may be an assigned one."""
    asks = {"request_response_information": 1}
    broker = broker_with(response_information="answers/{client_id}")

    def answer(client_id: str, properties: dict[str, Any]) -> str | None:
        connack = broker.connect(client_id, properties=properties).connack
        return connack.properties.get("response_information")

    assert answer("a", asks) == "answers/a"
    assert answer("", asks) == "answers/assigned-1"
    assert answer("a", {}) is None
    assert answer("a", {"request_response_information": 0}) is None
    assert answer("a/+", asks) is None
    assert "response_information" not in VirtualBroker().connect(properties=asks).connack.properties
