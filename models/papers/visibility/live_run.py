"""Live runs of paper 004's queue: threads that send and receive over HTTP, beside the model.

Threads of a sender put messages into a queue over HTTP, and threads of a receiver take them one at
a time, work on them, and settle those whose delivery succeeds. All rates are the paper's, a quarter
as fast, so that requests weigh little beside services. Several queues run at a time on one gateway,
each an independent unit. Model and run have the same draws: the creation of each message, the
service of each in its sender, and service and success of each delivery in the order in which
deliveries begin. The model runs on the queue's own leases.

In order (`arrived`), a sender holds what it has sent until all that were created before it are
sent, too, and the queue has one physical queue. `settled` is that with the group's order of keys,
and one key for all messages.

Requests, the commits of the queue and threads that wait for each other are in the run alone.
"""

from __future__ import annotations

import heapq
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from penstock.models.kernels.lease_messages import LeasedMessages
from penstock.models.kernels.lease_setting import LeaseSetting
from penstock.models.kernels.lease_simulation import LeaseDraws, LeaseOutcome, draw, simulate
from penstock.models.papers.model_vs_measured import ComparedFigure, ComparedUnit
from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import RunningBroker, queue_command, reserved_port
from penstock.plugins.queue.client import OutgoingMessage, QueueClient

SPEED: Final = 0.25
"""The ratio of a run's rates to the paper's."""
_RATES: Final = {"arrival_rate": 30.0 * SPEED, "sender_rate": 10.0 * SPEED}
SETTINGS: Final = {
    "out of order, failures known at once": LeaseSetting(
        "any", 7, 7, 0.88, **_RATES, broker_rate=10.0 * SPEED
    ),
    "out of order, visibility timeout 4 s": LeaseSetting(
        "any", 7, 7, 0.88, **_RATES, broker_rate=10.0 * SPEED, visibility_timeout=4.0
    ),
    "in order, visibility timeout 4 s": LeaseSetting(
        "arrived", 7, 7, 0.88, **_RATES, broker_rate=10.0 * SPEED, visibility_timeout=4.0
    ),
    "in order of keys, one key, failures known at once": LeaseSetting(
        "settled", 7, 7, 0.88, 4.0 * SPEED, 10.0 * SPEED, 10.0 * SPEED
    ),
}
"""The settings that are run, by their names in tables."""
WAIT_SECONDS: Final = 1.0
"""The time for which the gateway holds a receive that finds nothing."""
END_SECONDS: Final = 120.0
"""How long a run waits, after the last creation, for all deliveries."""
SWITCH_SECONDS: Final = 0.0005
"""The time after which a thread of this process lets another one run."""
START_SECONDS: Final = 0.5
"""The time from the start of the threads to the beginning of the run."""


@dataclass(frozen=True, slots=True)
class QueueRuns:
    """The queues of each setting that run at a time, and for how long.

    Attributes:
        seconds: the time in which messages are created, seconds.
    """

    queues: int = 6
    seconds: float = 60.0


class QueueFigures(NamedTuple):
    """The results of one queue.

    Attributes:
        delivery_seconds: the time from creation to delivery, of all messages together.
        waited_seconds: the time that all messages together waited, in senders and queue.
        duplicates: deliveries of a message that had been delivered.
    """

    messages: int
    delivery_seconds: float
    waited_seconds: float
    duplicates: int
    deliveries: int


def run(runs: QueueRuns, seed: int, tell: Callable[[str], None]) -> list[ComparedFigure]:
    """Run all settings, one after the other.

    Raises:
        NetemError: the gateway does not run, or messages were not delivered in time.
    """
    found = []
    for name, setting in SETTINGS.items():
        tell(f"visibility: {runs.queues} queues {name}, for {runs.seconds:g} s")
        modelled = [
            _figures_of(
                simulate(setting, LeasedMessages(setting.order), runs.seconds, rng), runs.seconds
            )
            for rng in _rngs(runs, seed)
        ]
        queues = run_setting(setting, runs, seed)
        measured = [each.figures() for each in queues]
        late = sorted(seconds for each in queues for seconds in each.late)
        late_seconds = late[int(0.99 * len(late))]
        found += _compared(name, [*zip(modelled, measured, strict=True)], runs, late_seconds)
    return found


