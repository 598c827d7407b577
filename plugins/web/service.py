"""Serves an HTTP API on its own socket; errors say what was wrong with a request.

An API that listens on this machine only needs no password, so a web page in a browser on this
machine must not reach it. A browser lets a page of ``evil.example`` talk to whatever address that
name has at the moment (DNS rebinding). The requests of such a page name that host. So requests are
refused unless their Host is ``localhost``, an address, or the name in the policy file.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from logging import Logger
from typing import Any, Final, TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from penstock.broker.config.listener_config import show_address
from penstock.broker.errors import PenstockError
from penstock.broker.network.open_files import BACKLOG, most_files
from penstock.plugins.web.bind import split_bind
from penstock.plugins.web.connection_limits import MAX_REFUSED, Guards
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.web.tls import HttpArrival, HttpsLayer, ServerTls

SHUTDOWN_SECONDS: Final = 2.0
"""Running requests may take so long to end when the program ends."""

MOST_CONNECTIONS: Final = 1_000
"""So many requests may wait for messages of one queue."""

NEVER_SECONDS: Final = 10 * 365 * 86_400.0
"""aiohttp's own timer of an idle connection would fire while a request is held, once for each
connection; the connection's guard has a timer that does not."""

READ_BYTES: Final = 16 * 1024
"""The buffer for a body that is not read yet. Twice as much is taken from a client, and at most one
read of uvloop's, 256 KiB. With aiohttp's default of 256 KiB, 200 clients whose bodies wait take 100
MB more."""

LONGEST_TEXT_SHOWN: Final = 80

LONGEST_PATH: Final = 8_190
"""A request may have a path of so many bytes, as with most servers."""


_LOGGER: Final = logging.getLogger("penstock.http")

_ILL_FORMED: Final = (HttpProcessingError, web.RequestPayloadError)
"""aiohttp's errors for a request that is not HTTP, or whose body does not match its headers."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Say whether a log record of aiohttp's is about a fault of ours; a client's gets one line.

    Otherwise a client could fill the disk with the tracebacks of its ill-formed requests.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, _ILL_FORMED):
        return True
    _LOGGER.debug("ill-formed request: %s", _on_one_line(error))
    return False


def _on_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:LONGEST_TEXT_SHOWN]


_LOGGER.addFilter(_is_ours)


class HttpStartError(PenstockError):
    """The HTTP API's address cannot be bound; the program ends with status 2."""


