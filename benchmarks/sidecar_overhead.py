"""What does the sidecar cost: how much later is a message, and how many fewer pass in a second?

And memory: with 75 stalled subscribers and 60 different messages of 1 MB, mosquitto grows by 23.5
times the payload, behind the sidecar by 1.4, and the sidecar itself by 0.4; with MQTT 5, where the
sidecar takes all 60 for each, both by 1.1 (one run each, a busy machine).

Rerun: ``python -m benchmarks.sidecar_overhead``; a look in seconds with ``--quick``.

One broker runs, and one sidecar before it, with the plugins of docs/how-to/edge-proxy.md. The same
load goes to the broker itself, through a forwarder of connections that looks at nothing, and
through the sidecar, publishers and subscribers alike, in turns in the order A B C C B A; each two
of a way give one figure, and the median of these counts. Latency is that of one message at a time,
from its PUBLISH to its arrival at the client that has sent it, so of two ways through the sidecar.
Throughput is that of rows of ``penstock bench``. Load, broker and sidecar need a processor each:
where they share one, throughput tells how it is shared. The forwarder says what a process in the
way costs there whatever it does, and the processor time of each, a message, what the sidecar adds.
Memory is the highest growth of a resident set over the bytes published, of brokers that are started
anew (`benchmarks.rows.memory`).
"""

from __future__ import annotations

import itertools
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import psutil
import typer
import yaml

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.loads.load import Load
from benchmarks.loads.windowed import WindowedLoad
from benchmarks.peers import PEERS, Peer, RunningPeer, running
from benchmarks.program import JsonFile, Program, Quick, choose, describe_run, tell, write_json
from benchmarks.rows import throughput
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES, ONE_TO_ONE
from benchmarks.rows.memory import PeakSampler, measure_stalled_for_good
from benchmarks.rows.rates import Run
from benchmarks.rows.row import Scale
from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import RunningBroker, reserved_port

BROKERS: Final = {name: PEERS[name] for name in ("penstock", "mosquitto")}
TARGET_MILLISECONDS: Final = 0.2
TARGET_RATIO: Final = 0.8
PAYLOAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: of four turns.
        trips: messages of a turn for latency.
        seconds: of a turn for throughput.
    """

    rounds: int
    trips: int
    seconds: float


FULL_EFFORT: Final = Effort(rounds=10, trips=1_000, seconds=2.0)
QUICK_EFFORT: Final = Effort(rounds=1, trips=100, seconds=0.2)
QUICK_MEMORY: Final = Scale(
    stalled_subscribers=5, large_messages=5, large_bytes=500_000, steady_seconds=0.1
)
WARM_UP_MESSAGES: Final = 2_000


@contextmanager
def forwarder_before(broker: RunningPeer) -> Iterator[RunningPeer]:
    """Start a forwarder of connections and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, reserved_port() as port:
        file = Path(__file__).parent / "loads" / "forwarder.py"
        command = [sys.executable, str(file), str(port), str(broker.port)]
        with _started("forwarder", command, Path(name), port) as forwarder:
            yield forwarder


