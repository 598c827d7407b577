from __future__ import annotations

from typing import Any

import pytest
from amqtt.broker import RetainedApplicationMessage

from penstock.broker.mqtt.packets import Publish, Subscribe, SubscriptionRequest
from tests.broker.amqtt_host.hosting import ACL, ANONYMOUS, AsksElsewhere, Broker, Recorder, named
from tests.helpers.sinks import HoldingSink

PLUGINS: dict[str, Any] = {ANONYMOUS: None, named(Recorder): None}


async def subscribed(broker: Broker, client_id: str, topic_filter: str, qos: int) -> Any:
    """Return a client with one subscription."""
    client = await broker.connect(client_id)
    await client.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
    client.received()
    return client


def context_of(broker: Broker) -> Any:
    """Return the context that a plugin has."""
    return broker.plugin(Recorder).context


async def test_broadcast_reaches_subscribers_with_their_own_qos() -> None:
    """A plugin's message goes to each subscriber with the QoS it was granted."""
    broker = Broker(PLUGINS)
    one = await subscribed(broker, "one", "a/#", 0)
    two = await subscribed(broker, "two", "a/b", 1)
    await context_of(broker).broadcast_message("a/b", b"data")
    for client, qos in ((one, 0), (two, 1)):
        (publish,) = client.received()
        assert isinstance(publish, Publish)
        assert (publish.topic, publish.payload, publish.qos) == ("a/b", b"data", qos)
        assert not publish.retain


async def test_broadcast_with_a_qos_is_delivered_with_no_more() -> None:
    """The QoS that a plugin gives is the most its message is delivered with."""
    broker = Broker(PLUGINS)
    client = await subscribed(broker, "c", "t", 2)
    await context_of(broker).broadcast_message("t", bytearray(b"data"), 1)
    (publish,) = client.received()
    assert publish.qos == 1


@pytest.mark.parametrize("topic", ["a/+", "#", ""])
async def test_topic_that_is_none_is_a_value_error(topic: str) -> None:
    """A plugin that publishes to no valid topic hears of it; nothing is sent."""
    broker = Broker(PLUGINS)
    with pytest.raises(ValueError, match="opic"):
        await context_of(broker).broadcast_message(topic, b"data")
    with pytest.raises(ValueError, match="opic"):
        await context_of(broker).retain_message(topic, b"data")


async def test_retained_message_of_a_plugin_meets_later_subscribers() -> None:
    """It is kept, told to plugins, delivered at a subscribe, and forgotten without data."""
    broker = Broker(PLUGINS)
    context = context_of(broker)
    await context.retain_message("t", b"kept", 1)
    told = broker.plugin(Recorder).told("retained")
    assert told["client_id"] is None
    assert told["retained_message"].data == b"kept"
    client = await broker.connect()
    await client.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
    assert client.published() == [("t", b"kept")]
    assert context.retained_messages["t"].data == b"kept"
    await context.retain_message("t", b"")
    assert len(context.retained_messages) == 0
    assert broker.plugin(Recorder).told("retained")["retained_message"].data == b""


class Retaining(HoldingSink):
    """A sink that is offered all that is to be retained."""

    takes_retained = True


async def test_a_sink_that_takes_what_is_retained_is_offered_a_plugins() -> None:
    """Other sinks are not: nobody is sent it."""
    broker = Broker(PLUGINS)
    retaining, other = Retaining("x", name="retaining"), HoldingSink("t")
    for sink in (retaining, other):
        broker.core.add_sink(sink)
    await context_of(broker).retain_message("t", b"kept", 1)
    assert [message.payload for message in retaining.messages] == [b"kept"]
    assert not other.messages


async def test_retained_messages_are_a_table_by_topic() -> None:
    """A plugin that restores retained messages writes them into the table, as in aMQTT."""
    broker = Broker(PLUGINS)
    client = await broker.connect("publisher")
    await client.send(Publish("a", b"1", retain=True))
    table = context_of(broker).retained_messages
    table["b"] = RetainedApplicationMessage(None, "b", b"2", 1)
    assert {topic: (kept.data, kept.qos) for topic, kept in table.items()} == {
        "a": (b"1", 0),
        "b": (b"2", 1),
    }
    assert table["a"].source_session.client_id == "publisher"
    assert table["b"].source_session is None
    del table["a"]
    assert list(broker.core.retained.by_topic) == ["b"]
    with pytest.raises(KeyError):
        del table["a"]


