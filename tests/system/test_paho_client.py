from __future__ import annotations

import socket
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.helpers.paho_client import (
    MQTT_3_1_1,
    MQTT_5,
    PahoClient,
    connect_properties,
    properties,
    publish_properties,
)
from tests.helpers.process import BrokerProcess

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])


def persistent(broker: BrokerProcess, client_id: str, version: MQTTProtocolVersion) -> PahoClient:
    """Return a connected client whose session outlives its connection."""
    if version == MQTT_5:
        client = PahoClient(broker.port, client_id, version)
        kept = connect_properties(SessionExpiryInterval=60)
        assert client.connect(clean_start=False, properties=kept)
    else:
        client = PahoClient(broker.port, client_id, version, clean_session=False)
        assert client.connect()
    return client


@pytest.mark.parametrize("of", [MQTT_3_1_1, MQTT_5], ids=["of 3.1.1", "of 5"])
@pytest.mark.parametrize("to", [MQTT_3_1_1, MQTT_5], ids=["to 3.1.1", "to 5"])
def test_each_version_and_qos_reaches_each(
    broker: BrokerProcess, of: MQTTProtocolVersion, to: MQTTProtocolVersion
) -> None:
    """A message arrives once, whole and at the lesser QoS."""
    payload = bytes(range(256)) * 500
    with PahoClient(broker.port, version=of) as publisher:
        assert publisher.connect()
        for granted in range(3):
            with PahoClient(broker.port, version=to) as subscriber:
                assert subscriber.connect()
                topic = f"matrix/{of}/{to}/{granted}"
                assert subscriber.subscribe(topic, granted)
                for qos in range(3):
                    publisher.publish(topic, payload, qos)
                    message = subscriber.message()
                    assert (message.topic, message.qos, message.dup) == (
                        topic,
                        min(qos, granted),
                        False,
                    )
                    assert bytes(message.payload) == payload


@VERSIONS
def test_persistent_session_goes_on_after_a_reconnect(
    broker: BrokerProcess, version: MQTTProtocolVersion
) -> None:
    """What came while the client was away comes in order; Session Present is told."""
    topic = f"away/{version}"
    with persistent(broker, f"sleeper {version}", version) as first:
        assert not first.connack[0]
        assert first.subscribe(topic, 1)
    with PahoClient(broker.port) as publisher:
        assert publisher.connect()
        for number in range(50):
            publisher.publish(topic, str(number).encode())
        with persistent(broker, f"sleeper {version}", version) as second:
            assert second.connack[0]
            assert second.payloads(50) == [str(number).encode() for number in range(50)]
            publisher.publish(topic, b"live")
            assert second.payloads(1) == [b"live"]


@VERSIONS
def test_unacknowledged_message_comes_again_after_a_cut(
    broker: BrokerProcess, version: MQTTProtocolVersion
) -> None:
    """Paho reconnects by itself; what it had not acknowledged comes with DUP [MQTT-4.4.0-1]."""
    topic = f"cut/{version}"
    with (
        persistent(broker, f"cut {version}", version) as client,
        PahoClient(broker.port) as publisher,
    ):
        assert publisher.connect()
        assert client.subscribe(topic, 1)
        client.paho.manual_ack_set(True)
        publisher.publish(topic, b"first")
        assert not client.message().dup
        sock = client.paho.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        again = client.message()
        assert (again.dup, bytes(again.payload)) == (True, b"first")
        client.paho.ack(again.mid, again.qos)
        publisher.publish(topic, b"second")
        assert client.payloads(1) == [b"second"]


def test_session_without_expiry_ends_with_its_connection(broker: BrokerProcess) -> None:
    """An MQTT 5 client that asks for no Session Expiry Interval finds no session later."""
    for _ in range(2):
        with PahoClient(broker.port, "short-lived") as client:
            assert client.connect(clean_start=False)
            assert not client.connack[0]
            assert client.subscribe("t", 1)


def test_properties_of_a_message_reach_the_subscriber(broker: BrokerProcess) -> None:
    """All that MQTT 5 sends along passes unchanged; the broker adds Subscription Identifiers."""
    sent = publish_properties(
        PayloadFormatIndicator=1,
        MessageExpiryInterval=1000,
        ContentType="text/plain",
        ResponseTopic="answer",
        CorrelationData=b"\x00\xff",
        UserProperty=[("b", "2"), ("a", "1"), ("b", "3")],
    )
    with PahoClient(broker.port) as subscriber, PahoClient(broker.port) as publisher:
        assert subscriber.connect()
        assert publisher.connect()
        identifier = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=42)
        assert subscriber.subscribe("properties", 1, properties=identifier)
        publisher.publish("properties", "grün".encode(), properties=sent)
        came: Any = subscriber.message().properties
        assert came.PayloadFormatIndicator == 1
        assert 0 < came.MessageExpiryInterval <= 1000
        assert came.ContentType == "text/plain"
        assert came.ResponseTopic == "answer"
        assert came.CorrelationData == b"\x00\xff"
        assert came.UserProperty == [("b", "2"), ("a", "1"), ("b", "3")]
        assert came.SubscriptionIdentifier == [42]


