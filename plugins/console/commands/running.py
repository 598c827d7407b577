"""``penstock uplink``, ``drain``, ``backup`` and ``log`` see and change a running program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final

import typer

from penstock.broker.config.command_line import CommandLine, Yes, confirm, exit_status, with_options
from penstock.broker.operations_contract import LogLevel
from penstock.plugins.console.commands.asking import LONG_SECONDS, Console, UnknownError
from penstock.plugins.console.commands.options import ConsoleOptions
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import Column, count, duration, lines, size, text, yes_or_no

uplink, drain, backup, log = CommandLine(), CommandLine(), CommandLine(), CommandLine()

_LANES: Final = (
    Column("UPLINK", "uplink"),
    Column("LANE", "name"),
    Column("CONNECTED", "is_connected", yes_or_no),
    Column("SINCE", "since_seconds", duration),
    Column("ADDRESS", "address"),
    Column("RTT", "rtt", duration),
    Column("WAITING", "waiting", count),
    Column("BYTES", "waiting_bytes", size),
    Column("OLDEST", "oldest_seconds", duration),
)


@uplink.callback()
def about_uplinks() -> None:
    """Show the connections of an edge broker to other brokers."""


@uplink.command()
@with_options(ConsoleOptions)
def ls(options: ConsoleOptions) -> None:
    """List uplinks and their lanes."""
    console = options.console()
    answer = console.get("uplinks")
    options.show(console, answer, lambda: lines(_LANES, _lanes(answer["uplinks"])))


@uplink.command(name="show")
@with_options(ConsoleOptions)
def show_one(
    options: ConsoleOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in the policy file.")],
) -> None:
    """Show one uplink, and why it is not connected."""
    console = options.console()
    found = _find(console, name)
    options.show(console, found, lambda: _one(found))


def _find(console: Console, name: str) -> Mapping[str, Any]:
    """Return an uplink.

    Raises:
        UnknownError: there is none of this name.
    """
    answer = console.get("uplinks")
    try:
        by_name: dict[str, Mapping[str, Any]] = {one["name"]: one for one in answer["uplinks"]}
    except (KeyError, TypeError) as error:
        raise console.other() from error
    if name not in by_name:
        known = ", ".join(map(printable, by_name)) or "none, as there are no uplinks"
        raise UnknownError(f"uplink: read {name!r}; allowed: {known}")
    return by_name[name]


def _lanes(uplinks: Any) -> Iterator[Mapping[str, Any]]:
    for one in uplinks:
        for lane in one["lanes"]:
            yield {**lane, "uplink": one["name"]}


def _one(found: Mapping[str, Any]) -> Iterator[str]:
    yield from lines(_LANES, _lanes([found]))
    for lane in found["lanes"]:
        if lane["why"]:
            yield f"{text(lane['name'] or found['name'])}: {printable(lane['why'])}"


@drain.command(name="drain")
@with_options(ConsoleOptions)
def drain_program(
    options: ConsoleOptions,
    seconds: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Until all clients are gone.")
    ] = 30,
    *,
    yes: Yes = False,
) -> None:
    """Accept no new clients, and disconnect those that are there, before a stop.

    The broker goes on until it is stopped; there is no way back.
    """
    confirm("Accept no new clients, and disconnect all that are there?", yes=yes)
    told, body = f"drains within {seconds:,} s", {"seconds": seconds}
    options.change("POST", "drain", lambda _: told, body)


@backup.command(name="backup")
@with_options(ConsoleOptions)
def back_up(
    options: ConsoleOptions,
    path: Annotated[
        str, typer.Argument(metavar="DIR", help="A new directory on the broker's machine.")
    ],
) -> None:
    """Copy all that is durable, while the broker goes on."""
    options.change(
        "POST",
        "backup",
        lambda answer: f"{answer['bytes']:,} bytes written to {printable(path)}",
        {"path": path},
        timeout_seconds=LONG_SECONDS,
    )


@log.callback()
def about_log() -> None:
    """Show or change what a running program logs."""


@log.command()
@with_options(ConsoleOptions)
def level(
    options: ConsoleOptions,
    new: Annotated[
        LogLevel | None, typer.Argument(metavar="[LEVEL]", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Show the level of the log; or change it, until the next reload that changes log.level."""
    method, body = ("GET", None) if new is None else ("PUT", {"level": new})
    options.change(method, "log", lambda answer: text(answer["level"]), body)


uplink_main = partial(exit_status, uplink, "penstock uplink")
drain_main = partial(exit_status, drain, "penstock drain")
backup_main = partial(exit_status, backup, "penstock backup")
log_main = partial(exit_status, log, "penstock log")
