"""A node is taken out of a cluster while clients use it, for an upgrade."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import Disconnect, Packet, PubAck, Publish, Will
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.cluster import Cluster, Stream, reached, running_brokers
from tests.helpers.commands import Done, penstock
from tests.helpers.wire import WireClient, ending

REFERENCE = "mqtt.example:1883"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers that are found under one name."""
    keys = {"mqtt": {"server_reference": REFERENCE}}
    with running_brokers(tmp_path, "a", "b", "c", **keys) as brokers:
        yield brokers


async def drained(cluster: Cluster, folder: Path, name: str, seconds: int) -> Done:
    """Drain a broker by the policy file of another one; return when it has stopped."""
    policy = str(folder / "c" / "policy.yaml")
    words = ["cluster", "drain", name, "-c", policy, "--seconds", str(seconds), "-y"]
    done = await asyncio.to_thread(penstock, *words)
    assert await asyncio.to_thread(cluster[name].wait) == 0, cluster[name].log
    return done


class Subscriber:
    """A client with a session, which goes to the next broker when one closes its connection.

    Attributes:
        came: the messages that it has got.
        at: the broker at which it is; "" for none.
        told: what came last from the broker that it has left.
    """

    def __init__(self, cluster: Cluster, client_id: str, version: int) -> None:
        self.came: set[int] = set()
        self.at = ""
        self.told: Packet | None = None
        self._cluster = cluster
        self._client_id = client_id
        self._version = version

    async def run(self, *names: str) -> None:
        """Go from broker to broker."""
        is_5 = self._version == 5
        lasts = {"properties": {"session_expiry_interval": 3600}} if is_5 else {}
        for name in names:
            async with await WireClient.dial(self._cluster[name].port, self._version) as client:
                answer = await client.connect(self._client_id, clean_start=False, **lasts)
                assert (answer.reason_code, answer.session_present) == (0, name != names[0])
                if not answer.session_present:
                    await client.subscribe("load/#", 1)
                self.at = name
                with suppress(ConnectionError):  # it was closed before an acknowledgement was sent
                    while (packet := await client.receive()) is not None:
                        self.told = packet
                        if isinstance(packet, Publish):
                            self.came.add(int(packet.payload))
                            await client.send(PubAck(packet.packet_id))
                self.at = ""


async def test_clients_of_a_drained_broker_go_on_elsewhere_and_nothing_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    """While messages come; it stops by itself, and serves as before when it is started again."""
    subscribers = [Subscriber(cluster, f"s{n}", 4 + n % 2) for n in range(10)]
    running = [asyncio.create_task(one.run("a", "bc"[n % 2])) for n, one in enumerate(subscribers)]
    await reached(lambda: all(one.at for one in subscribers), "the subscribers")
    stream = Stream("load/x", pause_seconds=0.001)
    publishing = asyncio.create_task(
        stream.run(lambda: cluster["a"].port, lambda: cluster["b"].port)
    )
    await reached(lambda: len(stream.acknowledged) > 100, "100 acknowledgements")
    done = await drained(cluster, tmp_path, "a", 1)
    assert (done.status, done.out) == (0, "a has left the cluster\n"), done.err
    await reached(lambda: all(one.at in {"b", "c"} for one in subscribers), "all elsewhere")
    n_sent = stream.n_sent
    await reached(lambda: stream.n_sent >= n_sent + 100, "100 messages after it")
    stream.end()
    await publishing
    for one in subscribers:
        await reached(partial(stream.acknowledged.issubset, one.came), "every message")
    for task in running:
        assert not task.done()
        task.cancel()
    cluster.start("a")
    async with await cluster.connected("a", "reads") as reader:
        await reader.subscribe("back/#", 1)
        async with await cluster.connected("c") as publisher:
            await publisher.publish("back/1", b"1")
        assert (await reader.take(Publish)).payload == b"1"


async def test_a_broker_whose_clients_are_gone_stops_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    """However long they might have taken."""
    async with await cluster.connected("a", "leaves") as client:
        draining = asyncio.create_task(drained(cluster, tmp_path, "a", 3600))
        assert ending(await client.rest()) == ReasonCode.USE_ANOTHER_SERVER
        assert not (await draining).status


async def test_mqtt_5_clients_are_told_where_to_go(cluster: Cluster, tmp_path: Path) -> None:
    """By the Server Reference of the policy file; those of MQTT 3.1.1 are disconnected."""
    async with (
        await cluster.connected("a", "five") as five,
        await cluster.connected("a", "four", version=4) as four,
    ):
        assert not (await drained(cluster, tmp_path, "a", 0)).status
        (told,) = await five.rest()
        assert isinstance(told, Disconnect)
        assert told.reason_code == ReasonCode.USE_ANOTHER_SERVER
        assert told.properties["server_reference"] == REFERENCE
        assert await four.rest() == []


async def test_delayed_will_of_a_drained_client_is_for_those_who_do_not_come_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Though its broker has left before the will is due [MQTT-3.1.3-9]."""
    lasting = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    async with await cluster.connected("c", "watches") as watcher:
        await watcher.subscribe("wills/#", 1)
        clients = []
        for name, delay in (("returns", 8), ("gone", 9)):
            will = Will(f"wills/{name}", b"", 1, properties={"will_delay_interval": delay})
            clients.append(await cluster.connected("a", name, will=will, **lasting))
        draining = asyncio.create_task(drained(cluster, tmp_path, "a", 0))
        for client in clients:
            assert ending(await client.rest()) == ReasonCode.USE_ANOTHER_SERVER
            client.close()
        async with await cluster.connected("b", "returns", **lasting):
            assert not (await draining).status
            assert (await watcher.take(Publish)).topic == "wills/gone"
            async with await cluster.connected("b") as publisher:
                await publisher.publish("wills/mark", b"")
            assert (await watcher.take(Publish)).topic == "wills/mark"


async def test_delayed_will_of_the_only_broker_is_published_once_it_is_back(
    tmp_path: Path,
) -> None:
    """There was no other one to do so."""
    lasting = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    with running_brokers(tmp_path, "a") as cluster:
        will = Will("wills/gone", b"", 1, properties={"will_delay_interval": 5}, retain=True)
        client = await cluster.connected("a", "gone", will=will, **lasting)
        assert await asyncio.to_thread(cluster["a"].stop) == 0
        client.close()
        cluster.start("a")
        async with await cluster.connected("a", "watches") as watcher:
            await watcher.subscribe("wills/#", 1)
            assert (await watcher.take(Publish)).topic == "wills/gone"
