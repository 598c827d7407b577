"""The options of every command, and what it prints: an answer as JSON or as lines of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import typer

from penstock.plugins.console.commands.asking import (
    DEFAULT_URL,
    TIMEOUT_SECONDS,
    Console,
    read_token,
)
from penstock.plugins.web.contexts import ApiOptions, Context, chosen_context
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import Column, lines

Limit: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", min=1, metavar="N", help="Most rows to show.")
]
Search: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Rows whose names contain this text.")
]
DEFAULT_LIMIT = 1_000


class ConsoleOptions(ApiOptions):
    """Where the console is, and how its answers are printed."""

    __slots__ = ()

    def console(self) -> Console:
        """Return the console.

        Raises:
            PenstockError: the options do not fit together, a file cannot be used, or the URL is
                none.
        """
        chosen = self.over(chosen_context(self.context, self.url) or Context(DEFAULT_URL))
        token = None if chosen.token_file is None else read_token(chosen.token_file)
        return Console(chosen.url, token, chosen.ca_file)

    def show(
        self,
        console: Console,
        answer: Any,
        text_lines: Callable[[], Iterable[str]],
        lacks: str = "not shown: what is",
    ) -> None:
        """Print an answer; `lacks` is said of nodes that have not answered.

        Raises:
            ConsoleError: it is not what a console answers.
        """
        if self.as_json:
            typer.echo(json.dumps(answer, indent=1))
            return
        try:
            text = "\n".join(text_lines())
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise console.other() from error
        if text:
            typer.echo(text)
        if isinstance(answer, dict):
            for node, why in answer.get("missing", {}).items():
                typer.echo(printable(f"{lacks} at node {node}: {why}"), err=True)

    def change(
        self,
        method: str,
        resource: str,
        told: Callable[[Any], str],
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Change something, and print the answer; `told` makes a line of it. See `Console.ask`."""
        console = self.console()
        answer = console.done(console.ask(method, resource, body, timeout_seconds=timeout_seconds))
        self.show(console, answer, lambda: [told(answer)], "not known to be done")

    def show_list(self, name: str, columns: Sequence[Column], limit: int, **query: object) -> None:
        """Print the rows of a list, and on standard error how many others there are.

        Raises:
            PenstockError: the console does not answer with a list.
        """
        console = self.console()
        answer = console.rows(name, limit, **query)
        rows = answer[name]
        self.show(console, answer, lambda: lines(_needed(columns, rows), rows))
        if answer["next"] is not None:
            told = f"{len(rows):,} of {answer['total']:,} are shown; the others: --limit, --search"
            typer.echo(told, err=True)


def _needed(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
    """Return columns without that of nodes, where no row is of one."""
    has_nodes = any(row.get("node") for row in rows)
    return [column for column in columns if has_nodes or column.key != "node"]
