"""``penstock reload`` has a running broker, or proxy, read its files again, and says what it did.

A program without a console is told by SIGHUP.
"""

from __future__ import annotations

import http
from collections.abc import Iterator
from functools import partial
from typing import Any

import typer

from penstock.broker.config.command_line import CommandLine, exit_status, with_options
from penstock.plugins.console.commands.asking import ConsoleError, NoAnswerError
from penstock.plugins.console.commands.options import ConsoleOptions
from penstock.plugins.web.terminal_escape import printable

app = CommandLine()


@app.command()
@with_options(ConsoleOptions)
def reload(options: ConsoleOptions) -> None:
    """Have a running broker read its policy file and all files that it names.

    The exit status is 2 where a file is wrong, which changes nothing.
    """
    console = options.console()
    try:
        status, answer = console.ask("POST", "reload")
    except NoAnswerError as error:
        raise ConsoleError(f"{error}. Without a console, send SIGHUP to the broker") from error
    if status not in (http.HTTPStatus.OK, http.HTTPStatus.CONFLICT):
        console.done((status, answer))
    options.show(console, answer, lambda: _lines(answer))
    if status != http.HTTPStatus.OK:
        raise typer.Exit(2)


def _lines(answer: Any) -> Iterator[str]:
    for key in ("read", "changed", "needs_restart"):
        for told in answer[key]:
            yield f"{key.replace('_', ' ')}: {printable(told)}"
    for key, why in answer["failed"].items():
        typer.echo(f"penstock reload: {printable(key)}: {printable(why)}", err=True)
    if not any(answer.values()):
        yield "read again; nothing has changed"
    elif answer["failed"] and not answer["changed"]:
        typer.echo("penstock reload: nothing has changed", err=True)


main = partial(exit_status, app, "penstock reload")
