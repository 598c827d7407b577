"""What do publishers and consumers of a queue see when machines of its Redis cluster fail?

Rerun: ``python -m benchmarks.fabric_faults --json fabric-faults.json``; a look at three machines
with ``--quick``. It needs root, redis-server and iproute2.

Each machine is a network namespace and has a master, with replicas on the next two machines. A
broker, a gateway and their clients are on machines of their own. Devices publish to the broker at
QoS 1, and others send requests to the gateway under deduplication identifiers; each sends a message
at a time, repeats what it is not told to be stored, and pauses. Consumers receive at the gateway
and settle. In the midst of it, a fault; when it is over, everything is received, and what came is
held against what was acknowledged.

A repetition has a cluster of its own, and another machine that fails. It is the unit of intervals.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.errors import BenchmarkError
from benchmarks.fabric.cluster import NODE_TIMEOUT_SECONDS, Cluster
from benchmarks.fabric.machines import Machines
from benchmarks.program import JsonFile, Program, Quick, Repeats, choose, tell
from penstock.netem.figures.estimates import bootstrap, mean_of
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file
from penstock.netem.runs.broker_process import ANONYMOUS, RunningBroker, penstock_command
from penstock.plugins.queue.client import OutgoingMessage, QueueClient, QueueError

QUEUE: Final = "load"
TOKEN: Final = "of-this-run-alone"  # noqa: S105 (of a network that ends with the run)
PREFIX: Final = "penstock"
MQTT_PORT: Final = 1883
HTTP_PORT: Final = 8080
QUEUES_EACH: Final = 4
"""Physical queues for each master."""
N_CONSUMERS: Final = 4
RECEIVE_MESSAGES: Final = 20
WAIT_SECONDS: Final = 1.0
"""Of a receive, which is held so long."""
REPEAT_SECONDS: Final = 0.1
"""From a refusal to the repeat."""
ANSWER_SECONDS: Final = 60.0
"""After which an answer is given up; longer than any that is late."""
DRAIN_SECONDS: Final = 120.0
"""For what was stored to be received, leases that were lost among it."""
VISIBILITY_SECONDS: Final = 10.0
DEFAULT_FAULT_REPEATS: Final = 6
"""As many as an interval needs."""


class Size(NamedTuple):
    """How large a run is.

    Attributes:
        machines: of the cluster.
        publishers: of each kind.
        pause_seconds: of a publisher between two messages.
        before_seconds: before the fault.
        fault_seconds: from a fault to its end, or to the next one.
    """

    machines: int
    publishers: int
    pause_seconds: float
    before_seconds: float
    fault_seconds: float


FULL: Final = Size(5, 30, 0.25, 3.0, 8.0)
QUICK: Final = Size(3, 8, 0.1, 1.0, 5.0)


# -- clients ---------------------------------------------------------------------------------------


class Seen:
    """What clients have seen; several threads write.

    Attributes:
        acknowledged: payloads and when each was known to be stored, in monotonic seconds.
        received: payload, number of its physical queue, its offset, and time, of each delivery.
        errors: refusals and lost connections, by the client's kind.
        failures: errors of threads that must not have any.
        is_publishing: False to have publishers end.
        is_receiving: False to have consumers end.
        lock: of `errors`.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, float] = {}
        self.received: list[tuple[bytes, int, int, float]] = []
        self.errors: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.is_publishing = True
        self.is_receiving = True
        self.lock = threading.Lock()

    def error(self, kind: str) -> None:
        """Count an error of a client."""
        with self.lock:
            self.errors[kind] += 1


def publish_http(seen: Seen, url: str, name: str, pause_seconds: float) -> None:
    """Send messages, each until it is stored, until publishing ends."""
    client = QueueClient(url, ANSWER_SECONDS, token=TOKEN)
    for number in itertools.count():
        payload = f"http {name} {number}".encode()
        message = OutgoingMessage("load/http", payload, deduplication_id=payload.decode())
        while True:
            if not seen.is_publishing:
                client.close()
                return
            try:
                client.enqueue(QUEUE, [message])
            except QueueError:
                seen.error("http")
                time.sleep(REPEAT_SECONDS)
            else:
                seen.acknowledged[payload] = time.monotonic()
                break
        time.sleep(pause_seconds)


