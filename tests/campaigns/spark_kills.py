"""Does each message come out of Spark exactly once while everything around it is killed?

Rerun: ``python -m tests.campaigns.spark_kills``; a look in some minutes with ``--quick``.

``penstock spark`` follows a queue into Parquet files. Messages are stored over HTTP all the while,
each repeated under its deduplication identifier until it is acknowledged. At random moments one of
these is killed (``kill -9``): the driver with all its processes, its Java alone, a Python worker,
or the server of the queue. What was killed is started again; servers take turns on one file, a
broker with the queue plugin and the queue's gateway without a broker. In the end every file in the
folder is read, listed by Spark or not, and held against what was published.

With ``--engine redis`` the queue is on a Redis server that syncs its file with each write, Spark's
tasks read from it themselves, and it is killed, too.

A moment is told by work and not by a clock: some micro-batches after the last kill, and a random
time below that of a micro-batch. So a slow machine is killed at the same places as a fast one.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import psutil
import pyarrow.dataset as ds
import typer

from benchmarks.errors import BenchmarkError
from benchmarks.loads.redis_server import RedisServer
from benchmarks.program import JsonFile, Program, Quick
from penstock.netem.runs.broker_process import ENVIRONMENT, reserved_port
from penstock.plugins.queue.client import OutgoingMessage, QueueClient, QueueError
from tests.campaigns.faults.case import Finding, report
from tests.campaigns.queue_kills import QUEUE, QueueProgram

Place: TypeAlias = tuple[str, int, int]
"""A queue, a physical queue and an offset in it."""

Victim: TypeAlias = Literal["driver", "java", "worker", "server", "redis"]
Engine: TypeAlias = Literal["sqlite", "redis"]

VICTIMS: Final[tuple[Victim, ...]] = ("driver", "java", "worker", "server", "server")
"""The victims; each is killed in proportion to the number of its entries."""
VICTIMS_ON_REDIS: Final[tuple[Victim, ...]] = ("driver", "java", "worker", "server", "redis")

DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")
"""The options of a Redis server that is killed."""

FULL_MESSAGES: Final = 200_000
QUICK_MESSAGES: Final = 20_000
FULL_KILLS: Final = 60
QUICK_KILLS: Final = 5

ROWS_PER_TRIGGER: Final = 1_000
TRIGGER_SECONDS: Final = 0.2
FIRST_BATCHES: Final = 3
"""The most micro-batches between two kills; the moment comes within the next one."""
LIFE_SECONDS: Final = 0.5
"""The approximate time of a micro-batch."""

REQUEST_MESSAGES: Final = 200
RETRY_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 600.0
"""A time that no step needs on a busy machine; only a step that hangs reaches it."""

LAYOUT: Final = {"groups": {"spark": {"kind": "offsets"}}, "key": None}
"""The keys of the queue, which has no group but Spark's."""


class Feeder:
    """A feeder, which stores numbered messages over HTTP and repeats each until it is acknowledged.

    Args:
        client: the client of the queue.
        count: the number of messages.
        waiting: the number of messages that may wait in the queue, so that there is always work.
    """

    def __init__(self, client: QueueClient, count: int, waiting: int) -> None:
        self._client = client
        self._count = count
        self._waiting = waiting
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self.n_stored = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Publish while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_stopped.set()
            self._thread.join()

    def is_done(self) -> bool:
        """Say whether all is stored."""
        return not self._thread.is_alive()

    def _publish(self) -> None:
        while self.n_stored < self._count and not self._is_stopped.is_set():
            numbers = range(self.n_stored, min(self._count, self.n_stored + REQUEST_MESSAGES))
            messages = [
                OutgoingMessage(f"load/{n % 7}", str(n).encode(), deduplication_id=str(n))
                for n in numbers
            ]
            try:
                while self._client.queue(QUEUE)["messages"] > self._waiting:
                    if self._is_stopped.wait(LOOK_SECONDS):
                        return
                self._client.enqueue(QUEUE, messages)
            except (QueueError, OSError):
                self._client.close()
                self._is_stopped.wait(RETRY_SECONDS)
            else:
                self.n_stored = numbers.stop


