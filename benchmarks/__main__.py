"""Measures Penstock beside its peers: ``penstock bench``, or ``python -m benchmarks``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from benchmarks import (
    acknowledged,
    fan_out,
    latency,
    many_clients,
    matching,
    memory,
    small_state,
    throughput,
)
from benchmarks.errors import BenchmarkError
from benchmarks.peers import PEERS, Peer, running
from benchmarks.provenance import describe_run
from benchmarks.report import Result, format_value, results_of, to_json, to_markdown
from benchmarks.rows import FULL, QUICK, Measurement, Row, Scale
from benchmarks.wire import WireError

ROWS: Final = {
    row.name: row
    for row in (
        *throughput.ROWS,
        *acknowledged.ROWS,
        *matching.ROWS,
        *fan_out.ROWS,
        *many_clients.ROWS,
        *latency.ROWS,
        *memory.ROWS,
        *small_state.ROWS,
    )
}
DEFAULT_REPEATS: Final = 3
QUICK_REPEATS: Final = 1
QUICK_ROWS: Final = "qos0_1to1,qos0_1to10,qos0_mixed,qos1_1to1,qos2_1to1,memory_stalled"
QUICK_PEERS: Final = "penstock,mosquitto,amqtt,ceiling"
"""With `--quick` and no other choice: what answers within a minute."""


Choice = TypeVar("Choice")


def choose(
    kind: str, names: str, choices: Mapping[str, Choice], groups: Mapping[str, str] | None = None
) -> list[Choice]:
    """Return what a comma-separated option names, in the order of `choices`.

    Args:
        kind: what is chosen, for the error.
        names: the option; ``all`` is every choice.
        choices: by name.
        groups: the group that each belongs to, whose name stands for all of them.

    Raises:
        typer.BadParameter: a name is not among `choices`.
    """
    wanted = {name.strip() for name in names.split(",")}
    groups = groups or {}
    allowed = [*choices, *dict.fromkeys(groups.values()), "all"]
    for name in sorted(wanted):
        if name not in allowed:
            raise typer.BadParameter(f"no {kind} {name!r}; allowed: {', '.join(allowed)}")
    return [
        choice for name, choice in choices.items() if wanted & {"all", name, groups.get(name, name)}
    ]


def measure(row: Row, peer: Peer, scale: Scale) -> Measurement:
    """Start the peer, answer the row's question once and end it.

    Raises:
        BenchmarkError: it did not start or did not answer as the protocol asks.
    """
    try:
        with running(peer, is_tls=row.is_tls, inflight_messages=row.inflight_messages) as broker:
            return row.measure(broker, scale)
    except (WireError, OSError) as error:
        raise BenchmarkError(f"{row.name}: {peer.name}: {error}") from error


def describe(row: Row, measurement: Measurement) -> str:
    """Return one measurement as text.

    On a machine that is busy with something else, the rate per processor second tells more than
    the rate.
    """
    text = f"{format_value(measurement.value)} {row.unit}"
    if rate := measurement.details.get("delivered_per_broker_cpu_second"):
        text += f", {format_value(rate)} per processor second of the broker"
    if load := measurement.details.get("load_cpu_ratio"):
        text += f", load {load:.2f} of a core"
    return f"{text}, {measurement.lost} lost" if measurement.lost else text


def measure_row(
    row: Row, peers: Sequence[Peer], scale: Scale, repeats: int
) -> tuple[list[Result], list[str]]:
    """Measure all peers in turn, A B C A B C, so that a drift of the machine meets them all.

    Returns:
        The results, and what went wrong: a peer that failed once is not asked again.
    """
    able = [peer for peer in peers if row.is_for(peer)]
    measurements: dict[str, list[Measurement]] = {}
    failures: dict[str, str] = {}
    for repetition in range(1, repeats + 1):
        for peer in able:
            if peer.name in failures:
                continue
            try:
                measurement = measure(row, peer, scale)
            except BenchmarkError as error:
                failures[peer.name] = str(error)
                typer.echo(f"penstock bench: {error}", err=True)
                continue
            measurements.setdefault(peer.name, []).append(measurement)
            text = describe(row, measurement)
            typer.echo(f"{repetition}/{repeats} {row.name} {peer.name}: {text}", err=True)
    return list(results_of(row, measurements)), list(failures.values())


def bench(
    rows: Annotated[
        str | None, typer.Option(help="Rows or groups of rows, separated by commas, or all.")
    ] = None,
    peers: Annotated[str | None, typer.Option(help="Peers, separated by commas, or all.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Repetitions; 3, or 1 with --quick.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every measurement to this file.")
    ] = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute: a look, no claim.")
    ] = False,
) -> None:
    """Measure Penstock and its peers in one run on this machine.

    Progress goes to standard error, a Markdown table to standard output.
    """
    groups = {row.name: row.group for row in ROWS.values()}
    chosen_rows = choose("row", rows or (QUICK_ROWS if quick else "all"), ROWS, groups)
    chosen_peers = choose("peer", peers or (QUICK_PEERS if quick else "all"), PEERS)
    times = repeats or (QUICK_REPEATS if quick else DEFAULT_REPEATS)
    results: list[Result] = []
    failures: list[str] = []
    for row in chosen_rows:
        measured, failed = measure_row(row, chosen_peers, QUICK if quick else FULL, times)
        results += measured
        failures += failed
    command = (
        f"penstock bench --rows {','.join(row.name for row in chosen_rows)}"
        f" --peers {','.join(peer.name for peer in chosen_peers)}"
        f" --repeats {times}{' --quick' if quick else ''}"
    )
    run = describe_run(command, chosen_peers)
    if json_file is not None:
        json_file.write_text(json.dumps(to_json(results, run), indent=1) + "\n")
    if results:
        typer.echo(to_markdown(results, run))
    if failures:
        typer.echo(f"penstock bench: {len(failures)} of the rows and peers failed", err=True)
        raise typer.Exit(1)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmarks.

    Args:
        argv: arguments; None for those of the process.

    Returns:
        0; 1 where a peer did not work; 2 for wrong arguments.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench)
    try:
        app(args=argv, prog_name="penstock bench")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
