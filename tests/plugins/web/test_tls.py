from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from penstock.plugins.web.connection_limits import MAX_REFUSED
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.web.service import SEND_PIECES, HttpServer
from penstock.plugins.web.tls import ServerTls, TlsError
from tests.helpers.certificates import Authority, break_file

LOGGER = logging.getLogger("penstock.test")

LARGE = b"x" * 5_000_000


@asynccontextmanager
async def serving(authority: Authority, **limits: Any) -> AsyncIterator[str]:
    """Serve ``GET /`` and ``GET /large`` over TLS; yield the URL."""

    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"well": True})

    async def large(request: web.Request) -> web.StreamResponse:
        return await request.app[SEND_PIECES](request, [LARGE, memoryview(LARGE)], "text/plain")

    application = web.Application()
    application.add_routes([web.get("/", handle), web.get("/large", large)])
    certificate, key = authority.issue("127.0.0.1")
    tls = ServerTls(certificate, key, "plugins.test.http_tls")
    server = HttpServer(application, "plugins.test.http", HttpLimits(**limits), LOGGER, tls=tls)
    url = await server.start("127.0.0.1:0")
    try:
        yield url
    finally:
        await server.close()


def address(url: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


async def closed(connection: socket.socket) -> bool:
    """Wait until the server has closed a connection."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.sock_recv(connection, 1) == b""
    except ConnectionError:
        return True


async def test_answers_of_any_size_come_whole(tmp_path: Path) -> None:
    """Over one connection that is kept."""
    authority = Authority(tmp_path)
    context = authority.client_context()
    async with (
        serving(authority) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
    ):
        for _ in range(2):
            async with session.get(f"{url}/large") as answer:
                assert await answer.read() == LARGE * 2
            async with session.get(url) as answer:
                assert await answer.json() == {"well": True}


async def test_a_client_without_trust_is_refused_and_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes on; of many such clients the log has the first, then each doubling."""
    authority = Authority(tmp_path)
    strange = ssl.create_default_context()

    def connect(at: tuple[str, int]) -> None:
        with (
            socket.create_connection(at) as connection,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            strange.wrap_socket(connection, server_hostname=at[0])

    async with serving(authority) as url:
        for _ in range(3):
            await asyncio.to_thread(connect, address(url))
        context = authority.client_context()
        async with aiohttp.ClientSession() as session:
            async with session.get(url, ssl=context) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(url)
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        f"plugins.test.http: 127.0.0.1 refused, no TLS: tlsv1 alert unknown ca; {n} such "
        "connections so far"
        for n in (1, 2)
    ]


@pytest.mark.parametrize("n_bytes", [0, 3_000_000])
async def test_a_client_without_tls_is_told_in_its_own_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n_bytes: int
) -> None:
    """However much it sends; and the operator is told, too."""
    authority = Authority(tmp_path)
    async with serving(authority) as url, aiohttp.ClientSession() as session:
        plain = url.replace("https", "http")
        for _ in range(3):
            async with session.post(plain, data=bytes(n_bytes)) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"].startswith("read HTTP without TLS; allowed:")
        with socket.create_connection(address(url)) as slow:
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(slow, b"G")
            found = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(slow, 12), 30)
            assert found == b"HTTP/1.1 400"
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        "plugins.test.http: 127.0.0.1 refused, no TLS: HTTP without TLS; allowed: https://; "
        f"{n} such connections so far"
        for n in (1, 2, 4)
    ]


async def test_handshakes_that_wait_are_bounded(tmp_path: Path) -> None:
    """Those above the limit are cut off; when they have ended, others have room."""
    authority = Authority(tmp_path)
    async with serving(authority, connections=1) as url:
        silent = [socket.create_connection(address(url)) for _ in range(1 + MAX_REFUSED)]
        with socket.create_connection(address(url)) as one_more:
            one_more.setblocking(False)
            assert await asyncio.wait_for(closed(one_more), 30)
        for connection in silent:
            connection.close()
        context = authority.client_context()
        async with asyncio.timeout(30):
            while True:
                try:
                    async with (
                        aiohttp.ClientSession() as session,
                        session.get(url, ssl=context) as answer,
                    ):
                        assert answer.status == 200
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.01)


async def test_a_handshake_has_a_time(tmp_path: Path) -> None:
    """The handshake has the time of a request's header."""
    authority = Authority(tmp_path)
    async with serving(authority, header_timeout_seconds=0.01) as url:
        with socket.create_connection(address(url)) as silent:
            silent.setblocking(False)
            assert await asyncio.wait_for(closed(silent), 30)


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    """With the policy's keys; what was read before stays."""
    certificate, key = Authority(tmp_path).issue()
    with pytest.raises(TlsError, match=r"^plugins\.x\.http_tls: certificate \S+missing: No such"):
        ServerTls(str(tmp_path / "missing"), key, "plugins.x.http_tls")
    tls = ServerTls(certificate, key, "plugins.x.http_tls")
    before = tls.context
    break_file(key)
    with pytest.raises(TlsError, match=r"http_tls: key \S+: no private key"):
        tls.read()()
    assert tls.context is before
    assert isinstance(before, ssl.SSLContext)
