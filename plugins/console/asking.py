"""Asks the HTTP API of the plugin `console` in a running program, for commands."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.broker.errors import PenstockError

DEFAULT_URL: Final = "http://127.0.0.1:8081"

TIMEOUT_SECONDS: Final = 10.0
"""The broker's answer may take so long."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""No report is nearly as long; a longer answer is not from the console."""


class ConsoleError(PenstockError):
    """The console cannot be reached, refuses, or something else answered; status 2."""


def ask(url: str, method: str, resource: str, token: str | None = None) -> tuple[int, Any]:
    """Send a request; one other than GET has an empty object as its body.

    Args:
        url: the URL of the console.
        method: of HTTP.
        resource: the path below ``/api/``.
        token: the token that the console needs; None for none.

    Returns:
        (status, JSON of the answer). Where the status is not 200, its ``error`` is a text.

    Raises:
        ConsoleError: there is no answer, or none of the console's.
    """
    connection, path = _connect(url)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        body = None
        if method != "GET":
            headers["Content-Type"] = "application/json"
            body = b"{}"
        connection.request(method, f"{path}/api/{resource}", body, headers)
        response = connection.getresponse()
        data = response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConsoleError(
            f"{url}: no answer ({reason}); allowed: the address of a running broker whose policy "
            "file has the plugin console"
        ) from error
    finally:
        connection.close()
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise other(url) from error
    is_error = response.status != http.HTTPStatus.OK
    if is_error and not (isinstance(answer, dict) and isinstance(answer.get("error"), str)):
        raise other(url)
    return response.status, answer


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


def other(url: str) -> ConsoleError:
    """Return the error of an answer that is not the console's."""
    return ConsoleError(f"{url}: something else answers there; allowed: a broker's plugin console")