def publish_mqtt(seen: Seen, address: str, name: str, pause_seconds: float) -> None:
    """Publish at QoS 1, each message until it is stored, until publishing ends."""
    client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5)
    told: list[bool] = []
    ready = threading.Semaphore(0)
    connected = threading.Event()

    def published(_client: Any, _data: Any, _mid: int, reason: Any, _properties: Any) -> None:
        told.append(not reason.is_failure)
        ready.release()

    def disconnected(*_: Any) -> None:
        if seen.is_publishing:
            seen.error("mqtt")

    client.on_connect = lambda *_: connected.set()
    client.on_publish = published
    client.on_disconnect = disconnected
    client.connect(address, MQTT_PORT)
    client.loop_start()
    # paho may forget a message that is published while it handles the CONNACK.
    if not connected.wait(ANSWER_SECONDS):
        raise BenchmarkError(f"client {name}: no CONNACK for {ANSWER_SECONDS:g} s")
    for number in itertools.count():
        payload = f"mqtt {name} {number}".encode()
        is_stored = False
        while not is_stored and seen.is_publishing:
            client.publish("load/mqtt", payload, 1)
            if not ready.acquire(timeout=ANSWER_SECONDS):
                raise BenchmarkError(f"client {name}: no PUBACK for {ANSWER_SECONDS:g} s")
            is_stored = told.pop()
            if not is_stored:
                seen.error("mqtt")
                time.sleep(REPEAT_SECONDS)
        if is_stored:
            seen.acknowledged[payload] = time.monotonic()
        if not seen.is_publishing:
            break
        time.sleep(pause_seconds)
    client.disconnect()
    client.loop_stop()


def consume(seen: Seen, url: str) -> None:
    """Receive and settle until receiving ends."""
    client = QueueClient(url, ANSWER_SECONDS, token=TOKEN)
    handles: list[str] = []
    while seen.is_receiving:
        try:
            got = client.receive(
                QUEUE,
                max_messages=RECEIVE_MESSAGES,
                wait_seconds=WAIT_SECONDS,
                acknowledge=handles,
            )
        except QueueError:
            seen.error("receive")
            time.sleep(REPEAT_SECONDS)
            continue
        now = time.monotonic()
        handles = [one.receipt_handle for one in got]
        seen.received += [(one.payload, one.physical_queue, one.offset, now) for one in got]
    client.close()


# -- a run -----------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A kind of fault.

    Attributes:
        about: what fails, in words.
        begin: makes it.
        end: ends it; None for one that stays.
        n_machines: how many fail, one after the other.
    """

    about: str
    begin: Callable[[Machines, Cluster, str], None]
    end: Callable[[Machines, Cluster, str], None] | None = None
    n_machines: int = 1


FAULTS: Final = {
    "kill": Fault("One machine's servers are killed", lambda _, c, name: c.kill(name)),
    "kill-two": Fault(
        "Two machines' are, the second when the first is replaced",
        lambda _, c, name: c.kill(name),
        n_machines=2,
    ),
    "freeze": Fault(
        "One machine's are frozen (SIGSTOP), then go on",
        lambda _, c, name: c.freeze(name),
        lambda _, c, name: c.thaw(name),
    ),
    "cut": Fault(
        "One machine is cut off from all, then comes back",
        lambda machines, _, name: machines.cut(name),
        lambda machines, _, name: machines.join(name),
    ),
    "full": Fault(
        "One master's memory is full, then not",
        lambda _, c, name: c.fill(name),
        lambda _, c, name: c.empty(name),
    ),
}


class Outcome(NamedTuple):
    """What a repetition has shown.

    Attributes:
        messages: that were acknowledged.
        errors: that clients were told: refusals, and connections that were lost.
        receive_errors: the same of consumers.
        silent_http_seconds: longest time without a request that was stored.
        silent_mqtt_seconds: longest time without a PUBACK.
        silent_receive_seconds: longest time without a delivery.
        unreadable_seconds: longest time without a delivery of what the failed machine's master had.
        lost: acknowledged messages that never came.
        doubled: messages with an identifier that were stored more than once.
        repeated: messages without one that were stored more than once.
        redelivered: deliveries of what had been delivered, as its settling was lost or late.
    """

    messages: float
    errors: float
    receive_errors: float
    silent_http_seconds: float
    silent_mqtt_seconds: float
    silent_receive_seconds: float
    unreadable_seconds: float
    lost: float
    doubled: float
    repeated: float
    redelivered: float


ROWS: Final = {
    "messages": "Messages acknowledged",
    "errors": "Errors of publishers",
    "receive_errors": "Errors of consumers",
    "silent_http_seconds": "Longest without a stored request, s",
    "silent_mqtt_seconds": "Longest without a PUBACK, s",
    "silent_receive_seconds": "Longest without a delivery, s",
    "unreadable_seconds": "Failed master's messages unreadable, s",
    "lost": "Acknowledged messages lost",
    "doubled": "Stored twice, with an identifier",
    "repeated": "Stored twice, without",
    "redelivered": "Received again, as the settling was lost",
}


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time between neighbours of `times` and the ends, in seconds."""
    marks = [begin, *sorted(at for at in times if begin < at < end), end]
    return max(after - before for before, after in itertools.pairwise(marks))


