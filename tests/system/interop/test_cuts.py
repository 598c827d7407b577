"""QoS 2 over connections that are cut at any moment, by clients that keep their session state."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.mqtt.packets import (
    Packet,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
)
from tests.helpers.cluster import Service
from tests.helpers.wire import WireClient
from tests.system.interop.cases import running

N_MESSAGES = 100
TOPIC = "exactly/once"


@pytest.fixture(scope="module", params=["memory", "durable", "cluster"])
def keeper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Return a broker that keeps sessions in memory alone, or in a file too; or three brokers."""
    keys: dict[str, Any] = {}
    if request.param == "durable":
        keys["persistence"] = {"path": "sessions.db", "durability": "normal"}
    folder = tmp_path_factory.mktemp("cuts")
    kind = "cluster" if request.param == "cluster" else "one"
    with running(kind, folder, **keys) as service:
        yield service


class CutError(Exception):
    """The test ends a connection here."""


class Client:
    """One end with a session, on one connection after another.

    Attributes:
        version: of MQTT.
        name: Client Identifier.
        chance: decides when a connection is cut.
    """

    def __init__(self, port: int, version: int, name: str, seed: int) -> None:
        self.version = version
        self.name = f"{name}-{version}"
        self.chance = random.Random(seed)  # noqa: S311 (the same cuts each time)
        self._port = port
        self._wire: WireClient

    async def run(self) -> None:
        """Connect again and again until all messages have passed."""
        properties = {"session_expiry_interval": 600, "receive_maximum": 9}
        while not self.is_done():
            self._wire = await WireClient.dial(self._port, self.version)
            async with self._wire:
                kept = properties if self.version == 5 else {}
                await self._wire.connect(self.name, clean_start=False, properties=kept)
                try:
                    while not self.is_done():
                        await self.step()
                except CutError:
                    if self.chance.random() < 0.5:  # a reset, in place of an orderly end
                        now = struct.pack("ii", 1, 0)
                        self._wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)

    async def send(self, packet: Packet) -> None:
        """Send a packet, or cut the connection before or after it."""
        is_cut = self.chance.random() < 0.05
        if is_cut and self.chance.random() < 0.5:
            raise CutError
        await self._wire.send(packet)
        if is_cut:
            raise CutError

    async def receive(self) -> Packet:
        """Return the next packet."""
        packet = await self._wire.receive()
        assert packet is not None
        return packet

    async def step(self) -> None:
        """Do the next thing."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Say whether all messages have passed."""
        raise NotImplementedError


class Subscriber(Client):
    """Takes each message once, and notes it."""

    def __init__(self, port: int, version: int) -> None:
        super().__init__(port, version, "subscriber", version)
        self.came: list[int] = []
        self._known: set[int] = set()

    def is_done(self) -> bool:
        """All have come."""
        return len(self.came) == N_MESSAGES

    async def step(self) -> None:
        """Answer one packet."""
        packet = await self.receive()
        if isinstance(packet, Publish):
            if packet.packet_id not in self._known:
                self._known.add(packet.packet_id)
                self.came.append(int(packet.payload))
            await self.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self._known.discard(packet.packet_id)
            await self.send(PubComp(packet.packet_id))


class Publisher(Client):
    """Passes on each message once."""

    def __init__(self, port: int, version: int) -> None:
        super().__init__(port, version, "publisher", version + 10)
        self._next = 0
        self._was_sent = self._was_received = False

    def is_done(self) -> bool:
        """All were completed."""
        return self._next == N_MESSAGES

    async def step(self) -> None:
        """Go on with the message that is under way, or the next one."""
        packet_id = self._next % 50 + 1
        if not self._was_received:
            payload = b"%d" % self._next
            was_sent, self._was_sent = self._was_sent, True
            await self.send(Publish(TOPIC, payload, qos=2, dup=was_sent, packet_id=packet_id))
            assert isinstance(await self.receive(), PubRec)
            self._was_received = True
        await self.send(PubRel(packet_id))
        assert isinstance(await self.receive(), PubComp)
        self._was_sent = self._was_received = False
        self._next += 1


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_each_message_comes_exactly_once_and_in_order(keeper: Service, version: int) -> None:
    """However publisher and subscribers of all versions lose their connections."""
    subscribers = [Subscriber(keeper.port, other) for other in (3, 4, 5)]
    for subscriber in subscribers:
        subscriber.name += f"-of-{version}"
        async with await WireClient.dial(keeper.port, subscriber.version) as wire:
            kept = {"session_expiry_interval": 600} if subscriber.version == 5 else {}
            await wire.connect(subscriber.name, clean_start=False, properties=kept)
            await wire.send(Subscribe(1, (SubscriptionRequest(TOPIC, 2),)))
            await wire.receive()
    await asyncio.gather(
        *(client.run() for client in [*subscribers, Publisher(keeper.port, version)])
    )
    for subscriber in subscribers:
        assert subscriber.came == list(range(N_MESSAGES))
        async with await WireClient.dial(keeper.port, 4) as wire:
            await wire.connect(subscriber.name, clean_start=True)
