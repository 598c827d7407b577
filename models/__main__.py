"""``penstock plan``: what a fleet needs, predicted by the papers' simulations.

The commands of the papers' own evaluations stand in `penstock.models.papers.commands`, which a
wheel does not have.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, cast

import typer

from penstock.broker.config.command_line import CommandLine, with_options
from penstock.broker.errors import ConfigError, PenstockError
from penstock.lanes.login import Login
from penstock.models.command_output import NEEDS_PAHO, Figures, Output, Topics, check_all, write
from penstock.netem.errors import NetemError
from penstock.netem.figures.figure_file import Table

# Models that need numpy are loaded by their commands: the help needs nothing.
if TYPE_CHECKING:
    from penstock.models.kernels.closed_forms import OnOff
    from penstock.models.kernels.lease_setting import Order
    from penstock.models.planner.fleet import Fleet
    from penstock.models.planner.planning import Plan

FROM_RUNNING: Final = "--from-running"
"""The option that stands in place of a fleet's file."""

PAPERS: Final = ("dequeue", "fabric", "links", "papers", "patterns", "visibility", "withholding")
"""The commands of the papers' evaluations, which need a checkout."""

app = CommandLine()


@app.callback()
def plan() -> None:
    """Predict what a fleet needs, with the broker's own code in simulations.

    ``penstock plan FILE.yaml`` plans for a fleet, ``penstock plan --from-running URL`` for that of
    a running broker.
    """


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
    from penstock.models.kernels.closed_forms import UnstableError  # noqa: PLC0415 - numpy
    from penstock.models.planner import report  # noqa: PLC0415
    from penstock.models.planner.fleet import read_fleet  # noqa: PLC0415
    from penstock.models.planner.planning import make_plan  # noqa: PLC0415

    output = Output(context, figures)
    check_all({"--html": html, "--policy": policy})
    try:
        made = make_plan(read_fleet(file), partial(typer.echo, err=True))
    except (ConfigError, UnstableError) as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(2) from None
    found = report.tables(made)
    if validate:
        found |= _validated(made.fleet)
    _tell_plan(output, made, found, html, policy)


@app.command()
@with_options(Login)
def running(
    login: Login,
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="mqtt://HOST:PORT, mqtts:// with TLS; or a folder of record."
        ),
    ],
    seconds: Annotated[float, typer.Option(min=1, help="To watch the broker for.")] = 60.0,
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
    from penstock.models.kernels.closed_forms import UnstableError  # noqa: PLC0415 - numpy
    from penstock.models.planner import report  # noqa: PLC0415
    from penstock.models.planner.fleet import read_fleet  # noqa: PLC0415
    from penstock.models.planner.planning import make_plan  # noqa: PLC0415
    from penstock.models.recording import advice  # noqa: PLC0415
    from penstock.models.recording.observed_fleet import observe  # noqa: PLC0415
    from penstock.models.recording.recorder import record_into  # noqa: PLC0415 - paho

    output = Output(context, figures)
    check_all({"--fleet-out": fleet_out, "--html": html, "--policy": policy})
    tell = partial(typer.echo, err=True)
    try:
        with TemporaryDirectory() as scratch:
            folder, file = Path(source), Path(scratch) / "fleet.yaml"
            if not folder.is_dir():
                folder = Path(scratch) / "recording"
                record_into(folder, source, login, tuple(topics or ["#"]), seconds, tell)
            seen = observe(folder)
            seen.write(file)
            if fleet_out is not None:
                write(seen.write, fleet_out, "--fleet-out")
            made = make_plan(read_fleet(file), tell)
    except (PenstockError, UnstableError, OSError, ValueError) as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(2) from None
    found = advice.tables(seen, made) | report.tables(made)
    _tell_plan(output, made, found, html, policy)


