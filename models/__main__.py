"""``penstock plan``: the papers' simulations from the command line."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar, cast

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.errors import ConfigError, PenstockError
from penstock.models.dequeue import plot as dequeue_plot
from penstock.models.dequeue import sweep as dequeue_sweep
from penstock.models.fabric import claims as fabric_claims
from penstock.models.fabric import plot as fabric_plot
from penstock.models.fabric import sweep as fabric_sweep
from penstock.models.recording.options import (
    CaFile,
    CertFile,
    KeyFile,
    PasswordFile,
    Topics,
    Username,
)
from penstock.models.recording.traces import Trace, read_traces
from penstock.models.withholding.links_report import Effort, links_tables, sensitivity_tables
from penstock.models.withholding.plot import check_picture, draw, draw_trace
from penstock.models.withholding.report import (
    describe,
    sweep_tables,
    to_markdown,
    traces_table,
)
from penstock.models.withholding.simulation import Answers, Setting
from penstock.models.withholding.sweep import Sweep, run
from penstock.models.withholding.trace import generate_trace, read_trace
from penstock.netem.errors import NetemError
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file

# Models that need numpy are loaded by their commands: the help needs nothing.
if TYPE_CHECKING:
    from penstock.models.closed_forms import OnOff
    from penstock.models.patterns.sweep import Effort as PatternEffort
    from penstock.models.planner.fleet import Fleet
    from penstock.models.visibility.setting import Order
    from penstock.models.visibility.sweep import Effort as VisibilityEffort

Number = TypeVar("Number", int, float)

FROM_RUNNING: Final = "--from-running"
"""In place of a fleet's file."""

app = CommandLine()

_NEEDS_PAHO: Final = "needs paho-mqtt: pip install 'penstock-mqtt[netem]'"


Figures: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the tables there too, as JSON, for pages.")
]


class _Output:
    """Where the tables of a run and its picture go; made before a simulation of minutes begins.

    Args:
        context: of the command.
        figures: file for the tables; None for none.
        plot: file for the picture; None for none.

    Raises:
        typer.BadParameter: one of the files cannot be written.
    """

    def __init__(
        self, context: typer.Context, figures: Path | None, plot: Path | None = None
    ) -> None:
        self._origin = begin(context.obj)
        self._figures = figures
        self._plot = plot
        if figures is not None:
            _write(check_writable, figures, "--figures")
        if plot is not None:
            _write(check_picture, plot, "--plot")

    def tell(
        self,
        heading: str,
        tables: Mapping[str, Table],
        draw_into: Callable[[Path], None] | None = None,
        doubts: Sequence[str] = (),
    ) -> None:
        """Print the tables, and write the files.

        Args:
            heading: what they show.
            tables: by name.
            draw_into: draws the picture; needed where there may be a file for it.
            doubts: reasons to doubt the figures, for the file.
        """
        typer.echo(to_markdown(heading, tables), nl=False)
        if self._figures is not None:
            origin = replace(self._origin, doubts=doubts)
            write = partial(write_figure_file, origin=origin, tables=tables)
            _write(write, self._figures, "--figures")
        if self._plot is not None and draw_into is not None:
            _write(draw_into, self._plot, "--plot")


@app.callback()
def plan() -> None:
    """Run the papers' simulations with the broker's own code, and plan with them.

    ``penstock plan FILE.yaml`` plans for a fleet, ``penstock plan --from-running URL`` for that of
    a running broker.
    """


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
            f"read {text!r}; allowed: {kind} above 0, ascending, such as 1,2,5",
            param_hint=name,
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


@app.command()
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
        str,
        typer.Option(help="When all policies know an RTT: by the period, or on arrival."),
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

    output = _Output(context, figures, plot)
    if plot_trace is not None:
        _write(check_picture, plot_trace, "--plot-trace")
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
        setting = Setting(sweep.middle_threshold(), periods[0], answers=read_by)
        _write(partial(draw_trace, sweep.traces[0], setting), plot_trace, "--plot-trace")


@app.command()
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
    output = _Output(context, figures)
    make = sensitivity_tables if sensitivity else links_tables
    tables = make(Effort(links, seconds), partial(typer.echo, err=True))
    heading = (
        f"{links} independent links of {seconds:g} s of each kind; 95 % confidence intervals"
        " (bootstrap over links)."
    )
    output.tell(heading, tables)


@app.command()
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
    output = _Output(context, figures, plot)
    told = partial(typer.echo, err=True)
    results = dequeue_sweep.run(read_rates, range(seeds), seconds, told)
    tables = dequeue_sweep.tables(results)
    heading = (
        f"{seeds} independent runs of {seconds:g} s; means and 95 % confidence intervals (bootstrap"
        " over runs)."
    )
    output.tell(heading, tables, partial(dequeue_plot.draw, results))


