"""Faults: a queue is restored from an older copy, resized, or loses its Redis server's data."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.loads.redis_server import RedisServer
from penstock.netem.runs.broker_process import ENVIRONMENT, reserved_port
from penstock.plugins.queue.client import (
    ConflictError,
    OtherIncarnationError,
    Position,
    QueueClient,
    ReceivedMessage,
    UnavailableError,
)
from tests.campaigns.faults.case import PENSTOCK, Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

N_RESTORES: Final = 30
N_STEPS: Final = 400
N_LOSSES: Final = 30
MOST_MESSAGES: Final = 30
"""The most messages of one step."""

MOST_RECEIVED: Final = 100
"""The most messages that one request may ask for."""

MOST_PHYSICAL_QUEUES: Final = 8
N_KEYS: Final = 5
RESTART_RATIO: Final = 0.1
"""The share of changes that are made in the policy file, with a restart, and not by a request."""

EMPTY_RATIO: Final = 0.3
"""The share of changes before which everything is received."""

ARRIVAL_SECONDS: Final = 1.0
"""After a silence of this length a group has no more messages."""

RETRY_SECONDS: Final = 2
FAILED: Final = 0x80
"""The lowest reason code of a refusal."""


class Queues:
    """A broker with queues, and a client of them.

    Attributes:
        broker: the process of the broker.
        client: the client of its queues.
    """

    def __init__(self, broker: Subject, port: int, client: QueueClient) -> None:
        self.broker = broker
        self.client = client
        self._port = port
        self._number = 0

    def configure(self, queue: Mapping[str, Any], **section: Any) -> None:
        """Let the next start read the settings of the queue ``q``, and of the plugin."""
        address = f"127.0.0.1:{self._port}"
        plugin = {"path": "queue.db", "http": address, "queues": {"q": dict(queue)}, **section}
        self.broker.configure({"plugins": {"queue": plugin}, "sys_interval": 0})

    def start(self) -> None:
        """Start the broker."""
        self.broker.start(self._port)

    def end(self, rng: random.Random) -> None:
        """Let the broker end, in one way or the other."""
        self.client.close()
        if rng.random() < 0.5:
            self.broker.kill()
        else:
            self.broker.stop()

    def enqueue(self, n_messages: int) -> set[bytes]:
        """Store messages with payloads that no others have; return these."""
        payloads = [b"%d" % (self._number + each) for each in range(n_messages)]
        self._number += n_messages
        self.client.enqueue("q", [("q/http", payload) for payload in payloads])
        return set(payloads)

    def publish(self, n_messages: int) -> tuple[set[bytes], set[bytes]]:
        """Publish messages; return the payloads that were acknowledged, and those refused."""
        acknowledged: set[bytes] = set()
        refused: set[bytes] = set()
        with wire.open_client(self.broker.port, "publisher", version=5) as sock:
            for _ in range(n_messages):
                payload = b"%d" % self._number
                self._number += 1
                sock.sendall(wire.publish_packet("q/mqtt", payload, 1, properties=b""))
                answer = wire.receive_packet(sock)
                body = answer[wire.body_at(answer) :]
                is_refused = len(body) > 2 and body[2] >= FAILED
                (refused if is_refused else acknowledged).add(payload)
        return acknowledged, refused

    def receive(self, n_messages: int) -> list[ReceivedMessage]:
        """Receive messages, at the most so many."""
        return self.client.receive("q", max_messages=n_messages) if n_messages else []

    def drain(self) -> set[bytes]:
        """Receive and settle what is there; return the payloads."""
        payloads: set[bytes] = set()
        while found := self.client.receive(
            "q", max_messages=MOST_RECEIVED, wait_seconds=ARRIVAL_SECONDS, visibility_timeout=60
        ):
            self.client.settle("q", [message.receipt_handle for message in found])
            payloads.update(message.payload for message in found)
        return payloads

    def is_told(self, position: Position) -> bool:
        """Say whether a reader at a position learns that it means nothing any more."""
        with suppress(OtherIncarnationError):
            self.client.plan("q", position)
            return False
        return True


@contextmanager
def _queues(broker: Subject) -> Iterator[Queues]:
    with reserved_port() as port, closing(QueueClient(f"http://127.0.0.1:{port}")) as client:
        yield Queues(broker, port, client)


def restore(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Put older copies of the database back; hold readers and handles of later messages on."""
    n_restores = effort.count(N_RESTORES, least=2)
    n_lost = n_untold = n_settled = 0
    database, copy = broker.folder / "queue.db", broker.folder / "copy.db"
    with _queues(broker) as queues:
        queues.configure({"topics": ["q/#"], "physical_queues": 1})
        queues.start()
        for number in range(n_restores):
            of_copy = queues.enqueue(rng.randint(1, MOST_MESSAGES))
            queues.receive(rng.randint(0, len(of_copy)))
            queues.client.backup(str(copy))
            queues.enqueue(n_later := rng.randint(1, MOST_MESSAGES))
            position = queues.client.position("q", "latest")
            handles = [each.receipt_handle for each in queues.receive(MOST_RECEIVED)]
            queues.end(rng)
            for file in broker.folder.glob(f"{database.name}*"):
                file.unlink()
            if number % 2:
                shutil.copy(copy, database)
            else:
                _restore_by_command(broker)
            copy.unlink()
            queues.start()
            # The later messages have the offsets that those after the copy had.
            later = queues.enqueue(n_later + 1)
            n_untold += not queues.is_told(position)
            found = queues.receive(MOST_RECEIVED)
            failed = queues.client.settle("q", handles)
            n_settled += len(handles) - len(failed)
            queues.client.settle("q", [each.receipt_handle for each in found], "nack")
            n_lost += len((of_copy | later) - queues.drain())
    return [
        Finding("copies put back", n_restores),
        Finding("messages of the copy lost, or later ones", n_lost, most=0),
        Finding("readers by offset that were not told", n_untold, most=0),
        Finding("handles of before that settled a message", n_settled, most=0),
    ]


