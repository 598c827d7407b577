"""The command ``penstock netem run``: an experiment, its tables and its report."""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
import signal
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import typer

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.report import NAME, check_figures, write_report
from penstock.netem.figures.table_files import Format
from penstock.netem.links.congestion_control import check_congestion_control
from penstock.netem.links.namespaces import require_root
from penstock.netem.progress_display import Display
from penstock.netem.runs.broker_process import version_of
from penstock.netem.runs.brokers import version
from penstock.netem.runs.kind_links import only_kinds
from penstock.netem.runs.provenance import commit, machine, python
from penstock.netem.runs.results import make_folder, write_result
from penstock.netem.runs.run_file import RunInfo
from penstock.netem.runs.runner import planned_seconds, run_scenario
from penstock.netem.runs.scenario import MAX_SEED, Scenario
from penstock.netem.runs.scenario_checks import check_chance, check_rounds
from penstock.netem.runs.scenario_file import read_scenario

SIGNALLED: Final = 128
"""The exit status of a program that a signal ended, without the signal's number."""


def run(
    scenario: str,
    *,
    short: bool,
    brokers: str | None,
    seeds: str | None,
    kinds: str | None = None,
    out: Path | None,
    form: str,
    check: bool,
    congestion_control: str | None = None,
    figures: Path | None = None,
    with_plots: bool = True,
) -> bool:
    """Run an experiment and write its tables, plots and report.

    Returns:
        Whether every judged target was met; always true without `check`.

    Raises:
        typer.BadParameter: an option has an impossible value.
        NetemError: the scenario is wrong, or networks cannot be made here.
        RunError: a broker or a client has failed, or the result cannot be written.
        SystemExit: after SIGINT, SIGTERM or SIGHUP, with all processes and networks ended.
    """
    if form not in set(Format):
        raise typer.BadParameter(
            f"read {form!r}; allowed: {', '.join(Format)}", param_hint="--format"
        )
    plan = choose(read_scenario(scenario, short=short), brokers, seeds, kinds)
    if congestion_control is not None:
        plan = replace(plan, congestion_control=congestion_control)
    for name in plan.congestion_controls:
        check_congestion_control(name)
    check_figures(figures)
    require_root()
    info = RunInfo(
        scenario=plan,
        length="short" if short else "full",
        command=command_line(
            scenario,
            short=short,
            brokers=brokers,
            seeds=seeds,
            kinds=kinds,
            congestion_control=congestion_control,
        ),
        commit=commit(),
        machine=machine(),
        python=python(),
        date=dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        versions=_versions(plan),
        processor=[],
    )
    folder = Path(f"netem-{plan.name}") if out is None else out
    make_folder(folder)
    try:
        with ended_by_signals(), Display(plan.name, planned_seconds(plan)) as display:
            try:
                outcome = run_scenario(plan, display)
            except OSError as error:
                raise RunError(f"the run cannot go on: {error}") from error
            display.stage("report")
            info = replace(info, processor=outcome.processor, remarks=outcome.remarks)
            write_result(folder, outcome.rows, info, Format(form))
            verdicts = write_report(folder, figures, with_plots=with_plots)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # of a run without a result; one that is not empty stays
        raise
    for remark in outcome.remarks:
        sys.stderr.write(f"penstock netem: {remark}\n")
    for verdict in verdicts:
        typer.echo(verdict.line)
    typer.echo(f"report: {folder / NAME}")
    return not (check and any(each.is_missed for each in verdicts))


def _versions(scenario: Scenario) -> dict[str, str]:
    """Return the program and the version of each broker, and of the load balancer if there is one.

    Raises:
        NetemError: a program is not installed.
    """
    versions = {name: version(broker) for name, broker in scenario.brokers.items()}
    for through in {each.through for each in scenario.subscribers.values()} - {None}:
        versions[f"through {through}"] = f"{through} {version_of(str(through))}"
    return versions


def choose(
    scenario: Scenario, brokers: str | None, seeds: str | None, kinds: str | None = None
) -> Scenario:
    """Return a scenario with some of its brokers and kinds of links, and with other seeds.

    Targets of brokers that do not run are left out.

    Raises:
        typer.BadParameter: there is no such broker, or that is no seed.
        NetemError: brokers that a target compares would run in different rounds; or with these
            seeds a link is never bad.
    """
    if kinds is not None:
        scenario = only_kinds(scenario, _known("--kinds", kinds, scenario.kinds))
    if seeds is not None:
        scenario = replace(scenario, seeds=_numbers(seeds))
        if mistakes := list(check_chance(scenario)):
            raise NetemError("\n".join(f"--seeds: {mistake}" for mistake in mistakes))
    if brokers is None:
        return scenario
    scenario = _with_brokers(scenario, brokers)
    if mistakes := list(check_rounds(scenario)):
        raise NetemError("\n".join(f"--brokers: {mistake}" for mistake in mistakes))
    return scenario


def _with_brokers(scenario: Scenario, brokers: str) -> Scenario:
    chosen = _known("--brokers", brokers, scenario.brokers)
    return replace(
        scenario,
        brokers={name: scenario.brokers[name] for name in chosen},
        publishers={
            name: replace(each, brokers=_those_of(each.brokers, chosen))
            for name, each in scenario.publishers.items()
        },
        subscribers={
            name: replace(each, brokers=_those_of(each.brokers, chosen))
            for name, each in scenario.subscribers.items()
        },
        targets=[
            each
            for each in scenario.targets
            if each.broker in chosen and each.over in (None, *chosen)
        ],
    )


def _those_of(brokers: list[str] | None, chosen: list[str]) -> list[str] | None:
    return None if brokers is None else [each for each in brokers if each in chosen]


def _known(option: str, text: str, known: Collection[str]) -> list[str]:
    """Return the names of an option, each of which is known."""
    chosen = _words(text)
    for name in chosen:
        if name not in known:
            allowed = ", ".join(known) or "none: the scenario has none"
            raise typer.BadParameter(f"read {name!r}; allowed: {allowed}", param_hint=option)
    if not chosen:
        raise typer.BadParameter("read none; allowed: at least one", param_hint=option)
    return chosen


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _numbers(text: str) -> list[int]:
    words = _words(text)
    if not words or not all(word.isdecimal() and int(word) <= MAX_SEED for word in words):
        raise typer.BadParameter(
            f"read {text!r}; allowed: whole numbers from 0 to {MAX_SEED} with commas between, such"
            " as 1,2,3",
            param_hint="--seeds",
        )
    return list(dict.fromkeys(map(int, words)))  # 1 and 01 are one


def command_line(
    scenario: str,
    *,
    short: bool,
    brokers: str | None,
    seeds: str | None,
    kinds: str | None = None,
    congestion_control: str | None = None,
) -> str:
    """Return the command that makes the same result again."""
    words = ["penstock", "netem", "run", scenario]
    words += ["--short"] * short
    words += ["--brokers", brokers] if brokers is not None else []
    words += ["--seeds", seeds] if seeds is not None else []
    words += ["--kinds", kinds] if kinds is not None else []
    words += ["--congestion-control", congestion_control] if congestion_control else []
    return shlex.join(words)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP take everything down in order, once.

    Raises:
        SystemExit: after a signal, with 128 and its number.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    # A terminal that goes away; under nohup the run goes on.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        # A second signal would only interrupt the removal of the network.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(SIGNALLED + number)

    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    except SystemExit:
        sys.stderr.write("penstock netem: taken down\n")
        raise
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
