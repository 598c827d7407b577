"""``penstock why CLIENT_ID`` shows why a client's last large message was held or sent.

Without a client it is the state of an edge proxy: which of the broker's addresses are up, and what
waits.

It asks the HTTP API of the plugin `console` in a running broker.
"""

from __future__ import annotations

import http
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.config.secret_file import read_secret
from penstock.broker.errors import PenstockError
from penstock.broker.process.program import exit_status
from penstock.plugins.console.asking import DEFAULT_URL, ConsoleError, ask, other
from penstock.plugins.console.report_text import describe, describe_proxy
from penstock.plugins.web.terminal_escape import printable

app = CommandLine()


class UnknownClientError(PenstockError):
    """The broker has no session of this client and does not remember it; status 1."""


@app.command()
def why(
    client_id: Annotated[
        str | None, typer.Argument(help="Client Identifier; absent: the state of a proxy.")
    ] = None,
    url: Annotated[
        str, typer.Option(help="Address of the plugin console: its key http.")
    ] = DEFAULT_URL,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the bearer token, if the console needs one."),
    ] = None,
) -> None:
    """Show why a client's last large message was held or sent.

    Without a client, show the state of a proxy.
    """
    token = None if token_file is None else read_secret(token_file)
    try:
        found = fetch(url, client_id, token)
    except UnknownClientError as error:
        typer.echo(f"penstock why: {error}", err=True)
        raise typer.Exit(1) from error
    try:
        lines = describe_proxy(found) if client_id is None else describe(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise other(url) from error
    typer.echo("\n".join(lines))


def fetch(url: str, client_id: str | None, token: str | None = None) -> Any:
    """Ask for a client's report or a proxy's state.

    Args:
        url: the URL of the console.
        client_id: Client Identifier; None for the proxy.
        token: the token that the console needs; None for none.

    Returns:
        The JSON of the answer.

    Raises:
        UnknownClientError: there is no such client.
        ConsoleError: there is no answer, or none of the console's.
    """
    resource = "proxy" if client_id is None else f"clients/{quote(client_id, safe='')}"
    status, answer = ask(url, "GET", resource, token)
    if status == http.HTTPStatus.OK:
        return answer
    told = answer["error"]
    if status == http.HTTPStatus.NOT_FOUND and told.startswith("client: "):
        raise UnknownClientError(printable(told))
    raise ConsoleError(f"{url}: {status}: {printable(told)}")


main = partial(exit_status, app, "penstock why")


if __name__ == "__main__":
    sys.exit(main())