@contextmanager
def sidecar_before(broker: RunningPeer) -> Iterator[RunningPeer]:
    """Start a sidecar and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, reserved_port() as port:
        folder = Path(name)
        file = folder / "proxy.yaml"
        config = {
            "listener": {"bind": f"127.0.0.1:{port}"},
            "upstream": {"address": f"127.0.0.1:{broker.port}"},
            "plugins": {"probing": {}, "withholding": {}},
        }
        file.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "penstock", "proxy", "-c", str(file)]
        with _started("sidecar", command, folder, port) as sidecar:
            yield sidecar


@contextmanager
def _started(name: str, command: list[str], folder: Path, port: int) -> Iterator[RunningPeer]:
    process = RunningBroker(name, command, folder)
    try:
        process.wait_until_listening(port)
        yield RunningPeer(name, port, psutil.Process(process.process.pid))
    finally:
        process.stop()


def median_trip(effort: Effort, qos: int, peer: RunningPeer) -> float:
    """Return the median seconds from PUBLISH to arrival, one message at a time."""
    topic = "bench/trip"
    packet = wire.publish_packet(topic, bytes(PAYLOAD_BYTES), 1 if qos else None, qos=qos)
    trips = []
    with wire.open_client(peer.port, "bench-trip") as sock:
        wire.subscribe(sock, topic, qos)
        for _ in range(effort.trips):
            begun = time.perf_counter()
            sock.sendall(packet)
            is_there = is_acknowledged = False
            while not is_there or (qos and not is_acknowledged):
                read = wire.receive_packet(sock)
                if read[0] == wire.PUBACK:
                    is_acknowledged = True
                    continue
                trips.append(time.perf_counter() - begun)
                is_there = True
                if qos:
                    at = wire.read_publish(read).packet_id_at
                    packet_id = int.from_bytes(read[at : at + 2])
                    sock.sendall(wire.acknowledgement(wire.PUBACK, packet_id))
    return statistics.median(trips)


def rate_at_qos_0(effort: Effort, peer: RunningPeer) -> Turn:
    """Return messages of the row `qos0_1to1` delivered in a second."""
    with Load(peer, shape=throughput.UNIFORM) as load:
        return _rate(load.run, effort, peer)


def rate_at_qos_1(effort: Effort, peer: RunningPeer) -> Turn:
    """Return messages of the row `qos1_1to1` delivered in a second."""
    with WindowedLoad(peer.port, ONE_TO_ONE(qos=1)) as load:
        return _rate(load.run, effort, peer)


def _rate(run: Callable[[int], Run], effort: Effort, peer: RunningPeer) -> Turn:
    rate = run(WARM_UP_MESSAGES).published_per_second
    cpu_seconds = peer.cpu_seconds()
    found = run(max(WARM_UP_MESSAGES, int(rate * effort.seconds)))
    if found.lost:
        raise BenchmarkError(f"{found.lost} messages were lost")
    cpu_seconds = peer.cpu_seconds() - cpu_seconds
    return Turn(found.delivered_per_second, cpu_seconds / found.delivered)


class Turn(NamedTuple):
    """What one turn came to.

    Attributes:
        value: seconds, or messages in a second.
        cpu_seconds: of the process that the load is connected to, a message; 0 where it does not
            count.
    """

    value: float
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a row came to, by the way: `broker`, `forwarder` and `sidecar`.

    Attributes:
        values: means of the two turns of a round.
        cpu_seconds: the same of the processor time of the process in the way, or of the broker, a
            message.
    """

    values: dict[str, list[float]]
    cpu_seconds: dict[str, list[float]]


MEMORY_ROW: Final = "memory_stalled"
TARGET_GROWTH: Final = 1.2
"""Of the sidecar, as of the broker. The upstream's is to be no more, or as without one."""


class Growth(NamedTuple):
    """Growth of resident sets, over the bytes published.

    Attributes:
        broker: without a sidecar.
        behind: of the broker behind the sidecar.
        sidecar: of the sidecar.
    """

    broker: float
    behind: float
    sidecar: float


def measure_memory(peer: Peer, scale: Scale) -> Growth:
    """Measure with subscribers that read nothing.

    Raises:
        BenchmarkError: one that reads on did not get everything.
    """
    payload_bytes = scale.large_messages * scale.large_bytes
    with running(peer) as broker:
        alone = measure_stalled_for_good(broker, scale)
    with running(peer) as broker, sidecar_before(broker) as sidecar:
        before = broker.rss_bytes()
        sampler = PeakSampler(broker)
        with sampler.sampling():
            through = measure_stalled_for_good(sidecar, scale)
    if alone.lost or through.lost:
        raise BenchmarkError(f"{alone.lost} and {through.lost} messages were lost")
    behind = (sampler.peak_bytes - before) / payload_bytes
    return Growth(alone.value, behind, through.value)


def memory_lines(growth: Growth) -> list[str]:
    """Return the table of the memory row."""
    is_met = growth.sidecar <= TARGET_GROWTH and growth.behind <= max(growth.broker, TARGET_GROWTH)
    cells = " | ".join(f"{each:.2f}" for each in growth)
    return [
        "| row | the broker itself | behind the sidecar | sidecar | target |",
        "| --- | ---: | ---: | ---: | --- |",
        f"| {MEMORY_ROW} | {cells} | {'Met' if is_met else 'Missed'}: ≤ {TARGET_GROWTH} |",
    ]


ROWS: Final[dict[str, Callable[[Effort, RunningPeer], Turn]]] = {
    "latency_qos0": lambda effort, peer: Turn(median_trip(effort, 0, peer)),
    "latency_qos1": lambda effort, peer: Turn(median_trip(effort, 1, peer)),
    "qos0_1to1": rate_at_qos_0,
    "qos1_1to1": rate_at_qos_1,
}


