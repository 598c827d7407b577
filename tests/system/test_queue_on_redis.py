"""Brokers, gateways and consumers as processes that share the queues of one Redis server."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from redis import Redis
from redis.crc import key_slot

from penstock.plugins.queue.client import NotStoredError, OutgoingMessage, QueueClient
from tests.helpers.cluster import until
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import SECONDS, BrokerProcess, Program, anonymous_policy, running_broker
from tests.helpers.redis_server import running_redis, shared_cluster, shared_redis
from tests.helpers.wire import connected

QUEUES: dict[str, Any] = {
    "work": {"topics": ["work/#"]},
    "limited": {"max_messages": 20, "physical_queues": 2},
    "newest": {"key": "topic", "keeps_last": True},
    "risky": {"groups": {"default": {"max_receives": 1, "dead_letter_queue": "dead"}}},
    "dead": {},
}


class Gateway(Program):
    """``penstock queue`` and a client of it.

    Attributes:
        client: of the gateway.
    """

    def __init__(self, section: dict[str, Any], folder: Path) -> None:
        section = section | {"http": "127.0.0.1:0"}
        policy = yaml.safe_dump({"plugins": {"queue": section}})
        (folder / "policy.yaml").write_text(policy)
        command = [sys.executable, "-m", "penstock.plugins.queue", "-c", "policy.yaml"]
        super().__init__(command, cwd=folder, is_forked=True)
        self.client = QueueClient(self.wait_for_match(r"listens on (http://\S+)")[1])


class Programs(NamedTuple):
    """What shares the queues.

    Attributes:
        brokers: two.
        gateways: two.
    """

    brokers: list[BrokerProcess]
    gateways: list[Gateway]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Programs]:
    """Start two brokers without HTTP, and two gateways."""
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": f"test-{uuid.uuid4().hex}"}
    section = {"engine": "redis", "redis": redis, "http": None, "queues": QUEUES}
    with ExitStack() as stack:
        folders = [tmp_path / name for name in ("b0", "b1", "g0", "g1")]
        for folder in folders:
            folder.mkdir()
        policy = anonymous_policy({"queue": section})
        brokers = [stack.enter_context(running_broker(policy, one)) for one in folders[:2]]
        gateways = []
        for folder in folders[2:]:
            gateways.append(Gateway(section, folder))
            stack.callback(gateways[-1].kill)
            stack.callback(gateways[-1].client.close)
        yield Programs(brokers, gateways)


class Publisher(threading.Thread):
    """Publishes one message after the other; goes to the next broker when its own has gone.

    Args:
        ports: of the brokers.
        payloads: to be published.
    """

    def __init__(self, ports: list[int], payloads: list[bytes]) -> None:
        super().__init__()
        self.n_acknowledged = 0
        self._ports = ports
        self._payloads = payloads

    def run(self) -> None:
        """Publish everything at QoS 1."""
        ports = list(self._ports)
        while self.n_acknowledged < len(self._payloads):
            with suppress(OSError), PahoClient(ports[0]) as client:
                client.connect()
                self._publish(client)
            ports.append(ports.pop(0))

    def _publish(self, client: PahoClient) -> None:
        while self.n_acknowledged < len(self._payloads):
            sent = client.paho.publish("work/a", self._payloads[self.n_acknowledged], 1)
            while not sent.is_published():
                if not client.paho.is_connected():
                    return
                sent.wait_for_publish(0.05)
            self.n_acknowledged += 1


class Consumer(threading.Thread):
    """Receives and acknowledges until it is told to stop.

    Args:
        client: of a gateway.
    """

    def __init__(self, client: QueueClient) -> None:
        super().__init__()
        self.received: Counter[bytes] = Counter()
        self.is_over = False
        self._client = client

    def run(self) -> None:
        """Receive everything."""
        while not self.is_over:
            received = self._client.receive("work", max_messages=20, wait_seconds=0.5)
            handles = [message.receipt_handle for message in received]
            if handles:
                assert self._client.settle("work", handles) == {}
            self.received.update(message.payload for message in received)


def test_what_is_killed_takes_nothing_along(started: Programs) -> None:
    """A broker is killed while it stores, a gateway while it has given messages away."""
    brokers, gateways = started
    ports = [broker.port for broker in brokers]
    payloads = [b"%d" % n for n in range(400)]
    publishers = [Publisher(ports if n % 2 else ports[::-1], payloads[n::4]) for n in range(4)]
    for publisher in publishers:
        publisher.start()
    until(lambda: sum(one.n_acknowledged for one in publishers) > 40)
    received = gateways[0].client.receive("work", max_messages=10, wait_seconds=60)
    brokers[0].process.kill()
    gateways[0].process.kill()
    other = gateways[1].client
    assert other.settle("work", [message.receipt_handle for message in received]) == {}
    consumer = Consumer(QueueClient(other.url))
    consumer.start()
    for publisher in publishers:
        publisher.join(SECONDS)
        assert publisher.n_acknowledged == len(payloads) // 4
    found = Counter(message.payload for message in received)
    until(lambda: set(consumer.received) | set(found) == set(payloads))
    consumer.is_over = True
    consumer.join(SECONDS)
    found += consumer.received
    # Each of the publishers may have repeated the one that was not acknowledged.
    assert sum(found.values()) - len(payloads) <= len(publishers)
    assert other.queue("work")["messages"] == 0


def test_limits_and_queues_are_those_of_all_programs(started: Programs) -> None:
    """What one gateway has stored leaves no room at the other, until a third has made some.

    A queue that one creates is served by the other, until one deletes it.
    """
    one, other = (gateway.client for gateway in started.gateways)
    one.enqueue("limited", [("a", b"%d" % n) for n in range(20)])
    until(lambda: other.queue("limited")["messages"] == 20)
    with pytest.raises(NotStoredError, match="queue_full"):
        other.enqueue("limited", [("a", b"more")])
    received = other.receive("limited", max_messages=5)
    other.settle("limited", [message.receipt_handle for message in received])
    until(lambda: one.queue("limited")["messages"] == 20 - len(received))
    assert one.enqueue("limited", [("a", b"more")]).stored == 1
    one.put_queue("late", {})
    until(lambda: "late" in [held["name"] for held in other.queues()])
    assert other.enqueue("late", [("a", b"1")]).stored == 1
    one.delete_queue("late")
    until(lambda: "late" not in [held["name"] for held in other.queues()])


def test_dead_letters_die_once(started: Programs) -> None:
    """Received at one gateway and found dead at the other, each is one letter."""
    one, other = (gateway.client for gateway in started.gateways)
    one.enqueue("risky", [("a", b"%d" % n) for n in range(8)])
    received: list[Any] = []
    while len(received) < 8:
        received += one.receive("risky", max_messages=8, wait_seconds=1)
    assert one.settle("risky", [message.receipt_handle for message in received], "nack") == {}
    until(lambda: not other.receive("risky", wait_seconds=0) and dead_letters(other) >= 8)
    assert not one.receive("risky", wait_seconds=0)
    until(lambda: dead_letters(one) >= 8)
    assert (dead_letters(one), dead_letters(other)) == (8, 8)
    letters: list[bytes] = []
    while len(letters) < 8:
        letters += [message.payload for message in one.receive("dead", wait_seconds=1)]
    assert Counter(letters) == Counter(b"%d" % n for n in range(8))


def dead_letters(client: QueueClient) -> int:
    """Return how many dead letters there are."""
    n_messages: int = client.queue("dead")["messages"]
    return n_messages


def test_of_each_key_one_message_is_kept(started: Programs) -> None:
    """The newest, whichever gateway has stored it."""
    one, other = (gateway.client for gateway in started.gateways)
    for n in range(10):
        for client, name in ((one, "one"), (other, "other")):
            client.enqueue(
                "newest", [OutgoingMessage(f"t/{key}", f"{name} {n}".encode()) for key in range(4)]
            )
    until(lambda: one.queue("newest")["messages"] == 4)
    newest: dict[str, bytes] = {}
    while len(newest) < 4:
        for message in one.receive("newest", wait_seconds=1):
            newest[message.topic] = message.payload
    assert newest == {f"t/{key}": b"other 9" for key in range(4)}


def test_a_held_request_is_woken_by_a_publish_at_a_broker(started: Programs) -> None:
    """The message comes to a consumer who waits at a gateway."""
    gateway = started.gateways[0]
    found: list[bytes] = []

    def consume() -> None:
        received = gateway.client.receive("work", wait_seconds=60)
        found.extend(message.payload for message in received)

    consumer = threading.Thread(target=consume)
    consumer.start()
    # A group that no request has come for yet has no figures of requests.
    until(lambda: gateway.client.group("work", "default").get("requests", {}).get("held", 0) > 0)
    with PahoClient(started.brokers[1].port) as client:
        client.connect()
        client.publish("work/b", b"now")
    consumer.join(SECONDS)
    assert found == [b"now"]


async def test_an_emptied_server_is_no_success(tmp_path: Path) -> None:
    """Publishers are refused at once and later on; health and the log say why."""
    with running_redis(tmp_path / "redis") as server, Redis(port=server.port) as admin:
        section = {
            "engine": "redis",
            "redis": {"server": f"127.0.0.1:{server.port}"},
            "http": "127.0.0.1:0",
            "queues": {"work": {"topics": ["work/#"]}},
        }
        with running_broker(anonymous_policy({"queue": section}), tmp_path) as broker:

            def health() -> tuple[int, str]:
                with closing(HTTPConnection(broker.queue_url.removeprefix("http://"))) as asking:
                    asking.request("GET", "/health")
                    answer = asking.getresponse()
                    return answer.status, answer.read().decode()

            async with await connected(broker.port, "p") as publisher:
                assert (await publisher.publish("work/1", b"a")).reason_code == 0
                assert health() == (200, '{"status": "ok"}')
                admin.flushall()
                status, told = health()
                assert (status, "lost its data" in told) == (503, True)
                assert (await publisher.publish("work/1", b"b")).reason_code >= 0x80
                await asyncio.to_thread(broker.wait_for_log, "they are not those of before")
                for _ in range(3):
                    assert (await publisher.publish("work/1", b"c")).reason_code >= 0x80
                status, told = health()
                assert (status, "they are not those of before" in told) == (503, True)
            assert "Traceback" not in broker.log


def test_gateways_prefer_what_is_on_their_own_machines(tmp_path: Path) -> None:
    """Each takes the messages of its node, then those of the others (paper 001, 3.3.1.1)."""
    nodes = [f"{host}:{port}" for host, port in shared_cluster()]
    redis: dict[str, Any] = {"cluster": nodes, "prefix": f"test-{uuid.uuid4().hex}"}
    section: dict[str, Any] = {"engine": "redis", "queues": {"work": {"physical_queues": 24}}}
    with ExitStack() as stack:
        clients = []
        for at, node in enumerate(nodes[:2]):
            folder = tmp_path / str(at)
            folder.mkdir()
            gateway = Gateway(section | {"redis": redis | {"local_nodes": [node]}}, folder)
            stack.callback(gateway.kill)
            stack.callback(gateway.client.close)
            clients.append(gateway.client)
        clients[0].enqueue("work", [("a", b"%d" % n) for n in range(240)])
        until(lambda: clients[1].group("work", "default")["waiting"] == 240)
        incarnation = clients[0].queue("work")["incarnation"]
        found = [
            message
            for _ in range(9)
            for message in clients[1].receive("work", max_messages=1, wait_seconds=60)
        ]
        keys = [f"{redis['prefix']}:{{{incarnation}.{one.physical_queue}}}" for one in found]
        assert {key_slot(key.encode()) * 3 // 16_384 for key in keys} == {1}
        while len(found) < 240:
            found += clients[1].receive("work", max_messages=100, wait_seconds=60)
        assert len({message.payload for message in found}) == 240
