"""Faults: a wall clock that is wrong when the broker starts, and a broker that is down for long."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.client import OutgoingMessage, QueueClient, UnknownNameError
from tests.campaigns.faults import disk
from tests.campaigns.faults.case import PENSTOCK, Effort, Fault, Finding
from tests.campaigns.faults.set_clocks import SetClocks
from tests.campaigns.faults.subject import Subject

N_ROUNDS: Final = 50
N_MESSAGES: Final = 20
HOUR_SECONDS: Final = 3_600.0
YEAR_SECONDS: Final = 365 * 24 * HOUR_SECONDS
WAIT_SECONDS: Final = 300
"""The time for which a session or a group waits for its client."""

EXPIRY_SECONDS: Final = 600
MOVED_SECONDS: Final = 60.0
"""The most by which a deadline may seem to move, as a round takes time itself."""

MAINTAINED_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
MOST_RECEIVED: Final = 100
"""The most messages that one request may ask for."""

EXPIRES: Final = b"\x02" + EXPIRY_SECONDS.to_bytes(4, "big")
"""Message Expiry Interval, as a property of MQTT 5."""

MESSAGE_EXPIRY: Final = EXPIRES[0]
RETAIN: Final = 1
QUEUES: Final = {"q": {"topics": ["t/#"], "physical_queues": 1}, "tick": {"retention_seconds": 0.1}}
POLICY: Final = {
    "session_expiry_interval": WAIT_SECONDS,
    "persistence": {"path": "sessions.db", "durability": "normal"},
}
GROUPS: Final = ("one", "other")


@dataclass(slots=True)
class ClockFindings:
    """The fates of the messages of all rounds.

    Attributes:
        n_rounds: the number of rounds.
        lost: the number of lost messages, by the session or group that they waited for.
        n_retained_lost: the number of retained messages that were lost.
        late: the number of messages that arrived past their expiry.
        gone: the number of groups that were deleted.
        moved: the greatest move of a deadline, seconds.
    """

    n_rounds: int
    lost: dict[str, int] = field(default_factory=lambda: {"sessions": 0, "groups": 0})
    n_retained_lost: int = 0
    late: int = 0
    gone: int = 0
    moved: float = 0.0


class Waiting:
    """A broker with a session and two groups, for which messages wait while it is down.

    Attributes:
        broker: the process of the broker.
        clocks: the clocks that it sees.
        found: the findings so far.
    """

    def __init__(self, broker: Subject, http_port: int, n_rounds: int) -> None:
        self.broker = broker
        self.found = ClockFindings(n_rounds)
        self._http_port = http_port
        self._number = 0
        self.clocks = SetClocks(broker.folder / "clocks")
        queue = {"path": "queue.db", "http": f"127.0.0.1:{http_port}", "queues": QUEUES}
        broker.configure(POLICY | {"plugins": {"queue": queue}}, site=self.clocks.folder)

    def start(self) -> None:
        """Start the broker, and let it look after its queues."""
        self.broker.start(self._http_port)
        with self._queue() as queue:
            queue.enqueue("tick", [OutgoingMessage("tick", b"")])
            give_up_at = time.monotonic() + MAINTAINED_SECONDS
            while queue.queue("tick")["messages"]:
                if time.monotonic() > give_up_at:
                    raise BenchmarkError("the queues were not looked after")
                time.sleep(LOOK_SECONDS)

    def leave_clients(self) -> None:
        """Have a session that is kept, and two groups that are deleted when nobody uses them."""
        disk.keep_session(self.broker.port)
        with self._queue() as queue:
            for group in GROUPS:
                _put_group(queue, group)

    def publish(self, expiry: bytes) -> set[int]:
        """Publish messages and a retained one; return their numbers.

        Args:
            expiry: `EXPIRES`; nothing for messages that last.
        """
        numbers = set(range(self._number + 1, self._number + 1 + N_MESSAGES))
        self._number = max(numbers)
        packets = [
            wire.publish_packet("t/x", number.to_bytes(4, "big"), 1, properties=expiry)
            for number in sorted(numbers)
        ]
        kept = wire.publish_packet("kept", b"x", 1, properties=expiry)
        packets.append(bytes([kept[0] | RETAIN]) + kept[1:])
        with wire.open_client(self.broker.port, "publisher", version=5) as sock:
            for packet in packets:
                sock.sendall(packet)
                if wire.receive_packet(sock)[0] != wire.PUBACK:
                    raise wire.WireError("a publish was not acknowledged")
        return numbers

    def end(self, rng: random.Random) -> None:
        """Let the broker end, in one way or the other."""
        if rng.random() < 0.5:
            self.broker.kill()
        else:
            self.broker.stop()

    def read(self, lasting: set[int], past: set[int]) -> None:
        """Receive what is there in every way.

        Args:
            lasting: the messages that must be there.
            past: the messages that must not be there.
        """
        last = self.publish(b"")
        awaited = lasting | last
        numbers = disk.read_kept(self.broker.port, awaited)
        self.found.lost["sessions"] += len(awaited - numbers)
        self.found.late += len(past & numbers)
        with self._queue() as queue:
            for group in GROUPS:
                numbers = self._receive(queue, group)
                self.found.lost["groups"] += len(awaited - numbers)
                self.found.late += len(past & numbers)

    def _receive(self, queue: QueueClient, group: str) -> set[int]:
        numbers: set[int] = set()
        try:
            while received := queue.receive("q", group, max_messages=MOST_RECEIVED):
                queue.settle("q", [one.receipt_handle for one in received], group=group)
                for message in received:
                    numbers.add(int.from_bytes(message.payload, "big"))
                    properties = json.loads(message.properties or "{}")
                    if left := properties.get("message_expiry_interval"):
                        self._note_left(left)
        except UnknownNameError:
            self.found.gone += 1
            _put_group(queue, group)
        return numbers

    def read_retained(self) -> None:
        """Look at the deadline of the retained message."""
        with wire.open_client(self.broker.port, "reader", version=5) as sock:
            wire.subscribe(sock, "kept", 0, version=5)
            sock.settimeout(disk.LOST_SECONDS)
            try:
                found = wire.read_publish(wire.receive_packet(sock), version=5)
            except TimeoutError:
                self.found.n_retained_lost += 1
                return
        self._note_left(int.from_bytes(dict(found.properties)[MESSAGE_EXPIRY], "big"))

    def _note_left(self, left: float) -> None:
        self.found.moved = max(self.found.moved, abs(EXPIRY_SECONDS - left))

    @contextmanager
    def _queue(self) -> Iterator[QueueClient]:
        with closing(QueueClient(f"http://127.0.0.1:{self._http_port}")) as queue:
            yield queue


def _put_group(queue: QueueClient, group: str) -> None:
    queue.put_group("q", group, {"group_expiry_seconds": WAIT_SECONDS})


def _run(
    broker: Subject, rng: random.Random, effort: Effort, round_of: Callable[..., None]
) -> ClockFindings:
    """Run all rounds.

    Args:
        broker: the broker, which does not run yet.
        rng: the source of random moments and clocks.
        effort: the extent, which gives the number of rounds.
        round_of: a function that makes one round; the broker runs when it ends.
    """
    with reserved_port() as http_port:
        waiting = Waiting(broker, http_port, effort.count(N_ROUNDS, least=2))
        waiting.start()
        waiting.leave_clients()
        for _ in range(waiting.found.n_rounds):
            round_of(waiting, rng)
    return waiting.found


def _be_away(waiting: Waiting, rng: random.Random) -> None:
    lasting, past = waiting.publish(b""), waiting.publish(EXPIRES)
    waiting.end(rng)
    waiting.clocks.pass_down(rng.uniform(HOUR_SECONDS, YEAR_SECONDS))
    waiting.start()
    waiting.read(lasting, past)


def be_away(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Have messages wait, be down for hours to a year, and receive them."""
    found = _run(broker, rng, effort, _be_away)
    return [
        Finding("downtimes", found.n_rounds),
        *_lost(found),
        Finding("messages delivered past their expiry", found.late, most=0),
    ]


