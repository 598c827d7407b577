"""What does the console cost a broker with many clients: scrapes, and pages that are open?

The clients are idle, so that the rest is the broker's own work. Each situation is between two
looks at the processor time of the broker while nobody watches, so that a drift shows. Rows of
`penstock bench` stand beside it: without a console, and with one that a page watches, in turns.
With Chromium, so does the time from opening the list of clients until its rows are painted.
"""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Annotated, Final

import typer

from benchmarks.__main__ import ROWS
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
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES
from benchmarks.rows.rates import BROKER_CPU
from benchmarks.rows.report import format_value
from benchmarks.rows.row import FULL, QUICK
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

CLIENTS: Final = 10_000
SECONDS: Final = 60.0

QUICK_CLIENTS: Final = 50
QUICK_SECONDS: Final = 0.3

SETTLE_SECONDS: Final = 2.0

TIMEOUT_SECONDS: Final = 30.0

OVERVIEW: Final = ("/api/overview", "/api/clients?sort=rtt&order=desc&limit=6")
"""The requests of a page that shows the overview, every two seconds."""

MEASURED: Final = ("qos0_1to1", "qos0_1to10", "qos1_1to1")

RENDERED: Final = """
const done = arguments[0];
const look = () => requestAnimationFrame(
  () => document.querySelectorAll("tbody tr").length > 20 ? done(performance.now()) : look());
look();
"""
"""Calls back with the milliseconds from the page's request to its rows."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Who watches.

    Attributes:
        paths: the requests of each who watches.
        every_seconds: the time between two turns of them.
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


@contextlib.contextmanager
def watched(broker: RunningPeer) -> Iterator[None]:
    """Have a page open, and metrics scraped, for a block; by processes of their own."""
    spawn = multiprocessing.get_context("spawn")  # a thread would slow down the load
    eyes = [
        spawn.Process(target=ask, args=(broker.metrics_port, each), daemon=True)
        for each in (SITUATIONS[0], SITUATIONS[1])
    ]
    for one in eyes:
        one.start()
    try:
        yield
    finally:
        for one in eyes:
            one.kill()
            one.join()


def ask(port: int, situation: Situation) -> None:
    """Watch a broker until the end of this process."""
    due = time.monotonic()
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        while True:
            for path in situation.paths:
                connection.request("GET", path)
                connection.getresponse().read()
            due += situation.every_seconds
            time.sleep(max(0.0, due - time.monotonic()))


def rows_with_and_without(repeats: int, *, quick: bool) -> Table:
    """Return what each of `MEASURED` reaches without a console, and with one that is watched."""
    scale = replace(QUICK, seconds=0.1) if quick else FULL
    told: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for number in range(repeats):
        for name in MEASURED:
            for has_console in (False, True) if number % 2 == 0 else (True, False):
                options = Options(has_metrics=has_console, inflight_messages=INFLIGHT_MESSAGES)
                with ExitStack() as stack:
                    broker = stack.enter_context(running(PEERS["penstock"], options))
                    if has_console:
                        stack.enter_context(watched(broker))
                    found = ROWS[name].measure(broker, scale)
                values = told.setdefault((name, has_console), [])
                values.append((found.value, found.details[BROKER_CPU]))
                text = f"{name} {'with' if has_console else 'without'}: {found.value:,.0f}"
                typer.echo(f"{number + 1}/{repeats} {text}", err=True)
    rows = []
    for name in MEASURED:
        (off, off_cpu), (on, on_cpu) = (
            [statistics.median(values) for values in zip(*told[name, has], strict=True)]
            for has in (False, True)
        )
        of_cpu = f"{off_cpu / on_cpu:.3f}" if on_cpu else "-"  # a short run may take no tick of it
        ratios = f"{on / off:.3f}", of_cpu
        rows.append([f"`{name}`", format_value(off), format_value(on), *ratios])
    return Table(
        ["delivered/s", "without", "console, watched", "ratio", "ratio by processor time"], rows
    )


def first_render(broker: RunningPeer) -> str:
    """Return how long Chromium takes to paint the list of clients; "-" without Chromium."""
    if shutil.which("chromedriver") is None:
        return "-"
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: PLC0415

    options = ChromeOptions()
    options.page_load_strategy = "none"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(TIMEOUT_SECONDS)
        driver.get(f"http://127.0.0.1:{broker.metrics_port}/#/clients")
        return f"{driver.execute_async_script(RENDERED):.0f}"
    finally:
        driver.quit()


def console_cost(
    repeats: Repeats = DEFAULT_REPEATS,
    figures: FiguresFile = None,
    clients: Annotated[int, typer.Option(min=1, help="Idle clients of the broker.")] = CLIENTS,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each look.")] = SECONDS,
    *,
    quick: Quick = False,
) -> None:
    """Measure the share of a core that watching costs a broker with many clients."""
    if figures is not None:
        check_writable(figures)
    origin = replace(begin(running_command()), doubts=doubts())
    n_clients, seconds = (QUICK_CLIENTS, QUICK_SECONDS) if quick else (clients, seconds)
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
        renders = [first_render(broker) for _ in range(repeats)]
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
    tables = {
        "console": table,
        "page": Table(["list of clients painted after, ms"], [[one] for one in renders]),
        "rows": rows_with_and_without(repeats, quick=quick),
    }
    shown = [line for each in tables.values() for line in (str(each), "")]
    tell([f"{n_clients:,} idle clients", "", *shown], {"origin": str(origin)})
    if figures is not None:
        write_figure_file(figures, origin, tables)


def _spread(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f}"


main: Final = Program(console_cost, "python -m benchmarks.console_cost")


if __name__ == "__main__":
    sys.exit(main())
