from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from aiohttp import EMPTY_PAYLOAD, web

from penstock.plugins.web import connection_limits
from penstock.plugins.web.connection_limits import MAX_REFUSED, Guards
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.web.service import CHECK_ROOM, SEND_PIECES, HttpServer, RequestError
from tests.helpers.process import SECONDS
from tests.helpers.scripted import until
from tests.helpers.skipping_loop import SkippingLoop

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

LARGE = b"x" * 30_000_000
"""More than the buffers of a connection take."""


async def well(_: web.Request) -> web.Response:
    """Answer at once."""
    return web.Response(text="well")


class Running:
    """A server and where it listens."""

    def __init__(self, server: HttpServer, url: str) -> None:
        self.server = server
        self.port = urlsplit(url).port or 0

    @property
    def n_connections(self) -> int:
        """Connections that are served, and those that are told why they are not."""
        guards = self.server._guards
        return len(guards._served) + len(guards._hearing)

    async def connect(self, beginning: bytes = b"") -> Client:
        """Open a connection, on which some bytes are there before the server knows of it."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.sendall(beginning)
        return Client(*await asyncio.open_connection(sock=sock))


class Client:
    """One connection of which the test writes every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        """Return the answer to a whole request, without its body."""
        self.writer.write(REQUEST)
        return await self.answer()

    async def answer(self) -> bytes:
        """Return the answer to a request that was sent."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(b"well")

    async def end(self) -> bytes:
        """Return what comes until the server closes."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()


@asynccontextmanager
async def serving(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]] = well, **limits: Any
) -> AsyncIterator[Running]:
    """Serve ``/`` with these limits."""
    application = web.Application()
    application.add_routes([web.get("/", handle)])
    logger = logging.getLogger("test")
    server = HttpServer(application, "plugins.test.http", HttpLimits(**limits), logger)
    try:
        yield Running(server, await server.start("127.0.0.1:0"))
    finally:
        await server.close()


async def test_a_connection_above_the_limit_is_told_and_closed() -> None:
    """503 and JSON; when another one leaves, there is a place again."""
    async with serving(connections=1) as running:
        first = await running.connect()
        assert (await first.ask()).startswith(b"HTTP/1.1 200")
        second = await running.connect()
        second.writer.write(REQUEST)
        answer = await second.end()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Connection: close" in answer
        assert b'{"error": "too many connections; try again later"}' in answer
        first.writer.close()
        await until(lambda: running.n_connections == 0)
        third = await running.connect()
        assert (await third.ask()).startswith(b"HTTP/1.1 200")
        third.writer.close()


async def test_of_a_flood_only_so_many_stay_to_be_told(caplog: pytest.LogCaptureFixture) -> None:
    """The rest is cut off; the log tells ever less often."""
    async with serving(connections=1) as running:
        first = await running.connect()
        await first.ask()
        flood = [await running.connect() for _ in range(MAX_REFUSED + 2)]
        assert await flood[-1].end() == await flood[-2].end() == b""
        assert running.n_connections == 1 + MAX_REFUSED
        for client in [first, *flood]:
            client.writer.close()
        await until(lambda: running.n_connections == 0)
    told = [text for text in caplog.messages if "connections above the limit of 1" in text]
    assert [text.split()[1] for text in told] == ["1", "2", "4", "8", "16"]


@pytest.mark.parametrize("beginning", [b"", REQUEST[:20]])
async def test_a_header_that_is_not_whole_in_time_ends_its_connection(beginning: bytes) -> None:
    """The header is that of the first request, which may not even have begun."""
    async with serving(header_timeout_seconds=0.05) as running:
        client = await running.connect(beginning)
        assert await client.end() == b""


async def test_a_header_of_a_later_request_has_the_same_time() -> None:
    """From its first byte on, whatever the connection may be idle."""
    async with serving(header_timeout_seconds=0.05, idle_timeout_seconds=3600.0) as running:
        client = await running.connect(REQUEST)
        await client.answer()
        client.writer.write(REQUEST[:20])
        assert await client.end() == b""


async def test_an_idle_connection_is_closed() -> None:
    """After its answer, when nothing else is asked."""
    async with serving(idle_timeout_seconds=0.05) as running:
        client = await running.connect()
        assert (await client.ask()).startswith(b"HTTP/1.1 200")
        assert await client.end() == b""


