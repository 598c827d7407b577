from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.queue.access import QueueAccess
from penstock.plugins.web.tls import ServerTls
from tests.helpers.certificates import Authority
from tests.plugins.queue.http.serving import Answer, Serving, serving


def access_of(folder: Path, **roles: Mapping[str, Sequence[str]]) -> QueueAccess:
    """Return the access of tokens by name, each of which is its name."""
    tokens = [
        {
            "name": name,
            "token_sha256": hashlib.sha256(name.encode()).hexdigest(),
            "roles": {pattern: list(given) for pattern, given in by_queue.items()},
        }
        for name, by_queue in roles.items()
    ]
    file = folder / "tokens.yaml"
    file.write_text(json.dumps({"tokens": tokens}))
    return QueueAccess.load(str(file))


async def ask_as(server: Serving, token: str, method: str, path: str, body: Any = None) -> Answer:
    """Send a request with another token."""
    return await server.ask(method, path, body, {"Authorization": f"Bearer {token}"})


async def test_each_role_may_do_its_own(tmp_path: Path) -> None:
    """Writers write, readers receive, administrators change; in their queues alone."""
    access = access_of(
        tmp_path, writer={"work": ["write"]}, reader={"work": ["read"]}, admin={"w*": ["admin"]}
    )
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/queues/work/messages", {"topic": "a", "text": "x"}),
        ("POST", "/queues/work/groups/default/receive", {}),
        ("GET", "/queues/work", None),
        ("PUT", "/queues/work", {}),
        ("POST", "/queues/log/messages", {"topic": "a", "text": "x"}),
        ("POST", "/compact", {}),
    ]
    async with serving(access) as server:
        statuses = {
            token: [
                (await ask_as(server, token, method, path, body)).status
                for method, path, body in requests
            ]
            for token in ("writer", "reader", "admin")
        }
    assert statuses == {
        "writer": [200, 403, 403, 403, 403, 403],
        "reader": [403, 200, 200, 403, 403, 403],
        "admin": [403, 403, 200, 200, 403, 403],
    }


async def test_an_unknown_token_is_asked_for_a_known_one(tmp_path: Path) -> None:
    """401, with the scheme; no body is read for it."""
    async with serving(access_of(tmp_path, reader={"*": ["read"]})) as server:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic cmVhZGVy"}):
            answer = await server.ask("GET", "/queues", headers=headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "Bearer and a token of this server" in answer.json["error"]


async def test_a_token_sees_no_other_queues(tmp_path: Path) -> None:
    """Neither in lists nor in errors; a queue that it may not see cannot be told from none."""
    access = access_of(tmp_path, reader={"w*": ["read"]})
    async with serving(access) as server:
        listed = (await ask_as(server, "reader", "GET", "/queues")).json["queues"]
        assert [queue["name"] for queue in listed] == ["work"]
        missing = await ask_as(server, "reader", "GET", "/queues/weather")
        assert (missing.status, missing.json["error"]) == (
            404,
            'queue: read "weather"; allowed: work',
        )
        for hidden in ("log", "none"):
            answer = await ask_as(server, "reader", "GET", f"/queues/{hidden}")
            assert answer.status == 403


async def test_the_publisher_is_the_token_s_name(tmp_path: Path) -> None:
    """Another name is refused, and nothing of the request is stored."""
    row = {"topic": "a", "text": "x"}
    async with serving(access_of(tmp_path, writer={"*": ["write", "read"]})) as server:
        server.token = "writer"
        answer = await server.ask("POST", "/queues/work/messages", row | {"publisher": "meter"})
        assert (answer.status, 'publisher: read "meter"' in answer.json["error"]) == (403, True)
        await server.store_rows("work", "x")
        assert [one["publisher"] for one in await server.receive()] == ["writer"]


async def test_dead_letters_go_only_where_the_token_may_write(tmp_path: Path) -> None:
    """An administrator of one queue fills no other one."""
    access = access_of(tmp_path, admin={"work": ["admin"]}, both={"*": ["admin", "write"]})
    async with serving(access) as server:
        path, body = "/queues/work/redrive", {"target": "log"}
        assert (await ask_as(server, "admin", "POST", path, body)).status == 403
        assert (await ask_as(server, "both", "POST", path, body)).status == 200


async def test_tls_serves_the_same(tmp_path: Path) -> None:
    """Small answers and large ones; a certificate that is read again is used at once."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    tls = ServerTls(certificate, key, "plugins.queue.http_tls")
    rows = [{"topic": "a", "text": "x" * 100_000}] * 10
    async with serving(tls=tls) as server:
        assert server.url.startswith("https://127.0.0.1:")
        server.tls = authority.client_context()
        answer = await server.ask("POST", "/queues/work/messages", {"messages": rows})
        assert (answer.status, answer.json["stored"]) == (200, 10)
        assert len(await server.receive()) == 10
        other = Authority(tmp_path, "other")
        for name, file in zip((certificate, key), other.issue("127.0.0.1"), strict=True):
            shutil.copy(file, name)
        tls.read()()
        server.tls = other.client_context()
        assert (await server.ask("GET", "/health")).status == 200


async def test_failure_of_the_server_is_logged_and_told_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody expected is a 500, with its trace in the log alone."""

    def fail(_: str) -> None:
        raise RuntimeError("secret")

    async with serving() as server:
        monkeypatch.setattr(server.service, "figures", fail)
        with caplog.at_level(logging.ERROR):
            answer = await server.ask("GET", "/queues/log")
    assert answer.status == 500
    assert "secret" not in answer.json["error"]
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", "/nothing", None, 404, 'path: read "/nothing"; allowed'),
        ("DELETE", "/queues", None, 405, 'method: read DELETE of "/queues"; allowed: GET'),
        ("POST", "/queues/work/purge", b"{", 400, "body: read no JSON"),
        ("POST", "/queues/work/purge", b"\xff", 400, "body: read no JSON (no UTF-8 at byte 0)"),
        ("POST", "/queues/work/purge", [], 400, "body: read []; allowed: a JSON object"),
        ("POST", "/queues/work/purge", {"n": 1}, 400, 'unknown key "n"; allowed: none'),
        ("POST", "/queues/work/purge", b"NaN", 400, "body: read NaN; allowed: a JSON object"),
        ("PUT", "/queues/q", b'{"retention_seconds": NaN}', 400, "retention_seconds: read nan;"),
        ("PUT", "/queues/q", b'{"retention_seconds": 1e999}', 400, "retention_seconds: read inf"),
        ("PUT", "/queues/q", b'{"max_messages": Infinity}', 400, "max_messages: read inf;"),
        ("PUT", "/queues/q", b'{"tags": {"a": NaN}}', 400, "allowed: an object of at most 50"),
        (
            "POST",
            "/queues/work/groups/default/receive",
            b'{"wait_seconds": NaN}',
            400,
            "wait_seconds: read NaN; allowed: 0 to ",
        ),
        (
            "POST",
            "/queues/log/groups/spark/seek",
            b'{"to": NaN}',
            400,
            "to: read NaN; allowed: earliest",
        ),
        (
            "POST",
            "/queues/work/messages",
            b'{"topic": "a", "text": "x", "delay_seconds": -Infinity}',
            400,
            "delay_seconds: read -Infinity; allowed: 0 to ",
        ),
    ],
)
async def test_mistakes_are_told(method: str, path: str, body: Any, status: int, told: str) -> None:
    """Every wrong request has its status and says what was read and what is allowed."""
    async with serving() as server:
        answer = await server.ask(method, path, body)
        assert (answer.status, list(answer.json)) == (status, ["error"])
        assert told in answer.json["error"]