def _restore_by_command(broker: Subject) -> None:
    command = [sys.executable, "-m", "penstock.plugins.queue", "restore", "copy.db"]
    done = subprocess.run(
        [*command, "-c", "broker.yaml"],
        cwd=broker.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"penstock queue restore: {done.stderr}")


class Keyed:
    """A queue with keys, whose messages are numbered for each key.

    Attributes:
        disordered: the messages that arrived before an earlier one of their key.
    """

    def __init__(self, queues: Queues) -> None:
        self.disordered = 0
        self._queues = queues
        self._stored: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()

    def configure(self, n_physical: int) -> None:
        """Let the next start read another number of physical queues."""
        groups = {"default": {"kind": "lease", "order": "key"}}
        self._queues.configure(
            {"topics": ["q/#"], "key": "topic", "physical_queues": n_physical, "groups": groups}
        )

    @property
    def n_stored(self) -> int:
        """How many messages were acknowledged."""
        return self._stored.total()

    @property
    def n_lost(self) -> int:
        """How many of them never came."""
        return (self._stored - self._settled).total()

    def publish(self, rng: random.Random, n_messages: int, n_physical: int | None) -> bool:
        """Publish messages of random keys.

        Args:
            rng: the source of random keys.
            n_messages: the number of messages.
            n_physical: the number of physical queues that is requested while the messages are on
                their way; None for no request.

        Returns:
            Whether it was changed.
        """
        is_changed = False
        with wire.open_client(self._queues.broker.port, "publisher") as sock:
            for packet_id in range(1, n_messages + 1):
                key = f"q/{rng.randrange(N_KEYS)}"
                self._stored[key] += 1
                payload = b"%d" % self._stored[key]
                sock.sendall(wire.publish_packet(key, payload, packet_id))
            if n_physical is not None:
                with suppress(ConflictError):
                    self._queues.client.change_queue("q", {"physical_queues": n_physical})
                    is_changed = True
            for packet_id in range(1, n_messages + 1):
                wire.expect(sock, wire.acknowledgement(wire.PUBACK, packet_id))
        return is_changed

    def consume(self, n_messages: int, *, is_settled: bool) -> int:
        """Receive messages, at the most so many; settle them, or give them back."""
        found = self._queues.receive(n_messages)
        last = self._settled.copy()
        for message in found:
            number = int(message.payload)
            self.disordered += number != last[message.topic] + 1
            last[message.topic] = max(last[message.topic], number)
        handles = [message.receipt_handle for message in found]
        self._queues.client.settle("q", handles, "ack" if is_settled else "nack")
        if is_settled:
            self._settled = last
        return len(found)

    def drain(self) -> None:
        """Receive and settle everything."""
        while self.consume(MOST_RECEIVED, is_settled=True):
            pass


