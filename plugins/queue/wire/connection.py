"""HTTP requests to the queue, on connections that are kept open."""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.plugins.queue.wire.refusals import NoAnswerError, QueueError, read_refusal


def read_token(path: str | Path) -> str:
    """Return the bearer token in a file: its only line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, or holds more than one line.
    """
    lines = Path(path).read_text(encoding="utf-8").strip().splitlines()
    if len(lines) != 1 or not lines[0].isascii() or not lines[0].isprintable():
        raise ValueError(f"{path}: read {len(lines)} lines; allowed: one line, the token in ASCII")
    return lines[0]


class _AtOnce(http.client.HTTPConnection):
    """A connection that sends the header and the body of a request together.

    `http.client` sends them one after the other, so that the server wakes up twice.
    """

    _held: list[bytes] | None = None

    def request_at_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> None:
        """Send a request; see `http.client.HTTPConnection.request`."""
        held: list[bytes] = []
        self._held = held
        try:
            self.request(method, path, body, headers)
        finally:
            self._held = None
        self.send(b"".join(held))

    def send(self, data: Any) -> None:
        """Send bytes, or hold them while a request is put together."""
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _AtOnceTls(_AtOnce, http.client.HTTPSConnection):
    """A connection over TLS that sends at once."""


class Requests:
    """Sends requests to one server, each thread on a connection of its own.

    Raises:
        ValueError: `url` is none.
    """

    def __init__(
        self, url: str, timeout_seconds: float, *, token: str | None, ca_file: str | None
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"queue URL: read {url!r}; allowed: http://HOST:PORT")
        self._url = url
        self.timeout_seconds = timeout_seconds
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._host = host
        self._port = port or (80 if self._tls is None else 443)
        self._prefix = parts.path.rstrip("/")
        self._local = threading.local()

    def close(self) -> None:
        """Close this thread's connection; the next request opens a new one."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def ask_json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        more_seconds: float = 0,
        repeat: bool = True,
    ) -> dict[str, Any]:
        """Send one request and return the JSON object of its answer; see `send`."""
        answer, _ = self.send(method, path, body, more_seconds=more_seconds, repeat=repeat)
        try:
            value = json.loads(answer)
        except ValueError as error:
            raise QueueError(200, f"answer of {path} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise QueueError(200, f"answer of {path} is no JSON object")
        return value

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: str = "application/json",
        more_seconds: float = 0,
        repeat: bool = True,
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Send one request and return the answer's body and headers.

        Args:
            method: HTTP method.
            path: path below the URL that the client was made with.
            body: JSON value; None for none.
            accept: content type to ask for.
            more_seconds: how long the request itself may take, in addition to the timeout.
            repeat: whether to repeat the request once where a kept-alive connection broke.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if data is not None:
            headers["Content-Type"] = "application/json"
        timeout = self.timeout_seconds + more_seconds
        while True:
            connection, is_reused = self._connection(timeout)
            try:
                connection.request_at_once(method, self._prefix + path, data, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                was_cut = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
                if is_reused and repeat and was_cut:
                    continue
                reason = str(error) or type(error).__name__
                raise NoAnswerError(0, f"no answer from {self._url}: {reason}") from error
            if response.status == http.HTTPStatus.OK:
                return answer, response.headers
            raise read_refusal(response.status, answer)

    def _connection(self, timeout: float) -> tuple[_AtOnce, bool]:
        """Return this thread's connection and whether it was used before."""
        connection: _AtOnce | None = getattr(self._local, "connection", None)
        if connection is not None and connection.sock is not None:
            # Readable without a request: the server has closed the connection.
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                connection.sock.settimeout(timeout)
                return connection, True
            connection.close()
        if self._tls is None:
            connection = _AtOnce(self._host, self._port, timeout=timeout)
        else:
            connection = _AtOnceTls(self._host, self._port, timeout=timeout, context=self._tls)
        self._local.connection = connection
        return connection, False
