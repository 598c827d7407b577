from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web

from penstock.plugins.web.bodies import BEGINNING_BYTES, Bodies
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.web.service import HttpServer, answering_errors
from tests.helpers.process import SECONDS
from tests.helpers.scripted import until

LOGGER = logging.getLogger("test")


class Client:
    """One request, of which the body is sent as the test says."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n_bytes: int, begin: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        header = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % n_bytes
        writer.write(header + b"x" * begin)

    def send(self, n_bytes: int) -> None:
        """Send so much of the body."""
        self._writer.write(b"x" * n_bytes)

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the answer, and close."""
        async with asyncio.timeout(SECONDS):
            header = await self._reader.readuntil(b"\r\n\r\n")
            length = int(header.lower().partition(b"content-length: ")[2].split()[0])
            body = await self._reader.readexactly(length)
        self._writer.close()
        return int(header.split()[1]), body


class Running:
    """A server that tells the length of a body.

    Attributes:
        bodies: of its requests.
        lengths: of the bodies that were whole, in their order.
    """

    def __init__(self, most_bytes: int, timeout_seconds: float) -> None:
        self.bodies = Bodies(most_bytes, timeout_seconds)
        self.lengths: list[int] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Tell it."""
        async with self.bodies.read(request) as body:
            self.lengths.append(len(body))
            return web.Response(text=str(len(body)))

    async def post(self, n_bytes: int, begin: int = 0) -> Client:
        """Begin a request with a body of so many bytes, of which `begin` come with the header."""
        return Client(*await asyncio.open_connection("127.0.0.1", self.port), n_bytes, begin)


@asynccontextmanager
async def serving(
    most_bytes: int = 10_000, timeout_seconds: float = 3600.0
) -> AsyncIterator[Running]:
    """Serve ``/``, where a body may have 100,000 bytes."""
    running = Running(most_bytes, timeout_seconds)
    application = web.Application(
        client_max_size=100_000, middlewares=[answering_errors("test API", LOGGER)]
    )
    application.add_routes([web.post("/", running.handle)])
    server = HttpServer(application, "plugins.test.http", HttpLimits(), LOGGER)
    url = await server.start("127.0.0.1:0")
    running.port = urlsplit(url).port or 0
    try:
        yield running
    finally:
        await server.close()


async def test_a_body_is_received_and_gives_its_room_back() -> None:
    """One alone may have more than all together."""
    async with serving(most_bytes=10_000) as running:
        client = await running.post(90_000)
        client.send(90_000)
        assert await client.answer() == (200, b"90000")
        assert running.bodies.received_bytes == 0


async def test_a_body_that_comes_with_its_header_is_received_at_once() -> None:
    """It counts while it is handled, and not afterwards; an empty one too."""
    async with serving(most_bytes=10_000) as running:
        for n_bytes in (0, 50):
            client = await running.post(n_bytes, begin=n_bytes)
            assert await client.answer() == (200, str(n_bytes).encode())
            assert running.bodies.received_bytes == 0


async def test_a_body_larger_than_the_application_allows_is_not_received() -> None:
    """It is told by its length, before anything of it has come."""
    async with serving() as running:
        client = await running.post(100_001)
        status, told = await client.answer()
    assert status == 413
    assert b"body: read 100001 bytes or more; allowed: 100000" in told


async def test_a_body_that_is_not_whole_in_time_is_refused() -> None:
    """408, with what has come of it."""
    async with serving(timeout_seconds=0.1) as running:
        client = await running.post(50, begin=20)
        status, told = await client.answer()
        assert status == 408
        assert b"body: read 20 bytes in 0.1 s; allowed: all" in told
        assert running.bodies.received_bytes == 0


async def test_bodies_above_the_total_wait_for_older_ones() -> None:
    """Their clients are not read from meanwhile; nobody is refused."""
    async with serving(most_bytes=10_000) as running:
        old = await running.post(16_000)
        old.send(8_000)
        await until(lambda: running.bodies.received_bytes == 8_000)
        young = await running.post(6_000)
        young.send(6_000)
        await until(lambda: len(running.bodies._readers) == 2)
        old.send(8_000)
        assert await old.answer() == (200, b"16000")
        assert await young.answer() == (200, b"6000")
        assert running.lengths == [16_000, 6_000]


async def test_a_body_for_which_no_room_comes_in_time_is_told() -> None:
    """503: others were at fault, and it may come again."""
    async with serving(most_bytes=10_000, timeout_seconds=0.1) as running:
        running.bodies.received_bytes = 10_000  # of another one, which stays
        running.bodies._readers[object()] = None
        client = await running.post(6_000, begin=6_000)
        status, told = await client.answer()
        assert status == 503
        assert b"too many bodies are being received; try again later" in told
        assert running.bodies.received_bytes == 10_000


async def test_a_small_body_does_not_wait_for_large_ones() -> None:
    """Some clients that send slowly keep no back end from asking."""
    async with serving(most_bytes=10_000) as running:
        running.bodies.received_bytes = 10_000  # of another one, which stays
        running.bodies._readers[object()] = None
        client = await running.post(BEGINNING_BYTES, begin=BEGINNING_BYTES)
        assert await client.answer() == (200, b"%d" % BEGINNING_BYTES)
        assert running.bodies.received_bytes == 10_000


async def test_clients_that_vanish_leave_no_bytes_behind() -> None:
    """Their room is free for others at once."""
    async with serving(most_bytes=10_000) as running:
        clients = [await running.post(50_000) for _ in range(3)]
        for client in clients:
            client.send(9_000)
        await until(lambda: running.bodies.received_bytes >= 9_000)
        for client in clients:
            client._writer.transport.abort()
        await until(lambda: not running.bodies._readers)
        assert running.bodies.received_bytes == 0
