"""``penstock topic``, ``subscription`` and ``retained`` show what goes through a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from penstock.broker.config.command_line import CommandLine, Yes, confirm, exit_status, with_options
from penstock.plugins.console.commands.asking import path_of
from penstock.plugins.console.commands.options import DEFAULT_LIMIT, ConsoleOptions, Limit, Search
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import Column, count, duration, lines, size, text

topic, subscription, retained = CommandLine(), CommandLine(), CommandLine()

_TOPICS: Final = (
    Column("TOPIC", "topic"),
    Column("CLASS", "size"),
    Column("MESSAGES", "messages", count),
    Column("BYTES", "bytes", size),
    Column("OLDEST", "oldest_seconds", duration),
    Column("NODE", "node"),
)
_SUBSCRIPTIONS: Final = (
    Column("CLIENT", "client_id"),
    Column("FILTER", "topic_filter"),
    Column("QOS", "qos", count),
    Column("SHARE", "share_name"),
    Column("SIZES", "sizes"),
)
_RETAINED: Final = (
    Column("TOPIC", "topic"),
    Column("BYTES", "bytes", size),
    Column("QOS", "qos", count),
    Column("AGE", "age_seconds", duration),
    Column("EXPIRES", "expires_seconds", duration),
    Column("PUBLISHER", "publisher"),
)

TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic Name.")]


@topic.callback()
def about_topics() -> None:
    """Show the topics that fill the queues of a running broker."""


@topic.command(name="ls")
@with_options(ConsoleOptions)
def list_topics(
    options: ConsoleOptions,
    search: Search = None,
    sort: Annotated[
        Literal["bytes", "messages", "oldest_seconds", "topic"], typer.Option(help="Order.")
    ] = "bytes",
    limit: Limit = DEFAULT_LIMIT,
) -> None:
    """List what waits by topic and size class, most bytes first."""
    options.show_list("topics", _TOPICS, limit, search=search, sort=sort)


@subscription.callback()
def about_subscriptions() -> None:
    """Show the subscriptions of a running broker."""


@subscription.command(name="ls")
@with_options(ConsoleOptions)
def list_subscriptions(
    options: ConsoleOptions,
    search: Search = None,
    client: Annotated[
        str | None, typer.Option(metavar="CLIENT_ID", help="Those of one client.")
    ] = None,
    topic_filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Those with this filter.")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
) -> None:
    """List subscriptions: who gets what."""
    query = {"search": search, "client": client, "filter": topic_filter}
    options.show_list("subscriptions", _SUBSCRIPTIONS, limit, **query)


@retained.callback()
def about_retained() -> None:
    """Show and clear the retained messages of a running broker."""


@retained.command(name="ls")
@with_options(ConsoleOptions)
def list_retained(
    options: ConsoleOptions,
    topic_filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Topic filter; all by default.")
    ] = "#",
    search: Search = None,
    sort: Annotated[Literal["topic", "bytes", "age_seconds"], typer.Option(help="Order.")] = (
        "topic"
    ),
    limit: Limit = DEFAULT_LIMIT,
) -> None:
    """List retained messages."""
    query = {"filter": topic_filter, "search": search, "sort": sort}
    options.show_list("retained", _RETAINED, limit, **query)


@retained.command(name="show")
@with_options(ConsoleOptions)
def show_retained(options: ConsoleOptions, topic_name: TopicName) -> None:
    """Show one retained message with its payload."""
    console = options.console()
    found = console.get(path_of("retained", topic_name))
    options.show(console, found, lambda: _message(found))


def _message(found: Mapping[str, Any]) -> Iterator[str]:
    yield from lines(_RETAINED, [found])
    for name, value in found["properties"].items():
        yield f"{printable(name)}: {text(value)}"
    if found["text"] is None:
        cut = "" if found["bytes"] <= 64 * 1024 else ", its beginning"
        yield f"payload in base64{cut}: {printable(found['base64'])}"
    else:
        yield from map(printable, found["text"].splitlines())


@retained.command()
@with_options(ConsoleOptions)
def rm(
    options: ConsoleOptions,
    topic_names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topic Names.")],
    *,
    yes: Yes = False,
) -> None:
    """Clear retained messages; subscribers are sent an empty one."""
    confirm(f"Clear the retained messages of {printable(', '.join(topic_names))}?", yes=yes)
    for name in topic_names:
        told = partial(_cleared, name)
        options.change("DELETE", path_of("retained", name), told)


def _cleared(name: str, _: Any) -> str:
    return f"{printable(name)} is cleared"


topic_main = partial(exit_status, topic, "penstock topic")
subscription_main = partial(exit_status, subscription, "penstock subscription")
retained_main = partial(exit_status, retained, "penstock retained")
