"""What a link of `netem` itself takes: its rate unimpaired, and how late packets are.

Rerun: ``python -m benchmarks.tunnel``, as root.

Rate: one TCP connection (cubic) sends as much as it can for some seconds over a link that does
nothing, in packets of 1,500 bytes. Beside the rate stands what share of a core the forwarder took:
the rate over that share is what one core would carry. Delay: datagrams of 100 bytes, one at a
time, on links of several delays; late is what lies between the time asked for and the arrival.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import time
from typing import Annotated, Final

import psutil
import typer

from benchmarks.errors import BenchmarkError
from benchmarks.peers import ROOT
from benchmarks.provenance import describe_run
from netem.errors import NetemError
from netem.network import Host, Link, Network
from netem.profiles import OPEN, Direction, Profile

PORT: Final = 5001
CHUNK: Final = bytes(1 << 16)
DELAYS_SECONDS: Final = (0.0, 0.005, 0.02, 0.1)
PAUSE_SECONDS: Final = 0.01
TARGET_BYTES_PER_SECOND: Final = 50e6
TARGET_LATE_SECONDS: Final = 0.001


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
    # Whoever reads ends the connection.
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


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def run(
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 3,
    seconds: Annotated[float, typer.Option(help="Of each measurement of the rate.")] = 3.0,
    datagrams: Annotated[int, typer.Option(min=1, help="For each delay.")] = 200,
) -> None:
    """Measure rate and lateness."""
    rates = [measure_rate(seconds) for _ in range(repeats)]
    rate = statistics.median(rate for rate, _ in rates)
    late = {
        delay: sorted(late for _ in range(repeats) for late in measure_lateness(delay, datagrams))
        for delay in DELAYS_SECONDS
    }
    worst = max(statistics.median(values) for values in late.values())
    is_met = rate >= TARGET_BYTES_PER_SECOND and worst <= TARGET_LATE_SECONDS
    print(
        f"{'Met' if is_met else 'Missed'}: {rate / 1e6:.0f} MB/s unimpaired (at least "
        f"{TARGET_BYTES_PER_SECOND / 1e6:.0f}), {1000 * worst:.2f} ms late at light load (at most "
        f"{1000 * TARGET_LATE_SECONDS:.0f})\n"
    )
    print("| unimpaired, MB/s | forwarder, share of a core |\n|---|---|")
    for bytes_per_second, share in sorted(rates):
        print(f"| {bytes_per_second / 1e6:.1f} | {share:.2f} |")
    print("\n| delay asked for, ms | late, median, ms | 99 % | most |\n|---|---|---|---|")
    for delay, values in late.items():
        places = (len(values) // 2, min(len(values) - 1, len(values) * 99 // 100), -1)
        shown = " | ".join(f"{1000 * values[place]:.2f}" for place in places)
        print(f"| {1000 * delay:g} | {shown} |")
    print()
    command = f"python -m benchmarks.tunnel --repeats {repeats} --seconds {seconds:g}"
    for key, text in describe_run(f"{command} --datagrams {datagrams}", []).items():
        print(f"- {key}: {text}")


def main(argv: list[str]) -> int:
    """Run the program, or a part of its load.

    Returns:
        Exit status: 1 where the load has ended, 2 for a mistake in the arguments or no root.
    """
    try:
        match argv:
            case ["sink", seconds]:
                _sink(float(seconds))
            case ["source", address]:
                _source(address)
            case ["late", count]:
                _late(int(count))
            case ["datagrams", address, count]:
                _datagrams(address, int(count))
            case _:
                app(args=argv, prog_name="python -m benchmarks.tunnel")
    except BenchmarkError as error:
        print(f"tunnel: {error}", file=sys.stderr)
        return 1
    except NetemError as error:
        print(f"tunnel: {error}", file=sys.stderr)
        return 2
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
