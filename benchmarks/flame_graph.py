"""Where does the broker's time go in a row? Draws a flame graph, and counts system calls.

``python -m benchmarks.flame_graph qos1_1to1`` measures that row on Penstock while py-spy takes
samples of the broker's stack (its Python functions, and between and above them those of uvloop,
CPython and the C library), during the measured run. The picture has one bar for each function, as
wide as its share of the samples, on top of who called it; the event loop is at the bottom. A system
call is the top of its stack, and counts as the kernel; what the kernel does for a page that is
touched for the first time counts for the process that touches it.

``--calls`` counts the broker's system calls with perf instead, for each published message, which
takes the right to do that (root, or kernel.perf_event_paranoid of -1).

py-spy stops the broker for each sample, which takes some of its speed; shares are what counts. The
rates of such runs are no results.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.__main__ import ROWS
from benchmarks.errors import BenchmarkError
from benchmarks.peers import PEERS, RunningPeer, running
from benchmarks.program import Program, choose, describe_run
from benchmarks.rows.row import FULL, Measurement, Row, Scale
from penstock.netem.runs.broker_process import find_program

SAMPLES_PER_SECOND: Final = 200
PY_SPY_BEGINS: Final = "Sampling process"
"""In the line that py-spy prints once it has found its way through the broker's libraries."""

PERF_BEGINS: Final = "Events enabled"
"""In the line that perf prints once it counts, where it was started with a delay."""

LOOP: Final = "uv_run"
"""Of libuv: what is below it is the same in every sample, and threads without it wait."""

SYSTEM_CALLS: Final = re.compile(
    r"(read|write|readv|writev|recv|recvmsg|recvfrom|send|sendmsg|sendto|epoll_p?wait2?|epoll_ctl|"
    r"syscall|brk|mmap(64)?|munmap|mremap|madvise|accept4?|close|shutdown|getsockname|getpeername|"
    r"getsockopt|setsockopt|fcntl(64)?|socket)"
)
"""Functions of the C library that do nothing but call the kernel."""

WAIT: Final = re.compile(r"epoll_p?wait2?")
"""At the top of a stack, the broker has nothing to do; how long is told apart."""

COUNTED_CALLS: Final = (
    *("read", "recvfrom", "write", "writev", "sendto", "sendmsg", "accept4", "close", "shutdown"),
    *(
        "epoll_wait",
        "epoll_pwait",
        "epoll_ctl",
        "io_uring_enter",
        "brk",
        "mmap",
        "munmap",
        "madvise",
    ),
    *("getsockname", "getpeername", "getsockopt", "setsockopt", "getpid", "futex"),
)
"""Named in the account. To watch all there are takes perf seconds to begin and to end."""

ANY_CALL: Final = "raw_syscalls:sys_enter"
FRAME: Final = re.compile(r"(?P<name>.*) \((?P<file>[^()]*?)(:\d+)?\)")
LEAST_SHARE: Final = 0.002
"""Of all samples; narrower bars are not drawn."""

COLOURS: Final = {"kernel": "#c1440e", "uvloop": "#7f9ec4", "Python": "#f2c14e", "C": "#d9d9d9"}
"""By kind of function; C is CPython's and the C library's."""

PICTURE_INCHES: Final = (11.0, 0.23)
"""Its width, and the height of a bar."""

CHARACTERS_PER_INCH: Final = 14.0


@dataclass(frozen=True, slots=True)
class Watched(RunningPeer):
    """A broker that tells when a measurement looks at its processor time: before and after a run.

    Attributes:
        look: called each time.
    """

    look: Callable[[], None] = lambda: None

    def cpu_seconds(self) -> float:
        """Return the processor time it has used, having told."""
        self.look()
        return RunningPeer.cpu_seconds(self)  # slots make the class anew: super() has the old


