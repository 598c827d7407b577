"""The command ``penstock bench``, or ``python -m benchmarks``: Penstock beside its peers."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from benchmarks.errors import BenchmarkError
from benchmarks.loads.wire import WireError
from benchmarks.peers import PEERS, Peer, commanded_peer, running
from benchmarks.program import (
    DEFAULT_REPEATS,
    FiguresFile,
    JsonFile,
    Program,
    choose,
    describe_run,
    doubts,
    running_command,
    tell,
    write_json,
)
from benchmarks.rows import (
    acknowledged,
    fan_out,
    features,
    field_memory,
    latency,
    many_clients,
    matching,
    memory,
    outage,
    production,
    production_day,
    small_state,
    throughput,
)
from benchmarks.rows.rates import BROKER_CPU
from benchmarks.rows.report import (
    COMPARED,
    Result,
    format_value,
    is_undecided,
    missed_rows,
    results_of,
    to_json,
    to_markdown,
    to_tables,
)
from benchmarks.rows.row import FULL, QUICK, Measurement, Row, Scale
from penstock.netem.errors import NetemError
from penstock.netem.figures.figure_file import begin, check_writable, write_figure_file

ROWS: Final = {
    row.name: row
    for row in (
        *production_day.ROWS,
        *throughput.ROWS,
        *acknowledged.ROWS,
        *production.ROWS,
        *outage.ROWS,
        *matching.ROWS,
        *fan_out.ROWS,
        *many_clients.ROWS,
        *features.ROWS,
        *latency.ROWS,
        *memory.ROWS,
        *field_memory.ROWS,
        *small_state.ROWS,
    )
}
QUICK_REPEATS: Final = 1
QUICK_ROWS: Final = "qos0_1to1,qos0_1to10,qos0_mixed,qos1_1to1,qos2_1to1,memory_stalled"
QUICK_PEERS: Final = "penstock,mosquitto,amqtt,ceiling"
"""The peers that `--quick` measures where no others are chosen: each answers within a minute."""

UNDECIDED_TIMES: Final = 3
"""The factor by which a row is repeated for the compared brokers where its repetitions disagree
on whether the target is met. Lateness scatters most, and the median of nine scatters far less
than that of three. The rule is the same whether a target is about to be met or missed."""


def measure(row: Row, peer: Peer, scale: Scale) -> Measurement:
    """Start the peer, answer the row's question once and end it.

    Raises:
        BenchmarkError: it did not start or did not answer as the protocol asks.
    """
    try:
        with running(peer, row.options) as broker:
            return row.measure(broker, scale)
    except (WireError, OSError) as error:
        raise BenchmarkError(f"{row.name}: {peer.name}: {error}") from error


def describe(row: Row, measurement: Measurement) -> str:
    """Return one measurement as text.

    On a machine that is busy with something else, the processor time tells more than the rate.
    """
    text = f"{format_value(measurement.value)} {row.unit}"
    if (cpu := measurement.details.get(BROKER_CPU)) is not None:
        text += f", {format_value(cpu)} us of the broker's processor time each"
    if load := measurement.details.get("load_cpu_ratio"):
        text += f", load {load:.2f} of a core"
    return f"{text}, {measurement.lost} lost" if measurement.lost else text


class Progress:
    """The progress of a run on standard error, with its remaining time."""

    def __init__(self, rows: Sequence[Row], peers: Sequence[Peer], repeats: int) -> None:
        self._total = repeats * sum(row.is_for(peer) for row in rows for peer in peers)
        self._done = 0
        self._started = time.monotonic()

    def expect(self, further: int) -> None:
        """Note that there are further measurements to be made."""
        self._total += further

    def tell(self, text: str) -> None:
        """Tell the outcome of one measurement."""
        self._done += 1
        left = (time.monotonic() - self._started) / self._done * (self._total - self._done)
        typer.echo(f"{self._done}/{self._total}, {left / 60:.0f} min left: {text}", err=True)


def measure_row(
    row: Row, peers: Sequence[Peer], scale: Scale, repeats: int, progress: Progress
) -> tuple[list[Result], list[str]]:
    """Measure all peers in turn, A B C A B C, so that a drift of the machine meets them all.

    Where repetitions disagree on whether the target is met, the compared peers are repeated more
    often.

    Returns:
        The results, and the failures: a peer that has failed once is not measured again.
    """
    able = [peer for peer in peers if row.is_for(peer)]
    measurements: dict[str, list[Measurement]] = {}
    failures: dict[str, str] = {}

    def repeat(asked: Sequence[Peer], times: int) -> None:
        for peer in (peer for _ in range(times) for peer in asked):
            if peer.name in failures:
                progress.expect(-1)
                continue
            try:
                measurement = measure(row, peer, scale)
            except NetemError as error:
                failures[peer.name] = str(error)
                progress.tell(f"failed: {error}")
                continue
            measurements.setdefault(peer.name, []).append(measurement)
            progress.tell(f"{row.name} {peer.name}: {describe(row, measurement)}")

    repeat(able, repeats)
    if repeats > 1 and is_undecided(list(results_of(row, measurements))):
        compared = [peer for peer in able if peer.name in COMPARED or peer.is_store]
        progress.expect((UNDECIDED_TIMES - 1) * repeats * len(compared))
        repeat(compared, (UNDECIDED_TIMES - 1) * repeats)
    return list(results_of(row, measurements)), list(failures.values())


def choose_peers(names: str, commands: Sequence[str]) -> list[Peer]:
    """Return the peers that are named, and those that commands start.

    Raises:
        typer.BadParameter: there is no such peer, or a command cannot be one.
    """
    choices = dict(PEERS)
    further: list[Peer] = []
    for command in commands:
        try:
            further.append(commanded_peer(command, choices))
        except NetemError as error:
            raise typer.BadParameter(str(error), param_hint="--command") from error
        choices[further[-1].name] = further[-1]
    chosen = choose("peer", names, choices)
    return chosen + [peer for peer in further if peer not in chosen]


def bench(
    rows: Annotated[
        str | None, typer.Option(help="Rows or groups of rows, separated by commas, or all.")
    ] = None,
    peers: Annotated[str | None, typer.Option(help="Peers, separated by commas, or all.")] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COMMAND",
            help="A further broker, started by this command with {port} in it; may be repeated."
            " NAME@VERSION=... says its version; with {certificate} and {key} it is asked for TLS.",
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Repetitions; 3, or 1 with --quick.")
    ] = None,
    day_seconds: Annotated[
        float | None, typer.Option(min=1, help="Length of the row production_day.")
    ] = None,
    json_file: JsonFile = None,
    figures: FiguresFile = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute, for a first impression.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="End with status 1 if a target is missed.")
    ] = False,
) -> None:
    """Measure Penstock and its peers in one run on this machine.

    Progress goes to standard error, a Markdown table to standard output; its first line names the
    rows that are missed. All rows and peers take some two hours; with
    --peers penstock,mosquitto one.
    """
    groups = {row.name: row.group for row in ROWS.values()}
    chosen_rows = choose("row", rows or (QUICK_ROWS if quick else "all"), ROWS, groups)
    commands = command or []
    chosen_peers = choose_peers(peers or (QUICK_PEERS if quick else "all"), commands)
    origin = replace(begin(running_command()), doubts=doubts())
    if figures is not None:
        check_writable(figures)
    times = repeats or (QUICK_REPEATS if quick else DEFAULT_REPEATS)
    results: list[Result] = []
    failures: list[str] = []
    progress = Progress(chosen_rows, chosen_peers, times)
    scale = QUICK if quick else FULL
    if day_seconds is not None:
        scale = replace(scale, day_seconds=day_seconds)
    for row in chosen_rows:
        measured, failed = measure_row(row, chosen_peers, scale, times, progress)
        results += measured
        failures += failed
    named = ",".join(peer.name for peer in chosen_peers if peer.name in PEERS)
    told = " ".join(f"--command {shlex.quote(each)}" for each in commands)
    line = (
        f"penstock bench --rows {','.join(row.name for row in chosen_rows)} --peers {named}"
        f"{' ' if told else ''}{told} --repeats {times}{' --quick' if quick else ''}"
        f"{'' if day_seconds is None else f' --day-seconds {day_seconds:g}'}"
    )
    run = describe_run(chosen_peers, line)
    write_json(json_file, to_json(results, run))
    if figures is not None:
        write_figure_file(figures, origin, to_tables(results))
    if results:
        tell(to_markdown(results), run)
    for failure in failures:
        typer.echo(f"penstock bench: {failure}", err=True)
    if failures or (check and missed_rows(results)):
        raise typer.Exit(1)


main: Final = Program(bench, "penstock bench")
app: Final = main.app
"""The Typer application, from which `penstock` completes this command."""


if __name__ == "__main__":
    sys.exit(main())
