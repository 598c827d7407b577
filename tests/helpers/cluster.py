"""Brokers that are one broker, on one engine, as processes of a test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from paho.mqtt.enums import MQTTProtocolVersion
from redis import Redis

from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from penstock.netem.runs.broker_process import find_program
from tests.helpers.paho_client import MQTT_5, PahoClient
from tests.helpers.process import SECONDS, BrokerProcess, Program, anonymous_policy
from tests.helpers.redis_server import shared_redis
from tests.helpers.wire import WireClient, connected

LOOK_SECONDS: Final = 0.02
WINDOW: Final = 20
"""Messages that a publisher has unacknowledged at a time."""


def until(is_true: Callable[[], object], what: str = "it") -> None:
    """Wait for what other programs learn by themselves."""
    give_up_at = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < give_up_at, f"{what} did not come"
        time.sleep(LOOK_SECONDS)


async def reached(is_true: Callable[[], object], what: str = "it") -> None:
    """Wait for what other programs learn by themselves, on an event loop."""
    give_up_at = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < give_up_at, f"{what} did not come"
        await asyncio.sleep(LOOK_SECONDS)


class Cluster:
    """Brokers of one cluster, each in a folder of its own.

    Attributes:
        section: the keys under `cluster`, without `node`.
        plugins: further plugins of brokers that are started.
    """

    def __init__(
        self,
        folder: Path,
        redis: Mapping[str, Any] | None = None,
        *,
        plugins: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> None:
        """Make a cluster without a broker.

        Args:
            folder: of all.
            redis: the section `redis`; None for a server that tests share. A prefix is added.
            plugins: further plugins of all brokers.
            keys: further keys of their policy.
        """
        redis = redis or {"server": f"127.0.0.1:{shared_redis()}"}
        self.section: dict[str, Any] = {
            "name": "test",
            "redis": {"prefix": f"test-{uuid.uuid4().hex}", **redis},
        }
        self._folder = folder
        self.plugins: Mapping[str, Any] = plugins or {}
        self._keys = keys
        self._nodes: dict[str, BrokerProcess] = {}

    def policy(self, name: str) -> dict[str, Any]:
        """Return the policy of a broker."""
        section = self.section | {"node": name}
        return anonymous_policy(self.plugins, cluster=section, **self._keys)

    def wrapper(self, name: str) -> Sequence[str]:  # noqa: ARG002 (for those on other machines)
        """Return the command that is to run a broker in its own place."""
        return ()

    def start(self, *names: str) -> None:
        """Start brokers, or start them again; return when they serve."""
        for name in names:
            folder = self._folder / name
            folder.mkdir(parents=True, exist_ok=True)
            node = BrokerProcess(self.policy(name), folder, self.wrapper(name))
            self._nodes[name] = node
            assert node.port, f"{name} did not start:\n{node.log}"

    def __getitem__(self, name: str) -> BrokerProcess:
        """Return a broker."""
        return self._nodes[name]

    def end(self) -> None:
        """Kill what still runs."""
        for node in self._nodes.values():
            node.end()

    @contextmanager
    def client(
        self,
        name: str,
        client_id: str = "",
        version: MQTTProtocolVersion = MQTT_5,
        *,
        subscribes: str = "",
        **options: Any,
    ) -> Iterator[PahoClient]:
        """Connect a client to a broker for a block.

        Args:
            name: of the broker.
            client_id: Client Identifier.
            version: of the protocol.
            subscribes: a topic filter that it subscribes to at QoS 2; "" for none.
            options: of the client's `connect`.
        """
        with PahoClient(self[name].port, client_id, version) as client:
            assert client.connect(**options), client.connack
            if subscribes:
                assert client.subscribe(subscribes, 2)
            yield client

    async def connected(self, name: str, client_id: str = "", **options: Any) -> WireClient:
        """Return a client on a bare socket that a broker has accepted."""
        return await connected(self[name].port, client_id, **options)


@contextmanager
def running_brokers(
    folder: Path, *names: str, redis: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Cluster]:
    """Run the brokers of a cluster for a block; the arguments are those of `Cluster`."""
    cluster = Cluster(folder, redis, **options)
    try:
        cluster.start(*names)
        yield cluster
    finally:
        cluster.end()


HAPROXY: Final = """
global
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 2h
    timeout server 2h