def _set_clock(waiting: Waiting, rng: random.Random) -> None:
    lasting = waiting.publish(EXPIRES)
    if rng.random() < 0.5:
        waiting.clocks.set_wall(rng.uniform(-YEAR_SECONDS, YEAR_SECONDS))
    waiting.end(rng)
    waiting.clocks.set_wall(rng.uniform(-YEAR_SECONDS, YEAR_SECONDS))
    waiting.start()
    waiting.read_retained()
    waiting.read(lasting, set())


def set_clock(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Have messages with a deadline wait, set the clock by up to a year, and receive them."""
    found = _run(broker, rng, effort, _set_clock)
    return [
        Finding("restarts", found.n_rounds),
        *_lost(found),
        Finding("retained messages lost", found.n_retained_lost, most=0),
        Finding("a deadline moved by, with the round", found.moved, "s", most=MOVED_SECONDS),
    ]


def _lost(found: ClockFindings) -> list[Finding]:
    return [
        Finding("groups deleted", found.gone, most=0),
        *(
            Finding(f"messages lost that waited for {who}", number, most=0)
            for who, number in found.lost.items()
        ),
    ]


DOWNTIME: Final = Fault(
    "downtime",
    "messages wait for a session and for groups that wait 5 minutes for their clients; half of the "
    "messages last 10 minutes; the broker is down for an hour to a year",
    be_away,
    (PENSTOCK,),
)
CLOCKS: Final = Fault(
    "clocks",
    "messages of 10 minutes wait for the same; the clock is set by up to a year, to either side, "
    "before and after the broker ends",
    set_clock,
    (PENSTOCK,),
)
