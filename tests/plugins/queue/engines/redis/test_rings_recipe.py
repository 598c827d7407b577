"""The recipe of docs/how-to/fabric.md: a cluster on rings is made, and its machines change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.broker.message import Message
from penstock.models.papers.fabric.rings import Rings
from penstock.netem.runs.broker_process import RunningBroker, reserved_port
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec, StorageError
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.login import Login
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, UNTIL_SECONDS
from tests.test_docs import DOCS, blocks

PAGE = DOCS / "how-to" / "fabric.md"
PORT = 7000
N_SERVERS = 4
"""Servers of each machine, which has one replica of each master."""
PASSWORD = "secret"
N_PARTS = 12
BACKLOG = 20
"""Messages of each physical queue that wait while slots move."""
PAUSE_SECONDS = 0.01
"""Time between two messages, so that the servers get processor time."""


class Fabric:
    """Machines, each of which is a loopback address that no other test has.

    Args:
        folder: of their servers.
        network: first three numbers of their addresses.
        names: of the machines in the order of the circle.
    """

    def __init__(self, folder: Path, network: str, names: str) -> None:
        self.addresses = {name: f"{network}.{at + 1}" for at, name in enumerate(names)}
        self._folder = folder
        self._servers: dict[str, list[RunningBroker]] = {name: [] for name in names}

    def start(self, name: str) -> None:
        """Start the servers of a machine with the settings of the page."""
        (settings,) = blocks(PAGE, "conf")
        for port in range(PORT, PORT + N_SERVERS):
            folder = self._folder / f"{name}{port}"
            folder.mkdir()
            own = f"""
                port {port}
                bind {self.addresses[name]}
                cluster-announce-ip {self.addresses[name]}
                dir {folder}
                requirepass {PASSWORD}
                masterauth {PASSWORD}
                repl-diskless-sync-delay 0
                """
            file = folder / "redis.conf"
            file.write_text(settings.replace("timeout 5000", "timeout 1000") + own)
            server = RunningBroker(f"{name}:{port}", ["redis-server", str(file)], folder)
            self._servers[name].append(server)
            server.wait_until_listening(port)

    def kill(self, name: str) -> None:
        """End the servers of a machine as a power cut does."""
        for server in self._servers[name]:
            server.kill()

    def stop(self) -> None:
        """End all servers."""
        for name in self._servers:
            self.kill(name)

    async def put_on_rings(self, names: str) -> None:
        """Run the script of the page with some of the machines."""
        (command,) = [text for text in blocks(PAGE, "sh") if "rings.sh" in text]
        words = [*command.split()[:2], *(self.addresses[name] for name in names)]
        environment = {"REPLICAS": "1", "PORT": str(PORT), "REDISCLI_AUTH": PASSWORD}
        done = await asyncio.to_thread(
            subprocess.run,
            words,
            cwd=PAGE.parent,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=10 * UNTIL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    async def placed(self, login: Login) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return each master's machine, its ring from 0, and the machines of its replicas."""
        lines = (await login.ask((self.addresses["a"], PORT), "CLUSTER", "NODES")).decode()
        name_of = {address: name for name, address in self.addresses.items()}
        members = [line.split() for line in lines.splitlines()]
        place = {
            one[0]: (name_of[one[1].split(":")[0]], int(one[1].split(":")[1].split("@")[0]) - PORT)
            for one in members
        }
        replicas: dict[str, list[str]] = {}
        for one in members:
            replicas.setdefault(one[3], []).append(place[one[0]][0])
        return sorted(
            (*place[one[0]], tuple(sorted(replicas.get(one[0], []))))
            for one in members
            if len(one) > 8
        )


async def until_placed(fabric: Fabric, login: Login, names: str) -> None:
    """Wait until the first machine has heard that all servers are where the rings want them."""
    async with asyncio.timeout(UNTIL_SECONDS):
        while await fabric.placed(login) != wanted(names):  # noqa: ASYNC110 (a server tells nobody)
            await asyncio.sleep(PAUSE_SECONDS)


def wanted(names: str) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return what `Fabric.placed` says of paper 001's rings."""
    rings = Rings(list(names), copies=2)
    return sorted((one.home, one.ring, rings.holders(one)[1:]) for one in rings.queues)


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

    @contextlib.asynccontextmanager
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


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    """Start four machines."""
    with reserved_port() as port:  # this test alone has it, and so the addresses made of it
        started = Fabric(tmp_path, f"127.{port >> 8}.{port & 255}", "abcd")
        try:
            for name in "abcd":
                started.start(name)
            yield started
        finally:
            started.stop()


async def test_machines_leave_and_come_and_no_message_is_lost_or_doubled(
    fabric: Fabric, tmp_path: Path
) -> None:
    """One is drained and added again; then it dies, is left out, and traffic goes on."""
    (tmp_path / "password").write_text(PASSWORD)
    login = Login(None, str(tmp_path / "password"), None)
    await fabric.put_on_rings("abcd")
    await until_placed(fabric, login, "abcd")

    nodes = tuple((fabric.addresses[name], PORT) for name in "abd")
    patience = Patience(retry_seconds=UNTIL_SECONDS, min_replicas=1)
    server = RedisServer(cluster=nodes, login=login, patience=patience)
    engine = RedisEngine(server, logger=logging.getLogger("penstock.queue"))
    await engine.open()
    await engine.create_queue("q", QueueSpec(physical_queues=N_PARTS, groups={"g": GroupSpec()}))
    traffic = Traffic(engine)
    for n in range(BACKLOG * N_PARTS):
        await traffic.store(b"backlog %d" % n, n % N_PARTS)

    for names in ("abd", "abcd"):
        async with traffic.going_on():
            await fabric.put_on_rings(names)
        await until_placed(fabric, login, names)
    async with traffic.going_on():
        fabric.kill("c")
        await fabric.put_on_rings("abd")
    await until_placed(fabric, login, "abd")

    for number in range(N_PARTS):
        while await traffic.receive(number):
            pass
    assert traffic.received == traffic.stored
    assert set(traffic.stored.values()) == {1}
    await engine.close()