async def test_sessions_are_those_of_the_broker() -> None:
    """A plugin finds connected and disconnected sessions, each with its state."""
    broker = Broker(PLUGINS)
    await broker.connect("here", clean_start=False)
    away = await broker.connect("away", clean_start=False)
    away.lose()
    context = context_of(broker)
    states = {session.client_id: session.transitions.state for session in context.sessions}
    assert states == {"here": "connected", "away": "disconnected"}
    assert context.get_session("away") is context.get_session("away")
    assert context.get_session("nobody") is None
    assert len(context._broker_instance.sessions) == 2


async def test_subscriptions_are_listed_by_filter() -> None:
    """Each topic filter has its sessions and their QoS."""
    broker = Broker(PLUGINS)
    await subscribed(broker, "one", "a/#", 0)
    await subscribed(broker, "two", "a/#", 1)
    subscriptions = context_of(broker).subscriptions
    assert {
        topic_filter: [(session.client_id, qos) for session, qos in found]
        for topic_filter, found in subscriptions.items()
    } == {"a/#": [("one", 0), ("two", 1)]}


async def test_offline_session_takes_messages_until_its_client_comes() -> None:
    """A plugin that restores sessions makes one with subscriptions, which then queues."""
    broker = Broker(PLUGINS)
    context = context_of(broker)
    await context.add_subscription("later", None, None)
    await context.add_subscription("later", "t", 1)
    session = context.get_session("later")
    assert session.transitions.state == "disconnected"
    await context.broadcast_message("t", b"waits")
    assert session.retained_messages_count == 1
    client = await broker.connect("later", clean_start=False)
    assert client.published() == [("t", b"waits")]
    assert context.get_session("later") is session
    assert session.parent == 1


async def test_subscription_that_a_topic_plugin_refuses_is_not_made() -> None:
    """A plugin's subscription is subject to the same filters as a client's."""
    broker = Broker({**PLUGINS, ACL: {"acl": {"anonymous": ["allowed"]}}})
    context = context_of(broker)
    await context.add_subscription("c", None, None)
    broker_of_plugin = context._broker_instance
    session = context.get_session("c")
    assert await broker_of_plugin.add_subscription(("allowed", 1), session) == 1
    assert await broker_of_plugin.add_subscription(("refused", 1), session) == 0x80
    assert await broker_of_plugin.add_subscription(("$share/g/refused", 1), session) == 0x80
    assert list(context.subscriptions) == ["allowed"]
    with pytest.raises(ValueError, match="opic"):
        await broker_of_plugin.add_subscription(("a/#/b", 1), session)


async def test_subscription_is_made_when_a_waiting_plugin_allows_it() -> None:
    """The answer of a topic plugin that has to wait is waited for."""
    broker = Broker({named(AsksElsewhere): None, named(Recorder): None})
    client = await broker.connect("c", username="good", password=b"")
    assert client.is_connected
    context = context_of(broker)
    session = context.get_session("c")
    assert await context._broker_instance.add_subscription(("good/1", 1), session) == 1
    assert await context._broker_instance.add_subscription(("bad/1", 1), session) == 0x80


async def test_broker_of_a_plugin_has_its_configuration_and_manager() -> None:
    """What older plugins take from the broker behind the context is there."""
    broker = Broker(PLUGINS, listeners={"default": {"bind": "127.0.0.1:0"}})
    behind = context_of(broker)._broker_instance
    assert behind.config.listeners["default"].bind == "127.0.0.1:0"
    assert behind.plugins_manager is broker.host.manager


async def test_plugin_that_asks_before_the_broker_is_there_is_told() -> None:
    """A client that has not come yet cannot be asked for."""
    broker = Broker(PLUGINS)
    broker.host._core = None
    with pytest.raises(RuntimeError, match="on_broker_pre_start"):
        list(context_of(broker).sessions)


async def test_session_that_has_ended_takes_no_subscription() -> None:
    """A plugin that kept a session too long gets aMQTT's answer for a failure."""
    broker = Broker(PLUGINS)
    client = await broker.connect("gone")
    session = context_of(broker).get_session("gone")
    client.lose()
    behind = context_of(broker)._broker_instance
    assert await behind.add_subscription(("t", 0), session) == 0x80
