"""Deadlines on the disk of the real broker, over downtime and over clocks that were wrong."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import Publish
from penstock.plugins.queue.client import OutgoingMessage, QueueClient
from tests.campaigns.faults.set_clocks import SetClocks
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy
from tests.helpers.wire import WireClient, connected

HOUR = 3_600.0
YEAR = 365 * 24 * HOUR
EXPIRY = 600
N_MESSAGES = 5


def policy() -> dict[str, Any]:
    """Return a policy with sessions and queues on the disk."""
    groups = {"g": {"group_expiry_seconds": 300.0}, "r": {"kind": "offsets"}}
    section = {
        "path": "queue.db",
        "durability": "normal",
        "http": "127.0.0.1:0",
        "queues": {
            "q": {"topics": ["q/#"], "physical_queues": 1, "groups": groups},
            "tick": {"retention_seconds": 0.1},
        },
    }
    persistence = {"path": "sessions.db", "durability": "normal"}
    return anonymous_policy({"queue": section}, persistence=persistence, sys_interval=0)


def started(folder: Path, clocks: SetClocks) -> BrokerProcess:
    """Start a broker that sees the clocks."""
    broker = BrokerProcess(policy(), folder, env=clocks.environment)
    assert broker.port, broker.log
    return broker


async def subscriber(port: int) -> WireClient:
    """Return the client ``s``, whose session lasts a minute."""
    kept = {"session_expiry_interval": 60}
    return await connected(port, "s", clean_start=False, properties=kept)


async def leave_messages(broker: BrokerProcess) -> None:
    """Have messages stored that wait for a session, a retained one, and one of a queue."""
    async with await subscriber(broker.port) as client:
        await client.subscribe("t/#", 1)
    topics = [*(f"t/{number}" for number in range(N_MESSAGES)), "r/kept", "q/1"]
    async with await connected(broker.port, "p") as publisher:
        for at, topic in enumerate(topics, 1):
            is_kept = topic.startswith("r/")
            await publisher.send(
                Publish(topic, b"x", 1, is_kept, False, at, {"message_expiry_interval": EXPIRY})
            )
            await publisher.receive()


async def intervals(broker: BrokerProcess) -> list[int]:
    """Return the Message Expiry Intervals with which all of them come."""
    async with await subscriber(broker.port) as client, await connected(broker.port) as reader:
        await reader.subscribe("r/#", 1)
        sent = [await client.take(Publish) for _ in range(N_MESSAGES)]
        sent.append(await reader.take(Publish))
    return [packet.properties["message_expiry_interval"] for packet in sent]


async def maintained(queue: QueueClient) -> None:
    """Wait until the queues were looked after."""
    queue.enqueue("tick", [OutgoingMessage("tick", b"")])
    async with asyncio.timeout(SECONDS):
        while queue.queue("tick")["messages"]:  # noqa: ASYNC110 (a broker tells nobody)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("before", "corrected", "after"),
    [(0.0, 0.0, -YEAR), (-HOUR, 0.0, 0.0), (YEAR, YEAR, 0.0), (0.0, YEAR, 0.0)],
    ids=["behind at the start", "set by NTP", "ahead before", "ahead at the end"],
)
async def test_a_wall_clock_that_was_wrong_changes_no_deadline(
    tmp_path: Path, before: float, corrected: float, after: float
) -> None:
    """Only the time that passed between the runs counts, on a machine that was not restarted."""
    clocks = SetClocks(tmp_path / "clocks")
    clocks.set_wall(before)
    broker = started(tmp_path, clocks)
    await leave_messages(broker)
    clocks.set_wall(corrected)
    broker.kill()
    clocks.set_wall(after)
    broker = started(tmp_path, clocks)
    assert all(EXPIRY - SECONDS < left <= EXPIRY for left in await intervals(broker))
    with closing(QueueClient(broker.queue_url)) as queue:
        (message,) = queue.receive("q", group="g")
        left = json.loads(message.properties)["message_expiry_interval"]
        assert EXPIRY - SECONDS < left <= EXPIRY
    broker.stop()


async def test_downtime_ends_messages_and_nothing_that_waits_for_a_client(tmp_path: Path) -> None:
    """A session of a minute and a group of five are there after an hour: nobody could come."""
    clocks = SetClocks(tmp_path / "clocks")
    broker = started(tmp_path, clocks)
    await leave_messages(broker)
    async with await connected(broker.port, "p") as publisher:
        for topic in ("t/lasting", "q/lasting"):
            await publisher.publish(topic, b"y")
    with closing(QueueClient(broker.queue_url)) as queue:
        await maintained(queue)
    broker.stop()
    clocks.pass_down(HOUR)
    broker = started(tmp_path, clocks)
    with closing(QueueClient(broker.queue_url)) as queue:
        await maintained(queue)
        (received,) = queue.receive("q", group="g")
        assert received.topic == "q/lasting"
    async with await subscriber(broker.port) as client:
        assert (await client.take(Publish)).topic == "t/lasting"
    broker.stop()