def judge(seen: Seen, failed: set[int], begin: float, end: float) -> Outcome:
    """Hold what came against what was acknowledged.

    Args:
        seen: what clients have seen.
        failed: physical queues whose master was on the machine that failed first.
        begin: of the fault, in monotonic seconds.
        end: of what is looked at.
    """
    places = {(payload, number, offset) for payload, number, offset, _ in seen.received}
    came = Counter(payload for payload, _, _ in places)
    acknowledged = list(seen.acknowledged.items())
    again = [payload for payload, n in came.items() if n > 1]
    from_failed = [at for _, number, _, at in seen.received if number in failed]

    def gap_of(kind: bytes) -> float:
        return longest_gap([at for one, at in acknowledged if one.startswith(kind)], begin, end)

    return Outcome(
        messages=len(acknowledged),
        errors=seen.errors["http"] + seen.errors["mqtt"],
        receive_errors=seen.errors["receive"],
        silent_http_seconds=gap_of(b"http"),
        silent_mqtt_seconds=gap_of(b"mqtt"),
        silent_receive_seconds=longest_gap([at for *_, at in seen.received], begin, end),
        unreadable_seconds=longest_gap(from_failed, begin, end),
        lost=sum(payload not in came for payload, _ in acknowledged),
        doubled=sum(payload.startswith(b"http") for payload in again),
        repeated=sum(payload.startswith(b"mqtt") for payload in again),
        redelivered=len(seen.received) - len(places),
    )


def run(fault: Fault, size: Size, repetition: int, folder: Path) -> Outcome:
    """Make one repetition.

    Raises:
        BenchmarkError: a program fails that must not, or messages do not come.
    """
    names = [f"m{at}" for at in range(size.machines)]
    victims = [names[(repetition + 2 * at) % len(names)] for at in range(fault.n_machines)]
    with ExitStack() as stack:
        machines = stack.enter_context(Machines([*names, "broker", "gateway", "clients"]))
        cluster = stack.enter_context(Cluster(machines, names, folder, "clients"))
        programs = _start_programs(machines, cluster, folder, stack)
        url = f"http://{machines.address('gateway')}:{HTTP_PORT}"
        seen = Seen()
        threads = _start_clients(machines, seen, url, size)
        time.sleep(size.before_seconds)
        incarnation = machines.call("clients", lambda: _queue(url)["incarnation"])
        n_queues = QUEUES_EACH * size.machines
        failed = {
            number
            for number in range(n_queues)
            if cluster.machine_of(f"{PREFIX}:{{{incarnation}.{number}}}") == victims[0]
        }
        began_at = time.monotonic()
        for victim in victims:
            fault.begin(machines, cluster, victim)
            time.sleep(size.fault_seconds)
        if fault.end is not None:
            for victim in victims:
                fault.end(machines, cluster, victim)
            time.sleep(size.before_seconds)
        ended_at = time.monotonic()
        seen.is_publishing = False
        _join(threads[N_CONSUMERS:])
        _drain(seen)
        seen.is_receiving = False
        _join(threads[:N_CONSUMERS])
        for program in programs:
            program.check()
        if seen.failures:
            raise seen.failures[0]
        return judge(seen, failed, began_at, ended_at)


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(2 * ANSWER_SECONDS)
        if thread.is_alive():
            raise BenchmarkError(f"a client has not ended in {2 * ANSWER_SECONDS:g} s")


def _queue(url: str) -> dict[str, Any]:
    client = QueueClient(url, token=TOKEN)
    found = client.queue(QUEUE)
    client.close()
    return found