def _tell_plan(
    output: Output, plan: Plan, tables: dict[str, Table], html: Path | None, policy: Path | None
) -> None:
    """Print a plan, and write its files."""
    from penstock.models.planner import page, policy_file, report  # noqa: PLC0415

    output.tell(report.HEADING, tables)
    if policy is not None:
        write(partial(policy_file.write, plan), policy, "--policy")
    if html is not None:
        write(partial(page.write, plan, tables), html, "--html")


def _validated(fleet: Fleet) -> dict[str, Table]:
    try:
        from penstock.models.planner import validation  # noqa: PLC0415 - paho
    except ImportError:
        raise typer.BadParameter(NEEDS_PAHO, param_hint="--validate") from None
    if not fleet.subscribers:
        raise typer.BadParameter("is for a fleet with subscribers", param_hint="--validate")
    try:
        return validation.validate(fleet, partial(typer.echo, err=True))
    except NetemError as error:
        typer.echo(f"penstock plan: {error}", err=True)
        raise typer.Exit(1) from None


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
        float | None, typer.Option(help="Seconds; without it a failed message is visible at once.")
    ] = None,
    link_delay: Annotated[float, typer.Option(help="D_link, one-way, seconds.")] = 0.0,
    replications: Annotated[int, typer.Option(min=1, help="Independent runs.")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="In which messages are created.")] = 100,
    figures: Figures = None,
) -> None:
    """Simulate one queue with a visibility timeout, on the queue's own leases.

    The result is printed as Markdown: how long messages take, how many wait, who is busy.
    """
    from penstock.models.kernels.lease_messages import LeasedMessages  # noqa: PLC0415
    from penstock.models.kernels.lease_setting import LeaseSetting  # noqa: PLC0415
    from penstock.models.kernels.lease_simulation import LeaseRuns  # noqa: PLC0415 - numpy
    from penstock.models.planner.lease_tables import queue_tables  # noqa: PLC0415

    output = Output(context, figures)
    try:
        setting = LeaseSetting(
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
    runs = LeaseRuns(replications, seconds)
    output.tell(str(runs), queue_tables(setting, runs.run(setting, LeasedMessages)))


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
    from penstock.models.kernels.delivery_path import (  # noqa: PLC0415 - numpy
        BROKER,
        NETWORK,
        PUBLISHER,
        SUBSCRIBER,
        compose,
    )
    from penstock.models.kernels.delivery_simulation import DeliveryRuns  # noqa: PLC0415
    from penstock.models.planner.path_tables import path_tables  # noqa: PLC0415

    output = Output(context, figures)
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
        runs = DeliveryRuns(replications, messages)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    output.tell(str(runs), path_tables(path, runs.run(path)))


def _on_off(text: str, name: str) -> OnOff:
    """Read the mean times on and off of a peer."""
    from penstock.models.kernels.closed_forms import OnOff  # noqa: PLC0415 - numpy

    on_seconds, _, off_seconds = text.partition("/")
    try:
        return OnOff(float(on_seconds), float(off_seconds))
    except ValueError:
        raise typer.BadParameter(
            f"read {text!r}; allowed: two numbers above 0, such as 40/40", param_hint=f"--{name}"
        ) from None


def _add_papers() -> None:
    """Add the commands of the papers, or what says that they need a checkout."""
    try:
        from penstock.models.papers.commands import add_to  # noqa: PLC0415 - no wheel has it
    except ModuleNotFoundError as error:
        if error.name is not None and not error.name.startswith("penstock.models.papers"):
            raise
        for name in PAPERS:
            app.command(name, context_settings={"ignore_unknown_options": True})(_needs_checkout)
    else:
        add_to(app)


def _needs_checkout(_words: Annotated[list[str] | None, typer.Argument()] = None) -> NoReturn:
    """Run an evaluation of the papers: needs a checkout of Penstock."""
    typer.echo(
        "penstock plan: the papers' evaluations are not installed; allowed: a checkout of Penstock "
        "and in it pip install -e '.[models]'",
        err=True,
    )
    raise typer.Exit(2)


_add_papers()


def main(argv: list[str] | None = None) -> int:
    """Run the command.

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
