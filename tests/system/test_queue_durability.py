from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.client import QueueClient
from tests.helpers import gateway
from tests.helpers.paho_client import MQTT_3_1_1, PahoClient
from tests.helpers.process import (
    SECONDS,
    BrokerProcess,
    anonymous_policy,
    limit_files,
    running_broker,
)
from tests.helpers.wire import WireClient, connected

QUEUE = "load"
N_PHYSICAL_QUEUES = 2


def queue_policy(port: int = 0) -> dict[str, Any]:
    """Return a policy that stores what is published below `load/`."""
    layout = {
        "topics": ["load/#"],
        "groups": {"reader": {"kind": "offsets"}},
        "physical_queues": N_PHYSICAL_QUEUES,
    }
    section = {"path": "queue.db", "http": "127.0.0.1:0", "queues": {QUEUE: layout}}
    policy = anonymous_policy({"queue": section}, sys_interval=0.1)
    policy["listeners"]["default"]["bind"] = f"127.0.0.1:{port}"
    return policy


def stored_payloads(broker: BrokerProcess) -> list[bytes]:
    """Return every payload in the queue, read over HTTP as a back end does."""
    client = QueueClient(broker.queue_url)
    payloads = gateway.stored_payloads(client, QUEUE)
    client.close()
    return payloads


class Load:
    """What publishers were answered for.

    Attributes:
        acknowledged: payloads whose PUBACK or PUBREC has come.
        is_enough: set when there are as many as wanted.
    """

    def __init__(self, n_messages: int) -> None:
        self._n_messages = n_messages
        self.acknowledged: list[bytes] = []
        self.is_enough = asyncio.Event()

    def add(self, payload: bytes) -> None:
        """Note an acknowledged message."""
        self.acknowledged.append(payload)
        if len(self.acknowledged) >= self._n_messages:
            self.is_enough.set()


class Publisher:
    """Publishes without end, so many messages at a time."""

    WINDOW = 20

    def __init__(self, client: WireClient, name: str, qos: int, load: Load) -> None:
        self._client = client
        self._name = name
        self._qos = qos
        self._load = load
        self._number = 0

    async def run(self) -> None:
        """Publish until the connection ends."""
        with contextlib.suppress(ConnectionError):
            while await self._publish_window():
                pass
        self._client.close()

    async def _publish_window(self) -> bool:
        sent: dict[int, bytes] = {}
        for packet_id in range(1, self.WINDOW + 1):
            self._number += 1
            sent[packet_id] = b"%s %d" % (self._name.encode(), self._number)
        topic = f"load/{self._name}"
        await self._client.send(
            *(
                Publish(topic, payload, qos=self._qos, packet_id=packet_id)
                for packet_id, payload in sent.items()
            )
        )
        n_open = len(sent)
        while n_open:
            packet = await self._client.receive()
            if isinstance(packet, PubAck | PubRec):
                assert packet.reason_code == 0
                self._load.add(sent.pop(packet.packet_id))
                if isinstance(packet, PubRec):
                    await self._client.send(PubRel(packet.packet_id))
                    continue
            elif not isinstance(packet, PubComp):
                return False
            n_open -= 1
        return True


async def publish_and_kill(broker: BrokerProcess, name: str, n_messages: int) -> list[bytes]:
    """Kill the broker under load; return every payload that was acknowledged."""
    load = Load(n_messages)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        for version in (4, 5):
            for qos in (1, 2):
                client = await connected(broker.port, version=version)
                publisher = Publisher(client, f"{name}-{version}-{qos}", qos, load)
                tasks.create_task(publisher.run())
        await load.is_enough.wait()
        broker.kill()
    return load.acknowledged


async def test_kill_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """After `kill -9` and a restart on the same file, each acknowledged message is there, once."""
    acknowledged: list[bytes] = []
    for kill in range(2):
        with running_broker(queue_policy(), tmp_path) as broker:
            acknowledged += await publish_and_kill(broker, f"run{kill}", 500 * (kill + 1))
    with running_broker(queue_policy(), tmp_path) as broker:
        stored = await asyncio.to_thread(stored_payloads, broker)
    assert len(acknowledged) >= 1500
    assert set(acknowledged) <= set(stored)
    assert len(set(stored)) == len(stored)


