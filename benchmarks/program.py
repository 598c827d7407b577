"""The command line of every benchmark: its options, its errors, and the origin of its figures.

A benchmark is a function whose parameters are its options; `Program` makes a command line of it.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from benchmarks.loads.wire import WireError
from benchmarks.peers import Peer
from penstock.broker.config.command_line import CommandLine
from penstock.netem.errors import NetemError, RunError
from penstock.netem.runs.provenance import commit, machine, python

Choice = TypeVar("Choice")

Quick = Annotated[bool, typer.Option("--quick", help="A look, no claim.")]
Repeats = Annotated[int, typer.Option(min=1, help="Repetitions.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")]

FiguresFile = Annotated[
    Path | None, typer.Option("--figures", help="Write the tables into this file, for a page.")
]

DEFAULT_REPEATS: Final = 3

QUIET_LOAD: Final = 0.5
"""The load average above which a machine is busy with other work."""

_command: Final[ContextVar[str]] = ContextVar("command", default="")
"""The command line of the program that runs."""


class Program:
    """The `main` of a benchmark."""

    def __init__(self, command: Callable[..., None], name: str) -> None:
        """Make it."""
        self._name = name
        self.app = CommandLine()
        self.app.command()(command)

    def __call__(self, argv: list[str] | None = None) -> int:
        """Run the benchmark.

        Returns:
            Exit status: 0; 1 where a broker, a link or a file failed, or where the command ended
            with `typer.Exit`; 2 for wrong arguments, or where a network cannot be made.
        """
        words = sys.argv[1:] if argv is None else argv
        _command.set(shlex.join([*self._name.split(), *words]))
        try:
            return self.app.status(words, self._name)
        except (WireError, OSError, NetemError) as error:
            typer.echo(f"{self._name.rpartition('.')[2]}: {error}", err=True)
            return 2 if isinstance(error, NetemError) and not isinstance(error, RunError) else 1


def choose(
    kind: str, names: str, choices: Mapping[str, Choice], groups: Mapping[str, str] | None = None
) -> list[Choice]:
    """Return the choices that a comma-separated option names, in the order of `choices`.

    Args:
        kind: the kind of thing that is chosen, for the error.
        names: the text of the option; ``all`` stands for every choice.
        choices: the choices by name.
        groups: the group of each choice; the group's name stands for all its choices.

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


def describe_run(
    peers: Iterable[Peer] = (), command: str | None = None, **more: str
) -> dict[str, str]:
    """Return the origin of a result, by name, as text."""
    versions = ", ".join(
        f"{peer.name} {peer.version()} ({peer.about})" for peer in peers if not peer.is_ceiling
    )
    return {
        "command": running_command() if command is None else command,
        "commit": commit() or "unknown",
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "python": python(),
        "versions": versions or f"penstock {importlib.metadata.version('penstock-mqtt')}",
        **more,
    }


def running_command() -> str:
    """Return the command line of the program that runs."""
    return _command.get()


def doubts() -> list[str]:
    """Return why the figures of a run that begins may be wrong."""
    load, _, _ = os.getloadavg()
    if load < QUIET_LOAD:
        return []
    return [f"the machine was not quiet: a load average of {load:.1f} when the run began"]


def tell(lines: Sequence[str], run: Mapping[str, str]) -> None:
    """Write a report to standard output, and below it where its figures are from."""
    typer.echo("\n".join([*lines, "", *(f"- {name}: {text}" for name, text in run.items())]))


def write_json(file: Path | None, document: Mapping[str, Any]) -> None:
    """Write every figure into the file that was asked for, if any."""
    if file is not None:
        file.write_text(json.dumps(document, indent=1) + "\n")