def test_properties_stay_behind_for_a_3_1_1_subscriber(broker: BrokerProcess) -> None:
    """MQTT 3.1.1 has no properties: topic and payload arrive."""
    with PahoClient(broker.port, version=MQTT_3_1_1) as subscriber:
        assert subscriber.connect()
        assert subscriber.subscribe("stripped", 1)
        with PahoClient(broker.port) as publisher:
            assert publisher.connect()
            sent = publish_properties(UserProperty=[("a", "1")], ContentType="text/plain")
            publisher.publish("stripped", b"data", properties=sent)
        assert subscriber.payloads(1) == [b"data"]


def test_subscription_options_of_mqtt_5(broker: BrokerProcess) -> None:
    """No Local, Retain As Published and Retain Handling do as they say (3.8.3.1)."""
    with PahoClient(broker.port) as client, PahoClient(broker.port) as publisher:
        assert client.connect()
        assert publisher.connect()
        publisher.publish("options", b"retained", retain=True)
        options = SubscribeOptions(
            1,
            noLocal=True,
            retainAsPublished=True,
            retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND,
        )
        assert client.subscribe("options", options=options)
        client.publish("options", b"own")
        publisher.publish("options", b"other", retain=True)
        message = client.message()
        assert (bytes(message.payload), message.retain) == (b"other", True)


@VERSIONS
def test_second_client_of_the_same_name_takes_over(
    broker: BrokerProcess, version: MQTTProtocolVersion
) -> None:
    """The first is disconnected, an MQTT 5 client with 0x8E [MQTT-3.1.4-3]."""
    with PahoClient(broker.port, "twin", version, reconnect_on_failure=False) as first:
        assert first.connect()
        with PahoClient(broker.port, "twin", version) as second:
            assert second.connect()
            code = first.disconnected()
            assert code.is_failure
            if version == MQTT_5:
                assert code.value == 0x8E


@VERSIONS
def test_will_carries_what_it_was_given(
    broker: BrokerProcess, version: MQTTProtocolVersion
) -> None:
    """A cut connection publishes the will with its QoS, RETAIN flag and properties."""
    topic = f"will/{version}"
    with (
        PahoClient(broker.port) as watcher,
        PahoClient(broker.port, version=version, reconnect_on_failure=False) as dying,
    ):
        assert watcher.connect()
        assert watcher.subscribe(topic, options=SubscribeOptions(2, retainAsPublished=True))
        sent = (
            properties(PacketTypes.WILLMESSAGE, ContentType="text/plain")
            if version == MQTT_5
            else None
        )
        dying.paho.will_set(topic, b"gone", 2, retain=True, properties=sent)
        assert dying.connect()
        sock = dying.paho.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        message = watcher.message()
        assert (bytes(message.payload), message.qos, message.retain) == (b"gone", 2, True)
        if version == MQTT_5:
            came: Any = message.properties
            assert came.ContentType == "text/plain"


def test_disconnect_with_will_publishes_it(broker: BrokerProcess) -> None:
    """DISCONNECT with 0x04 leaves the will to be published (3.14.2.1)."""
    with PahoClient(broker.port) as watcher, PahoClient(broker.port) as leaving:
        assert watcher.connect()
        assert watcher.subscribe("leaving", 1)
        leaving.paho.will_set("leaving", b"on purpose", 1)
        assert leaving.connect()
        leaving.paho.disconnect(ReasonCode(PacketTypes.DISCONNECT, identifier=0x04))
        assert watcher.payloads(1) == [b"on purpose"]


@VERSIONS
def test_many_messages_in_flight_keep_their_order(
    broker: BrokerProcess, version: MQTTProtocolVersion
) -> None:
    """A thousand QoS 2 messages of one topic arrive once each, in order [MQTT-4.6.0-6]."""
    topic = f"many/{version}"
    with (
        PahoClient(broker.port, version=version) as subscriber,
        PahoClient(broker.port, version=version) as publisher,
    ):
        publisher.paho.max_inflight_messages_set(100)
        assert subscriber.connect()
        assert publisher.connect()
        assert subscriber.subscribe(topic, 2)
        for number in range(1000):
            publisher.paho.publish(topic, str(number).encode(), 2)
        assert subscriber.payloads(1000) == [str(number).encode() for number in range(1000)]