def _start_programs(
    machines: Machines, cluster: Cluster, folder: Path, stack: ExitStack
) -> list[RunningBroker]:
    """Start the broker and the gateway."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens = folder / "tokens.yaml"
    access = {"name": "load", "token_sha256": digest, "roles": {QUEUE: ["read", "write"]}}
    tokens.write_text(json.dumps({"tokens": [access]}))
    section = {
        "engine": "redis",
        "redis": {"cluster": cluster.addresses(), "prefix": PREFIX, "min_replicas": 1},
        "http": None,
        "queues": {
            QUEUE: {
                "topics": ["load/#"],
                "physical_queues": QUEUES_EACH * len(cluster.names),
                "groups": {"default": {"visibility_timeout": VISIBILITY_SECONDS}},
            }
        },
    }
    gateway = section | {"http": f"0.0.0.0:{HTTP_PORT}", "tokens": str(tokens)}
    places = [folder / "broker", folder / "gateway"]
    for place in places:
        place.mkdir()
    plugins: dict[str, Any] = {ANONYMOUS: {"allow_anonymous": True}, "queue": section}
    policy = {"listeners": {"default": {"bind": f"0.0.0.0:{MQTT_PORT}"}}, "plugins": plugins}
    (places[1] / "policy.yaml").write_text(json.dumps({"plugins": {"queue": gateway}}))
    own = [sys.executable, "-m", "penstock.plugins.queue", "-c", "policy.yaml"]
    started: list[RunningBroker] = []
    for name, place, command, port in (
        ("broker", places[0], penstock_command(places[0], policy), MQTT_PORT),
        ("gateway", places[1], own, HTTP_PORT),
    ):
        program = RunningBroker(name, machines.command(name, command), place)
        stack.callback(program.kill)
        program.wait_until_listening(port)
        started.append(program)
    return started


def _start_clients(machines: Machines, seen: Seen, url: str, size: Size) -> list[threading.Thread]:
    """Start consumers, then publishers; return their threads in this order."""
    broker = machines.address("broker")

    def guarded(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run_guarded() -> None:
            try:
                work(seen, *arguments)
            except BaseException as error:  # noqa: BLE001 (the run ends with it)
                seen.failures.append(error)

        return machines.thread("clients", run_guarded)

    threads = [guarded(consume, url) for _ in range(N_CONSUMERS)]
    for at in range(size.publishers):
        threads.append(guarded(publish_http, url, f"h{at}", size.pause_seconds))
        threads.append(guarded(publish_mqtt, broker, f"d{at}", size.pause_seconds))
    return threads


def _drain(seen: Seen) -> None:
    """Wait until all that was acknowledged has come, or does not come any more."""
    give_up_at = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < give_up_at:
        came = {one[0] for one in list(seen.received)}
        if set(seen.acknowledged) <= came or seen.failures:
            return
        time.sleep(0.1)


# -- the report ------------------------------------------------------------------------------------


def show(field: str, found: Sequence[Outcome]) -> str:
    """Return a cell: the mean with its interval; of what must not happen, the sum."""
    values = [float(getattr(one, field)) for one in found]
    if field in ("lost", "doubled"):
        return f"{sum(values):.0f}"
    digits = 1 if field.endswith("_seconds") else 0
    return bootstrap(len(values), mean_of(values)).show(
        lambda value: "-" if math.isnan(value) else f"{value:.{digits}f}"
    )


def to_table(outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """Return the faults as columns."""
    rows = [
        (text, *(show(field, found) for found in outcomes.values())) for field, text in ROWS.items()
    ]
    return Table(("", *(FAULTS[name].about for name in outcomes)), rows)


def bench(
    faults: Annotated[str, typer.Option(help=f"Of {', '.join(FAULTS)}; or all.")] = "all",
    repeats: Repeats = DEFAULT_FAULT_REPEATS,
    quick: Quick = False,  # noqa: FBT002 (an option)
    figures: JsonFile = None,
    is_shared: Annotated[  # noqa: FBT002 (an option)
        bool, typer.Option("--shared-machine", help="Note that others used the machine.")
    ] = False,
) -> None:
    """Let machines of a cluster fail while a queue is in use, and count what clients see."""
    size = QUICK if quick else FULL
    chosen = choose("fault", faults, {name: name for name in FAULTS})
    if quick:
        chosen = [name for name in chosen if FAULTS[name].n_machines == 1]
        repeats = 1
    if figures is not None:
        check_writable(figures)
    options = f" --repeats {repeats}" + (" --quick" if quick else "")
    options += f" --faults {faults}" + (" --shared-machine" if is_shared else "")
    origin = begin(f"python -m benchmarks.fabric_faults{options}")
    if is_shared:
        origin = replace(origin, doubts=("other programs ran on this machine",))
    outcomes: dict[str, list[Outcome]] = {name: [] for name in chosen}
    for repetition in range(repeats):
        for name in chosen:
            with tempfile.TemporaryDirectory(prefix="penstock-fabric-") as folder:
                outcomes[name].append(run(FAULTS[name], size, repetition, Path(folder)))
    table = to_table(outcomes)
    broken = sum(one.lost + one.doubled for found in outcomes.values() for one in found)
    verdict = (
        f"BROKEN: {broken:.0f} messages were lost or stored twice."
        if broken
        else "Nothing acknowledged was lost, and nothing with an identifier was stored twice."
    )
    about = (
        f"{size.machines} machines, cluster-node-timeout {NODE_TIMEOUT_SECONDS:g} s, {repeats} "
        "repetitions; means with 95 % intervals, sums of what must be 0."
    )
    tell([verdict, "", about, "", str(table)], {"origin": str(origin)})
    if figures is not None:
        write_figure_file(figures, origin, {"faults": table})
    if broken:
        raise typer.Exit(1)


main = Program(bench, "python -m benchmarks.fabric_faults")

if __name__ == "__main__":
    sys.exit(main())
