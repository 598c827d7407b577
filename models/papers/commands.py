"""The commands of ``penstock plan`` that run the papers' evaluations again, from a checkout."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.models.command_output import NEEDS_PAHO, Figures, Output, check_picture, write
from penstock.models.papers.dequeue import plot as dequeue_plot
from penstock.models.papers.dequeue import sweep as dequeue_sweep
from penstock.models.papers.fabric import claims as fabric_claims
from penstock.models.papers.fabric import plot as fabric_plot
from penstock.models.papers.fabric import sweep as fabric_sweep
from penstock.models.papers.paper_figures import paper_tables
from penstock.models.papers.withholding.link_tables import (
    LinkRuns,
    links_tables,
    sensitivity_tables,
)
from penstock.models.papers.withholding.plot import draw, draw_trace
from penstock.models.papers.withholding.recorded_traces import Trace, read_traces
from penstock.models.papers.withholding.report import describe, sweep_tables, traces_table
from penstock.models.papers.withholding.rtt_trace import generate_trace, read_trace
from penstock.models.papers.withholding.simulation import Answers, WithholdingSetting
from penstock.models.papers.withholding.sweep import Sweep, run
from penstock.netem.errors import NetemError

Number = TypeVar("Number", int, float)


def add_to(app: CommandLine) -> None:
    """Add the commands to ``penstock plan``."""
    for command in (withholding, links, dequeue, patterns, visibility, fabric, papers):
        app.command()(command)


def _numbers(text: str, name: str, read: Callable[[str], Number]) -> tuple[Number, ...]:
    """Read numbers above 0, ascending, with commas between them."""
    try:
        numbers = tuple(map(read, text.split(",")))
        is_right = numbers == tuple(sorted(set(numbers))) and 0 < numbers[0] < float("inf")
    except ValueError:
        is_right = False
    if not is_right or not numbers[-1] < float("inf"):
        kind = "whole numbers" if read is int else "numbers"
        raise typer.BadParameter(
            f"read {text!r}; allowed: {kind} above 0, ascending, such as 1,2,5", param_hint=name
        )
    return numbers


def _read_file(file: Path) -> list[Trace]:
    """Return the trace of a CSV file, or those of a folder."""
    try:
        if file.is_dir():
            return read_traces(file)
        with file.open(encoding="utf-8", newline="") as lines:
            return [Trace(str(file), read_trace(lines), None)]
    except ModuleNotFoundError:
        raise typer.BadParameter(
            "a run of netem needs pyarrow: pip install 'penstock-mqtt[netem]'", param_hint="--file"
        ) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--file") from None


def withholding(
    context: typer.Context,
    *,
    traces: Annotated[int, typer.Option(min=1, help="Traces drawn as in paper 002.")] = 20,
    seconds: Annotated[int, typer.Option(min=1, help="Length of each.")] = 5000,
    seed: Annotated[int, typer.Option(help="Of the first trace; the others follow.")] = 0,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            help="Traces from a folder of `penstock record` or `penstock netem run`, or a CSV file"
            " of seconds,RTT instead; may be repeated."
        ),
    ] = None,
    probe_periods: Annotated[str, typer.Option(help="T_Q in whole seconds.")] = "1,2,3,5,10",
    thresholds: Annotated[str, typer.Option(help="threshold_l in seconds.")] = "0.2,0.3,0.5,1,2",
    answers: Annotated[
        str, typer.Option(help="When all policies know an RTT: by the period, or on arrival.")
    ] = "period",
    figures: Figures = None,
    plot: Annotated[Path | None, typer.Option(help="Write figures 8 and 9 there.")] = None,
    plot_trace: Annotated[
        Path | None, typer.Option(help="Write there what each policy did on the first trace.")
    ] = None,
) -> None:
    """Compare the withholding policies of paper 002.

    All run on the same traces. The result is printed as Markdown.
    """
    periods = _numbers(probe_periods, "--probe-periods", int)
    levels = _numbers(thresholds, "--thresholds", float)
    read_by: Answers
    if answers == "period":
        read_by = "period"
    elif answers == "arrival":
        read_by = "arrival"
    else:
        raise typer.BadParameter(
            f"read {answers!r}; allowed: period or arrival", param_hint="--answers"
        )

    def rngs() -> list[random.Random]:
        return [random.Random(seed + i) for i in range(traces)]  # noqa: S311 (a simulation)

    output = Output(context, figures, plot)
    if plot_trace is not None:
        write(check_picture, plot_trace, "--plot-trace")
    found_in_files = [trace for name in file or () for trace in _read_file(name)]
    if found_in_files:
        arrivals = [trace.arrivals for trace in found_in_files]
        rtts = [trace.rtts for trace in found_in_files]
        sweep = Sweep(rtts, levels, periods, read_by, arrivals)
        tables = {"traces": traces_table(found_in_files)}
    else:
        sweep = Sweep([generate_trace(rng, seconds) for rng in rngs()], levels, periods, read_by)
        tables = {}
    results = run(sweep)
    tables |= sweep_tables(results)
    if found_in_files:
        del tables["reported"]  # the paper's numbers are of its own traces
    output.tell(describe(results), tables, partial(draw, results))
    if plot_trace is not None:
        setting = WithholdingSetting(sweep.middle_threshold(), periods[0], answers=read_by)
        write(partial(draw_trace, sweep.traces[0], setting), plot_trace, "--plot-trace")


def links(
    context: typer.Context,
    *,
    links: Annotated[int, typer.Option(min=1, help="Independent links of each kind.")] = 24,
    seconds: Annotated[float, typer.Option(min=10, help="Length of each.")] = 600,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Vary the constants of adaptive instead.")
    ] = False,
    figures: Figures = None,
) -> None:
    """Compare the withholding policies on many kinds of bad links.

    Small and large messages share a connection. The result is printed as Markdown.
    """
    output = Output(context, figures)
    make = sensitivity_tables if sensitivity else links_tables
    tables = make(LinkRuns(links, seconds), partial(typer.echo, err=True))
    heading = (
        f"{links} independent links of {seconds:g} s of each kind; 95 % confidence intervals"
        " (bootstrap over links)."
    )
    output.tell(heading, tables)


def dequeue(
    context: typer.Context,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each strategy.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="That count of each run.")] = 40,
    rates: Annotated[str, typer.Option(help="lambda, requests/s.")] = "10,20,50,100,150,200",
    figures: Figures = None,
    plot: Annotated[Path | None, typer.Option(help="Write figures 9 to 12 there.")] = None,
) -> None:
    """Compare the dequeue strategies of paper 000.

    Back ends request messages faster and faster. The result is printed as Markdown.
    """
    read_rates = _numbers(rates, "--rates", int)
    output = Output(context, figures, plot)
    told = partial(typer.echo, err=True)
    results = dequeue_sweep.run(read_rates, range(seeds), seconds, told)
    tables = dequeue_sweep.tables(results)
    heading = (
        f"{seeds} independent runs of {seconds:g} s; means and 95 % confidence intervals (bootstrap"
        " over runs)."
    )
    output.tell(heading, tables, partial(dequeue_plot.draw, results))


def patterns(
    context: typer.Context,
    *,
    replications: Annotated[int, typer.Option(min=1, help="Independent runs of a point.")] = 8,
    messages: Annotated[
        int, typer.Option(min=1000, help="Of all runs of a point together.")
    ] = 700_000,
    figures: Figures = None,
    plot: Annotated[Path | None, typer.Option(help="Write figures 7 to 11 there.")] = None,
) -> None:
    """Simulate the publish/subscribe patterns of paper 003.

    Peers are on and off, messages have lifetimes. The result is printed as Markdown.
    """
    from penstock.models.kernels.delivery_simulation import DeliveryRuns  # noqa: PLC0415
    from penstock.models.papers.patterns import claims, sweep  # noqa: PLC0415 - numpy
    from penstock.models.papers.patterns import plot as pattern_plot  # noqa: PLC0415

    output = Output(context, figures, plot)
    try:
        runs = DeliveryRuns(replications, messages)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    results = sweep.run(runs, partial(typer.echo, err=True))
    tables = paper_tables(claims.numbers(results), claims.claims(results)) | sweep.tables(results)
    output.tell(str(runs), tables, partial(pattern_plot.draw, results))


def visibility(
    context: typer.Context,
    *,
    replications: Annotated[int, typer.Option(min=1, help="Independent runs of a point.")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="In which messages are created.")] = 100,
    figures: Figures = None,
    plot: Annotated[Path | None, typer.Option(help="Write figures 11 to 15 there.")] = None,
) -> None:
    """Simulate the queue with a visibility timeout of paper 004.

    In order and out of order, beside its analytic network. The result is printed as Markdown.
    """
    from penstock.models.kernels.lease_simulation import LeaseRuns  # noqa: PLC0415
    from penstock.models.papers.visibility import claims, sweep  # noqa: PLC0415 - numpy
    from penstock.models.papers.visibility import plot as visibility_plot  # noqa: PLC0415

    output = Output(context, figures, plot)
    runs = LeaseRuns(replications, seconds)
    results = sweep.run(runs, partial(typer.echo, err=True))
    tables = paper_tables(claims.numbers(results), claims.claims(results)) | sweep.tables(results)
    output.tell(str(runs), tables, partial(visibility_plot.draw, results))


def fabric(
    context: typer.Context,
    *,
    replications: Annotated[int, typer.Option(min=1, help="Independent runs of a setting.")] = 20,
    figures: Figures = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write figures 3.9 to 3.11, 3.14 and 3.16 there.")
    ] = None,
) -> None:
    """Simulate failed and slow nodes below the queue fabric of paper 001, chapter 3.

    Slowdown exclusion beside consistent hashing, and both kinds of rings. The result is printed as
    Markdown.
    """
    output = Output(context, figures, plot)
    results = fabric_sweep.run(fabric_sweep.FabricRuns(replications), partial(typer.echo, err=True))
    tables = paper_tables(fabric_claims.numbers(results), fabric_claims.claims(results))
    tables |= fabric_sweep.tables(results)
    heading = (
        f"{replications} independent runs of a setting; means and 95 % confidence intervals"
        " (bootstrap over runs)."
    )
    output.tell(heading, tables, partial(fabric_plot.draw, results))


def papers(
    context: typer.Context,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few, short runs: in under a minute, and rough.")
    ] = False,
    real: Annotated[
        bool,
        typer.Option(
            "--real", help="The models of papers 003 and 004 beside a real broker and queue."
        ),
    ] = False,
    figures: Figures = None,
) -> None:
    """Run the papers' evaluations again: each number that they report, beside ours.

    Two at a time, in some minutes. The result is printed as Markdown.
    """
    if real:
        _run_real(Output(context, figures), is_quick=quick)
        return
    from penstock.models.papers.evaluations import EVALUATIONS, EXPECTED_SECONDS, run, tables  # noqa: PLC0415 - numpy
    from penstock.netem.progress_display import Display  # noqa: PLC0415 - rich

    output = Output(context, figures)
    expected = EXPECTED_SECONDS / (10 if quick else 1)
    with Display("papers", expected) as display:

        def tell(step: str, done_ratio: float) -> None:
            display.stage(f"{done_ratio:.0%}: {step}")
            display.left(expected * (1 - done_ratio))

        made = tables(run(EVALUATIONS, tell, is_quick=quick))
    heading = "What the papers report and what is found, with 95 % confidence intervals."
    if quick:
        heading += " Of few and short runs: no verdict here counts."
    output.tell(heading, made)


def _run_real(output: Output, *, is_quick: bool) -> None:
    try:
        from penstock.models.papers import live_comparison  # noqa: PLC0415 - paho
    except ImportError:
        raise typer.BadParameter(NEEDS_PAHO, param_hint="--real") from None
    try:
        found = live_comparison.run(partial(typer.echo, err=True), is_quick=is_quick)
    except NetemError as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(1) from None
    heading = (
        "Models beside real runs with the same draws; means and 95 % confidence intervals"
        " (bootstrap over paths or queues)."
    )
    if is_quick:
        heading += " Of few and short runs: no verdict here counts."
    output.tell(heading, found.tables, doubts=found.doubts)