def run_setting(setting: LeaseSetting, runs: QueueRuns, seed: int) -> list[QueueRun]:
    """Run the queues of a setting, until all messages are delivered and settled.

    Raises:
        NetemError: the gateway does not run, or messages were not delivered in time.
    """
    queues = [
        QueueRun(f"queue-{number}", setting, draw(setting, runs.seconds, rng))
        for number, rng in enumerate(_rngs(runs, seed))
    ]
    with _gateway(setting, [each.name for each in queues]) as url, _switching():
        client = QueueClient(url)
        begin_at = time.monotonic() + START_SECONDS
        threads = [thread for each in queues for thread in each.threads(client, begin_at)]
        for thread in threads:
            thread.start()
        end_at = begin_at + runs.seconds + END_SECONDS
        are_done = [each.is_done.wait(end_at - time.monotonic()) for each in queues]
        for each in queues:
            each.is_done.set()
        for thread in threads:
            thread.join()
    for each, is_done in zip(queues, are_done, strict=True):
        if each.failures or not is_done:
            why = each.failures[0] if each.failures else "messages were not delivered in time"
            raise RunError(f"{each.name}: {why}")
    return queues


def _rngs(runs: QueueRuns, seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, number]) for number in range(runs.queues)]


def _figures_of(outcome: LeaseOutcome, seconds: float) -> QueueFigures:
    return QueueFigures(
        outcome.n_messages,
        outcome.figures.delivery * outcome.n_messages,
        outcome.figures.waiting * seconds,
        outcome.n_duplicates,
        outcome.n_deliveries,
    )


