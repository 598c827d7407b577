"""What does the sidecar cost: how much later is a message, and how many fewer pass in a second?

Rerun: ``python -m benchmarks.sidecar_overhead``; a look in seconds with ``--quick``.

One broker runs, and one sidecar before it, with the plugins of docs/edge-proxy.md. The same load
goes to the broker itself and through the sidecar, publishers and subscribers alike, in turns in the
order A B B A; each four give one figure, and the median of these counts. Latency is that of one
message at a time, from its PUBLISH to its arrival at the client that has sent it, so of two ways
through the sidecar. Throughput is that of rows of ``penstock bench``. Load, broker and sidecar need
a processor each: where they share one, throughput tells how it is shared.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import psutil
import typer
import yaml

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.loads.load import Load
from benchmarks.loads.windowed import WindowedLoad
from benchmarks.peers import PEERS, RunningPeer, running
from benchmarks.program import JsonFile, Program, Quick, choose, describe_run, tell, write_json
from benchmarks.rows import throughput
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES, ONE_TO_ONE
from benchmarks.rows.rates import Run
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
WARM_UP_MESSAGES: Final = 2_000


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
        process = RunningBroker("sidecar", command, folder)
        try:
            process.wait_until_listening(port)
            yield RunningPeer("sidecar", port, psutil.Process(process.process.pid))
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


def rate_at_qos_0(effort: Effort, peer: RunningPeer) -> float:
    """Return messages of the row `qos0_1to1` delivered in a second."""
    with Load(peer, shape=throughput.UNIFORM) as load:
        return _rate(load.run, effort)


def rate_at_qos_1(effort: Effort, peer: RunningPeer) -> float:
    """Return messages of the row `qos1_1to1` delivered in a second."""
    with WindowedLoad(peer.port, ONE_TO_ONE(qos=1)) as load:
        return _rate(load.run, effort)


def _rate(run: Callable[[int], Run], effort: Effort) -> float:
    rate = run(WARM_UP_MESSAGES).published_per_second
    found = run(max(WARM_UP_MESSAGES, int(rate * effort.seconds)))
    if found.lost:
        raise BenchmarkError(f"{found.lost} messages were lost")
    return found.delivered_per_second


@dataclass(frozen=True, slots=True)
class Figures:
    """What a row came to.

    Attributes:
        broker: medians of turns at the broker itself, one a round.
        sidecar: the same through the sidecar.
    """

    broker: list[float]
    sidecar: list[float]


ROWS: Final[dict[str, Callable[[Effort, RunningPeer], float]]] = {
    "latency_qos0": lambda effort, peer: median_trip(effort, 0, peer),
    "latency_qos1": lambda effort, peer: median_trip(effort, 1, peer),
    "qos0_1to1": rate_at_qos_0,
    "qos1_1to1": rate_at_qos_1,
}


def measure(row: str, effort: Effort, broker: RunningPeer, sidecar: RunningPeer) -> Figures:
    """Measure a row, by turns."""
    figures = Figures([], [])
    call = partial(ROWS[row], effort)
    for number in range(effort.rounds):
        first, second, third, fourth = (call(peer) for peer in (broker, sidecar, sidecar, broker))
        figures.broker.append((first + fourth) / 2)
        figures.sidecar.append((second + third) / 2)
        typer.echo(f"{row} {number + 1}/{effort.rounds}", err=True)
    return figures


def to_markdown(found: dict[str, Figures]) -> list[str]:
    """Return the table."""
    lines = [
        "| row | the broker itself | through the sidecar | cost | target |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for row, figures in found.items():
        alone, through = map(statistics.median, (figures.broker, figures.sidecar))
        each = zip(figures.broker, figures.sidecar, strict=True)
        if row.startswith("latency"):
            added = 1000 * statistics.median(b - a for a, b in each)
            verdict = "Met" if added < TARGET_MILLISECONDS else "Missed"
            lines.append(
                f"| {row} | {1000 * alone:.3f} ms | {1000 * through:.3f} ms | {added:+.3f} ms | "
                f"{verdict}: < {TARGET_MILLISECONDS} ms |"
            )
        else:
            ratio = statistics.median(b / a for a, b in each)
            verdict = "Met" if ratio >= TARGET_RATIO else "Missed"
            lines.append(
                f"| {row} | {alone:,.0f}/s | {through:,.0f}/s | {ratio:.0%} | "
                f"{verdict}: ≥ {TARGET_RATIO:.0%} |"
            )
    return lines


def bench(
    broker: Annotated[str, typer.Option(help="penstock or mosquitto.")] = "penstock",
    rows: Annotated[str, typer.Option(help="Rows by name, or all.")] = "all",
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Measure what the sidecar costs: a Markdown table on standard output."""
    (peer,) = choose("broker", broker, BROKERS)
    chosen = choose("row", rows, {row: row for row in ROWS})
    effort = QUICK_EFFORT if quick else FULL_EFFORT
    with (
        running(peer, inflight_messages=INFLIGHT_MESSAGES) as itself,
        sidecar_before(itself) as sidecar,
    ):
        try:
            found = {row: measure(row, effort, itself, sidecar) for row in chosen}
        except RunError as error:
            raise BenchmarkError(str(error)) from error
    run = describe_run([peer], rounds=str(effort.rounds))
    figures = {row: {"broker": each.broker, "sidecar": each.sidecar} for row, each in found.items()}
    write_json(json_file, {"run": run, "rows": figures})
    tell(to_markdown(found), run)


main: Final = Program(bench, "python -m benchmarks.sidecar_overhead")

if __name__ == "__main__":
    sys.exit(main())
