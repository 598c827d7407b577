from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.errors import PenstockError
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import Disconnect
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.operations.tail import MOST_CHARACTERS, MOST_RECORDS, MOST_TAILS, OpenTail
from tests.broker.operations.test_operations import LARGE, STAYS, operations_on
from tests.broker.serving import operations_of, port_of, serving
from tests.helpers.gates import SwitchGate
from tests.helpers.process import SECONDS
from tests.helpers.virtual import VirtualBroker, will
from tests.helpers.wire import connected


def told(tail: OpenTail) -> list[tuple[str, str, str, int]]:
    """Return kind, client, topic and bytes of the records so far."""
    return [(one.kind, one.client_id, one.topic, one.bytes) for one in tail._records]


def started(**extensions: Any) -> tuple[VirtualBroker, BrokerOperations]:
    """Return a broker on a virtual clock, and its operations."""
    broker = VirtualBroker(**extensions)
    return broker, operations_on(broker)


async def test_a_tail_tells_of_clients_and_of_messages_without_their_payloads() -> None:
    """From a CONNECT to a DISCONNECT, of every QoS."""
    broker, operations = started()
    tail = operations.tail()
    subscriber = broker.connect("s")
    subscriber.subscribe("t/#", 1)
    publisher = broker.connect("p")
    publisher.publish("t/0", b"abc")
    publisher.publish("t/1", b"abcd", qos=1)
    publisher.send(Disconnect())
    subscriber.lose()
    assert told(tail) == [
        ("connect", "s", "", 0),
        ("connect", "p", "", 0),
        ("publish", "p", "t/0", 3),
        ("deliver", "s", "t/0", 3),
        ("publish", "p", "t/1", 4),
        ("deliver", "s", "t/1", 4),
        ("disconnect", "p", "", 0),
        ("disconnect", "s", "", 0),
    ]
    ends = [one.reason for one in tail._records if one.kind == "disconnect"]
    assert ends == ["the client has disconnected", "the connection was lost"]
    assert [one.qos for one in tail._records if one.kind == "deliver"] == [0, 1]


async def test_of_a_very_long_topic_the_beginning_is_told() -> None:
    """A thousand records of 64 KiB each would wait for a slow reader."""
    broker, operations = started()
    topic = "t/" + "x" * 60_000
    tail = operations.tail(topic_filter=topic)
    broker.connect("p" * 60_000).publish(topic, b"abc")
    assert told(tail) == [("publish", "p" * MOST_CHARACTERS, topic[:MOST_CHARACTERS], 3)]


async def test_a_will_is_told_as_such() -> None:
    """Who sees a message that nobody seems to have sent finds out why it came."""
    broker, operations = started()
    broker.connect("s").subscribe("#")
    client = broker.connect("c", will=will("gone", b"c"))
    tail = operations.tail(topic_filter="gone")
    client.lose()
    assert told(tail) == [("publish", "c", "gone", 1), ("deliver", "s", "gone", 1)]
    assert tail._records[0].reason == "will"


async def test_messages_that_were_on_the_fast_paths_are_told() -> None:
    """Plans that are there are made anew; with the last tail, the fast paths are taken again."""
    broker, operations = started()
    subscriber = broker.connect("s")
    subscriber.subscribe("#", 1)
    publisher = broker.connect("p")
    publisher.publish("t", b"before")
    publisher.publish("t", b"before", qos=1)
    tail, other = operations.tail(), operations.tail()
    for qos in (0, 1):
        publisher.publish("t", b"x", qos=qos, packet_id=7 if qos else 0)
    assert [one.kind for one in tail._records] == ["publish", "deliver"] * 2
    tail.close()
    publisher.publish("t", b"y")
    assert told(other)[-1] == ("deliver", "s", "t", 1)
    other.close()
    publisher.publish("t", b"z")
    assert len(other._records) == 6
    assert subscriber.payloads()[-1] == b"z"
    core = broker.core
    assert core.is_plain
    if isinstance(core, FastCore):
        assert core.take_unchecked is not None
        assert core.fast_plans[5][b"t"].threshold_s > 0