@contextmanager
def _gateway(setting: LeaseSetting, names: Sequence[str]) -> Iterator[str]:
    """Run a gateway with some queues; yield its URL."""
    group = {
        "order": "key" if setting.order == "settled" else "any",
        "visibility_timeout": setting.visibility_timeout or END_SECONDS,
    }
    queue = {"physical_queues": 1, "key": "topic", "groups": {"default": group}}
    if setting.order != "settled":
        del queue["key"]
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        section = {
            "path": "queue.db",
            "http": f"127.0.0.1:{port}",
            "queues": dict.fromkeys(names, queue),
        }
        directory = Path(folder)
        command = queue_command(directory, {"plugins": {"queue": section}})
        gateway = RunningBroker("queue", command, directory)
        try:
            gateway.wait_until_listening(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            gateway.kill()


@contextmanager
def _switching() -> Iterator[None]:
    """Let threads of this process take turns sooner."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass(eq=False)
class QueueRun:
    """One queue, its senders and its receivers.

    Attributes:
        late: the lateness of each action, seconds.
        stored: the numbers of messages in the order in which they were stored, where the setting
            has an order.
        received: for each received message its number, the time of the request, and the time of its
            arrival.
        is_done: an event that is set when all messages are delivered and settled, or a thread has
            failed.
    """

    name: str
    setting: LeaseSetting
    draws: LeaseDraws
    late: list[float] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    received: list[tuple[int, float, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        n_messages = len(self.draws.created)
        self._lock = threading.Lock()
        self._sending = iter(range(n_messages))
        self._sent: list[int] = []
        self._n_stored = 0
        self._visible_since = [0.0] * n_messages
        self._delivered = [math.inf] * n_messages
        self._n_settled = 0
        self._waited = 0.0
        self._n_duplicates = 0
        self._n_deliveries = 0
        if not n_messages:
            self.is_done.set()

    def threads(self, client: QueueClient, begin_at: float) -> list[threading.Thread]:
        """Return its threads, which begin with a time of the monotonic clock."""
        self._client = client
        self._begin_at = begin_at
        works = [self._send] * self.setting.sender_threads
        works += [self._receive] * self.setting.broker_threads
        return [threading.Thread(target=self._guard, args=(each,), daemon=True) for each in works]

    def figures(self) -> QueueFigures:
        """Return what was found."""
        created = self.draws.created.tolist()
        seconds = math.fsum(self._delivered) - math.fsum(created)
        return QueueFigures(
            len(created), seconds, self._waited, self._n_duplicates, self._n_deliveries
        )

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told by `run_setting`
            self.failures.append(f"{type(error).__name__}: {error}")
            self.is_done.set()

    def _now(self) -> float:
        return time.monotonic() - self._begin_at

    def _until(self, at: float) -> None:
        time.sleep(max(0.0, at - self._now()))
        self.late.append(max(0.0, self._now() - at))

    def _send(self) -> None:
        """Take the oldest message that waits in the senders, again and again."""
        while True:
            with self._lock:
                number = next(self._sending, None)
            if number is None or self.is_done.is_set():
                return
            created = float(self.draws.created[number])
            begin = max(created, self._now())
            self._until(begin + float(self.draws.services[number]))
            with self._lock:
                self._waited += begin - created
                self._visible_since[number] = self._now()
            self._store(number)

    def _store(self, number: int) -> None:
        """Store a message; in order, with those that waited for it, after those it waits for."""
        if self.setting.order == "any":
            self._client.enqueue(self.name, [OutgoingMessage("t", str(number).encode())])
            return
        with self._lock:
            heapq.heappush(self._sent, number)
            ready = []
            while self._sent and self._sent[0] == self._n_stored:
                ready.append(heapq.heappop(self._sent))
                self._n_stored += 1
            if ready:
                self.stored += ready
                messages = [OutgoingMessage("t", str(each).encode()) for each in ready]
                self._client.enqueue(self.name, messages)

    def _receive(self) -> None:
        """Receive a message and deliver it, again and again."""
        timeout = self.setting.visibility_timeout
        while not self.is_done.is_set():
            asked_at = self._now()
            for each in self._client.receive(self.name, max_messages=1, wait_seconds=WAIT_SECONDS):
                number = int(each.payload)
                with self._lock:
                    begin = self._now()
                    self.received.append((number, asked_at, begin))
                    service, fails = next(self.draws.deliveries)
                    self._n_deliveries += 1
                    self._waited += max(0.0, begin - self._visible_since[number])
                    if timeout is not None:
                        self._visible_since[number] = begin + timeout
                self._until(begin + service)
                if not fails:
                    self._deliver(number, each.receipt_handle)
                elif timeout is None:
                    self._visible_since[number] = self._now()
                    self._client.settle(self.name, [each.receipt_handle], "nack")

    def _deliver(self, number: int, receipt_handle: str) -> None:
        """Note that a message is delivered, and settle it unless its lease is over."""
        with self._lock:
            if self._delivered[number] < math.inf:
                self._n_duplicates += 1
            else:
                self._delivered[number] = self._now()
        if not self._client.settle(self.name, [receipt_handle]):
            with self._lock:
                self._n_settled += 1
                if self._n_settled == len(self._delivered):
                    self.is_done.set()


def _compared(
    name: str,
    pairs: Sequence[tuple[QueueFigures, QueueFigures]],
    runs: QueueRuns,
    late_seconds: float,
) -> list[ComparedFigure]:
    def units(one: str, other: str | None = None) -> list[ComparedUnit]:
        return [
            ComparedUnit(
                (getattr(ours, one), getattr(ours, other) if other else runs.seconds),
                (getattr(theirs, one), getattr(theirs, other) if other else runs.seconds),
            )
            for ours, theirs in pairs
        ]

    rows = {
        "delivery time, s": units("delivery_seconds", "messages"),
        "waiting messages": units("waited_seconds"),
        "deliveries of a message": units("deliveries", "messages"),
    }
    return [
        ComparedFigure("004", f"{name}: {what}", each, late_seconds) for what, each in rows.items()
    ]
