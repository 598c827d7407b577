from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError, PenstockError
from penstock.plugins.web.bind import is_loopback, split_bind
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.web.service import (
    PART_BYTES,
    HttpServer,
    HttpStartError,
    RequestError,
    _parts,
    answering_errors,
    integer,
    show,
)

LOGGER = logging.getLogger("penstock.test")


class _BusyError(PenstockError):
    """A kind of error that the application gives a status."""


@asynccontextmanager
async def serving(
    error: Exception | None = None, bind: str = "127.0.0.1:0", **limits: Any
) -> AsyncIterator[str]:
    """Serve ``GET /`` on a free port, which raises `error`, and ``POST /body``; yield the URL."""

    async def read(request: web.Request) -> web.Response:
        return web.json_response({"bytes": len(await request.read())})

    async def handle(_: web.Request) -> web.Response:
        if error is not None:
            raise error
        return web.json_response({"well": True})

    application = web.Application(
        middlewares=[answering_errors("test API", LOGGER, [(_BusyError, 429)])]
    )
    application.add_routes([web.get("/", handle), web.post("/body", read)])
    server = HttpServer(application, "plugins.test.http", HttpLimits(**limits), LOGGER)
    url = await server.start(bind)
    try:
        yield url
    finally:
        await server.close()


async def asked(url: str, method: str = "GET") -> tuple[int, Any, str | None]:
    """Return status, JSON and the header Allow of an answer."""
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, await answer.json(), answer.headers.get("Allow")


async def test_an_application_is_served_on_the_port_that_was_bound() -> None:
    """Port 0 is any free one; the URL says which."""
    async with serving() as url:
        assert await asked(url) == (200, {"well": True}, None)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (RequestError("limit: read 0; allowed: 1 to 9"), 400, "limit: read 0; allowed: 1 to 9"),
        (RequestError("no such thing", 404), 404, "no such thing"),
        (_BusyError("later"), 429, "later"),
        (web.HTTPLengthRequired(), 411, "411: Length Required"),
        (ValueError("secret"), 500, "the server failed; its log says why"),
        (PenstockError("secret"), 500, "the server failed; its log says why"),
    ],
)
async def test_every_error_is_answered_with_json(
    error: Exception, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Status and reason; of the server's own faults only its log tells more."""
    async with serving(error) as url:
        found, body, _ = await asked(url)
    assert found == status
    assert list(body) == ["error"]
    assert body["error"].startswith(told)
    assert ("test API: GET / failed" in caplog.text) is (status == 500)


async def test_wrong_paths_and_methods_are_answered_with_json_too() -> None:
    """A wrong method is told which are right."""
    async with serving() as url:
        error = 'path: read "/else"; allowed: one that this API has'
        assert (await asked(f"{url}/else"))[:2] == (404, {"error": error})
        status, body, allow = await asked(url, "DELETE")
    assert (status, allow) == (405, "GET,HEAD")
    assert body == {"error": 'method: read DELETE of "/"; allowed: GET,HEAD'}


async def test_a_compressed_body_stays_as_it_came() -> None:
    """A thousand times as much may be in it, which would be decompressed even if it is refused."""
    sent = gzip.compress(bytes(100_000))
    async with (
        serving() as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/body", data=sent, headers={"Content-Encoding": "gzip"}) as answer,
    ):
        assert await answer.json() == {"bytes": len(sent)}


async def test_refused_requests_are_freed_without_the_collector() -> None:
    """What was sent with them would fill the memory till it runs, in a quiet moment."""
    gc.collect()
    gc.disable()
    try:
        async with serving() as url:
            await asked(url, "DELETE")
            await asked(f"{url}/else")
        there = [each for each in gc.get_objects() if type(each) is web.Request]
        assert not [each for each in there if each.method == "DELETE" or each.path == "/else"]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("bind", "host", "status"),
    [
        ("127.0.0.1:0", "evil.example", 403),
        ("127.0.0.1:0", "evil.example:8080", 403),
        ("127.0.0.1:0", "127.0.0.1.evil.example:8080", 403),
        ("127.0.0.1:0", "[evil", 403),
        ("[::1]:0", "evil.example", 403),
        ("localhost:0", "evil.example", 403),
        ("127.0.0.1:0", "localhost:8080", 200),
        ("127.0.0.1:0", "LOCALHOST", 200),
        ("127.0.0.1:0", "127.0.0.1:8080", 200),
        ("127.0.0.1:0", "[::1]:8080", 200),
        ("0.0.0.0:0", "queue.example:8080", 200),
    ],
)
async def test_what_listens_on_this_machine_alone_serves_no_page_of_another_site(
    bind: str, host: str, status: int
) -> None:
    """A browser would let it in, once the site's name has this machine's address."""
    async with serving(bind=bind) as url, aiohttp.ClientSession() as session:
        here = url.replace("0.0.0.0", "127.0.0.1")
        for path in ("/", "/else"):
            async with session.get(here + path, headers={"Host": host}) as answer:
                body = await answer.json()
                assert answer.status == (404 if path == "/else" and status == 200 else status)
                assert status == 200 or body["error"].startswith(f'Host: read "{host}"; allowed: ')


