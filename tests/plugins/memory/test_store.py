from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PayloadStore, PluginContext
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Publish, Subscribe, SubscriptionRequest, Will
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.payload import STORED_ABOVE_BYTES, Payload
from penstock.plugins.memory.config import MemoryConfig
from penstock.plugins.memory.spill import SpillStore
from penstock.plugins.memory.store import CopyStore, MemoryPlugin
from tests.helpers.clock import Clock
from tests.helpers.durable import DurableBroker
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker, VirtualClient


def made(**keys: Any) -> MemoryPlugin:
    """Return the plugin as a policy file with these keys makes it."""
    config = validate_config(MemoryConfig, keys, "policy.yaml", "plugins.memory")
    context = PluginContext(logging.getLogger("test"), "policy.yaml", Clock())
    return MemoryPlugin(config, context)


def test_the_store_is_the_one_that_the_policy_names(tmp_path: Path) -> None:
    """By default it is the broker's own, by reference."""
    assert made().payload_store is None
    assert made(store="reference").payload_store is None
    assert isinstance(made(store="copy").payload_store, CopyStore)
    store = made(store="spill", memory_limit="1 MB", directory=str(tmp_path)).payload_store
    assert isinstance(store, SpillStore)
    kept = [store.keep(bytes(100_000)) for _ in range(20)]
    assert store.memory_bytes <= 1_000_000
    assert store.memory_bytes + store.disk_bytes == 2_000_000
    assert len(kept) == 20


async def test_two_brokers_may_share_a_directory(tmp_path: Path) -> None:
    """Their files have no names, so neither sees the other's."""
    plugins = [made(store="spill", memory_limit=0, directory=str(tmp_path)) for _ in range(2)]
    kept = []
    for plugin, letter in zip(plugins, (b"a", b"b"), strict=True):
        await plugin.start()
        assert isinstance(plugin.payload_store, SpillStore)
        kept.append(plugin.payload_store.keep(letter * 5000))
    assert [payload.read() for payload in kept] == [b"a" * 5000, b"b" * 5000]


async def test_a_directory_that_takes_no_file_ends_the_start(tmp_path: Path) -> None:
    """The place in the policy file, what was read and what is allowed are named."""
    await made(store="reference", directory=str(tmp_path / "none")).start()
    with pytest.raises(ConfigError) as caught:
        await made(store="spill", directory=str(tmp_path / "none")).start()
    told = str(caught.value)
    assert "plugins.memory.directory" in told
    assert f"{tmp_path / 'none'}: No such file or directory" in told
    assert "a directory that is there" in told


def checked(**keys: Any) -> MemoryConfig:
    """Return the configuration that a policy file with these keys gives."""
    return validate_config(MemoryConfig, keys, "policy.yaml", "plugins.memory")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"memory_limit": -1}, "plugins.memory.memory_limit: read -1"),
        ({"memory_limit": "32 megs"}, "plugins.memory.memory_limit: read '32 megs'"),
        ({"memory_limit": "MB"}, "a text with a unit of bytes, such as 64 KiB or 10 MB"),
        ({"memory_limit": 1.5}, "plugins.memory.memory_limit"),
        ({"memory_limit": None}, "plugins.memory.memory_limit"),
        ({"disk_limit": "-3 MB"}, "plugins.memory.disk_limit"),
        ({"directory": ""}, "plugins.memory.directory"),
        ({"store": "disk"}, "'reference', 'spill' or 'copy'"),
        ({"limit": 3}, "plugins.memory.limit"),
    ],
)
def test_wrong_values_are_named(keys: dict[str, Any], told: str) -> None:
    """A wrong key or value is told with its place and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        checked(**keys)
    assert told in str(caught.value)


PAYLOAD = b"x" * (STORED_ABOVE_BYTES + 1)


def paused(broker: VirtualBroker, name: str, *topic_filters: str) -> VirtualClient:
    """Return a subscriber that is there and reads nothing."""
    client = broker.connect(name, clean_start=False, properties={"session_expiry_interval": 600})
    for topic_filter in topic_filters:
        client.subscribe(topic_filter, 2)
    client.connection.pause_sending(broker.now)
    return client


def waiting(broker: VirtualBroker) -> list[Payload]:
    """Return the payloads that wait for all subscribers."""
    return [
        delivery.message.payload
        for session in broker.core.sessions
        for delivery in session.outbox.waiting()
    ]


def publish(client: VirtualClient, topic: str, qos: int, n_messages: int) -> None:
    """Publish messages in one chunk, twice, so that the topic is known the second time."""
    for first in (1, n_messages + 1):
        packets = [
            Publish(topic, PAYLOAD, qos, packet_id=number if qos else 0)
            for number in range(first, first + n_messages)
        ]
        client.send_bytes(b"".join(write_packet(packet, client.version) for packet in packets))


def live(qos: int, n_messages: int) -> Callable[[VirtualBroker], None]:
    """Return what publishes to subscriptions of one's own."""

    def go(broker: VirtualBroker) -> None:
        for name in "ab":
            paused(broker, name, "t")
        publish(broker.connect("p"), "t", qos, n_messages)

    return go


