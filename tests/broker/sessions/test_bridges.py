from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

STATE = "$SYS/broker/connection/bridge/state"


def bridge(broker: VirtualBroker) -> VirtualClient:
    """Connect a bridge of MQTT 3.1.1."""
    return broker.connect("bridge", 4, is_bridge=True)


@pytest.mark.parametrize("qos", [0, 1])
def test_bridge_gets_none_of_its_own_messages_back(qos: int) -> None:
    """Else a message would go round between two brokers for ever."""
    broker = VirtualBroker()
    client, other = bridge(broker), broker.connect("other", 4)
    client.subscribe("#", 1)
    client.publish("t", b"own", qos=qos)
    other.publish("t", b"other", qos=qos)
    assert client.payloads() == [b"other"]


def test_bridge_is_sent_retain_as_published() -> None:
    """So that its broker retains what this one retains; other clients get it cleared."""
    broker = VirtualBroker()
    client, other, plain = bridge(broker), broker.connect("other", 4), broker.connect("plain", 4)
    client.subscribe("#")
    plain.subscribe("#")
    for retain in (True, False):
        other.publish("t", b"data", retain=retain)
    assert [packet.retain for packet in client.take_all(Publish)] == [True, False]
    assert [packet.retain for packet in plain.take_all(Publish)] == [False, False]


def test_shared_subscription_of_a_bridge_may_get_its_own() -> None:
    """No Local is not for shared subscriptions, where nobody else might take the message."""
    broker = VirtualBroker()
    client = bridge(broker)
    assert client.subscribe("$share/g/t") == 0
    client.publish("t", b"data")
    assert client.payloads() == [b"data"]


@pytest.mark.parametrize("version", [4, 5])
def test_bridge_announces_itself(version: int) -> None:
    """It may publish its own state below $SYS, and a will of it, retained."""
    broker = VirtualBroker()
    watcher = broker.connect("watcher")
    watcher.subscribe("$SYS/broker/connection/+/state")
    client = broker.connect("bridge", version, will=will(STATE, b"0", retain=True))
    client.publish(STATE, b"1", qos=1, retain=True)
    assert client.take(PubAck).reason_code == 0
    client.lose()
    assert watcher.payloads() == [b"1", b"0"]
    assert broker.core.retained.by_topic[STATE].payload == b"0"


@pytest.mark.parametrize(
    "topic", ["$SYS/broker/connection/other/state", "$SYS/broker/connection/bridge", "$SYS/x"]
)
def test_nobody_publishes_another_state(topic: str) -> None:
    """The rest of $SYS is the broker's own, and so is the state of others."""
    broker = VirtualBroker()
    watcher = broker.connect("watcher")
    watcher.subscribe("$SYS/#")
    client = bridge(broker)
    client.publish(topic, b"1")
    client.publish(topic, b"1", qos=1, retain=True)
    assert not watcher.payloads()
    assert topic not in broker.core.retained.by_topic


def test_own_state_opens_no_way_for_others() -> None:
    """A state published at QoS 0 again and again is not copied for who may not publish it."""
    broker = VirtualBroker()
    watcher = broker.connect("watcher", 4)
    watcher.subscribe(STATE)
    client, other = bridge(broker), broker.connect("other", 4)
    for _ in range(3):
        client.publish(STATE, b"1")
    other.publish(STATE, b"0")
    assert watcher.payloads() == [b"1", b"1", b"1"]


def test_states_of_bridges_count_towards_the_retained_limit() -> None:
    """Only the broker's own figures are free: who connects under many names fills nothing."""
    broker = VirtualBroker()
    bridge(broker).publish(STATE, b"1", retain=True)
    assert broker.core.retained.n_limited == 1