class RequestError(PenstockError):
    """A request that cannot be answered."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


CHECK_ROOM: Final[web.AppKey[Callable[[], None]]] = web.AppKey("check_room")
"""Key of the application: a function to call before a large answer is made; it raises
`RequestError` while clients leave too much of their answers untaken."""

Pieces: TypeAlias = Sequence[bytes | memoryview]
"""The pieces of the body of an answer, in their order."""

SEND_PIECES: Final[web.AppKey[Callable[..., Awaitable[web.StreamResponse]]]] = web.AppKey(
    "send_pieces"
)
"""Key of the application: a function that answers a request with the pieces of a body, of a content
type, and with more headers where they are not None. What is large is written as the client takes
it."""

MAX_WHOLE_BYTES: Final = 64 * 1024
"""An answer up to this size is written at once: a connection buffers as much without back-pressure.
"""

PART_BYTES: Final = 256 * 1024
"""So much of a larger answer is written in one round of the loop, in some tenth of a millisecond. A
batch of a hundred usual messages fits."""


class HttpServer:
    """An application on a socket.

    Args:
        application: the application to serve.
        key: the key of the policy file with the address, for errors.
        limits: the limits for its connections.
        logger: gets refused connections, and why TLS handshakes failed.
        tls: None for plain connections.
        longest_path: bytes of the longest accepted path and query, percent-encoded.
        most_connections: the maximum where the limits give no number; fewer where the process may
            not have open eight times as many files.
        names: names in a request's Host that are allowed beside ``localhost`` and addresses.
        evicts_idle: a connection above the maximum takes the place of one without a complete
            request.

    Attributes:
        open_files: the file descriptors that the API may take.
    """

    def __init__(
        self,
        application: web.Application,
        key: str,
        limits: HttpLimits,
        logger: Logger,
        *,
        tls: ServerTls | None = None,
        longest_path: int = LONGEST_PATH,
        most_connections: int = MOST_CONNECTIONS,
        names: Iterable[str] = (),
        evicts_idle: bool = False,
    ) -> None:
        self._key = key
        self._tls = tls
        self._limits = limits
        self._logger = logger
        connections = limits.connections or max(1, min(most_connections, most_files() // 8))
        self.open_files = connections + MAX_REFUSED
        self._guards = Guards(
            limits, connections, self._new_protocol, key, logger, evicts_idle=evicts_idle
        )
        self._listening: asyncio.Server | None = None
        application[CHECK_ROOM] = self._check_room
        application[SEND_PIECES] = self._send_pieces
        application.middlewares.insert(0, self._guard())
        self._names = {"localhost", *(name.lower() for name in names)}
        self._is_local = False
        application.middlewares.append(self._check_host())
        _refuse_expectations(application)
        # A waiting request is cancelled when its client leaves, so that it takes no messages.
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_LOGGER,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_SECONDS,
            keepalive_timeout=NEVER_SECONDS,
            read_bufsize=READ_BYTES,
            max_line_size=longest_path,
            # To inflate a megabyte to a gigabyte blocks the loop for seconds, even if it is
            # refused.
            auto_decompress=False,
        )

    async def start(self, bind: str) -> str:
        """Listen on ``HOST:PORT``; return the URL, with the port that was bound.

        Raises:
            HttpStartError: the address cannot be bound.
        """
        host, port = split_bind(bind)
        await self._runner.setup()
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._accept, host, port, backlog=BACKLOG
            )
        except OSError as error:
            await self._runner.cleanup()
            raise HttpStartError(
                f"{self._key}: read {bind}; allowed: an address of this machine and a free "
                f"port ({error.strerror or error})"
            ) from error
        bound, port = self._listening.sockets[0].getsockname()[:2]
        self._is_local = ipaddress.ip_address(bound).is_loopback
        self._names.add(host.lower())
        return f"{'http' if self._tls is None else 'https'}://{show_address(bound, port)}"

    def _accept(self) -> asyncio.Protocol:
        guard = self._guards.accept()
        if self._tls is None:
            return guard
        timeout = self._limits.header_timeout_seconds
        arrival = HttpArrival(self._guards, self._tls.handshakes, timeout, self._logger)
        return HttpsLayer(guard, arrival, self._tls.context)

    def _new_protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None  # noqa: S101 (`start` has set it up)
        return server()

    def _check_room(self) -> None:
        if not self._guards.has_room():
            raise RequestError("clients do not take their answers; try again later", 503)

    async def _send_pieces(
        self,
        request: web.Request,
        pieces: Pieces,
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:
        n_bytes = sum(map(len, pieces))
        if n_bytes <= MAX_WHOLE_BYTES:
            return web.Response(body=b"".join(pieces), content_type=content_type, headers=headers)
        answer = web.StreamResponse(headers=headers)
        answer.content_type = content_type
        answer.content_length = n_bytes
        # Where the client has gone, aiohttp finds out by itself.
        sending = self._guards.sending(request.transport, n_bytes)
        with sending as written, contextlib.suppress(ConnectionError):
            await answer.prepare(request)
            n_left = n_bytes
            for part in _parts(pieces):
                await answer.write(part)
                written(len(part))
                n_left -= len(part)
                if n_left:
                    await asyncio.sleep(0)  # a client that takes all at once gives no pause
            await answer.write_eof()
        return answer

    def _guard(self) -> Middleware:
        """Return a middleware that tells the connection's guard when a request is being handled."""

        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            own = self._guards.of(request.transport)
            if own is not None:
                own.handling(request.content)
            try:
                return await handler(request)
            finally:
                if own is not None:
                    own.handled()

        return guard

    def _check_host(self) -> Middleware:
        """Return a middleware that refuses requests for other hosts, where the API is local."""

        @web.middleware
        async def check_host(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            asked = request.headers.get("Host")
            if self._is_local and asked and not _is_known(asked, self._names):
                raise RequestError(
                    f"Host: read {show(asked)}; allowed: localhost or an address, as {self._key} "
                    "is on this machine alone",
                    403,
                )
            return await handler(request)

        return check_host

    async def close(self) -> None:
        """Answer running requests and stop listening."""
        if self._listening is not None:
            self._listening.close()
        self._guards.close()
        await self._runner.cleanup()


def _refuse_expectations(application: web.Application) -> None:
    """Answer a header Expect that cannot be met by 417, before aiohttp does.

    aiohttp repeats what it has read, and fails where that is no UTF-8.
    """
    resolve = application.router.resolve

    async def checked(request: web.Request) -> web.UrlMappingMatchInfo:
        asked = request.headers.get("Expect")
        if asked and asked.lower() != "100-continue":
            told = {"error": f"Expect: read {show(asked)}; allowed: 100-continue"}
            raise web.HTTPExpectationFailed(text=json.dumps(told), content_type="application/json")
        return await resolve(request)

    application.router.resolve = checked  # type: ignore[method-assign]


def _parts(pieces: Pieces) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a body in parts of `PART_BYTES`, small ones together."""
    some: list[bytes | memoryview] = []
    n_bytes = 0
    for piece in pieces:
        for start in range(0, len(piece), PART_BYTES):
            part = piece if len(piece) <= PART_BYTES else memoryview(piece)[start:][:PART_BYTES]
            if n_bytes + len(part) > PART_BYTES:
                yield b"".join(some)
                some, n_bytes = [], 0
            some.append(part)
            n_bytes += len(part)
    if some:
        yield some[0] if len(some) == 1 else b"".join(some)


def _is_known(asked: str, names: Collection[str]) -> bool:
    """Say whether a Host header is one that a page of another site cannot send."""
    name = asked.lower()
    name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def answering_errors(
    name: str, logger: Logger, statuses: Sequence[tuple[type[PenstockError], int]] = ()
) -> Middleware:
    """Return a middleware that turns every error into a status and a JSON object."""

    @web.middleware
    async def answer_errors(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            return error_answer(error.status, str(error))
        except web.HTTPException as error:
            # aiohttp keeps the error with the request; the traceback's frames would keep the body.
            error.__traceback__ = None
            allow = error.headers.get("Allow")
            return error_answer(error.status, _told(request, error, allow), allow)
        except _ILL_FORMED as error:
            return error_answer(400, f"ill-formed request: {_on_one_line(error)}")
        except Exception as error:
            for kind, status in statuses:
                if isinstance(error, kind):
                    return error_answer(status, str(error))
            logger.exception("%s: %s %s failed", name, request.method, request.path)
            return error_answer(500, "the server failed; its log says why")

    return answer_errors


def _told(request: web.Request, error: web.HTTPException, allow: str | None) -> str:
    """Return what aiohttp refuses, in the words of the other errors."""
    if error.status == HTTPStatus.NOT_FOUND:
        return f"path: read {show(request.path)}; allowed: one that this API has"
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"method: read {request.method} of {show(request.path)}; allowed: {allow}"
    return error.text or error.reason


def error_answer(status: int, message: str, allow: str | None = None) -> web.Response:
    """Return the answer of an error: ``{"error": message}``."""
    headers = {"Allow": allow} if allow else None
    return web.json_response({"error": message}, status=status, headers=headers)


def integer(
    name: str, value: Any, least: int, most: int, parse: Callable[[str], int] | None = None
) -> int:
    """Return a whole number in ``[least, most]``.

    Raises:
        RequestError: it is no such number.
    """
    number = value
    if parse is not None and isinstance(value, str):
        try:
            number = parse(value)
        except ValueError:
            number = value
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise RequestError(f"{name}: read {show(value)}; allowed: {least} to {most}")
    return number


def show(value: Any) -> str:
    """Return a value for an error: as JSON on one line, truncated."""
    text = "nothing" if value is None else json.dumps(_beginning(value, 3), default=str)
    if len(text) <= LONGEST_TEXT_SHOWN:
        return text
    return text[: LONGEST_TEXT_SHOWN - 3] + "..."


def _beginning(value: Any, depth: int) -> Any:
    """Return as much of a JSON value as can be shown: the whole may take long to write."""
    if isinstance(value, str):
        return value[: LONGEST_TEXT_SHOWN + 1]
    if isinstance(value, list):
        items = value[:LONGEST_TEXT_SHOWN] if depth else value[:1]
        return [_beginning(item, depth - 1) if depth else "..." for item in items]
    if isinstance(value, dict):
        pairs = islice(value.items(), LONGEST_TEXT_SHOWN // 4 if depth else 1)
        return {
            key[:LONGEST_TEXT_SHOWN]: _beginning(item, depth - 1) if depth else "..."
            for key, item in pairs
        }
    return value