async def test_a_request_that_waits_for_something_is_not_cut() -> None:
    """As one that waits for messages does, longer than anything else may take."""
    event = asyncio.Event()
    asked = asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        asked.set()
        await event.wait()
        return web.Response(text="well")

    limits = {"header_timeout_seconds": 0.05, "idle_timeout_seconds": 0.05}
    async with serving(handle, **limits) as running:
        waiting = await running.connect(REQUEST)
        answer = asyncio.ensure_future(waiting.answer())
        await asked.wait()
        for _ in range(2):
            silent = await running.connect()
            assert await silent.end() == b""  # every deadline has passed
        event.set()
        assert (await answer).startswith(b"HTTP/1.1 200")
        waiting.writer.close()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_client_that_does_not_take_its_answer_is_dropped(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], *, has_ended: bool
) -> None:
    """Also one that has sent its end, after which a transport waits until all is sent."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=LARGE)

    async def run() -> None:
        async with serving(handle, idle_timeout_seconds=0.05) as running:
            client = await running.connect()
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.write(REQUEST)
            await until(lambda: running.n_connections == 1)
            if has_ended:
                client.writer.write_eof()
            await until(lambda: running.n_connections == 0)
            client.writer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it() -> None:
    """As long as something of it goes out in each period."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=LARGE)

    async with serving(handle, idle_timeout_seconds=3600.0) as running:
        client = await running.connect()
        client.writer.write(REQUEST)
        await until(lambda: running.n_connections == 1)
        (guard,) = running.server._guards._served.values()
        async with asyncio.timeout(SECONDS):
            await client.reader.readuntil(b"\r\n\r\n")
            left = len(LARGE)
            while left:
                unsent = guard.transport.get_write_buffer_size()
                left -= len(await client.reader.read(1_000_000))
                if guard.transport.get_write_buffer_size() < unsent:
                    guard._look()  # as when a period has passed
        client.writer.close()


async def test_connections_that_are_refused_end_with_the_server() -> None:
    """A stop does not wait for them."""
    async with serving(connections=1) as running:
        first, second = await running.connect(), await running.connect()
        await until(lambda: running.n_connections == 2)
    assert await first.end() == await second.end() == b""


async def test_untaken_answers_leave_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 until clients have taken theirs, or are gone: each may be of megabytes."""
    monkeypatch.setattr(connection_limits, "MOST_UNSENT_BYTES", 1_000_000)

    async def handle(request: web.Request) -> web.Response:
        try:
            request.app[CHECK_ROOM]()
        except RequestError as error:
            return web.Response(status=error.status, text="not well")
        return web.Response(body=LARGE)

    async with serving(handle) as running:
        taking = await running.connect()
        taking.reader._transport.pause_reading()  # type: ignore[attr-defined]
        taking.writer.write(REQUEST)
        await until(lambda: not running.server._guards.has_room())
        other = await running.connect(REQUEST)
        assert (await other.answer()).startswith(b"HTTP/1.1 503")
        taking.writer.transport.abort()
        await until(running.server._guards.has_room)
        other.writer.write(REQUEST)
        async with asyncio.timeout(SECONDS):
            assert (await other.reader.readline()).startswith(b"HTTP/1.1 200")
        other.writer.close()


async def test_an_untaken_answer_in_pieces_leaves_no_room_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts as a whole, though little of it is in the connection's buffer."""
    monkeypatch.setattr(connection_limits, "MOST_UNSENT_BYTES", 20_000_000)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await request.app[SEND_PIECES](request, [LARGE], "text/plain")

    async with serving(handle) as running:
        taking = await running.connect()
        taking.reader._transport.pause_reading()  # type: ignore[attr-defined]
        taking.writer.write(REQUEST)
        await until(lambda: not running.server._guards.has_room())
        taking.reader._transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(SECONDS):
            await taking.reader.readuntil(b"\r\n\r\n")
            assert await taking.reader.readexactly(len(LARGE)) == LARGE
        await until(running.server._guards.has_room)
        taking.writer.close()


async def test_a_client_that_does_not_take_an_answer_in_pieces_is_dropped() -> None:
    """After the idle time, as with an answer that is written at once."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await request.app[SEND_PIECES](request, [LARGE], "text/plain")

    async with serving(handle, idle_timeout_seconds=0.05) as running:
        client = await running.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(REQUEST)
        await until(lambda: running.n_connections == 1)
        await until(lambda: running.n_connections == 0)
        await until(lambda: running.server._guards._waiting_bytes == 0)
        client.writer.close()


def test_a_client_that_takes_every_piece_has_time_for_all_of_them() -> None:
    """While there are more, an empty buffer says that it waits for us; then it must not be idle."""

    class Taking(asyncio.Transport):
        is_closed = False

        def get_write_buffer_size(self) -> int:
            return 0

        def abort(self) -> None:
            self.is_closed = True

    async def send() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        limits = HttpLimits(idle_timeout_seconds=10.0)
        guards = Guards(limits, 1, asyncio.Protocol, "plugins.test.http", logging.getLogger())
        transport = Taking()
        connection = guards.accept()
        connection.connection_made(transport)
        connection.handling(EMPTY_PAYLOAD)
        with guards.sending(transport, 1_000):
            await loop.skip(60.0)
            assert not transport.is_closed
        connection.handled()
        await loop.skip(60.0)
        assert transport.is_closed

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(send())
