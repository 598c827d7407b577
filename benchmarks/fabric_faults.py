"""What do publishers and consumers of a queue see when machines of its Redis cluster fail?

Rerun: ``python -m benchmarks.fabric_faults --figures FILE --plot FILE``; a look at three machines
with ``--quick``. It needs root, redis-server and iproute2.

Each machine is a network namespace. The cluster is that of docs/how-to/fabric.md: a master of each
of two rings on each machine, with replicas on others. A broker, a gateway and their clients are on
machines of their own. Devices publish to the broker at QoS 1, and other clients send requests to
the gateway under deduplication identifiers; each sends one message at a time, repeats it until it
is told that it is stored, and pauses. *Steady* requests, without identifiers, are sent at a
constant rate, whatever the outcome of earlier ones; a request that is not answered within
`PATIENCE_SECONDS` is an error to its client, as in paper 001. Consumers receive at the gateway and
settle. Then a fault is made in the middle of the traffic. When it is over, all messages are
received, and compared with those that were acknowledged.

Where machines fail, the baseline of paper 001 is measured as well: consistent hashing without
exclusion, in place of the enqueue controller (see `benchmarks.fabric.hashing`).

A repetition has a cluster of its own, and another failing machine. It is the unit of intervals.
"""

from __future__ import annotations

import asyncio
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
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import aiohttp
import typer
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.errors import BenchmarkError
from benchmarks.fabric.cluster import NODE_TIMEOUT_SECONDS, PREFIX, Cluster
from benchmarks.fabric.machines import Machines
from benchmarks.program import Program, Quick, Repeats, choose, describe_run, tell
from penstock.netem.figures.estimates import Estimate, Units, at_least, at_most, bootstrap, mean_of
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file
from penstock.netem.runs.broker_process import ANONYMOUS, RunningBroker, penstock_command
from penstock.plugins.queue.client import OutgoingMessage, QueueClient, QueueError
from penstock.plugins.queue.engines.redis.messages import part_key

QUEUE: Final = "load"
TOKEN: Final = "of-this-run-alone"  # noqa: S105 (of a network that ends with the run)
MQTT_PORT: Final = 1883
HTTP_PORT: Final = 8080
QUEUES_EACH: Final = 4
"""The number of physical queues for each master."""
N_CONSUMERS: Final = 4
RECEIVE_MESSAGES: Final = 20
WAIT_SECONDS: Final = 1.0
"""The longest time for which the gateway holds a receive."""
REPEAT_SECONDS: Final = 0.1
"""The time between a refusal and the next try."""
ANSWER_SECONDS: Final = 60.0
"""The time after which a client gives up waiting for an answer; no late answer takes as long."""
PATIENCE_SECONDS: Final = 1.0
"""The timeout of the client that sends requests at a steady rate."""
DRAIN_SECONDS: Final = 120.0
"""The time within which all stored messages must be received, including those whose lease was
lost."""
VISIBILITY_SECONDS: Final = 10.0
DEFAULT_FAULT_REPEATS: Final = 6
"""The number of repetitions that a confidence interval needs."""
FEWER: Final = 0.92
"""The share of consistent hashing's errors that exclusion is to spare at least (paper 001,
3.4.2)."""
LONGEST_STOP_SECONDS: Final = 5.0
"""The target for the longest time in which no message is stored."""


class FaultRunSize(NamedTuple):
    """The size of a run.

    Attributes:
        rate: the rate of steady requests, 1/s.
        pause_seconds: a publisher's pause between two messages.
        fault_seconds: the time from a fault to its end, or to the next one.
    """

    machines: int
    replicas: int
    rate: float
    publishers: int
    pause_seconds: float
    before_seconds: float
    fault_seconds: float


FULL: Final = FaultRunSize(5, 2, 100.0, 20, 0.25, 2.0, 8.0)
QUICK: Final = FaultRunSize(3, 1, 20.0, 8, 0.1, 1.0, 5.0)


# -- clients ---------------------------------------------------------------------------------------


