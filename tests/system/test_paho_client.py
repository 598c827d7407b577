from __future__ import annotations

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient, publish_properties
from tests.helpers.process import BrokerProcess

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])


@pytest.mark.mqtt5("4.2.0-1")
@pytest.mark.mqtt311("7.1.1-1")
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