class Recorder:
    """A program that watches the broker from the first look at its processor time to the last."""

    def __init__(self, command: list[str], begins: str) -> None:
        self._command = command
        self._begins = begins
        self._process: subprocess.Popen[str] | None = None
        self.text = ""

    def look(self) -> None:
        """Begin, the first time, and wait until the program says that it watches."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for line in self._process.stdout or ():
                self.text += line
                if self._begins in line:
                    break

    def end(self) -> None:
        """End, and keep what was said.

        Raises:
            BenchmarkError: it could not watch.
        """
        process = self._process
        if process is None:
            raise BenchmarkError("the row has no measured run that can be watched")
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate()
        self.text += rest
        if process.returncode not in {0, -signal.SIGINT}:
            last = self.text.strip().rsplit("\n", 1)[-1]
            raise BenchmarkError(
                f"{self._command[0]} ended with status {process.returncode}: {last}"
            )


def watch(
    row: Row, peer_name: str, scale: Scale, command: Callable[[int], list[str]], begins: str
) -> tuple[Measurement, str]:
    """Measure a row while a program watches the broker.

    Args:
        row: which.
        peer_name: which broker.
        scale: of the measurement.
        command: of the program, for the broker's process id.
        begins: in the line that the program prints once it watches.

    Returns:
        What was measured, and what the program printed.

    Raises:
        BenchmarkError: the broker or the program did not do its part.
    """
    peer = PEERS[peer_name]
    with running(peer, is_tls=row.is_tls, inflight_messages=row.inflight_messages) as broker:
        recorder = Recorder(command(broker.process.pid), begins)
        watched = Watched(
            broker.name, broker.port, broker.process, broker.certificate, recorder.look
        )
        try:
            measurement = row.measure(watched, scale)
        finally:
            recorder.end()
    return measurement, recorder.text


@dataclass(slots=True)
class Node:
    """A function at one place of the stack.

    Attributes:
        name: as shown.
        kind: of `COLOURS`.
        samples: in which it was there.
        below: functions it called, by kind and name.
    """

    name: str
    kind: str
    samples: int = 0
    called: dict[tuple[str, str], Node] = field(default_factory=dict)


def read_frame(frame: str, *, is_last: bool) -> tuple[str, str] | None:
    """Return kind and name of a function in py-spy's form; None for one that tells nothing."""
    found = FRAME.fullmatch(frame.strip())
    name, file = (found["name"], found["file"]) if found else (frame.strip(), "")
    if file.endswith(".h"):  # inlined helpers of CPython
        return None
    if file.endswith(".py") or file.startswith("<"):
        return "Python", name
    if file.startswith(("libc.", "ld-")):
        if name.startswith("0x"):
            return "C", "C library"
        return ("kernel" if is_last and SYSTEM_CALLS.fullmatch(name) else "C"), name
    if file.endswith((".c", ".pyx")) or "loop." in file:
        return "uvloop", name
    return "C", name


def read_stacks(lines: Iterable[str]) -> Iterator[tuple[list[tuple[str, str]], int]]:
    """Yield the stacks of the loop's thread, kind and name from the loop up, and how often."""
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        at = next((i for i, frame in enumerate(frames) if frame.startswith(f"{LOOP} (")), None)
        if at is None:
            continue
        known: list[tuple[str, str]] = []
        for i in range(at, len(frames)):
            told = read_frame(frames[i], is_last=i == len(frames) - 1)
            if told is not None and (not known or known[-1] != told):
                known.append(told)
        yield known, int(count)


def grow(stacks: Iterable[tuple[list[tuple[str, str]], int]]) -> tuple[Node, Counter[str]]:
    """Return the call tree, and samples by the kind of the top frame, or `waiting`."""
    root = Node("all", "C")
    tops: Counter[str] = Counter()
    for stack, count in stacks:
        kind, name = stack[-1]
        if WAIT.fullmatch(name):
            tops["waiting"] += count
            continue
        tops[kind] += count
        node = root
        node.samples += count
        for kind, name in stack:
            node = node.called.setdefault((kind, name), Node(name, kind))
            node.samples += count
    return root, tops


def lay_out(root: Node) -> Iterator[tuple[int, float, float, Node]]:
    """Yield depth, begin and width, as shares of all samples, of each function to be drawn."""
    waiting = [(root, -1, 0.0)]
    while waiting:
        node, depth, start = waiting.pop()
        width = node.samples / root.samples
        if width < LEAST_SHARE:
            continue
        if node is not root:
            yield depth, start, width, node
        for child in sorted(node.called.values(), key=lambda each: -each.samples):
            waiting.append((child, depth + 1, start))
            start += child.samples / root.samples