async def test_an_address_that_is_taken_is_told_by_its_key() -> None:
    """The policy file's key, what it says, and what is allowed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        server = HttpServer(web.Application(), "plugins.test.http", HttpLimits(), LOGGER)
        with pytest.raises(HttpStartError, match=f"plugins.test.http: read {bind}; allowed: an"):
            await server.start(bind)
        await server.close()


@pytest.mark.parametrize("value", [0, 11, 1.5, "5", True, None, [5]])
def test_wrong_integers_are_told(value: Any) -> None:
    """A number in a body is a whole number in its range, and no text."""
    with pytest.raises(RequestError, match=r"n_max: read .*; allowed: 1 to 10"):
        integer("n_max", value, 1, 10)


def test_integers_of_a_url_are_parsed() -> None:
    """A number in a URL is text."""
    assert integer("start", "7", 0, 10, int) == 7
    with pytest.raises(RequestError, match=r'start: read "7\.5"; allowed: 0 to 10'):
        integer("start", "7.5", 0, 10, int)


def test_long_values_are_cut_in_errors() -> None:
    """An error shows the beginning of a value, not a whole body."""
    assert len(show("x" * 5000)) == 80


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
        b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"\x16\x03\x01\x02\x00 a client that speaks TLS\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_answered_and_writes_nothing_to_the_log(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sends it could fill a disk with tracebacks."""
    caplog.set_level(logging.INFO)
    async with serving() as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        assert (await reader.readline()).startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
        writer.close()
    assert not caplog.records


@pytest.mark.parametrize(
    "value",
    [
        [1] * 1_000_000,
        ["x" * 1_000_000] * 1_000_000,
        {str(n): [n] for n in range(100_000)},
        [[[[[[1]]]]]] * 1_000,
        "x" * 1_000_000,
    ],
)
def test_a_large_value_is_shown_by_its_beginning(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written for it is small, and so takes no time."""
    written = 0

    def noting(part: Any, **options: Any) -> str:
        nonlocal written
        text = dumps(part, **options)
        written = len(text)
        return text

    dumps = json.dumps
    monkeypatch.setattr("penstock.plugins.web.service.json.dumps", noting)
    text = show(value)
    assert (len(text), text[-3:]) == (80, "...")
    assert written < 100_000


@pytest.mark.parametrize(
    "sizes",
    [
        [PART_BYTES + 1],
        [10, 20, 0, 30],
        [PART_BYTES // 2] * 5,
        [5, 3 * PART_BYTES, 7],
        [PART_BYTES, PART_BYTES],
    ],
)
def test_pieces_are_written_in_parts(sizes: Sequence[int]) -> None:
    """No part is larger than may be written in a round of the loop; small pieces go together."""
    pieces = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    parts = list(_parts(pieces))
    assert b"".join(parts) == b"".join(pieces)
    assert max(map(len, parts)) <= PART_BYTES
    assert all(len(one) + len(other) > PART_BYTES for one, other in pairwise(parts))


@pytest.mark.parametrize(
    ("bind", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:8080", "::1", 8080),
        ("queue.local:1", "queue.local", 1),
    ],
)
def test_bind_is_host_and_port(bind: str, host: str, port: int) -> None:
    """Addresses of both families and names are read."""
    assert split_bind(bind) == (host, port)


@pytest.mark.parametrize("bind", ["8080", "::1:80", "localhost:70000", "a b:1", "[x]:1", ":80", ""])
def test_anything_else_is_refused(bind: str) -> None:
    """What is allowed is said; the key and what was read are its reader's to say."""
    with pytest.raises(ValueError, match=r"^HOST:PORT, with a port of 0 to 65535$"):
        split_bind(bind)


@pytest.mark.parametrize(
    ("binds", "ours"),
    [
        (("127.9.9.9:1", "[::1]:80", "localhost:80"), True),
        (("0.0.0.0:80", "[::]:80", "10.0.0.1:80", "localhost.example:80"), False),
    ],
)
def test_loopback_is_reached_from_this_machine_alone(binds: tuple[str, ...], ours: object) -> None:
    """A name may have any address, except for the one that every machine has for itself."""
    assert {is_loopback(bind) for bind in binds} == {ours}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connections", 0),
        ("connections", "many"),
        ("header_timeout_seconds", 0),
        ("idle_timeout_seconds", float("inf")),
        ("body_bytes", 1),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(key: str, value: Any) -> None:
    """With the key that names it; keys of bodies are the queue's."""
    with pytest.raises(ConfigError, match=rf"http_limits\.{key}"):
        validate_config(HttpLimits, {key: value}, "policy.yaml", "http_limits")