def shared(broker: VirtualBroker) -> None:
    """Publish to two shared subscriptions."""
    for name in "ab":
        paused(broker, name, f"$share/{name}/t")
    broker.connect("p").publish("t", PAYLOAD, qos=1)


def wills(broker: VirtualBroker) -> None:
    """Lose a client with a will."""
    for name in "ab":
        paused(broker, name, "w")
    broker.connect("p", will=Will("w", PAYLOAD, qos=1)).lose()


def from_the_broker(broker: VirtualBroker) -> None:
    """Publish as the broker itself does, and plugins of aMQTT."""
    for name in "ab":
        paused(broker, name, "t")
    broker.core.router.publish(Message("t", broker.core.keep(PAYLOAD), qos=1), broker.now)


WAYS = {
    "QoS 0, alone": live(0, 1),
    "QoS 0, in a chunk": live(0, 3),
    "QoS 1, alone": live(1, 1),
    "QoS 1, in a chunk": live(1, 3),
    "QoS 2, in a chunk": live(2, 3),
    "shared": shared,
    "will": wills,
    "broker": from_the_broker,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_subscriber_has_a_payload_of_its_own(way: str) -> None:
    """Paper 002's baseline: what waits for two subscribers takes twice the memory."""
    broker = VirtualBroker(payload_store=CopyStore())
    WAYS[way](broker)
    payloads = waiting(broker)
    assert len(payloads) >= 2
    assert set(payloads) == {PAYLOAD}
    assert len(set(map(id, payloads))) == len(payloads)


@pytest.mark.parametrize("way", WAYS)
def test_by_reference_all_subscribers_have_one_payload(way: str) -> None:
    """Paper 002, lazy allocation: what waits for two takes no more than for one."""
    broker = VirtualBroker()
    WAYS[way](broker)
    payloads = waiting(broker)
    assert len(set(map(id, payloads))) == len(payloads) // 2


@pytest.mark.parametrize("n_messages", [1, 3])
def test_what_leaves_at_once_is_copied_for_each_reader_too(n_messages: int) -> None:
    """A QoS 0 message that nobody has to wait for is in both connections' hands."""
    broker = VirtualBroker(payload_store=CopyStore())
    readers = [broker.connect(name) for name in "ab"]
    publisher = broker.connect("p")
    for reader in readers:
        reader.subscribe("t")
        reader.serve = lambda _now: None  # type: ignore[method-assign, assignment]  # keeps what is to be written
    publish(publisher, "t", 0, n_messages)
    payloads = [
        part for reader in readers for part in reader.connection.outgoing.out if part == PAYLOAD
    ]
    assert len(payloads) == 4 * n_messages
    assert len(set(map(id, payloads))) == len(payloads)


def test_what_is_retained_is_copied_for_each_that_subscribes() -> None:
    """A new subscription's payload is its own, beside the one that is retained."""
    broker = VirtualBroker(payload_store=CopyStore())
    broker.connect("p").publish("t", PAYLOAD, qos=1, retain=True)
    readers = [broker.connect(name) for name in "ab"]
    for reader in readers:
        reader.serve = lambda _now: None  # type: ignore[method-assign, assignment]
        reader.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
    sent = [delivery.message.payload for r in readers for delivery in r.session.inflight]
    payloads = [*sent, broker.core.retained.by_topic["t"].payload]
    assert payloads == [PAYLOAD] * 3
    assert len(set(map(id, payloads))) == 3


def test_each_queue_has_a_payload_of_its_own() -> None:
    """A sink is a subscriber among others."""
    sinks = [HoldingSink("sinks", name="a"), HoldingSink("sinks", name="b")]
    broker = VirtualBroker(payload_store=CopyStore(), sinks=sinks)
    paused(broker, "s", "sinks")
    broker.connect("p").publish("sinks", PAYLOAD, qos=1)
    payloads = [*waiting(broker), *(sink.messages[0].payload for sink in sinks)]
    assert payloads == [PAYLOAD] * 3
    assert len(set(map(id, payloads))) == 3


class NotingStore(PayloadStore):
    """Notes what it is given to keep."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def keep(self, data: bytes) -> Payload:
        """Keep a payload."""
        self.kept.append(data)
        return data


def test_what_a_restart_finds_is_the_store_s_again() -> None:
    """As before it: copies stay copies, and a store that bounds the memory gets all to keep."""
    broker = DurableBroker(payload_store=CopyStore())
    for name in "ab":
        paused(broker, name, "t")
    broker.connect("p").publish("t", PAYLOAD, qos=1)
    again = DurableBroker(broker.disk, now=broker.now, payload_store=CopyStore())
    payloads = waiting(again)
    assert payloads == [PAYLOAD] * 2
    assert payloads[0] is not payloads[1]
    store = NotingStore()
    again = DurableBroker(broker.disk, now=broker.now, payload_store=store)
    assert waiting(again) == store.kept == [PAYLOAD] * 2


def test_small_payloads_stay_with_their_message() -> None:
    """A store is not asked for a payload that is joined to its header anyway."""
    broker = VirtualBroker(payload_store=CopyStore())
    for name in "ab":
        paused(broker, name, "t")
    broker.connect("p").publish("t", b"y" * STORED_ABOVE_BYTES, qos=1)
    first, second = waiting(broker)
    assert first is second