class Driver:
    """``penstock spark`` on the queue.

    Args:
        url: the URL of the queue.
        folder: the folder of its files.
        environment: the environment of its processes.
        options: the options of the source, beside those of each run.

    Attributes:
        folder: the folder of its files.
        command: the command that starts it.
        checkpoint: the checkpoint folder of the query whose micro-batches are counted.
        options: all options of the source but its place, as NAME=VALUE.
        n_starts: the number of its starts.
    """

    def __init__(
        self, url: str, folder: Path, environment: Mapping[str, str], options: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._environment = environment
        self._log = folder / "driver.log"
        self.options = [
            f"maxRowsPerTrigger={ROWS_PER_TRIGGER}",
            "columns=queue,physical_queue,offset,payload",
            f"retrySeconds={PATIENCE_SECONDS:.0f}",
            *options,
        ]
        self.checkpoint = folder / "checkpoint" / "ingest"
        self.command = [
            *(sys.executable, "-m", "penstock.spark_bridge", "--url", url, "--queue", QUEUE),
            *("--output", str(folder / "messages"), "--checkpoint", str(folder / "checkpoint")),
            *("--trigger", f"{TRIGGER_SECONDS}", "--short-run"),
            *(word for option in self.options for word in ("--option", option)),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.n_starts = 0
        self._n_told_before = 0

    @property
    def log(self) -> str:
        """What it has said, over all its lives."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def n_batches(self) -> int:
        """How many micro-batches its checkpoint has as done."""
        done = (self.checkpoint / "commits").glob("[0-9]*")
        return max((int(file.name) for file in done if file.name.isdecimal()), default=-1) + 1

    @property
    def _n_told(self) -> int:
        """How often it has told that Spark runs."""
        return self.log.count(": Spark ")

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it."""
        self.n_starts += 1
        self._n_told_before = self._n_told
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self._environment, cwd=self.folder
            )

    def processes(self) -> list[psutil.Process]:
        """Return its own process, then those that it has started."""
        if self._process is None:
            return []
        try:
            own = psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Kill it with all of its processes."""
        processes = self.processes()
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(processes, PATIENCE_SECONDS)
        if self._process is not None:
            self._process.wait()

    def kill_part(self, wanted: str, rng: random.Random) -> None:
        """Kill one of its processes whose command line has a text.

        Spark on one machine does not repeat a task: where it was needed, the program ends.
        """
        found = []
        for one in self.processes()[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if wanted in " ".join(one.cmdline()):
                    found.append(one)
        if found:
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(found).kill()

    def await_start(self) -> None:
        """Wait until it handles signals, or has ended.

        Raises:
            BenchmarkError: it hangs.
        """
        wait_until(lambda: not self.is_running or self._n_told > self._n_told_before, "Spark")

    def end(self) -> int:
        """Have it read what is left and end; return its status."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._process.wait(PATIENCE_SECONDS)


MakeDriver: TypeAlias = Callable[[str, Path, Mapping[str, str], Sequence[str]], Driver]
"""A function with the arguments of `Driver`."""


def drawn(count: int, seed: int, victims: Sequence[Victim] = VICTIMS) -> list[Victim]:
    """Return victims in a random order, so that five of them have each that is given once."""
    rng = random.Random(f"victims {seed}")  # noqa: S311 - victims, no secrets
    found: list[Victim] = []
    while len(found) < count:
        found += rng.sample(victims, k=len(victims))
    return found[:count]


def wait_until(is_done: Callable[[], bool], what: str) -> None:
    """Wait for a condition.

    Raises:
        BenchmarkError: it does not come.
    """
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        if time.monotonic() > give_up_at:
            raise BenchmarkError(f"waited in vain: {what}")
        time.sleep(LOOK_SECONDS)


class Trial:
    """One run: a driver, a feeder and the servers that take turns.

    Args:
        folder: the folder of all files.
        ports: the ports of MQTT, of HTTP and of Redis.
        count: the number of messages.
        seed: the seed of the moments and the victims.
        environment: the environment of the driver's processes.
        engine: the engine of the queue.
        make_driver: the class `Driver`, or a function in its place.
    """

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        count: int,
        seed: int,
        environment: Mapping[str, str],
        engine: Engine,
        make_driver: MakeDriver,
    ) -> None:
        mqtt_port, http_port, redis_port = ports
        self.redis: RedisServer | None = None
        keys: dict[str, Any] = {}
        options = []
        if engine == "redis":
            self.redis = RedisServer(folder / "redis", redis_port, *DURABLE)
            keys = {"engine": "redis", "redis": {"server": self.redis.address}}
            options = [f"redis={self.redis.address}"]
        self.rng = random.Random(seed)  # noqa: S311 - moments, no secrets
        self.count = count
        self.servers = [
            QueueProgram(
                kind,
                _made(folder / kind),
                mqtt_port,
                http_port,
                layout=LAYOUT,
                database="../queue.db",
                engine=keys,
            )
            for kind in ("broker", "gateway")
        ]
        self.client = self.servers[0].client
        self.driver = make_driver(self.client.url, folder, environment, options)
        waiting = max(4 * ROWS_PER_TRIGGER, count // 10)
        self.feeder = Feeder(QueueClient(self.client.url), count, waiting)
        self.killed: Counter[Victim] = Counter()

    def run(self, victims: Sequence[Victim], life_seconds: float) -> None:
        """Kill each of the victims, then have everything read.

        Raises:
            BenchmarkError: the driver did not end well.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self.driver.kill)
            if self.redis is not None:
                stack.callback(self.redis.kill)
                self.redis.start()
            for server in self.servers:
                stack.callback(server.kill)
            self.servers[0].start()
            stack.enter_context(self.feeder.running())
            self.driver.start()
            for victim in victims:
                self._await_moment(life_seconds)
                self._kill(victim)
            wait_until(self._has_all_stored, "all messages to be stored")
            self.driver.await_start()
            # A worker that was killed last may be found missing only now; the next start goes on.
            if self.driver.end():
                self.driver.start()
                self.driver.await_start()
                if self.driver.end():
                    raise BenchmarkError(f"penstock spark failed: {self.driver.log}")
            self.n_left = self.client.queue(QUEUE)["messages"]

    def _await_moment(self, life_seconds: float) -> None:
        """Wait for some micro-batches, and some of the next."""
        wanted = self.driver.n_batches + self.rng.randint(1, FIRST_BATCHES)

        def has_come() -> bool:
            return self._has_all_stored() or self.driver.n_batches >= wanted

        wait_until(has_come, "the next micro-batches")
        time.sleep(self.rng.uniform(0, life_seconds))

    def _has_all_stored(self) -> bool:
        """Say whether all messages are stored, for which the driver has to run."""
        if not self.driver.is_running:
            self.driver.start()
        return self.feeder.is_done()

    def _kill(self, victim: Victim) -> None:
        self.killed[victim] += 1
        if victim == "server":
            self.servers[0].kill()
            self.servers.reverse()
            self.servers[0].start()
        elif victim == "redis":
            if self.redis is None:
                raise BenchmarkError("victim: read redis; allowed: with the engine redis")
            self.redis.kill()
            self.redis.start()
        elif victim == "driver":
            self.driver.kill()
        else:
            self.driver.kill_part("SparkSubmit" if victim == "java" else "-m pyspark", self.rng)

    def findings(self) -> list[Finding]:
        """Return what was done, and what became of the promises."""
        # Every file, whether Spark lists it or not: other readers take all.
        messages = self.driver.folder / "messages"
        table = ds.dataset(messages, format="parquet", exclude_invalid_files=False).to_table()
        names = ("queue", "physical_queue", "offset", "payload")
        rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        return [
            *(Finding(f"kills: {victim}", n) for victim, n in sorted(self.killed.items())),
            Finding("starts of the driver", self.driver.n_starts),
            Finding("micro-batches", self.driver.n_batches),
            *judge([(row[:3], row[3]) for row in rows], self.count),
            Finding("left in the queue", self.n_left, most=0),
        ]


def judge(rows: Sequence[tuple[Place, bytes]], count: int) -> list[Finding]:
    """Hold rows against what was published.

    Args:
        rows: place and payload of each.
        count: the number of published messages, whose payloads are their numbers.
    """
    payloads = Counter(payload for _, payload in rows)
    published = {str(number).encode() for number in range(count)}
    n_places = len({place for place, _ in rows})
    return [
        Finding("messages published", count),
        Finding("rows", len(rows)),
        Finding("messages lost", len(published - payloads.keys()), most=0),
        Finding("messages written again", payloads.total() - len(payloads), most=0),
        Finding("rows of a place that has another", len(rows) - n_places, most=0),
        Finding("rows that nobody published", len(payloads.keys() - published), most=0),
    ]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(
    count: int,
    victims: Sequence[Victim],
    seed: int,
    life_seconds: float = LIFE_SECONDS,
    environment: Mapping[str, str] | None = None,
    engine: Engine = "sqlite",
    make_driver: MakeDriver = Driver,
) -> list[Finding]:
    """Publish messages and kill victims; return the findings.

    Args:
        count: the number of messages.
        victims: the victims in their order.
        seed: the seed of the moments.
        life_seconds: the longest time between a micro-batch and a kill.
        environment: the environment of the driver's processes, beside that of this one.
        engine: the engine of the queue.
        make_driver: the class `Driver`, or a function in its place.

    Raises:
        BenchmarkError: something did not start or end.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-kills-")))
        ports = [stack.enter_context(reserved_port()) for _ in range(3)]
        environment = environment or ENVIRONMENT
        trial = Trial(folder, ports, count, seed, environment, engine, make_driver)
        trial.run(victims, life_seconds)
        return trial.findings()


def kill(
    seed: Annotated[int, typer.Option(help="Of moments and victims.")] = 1,
    messages: Annotated[int | None, typer.Option(min=1, help="How many; 200,000.")] = None,
    kills: Annotated[int | None, typer.Option(min=0, help="How many; 60.")] = None,
    engine: Annotated[Engine, typer.Option(help="Of the queue.")] = "sqlite",
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Kill Spark, its workers and the queue's servers at random moments.

    Ends with status 1 where a message is lost or written twice.
    """
    count = messages or (QUICK_MESSAGES if quick else FULL_MESSAGES)
    n_kills = (QUICK_KILLS if quick else FULL_KILLS) if kills is None else kills
    victims = VICTIMS_ON_REDIS if engine == "redis" else VICTIMS
    findings = run(count, drawn(n_kills, seed, victims), seed, engine=engine)
    report({engine: findings}, json_file)


main: Final = Program(kill, "python -m tests.campaigns.spark_kills")


if __name__ == "__main__":
    sys.exit(main())
