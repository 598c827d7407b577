"""``penstock client`` shows clients, disconnects, bans and follows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from penstock.broker.config.command_line import CommandLine, Yes, confirm, exit_status, with_options
from penstock.broker.errors import PenstockError
from penstock.broker.operations_contract import BanKind
from penstock.plugins.console.commands.asking import path_of
from penstock.plugins.console.commands.options import DEFAULT_LIMIT, ConsoleOptions, Limit, Search
from penstock.plugins.console.report_text import describe
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import Column, count, duration, lines, size, text

client = CommandLine()


@client.callback()
def about() -> None:
    """Show the clients of a running broker; disconnect, ban or follow one."""


COLUMNS: Final = (
    Column("CLIENT", "client_id"),
    Column("USER", "username"),
    Column("ADDRESS", "address"),
    Column("LISTENER", "listener"),
    Column("MQTT", "version"),
    Column("SINCE", "connected_seconds", duration),
    Column("RTT", "rtt", duration),
    Column("HELD", "withheld", count),
    Column("WAITING", "queued", count),
    Column("BYTES", "queued_bytes", size),
    Column("DELIVERED", "delivered", count),
    Column("DROPPED", "dropped", count),
    Column("NODE", "node"),
)

_BANS: Final = (
    Column("KIND", "kind"),
    Column("VALUE", "value"),
    Column("LEFT", "seconds", duration),
    Column("BY", "by"),
    Column("REASON", "reason"),
)

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

ClientId: TypeAlias = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client Identifier.")]
Reason: TypeAlias = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the log.")]
Kind: TypeAlias = Annotated[BanKind, typer.Option(help="What VALUE is.")]
Value: TypeAlias = Annotated[
    str, typer.Argument(metavar="VALUE", help="Client Identifier, user name or address.")
]
Sort: TypeAlias = Literal[
    "client_id",
    "rtt",
    "withheld",
    "queued",
    "queued_bytes",
    "inflight",
    "delivered",
    "delivered_per_second",
    "dropped",
    "connected_seconds",
]


class DurationError(PenstockError):
    """That is no duration; status 2."""


@client.command()
@with_options(ConsoleOptions)
def ls(
    options: ConsoleOptions,
    search: Search = None,
    sort: Annotated[Sort, typer.Option(help="Order; numbers fall.")] = "client_id",
    limit: Limit = DEFAULT_LIMIT,
) -> None:
    """List clients, and what waits for them."""
    options.show_list("clients", COLUMNS, limit, search=search, sort=sort)


@client.command(name="show")
@with_options(ConsoleOptions)
def show_one(options: ConsoleOptions, client_id: ClientId) -> None:
    """Show a client: link, messages, lately."""
    console = options.console()
    found = console.client(client_id)
    options.show(console, found, lambda: _one(found))


def _one(found: Mapping[str, Any]) -> Iterator[str]:
    row = found["row"]
    if row is not None and row["is_connected"]:
        since = duration(row["connected_seconds"])
        yield f"from {text(row['address'])}, MQTT {text(row['version'])}, for {since}"
    yield from describe(found)
    for one in found["lately"]:
        words = [text(one["kind"]).replace("_", " ")]
        words += [printable(one[key]) for key in ("address", "reason") if one[key]]
        yield f"{duration(one['seconds_ago'])} ago: {', '.join(words)}"


@client.command()
@with_options(ConsoleOptions)
def kick(options: ConsoleOptions, client_id: ClientId, reason: Reason = "") -> None:
    """Disconnect a client.

    It may connect again, and its session stays.
    """
    body = {"reason": reason} if reason else {}
    told = f"{printable(client_id)} is disconnected"
    resource = path_of("clients", client_id, "disconnect")
    options.change("POST", resource, lambda _: told, body)


@client.command()
@with_options(ConsoleOptions)
def ban(
    options: ConsoleOptions,
    value: Value,
    kind: Kind = "client_id",
    duration_text: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Such as 90s, 10m, 2h or 7d.")
    ] = "1h",
    reason: Reason = "",
) -> None:
    """Refuse a name or address for a while.

    Who is connected by it is disconnected. A ban ends with the broker.
    """
    seconds = _seconds(duration_text)
    body = {"kind": kind, "value": value, "seconds": seconds, "reason": reason}
    told = f"{kind} {printable(value)} is banned for {duration(seconds)}; disconnected: "
    options.change("POST", "bans", lambda a: f"{told}{a['disconnected']:,}", body)


def _seconds(text_of_it: str) -> int:
    """Return a duration in seconds.

    Raises:
        DurationError: it is none.
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text_of_it)
    if found is None:
        raise DurationError(f"--for: read {text_of_it!r}; allowed: such as 90s, 10m, 2h or 7d")
    return int(found[1]) * _UNITS[found[2] or "s"]


