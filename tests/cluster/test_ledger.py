"""The ledgers of all brokers together: no message is unaccounted for, whatever happens to one."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from redis import Redis

from penstock.broker.mqtt.packets import Disconnect, PubAck, Publish
from tests.helpers.cluster import Cluster, Reading, lasting, reached, running_brokers
from tests.helpers.commands import penstock
from tests.helpers.redis_server import shared_redis
from tests.helpers.wire import WireClient

SAMPLE = re.compile(r"^penstock_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
GONE = {
    "messages_delivered_total",
    "messages_expired_total",
    "messages_dropped_total",
    "sink_dropped_total",
    "cluster_dropped_total",
    "cluster_refused_messages_total",
    "cluster_mailbox_dropped_total",
}
"""Each counts messages for one subscriber that wait no more."""


class Books:
    """What brokers have counted; of those that have ended, what they had told last.

    Args:
        cluster: of the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Counter[str]] = {}

    def read(self, *names: str) -> None:
        """Ask brokers what they have counted."""
        for name in names:
            with urlopen(f"{self._cluster[name].console_url}/metrics", timeout=10) as answer:  # noqa: S310
                text = answer.read().decode()
            found: Counter[str] = Counter()
            for figure, labels, value in SAMPLE.findall(text):
                if 'reason="moved"' not in labels:
                    found[figure] += int(float(value))
            self._known[name] = found

    def count(self, figure: str) -> int:
        """Return a figure of all brokers together."""
        return sum(one[figure] for one in self._known.values())

    def waiting(self) -> int:
        """Return how many messages wait in mailboxes."""
        with Redis(port=shared_redis()) as redis:
            keys = redis.scan_iter(f"{self._cluster.section['redis']['prefix']}:*:q:*")
            return sum(redis.xlen(key) for key in keys)

    def accounted(self) -> int:
        """Return how many messages for a subscriber are accounted for."""
        return sum(map(self.count, GONE)) + self.waiting()

    async def balance(self, n_received: int, *names: str) -> None:
        """Wait until these brokers, and those that have ended, account for all messages."""

        def is_balanced() -> bool:
            self.read(*names)
            return self.accounted() == n_received

        try:
            await reached(is_balanced, "a balance")
        except AssertionError as error:
            found = {
                name: {f: n for f, n in one.items() if f in GONE}
                for name, one in self._known.items()
            }
            raise AssertionError(
                f"{n_received} received, {self.waiting()} wait, {found}"
            ) from error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers that tell what they count."""
    with running_brokers(
        tmp_path, "a", "b", "c", plugins={"console": {"http": "127.0.0.1:0"}}
    ) as brokers:
        yield brokers


@asynccontextmanager
async def reading(client: WireClient) -> AsyncIterator[WireClient]:
    """Have a client take all that comes, for a block or until its connection ends."""

    async def take() -> None:
        with suppress(OSError):
            await Reading().run(client)

    async with client:
        task = asyncio.create_task(take())
        try:
            yield client
        finally:
            task.cancel()


async def publish(client: WireClient, *topics: str) -> int:
    """Publish to topics at QoS 0 and 1, all messages at once; return how many."""
    n_each = 20
    packets = [
        Publish(topic, b"%d" % number, qos, packet_id=number + 1)
        for topic in topics
        for number in range(n_each)
        for qos in (0, 1)
    ]
    await client.send(*packets)
    for _ in range(len(packets) // 2):
        assert (await client.take(PubAck)).reason_code < 0x80
    return len(packets)


async def leave(client: WireClient) -> None:
    """Disconnect."""
    await client.send(Disconnect())
    await client.rest()
    client.close()


@pytest.mark.parametrize("fault", ["kill", "freeze", "drain"])
async def test_what_came_from_clients_is_delivered_dropped_or_waits(
    cluster: Cluster, tmp_path: Path, fault: str
) -> None:
    """In all brokers and mailboxes together, each message for the one subscriber of its topic."""
    books = Books(cluster)
    async with AsyncExitStack() as stack:
        away = await cluster.connected("b", "away", **lasting())
        await away.subscribe("away", 1)
        await leave(away)
        for name, client_id, topic_filter, options in (
            ("a", "here", "here", {}),
            ("b", "there", "there", {}),
            ("b", "kept", "kept", lasting()),
            ("b", "works-b", "$share/crew/jobs", {}),
            ("c", "works-c", "$share/crew/jobs", {}),
        ):
            client = await cluster.connected(name, client_id, **options)
            await client.subscribe(topic_filter, 1)
            await stack.enter_async_context(reading(client))
        source = await stack.enter_async_context(await cluster.connected("a", "source"))
        topics = ["there", "here", "kept", "jobs", "away"]
        n = await publish(source, *topics)
        await books.balance(n, "a", "b", "c")
        assert n == books.count("received_messages_total") - books.count(
            "cluster_inbox_messages_total"
        )
        if fault == "drain":
            words = ["drain", "b", "-c", str(tmp_path / "c" / "policy.yaml"), "--seconds", "5"]
            draining = asyncio.create_task(asyncio.to_thread(penstock, "cluster", *words, "-y"))
            topics.remove("there")  # which has nobody as soon as its client has gone
        else:
            cluster["b"].process.send_signal(signal.SIGSTOP)
        n += await publish(source, *topics)
        if fault == "kill":
            cluster["b"].kill()
        kept = await cluster.connected("c", "kept", **lasting())
        await stack.enter_async_context(reading(kept))
        n += await publish(source, "kept", "jobs")
        if fault == "drain":
            while not draining.done():
                with suppress(OSError):
                    await asyncio.to_thread(books.read, "b")
        if fault == "freeze":
            cluster["b"].process.send_signal(signal.SIGCONT)
            await reached(lambda: "taken for dead" in cluster["b"].log, "the node")
        left = ("a", "b", "c") if fault == "freeze" else ("a", "c")
        await books.balance(n, *left)
        assert books.waiting()
        async with await cluster.connected("c", "away"):  # its session ends, and what waits for it
            await books.balance(n, *left)
            assert not books.waiting()