def measure(row: str, effort: Effort, ways: dict[str, RunningPeer]) -> Figures:
    """Measure a row, by turns.

    Args:
        row: one of `ROWS`.
        effort: how long to look.
        ways: what the load is connected to.
    """
    figures = Figures({way: [] for way in ways}, {way: [] for way in ways})
    call = partial(ROWS[row], effort)
    for number in range(effort.rounds):
        turns: dict[str, list[Turn]] = {way: [] for way in ways}
        for way in itertools.chain(ways, reversed(ways)):
            turns[way].append(call(ways[way]))
        for way, (one, other) in turns.items():
            figures.values[way].append((one.value + other.value) / 2)
            figures.cpu_seconds[way].append((one.cpu_seconds + other.cpu_seconds) / 2)
        typer.echo(f"{row} {number + 1}/{effort.rounds}", err=True)
    return figures


def measure_ways(peer: Peer, rows: list[str], effort: Effort) -> dict[str, Figures]:
    """Measure rows at a broker, through a forwarder and through a sidecar.

    Raises:
        BenchmarkError: one of them failed.
    """
    with (
        running(peer, inflight_messages=INFLIGHT_MESSAGES) as itself,
        forwarder_before(itself) as forwarder,
        sidecar_before(itself) as sidecar,
    ):
        ways = {"broker": itself, "forwarder": forwarder, "sidecar": sidecar}
        try:
            return {row: measure(row, effort, ways) for row in rows}
        except RunError as error:
            raise BenchmarkError(str(error)) from error


def to_markdown(found: dict[str, Figures]) -> list[str]:
    """Return the table."""
    titles = "row|the broker itself|forwarder|sidecar|cost|to the forwarder|us a message|target"
    lines = [f"| {titles.replace('|', ' | ')} |", "| --- |" + " ---: |" * 6 + " --- |"]
    for row, figures in found.items():
        values = figures.values
        medians = [statistics.median(values[way]) for way in ("broker", "forwarder", "sidecar")]
        if row.startswith("latency"):
            cells = [f"{1000 * each:.3f} ms" for each in medians]
            costs = [1000 * _compared(values, way, operator.sub) for way in ("broker", "forwarder")]
            cells += [f"{cost:+.3f} ms" for cost in costs] + [""]
            is_met, target = costs[0] < TARGET_MILLISECONDS, f"< {TARGET_MILLISECONDS} ms"
        else:
            cells = [f"{each:,.0f}/s" for each in medians]
            costs = [_compared(values, way, operator.truediv) for way in ("broker", "forwarder")]
            cpu = [1e6 * statistics.median(each) for each in figures.cpu_seconds.values()]
            cells += [f"{cost:.0%}" for cost in costs] + [", ".join(f"{each:.2f}" for each in cpu)]
            is_met, target = costs[0] >= TARGET_RATIO, f"≥ {TARGET_RATIO:.0%}"
        verdict = "Met" if is_met else "Missed"
        lines.append(f"| {row} | {' | '.join(cells)} | {verdict}: {target} |")
    return lines


def _compared(
    values: dict[str, list[float]], way: str, compare: Callable[[float, float], float]
) -> float:
    """Return the median of the sidecar's values, each compared with that of a way."""
    return statistics.median(map(compare, values["sidecar"], values[way]))


def bench(
    broker: Annotated[str, typer.Option(help="penstock or mosquitto.")] = "penstock",
    rows: Annotated[str, typer.Option(help="Rows by name, or all.")] = "all",
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Measure what the sidecar costs: a Markdown table on standard output."""
    (peer,) = choose("broker", broker, BROKERS)
    chosen = choose("row", rows, {row: row for row in (*ROWS, MEMORY_ROW)})
    effort = QUICK_EFFORT if quick else FULL_EFFORT
    growth = None
    if MEMORY_ROW in chosen:
        chosen.remove(MEMORY_ROW)
        growth = measure_memory(peer, QUICK_MEMORY if quick else Scale())
    found = measure_ways(peer, chosen, effort) if chosen else {}
    run = describe_run([peer], rounds=str(effort.rounds))
    figures = {row: asdict(each) for row, each in found.items()}
    lines = to_markdown(found) if found else []
    if growth is not None:
        figures[MEMORY_ROW] = growth._asdict()
        lines += ["", *memory_lines(growth)] if found else memory_lines(growth)
    write_json(json_file, {"run": run, "rows": figures})
    tell(lines, run)


main: Final = Program(bench, "python -m benchmarks.sidecar_overhead")

if __name__ == "__main__":
    sys.exit(main())
