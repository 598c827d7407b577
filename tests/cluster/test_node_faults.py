"""Brokers that are killed, that stand still, and that come back."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from penstock.broker.mqtt.packets import Connect, Disconnect, Publish, Will
from tests.helpers.cluster import Cluster, Reading, Stream, lasting, reached, running_brokers
from tests.helpers.redis_server import shared_redis
from tests.helpers.wire import WireClient


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, which the test may kill."""
    with running_brokers(tmp_path, "a", "b", "c") as brokers:
        yield brokers


async def test_what_a_killed_broker_has_acknowledged_arrives(cluster: Cluster) -> None:
    """Its publisher goes on at another one, and no message is lost."""
    async with await cluster.connected("b", "reads") as reader:
        await reader.subscribe("load/#", 1)
        stream = Stream("load/x")
        publishing = asyncio.create_task(
            stream.run(lambda: cluster["a"].port, lambda: cluster["c"].port)
        )
        reading = Reading()
        taking = asyncio.create_task(reading.run(reader))
        await reached(lambda: len(stream.acknowledged) > 500, "500 acknowledgements")
        cluster["a"].kill()
        n_sent = stream.n_sent
        await reached(lambda: stream.n_sent >= n_sent + 500, "500 messages after it")
        stream.end()
        await publishing
        await reading.until_all_of(stream)
        assert reading.displaced("load/x") <= stream.repeated
        taking.cancel()


async def test_wills_of_a_killed_broker_are_published_once(cluster: Cluster) -> None:
    """By one of the others; those of clients that had left are not."""
    async with await cluster.connected("a", "watches") as watcher:
        await watcher.subscribe("wills/#", 1)
        for number in range(20):
            will = Will(f"wills/{number}", b"gone", qos=1)
            client = await cluster.connected("b", f"with-will-{number}", will=will)
            if number >= 10:
                await client.send(Disconnect())
                await client.rest()
        cluster["b"].kill()
        came = Counter([(await watcher.take(Publish)).topic for _ in range(10)])
        assert came == {f"wills/{number}": 1 for number in range(10)}
        async with await cluster.connected("c", "marks") as marks:
            await marks.publish("wills/mark", b"")
        assert (await watcher.take(Publish)).topic == "wills/mark"


async def test_wills_of_a_killed_broker_wait_for_their_delay(cluster: Cluster) -> None:
    """They need not be published where the client comes back [MQTT-3.1.3-9].

    Nor do they wait beyond the end of the session, which does not wait for other wills.
    """
    async with await cluster.connected("a", "watches-delays") as watcher:
        await watcher.subscribe("delays/#", 1)
        for name, delay, expiry in (
            ("is-back", 5, 600),
            ("is-away", 5, 600),
            ("was-away", 5, 600),
            ("ends", 600, 1),
            ("waits", 600, 600),
        ):
            will = Will(f"delays/{name}", b"", qos=1, properties={"will_delay_interval": delay})
            expiry_of = {"session_expiry_interval": expiry}
            client = await cluster.connected("b", name, will=will, properties=expiry_of)
            if name == "was-away":
                client.close()
        cluster["b"].kill()
        async with await cluster.connected(
            "c", "is-back", clean_start=False, properties={"session_expiry_interval": 600}
        ):
            came = {(await watcher.take(Publish)).topic for _ in range(3)}
            assert came == {"delays/is-away", "delays/was-away", "delays/ends"}
        async with await cluster.connected("c", "marks") as marks:
            await marks.publish("delays/mark", b"")
        assert (await watcher.take(Publish)).topic == "delays/mark"
        with Redis(port=shared_redis()) as redis:
            prefix = cluster.section["redis"]["prefix"]
            await reached(lambda: not [*redis.scan_iter(f"{prefix}:*:s:ends")], "its end")


async def test_delayed_will_of_a_killed_broker_is_published_though_its_heir_stops(
    tmp_path: Path,
) -> None:
    """What a broker has to do for a dead one is another's once it has left."""
    with running_brokers(tmp_path, "b", "c") as cluster:
        will = Will("inherited", b"gone", qos=1, properties={"will_delay_interval": 8})
        client = await cluster.connected("b", "dies", will=will, **lasting())
        cluster["b"].kill()
        await asyncio.to_thread(cluster["c"].wait_for_log, "node b has stopped beating")
        cluster.start("a")
        async with await cluster.connected("a", "watches") as watcher:
            await watcher.subscribe("inherited", 1)
            assert await asyncio.to_thread(cluster["c"].stop) == 0
            assert (await watcher.take(Publish)).payload == b"gone"
        client.close()


async def test_will_of_a_killed_broker_is_published_where_its_client_begins_anew(
    cluster: Cluster,
) -> None:
    """The session that the will belongs to has ended, whatever its delay [MQTT-3.1.2-8]."""
    expiry_of = {"session_expiry_interval": 600}
    async with await cluster.connected("a", "watches-anew") as watcher:
        await watcher.subscribe("anew", 1)
        will = Will("anew", b"gone", qos=1, properties={"will_delay_interval": 600})
        await cluster.connected("b", "anew", will=will, properties=expiry_of)
        cluster["b"].kill()
        async with await cluster.connected("c", "anew", properties=expiry_of):
            assert (await watcher.take(Publish)).topic == "anew"


async def test_jobs_that_a_dead_broker_had_not_read_are_done_by_others(cluster: Cluster) -> None:
    """A shared subscription loses no acknowledged message by the loss of a broker."""
    async with (
        await cluster.connected("b", "worker-b") as lost,
        await cluster.connected("c", "worker-c") as worker,
        await cluster.connected("a", "gives") as giver,
    ):
        for client in (lost, worker):
            await client.subscribe("$share/crew/jobs/#", 1)
        cluster["b"].process.send_signal(signal.SIGSTOP)
        for number in range(100):
            await giver.publish("jobs/x", b"%d" % number)
        cluster["b"].kill()
        reading = Reading()
        taking = asyncio.create_task(reading.run(worker))
        await reached(lambda: len(reading.came.get("jobs/x", ())) == 100, "all jobs")
        taking.cancel()


async def test_a_broker_that_stood_still_for_too_long_starts_anew(cluster: Cluster) -> None:
    """Its clients were taken over meanwhile; it notices, ends its sessions and serves again."""
    async with await cluster.connected("b", "frozen") as old:
        await old.subscribe("frozen/#")
        cluster["b"].process.send_signal(signal.SIGSTOP)
        async with await cluster.connected("a", "frozen") as new:
            await new.subscribe("frozen/#")
            cluster["b"].process.send_signal(signal.SIGCONT)
            await old.rest()
            client = await WireClient.dial(cluster["b"].port)

            async def is_served() -> WireClient:
                while True:
                    client = await WireClient.dial(cluster["b"].port)
                    await client.send(Connect(client_id="again", keep_alive=0))
                    answer = await client.receive()
                    if answer is not None and not getattr(answer, "reason_code", 1):
                        return client
                    client.close()
                    await asyncio.sleep(0.1)

            client = await is_served()
            await client.subscribe("frozen/#")
            await client.send(Publish("frozen/1", b"x"))
            assert (await new.take(Publish)).payload == b"x"
            client.close()


async def test_a_broker_that_is_stopped_leaves_at_once(cluster: Cluster) -> None:
    """Nobody waits until it would be dead: its clients are elsewhere at once."""
    async with await cluster.connected("b", "leaves", **lasting()):
        assert cluster["b"].stop() == 0
        async with await cluster.connected("c", "leaves", **lasting()) as client:
            assert await client.subscribe("left/#") == 0
