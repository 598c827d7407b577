"""``penstock top`` watches a running broker, and its clients by the worst links."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import typer

from penstock.broker.config.command_line import CommandLine, exit_status, with_options
from penstock.plugins.console.commands.asking import Console, ConsoleError
from penstock.plugins.console.commands.options import ConsoleOptions
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import Column, count, duration, lines, size, text

if TYPE_CHECKING:
    from rich.console import RenderableType

top = CommandLine()

COLUMNS: Final = (
    Column("CLIENT", "client_id"),
    Column("RTT", "rtt", duration),
    Column("HELD", "withheld", count),
    Column("WAITING", "queued", count),
    Column("BYTES", "queued_bytes", size),
    Column("MSG/S", "delivered_per_second", count),
    Column("DELIVERED", "delivered", count),
    Column("DROPPED", "dropped", count),
    Column("SINCE", "connected_seconds", duration),
    Column("ADDRESS", "address"),
)

Order: TypeAlias = Literal["rtt", "held", "waiting", "rate"]

SORTS: Final[Mapping[Order, str]] = {
    "rtt": "rtt",
    "held": "withheld",
    "waiting": "queued_bytes",
    "rate": "delivered_per_second",
}

ONCE_ROWS: Final = 20

ONCE_SECONDS: Final = 1.0
"""Rates need two answers, so far apart."""

MOST_TRIES: Final = 6
"""A console with very many clients measures each 5 s."""


@top.command(name="top")
@with_options(ConsoleOptions)
def watch(
    options: ConsoleOptions,
    sort: Annotated[Order, typer.Option(help="Which clients come first.")] = "rtt",
    interval: Annotated[
        float, typer.Option(min=0.5, max=10, metavar="SECONDS", help="Between two answers.")
    ] = 2.0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, max=1_000, metavar="N", help="Most clients; as many as fit."
        ),
    ] = None,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print what there is in a second, and end.")
    ] = False,
) -> None:
    """Watch rates, latency, memory, and the clients with the worst links.

    Keys: q ends it; 1 to 4 put clients in order of RTT, held, waiting messages and rate. Without a
    terminal it prints once.
    """
    console = options.console()
    if once or options.as_json or not sys.stdout.isatty():
        seen = _read_rates(console, sort, limit or ONCE_ROWS)
        options.show(console, seen._asdict(), lambda: _text(seen))
        return
    with contextlib.suppress(KeyboardInterrupt):
        _live(console, sort, interval, limit)


class Seen(NamedTuple):
    """What was read at one time."""

    me: Any
    overview: Any
    clients: Any
    total: int


def _read(console: Console, order: Order, limit: int) -> Seen:
    """Ask for everything that is shown."""
    overview, me = console.get("overview"), console.get("me")
    answer = console.rows("clients", limit, sort=SORTS[order])
    return Seen(me, overview, answer["clients"], answer["total"])


def _read_rates(console: Console, order: Order, limit: int) -> Seen:
    """Ask until rates are known."""
    seen = _read(console, order, limit)
    for _ in range(MOST_TRIES):
        time.sleep(ONCE_SECONDS)
        seen = _read(console, order, limit)
        of_clients = [row.get("delivered_per_second") for row in seen.clients]
        of_all = seen.overview["rates"].values()
        if all(_has_some(rates) for rates in (of_clients, of_all)):
            break
    return seen


def _has_some(rates: Collection[float | None]) -> bool:
    """Say whether there are none, or one of them is known."""
    return not rates or any(rate is not None for rate in rates)


def _head(seen: Seen) -> Iterator[str]:
    """Yield the lines above the table; see `text_table.Column.of` for what is raised."""
    me, over = seen.me, seen.overview
    rates, clients, memory = over["rates"], over["clients"], over["memory"]
    yield (
        f"penstock {text(me['version'])}, {text(me['kind'])} {text(me['name'])}, "
        f"up {duration(me['started_seconds'])}: {count(clients['connected'])} connected, "
        f"{count(clients['sessions'])} sessions"
    )
    yield (
        f"per second: {count(rates['received_messages'])} in ({size(rates['received_bytes'])}), "
        f"{count(rates['sent_messages'])} out ({size(rates['sent_bytes'])}), "
        f"{count(rates['held'])} held, {count(rates['dropped'])} dropped"
    )
    messages, loop = over["messages"], over["loop"]
    yield (
        f"waiting: {count(messages['queued'])} and {count(messages['withheld'])} held "
        f"({size(messages['queued_bytes'])}), the oldest {duration(messages['oldest_seconds'])}; "
        f"memory {size(memory['used_bytes'])} of {size(memory['limit_bytes'])}; "
        f"loop p99 {duration(loop['p99_seconds'])}"
    )
    for one in over["latency"]:
        if one["messages"]:
            path = "congested" if one["congested"] else "calm"
            yield (
                f"latency, {text(one['size'])} messages, {path} links: "
                f"p50 {duration(one['p50_seconds'])}, p99 {duration(one['p99_seconds'])}"
            )
    for node, why in over.get("missing", {}).items():
        yield printable(f"not shown: what is at node {node}: {why}")
    for name, why in over["problems"].items():
        yield f"PROBLEM {printable(name)}: {printable(why)}"


def _text(seen: Seen) -> Iterator[str]:
    yield from _head(seen)
    yield ""
    yield from lines(COLUMNS, seen.clients)


def _live(console: Console, order: Order, interval: float, limit: int | None) -> None:
    """Draw until a key or Ctrl-C ends it."""
    from rich.console import Console as Terminal  # noqa: PLC0415 (slow to load)
    from rich.live import Live  # noqa: PLC0415

    terminal = Terminal()
    seen = _read(console, order, limit or terminal.height)
    with _keys() as key, Live(console=terminal, screen=True, auto_refresh=False) as live:
        trouble = ""
        while True:
            live.update(_screen(console, seen, order, trouble), refresh=True)
            pressed = key(interval)
            if pressed in ("q", "Q"):
                return
            if pressed in ("1", "2", "3", "4"):
                order = tuple(SORTS)[int(pressed) - 1]
            try:
                seen, trouble = _read(console, order, limit or terminal.height), ""
            except ConsoleError as error:  # it may come back
                trouble = str(error)


def _screen(console: Console, seen: Seen, order: Order, trouble: str) -> RenderableType:
    """Return what fills the terminal."""
    from rich.console import Group  # noqa: PLC0415 (slow to load)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="reverse")
    for column in COLUMNS:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        style = "bold" if column.key == SORTS[order] else ""
        table.add_column(column.title, justify=justify, no_wrap=True, style=style)
    try:
        head = [Text(line, no_wrap=True, overflow="ellipsis") for line in _head(seen)]
        for row in seen.clients:
            table.add_row(*(Text(column.of(row)) for column in COLUMNS))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise console.other() from error
    keys = f"q quit   order ({order}): 1 RTT  2 held  3 waiting  4 rate"
    return Group(*head, Text(trouble or keys, style="red" if trouble else "dim"), table)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield what waits for a key for some seconds, and returns it; "" for none."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios  # noqa: PLC0415 (not on Windows)
    import tty  # noqa: PLC0415

    def key(seconds: float) -> str:
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if readable else ""

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


top_main = partial(exit_status, top, "penstock top")
