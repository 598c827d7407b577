"""Machines that leave and come while messages are stored and received."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.crc import key_slot

from penstock.broker.message import Message
from penstock.plugins.queue.cluster.changing import Change
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, read_nodes_file
from penstock.plugins.queue.cluster.servers import Servers, until
from penstock.plugins.queue.cluster.trial import Trial
from penstock.plugins.queue.cluster.view import faults_of, look
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec, StorageError
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.engines.redis.pipeline import Patience
from penstock.plugins.queue.engines.redis.server import RedisServer
from tests.helpers.fabric import machines, write_nodes_file
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, UNTIL_SECONDS

LOGGER = logging.getLogger("penstock.queue")
N_PARTS = 12
MOST_QUEUES = 2
"""Of a master: there are 8, and 14 slots with keys, those of identifiers and catalogue counted."""
BACKLOG = 20
"""Messages of each physical queue that wait while slots move."""
PAUSE_SECONDS = 0.01
"""Between two messages: processor time is left to what is tested."""


class Traffic:
    """Publishers that repeat what was not acknowledged, and a receiver.

    Args:
        engine: that is open, with the queue `q`.
    """

    def __init__(self, engine: RedisEngine) -> None:
        self.stored: Counter[bytes] = Counter()
        self.received: Counter[bytes] = Counter()
        self._engine = engine
        self._is_over = False
        self._n_live = 0

    async def store(self, payload: bytes, number: int) -> None:
        """Store a message; repeat it, as a publisher does, until it is acknowledged."""
        new = NewMessage(Message("t", payload), deduplication_id=payload)
        while True:
            assert self._engine.reserve("q", 1, len(payload))
            try:
                await self._engine.append("q", number, [new])
            except StorageError:
                continue
            self.stored[payload] += 1
            return

    async def receive(self, number: int, n_messages: int = 100) -> int:
        """Receive messages of a physical queue and acknowledge them; return how many."""
        received = await self._engine.lease("q", "g", number, n_messages, MANY_BYTES)
        handles = [message.receipt_handle for message in received]
        if handles:
            assert await self._engine.settle("q", "g", "ack", handles) == {}
        self.received.update(message.payload for message in received)
        return len(received)

    async def publish(self) -> None:
        """Store to each physical queue in turn, and receive one where one was stored."""
        while not self._is_over:
            self._n_live += 1
            number = self._n_live % N_PARTS
            await self.store(b"live %d" % self._n_live, number)
            await self.receive(number, 1)
            await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Store and receive during the block."""
        self._is_over = False
        publishing = asyncio.create_task(self.publish())
        before = self.stored.total()
        try:
            yield
        finally:
            self._is_over = True
            await publishing
        assert self.stored.total() > before


def kill_machine(pids: list[int]) -> None:
    """End servers as a power cut does."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


async def faults(config: FabricConfig, servers: Servers) -> list[str]:
    """Return what is not as the rings want it."""
    return faults_of(await look(servers, config), config)


async def queues_of_masters(config: FabricConfig, servers: Servers, keys: list[str]) -> list[int]:
    """Return how many of some keys each master has."""
    slots = [key_slot(key.encode()) for key in keys]
    return [
        sum(first <= slot <= last for slot in slots for first, last in shard.master.slots)
        for shard in (await look(servers, config)).shards.values()
    ]


async def test_machines_leave_and_come_and_no_message_is_lost_or_doubled(tmp_path: Path) -> None:
    """One is drained and added again; then it dies, is drained dead, and traffic goes on."""
    with machines("abcd") as nodes:
        (tmp_path / "admin").write_text("secret")
        keys = {"replicas": 1, "admin_password_file": str(tmp_path / "admin")}
        file = write_nodes_file(tmp_path, nodes, **keys)
        config = read_nodes_file(file)
        without = {name: node for name, node in nodes.items() if name != "c"}
        (tmp_path / "three").mkdir()
        smaller = read_nodes_file(write_nodes_file(tmp_path / "three", without, **keys))
        servers = Servers(config.login())
        trial = Trial(config, file, tmp_path / "trial", lambda _: None)
        await trial.start()
        cluster = tuple(smaller.servers_of(name)[0].address for name in smaller.nodes)
        patience = Patience(retry_seconds=UNTIL_SECONDS, min_replicas=1)
        server = RedisServer(cluster=cluster, login=config.login(), patience=patience)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue(
            "q", QueueSpec(physical_queues=N_PARTS, groups={"g": GroupSpec()})
        )
        traffic = Traffic(engine)
        for n in range(BACKLOG * N_PARTS):
            await traffic.store(b"backlog %d" % n, n % N_PARTS)
        told: list[str] = []
        async with traffic.going_on():
            await Change(servers, config, config.rings.without_node("c"), told.append).drain("c")
        assert [line for line in told if line.startswith("slot ")]
        assert await faults(smaller, servers) == []
        told.clear()
        async with traffic.going_on():
            await Change(servers, config, config.rings, told.append).add("c")
        assert [line for line in told if line.startswith("slot ")]
        assert await faults(config, servers) == []
        incarnation = engine.snapshot("q").incarnation
        keys_of = [f"penstock:{{{incarnation}.{number}}}" for number in range(N_PARTS)]
        assert max(await queues_of_masters(config, servers, keys_of)) <= MOST_QUEUES

        pids = [
            int((await servers.info(one.address, "server"))["process_id"])
            for one in config.servers_of("c")
        ]
        async with traffic.going_on():
            kill_machine(pids)

            async def is_taken_over() -> bool:
                found = (await look(servers, config)).shards
                own = [shard for queue, shard in found.items() if queue.home == "c"]
                dead = {one.address for one in config.servers_of("c")}
                return len(own) == 2 and not any(one.master.address in dead for one in own)

            await until(is_taken_over, "its replicas take over")
            await Change(servers, config, config.rings.without_node("c"), told.append).drain("c")
        assert await faults(smaller, servers) == []
        for number in range(N_PARTS):
            while await traffic.receive(number):
                pass
        assert traffic.received == traffic.stored
        assert set(traffic.stored.values()) == {1}
        await engine.close()
        await servers.close()
        await trial.stop()
