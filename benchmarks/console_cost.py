"""What does the console cost a broker with many clients: scrapes, and pages that are open?

The clients are idle, so that the rest is the broker's own work. Each situation is between two
looks at the processor time of the broker while nobody watches, so that a drift shows.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

import typer

from benchmarks.loads import wire
from benchmarks.peers import PEERS, Options, RunningPeer, running
from benchmarks.program import (
    DEFAULT_REPEATS,
    FiguresFile,
    Program,
    Quick,
    Repeats,
    doubts,
    running_command,
    tell,
)
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

CLIENTS: Final = 10_000
SECONDS: Final = 60.0

QUICK_CLIENTS: Final = 50
QUICK_SECONDS: Final = 0.3

SETTLE_SECONDS: Final = 2.0

TIMEOUT_SECONDS: Final = 30.0

OVERVIEW: Final = ("/api/overview", "/api/clients?sort=rtt&order=desc&limit=6")
"""The requests of a page that shows the overview, every two seconds."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Who watches.

    Attributes:
        words: that in words.
        paths: the requests of each who watches.
        every_seconds: the time between two turns of them.
        watchers: how many there are.
    """

    words: str
    paths: Sequence[str] = ()
    every_seconds: float = 1.0
    watchers: int = 1


SITUATIONS: Final = (
    Situation("a scrape of `/metrics` every 15 s", ("/metrics",), 15.0),
    Situation("a page at the overview", OVERVIEW, 2.0),
    Situation("ten pages at the overview", OVERVIEW, 2.0, 10),
)


def watch(broker: RunningPeer, situation: Situation, seconds: float) -> tuple[float, float]:
    """Watch a broker for some seconds.

    Returns:
        (processor seconds of the broker for each second, seconds of the slowest answer).

    Raises:
        wire.WireError: an answer is an error.
    """
    slowest = 0.0
    with ExitStack() as stack:
        connections = [
            stack.enter_context(
                closing(
                    http.client.HTTPConnection(
                        "127.0.0.1", broker.metrics_port, timeout=TIMEOUT_SECONDS
                    )
                )
            )
            for _ in range(situation.watchers)
        ]
        cpu, began = broker.cpu_seconds(), time.monotonic()
        due = began
        while due < began + seconds:
            for connection in connections if situation.paths else ():
                for path in situation.paths:
                    asked = time.monotonic()
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    answer.read()
                    slowest = max(slowest, time.monotonic() - asked)
                    if answer.status != http.HTTPStatus.OK:
                        raise wire.WireError(f"{path}: {answer.status}")
            due += situation.every_seconds
            time.sleep(max(0.0, min(due, began + seconds) - time.monotonic()))
        return (broker.cpu_seconds() - cpu) / (time.monotonic() - began), slowest


def console_cost(
    repeats: Repeats = DEFAULT_REPEATS, figures: FiguresFile = None, *, quick: Quick = False
) -> None:
    """Measure the share of a core that watching costs a broker with many clients."""
    if figures is not None:
        check_writable(figures)
    origin = replace(begin(running_command()), doubts=doubts())
    n_clients, seconds = (QUICK_CLIENTS, QUICK_SECONDS) if quick else (CLIENTS, SECONDS)
    nobody = Situation("nobody")
    found: dict[str, list[tuple[float, float]]] = {one.words: [] for one in SITUATIONS}
    idle: list[float] = []
    with running(PEERS["penstock"], Options(has_metrics=True)) as broker, ExitStack() as stack:
        names = [f"idle-{number}" for number in range(n_clients)]
        for sock in wire.open_clients(broker.port, names):
            stack.enter_context(sock)
            wire.subscribe(sock, f"idle/{sock.fileno()}", 1)
        time.sleep(0 if quick else SETTLE_SECONDS)
        for number in range(repeats):
            for situation in SITUATIONS:
                before, _ = watch(broker, nobody, seconds)
                share, slowest = watch(broker, situation, seconds)
                after, _ = watch(broker, nobody, seconds)
                idle += [before, after]
                found[situation.words].append((share - (before + after) / 2, slowest))
                typer.echo(f"{number + 1}/{repeats} {situation.words}: {share:.3f}", err=True)
    table = Table(
        ["who watches", "% of a core", "least to most", "slowest answer, ms"],
        [["nobody, of all work", f"{100 * statistics.median(idle):.1f}", _spread(idle), "-"]]
        + [
            [
                words,
                f"{100 * statistics.median(share for share, _ in runs):.1f}",
                _spread([share for share, _ in runs]),
                f"{1000 * max(slowest for _, slowest in runs):.0f}",
            ]
            for words, runs in found.items()
        ],
    )
    tell([f"{n_clients:,} idle clients", "", str(table)], {"origin": str(origin)})
    if figures is not None:
        write_figure_file(figures, origin, {"console": table})


def _spread(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f}"


main: Final = Program(console_cost, "python -m benchmarks.console_cost")


if __name__ == "__main__":
    sys.exit(main())
