"""Does a queue keep its promises while everything around it is killed?

Rerun: ``python -m tests.campaigns.queue_kills``; a look in half a minute with ``--quick``.

A broker with the queue plugin, then the queue's gateway without a broker, are killed (``kill -9``)
at random moments and started again on their files; so are the consumers. paho clients publish at
QoS 1 and 2 and repeat what is not acknowledged; another publisher sends requests over HTTP, which
it repeats under their deduplication identifiers. Three groups consume: one in any order, one in
order by key, and one that reads ranges and commits. Then every line that the consumers wrote is
held against what was promised.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

import psutil
import typer

from benchmarks.errors import BenchmarkError
from benchmarks.peers import ROOT
from benchmarks.program import JsonFile, Program, Quick
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    ENVIRONMENT,
    RunningBroker,
    penstock_command,
    reserved_port,
)
from penstock.plugins.queue.client import OutgoingMessage, QueueClient, QueueError
from tests.campaigns.faults.case import Finding, report
from tests.campaigns.faults.flows import V5, V311, Publisher

Server: TypeAlias = Literal["broker", "gateway"]
Place: TypeAlias = tuple[int, int]
"""A physical queue and an offset in it."""

FULL_KILLS: Final[Mapping[Server, int]] = {"broker": 150, "gateway": 50}
QUICK_KILLS: Final[Mapping[Server, int]] = {"broker": 14, "gateway": 6}
LONGEST_LIFE_SECONDS: Final = 1.0
QUICK_LIFE_SECONDS: Final = 0.4
SERVER_RATIO: Final = 0.5
"""The share of kills that hit the server; the others hit a consumer."""

QUEUE: Final = "load"
GROUPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "any": {"kind": "lease", "visibility_timeout": 3},
    "ordered": {"kind": "lease", "visibility_timeout": 3, "order": "key"},
    "ranges": {"kind": "offsets"},
}
CONSUMERS: Final = ("any", "any", "ordered", "ordered", "ranges")
"""The group of each consumer."""

PAUSE_SECONDS: Final = 0.01
"""The time between two messages of a publisher."""
SETTLE_SECONDS: Final = 60.0
"""After a silence of this length, no more messages are expected."""
RETRY_SECONDS: Final = 0.05
FORGOTTEN_SECONDS: Final = 2.0
"""Receives in this time before a kill may not have been counted, on a machine that is busy."""
MOST_RESIDENT_MB: Final = 256
MOST_FILE_MB: Final = 64


# -- what the consumers wrote --------------------------------------------------------------------


class Got(NamedTuple):
    """One message of one answer.

    Attributes:
        asked: the time at which the request was sent, monotonic seconds.
        at: the time at which its answer arrived, monotonic seconds.
        payload: ``PUBLISHER QOS NUMBER``.
        place: the message's place in the queue.
        receive_count: the receive count of the answer.
    """

    asked: float
    at: float
    payload: str
    place: Place
    receive_count: int


@dataclass(slots=True)
class Record:
    """The records of all consumers of one group.

    Attributes:
        got: all messages of all answers.
        settling: the time at which a message's acknowledgement was first sent.
        settled: the time at which it was first confirmed.
    """

    got: list[Got]
    settling: dict[Place, float]
    settled: dict[Place, float]

    @property
    def payloads(self) -> set[str]:
        """What has come at least once."""
        return {each.payload for each in self.got}


def read_record(logs: Iterable[str]) -> Record:
    """Read the logs of the consumers of one group."""
    record = Record([], {}, {})
    for log in logs:
        for line in log.splitlines():
            kind, *event = json.loads(line)
            if kind == "got":
                asked, at, rows = event
                record.got += [
                    Got(asked, at, payload, (number, offset), count)
                    for payload, number, offset, count in rows
                ]
                continue
            at, places = event
            moments = record.settling if kind == "settling" else record.settled
            for number, offset in places:
                place = (number, offset)
                moments[place] = min(at, moments.get(place, at))
    return record


def n_after_settling(record: Record) -> int:
    """Count messages that were asked for after their acknowledgement had been confirmed."""
    return sum(each.asked > record.settled.get(each.place, each.asked) for each in record.got)


def n_same_count(record: Record, kills: Sequence[float]) -> int:
    """Count the messages that were delivered with a receive count that they had had before.

    A kill of the server may forget the receives of the last moment.

    Args:
        record: the records of the group.
        kills: the times at which the server was killed, in monotonic seconds.
    """
    newest: dict[tuple[Place, int], Got] = {}
    n_wrong = 0
    for each in sorted(record.got, key=lambda each: each.at):
        before = newest.get((each.place, each.receive_count))
        if before is not None:
            # An answer may be read that the killed server had sent.
            until = before.at + FORGOTTEN_SECONDS
            n_wrong += not any(before.asked <= kill < until for kill in kills)
        newest[each.place, each.receive_count] = each
    return n_wrong


def n_disordered(record: Record) -> int:
    """Count messages of a key that came before an earlier one was settled, or after a later one.

    Of a message that was stored twice, the first one counts. An answer may hold several messages of
    a key. Else only what is certain counts: a message came
    before an earlier one was settled where nobody had sent an acknowledgement yet when it was
    there, and after a later one where it was asked for when the later one was there.
    """
    by_key: dict[str, dict[int, list[Got]]] = defaultdict(dict)
    first_place: dict[str, Place] = {}
    for each in record.got:
        first_place[each.payload] = min(each.place, first_place.get(each.payload, each.place))
    for each in record.got:
        if each.place != first_place[each.payload]:
            continue
        key, text = each.payload.rsplit(maxsplit=1)
        by_key[key].setdefault(int(text), []).append(each)
    n_wrong = 0
    for numbers in by_key.values():
        earlier: list[tuple[float, set[float]]] = []
        done_until = 0.0
        for number in sorted(numbers):
            received = numbers[number]
            first = min(each.at for each in received)
            # At the last of these moments, the message was certainly not settled.
            busy_until = max(each.asked for each in received)
            busy_until = max(busy_until, record.settling.get(received[0].place, 0.0))
            n_wrong += first < done_until or any(
                first < until and first not in answers for until, answers in earlier
            )
            earlier.append((busy_until, {each.at for each in received}))
            done_until = max([done_until, *(until for until, _ in earlier if until <= first)])
            earlier = [each for each in earlier if each[0] > first]
    return n_wrong


def stored_twice(records: Iterable[Record]) -> set[str]:
    """Return the payloads that stand at more than one place of the queue."""
    places: dict[str, set[Place]] = defaultdict(set)
    for record in records:
        for each in record.got:
            places[each.payload].add(each.place)
    return {payload for payload, found in places.items() if len(found) > 1}


class Sent(NamedTuple):
    """The records of the publishers, and the kills of the server.

    Attributes:
        acknowledged: the payloads that the server has promised to deliver.
        repeated: the payloads that were or may have been sent at QoS 1 more than once.
        kills: the times at which the server was killed, in monotonic seconds.
    """

    acknowledged: set[str]
    repeated: set[str]
    kills: Sequence[float]


def judge(sent: Sent, records: Mapping[str, Record]) -> list[Finding]:
    """Hold what was received against what was promised.

    Args:
        sent: the records of the publishers.
        records: the consumers' records by group.
    """
    promised = sent.acknowledged
    leased = [record for name, record in records.items() if GROUPS[name]["kind"] == "lease"]
    n_lost = {name: len(promised - record.payloads) for name, record in records.items()}
    repeats = sum(each.receive_count > 1 for record in leased for each in record.got)
    twice = stored_twice(records.values())
    n_same = sum(n_same_count(record, sent.kills) for record in leased)
    return [
        Finding("messages acknowledged to their publishers", len(promised)),
        *(Finding(f"of these lost for group {name}", n, most=0) for name, n in n_lost.items()),
        Finding("of QoS 1 repeated and stored again", len(twice & sent.repeated)),
        Finding("others stored more than once", len(twice - sent.repeated), most=0),
        Finding("received again, as at-least-once allows", repeats),
        Finding(
            "received after a confirmed acknowledgement", sum(map(n_after_settling, leased)), most=0
        ),
        Finding("received again under the same receive count", n_same, most=0),
        Finding("out of their key's order", n_disordered(records["ordered"]), most=0),
    ]


# -- what runs -------------------------------------------------------------------------------------


class QueueProgram:
    """The server under test: it is killed and started again on the same files and ports.

    Args:
        kind: `broker`, or the `gateway` without a broker.
        folder: the folder that it runs in.
        mqtt_port: the MQTT port of the broker.
        http_port: the port of the queue's API.
        layout: the keys of the queue in the policy file that differ.
        database: the file of the queue, relative to the folder.
        engine: the keys of the plugin that name another engine.
    """

    def __init__(
        self,
        kind: Server,
        folder: Path,
        mqtt_port: int,
        http_port: int,
        *,
        layout: Mapping[str, Any] | None = None,
        database: str = "queue.db",
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine = engine or {}
        self._layout = layout or {}
        self._database = database
        self.kind = kind
        self.folder = folder
        self.mqtt_port = mqtt_port
        self.http_port = http_port
        self.client = QueueClient(f"http://127.0.0.1:{http_port}")
        self._running: RunningBroker | None = None
        policy = self._policy()
        self._command = penstock_command(folder, policy)
        if kind == "gateway":
            program = "penstock.plugins.queue"
            self._command = [sys.executable, "-m", program, "serve", *self._command[-2:]]

    def _policy(self) -> dict[str, Any]:
        queue = {
            "topics": ["load/#"],
            "key": "topic",
            "physical_queues": 3,
            "groups": GROUPS,
            **self._layout,
        }
        section = {
            "path": self._database,
            "http": f"127.0.0.1:{self.http_port}",
            "queues": {QUEUE: queue},
            **self._engine,
        }
        if self.kind == "gateway":
            return {"plugins": {"queue": section}}
        return {
            "listeners": {"default": {"bind": f"127.0.0.1:{self.mqtt_port}"}},
            "persistence": {"path": "sessions.db"},
            "plugins": {ANONYMOUS: {"allow_anonymous": True}, "queue": section},
        }

    def start(self) -> None:
        """Start it and wait until it takes requests.

        Raises:
            RunError: it has ended, or takes none.
        """
        self._running = RunningBroker(self.kind, self._command, self.folder)
        if self.kind == "broker":
            self._running.wait_until_listening(self.mqtt_port)
        self._running.wait_until_listening(self.http_port)

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        if self._running is not None:
            self._running.kill()

    def resident_mb(self) -> float:
        """Return its resident set in MB."""
        if self._running is None:
            return 0.0
        n_bytes: int = psutil.Process(self._running.process.pid).memory_info().rss
        return n_bytes / 1e6

    def file_mb(self) -> float:
        """Return what the queue's files take, in MB."""
        return sum(file.stat().st_size for file in self.folder.glob("queue.db*")) / 1e6

    def n_left(self) -> int:
        """Return how many messages the queue holds.

        Raises:
            QueueError: it does not answer.
        """
        found: int = self.client.queue(QUEUE)["messages"]
        return found