"""
"""One thread, so that successive connections go to successive brokers."""


@contextmanager
def load_balancer(
    folder: Path, *services: tuple[socket.socket, Sequence[int]]
) -> Iterator[Program]:
    """Run HAProxy for a block: each connection goes to the next broker.

    Args:
        folder: of its file.
        services: each a socket that listens, and the ports of the brokers.
    """
    lines = [HAPROXY]
    for number, (sock, ports) in enumerate(services):
        lines += [f"listen mqtt{number}", f"    bind fd@{sock.fileno()}", "    balance roundrobin"]
        lines += [f"    server broker{at} 127.0.0.1:{port}" for at, port in enumerate(ports)]
    file = folder / "haproxy.cfg"
    file.write_text("\n".join([*lines, ""]))
    descriptors = [sock.fileno() for sock, _ in services]
    haproxy = Program([find_program("haproxy"), "-db", "-f", str(file)], pass_fds=descriptors)
    try:
        yield haproxy
    finally:
        haproxy.end()


class Service(NamedTuple):
    """One broker to its clients.

    Attributes:
        port: that they connect to.
    """

    port: int


@contextmanager
def balanced_brokers(folder: Path, *names: str, **options: Any) -> Iterator[Service]:
    """Run a cluster for a block, behind a load balancer; the arguments are those of `Cluster`."""
    with (
        running_brokers(folder, *names, **options) as cluster,
        socket.create_server(("127.0.0.1", 0)) as sock,
        load_balancer(folder, (sock, [cluster[name].port for name in names])),
    ):
        yield Service(sock.getsockname()[1])
        for name in names:
            assert cluster[name].stop() == 0
            assert "Traceback" not in cluster[name].log, cluster[name].log


class Stream:
    """Publishes numbers to a topic, in order, until it is told to end.

    Its sessions end with their connections: what is unacknowledged is published anew.

    Attributes:
        topic: of all messages.
        qos: 1 or 2.
        acknowledged: the numbers that a broker has acknowledged: at QoS 2 by its PUBREC.
        repeated: the numbers that were published more than once.
        n_sent: how many were begun.
    """

    def __init__(
        self,
        topic: str,
        *,
        qos: int = 1,
        window: int = WINDOW,
        pause_seconds: float = 0.0,
        patience: float = SECONDS,
    ) -> None:
        """Make a stream.

        Args:
            topic: of all messages.
            qos: 1 or 2.
            window: how many are unacknowledged at a time.
            pause_seconds: after each message.
            patience: seconds after which it goes on elsewhere if nothing is acknowledged.
        """
        self.topic = topic
        self.qos = qos
        self.acknowledged: set[int] = set()
        self.repeated: set[int] = set()
        self.n_sent = 0
        self._window = window
        self._pause_seconds = pause_seconds
        self._patience = patience
        self._is_ending = False
        self._unacknowledged: dict[int, int] = {}
        self._unreleased: set[int] = set()

    def end(self) -> None:
        """Begin no more; `run` returns once all is acknowledged."""
        self._is_ending = True

    @property
    def _is_done(self) -> bool:
        return self._is_ending and not self._unacknowledged

    async def run(self, *ports: Callable[[], int]) -> None:
        """Publish, at the next broker where one has closed the connection.

        Args:
            ports: each returns the port of a broker.
        """
        at = 0
        while not self._is_done:
            with contextlib.suppress(OSError, AssertionError):
                async with asyncio.timeout(self._patience):
                    client = await connected(ports[at % len(ports)]())
                async with client:
                    await self._run_on(client)
            at += 1
            await asyncio.sleep(LOOK_SECONDS)

    async def _run_on(self, client: WireClient) -> None:
        again = list(self._unacknowledged.values())
        self.repeated.update(again)
        self._unacknowledged.clear()
        self._unreleased.clear()
        packet_id = 0
        while not self._is_done:
            n_under_way = len(self._unacknowledged) + len(self._unreleased)
            if n_under_way < self._window and (again or not self._is_ending):
                if again:
                    number = again.pop(0)
                else:
                    number, self.n_sent = self.n_sent, self.n_sent + 1
                packet_id = packet_id % 0xFFFF + 1
                self._unacknowledged[packet_id] = number
                await client.send(
                    Publish(self.topic, b"%d" % number, self.qos, packet_id=packet_id)
                )
                if self._pause_seconds:
                    await asyncio.sleep(self._pause_seconds)
            else:
                await self._take_answer(client)

    async def _take_answer(self, client: WireClient) -> None:
        async with asyncio.timeout(self._patience):
            answer = await client.receive()
        if isinstance(answer, PubComp):
            self._unreleased.discard(answer.packet_id)
            return
        assert isinstance(answer, PubAck | PubRec), answer
        assert answer.reason_code < 0x80, answer
        self.acknowledged.add(self._unacknowledged.pop(answer.packet_id))
        if isinstance(answer, PubRec):
            self._unreleased.add(answer.packet_id)
            await client.send(PubRel(answer.packet_id))


class Reading:
    """Takes and acknowledges the messages of `Stream`s.

    Attributes:
        came: the numbers by topic, in the order of their first arrival.
        twice: the numbers by topic that had come before.
    """

    def __init__(self) -> None:
        self.came: dict[str, dict[int, None]] = {}
        self.twice: dict[str, list[int]] = {}

    async def run(self, client: WireClient) -> None:
        """Take messages until cancelled, or until the connection ends."""
        while (packet := await client.receive()) is not None:
            if isinstance(packet, PubRel):
                await client.send(PubComp(packet.packet_id))
                continue
            assert isinstance(packet, Publish), packet
            came = self.came.setdefault(packet.topic, {})
            number = int(packet.payload)
            if number in came:
                self.twice.setdefault(packet.topic, []).append(number)
            came[number] = None
            if packet.qos:
                kind = PubAck if packet.qos == 1 else PubRec
                await client.send(kind(packet.packet_id))

    def displaced(self, topic: str) -> set[int]:
        """Return the messages of a topic that first came behind a later one."""
        newest, found = -1, set()
        for number in self.came.get(topic, ()):
            if number < newest:
                found.add(number)
            newest = max(newest, number)
        return found

    def lost(self, stream: Stream) -> set[int]:
        """Return what was acknowledged to a stream and has not come."""
        return stream.acknowledged.difference(self.came.get(stream.topic, ()))

    async def until_all_of(self, stream: Stream) -> None:
        """Wait until all that was acknowledged has come."""
        await reached(lambda: not self.lost(stream), "all that was acknowledged")


def lasting(seconds: int = 600) -> dict[str, Any]:
    """Return what a CONNECT says to have its session."""
    return {"clean_start": False, "properties": {"session_expiry_interval": seconds}}


async def until_away(cluster: Cluster, client_id: str) -> None:
    """Wait until no broker has a client's session; on the server that tests share."""
    with Redis(port=shared_redis()) as redis:
        (key,) = redis.scan_iter(f"{cluster.section['redis']['prefix']}:*:s:{client_id}")
        await reached(lambda: redis.hexists(key, "away"), f"that {client_id} is away")


