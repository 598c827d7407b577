"""Shared subscriptions whose members are at several brokers."""

from __future__ import annotations

import asyncio
import queue
from contextlib import ExitStack

import pytest
from redis import Redis

from penstock.broker.mqtt.packets import Publish
from tests.helpers.cluster import (
    Cluster,
    Reading,
    lasting,
    reached,
    until,
    until_away,
)
from tests.helpers.process import SECONDS
from tests.helpers.redis_server import shared_redis

N_JOBS = 300


class Crew:
    """Members of a shared subscription, each at a broker.

    Attributes:
        arrived: takes (member, payload) of each message.
    """

    def __init__(self, stack: ExitStack, cluster: Cluster, share: str, *members: str) -> None:
        """Connect them.

        Args:
            stack: what ends them.
            cluster: the brokers.
            share: ``$share/GROUP/FILTER``.
            members: their names, the first letter of which is that of the broker.
        """
        self.arrived: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.clients = {}
        for name in members:
            client = stack.enter_context(cluster.client(name[0], f"{share[7:9]}-{name}"))
            client.paho.on_message = lambda _c, _u, m, name=name: self.arrived.put(
                (name, bytes(m.payload))
            )
            assert client.subscribe(share, 1)
            self.clients[name] = client

    def take(self, n_messages: int) -> list[tuple[str, bytes]]:
        """Return the next messages, in the order in which they came."""
        return [self.arrived.get(timeout=SECONDS) for _ in range(n_messages)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(cluster: Cluster, qos: int) -> None:
    """Wherever it is published, wherever the members are."""
    with ExitStack() as stack:
        crew = Crew(stack, cluster, f"$share/g{qos}/jobs{qos}/#", "a1", "b1", "b2", "c1")
        publishers = [stack.enter_context(cluster.client(name)) for name in "abc"]
        jobs = [b"%d" % number for number in range(N_JOBS)]
        for number, job in enumerate(jobs):
            publishers[number % 3].paho.publish(f"jobs{qos}/{number % 7}", job, qos)
        assert sorted(payload for _, payload in crew.take(N_JOBS)) == sorted(jobs)
        # What would come twice has come before what is published after it.
        for publisher in publishers:
            publisher.publish(f"jobs{qos}/0", b"last", 1)
        assert [payload for _, payload in crew.take(3)] == [b"last"] * 3
        assert crew.arrived.empty()


def test_ordinary_subscribers_get_each_message_beside_the_group(cluster: Cluster) -> None:
    """One of the group, and everybody else."""
    with ExitStack() as stack:
        crew = Crew(stack, cluster, "$share/mixed/mixed/#", "b1", "c1")
        others = [stack.enter_context(cluster.client(n, subscribes="mixed/#")) for n in "abc"]
        publisher = stack.enter_context(cluster.client("a"))
        jobs = [b"%d" % number for number in range(50)]
        for job in jobs:
            publisher.publish("mixed/x", job, 1)
        assert {payload for _, payload in crew.take(50)} == set(jobs)
        for other in others:
            assert other.payloads(50) == jobs
        assert crew.arrived.empty()


def test_a_member_that_leaves_gets_nothing_more(cluster: Cluster) -> None:
    """The last one of its broker; then those of others do all."""
    with ExitStack() as stack:
        crew = Crew(stack, cluster, "$share/less/less/#", "b1", "c1")
        publisher = stack.enter_context(cluster.client("a"))
        crew.clients["b1"].close()
        until(lambda: not crew.clients["b1"].paho.is_connected())
        for number in range(50):
            publisher.publish("less/x", b"%d" % number, 1)
        assert {name for name, _ in crew.take(50)} == {"c1"}


async def test_jobs_go_to_members_that_are_there(cluster: Cluster) -> None:
    """Not to one that is away, from its first one on; when it is back, it has its part again."""
    async with (
        await cluster.connected("a", "boss") as boss,
        await cluster.connected("b", "stays", **lasting()) as stays,
        await cluster.connected("c", "roams", **lasting()) as roams,
    ):
        for worker in (stays, roams):
            await worker.subscribe("$share/kept/kept/#", 1)
        reading = Reading()
        taking = asyncio.create_task(reading.run(stays))
        roams.close()
        await until_away(cluster, "roams")
        for number in range(20):
            await boss.publish("kept/x", b"%d" % number)
        await reached(lambda: len(reading.came.get("kept/x", ())) == 20, "all jobs")
        async with await cluster.connected("b", "roams", **lasting()) as back:
            own = Reading()
            again = asyncio.create_task(own.run(back))
            n = 20
            while not own.came and n < 500:
                await boss.publish("kept/x", b"%d" % n)
                n += 1
            assert own.came
            await reached(
                lambda: len({*reading.came["kept/x"], *own.came["kept/x"]}) == n, "all jobs"
            )
            for task in (taking, again):
                task.cancel()


async def test_job_whose_member_has_just_ended_its_session_is_done_by_another(
    cluster: Cluster,
) -> None:
    """The publisher's broker has not heard of it yet."""
    async with (
        await cluster.connected("a", "chief") as chief,
        await cluster.connected("b", "lasts", **lasting()) as lasts,
        await cluster.connected("c", "quits", **lasting()) as quits,
    ):
        for worker in (lasts, quits):
            await worker.subscribe("$share/quit/quit/#", 1)
        reading = Reading()
        taking = asyncio.create_task(reading.run(lasts))
        with Redis(port=shared_redis()) as redis:
            prefix = cluster.section["redis"]["prefix"]
            (key,) = redis.scan_iter(f"{prefix}:*:s:quits")
            redis.delete(key)
        for number in range(20):
            await chief.publish("quit/x", b"%d" % number)
        await reached(lambda: len(reading.came.get("quit/x", ())) == 20, "all jobs")
        taking.cancel()
        quits.close()


@pytest.mark.parametrize("expiry", [1, 600])
async def test_jobs_of_a_member_whose_session_ends_are_done_by_another(
    cluster: Cluster, expiry: int
) -> None:
    """It expires, or its client begins anew: what waited for it is not lost (4.8.2)."""
    topic, options = f"ends/{expiry}", lasting(expiry)
    options["properties"]["receive_maximum"] = 1
    async with (
        await cluster.connected("a", f"gives-{expiry}") as giver,
        await cluster.connected("b", f"goes-on-{expiry}", **lasting()) as goes_on,
        await cluster.connected("c", f"ends-{expiry}", **options) as ends,
    ):
        for worker in (goes_on, ends):
            await worker.subscribe(f"$share/ends/{topic}", 1)
        reading = Reading()
        taking = asyncio.create_task(reading.run(goes_on))
        for number in range(20):
            await giver.publish(topic, b"%d" % number)
        assert (await ends.take(Publish)).topic == topic
        assert len(reading.came.get(topic, ())) < 20
        ends.close()
        if expiry > 1:
            (await cluster.connected("b", f"ends-{expiry}", clean_start=True)).close()
        await reached(lambda: len(reading.came.get(topic, ())) == 20, "all jobs")
        taking.cancel()