def resize(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Ask for other numbers of physical queues amid messages of keys, empty or not."""
    n_steps = effort.count(N_STEPS, least=10)
    n_asked = n_changed = 0
    with _queues(broker) as queues:
        keyed = Keyed(queues)
        keyed.configure(MOST_PHYSICAL_QUEUES)
        queues.start()
        for _ in range(n_steps):
            n_physical = rng.randint(1, MOST_PHYSICAL_QUEUES)
            if rng.random() < EMPTY_RATIO:
                keyed.drain()
            n_asked += 1
            n_messages = rng.randint(0, MOST_MESSAGES)
            if rng.random() < RESTART_RATIO:
                queues.end(rng)
                keyed.configure(n_physical)
                queues.start()
                keyed.publish(rng, n_messages, None)
                n_changed += queues.client.queue("q")["physical_queues"] == n_physical
            else:
                n_changed += keyed.publish(rng, n_messages, n_physical)
            keyed.consume(rng.randint(1, MOST_MESSAGES), is_settled=rng.random() < 0.5)
        keyed.drain()
    return [
        Finding("changes asked for", n_asked),
        Finding("changes made; the others would part a key", n_changed, least=1),
        Finding("messages acknowledged", keyed.n_stored),
        Finding("acknowledged messages lost", keyed.n_lost, most=0),
        Finding("out of the order of their key", keyed.disordered, most=0),
    ]


def lose(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Empty the Redis server under a broker, or let it come back empty or with older data."""
    n_losses = effort.count(N_LOSSES, least=3)
    n_refused = n_as_stored = n_healthy = n_untold = n_lost = 0
    ways = ["emptied", "comes back empty", "comes back with older data"]
    with _queues(broker) as queues, reserved_port() as redis_port:
        server = RedisServer(broker.folder / "redis", redis_port)
        redis = {"server": server.address, "retry_seconds": RETRY_SECONDS}
        queues.configure({"topics": ["q/#"], "physical_queues": 1}, engine="redis", redis=redis)
        try:
            server.start()
            queues.start()
            for number in range(n_losses):
                way = ways[number % len(ways)]
                stored, _ = queues.publish(rng.randint(1, MOST_MESSAGES))
                server.save()
                queues.publish(rng.randint(1, MOST_MESSAGES))
                position = queues.client.position("q", "latest")
                if way == "emptied":
                    server.ask("FLUSHALL")
                else:
                    server.kill()
                    if way == "comes back empty":
                        (broker.folder / "redis" / "dump.rdb").unlink()
                    server.start()
                if way == "comes back with older data":
                    again, _ = queues.publish(MOST_MESSAGES + 1)
                    n_untold += not queues.is_told(position)
                    n_lost += len((stored | again) - queues.drain())
                    continue
                with suppress(UnavailableError):
                    queues.client.health()
                    n_healthy += 1
                acknowledged, refused = queues.publish(rng.randint(1, MOST_MESSAGES))
                n_as_stored += len(acknowledged)
                n_refused += len(refused)
                with suppress(UnavailableError):
                    queues.client.health()
                    n_healthy += 1
                queues.end(rng)
                queues.start()
                again, _ = queues.publish(rng.randint(1, MOST_MESSAGES))
                n_untold += not queues.is_told(position)
                n_lost += len(again - queues.drain())
        finally:
            server.kill()
    return [
        Finding("times that its data was lost", n_losses),
        Finding("publishes refused until the broker was started again", n_refused),
        Finding("publishes acknowledged meanwhile", n_as_stored, most=0),
        Finding("health that said `ok` meanwhile", n_healthy, most=0),
        Finding("readers by offset that were not told", n_untold, most=0),
        Finding("messages lost that were acknowledged afterwards", n_lost, most=0),
    ]


RESTORED: Final = Fault(
    "restored",
    "an older copy of the queue's database is put back, with `penstock queue restore` or by hand",
    restore,
    (PENSTOCK,),
)
RESIZED: Final = Fault(
    "resized",
    "`physical_queues` of a queue with keys is changed amid its messages, by requests and by the "
    "policy file",
    resize,
    (PENSTOCK,),
)
REDIS_LOST: Final = Fault(
    "redis_lost",
    "the Redis server under a broker is emptied, or comes back empty or with an older snapshot",
    lose,
    (PENSTOCK,),
)