def draw(root: Node, title: str, file: Path) -> None:
    """Draw a flame graph into a PNG."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and not needed to count

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    bars = list(lay_out(root))
    width, height = PICTURE_INCHES
    deepest = max(depth for depth, *_ in bars)
    figure, axes = plt.subplots(figsize=(width, height * (deepest + 4)), layout="constrained")
    for depth, start, share, node in bars:
        axes.add_patch(
            Rectangle(
                (start, depth), share, 0.94, facecolor=COLOURS[node.kind], edgecolor="white", lw=0.4
            )
        )
        room = int(share * width * CHARACTERS_PER_INCH)
        if room > 3:
            shown = node.name if len(node.name) <= room else node.name[: room - 1] + "…"
            axes.text(start + 0.002, depth + 0.42, shown, fontsize=6, va="center", clip_on=True)
    axes.set(xlim=(0, 1), ylim=(0, deepest + 1))
    axes.axis("off")
    axes.set_title(title, fontsize=9, loc="left")
    patches = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in COLOURS.values()]
    figure.legend(
        patches, list(COLOURS), ncols=4, fontsize=7, loc="outside lower left", frameon=False
    )
    figure.savefig(file, dpi=110)
    plt.close(figure)


def units_of(row: Row, measurement: Measurement) -> tuple[float, str]:
    """Return how many of what the broker was given in a measured run.

    Raises:
        BenchmarkError: the row counts nothing.
    """
    details = measurement.details
    if "published_messages" in details:
        return details["published_messages"], "published message"
    if not row.unit.endswith("s/s"):
        raise BenchmarkError("the row has no rate for which calls could be counted")
    return measurement.value * details["elapsed_seconds"], row.unit.removesuffix("s/s")


def count_calls(row: Row, peer_name: str, scale: Scale) -> str:
    """Return system calls for each published message as text, most frequent first."""

    def command(pid: int) -> list[str]:
        events = ",".join([ANY_CALL, *(f"syscalls:sys_enter_{name}" for name in COUNTED_CALLS)])
        return [find_program("perf"), "stat", "-x", ";", "-D", "1", "-e", events, "-p", str(pid)]

    measurement, text = watch(row, peer_name, scale, command, PERF_BEGINS)
    units, unit = units_of(row, measurement)
    calls: Counter[str] = Counter()
    for line in text.splitlines():
        count, _, event, *_ = [*line.split(";"), "", "", ""]
        if count.isdigit() and int(count):
            calls[event.removeprefix("syscalls:sys_enter_")] = int(count)
    total = calls.pop(ANY_CALL, 0) / units
    if not total:
        raise BenchmarkError(f"perf counted nothing: {text.strip()[:200]}")
    told = ", ".join(f"{name} {count / units:.3g}" for name, count in calls.most_common(6))
    return f"{row.name} {peer_name}: {total:.3g} system calls a {unit}: {told}"


def draw_profile(row: Row, peer_name: str, scale: Scale, file: Path) -> str:
    """Draw a flame graph; return the shares by kind as text."""
    with tempfile.TemporaryDirectory(prefix="penstock-profile-") as directory:
        raw = Path(directory) / "raw"

        def command(pid: int) -> list[str]:
            options = ["--native", "--function", "--format", "raw", "--output", str(raw)]
            rate = ["--rate", str(SAMPLES_PER_SECOND)]
            return [find_program("py-spy"), "record", "--pid", str(pid), *options, *rate]

        watch(row, peer_name, scale, command, PY_SPY_BEGINS)
        root, tops = grow(read_stacks(raw.read_text().splitlines()))
    if not root.samples:
        raise BenchmarkError("no samples: the run was too short")
    shares = ", ".join(f"{kind} {tops[kind] / root.samples:.0%}" for kind in COLOURS)
    waiting = tops["waiting"] / (root.samples + tops["waiting"])
    run = describe_run([PEERS[peer_name]])
    title = f"{row.name} ({row.title}), {peer_name}, commit {run['commit']}"
    draw(root, f"{title}\n{shares}; idle for {waiting:.0%} of the time", file)
    return f"{row.name} {peer_name}: {shares}; idle {waiting:.0%}; {root.samples} samples; {file}"


def flame_graph(
    rows: Annotated[str, typer.Argument(help="Rows or groups of rows, separated by commas.")],
    peer: Annotated[str, typer.Option(help="penstock or penstock-stock.")] = "penstock",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of the measured run.")] = FULL.seconds,
    directory: Annotated[
        Path, typer.Option(help="Where profile_ROW.png is written.", exists=True, file_okay=False)
    ] = Path(),
    *,
    calls: Annotated[
        bool, typer.Option("--calls", help="Count system calls with perf; draw nothing.")
    ] = False,
) -> None:
    """Show where the broker's time goes in a row."""
    groups = {row.name: row.group for row in ROWS.values()}
    choose("peer", peer, {name: name for name in PEERS if name.startswith("penstock")})
    scale = replace(FULL, seconds=seconds, latency_seconds=seconds)
    for row in choose("row", rows, ROWS, groups):
        if calls:
            typer.echo(count_calls(row, peer, scale))
        else:
            file = directory / f"profile_{row.name}.png"
            typer.echo(draw_profile(row, peer, scale, file))


main: Final = Program(flame_graph, "python -m benchmarks.flame_graph")


if __name__ == "__main__":
    sys.exit(main())
