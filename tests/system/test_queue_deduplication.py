"""What a queue stores once, and what it refuses before anybody gets it, by real processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.client import QueueClient
from tests.helpers.gateway import stored_payloads
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.wire import WireClient, connected

QUEUE = "load"


def policy(*, persistence: bool = False, **keys_of_queue: Any) -> dict[str, Any]:
    """Return a policy with a queue on the disk."""
    layout = {"topics": ["load/#"], "groups": {"reader": {"kind": "offsets"}}, **keys_of_queue}
    section = {"path": "queue.db", "http": "127.0.0.1:0", "queues": {QUEUE: layout}}
    keys = {"persistence": {"path": "sessions.db"}} if persistence else {}
    return anonymous_policy({"queue": section}, **keys)


def stored(broker: BrokerProcess) -> list[bytes]:
    """Return every payload in the queue."""
    return sorted(stored_payloads(broker.queue_url, QUEUE))


async def publisher(broker: BrokerProcess, version: int) -> WireClient:
    """Connect the publisher to its session, if it has one."""
    client = await WireClient.dial(broker.port, version)
    properties = {"session_expiry_interval": 600} if version == 5 else {}
    connack = await client.connect("p", clean_start=False, properties=properties)
    assert connack.reason_code == 0
    return client


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("persistence", [False, True])
async def test_a_qos_2_message_is_stored_once_over_a_kill(
    tmp_path: Path,
    version: int,
    persistence: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """The publisher has not seen its PUBREC, and sends all of its window again.

    Without persistence the broker knows nothing of the messages after the kill, as if it had been
    killed between the queue's commit and its own: the queue alone finds out.
    """
    window = {number: b"%d" % number for number in range(1, 51)}
    messages = [Publish("load/1", text, qos=2, packet_id=n) for n, text in window.items()]
    with running_broker(policy(persistence=persistence), tmp_path) as broker:
        async with await publisher(broker, version) as client:
            await client.send(*messages)
            for _ in window:
                await client.take(PubRec)
            broker.kill()
    again = [Publish("load/1", text, qos=2, packet_id=n, dup=True) for n, text in window.items()]
    with running_broker(policy(persistence=persistence), tmp_path) as broker:
        async with await publisher(broker, version) as client:
            await client.send(*again)
            for _ in window:
                await client.take(PubRec)
            assert stored(broker) == sorted(window.values())
            # Some are released before the next kill; their packet identifiers are free.
            released = list(window)[:20]
            await client.send(*map(PubRel, released))
            for _ in released:
                await client.take(PubComp)
            broker.kill()
    with running_broker(policy(persistence=persistence), tmp_path) as broker:
        async with await publisher(broker, version) as client:
            new = {number: b"new %d" % number for number in released}
            await client.send(
                *(Publish("load/1", text, qos=2, packet_id=n, dup=True) for n, text in new.items()),
                *again[20:],
            )
            for _ in window:
                await client.take(PubRec)
            assert stored(broker) == sorted([*window.values(), *new.values()])


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_a_full_queue_refuses_does_not_reach_live_subscribers(
    tmp_path: Path, qos: int
) -> None:
    """However often it is repeated; an MQTT 3.1.1 client waits for its acknowledgement."""
    with running_broker(policy(max_messages=2), tmp_path) as broker:
        async with (
            await connected(broker.port, "s") as subscriber,
            await connected(broker.port, "p5") as publisher,
            await connected(broker.port, "p4", version=4) as waiting,
        ):
            await subscriber.subscribe("#", 0)
            kind: type[PubAck | PubRec] = PubAck if qos == 1 else PubRec
            for number in range(1, 6):
                await publisher.send(Publish("load/1", b"%d" % number, qos=qos, packet_id=number))
                answer = await publisher.take(kind)
                assert answer.reason_code == (0 if number <= 2 else ReasonCode.QUOTA_EXCEEDED)
            await waiting.send(Publish("load/1", b"waits", qos=qos, packet_id=1))
            await publisher.send(Publish("other", b"end"))
            found = [(await subscriber.take(Publish)).payload for _ in range(3)]
            assert found == [b"1", b"2", b"end"]
            with contextlib.closing(QueueClient(broker.queue_url)) as client:
                assert client.purge(QUEUE) == 2
            assert (await waiting.take(kind)).packet_id == 1
            assert (await subscriber.take(Publish)).payload == b"waits"
            assert stored(broker) == [b"waits"]
