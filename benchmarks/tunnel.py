"""What a link of `netem` itself takes: its rate unimpaired, and how late packets are.

Rerun: ``python -m benchmarks.tunnel``, as root.

Rate: one TCP connection (cubic) sends as much as it can for some seconds over a link that does
nothing, in packets of 1,500 bytes. Beside the rate stands what share of a core the forwarder took:
the rate over that share is what one core would carry. Delay: datagrams of 100 bytes, one at a
time, on links of several delays; late is what lies between the time asked for and the arrival.
Many links: one network with all of them, each 20 ms and 2.5 MB/s, over most of which a connection
sends a set rate; beside the rates stand the forwarder's share of a core, and how late datagrams are
on a link beside them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Final

import psutil
import typer

from benchmarks.errors import BenchmarkError
from benchmarks.peers import ROOT
from benchmarks.program import Program, describe_run, tell
from penstock.netem.links.network import Host, Link, Network
from penstock.netem.links.profiles import GOOD, OPEN, Direction, Profile

PORT: Final = 5001
CHUNK: Final = bytes(1 << 16)
DELAYS_SECONDS: Final = (0.0, 0.005, 0.02, 0.1)
PAUSE_SECONDS: Final = 0.01
TARGET_BYTES_PER_SECOND: Final = 50e6
TARGET_LATE_SECONDS: Final = 0.001
TICK_SECONDS: Final = 0.02
SETTLE_SECONDS: Final = 2.0
"""Until connections over 20 ms have left their slow start."""


def _start(host: Host, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a part of this program on a host."""
    return host.popen(
        [sys.executable, "-m", "benchmarks.tunnel", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    line = b"" if process.stdout is None else process.stdout.readline()
    if not line:
        raise BenchmarkError("a part of the load has ended")
    return line


def measure_rate(seconds: float) -> tuple[float, float]:
    """Return bytes per second of one connection, and the share of a core the forwarder took."""
    with Network() as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        link = network.link(cloud, edge, OPEN)
        sink = _start(edge, "sink", str(seconds))
        _read_line(sink)
        _start(cloud, "source", link.client_address)
        forwarder = psutil.Process(network.forwarder_pid)
        _read_line(sink)  # the first second is over: windows are open
        before, began_at = forwarder.cpu_times(), time.monotonic()
        received = int(_read_line(sink))
        after, lasted = forwarder.cpu_times(), time.monotonic() - began_at
    cpu_seconds = after.user + after.system - before.user - before.system
    return received / lasted, cpu_seconds / lasted


def measure_lateness(delay_seconds: float, count: int) -> list[float]:
    """Return by how much each datagram was late, in seconds."""
    with Network() as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        direction = Direction(delay=delay_seconds)
        link: Link = network.link(cloud, edge, Profile("delayed", direction, direction))
        receiver = _start(edge, "late", str(count))
        _read_line(receiver)
        _start(cloud, "datagrams", link.client_address, str(count))
        took = [float(word) for word in _read_line(receiver).split()]
    return [seconds - delay_seconds for seconds in took]


@dataclass(frozen=True, slots=True)
class ManyLinks:
    """What a network of many links has carried.

    Attributes:
        rates: bytes per second of each connection, rising.
        share: of a core, that the forwarder took.
        late: seconds by which datagrams were late on a link beside the others, rising.
        setup_seconds: what making the links took.
    """

    rates: list[float]
    share: float
    late: list[float]
    setup_seconds: float


def measure_many(links: int, used: int, each: float, seconds: float) -> ManyLinks:
    """Let one network carry connections over many links at a time.

    Args:
        links: number of links, one more than used at the least.
        used: of those, how many carry a connection.
        each: bytes per second that a connection sends.
        seconds: of the measurement.
    """
    with Network() as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        began_at = time.monotonic()
        made = [network.link(cloud, edge, GOOD) for _ in range(links)]
        setup_seconds = time.monotonic() - began_at
        sink = _start(edge, "many-sink", str(used), str(seconds))
        _read_line(sink)
        _start(cloud, "many-sources", str(each), *(link.client_address for link in made[:used]))
        forwarder = psutil.Process(network.forwarder_pid)
        _read_line(sink)  # all are connected and have settled
        count = max(1, int(seconds / PAUSE_SECONDS / 2))
        receiver = _start(edge, "late", str(count))
        _read_line(receiver)
        before, began_at = forwarder.cpu_times(), time.monotonic()
        _start(cloud, "datagrams", made[-1].client_address, str(count))
        late = [float(word) - GOOD.downstream.delay for word in _read_line(receiver).split()]
        rates = [float(word) for word in _read_line(sink).split()]
        after, lasted = forwarder.cpu_times(), time.monotonic() - began_at
    cpu_seconds = after.user + after.system - before.user - before.system
    return ManyLinks(sorted(rates), cpu_seconds / lasted, sorted(late), setup_seconds)


def _many_sink(count: int, seconds: float) -> None:
    with (
        contextlib.ExitStack() as stack,
        selectors.DefaultSelector() as selector,
        socket.create_server(("", PORT), backlog=count) as server,
    ):
        print("listening", flush=True)
        received: dict[socket.socket, int] = {}
        for _ in range(count):
            sock = stack.enter_context(server.accept()[0])
            selector.register(sock, selectors.EVENT_READ)
            received[sock] = 0
        for duration in (SETTLE_SECONDS, seconds):
            before, began_at = dict(received), time.monotonic()
            while time.monotonic() < began_at + duration:
                for key, _ in selector.select(duration):
                    readable = key.fileobj
                    if isinstance(readable, socket.socket):
                        received[readable] += len(readable.recv(1 << 16))
            lasted = time.monotonic() - began_at
            print(*((received[sock] - before[sock]) / lasted for sock in received), flush=True)


def _many_sources(each: float, addresses: list[str]) -> None:
    with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionError):
        sockets = [
            stack.enter_context(socket.create_connection((address, PORT))) for address in addresses
        ]
        owed = [0.0] * len(sockets)
        for sock in sockets:
            sock.setblocking(False)
        turn_seconds = TICK_SECONDS / len(sockets)
        next_at = time.monotonic()
        while True:
            for number, sock in enumerate(sockets):
                next_at += turn_seconds
                time.sleep(max(0.0, next_at - time.monotonic()))
                owed[number] += each * TICK_SECONDS
                with contextlib.suppress(BlockingIOError):
                    owed[number] -= sock.send(CHUNK[: int(owed[number])])


def _sink(seconds: float) -> None:
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        sock, _ = server.accept()
        with sock:
            for duration in (1.0, seconds):
                received, end_at = 0, time.monotonic() + duration
                while time.monotonic() < end_at:
                    received += len(sock.recv(1 << 18))
                print(received, flush=True)


def _source(address: str) -> None:
    # The reader ends the connection.
    with contextlib.suppress(OSError), socket.create_connection((address, PORT)) as sock:
        while True:
            sock.sendall(CHUNK)


def _late(count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", PORT))
        print("listening", flush=True)
        took = []
        for _ in range(count):
            data = sock.recv(200)
            took.append(time.monotonic() - float(data.rstrip(b"\0")))
        print(*took, flush=True)


def _datagrams(address: str, count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(count):
            sock.sendto(repr(time.monotonic()).encode().ljust(100, b"\0"), (address, PORT))
            time.sleep(PAUSE_SECONDS)


def run(
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 3,
    seconds: Annotated[float, typer.Option(help="Of each measurement of the rate.")] = 3.0,
    datagrams: Annotated[int, typer.Option(min=1, help="For each delay.")] = 200,
    links: Annotated[int, typer.Option(min=2, help="In one network.")] = 100,
    used: Annotated[int, typer.Option(min=1, help="Of those, with a connection.")] = 77,
    each: Annotated[float, typer.Option(help="Bytes per second of a connection.")] = 250_000,
) -> None:
    """Measure rate and lateness, and many links at a time."""
    if used >= links:
        raise typer.BadParameter(
            f"read {used}; allowed: fewer than the {links} links", param_hint="--used"
        )
    rates = [measure_rate(seconds) for _ in range(repeats)]
    rate = statistics.median(rate for rate, _ in rates)
    late = {
        delay: sorted(late for _ in range(repeats) for late in measure_lateness(delay, datagrams))
        for delay in DELAYS_SECONDS
    }
    worst = max(statistics.median(values) for values in late.values())
    is_met = rate >= TARGET_BYTES_PER_SECOND and worst <= TARGET_LATE_SECONDS
    lines = [
        (
            f"{'Met' if is_met else 'Missed'}: {rate / 1e6:.0f} MB/s unimpaired (at least "
            f"{TARGET_BYTES_PER_SECOND / 1e6:.0f}), {1000 * worst:.2f} ms late at light load "
            f"(at most {1000 * TARGET_LATE_SECONDS:.0f})"
        ),
        *("", "| unimpaired, MB/s | forwarder, share of a core |", "|---|---|"),
    ]
    for bytes_per_second, share in sorted(rates):
        lines.append(f"| {bytes_per_second / 1e6:.1f} | {share:.2f} |")
    lines += ["", "| delay asked for, ms | late, median, ms | 99 % | most |", "|---|---|---|---|"]
    for delay, values in late.items():
        places = (len(values) // 2, min(len(values) - 1, len(values) * 99 // 100), -1)
        shown = " | ".join(f"{1000 * values[place]:.2f}" for place in places)
        lines.append(f"| {1000 * delay:g} | {shown} |")
    lines += _many_lines(measure_many(links, used, each, seconds), links, each)
    tell(lines, describe_run())


def _many_lines(many: ManyLinks, links: int, each: float) -> list[str]:
    late = [1000 * many.late[len(many.late) * percent // 100] for percent in (50, 99)]
    told = {
        f"{links} links, {len(many.rates)} of them at {each / 1e3:g} kB/s": "",
        "carried, MB/s": f"{sum(many.rates) / 1e6:.2f}",
        "the slowest connection, kB/s": f"{many.rates[0] / 1e3:.1f}",
        "forwarder, share of a core": f"{many.share:.2f}",
        "late on a link beside them, median and 99 %, ms": f"{late[0]:.2f}, {late[1]:.2f}",
        "to make the links, s": f"{many.setup_seconds:.1f}",
    }
    head, *rows = (f"| {name} | {text} |" for name, text in told.items())
    return ["", head.replace("|  |", "| |"), "|---|---|", *rows]


_measure: Final = Program(run, "python -m benchmarks.tunnel")


def main(argv: list[str]) -> int:
    """Run the benchmark, or a part of its load."""
    match argv:
        case ["sink", seconds]:
            _sink(float(seconds))
        case ["source", address]:
            _source(address)
        case ["many-sink", count, seconds]:
            _many_sink(int(count), float(seconds))
        case ["many-sources", each, *addresses]:
            _many_sources(float(each), addresses)
        case ["late", count]:
            _late(int(count))
        case ["datagrams", address, count]:
            _datagrams(address, int(count))
        case _:
            return _measure(argv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
