"""W3C Trace Context passes the broker as it came, on each of its ways."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.plugins.queue.client import QueueClient
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.wire import WireClient, connected

N_MESSAGES = 200
"""Sent in one write, so that they are handled as a run."""


def properties(number: int) -> dict[str, Any]:
    """Return the properties of a message in a trace of its own."""
    value = f"00-{number + 1:032x}-00f067aa0ba902b7-01"
    return {"user_property": [("traceparent", value), ("tracestate", f"penstock={number}")]}


async def received(client: WireClient) -> list[dict[str, Any]]:
    """Take all messages, acknowledge them, and return their properties."""
    found = []
    for _ in range(N_MESSAGES):
        packet = await client.take(Publish)
        if packet.qos:
            await client.send(PubAck(packet.packet_id))
        found.append(dict(packet.properties))
    return found


@pytest.mark.parametrize("qos", [0, 1])
async def test_each_message_keeps_its_own(tmp_path: Path, qos: int) -> None:
    """Many in one write, to plain, shared and later subscribers."""
    sent = [properties(number) for number in range(N_MESSAGES)]
    with running_broker(anonymous_policy(), tmp_path) as broker:
        async with (
            await connected(broker.port, "plain") as plain,
            await connected(broker.port, "member") as member,
            await connected(broker.port, "publisher") as publisher,
        ):
            await plain.subscribe("t", qos)
            await member.subscribe("$share/group/t", qos)
            await publisher.send(
                *(
                    Publish("t", b"x", qos=qos, packet_id=number + 1 if qos else 0, properties=one)
                    for number, one in enumerate(sent)
                )
            )
            assert await received(plain) == sent
            assert await received(member) == sent
            await publisher.send(Publish("kept", b"x", retain=True, properties=sent[0]))
            await publisher.publish("end", b"")  # it is routed once this is acknowledged
            await plain.subscribe("kept")
            assert (await plain.take(Publish)).properties == sent[0]


async def test_a_queue_gives_it_to_its_readers(tmp_path: Path) -> None:
    """A back end goes on with the trace; Spark has it in the column `user_properties`."""
    queues = {"work": {"topics": ["t"]}}
    queue = {"queue": {"engine": "memory", "http": "127.0.0.1:0", "queues": queues}}
    with running_broker(anonymous_policy(queue), tmp_path) as broker:
        async with await connected(broker.port, "publisher") as publisher:
            sent = Publish("t", b"x", qos=1, packet_id=1, properties=properties(7))
            await publisher.send(sent)
            await publisher.take(PubAck)
        client = QueueClient(broker.queue_url)
        (message,) = await asyncio.to_thread(client.receive, "work")
    pairs = [tuple(pair) for pair in json.loads(message.properties)["user_property"]]
    assert pairs == properties(7)["user_property"]