@app.command()
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
    from penstock.models.patterns import claims, sweep  # noqa: PLC0415 - numpy
    from penstock.models.patterns import plot as pattern_plot  # noqa: PLC0415

    output = _Output(context, figures, plot)
    effort = _effort(replications, messages)
    results = sweep.run(effort, partial(typer.echo, err=True))
    tables = claims.tables(results) | sweep.tables(results)
    output.tell(_describe(effort), tables, partial(pattern_plot.draw, results))


@app.command()
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
    from penstock.models.visibility import claims, sweep  # noqa: PLC0415 - numpy
    from penstock.models.visibility import plot as visibility_plot  # noqa: PLC0415

    output = _Output(context, figures, plot)
    effort = sweep.Effort(replications, seconds)
    results = sweep.run(effort, partial(typer.echo, err=True))
    tables = claims.tables(results) | sweep.tables(results)
    output.tell(_describe_seconds(effort), tables, partial(visibility_plot.draw, results))


@app.command()
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
    output = _Output(context, figures, plot)
    results = fabric_sweep.run(fabric_sweep.Effort(replications), partial(typer.echo, err=True))
    tables = fabric_claims.tables(results) | fabric_sweep.tables(results)
    heading = (
        f"{replications} independent runs of a setting; means and 95 % confidence intervals"
        " (bootstrap over runs)."
    )
    output.tell(heading, tables, partial(fabric_plot.draw, results))


@app.command()
def lease(
    context: typer.Context,
    *,
    arrival_rate: Annotated[float, typer.Option(help="lambda, messages/s.")],
    order: Annotated[
        str,
        typer.Option(
            help="any; arrived: after all created before it; settled: after these are deleted."
        ),
    ] = "any",
    senders: Annotated[int, typer.Option(min=1, help="n1, threads that send.")] = 7,
    send_rate: Annotated[float, typer.Option(help="mu1, messages/s of one.")] = 10.0,
    receivers: Annotated[int, typer.Option(min=1, help="n2, deliveries at a time.")] = 7,
    receive_rate: Annotated[float, typer.Option(help="mu2, messages/s of one.")] = 10.0,
    reliability: Annotated[float, typer.Option(help="q, share of deliveries that succeed.")] = 0.99,
    visibility_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds; without it a failed message is visible at once."),
    ] = None,
    link_delay: Annotated[float, typer.Option(help="D_link, one-way, seconds.")] = 0.0,
    replications: Annotated[int, typer.Option(min=1, help="Independent runs.")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="In which messages are created.")] = 100,
    figures: Figures = None,
) -> None:
    """Simulate one queue with a visibility timeout, on the queue's own leases.

    The result is printed as Markdown: how long messages take, how many wait, who is busy.
    """
    from penstock.models.visibility import sweep  # noqa: PLC0415 - numpy
    from penstock.models.visibility.messages import LeasedMessages  # noqa: PLC0415
    from penstock.models.visibility.report import queue_tables  # noqa: PLC0415
    from penstock.models.visibility.setting import Setting as QueueSetting  # noqa: PLC0415

    output = _Output(context, figures)
    try:
        setting = QueueSetting(
            cast("Order", order),  # it is checked
            senders,
            receivers,
            reliability,
            arrival_rate,
            send_rate,
            receive_rate,
            visibility_timeout,
            link_delay,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    effort = sweep.Effort(replications, seconds)
    tables = queue_tables(setting, effort.run(setting, LeasedMessages))
    output.tell(_describe_seconds(effort), tables)


@app.command()
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
        _run_real(_Output(context, figures), is_quick=quick)
        return
    from penstock.models.papers import (  # noqa: PLC0415 - numpy
        EVALUATIONS,
        EXPECTED_SECONDS,
        run,
        tables,
    )
    from penstock.netem.display import Display  # noqa: PLC0415 - rich

    output = _Output(context, figures)
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


def _run_real(output: _Output, *, is_quick: bool) -> None:
    try:
        from penstock.models import real  # noqa: PLC0415 - paho
    except ImportError:
        raise typer.BadParameter(_NEEDS_PAHO, param_hint="--real") from None
    try:
        found = real.run(partial(typer.echo, err=True), is_quick=is_quick)
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


@app.command()
def fleet(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML, as plan.example.yaml.")],
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write the plan there, with plots, for a browser.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Write a policy file for the broker there.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Run it too, small and fast, for a minute: how right is it?"
        ),
    ] = False,
    figures: Figures = None,
) -> None:
    """Predict what a fleet needs: settings, latencies, memory and cores.

    ``penstock plan FILE.yaml`` is the same. The result is printed as Markdown.
    """
    from penstock.models.closed_forms import UnstableError  # noqa: PLC0415 - numpy
    from penstock.models.planner import page, policy_file, report  # noqa: PLC0415
    from penstock.models.planner.fleet import read_fleet  # noqa: PLC0415
    from penstock.models.planner.planning import make_plan  # noqa: PLC0415

    output = _Output(context, figures)
    for to_write, option in ((html, "--html"), (policy, "--policy")):
        if to_write is not None:
            _write(check_writable, to_write, option)
    try:
        made = make_plan(read_fleet(file), partial(typer.echo, err=True))
    except (ConfigError, UnstableError) as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(2) from None
    found = report.tables(made)
    if validate:
        found |= _validated(made.fleet)
    output.tell(report.HEADING, found)
    if policy is not None:
        _write(partial(policy_file.write, made), policy, "--policy")
    if html is not None:
        _write(partial(page.write, made, found), html, "--html")


