"""The command ``penstock netem``: emulated networks and experiments on them; needs root."""

from __future__ import annotations

import selectors
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.netem.errors import NetemError, RunError
from penstock.netem.links.link_file import LinkFile, read_link
from penstock.netem.links.network import DEFAULT_CONGESTION_CONTROL, Link, Network
from penstock.netem.runs.scenario import Scenario
from penstock.netem.runs.scenario_file import names, read_scenario

LOOK_SECONDS: Final = 0.2
"""The time between two reads of the link's present state."""

SECONDS_A_MINUTE: Final = 60

app = CommandLine()


@app.callback()
def netem() -> None:
    """Emulate networks with delay, loss and rate on this machine; needs root."""


@app.command()
def link(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The link, in YAML (docs/how-to/netem.md).")
    ],
    congestion_control: Annotated[
        str, typer.Option(help="Congestion control of TCP on both hosts.")
    ] = DEFAULT_CONGESTION_CONTROL,
    seed: Annotated[int, typer.Option(help="Seed of random packet loss.")] = 0,
) -> None:
    """Make two hosts and a link, and hold them until Ctrl-C.

    The name of a profile on standard input switches the link to it.
    """
    plan = read_link(file)
    # Python's default for SIGTERM would end the process before the network is taken down. A shell
    # without a terminal starts its background processes with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with Network(seed=seed, congestion_control=congestion_control) as network:
            server, client = network.host("server"), network.host("client")
            made = network.link(server, client, plan.begin)
            for host, address in ((server, made.server_address), (client, made.client_address)):
                _say(f"{host.name} {address}: ip netns exec {host.namespace} COMMAND")
            if plan.changes is not None:
                made.follow(plan.changes)
            _hold(made, plan)
    except KeyboardInterrupt:
        _say("taken down")


@app.command()
def run(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO", help="A name from `penstock netem scenarios`, or a file."
        ),
    ],
    brokers: Annotated[
        str | None, typer.Option(help="Some of the scenario's brokers: adaptive,mosquitto.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds in place of the scenario's: 1,2,3.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="Some of the scenario's kinds of links: loss,cliff.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; absent: netem-SCENARIO.")
    ] = None,
    congestion_control: Annotated[
        str | None, typer.Option(help="Congestion control in place of the scenario's: bbr.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Format of the tables: parquet, csv.")
    ] = "parquet",
    figures: Annotated[
        Path | None, typer.Option(help="Also write the report's tables to this file, as JSON.")
    ] = None,
    *,
    short: Annotated[
        bool, typer.Option("--short", help="Run for seconds, not minutes; timings are not judged.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="End with status 1 if a target is missed.")
    ] = False,
    no_plots: Annotated[
        bool, typer.Option("--no-plots", help="Write tables and report only; some seconds faster.")
    ] = False,
) -> None:
    """Run brokers side by side; write tables, plots and a report."""
    try:
        from penstock.netem.runs import run_command  # noqa: PLC0415 - links need none of what it brings

        if not no_plots:  # a package that is missing is named before the run
            import penstock.netem.figures.plots  # noqa: F401, PLC0415 - matplotlib is slow to load
    except ModuleNotFoundError as error:
        raise _needs_extra(error) from error
    is_well = run_command.run(
        scenario,
        short=short,
        brokers=brokers,
        seeds=seeds,
        kinds=kinds,
        out=out,
        form=form,
        check=check,
        congestion_control=congestion_control,
        figures=figures,
        with_plots=not no_plots,
    )
    raise typer.Exit(0 if is_well else 1)


@app.command()
def scenarios() -> None:
    """List Penstock's experiments, and how long they take."""
    widest = max(map(len, names()))
    for name in names():
        full, short = read_scenario(name), read_scenario(name, short=True)
        _say(f"{name:{widest}}  {full.title}: {_time_of(full)}; short {_time_of(short)}")


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folder of a run; of several, with other seeds."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; needed for several runs.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the report's tables to this file, as JSON.")
    ] = None,
) -> None:
    """Write the report and the plots of a run again, from its tables.

    Several runs of one scenario with different seeds make one report, of the units of all.
    """
    try:
        import penstock.netem.figures.plots  # noqa: F401, PLC0415 - matplotlib is slow to load
        from penstock.netem.figures.report import check_figures, join_runs, write_report  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise _needs_extra(error) from error
    check_figures(figures)
    folder = folders[0]
    if out is not None:
        join_runs(folders, out)
        folder = out
    elif len(folders) > 1:
        raise typer.BadParameter("read none; needed for several runs", param_hint="--out")
    for verdict in write_report(folder, figures):
        _say(verdict.line)
    _say(str(folder / "report.md"))


def _needs_extra(missing: ModuleNotFoundError) -> NetemError:
    package = (missing.name or "").partition(".")[0]
    return NetemError(f"experiments need the package {package}: pip install 'penstock-mqtt[netem]'")


def _time_of(scenario: Scenario) -> str:
    """Return how long a run takes: from the traffic alone to the traffic with complete drains."""
    least = scenario.rounds * scenario.duration_seconds
    most = scenario.rounds * (scenario.duration_seconds + scenario.drain_seconds)
    if least < 2 * SECONDS_A_MINUTE:
        return f"{least:.0f} to {most:.0f} s"
    return f"{least / SECONDS_A_MINUTE:.0f} to {most / SECONDS_A_MINUTE:.0f} min"


def _hold(made: Link, plan: LinkFile) -> None:
    """Print each change of the link and switch it as standard input says; never return."""
    told = 0
    rest = b""
    with selectors.SelectSelector() as selector, open(0, "rb", buffering=0, closefd=False) as lines:
        selector.register(lines, selectors.EVENT_READ)
        while True:
            log = made.log()
            for _, name in log[told:]:
                _say(f"profile {plan.profiles[name]}")
            told = len(log)
            if not selector.select(LOOK_SECONDS):
                continue
            data = lines.read(4096)
            if not data:
                selector.unregister(lines)
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                name = line.decode(errors="replace").strip()
                if name not in plan.profiles:
                    _say(f"profile: read {name!r}; allowed: {', '.join(plan.profiles)}")
                    continue
                made.switch(plan.profiles[name])


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        Exit status. 0: success, or a signal stopped `link`. 1: an experiment failed, or missed a
        target with ``--check``. 2: a mistake in the arguments or the file, or the network cannot be
        made. 130 or 143: a signal ended an experiment.
    """
    try:
        return app.status(argv, "penstock netem")
    except NetemError as error:
        sys.stderr.write(f"penstock netem: {error}\n")
        return 1 if isinstance(error, RunError) else 2


if __name__ == "__main__":
    sys.exit(main())
