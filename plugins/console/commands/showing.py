"""What the commands print: an answer of the console as JSON or as lines of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import typer

from penstock.plugins.console.commands.asking import TIMEOUT_SECONDS, Console, ConsoleOptions
from penstock.plugins.web.text_table import Column, lines

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Limit: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", min=1, metavar="N", help="Most rows to show.")
]
Search: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Rows whose names contain this text.")
]
DEFAULT_LIMIT = 1_000


def show(
    console: Console, answer: Any, text_lines: Callable[[], Iterable[str]], *, as_json: bool
) -> None:
    """Print an answer.

    Raises:
        ConsoleError: it is not what a console answers.
    """
    if as_json:
        typer.echo(json.dumps(answer, indent=1))
        return
    try:
        text = "\n".join(text_lines())
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise console.other() from error
    if text:
        typer.echo(text)


def change(
    options: ConsoleOptions,
    method: str,
    resource: str,
    told: Callable[[Any], str],
    body: Mapping[str, Any] | None = None,
    *,
    as_json: bool,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Change something, and print the answer; `told` makes a line of it. See `Console.ask`."""
    console = options.console()
    answer = console.done(console.ask(method, resource, body, timeout_seconds=timeout_seconds))
    show(console, answer, lambda: [told(answer)], as_json=as_json)


def show_list(
    options: ConsoleOptions,
    name: str,
    columns: Sequence[Column],
    limit: int,
    *,
    as_json: bool,
    **query: object,
) -> None:
    """Print the rows of a list, and on standard error how many others there are.

    Raises:
        PenstockError: the console does not answer with a list.
    """
    console = options.console()
    answer = console.rows(name, limit, **query)
    rows = answer[name]
    show(console, answer, lambda: lines(columns, rows), as_json=as_json)
    if answer["next"] is not None:
        told = f"{len(rows):,} of {answer['total']:,} are shown; the others: --limit, --search"
        typer.echo(told, err=True)