@app.command()
def running(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="mqtt://HOST:PORT, mqtts:// with TLS; or a folder of record."
        ),
    ],
    seconds: Annotated[float, typer.Option(min=1, help="To watch the broker for.")] = 60.0,
    username: Username = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    topics: Topics = None,
    fleet_out: Annotated[
        Path | None, typer.Option(help="Write the fleet's file there, to edit and plan again.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the plan there, with plots, for a browser.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Write a policy file for the broker there.")
    ] = None,
    figures: Figures = None,
) -> None:
    """Plan for the fleet of a running broker: what to change, and what it would gain.

    ``penstock plan --from-running URL`` is the same. The result is printed as Markdown.
    """
    from penstock.models.closed_forms import UnstableError  # noqa: PLC0415 - numpy
    from penstock.models.planner import page, policy_file, report  # noqa: PLC0415
    from penstock.models.planner.fleet import read_fleet  # noqa: PLC0415
    from penstock.models.planner.planning import make_plan  # noqa: PLC0415
    from penstock.models.recording import advice  # noqa: PLC0415
    from penstock.models.recording.observed import observe  # noqa: PLC0415
    from penstock.models.recording.recorder import Address, record_into  # noqa: PLC0415 - paho

    output = _Output(context, figures)
    for to_write, option in ((fleet_out, "--fleet-out"), (html, "--html"), (policy, "--policy")):
        if to_write is not None:
            _write(check_writable, to_write, option)
    tell = partial(typer.echo, err=True)
    try:
        with TemporaryDirectory() as scratch:
            folder, file = Path(source), Path(scratch) / "fleet.yaml"
            if not folder.is_dir():
                folder = Path(scratch) / "recording"
                address = Address(source, username, password_file, ca_file, cert_file, key_file)
                record_into(folder, address, tuple(topics or ["#"]), seconds, tell)
            seen = observe(folder)
            seen.write(file)
            if fleet_out is not None:
                _write(seen.write, fleet_out, "--fleet-out")
            made = make_plan(read_fleet(file), tell)
    except (PenstockError, UnstableError, OSError, ValueError) as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(2) from None
    found = advice.tables(seen, made) | report.tables(made)
    output.tell(report.HEADING, found)
    if policy is not None:
        _write(partial(policy_file.write, made), policy, "--policy")
    if html is not None:
        _write(partial(page.write, made, found), html, "--html")


def _validated(fleet: Fleet) -> dict[str, Table]:
    try:
        from penstock.models.planner import validation  # noqa: PLC0415 - paho
    except ImportError:
        raise typer.BadParameter(_NEEDS_PAHO, param_hint="--validate") from None
    if not fleet.subscribers:
        raise typer.BadParameter("is for a fleet with subscribers", param_hint="--validate")
    try:
        return validation.validate(fleet, partial(typer.echo, err=True))
    except NetemError as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(1) from None


def _describe_seconds(effort: VisibilityEffort) -> str:
    return (
        f"{effort.replications} independent runs of {effort.seconds:g} s; means and 95 % confidence"
        " intervals (bootstrap over runs)."
    )


_ON_OFF: Final = "mean seconds on and off, such as 40/40; always on without it."