async def test_holds_releases_and_drops_are_told_with_their_reason() -> None:
    """Which is what an operator listens for."""
    gate = SwitchGate(look_again_after=1.0)
    broker, operations = started(gate=gate, limits=Limits(queued_messages=1))
    broker.connect("s").subscribe("#", 1)
    tail = operations.tail(client_id="s")
    publisher = broker.connect("p", version=5)
    publisher.publish("a", LARGE)
    publisher.publish("b", LARGE)
    gate.is_open = True
    broker.advance(2)
    records = [(one.kind, one.topic, one.reason) for one in tail._records]
    assert records == [
        ("held", "a", "closed"),
        ("dropped", "b", "queue_full"),
        ("released", "a", "open"),
        ("deliver", "a", ""),
    ]


@pytest.mark.parametrize(
    ("narrowed", "kinds"),
    [
        ({"topic_filter": "t/+"}, {"publish", "deliver"}),
        ({"topic_filter": "u"}, set()),
        ({"client_id": "s"}, {"connect", "deliver"}),
        ({"client_id": "p"}, {"connect", "publish"}),
        ({"client_id": "p", "topic_filter": "t/#"}, {"publish"}),
        ({"address": "192.0.2.1"}, set()),
        ({"address": ""}, {"connect", "publish", "deliver"}),
    ],
)
async def test_a_tail_is_narrowed_by_topic_client_or_address(
    narrowed: dict[str, str], kinds: set[str]
) -> None:
    """All of them, where several are given."""
    broker, operations = started()
    tail = operations.tail(**narrowed)
    broker.connect("s").subscribe("t/#")
    broker.connect("p").publish("t/1", b"x")
    assert {one.kind for one in tail._records} == kinds


async def test_a_topic_is_known_where_an_alias_stands_for_it() -> None:
    """MQTT 5 clients are sent the name of a long topic once."""
    topic = "a/rather/long/topic/of/a/device"
    broker, operations = started()
    broker.connect("s", properties={"topic_alias_maximum": 5}).subscribe("#")
    tail = operations.tail(client_id="s")
    publisher = broker.connect("p")
    for _ in range(3):
        publisher.publish(topic, b"x")
    assert told(tail) == [("deliver", "s", topic, 1)] * 3


async def test_a_slow_reader_is_told_how_much_it_misses() -> None:
    """And takes no more memory than its queue."""
    broker, operations = started()
    tail = operations.tail(topic_filter="t")
    publisher = broker.connect("p")
    for _ in range(MOST_RECORDS + 3):
        publisher.publish("t", b"x")
    assert (len(tail._records), tail.n_lost) == (MOST_RECORDS, 3)


async def test_what_cannot_be_watched_is_refused() -> None:
    """A wrong filter, and more tails than a broker serves."""
    _, operations = started()
    with pytest.raises(PenstockError, match="tail: topic filter"):
        operations.tail(topic_filter="a#")
    tails = [operations.tail() for _ in range(MOST_TAILS)]
    with pytest.raises(PenstockError, match="16 are open; allowed: no more"):
        operations.tail()
    tails[0].close()
    tails[0].close()
    operations.tail().close()


async def _read(tail: OpenTail, n_records: int) -> Iterable[str]:
    found: list[str] = []
    async with asyncio.timeout(SECONDS):
        async for record in tail:
            found.append(record.kind)
            if len(found) == n_records:
                break
    return found


async def test_a_tail_of_a_broker_on_the_network_ends_with_it() -> None:
    """Each record comes as it happens; a reader that waits is not left waiting."""
    async with serving() as server:
        tail = operations_of(server).tail(address="127.0.0.1")
        port = port_of(server)
        async with await connected(port, "s") as subscriber, await connected(port, "p") as client:
            await subscriber.subscribe("t", 1)
            await client.publish("t", b"x")
            kinds = await _read(tail, 4)
        assert kinds == ["connect", "connect", "publish", "deliver"]
        rest = asyncio.create_task(_read(tail, 100))
    assert await rest == ["disconnect", "disconnect"]


async def test_a_session_that_stays_is_told_of_what_it_misses() -> None:
    """QoS 0 for a client that is away."""
    broker, operations = started()
    client = broker.connect("s", clean_start=False, properties=STAYS)
    client.subscribe("#", 1)
    client.lose()
    tail = operations.tail(client_id="s")
    broker.connect("p").publish("t", b"x")
    assert [(one.kind, one.reason) for one in tail._records] == [("dropped", "offline")]
