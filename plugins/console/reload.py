"""``penstock reload`` has a running broker, or proxy, read its files again, and says what it did.

It asks the HTTP API of the plugin `console`; a program without it is told by SIGHUP.
"""

from __future__ import annotations

import http
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.config.secret_file import read_secret
from penstock.broker.process.program import exit_status
from penstock.plugins.console.asking import DEFAULT_URL, ConsoleError, ask, other
from penstock.plugins.web.terminal_escape import printable

app = CommandLine()


@app.command()
def reload(
    url: Annotated[
        str, typer.Option(help="Address of the plugin console: its key http.")
    ] = DEFAULT_URL,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the bearer token of an admin.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Have a running broker read its policy file and all files that it names.

    The exit status is 2 where a file is wrong, which changes nothing.
    """
    # The file may be the console's own: a line NAME ROLE TOKEN.
    token = None if token_file is None else read_secret(token_file).rpartition(" ")[2]
    try:
        status, answer = ask(url, "POST", "reload", token)
    except ConsoleError as error:
        raise ConsoleError(f"{error}. Without a console, send SIGHUP to the broker") from error
    if status not in (http.HTTPStatus.OK, http.HTTPStatus.CONFLICT):
        raise ConsoleError(f"{url}: {status}: {printable(answer['error'])}")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        try:
            for key in ("read", "changed", "needs_restart"):
                for told in answer[key]:
                    typer.echo(f"{key.replace('_', ' ')}: {printable(told)}")
            for key, why in answer["failed"].items():
                typer.echo(f"penstock reload: {printable(key)}: {printable(why)}", err=True)
        except (KeyError, TypeError, AttributeError) as error:
            raise other(url) from error
    if status != http.HTTPStatus.OK:
        raise typer.Exit(2)


main = partial(exit_status, app, "penstock reload")


if __name__ == "__main__":
    sys.exit(main())