@client.command()
@with_options(ConsoleOptions)
def bans(options: ConsoleOptions) -> None:
    """List all bans."""
    console = options.console()
    answer = console.get("bans")
    options.show(console, answer, lambda: lines(_BANS, answer["bans"]))


@client.command()
@with_options(ConsoleOptions)
def unban(options: ConsoleOptions, value: Value, kind: Kind = "client_id") -> None:
    """End a ban."""
    told = f"{kind} {printable(value)} may connect"
    options.change("DELETE", path_of("bans", kind, value), lambda _: told)


@client.command()
@with_options(ConsoleOptions)
def release(options: ConsoleOptions, client_id: ClientId) -> None:
    """Send what is held for a client."""
    resource = path_of("clients", client_id, "release")
    options.change("POST", resource, lambda a: f"messages released: {a['released']:,}")


@client.command()
@with_options(ConsoleOptions)
def drop(options: ConsoleOptions, client_id: ClientId, *, yes: Yes = False) -> None:
    """Drop what is held for a client."""
    confirm(f"Drop the held messages of {printable(client_id)}?", yes=yes)
    resource = path_of("clients", client_id, "drop")
    options.change("POST", resource, lambda a: f"messages dropped: {a['dropped']:,}")


@client.command()
@with_options(ConsoleOptions)
def rm(options: ConsoleOptions, client_id: ClientId, *, yes: Yes = False) -> None:
    """End a session, with all that waits.

    A client that is connected is disconnected.
    """
    confirm(f"End the session of {printable(client_id)}, with all that waits for it?", yes=yes)
    told = f"the session of {printable(client_id)} ended"
    options.change("DELETE", path_of("clients", client_id), lambda _: told)


@client.command()
@with_options(ConsoleOptions)
def trace(
    options: ConsoleOptions,
    client_id: ClientId,
    topic_filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Topic filter.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="End after so many events.")
    ] = None,
) -> None:
    """Follow a client live.

    Shows connects, publishes, deliveries, what is held and why; never a payload.
    """
    console = options.console()
    with suppress(KeyboardInterrupt):
        for kind, found in console.stream("tail", client=client_id, filter=topic_filter):
            if kind == "open":
                typer.echo(f"following {printable(client_id)}; Ctrl-C ends it", err=True)
            elif kind == "lost":
                told = text(found.get("records") if isinstance(found, dict) else None)
                typer.echo(f"{told} events are lost: too many to follow", err=True)
            elif kind == "record":
                if options.as_json:
                    typer.echo(json.dumps(found))
                else:
                    options.show(console, found, partial(_event, found))
                limit = None if limit is None else limit - 1
                if limit == 0:
                    return


def _event(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield an event of the tail as a line."""
    at = datetime.fromtimestamp(record["at"]).astimezone().isoformat(" ", "milliseconds")
    words = [at[11:23], printable(record["kind"]).ljust(10)]
    if record["topic"]:
        words += [
            size(record["bytes"]).rjust(8),
            f"QoS {record['qos']}",
            printable(record["topic"]),
        ]
    words += [printable(record[key]) for key in ("address", "reason") if record[key]]
    yield "  ".join(words)


client_main = partial(exit_status, client, "penstock client")