class ConsumerProcess:
    """A consumer of one group, which is killed and started again.

    Args:
        group: the group of the consumer.
        number: its number among all consumers.
        served: the server's program.
    """

    def __init__(self, group: str, number: int, served: QueueProgram) -> None:
        self.group = group
        self._log = served.folder / f"consumer{number}.log"
        self._command = [
            *(sys.executable, "-m", "tests.campaigns.queue_consumer"),
            *(served.client.url, QUEUE, group, str(GROUPS[group]["kind"])),
            *(str(self._log), str(number)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has written, over all its lives."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def log_bytes(self) -> int:
        """How much it has written."""
        return self._log.stat().st_size if self._log.exists() else 0

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(self._command, env=ENVIRONMENT, cwd=ROOT)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class HttpPublisher:
    """A publisher over HTTP, which repeats each numbered message until it is acknowledged.

    Attributes:
        acknowledged: the payloads that are stored.
    """

    def __init__(self, url: str, name: str, seed: int) -> None:
        self.acknowledged: set[bytes] = set()
        self._client = QueueClient(url)
        self._name = name
        # Its thread draws when it likes: from the generator of the kills, it would change these.
        self._rng = random.Random(f"{name} {seed}")  # noqa: S311 - sizes, no secrets
        self._is_told_to_end = threading.Event()
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_told_to_end.set()
        self._must_end.set()
        self._thread.join()

    def end(self, seconds: float) -> bool:
        """Send no more; say whether all that was sent is acknowledged within a time."""
        self._is_told_to_end.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _publish(self) -> None:
        number = 0
        while not self._is_told_to_end.wait(PAUSE_SECONDS):
            numbers = range(number, number + self._rng.randint(1, 4))
            number = numbers.stop
            messages = [
                OutgoingMessage(
                    f"load/{self._name}",
                    f"{self._name} http {each}".encode(),
                    deduplication_id=f"{self._name} {each}",
                )
                for each in numbers
            ]
            while not self._must_end.is_set():
                try:
                    self._client.enqueue(QUEUE, messages)
                except (QueueError, OSError):
                    self._client.close()
                    time.sleep(RETRY_SECONDS)
                else:
                    self.acknowledged.update(each.payload for each in messages)
                    break


@contextlib.contextmanager
def started(served: QueueProgram) -> Iterator[list[ConsumerProcess]]:
    """Start a server and its consumers; kill whatever runs of them in the end."""
    consumers = [ConsumerProcess(group, number, served) for number, group in enumerate(CONSUMERS)]
    try:
        served.start()
        for consumer in consumers:
            consumer.start()
        yield consumers
    finally:
        served.kill()
        for consumer in consumers:
            consumer.kill()


def until_idle(is_done: Callable[[], bool], progress: Callable[[], object]) -> None:
    """Wait for a condition, or until nothing goes on for `SETTLE_SECONDS`."""
    seen, since = progress(), time.monotonic()
    while not is_done() and time.monotonic() - since < SETTLE_SECONDS:
        time.sleep(0.1)
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()


def drawn(n_kills: int, seed: int) -> list[bool]:
    """Return which kills hit the server, `SERVER_RATIO` of them, in a random order."""
    rng = random.Random(f"kills {seed}")  # noqa: S311 - kills, no secrets
    n_of_server = round(n_kills * SERVER_RATIO)
    return rng.sample([True] * n_of_server + [False] * (n_kills - n_of_server), k=n_kills)


def run(kind: Server, n_kills: int, seed: int, life_seconds: float) -> list[Finding]:
    """Kill a server and its consumers at random moments; return the findings.

    Args:
        kind: the kind of the server.
        n_kills: the number of kills of the server and of consumers together.
        seed: the seed of the moments and the victims.
        life_seconds: the longest time between two kills.

    Raises:
        RunError: the server did not start again.
    """
    rng = random.Random(f"{kind} {seed}")  # noqa: S311 - moments, no secrets
    kills: list[float] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-kills-")))
        ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        served = QueueProgram(kind, folder, *ports)
        consumers = stack.enter_context(started(served))
        mqtt = [
            stack.enter_context(
                Publisher(served.mqtt_port, f"p{n}", version, "load", pause_seconds=PAUSE_SECONDS)
            )
            for n, version in enumerate((V311, V5))
            if kind == "broker"
        ]
        http = stack.enter_context(HttpPublisher(served.client.url, "h", seed))
        for is_servers in drawn(n_kills, seed):
            for publisher in mqtt:
                # paho sends QoS 2 anew where a connection ends before its CONNACK.
                publisher.wait(
                    lambda p=publisher: p.n_connects > len(kills),  # type: ignore[misc]
                    SETTLE_SECONDS,
                )
            time.sleep(rng.uniform(0, life_seconds))
            if is_servers:
                kills.append(time.monotonic())
                served.kill()
                served.start()
            else:
                victim = rng.choice(consumers)
                victim.kill()
                victim.start()
        flows: list[Publisher | HttpPublisher] = [*mqtt, http]
        for flow in flows:
            if not flow.end(SETTLE_SECONDS):
                raise BenchmarkError(f"{kind}: a publisher was not acknowledged in the end")
        acknowledged = http.acknowledged.union(*(each.acknowledged for each in mqtt))
        repeated = set().union(*(each.repeated for each in mqtt))
        sent = Sent(
            {payload.decode() for payload in acknowledged},
            {text for text in map(bytes.decode, repeated) if text.split()[1] == "1"},
            kills,
        )

        def records() -> dict[str, Record]:
            return {
                group: read_record(each.log for each in consumers if each.group == group)
                for group in GROUPS
            }

        def is_done() -> bool:
            with contextlib.suppress(QueueError):
                return served.n_left() == 0
            return False

        until_idle(is_done, lambda: [each.log_bytes for each in consumers])
        left = Finding("left in the queue", served.n_left(), most=0)
        resident = Finding("resident set", served.resident_mb(), "MB", most=MOST_RESIDENT_MB)
        files = Finding("files of the queue", served.file_mb(), "MB", most=MOST_FILE_MB)
        found = judge(sent, records())
    return [
        Finding("kills of the server", len(kills)),
        Finding("kills of consumers", n_kills - len(kills)),
        *found,
        left,
        resident,
        files,
    ]


# -- the program -----------------------------------------------------------------------------------


def kill(
    seed: Annotated[int, typer.Option(help="Of moments and victims.")] = 1,
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Kill a broker with a queue, a gateway and their consumers at random moments.

    Ends with status 1 where a promise is broken. All 200 kills take some five minutes.
    """
    n_kills = QUICK_KILLS if quick else FULL_KILLS
    life_seconds = QUICK_LIFE_SECONDS if quick else LONGEST_LIFE_SECONDS
    found: dict[str, Sequence[Finding]] = {
        kind: run(kind, n, seed, life_seconds) for kind, n in n_kills.items()
    }
    report(found, json_file)


main: Final = Program(kill, "python -m tests.campaigns.queue_kills")


if __name__ == "__main__":
    sys.exit(main())