@app.command()
def delivery(
    context: typer.Context,
    *,
    arrival_rate: Annotated[float, typer.Option(help="lambda, messages/s.")],
    reliable_publisher: Annotated[
        bool,
        typer.Option(
            "--reliable-publisher/--unreliable-publisher", help="QoS 1 or 2, or QoS 0 over UDP."
        ),
    ] = True,
    reliable_subscriber: Annotated[
        bool,
        typer.Option(
            "--reliable-subscriber/--unreliable-subscriber",
            help="A session that is kept and QoS 1 or 2, or neither.",
        ),
    ] = True,
    lifetime: Annotated[
        float, typer.Option(help="Message Expiry Interval, seconds; none without it.")
    ] = math.inf,
    capacity: Annotated[
        int | None, typer.Option(help="K, messages that each stage holds; any number without it.")
    ] = None,
    publisher: Annotated[str | None, typer.Option(help=f"Publisher: {_ON_OFF}")] = None,
    network: Annotated[str | None, typer.Option(help=f"Publisher's network: {_ON_OFF}")] = None,
    broker: Annotated[str | None, typer.Option(help=f"Broker: {_ON_OFF}")] = None,
    subscriber: Annotated[str | None, typer.Option(help=f"Subscriber: {_ON_OFF}")] = None,
    processing_rate: Annotated[
        float, typer.Option(help="mu of applications and of the broker's input, messages/s.")
    ] = 64.0,
    transmission_rate: Annotated[
        float, typer.Option(help="mu of transmissions, messages/s.")
    ] = 32.0,
    serve_expired: Annotated[
        bool, typer.Option("--serve-expired", help="Expired messages are dropped after service.")
    ] = False,
    replications: Annotated[int, typer.Option(min=1, help="Independent runs.")] = 8,
    messages: Annotated[int, typer.Option(min=1000, help="Of all runs together.")] = 200_000,
    figures: Figures = None,
) -> None:
    """Simulate one path from publisher to subscriber, composed of paper 003's patterns.

    The result is printed as Markdown: what arrives how fast, and where the rest is lost.
    """
    from penstock.models.patterns.network import (  # noqa: PLC0415 - numpy
        BROKER,
        NETWORK,
        PUBLISHER,
        SUBSCRIBER,
        compose,
    )
    from penstock.models.patterns.report import path_tables as delivery_tables  # noqa: PLC0415

    output = _Output(context, figures)
    given = {PUBLISHER: publisher, NETWORK: network, BROKER: broker, SUBSCRIBER: subscriber}
    peers = {name: _on_off(text, name) for name, text in given.items() if text is not None}
    try:
        path = compose(
            publisher_is_reliable=reliable_publisher,
            subscriber_is_reliable=reliable_subscriber,
            arrival_rate=arrival_rate,
            lifetime=lifetime,
            capacity=capacity,
            peers=peers,
            serves_expired=serve_expired,
            processing_rate=processing_rate,
            transmission_rate=transmission_rate,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    effort = _effort(replications, messages)
    tables = delivery_tables(path, effort.run(path))
    output.tell(_describe(effort), tables)


def _on_off(text: str, name: str) -> OnOff:
    """Read the mean times on and off of a peer."""
    from penstock.models.closed_forms import OnOff  # noqa: PLC0415 - numpy

    on_seconds, _, off_seconds = text.partition("/")
    try:
        return OnOff(float(on_seconds), float(off_seconds))
    except ValueError:
        raise typer.BadParameter(
            f"read {text!r}; allowed: two numbers above 0, such as 40/40", param_hint=f"--{name}"
        ) from None


def _effort(replications: int, messages: int) -> PatternEffort:
    from penstock.models.patterns.sweep import Effort  # noqa: PLC0415 - numpy

    if messages < 100 * replications:
        raise typer.BadParameter(
            f"read {messages}; allowed: {100 * replications} or more, 100 a replication",
            param_hint="--messages",
        )
    return Effort(replications, messages)


def _describe(effort: PatternEffort) -> str:
    return (
        f"{effort.replications} independent runs of {effort.messages // effort.replications:,}"
        " messages each; means and 95 % confidence intervals (bootstrap over runs)."
    )


def _write(draw_into: Callable[[Path], None], file: Path, option: str) -> None:
    try:
        draw_into(file)
    except ImportError:
        message = "needs matplotlib: pip install 'penstock-mqtt[models]'"
        raise typer.BadParameter(message, param_hint=option) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint=option) from None


def main(argv: list[str] | None = None) -> int:
    """Run a simulation.

    Args:
        argv: arguments; None for those of the process.

    Returns:
        0, or 2 for wrong arguments and files.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0].endswith((".yaml", ".yml")):
        arguments = ["fleet", *arguments]
    elif arguments[:1] == [FROM_RUNNING]:
        arguments = ["running", *arguments[1:]]
    return app.status(arguments, "penstock plan", f"penstock plan {join(arguments)}")


if __name__ == "__main__":
    sys.exit(main())