class ClientRecords:
    """The records of the clients, which several threads write.

    Attributes:
        acknowledged: the payloads that were acknowledged, each with the time of its acknowledgement
            in monotonic seconds.
        received: the payload, the number of its physical queue, its offset and the time of each
            delivery.
        errors: the number of refusals and lost connections, by the client's kind.
        steady: the time of each steady request, and whether its client was told in time that it is
            stored.
        failures: the errors of threads that must not have any.
        is_publishing: whether publishers go on; False ends them.
        is_receiving: whether consumers go on; False ends them.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, float] = {}
        self.received: list[tuple[bytes, int, int, float]] = []
        self.errors: Counter[str] = Counter()
        self.steady: list[tuple[float, bool]] = []
        self.failures: list[BaseException] = []
        self.is_publishing = True
        self.is_receiving = True
        self.lock = threading.Lock()

    def error(self, kind: str) -> None:
        """Count an error of a client."""
        with self.lock:
            self.errors[kind] += 1


def publish_http(seen: ClientRecords, url: str, name: str, pause_seconds: float) -> None:
    """Send messages, each until it is stored, until publishing ends."""
    client = QueueClient(url, ANSWER_SECONDS, token=TOKEN)
    for number in itertools.count():
        payload = f"http {name} {number}".encode()
        message = OutgoingMessage(f"load/http/{name}", payload, deduplication_id=payload.decode())
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


def publish_mqtt(seen: ClientRecords, address: str, name: str, pause_seconds: float) -> None:
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
            client.publish(f"load/mqtt/{name}", payload, 1)
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


def send_steadily(seen: ClientRecords, url: str, rate: float) -> None:
    """Send requests without identifiers at a rate until publishing ends."""
    asyncio.run(_send_steadily(seen, f"{url}/queues/{QUEUE}/messages", rate))


async def _send_steadily(seen: ClientRecords, url: str, rate: float) -> None:
    async def send(session: aiohttp.ClientSession, number: int) -> None:
        payload = f"steady {number}".encode()
        # Topics are the keys of the baseline: so many that each physical queue has its share.
        row = {"topic": f"load/steady/{number % 1000}", "text": payload.decode()}
        sent_at, is_stored = time.monotonic(), False
        try:
            async with session.post(url, json={"messages": [row]}) as response:
                is_stored = response.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            pass
        seen.steady.append((sent_at, is_stored))
        if is_stored:
            seen.acknowledged[payload] = time.monotonic()

    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
        ) as session,
        asyncio.TaskGroup() as tasks,
    ):
        began_at = time.monotonic()
        for number in itertools.count(1):
            if not seen.is_publishing:
                return
            tasks.create_task(send(session, number), name=f"steady request {number}")
            await asyncio.sleep(max(0.0, began_at + number / rate - time.monotonic()))


def consume(seen: ClientRecords, url: str) -> None:
    """Receive and settle until receiving ends."""
    client = QueueClient(url, ANSWER_SECONDS, token=TOKEN)
    handles: list[str] = []
    while seen.is_receiving:
        try:
            got = client.receive(
                QUEUE, max_messages=RECEIVE_MESSAGES, wait_seconds=WAIT_SECONDS, acknowledge=handles
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
        end: a function that ends it; None for a fault that stays.
        n_machines: the number of machines that fail, one after the other.
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
        "One machine's memory is full, then not",
        lambda _, c, name: c.fill(name),
        lambda _, c, name: c.empty(name),
    ),
}


COMPARED: Final = ("kill", "kill-two", "freeze")
"""The faults that are made with the baseline as well."""


class FaultOutcome(NamedTuple):
    """The outcome of a repetition.

    Attributes:
        messages: the number of acknowledged messages.
        errors: the refusals and lost connections of publishers, without those of steady requests.
        receive_errors: the refusals and lost connections of consumers.
        steady_errors: the number of steady requests that were refused, or not answered in time.
        silent_seconds: the longest time in which no message was stored.
        silent_http_seconds: the longest time in which no message of an HTTP request was stored.
        silent_mqtt_seconds: the longest time without a PUBACK.
        silent_receive_seconds: the longest time without a delivery.
        unreadable_seconds: the longest time without a delivery from physical queues whose master
            was on the failed machine.
        lost: the acknowledged messages that were never delivered.
        doubled: the messages with a deduplication identifier that were stored more than once.
        repeated: the messages without an identifier that were stored more than once.
        redelivered: the repeated deliveries of messages whose settling was lost or late.
        by_second: the number of steady requests that were stored in time, by the second in which
            they were sent, from the fault on.
    """

    messages: float
    errors: float
    receive_errors: float
    steady_errors: float
    silent_seconds: float
    silent_http_seconds: float
    silent_mqtt_seconds: float
    silent_receive_seconds: float
    unreadable_seconds: float
    lost: float
    doubled: float
    repeated: float
    redelivered: float
    by_second: tuple[int, ...] = ()


ROWS: Final = {
    "messages": "Messages acknowledged",
    "errors": "Errors of publishers",
    "receive_errors": "Errors of consumers",
    "steady_errors": f"Steady requests without an answer in {PATIENCE_SECONDS:g} s, or refused",
    "silent_seconds": "Longest without anything stored, s",
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


def judge(seen: ClientRecords, failed: set[int], begin: float, end: float) -> FaultOutcome:
    """Compare the received messages with those that were acknowledged.

    Args:
        seen: the records of the clients.
        failed: the physical queues whose master was on the machine that failed first.
        begin: the begin of the fault, in monotonic seconds.
        end: the end of the judged time, in monotonic seconds.
    """
    places = {(payload, number, offset) for payload, number, offset, _ in seen.received}
    came = Counter(payload for payload, _, _ in places)
    acknowledged = list(seen.acknowledged.items())
    again = [payload for payload, n in came.items() if n > 1]
    from_failed = [at for _, number, _, at in seen.received if number in failed]
    steady = [(at - begin, is_stored) for at, is_stored in seen.steady if begin <= at < end]
    seconds = Counter(int(at) for at, is_stored in steady if is_stored)

    def gap_of(kind: bytes) -> float:
        times = [at for one, at in acknowledged if one.startswith(kind)]
        return longest_gap(times, begin, end)

    return FaultOutcome(
        messages=len(acknowledged),
        errors=seen.errors["http"] + seen.errors["mqtt"],
        receive_errors=seen.errors["receive"],
        steady_errors=sum(not is_stored for _, is_stored in steady),
        silent_seconds=gap_of(b""),
        silent_http_seconds=gap_of(b"http"),
        silent_mqtt_seconds=gap_of(b"mqtt"),
        silent_receive_seconds=longest_gap([at for *_, at in seen.received], begin, end),
        unreadable_seconds=longest_gap(from_failed, begin, end),
        lost=sum(payload not in came for payload, _ in acknowledged),
        doubled=sum(payload.startswith(b"http") for payload in again),
        repeated=sum(not payload.startswith(b"http") for payload in again),
        redelivered=len(seen.received) - len(places),
        by_second=tuple(seconds[at] for at in range(int(end - begin))),
    )


def run(
    fault: Fault, size: FaultRunSize, repetition: int, folder: Path, *, hashing: bool = False
) -> FaultOutcome:
    """Run one repetition.

    Raises:
        BenchmarkError: a program fails that must not, or messages do not come.
    """
    names = [f"m{at}" for at in range(size.machines)]
    victims = [names[(repetition + 2 * at) % len(names)] for at in range(fault.n_machines)]
    with ExitStack() as stack:
        machines = stack.enter_context(Machines([*names, "broker", "gateway", "clients"]))
        cluster = stack.enter_context(Cluster(machines, names, size.replicas, folder, "clients"))
        programs = _start_programs(machines, cluster, folder, stack, hashing=hashing)
        url = f"http://{machines.address('gateway')}:{HTTP_PORT}"
        seen = ClientRecords()
        threads = _start_clients(machines, seen, url, size)
        time.sleep(size.before_seconds)
        incarnation = machines.call("clients", lambda: _queue(url)["incarnation"])
        failed = {
            number
            for number in range(_n_queues(cluster))
            if cluster.machine_of(part_key(PREFIX, incarnation, number)) == victims[0]
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


def _n_queues(cluster: Cluster) -> int:
    return QUEUES_EACH * cluster.n_masters


def _start_programs(
    machines: Machines, cluster: Cluster, folder: Path, stack: ExitStack, *, hashing: bool
) -> list[RunningBroker]:
    """Start the broker and the gateway."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens = folder / "tokens.yaml"
    access = {"name": "load", "token_sha256": digest, "roles": {QUEUE: ["read", "write"]}}
    tokens.write_text(json.dumps({"tokens": [access]}))
    section = {
        "engine": "redis",
        "redis": cluster.policy_keys(),
        "http": None,
        "queues": {
            QUEUE: {
                "topics": ["load/#"],
                "physical_queues": _n_queues(cluster),
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
        if hashing:
            command[2:2] = ["benchmarks.fabric.hashing"]
        program = RunningBroker(name, machines.command(name, command), place)
        stack.callback(program.kill)
        program.wait_until_listening(port)
        started.append(program)
    return started


def _start_clients(
    machines: Machines, seen: ClientRecords, url: str, size: FaultRunSize
) -> list[threading.Thread]:
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
    threads.append(guarded(send_steadily, url, size.rate))
    for at in range(size.publishers):
        threads.append(guarded(publish_http, url, f"h{at}", size.pause_seconds))
        threads.append(guarded(publish_mqtt, broker, f"d{at}", size.pause_seconds))
    return threads


def _drain(seen: ClientRecords) -> None:
    """Wait until all that was acknowledged has come, or does not come any more."""
    give_up_at = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < give_up_at:
        came = {one[0] for one in list(seen.received)}
        if set(seen.acknowledged) <= came or seen.failures:
            return
        time.sleep(0.1)


# -- the report ------------------------------------------------------------------------------------


def show(field: str, found: Sequence[FaultOutcome]) -> str:
    """Return a cell: the mean with its interval; of what must not happen, the sum."""
    values = [float(getattr(one, field)) for one in found]
    if field in ("lost", "doubled"):
        return f"{sum(values):.0f}"
    digits = 1 if field.endswith("_seconds") else 0
    return bootstrap(len(values), mean_of(values)).show(
        lambda value: "-" if math.isnan(value) else f"{value:.{digits}f}"
    )


def to_table(outcomes: Mapping[str, Sequence[FaultOutcome]]) -> Table:
    """Return the faults as columns."""
    rows = [
        (text, *(show(field, found) for found in outcomes.values())) for field, text in ROWS.items()
    ]
    return Table(("", *(FAULTS[name].about for name in outcomes)), rows)


def fewer(own: Sequence[FaultOutcome], baseline: Sequence[FaultOutcome]) -> Estimate:
    """Return by which share the errors of steady requests are fewer than those of the baseline."""

    def statistic(units: Units) -> float:
        errors = sum(baseline[unit].steady_errors for unit in units)
        return 1 - sum(own[unit].steady_errors for unit in units) / errors if errors else math.nan

    return bootstrap(len(own), statistic)


def to_comparison(
    outcomes: Mapping[str, Sequence[FaultOutcome]], baseline: Mapping[str, Sequence[FaultOutcome]]
) -> Table:
    """Return the faults as rows, with what clients see of both enqueue controllers."""
    rows = []
    for name, others in baseline.items():
        own = outcomes[name]
        share = fewer(own, others)
        stop = bootstrap(len(own), mean_of([one.silent_seconds for one in own]))
        rows.append(
            (
                FAULTS[name].about,
                show("steady_errors", others),
                show("steady_errors", own),
                share.show(lambda value: "-" if math.isnan(value) else f"{100 * value:.1f} %"),
                f"at least {100 * FEWER:.0f} %: {at_least(share, FEWER)}",
                show("silent_seconds", others),
                show("silent_seconds", own),
                f"at most {LONGEST_STOP_SECONDS:g} s: {at_most(stop, LONGEST_STOP_SECONDS)}",
            )
        )
    return Table(
        (
            "",
            "Errors of steady requests, consistent hashing",
            "slowdown exclusion",
            "fewer",
            "target",
            "Longest without anything stored, s, consistent hashing",
            "slowdown exclusion",
            "target",
        ),
        rows,
    )


def draw(
    outcomes: Mapping[str, Sequence[FaultOutcome]],
    baseline: Mapping[str, Sequence[FaultOutcome]],
    rate: float,
    file: Path,
) -> None:
    """Draw the steady requests that were stored in time, by second, with a band from least to most.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: its suffix is of no format.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, grid = plt.subplots(1, len(baseline), figsize=(6 * len(baseline), 4), squeeze=False)
    for axes, name in zip(grid[0], baseline, strict=True):
        for label, found in (("consistent hashing", baseline), ("slowdown exclusion", outcomes)):
            seconds = list(zip(*(one.by_second for one in found[name]), strict=False))
            axes.plot([sum(each) / len(each) for each in seconds], label=label)
            least, most = [min(each) for each in seconds], [max(each) for each in seconds]
            axes.fill_between(range(len(seconds)), least, most, alpha=0.2)
        axes.axhline(rate, color="grey", linewidth=0.5)
        axes.set(title=FAULTS[name].about, xlabel="seconds since the fault", ylim=(0, None))
        axes.set_ylabel(f"requests/s stored within {PATIENCE_SECONDS:g} s")
        axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)


def bench(
    faults: Annotated[str, typer.Option(help=f"Of {', '.join(FAULTS)}; or all.")] = "all",
    repeats: Repeats = DEFAULT_FAULT_REPEATS,
    quick: Quick = False,  # noqa: FBT002 (an option)
    figures: Annotated[
        Path | None, typer.Option(help="Write the tables into this file, for a page.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw throughput into this file.")] = None,
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
    for file in (figures, plot):
        if file is not None:
            check_writable(file)
    origin = begin(describe_run()["command"])
    if is_shared:
        origin = replace(origin, doubts=("other programs ran on this machine",))
    outcomes: dict[str, list[FaultOutcome]] = {name: [] for name in chosen}
    baseline: dict[str, list[FaultOutcome]] = {name: [] for name in chosen if name in COMPARED}
    for repetition in range(repeats):
        for found, hashing in ((outcomes, False), (baseline, True)):
            for name in found:
                with tempfile.TemporaryDirectory(prefix="penstock-fabric-") as folder:
                    one = run(FAULTS[name], size, repetition, Path(folder), hashing=hashing)
                found[name].append(one)
    tables = {"faults": to_table(outcomes)}
    if baseline:
        tables["compared"] = to_comparison(outcomes, baseline)
    every = [one for found in (outcomes, baseline) for some in found.values() for one in some]
    broken = sum(one.lost + one.doubled for one in every)
    verdict = (
        f"BROKEN: {broken:.0f} messages were lost or stored twice."
        if broken
        else "Nothing acknowledged was lost, and nothing with an identifier was stored twice."
    )
    about = (
        f"{size.machines} machines, cluster-node-timeout {NODE_TIMEOUT_SECONDS:g} s, {repeats} "
        f"repetitions, {size.rate:g} steady requests/s; means with 95 % intervals, sums of what "
        "must be 0."
    )
    tell([verdict, "", about, "", "\n\n".join(map(str, tables.values()))], {"origin": str(origin)})
    if figures is not None:
        write_figure_file(figures, origin, tables)
    if plot is not None and baseline:
        draw(outcomes, baseline, size.rate, plot)
    if broken:
        raise typer.Exit(1)


main = Program(bench, "python -m benchmarks.fabric_faults")

if __name__ == "__main__":
    sys.exit(main())
