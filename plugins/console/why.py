"""``penstock why CLIENT_ID`` shows why a client's last large message was held or sent.

Without a client it is the state of an edge proxy: which of the broker's addresses are up, and what
waits.

It asks the HTTP API of the plugin `console` in a running broker.
"""

from __future__ import annotations

import http.client
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.config.secret_file import read_secret
from penstock.broker.errors import PenstockError
from penstock.broker.process.program import exit_status
from penstock.plugins.console.report_text import describe, describe_proxy
from penstock.plugins.web.terminal_escape import printable

DEFAULT_URL: Final = "http://127.0.0.1:8081"

TIMEOUT_SECONDS: Final = 10.0
"""The broker's answer may take so long."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""No report is nearly as long; a longer answer is not from the console."""

app = CommandLine()


class ConsoleError(PenstockError):
    """The console cannot be reached, or something else answered; status 2."""


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
        raise _other(url) from error
    typer.echo("\n".join(lines))


def fetch(url: str, client_id: str | None, token: str | None = None) -> Any:
    """Ask for a client's report or a proxy's state.

    Args:
        url: the URL of the console's HTTP API.
        client_id: Client Identifier; None for the proxy.
        token: the token that the console needs; None for none.

    Returns:
        The JSON of the answer.

    Raises:
        UnknownClientError: there is no such client.
        ConsoleError: there is no answer, or none of the console's.
    """
    connection, path = _connect(url)
    try:
        resource = "api/proxy" if client_id is None else f"api/clients/{quote(client_id, safe='')}"
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"{path}/{resource}", headers=headers)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConsoleError(
            f"{url}: no answer ({reason}); allowed: the address of a running broker whose policy "
            "file has the plugin console"
        ) from error
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise _other(url) from error
    if response.status == http.HTTPStatus.OK:
        return answer
    told = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(told, str):
        raise _other(url)
    if response.status == http.HTTPStatus.NOT_FOUND and told.startswith("client: "):
        raise UnknownClientError(printable(told))
    raise ConsoleError(f"{url}: {response.status}: {printable(told)}")


def _connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection to be opened, and the path of the API.

    Raises:
        ConsoleError: that is no URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or not host:
        raise ConsoleError(f"--url: read {url!r}; allowed: http://HOST:PORT or https://HOST:PORT")
    connection = kinds[parts.scheme](host, port, timeout=TIMEOUT_SECONDS)
    return connection, parts.path.rstrip("/")


def _other(url: str) -> ConsoleError:
    return ConsoleError(f"{url}: something else answers there; allowed: a broker's plugin console")


main = partial(exit_status, app, "penstock why")


if __name__ == "__main__":
    sys.exit(main())