def test_paho_publishes_across_a_kill(tmp_path: Path) -> None:
    """A client that repeats what is unacknowledged brings every message into the queue."""
    n_messages = 800
    with reserved_port() as port:
        with running_broker(queue_policy(port), tmp_path) as broker:
            publisher = PahoClient(port, "publisher", MQTT_3_1_1)
            published = threading.Semaphore(0)
            publisher.paho.on_publish = lambda *_: published.release()
            publisher.paho.max_inflight_messages_set(50)
            assert publisher.connect()
            for number in range(n_messages):
                publisher.paho.publish("load/paho", b"%d" % number, 1)
            for _ in range(n_messages // 4):
                assert published.acquire(timeout=SECONDS)
            broker.kill()
        with running_broker(queue_policy(port), tmp_path) as broker, publisher:
            for _ in range(n_messages - n_messages // 4):
                assert published.acquire(timeout=SECONDS)
            stored = stored_payloads(broker)
    assert {b"%d" % number for number in range(n_messages)} == set(stored)


# -- a queue that cannot write ----------------------------------------------------------------

PAYLOAD_BYTES = 20_000


def numbered(number: int) -> bytes:
    """Return a payload that says which it is."""
    return b"%d " % number + bytes(PAYLOAD_BYTES)


def stored_numbers(broker: BrokerProcess) -> list[int]:
    """Return which of the numbered payloads are in the queue, in ascending order."""
    return sorted(int(payload.split()[0]) for payload in stored_payloads(broker))


async def test_full_disk_refuses_mqtt_5_publishers(tmp_path: Path) -> None:
    """PUBACK and PUBREC carry a reason code >= 0x80; the client stays and succeeds later."""
    acknowledged: list[int] = []
    n_refused = 0
    with running_broker(queue_policy(), tmp_path) as broker:
        async with await connected(broker.port) as client:
            for number in range(40):
                if number == 10:
                    limit_files(broker, 300_000)
                if (await client.publish("load/5", numbered(number))).reason_code < 0x80:
                    acknowledged.append(number)
                else:
                    n_refused += 1
            assert acknowledged[:10] == list(range(10))
            assert n_refused > 10
            broker.wait_for_log("queue storage refuses to write: ")
            await client.send(Publish("load/5", numbered(40), qos=2, packet_id=9))
            assert (await client.take(PubRec)).reason_code >= 0x80
            # What no queue is bound to goes on, and what is stored can be read.
            assert (await client.publish("elsewhere", b"data")).reason_code < 0x80
            assert await asyncio.to_thread(stored_numbers, broker) == acknowledged
            limit_files(broker)
            assert (await client.publish("load/5", numbered(41))).reason_code < 0x80
            acknowledged.append(41)
            broker.wait_for_log("queue storage writes again; ")
            await check_sink_ledger(broker, n_refused + 1)
        broker.kill()
        assert "Traceback" not in broker.log
    with running_broker(queue_policy(), tmp_path) as broker:
        assert await asyncio.to_thread(stored_numbers, broker) == acknowledged


async def check_sink_ledger(broker: BrokerProcess, n_refused: int) -> None:
    """Wait until $SYS accounts for each message that the queue was to get."""
    async with await connected(broker.port) as watcher:
        root = "$SYS/broker/penstock/ledger/sinks/queue.load/"
        await watcher.subscribe(root + "#")
        figures: dict[str, int] = {}
        n_dropped = 0
        while (
            n_dropped != n_refused
            or figures.get("matched") != figures.get("stored", 0) + n_dropped
            or figures.get("queued", 0)
        ):
            packet = await watcher.take(Publish)
            figures[packet.topic.removeprefix(root)] = int(packet.payload)
            n_dropped = sum(n for name, n in figures.items() if name.startswith("dropped/"))


async def test_full_disk_closes_mqtt_3_1_1_publishers(tmp_path: Path) -> None:
    """No PUBACK can refuse: the connection ends without one, and the client comes again."""
    with running_broker(queue_policy(), tmp_path) as broker:
        limit_files(broker, 300_000)
        async with await connected(broker.port, version=4) as client:
            packets = [
                Publish("load/4", numbered(number), qos=1, packet_id=number)
                for number in range(1, 31)
            ]
            await client.send(*packets)
            rest = await client.rest()
            acknowledged = [packet.packet_id for packet in rest if isinstance(packet, PubAck)]
        assert acknowledged == list(range(1, len(acknowledged) + 1))
        assert len(acknowledged) < 30
        limit_files(broker)
        async with await connected(broker.port, version=4) as client:
            for packet in packets[len(acknowledged) :]:
                await client.send(replace(packet, dup=True))
                assert (await client.take(PubAck)).packet_id == packet.packet_id
        assert set(await asyncio.to_thread(stored_numbers, broker)) == set(range(1, 31))
