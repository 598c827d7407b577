"""Asks the HTTP API of the plugin `console` in a running program, here or on another machine."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode

from penstock.broker.config.command_line import url_parts
from penstock.broker.config.secret_file import read_secret
from penstock.broker.errors import PenstockError
from penstock.plugins.web.terminal_escape import printable

DEFAULT_URL: Final = "http://127.0.0.1:8081"

TIMEOUT_SECONDS: Final = 10.0
"""The program's answer may take so long."""

LONG_SECONDS: Final = 3600.0
"""The same of a backup, which copies everything."""

SILENT_SECONDS: Final = 60.0
"""A stream says something each 15 s."""

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A thousand rows have some 300 KB; no list has more than 2 MB, and a report some filters."""

MOST_ROWS: Final = 1_000
"""Rows in one answer; the console gives no more."""

_NAMES: Final = ("client: ", "topic: ", "ban: ")
"""Errors of the console begin so where it knows nothing of that name."""


class ConsoleError(PenstockError):
    """The console cannot be reached, refuses, or something else answered; status 2."""


class NoAnswerError(ConsoleError):
    """Nothing answers there."""


class UnknownError(PenstockError):
    """The console knows nothing of that name; status 1."""

    exit_status: ClassVar[int] = 1


def read_token(path: str | Path) -> str:
    """Return the token of a file: its text, or the last word of a line ``NAME ROLE TOKEN``.

    Raises:
        ConfigError: the file cannot be read or holds none.
    """
    return read_secret(path).rpartition(" ")[2]


class Console:
    """The API of a running program's console.

    Raises:
        ConsoleError: that is no URL, or the authority's file cannot be used.
    """

    def __init__(self, url: str, token: str | None = None, ca_file: str | None = None) -> None:
        scheme, host, port, path = url_parts(url)
        if scheme not in ("http", "https") or not host:
            raise ConsoleError(
                f"--url: read {url!r}; allowed: http://HOST:PORT or https://HOST:PORT"
            )
        self.url = url
        self._token = token
        self._path = f"{path.rstrip('/')}/api/"
        self._connect: Callable[[float], http.client.HTTPConnection]
        if scheme == "http":
            self._connect = lambda timeout: http.client.HTTPConnection(host, port, timeout=timeout)
            return
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:  # of ssl, which does not name the file
            raise ConsoleError(f"--ca-file: {ca_file} cannot be used: {error}") from error
        self._connect = lambda timeout: http.client.HTTPSConnection(
            host, port, timeout=timeout, context=tls
        )

    def ask(
        self,
        method: str,
        resource: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> tuple[int, Any]:
        """Send a request; one other than GET has an empty object as its body by default.

        Args:
            method: of HTTP.
            resource: the path below ``/api/``, and its query; see `path_of`.
            body: to be sent as JSON.
            timeout_seconds: how long the answer may take.

        Returns:
            (status, JSON of the answer). Where the status is not 200, its ``error`` is a text.

        Raises:
            ConsoleError: there is no answer, or none of the console's.
        """
        with closing(self._connect(timeout_seconds)) as connection:
            try:
                response = self._send(connection, method, resource, body)
                data = response.read(MAX_ANSWER_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                raise self._no_answer(error) from error
        if len(data) > MAX_ANSWER_BYTES:
            raise ConsoleError(
                f"{self.url}: read an answer of more than {MAX_ANSWER_BYTES:,} bytes; allowed: a "
                "shorter one, as by a lower --limit"
            )
        return response.status, self._parsed(response.status, data)

    def get(self, resource: str, **query: object) -> Any:
        """Return what the console shows; what is None in the query is left out.

        Raises:
            UnknownError: there is nothing of that name.
            ConsoleError: there is no answer, or an error.
        """
        return self.done(self.ask("GET", resource + _query(query)))

    def client(self, client_id: str) -> Any:
        """Return the report of a client; see `get`."""
        return self.get(path_of("clients", client_id))

    def rows(self, name: str, limit: int, **query: object) -> dict[str, Any]:
        """Return a list of rows as the console answers it, from as many requests as it takes."""
        found: list[Any] = []
        after: object = None
        while True:
            n_rows = min(limit - len(found), MOST_ROWS)
            answer = self.get(name, limit=n_rows, after=after, **query)
            try:
                found += answer[name]
                after = answer["next"]
                answer["total"] = int(answer["total"])
            except (KeyError, TypeError, ValueError) as error:
                raise self.other() from error
            if after is None or len(found) >= limit:
                return {**answer, name: found}

    def stream(self, resource: str, **query: object) -> Iterator[tuple[str, Any]]:
        """Yield first ``("open", None)``, then the events of a stream: name and JSON.

        Raises:
            UnknownError: the program has no such stream.
            ConsoleError: there is no answer, or an error, or the stream breaks off.
        """
        with closing(self._connect(SILENT_SECONDS)) as connection:
            try:
                response = self._send(connection, "GET", resource + _query(query), None)
                if response.status != http.HTTPStatus.OK:
                    data = response.read(MAX_ANSWER_BYTES)
                    self.done((response.status, self._parsed(response.status, data)))
                yield "open", None
                kind = ""
                while line := response.readline(MAX_ANSWER_BYTES):
                    key, _, value = line.decode().rstrip("\n").partition(": ")
                    if key == "event":
                        kind = value
                    elif key == "data":
                        yield kind, json.loads(value)
            except (OSError, http.client.HTTPException) as error:
                raise self._no_answer(error) from error
            except ValueError as error:
                raise self.other() from error

    def done(self, answered: tuple[int, Any]) -> Any:
        """Return the JSON of what `ask` returns, if that is no error; else see `get`."""
        status, answer = answered
        if status == http.HTTPStatus.OK:
            return answer
        told = printable(answer["error"])
        if status == http.HTTPStatus.NOT_FOUND and told.startswith(_NAMES):
            raise UnknownError(told)
        if status == http.HTTPStatus.UNAUTHORIZED and self._token is None:
            told = (
                "read no token; allowed: --token-file FILE, with a token that the console's "
                "token_file has, or a --context that names such a file"
            )
        raise ConsoleError(f"{self.url}: {status}: {told}")

    def other(self) -> ConsoleError:
        """Return the error of an answer that is not the console's."""
        return ConsoleError(
            f"{self.url}: something else answers there; allowed: a broker's plugin console"
        )

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        resource: str,
        body: Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        data = None
        if method != "GET":
            headers["Content-Type"] = "application/json"
            data = json.dumps(body or {}).encode()
        connection.request(method, self._path + resource, data, headers)
        return connection.getresponse()

    def _no_answer(self, error: Exception) -> NoAnswerError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return NoAnswerError(
            f"{self.url}: no answer ({printable(reason)}); allowed: the address of a running "
            "broker whose policy file has the plugin console"
        )

    def _parsed(self, status: int, data: bytes) -> Any:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.other() from error
        is_error = status != http.HTTPStatus.OK
        if is_error and not (isinstance(answer, dict) and isinstance(answer.get("error"), str)):
            raise self.other()
        return answer


def path_of(*names: str) -> str:
    """Return the path of a resource, each of its names encoded, whatever bytes the shell gave."""
    return "/".join(quote(name, safe="", errors="surrogateescape") for name in names)


def _query(query: Mapping[str, object]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"?{urlencode(given, errors='surrogateescape')}" if given else ""