class Subscriber:
    """A client that keeps its state, as a session does at the broker.

    Attributes:
        came: the numbers, in the order of their arrival; those of QoS 1 may have come before.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        self._unreleased: set[int] = set()

    async def run(self, client: WireClient) -> None:
        """Take messages until the connection ends."""
        while not isinstance(packet := await client.receive(), Disconnect | None):
            if isinstance(packet, PubRel):
                self._unreleased.discard(packet.packet_id)
                await client.send(PubComp(packet.packet_id))
                continue
            assert isinstance(packet, Publish), packet
            if packet.qos == 1:
                self.came.append(int(packet.payload))
                await client.send(PubAck(packet.packet_id))
                continue
            if packet.packet_id not in self._unreleased:
                self._unreleased.add(packet.packet_id)
                self.came.append(int(packet.payload))
            await client.send(PubRec(packet.packet_id))


class Publisher:
    """A client with a session that publishes numbers at QoS 2, each once.

    Its Packet Identifiers are few: what a broker knows of one must be over when it comes again.

    Attributes:
        n_begun: how many were sent.
        n_done: how many were acknowledged, or refused.
        refused: those that were.
        told: what PUBREC packets have said but success, and how often.
    """

    def __init__(self, topic: str, patience: float = SECONDS) -> None:
        self.n_begun = self.n_done = 0
        self.refused: set[int] = set()
        self.told: Counter[str] = Counter()
        self.is_ending = False
        self._topic = topic
        self._patience = patience
        self._packet_ids = itertools.cycle(range(1, 2 * WINDOW + 1))
        self._unreceived: dict[int, bytes] = {}
        self._unreleased: dict[int, None] = {}

    def has_done(self, n: int) -> bool:
        """Say whether so many were acknowledged."""
        return self.n_done >= n

    async def run(self, client: WireClient) -> None:
        """Publish until the connection ends, or until all is acknowledged at the end."""
        for packet_id, payload in self._unreceived.items():
            await client.send(Publish(self._topic, payload, 2, dup=True, packet_id=packet_id))
        await client.send(*map(PubRel, self._unreleased))
        while not self.is_ending or self._unreceived or self._unreleased:
            while not self.is_ending and len(self._unreceived) + len(self._unreleased) < WINDOW:
                under_way = self._unreceived.keys() | self._unreleased
                packet_id = next(one for one in self._packet_ids if one not in under_way)
                self._unreceived[packet_id] = b"%d" % self.n_begun
                self.n_begun += 1
                payload = self._unreceived[packet_id]
                await client.send(Publish(self._topic, payload, 2, packet_id=packet_id))
            async with asyncio.timeout(self._patience):
                answer = await client.receive()
            if isinstance(answer, PubRec) and answer.reason_code:
                why = answer.properties.get("reason_string", "")
                self.told[f"{answer.reason_code:#x} {why}".strip()] += 1
            if isinstance(answer, PubRec) and answer.reason_code >= 0x80:
                self.refused.add(int(self._unreceived.pop(answer.packet_id)))
                self.n_done += 1
            elif isinstance(answer, PubRec):
                self._unreceived.pop(answer.packet_id, None)
                self._unreleased[answer.packet_id] = None
                await client.send(PubRel(answer.packet_id))
            elif isinstance(answer, PubComp):
                del self._unreleased[answer.packet_id]
                self.n_done += 1
            else:
                assert isinstance(answer, Disconnect | None), answer
                return


async def roam(
    cluster: Cluster,
    names: str,
    client_id: str,
    run: Callable[[WireClient], Awaitable[None]],
    patience: float = SECONDS,
) -> None:
    """Have a client with a session go from broker to broker, until this is cancelled.

    Args:
        cluster: of the brokers.
        names: those that it goes to, in turn.
        client_id: of the client, which has its session already.
        run: does its work until the connection ends.
        patience: seconds for which it waits to be let in.
    """
    for name in itertools.cycle(names):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(patience):
                client = await WireClient.dial(cluster[name].port)
            async with client:
                await client.send(Connect(client_id, keep_alive=0, **lasting()))
                async with asyncio.timeout(patience):
                    answer = await client.receive()
                if isinstance(answer, ConnAck) and not answer.reason_code:
                    assert answer.session_present, f"{client_id} has lost its session at {name}"
                    await run(client)
        await asyncio.sleep(LOOK_SECONDS)
