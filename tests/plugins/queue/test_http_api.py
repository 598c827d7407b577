from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import json
import logging
import re
import socket
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from penstock.plugins.queue.client import BATCH_CONTENT_TYPE, read_batch, read_deliveries
from penstock.plugins.queue.engine import StorageError, StorageFullError
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.http_api import QueueApi
from penstock.plugins.queue.sink import QueuePlugin
from penstock.plugins.web.bodies import Bodies
from tests.helpers.clock import Clock
from tests.plugins.queue.running import (
    LONG_SECONDS,
    message,
    running_engine,
    running_plugin,
    until,
)

QUEUES: dict[str, Any] = {
    "work": {"physical_queues": 2, "sleep_time": 0.005, "n_max": 10, "max_wait_seconds": 60},
    "log": {"physical_queues": 1, "readers": "offsets"},
}


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def ask(
    plugin: QueuePlugin,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request over a socket of its own."""

    def send() -> Answer:
        connection = http.client.HTTPConnection(urlsplit(plugin.http_url or "").netloc, timeout=30)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data is not None else {}
        connection.request(method, path, data, given | (headers or {}))
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        connection.close()
        return answer

    return await asyncio.to_thread(send)


async def test_every_request_is_documented() -> None:
    """docs/queue.md names each method and path that is served, and no other."""
    text = (Path(__file__).parents[3] / "docs" / "queue.md").read_text()
    documented = set(re.findall(r"`(GET|POST) (/[^`]*)`", text))
    async with running_engine(MemoryStore()) as engine:
        api = QueueApi({}, {}, {}, engine, Clock(), logging.getLogger("test"), Bodies(1, 1.0))
        routes = api.application(1024).router.routes()
    assert documented == {
        (route.method, route.resource.canonical)
        for route in routes
        if route.method != "HEAD" and route.resource is not None
    }


async def test_json_carries_whole_messages() -> None:
    """A message goes in and out as JSON, its payload in base64."""
    async with running_plugin(queues=QUEUES) as plugin:
        row = {"topic": "a/ü", "payload": "AP8=", "properties": {"content_type": "x"}}
        answer = await ask(plugin, "POST", "/queues/work/messages", row)
        assert (answer.status, answer.json) == (200, {"enqueued": 1})
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {})
        (received,) = answer.json["messages"]
        assert received["topic"] == "a/ü"
        assert base64.b64decode(received["payload"]) == b"\x00\xff"
        assert json.loads(received["properties"]) == {"content_type": "x"}
        assert (received["receive_count"], received["offset"]) == (1, 0)
        body = {"receipt_handles": [received["receipt_handle"], "dead"]}
        answer = await ask(plugin, "POST", "/queues/work/delete", body)
        assert answer.json == {"deleted": 1, "unknown": ["dead"]}


async def test_batch_format_where_it_is_accepted() -> None:
    """A client that accepts the batch format gets it, for dequeue and for ranges."""
    accept = {"Accept": BATCH_CONTENT_TYPE}
    async with running_plugin(queues=QUEUES) as plugin:
        for queue in QUEUES:
            await ask(plugin, "POST", f"/queues/{queue}/messages", {"topic": "a", "text": "x"})
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {}, accept)
        assert answer.headers["Content-Type"] == BATCH_CONTENT_TYPE
        assert [one.payload for one in read_deliveries(answer.body)] == [b"x"]
        path = "/queues/log/physical/0/range?start=0&end=1"
        answer = await ask(plugin, "GET", path, headers=accept)
        assert answer.headers["Content-Type"] == BATCH_CONTENT_TYPE
        assert read_batch(answer.body).payload == [b"x"]
        as_json = (await ask(plugin, "GET", path)).json["messages"]
        assert [(one["offset"], one["payload"]) for one in as_json] == [(0, "eA==")]


async def test_empty_answers_are_empty() -> None:
    """Nothing found is an answer without messages, not an error."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert (await ask(plugin, "POST", "/queues/work/dequeue", {})).json == {"messages": []}
        accept = {"Accept": BATCH_CONTENT_TYPE}
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {}, accept)
        assert (answer.status, answer.body) == (200, b"")


async def test_long_poll_is_answered_when_a_message_comes() -> None:
    """A dequeue that waits is answered by what comes meanwhile."""
    async with running_plugin(queues=QUEUES) as plugin:
        body = {"n_max": 5, "wait_seconds": LONG_SECONDS}
        polling = asyncio.create_task(ask(plugin, "POST", "/queues/work/dequeue", body))
        await until(lambda: plugin.queues["work"].figures()["retries"] > 0)
        plugin.sinks[0].accept(message(b"late"), None)
        answer = await polling
        assert [one["payload"] for one in answer.json["messages"]] == ["bGF0ZQ=="]


async def test_client_that_leaves_its_long_poll_takes_nothing_along() -> None:
    """A request whose client has gone ends, and the next client gets the message."""
    async with running_plugin(queues=QUEUES) as plugin:
        figures = plugin.queues["work"].figures
        address = urlsplit(plugin.http_url or "")
        with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
            body = json.dumps({"wait_seconds": LONG_SECONDS}).encode()
            connection.sendall(
                b"POST /queues/work/dequeue HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await until(lambda: figures()["waiting"] == 1)
        await until(lambda: figures()["waiting"] == 0)
        plugin.sinks[0].accept(message(b"x"), None)
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {"wait_seconds": LONG_SECONDS})
        assert [one["receive_count"] for one in answer.json["messages"]] == [1]


async def test_figures_show_queues_and_books() -> None:
    """The list of queues has what they hold, and where it came from."""
    async with running_plugin(queues=QUEUES) as plugin:
        plugin.sinks[0].accept(message(), None)
        rows = [{"topic": "a", "text": ""}] * 2
        await ask(plugin, "POST", "/queues/work/messages", {"messages": rows})
        listed = (await ask(plugin, "GET", "/queues")).json["queues"]
        assert [queue["name"] for queue in listed] == ["work", "log"]
        shown = (await ask(plugin, "GET", "/queues/work")).json
        assert shown == listed[0]
        assert shown["messages"] == 3
        books = {"queued": 0, "dropped": {}}
        assert shown["enqueued"] == {
            "published": books | {"matched": 1, "stored": 1},
            "http": books | {"matched": 2, "stored": 2},
        }
        assert [one["next"] for one in shown["physical_queues"].values()] == [2, 1]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", "/queues/no", None, 404, 'queue: read "no"; allowed: log, work'),
        ("GET", "/nothing", None, 404, "Not Found"),
        ("DELETE", "/queues", None, 405, "Method Not Allowed"),
        ("POST", "/queues/work/dequeue", b"{", 400, "body: read no JSON"),
        ("POST", "/queues/work/dequeue", b"\xff", 400, "body: read no JSON"),
        ("POST", "/queues/work/dequeue", [], 400, "body: read []; allowed: a JSON object"),
        ("POST", "/queues/work/dequeue", {"n": 1}, 400, 'unknown key "n"; allowed: n_max'),
        ("POST", "/queues/work/dequeue", {"n_max": 11}, 400, "n_max: read 11; allowed: 1 to 10"),
        ("POST", "/queues/work/dequeue", {"wait_seconds": 61}, 400, "allowed: 0 to 60 seconds"),
        ("POST", "/queues/log/dequeue", {}, 409, "configured for `readers: offsets`"),
        ("POST", "/queues/work/delete", {}, 400, "receipt_handles: read nothing"),
        ("POST", "/queues/work/messages", {"topic": "+"}, 400, "topic: "),
        ("GET", "/queues/work/offsets", None, 409, "configured for `readers: dequeue`"),
        ("POST", "/queues/work/commit", {"offsets": {}}, 409, "configured for `readers: dequeue`"),
        ("POST", "/queues/log/commit", {"offsets": {"0": 9}}, 400, "read 9; allowed: 0 to 0"),
        ("POST", "/queues/log/commit", {"offsets": {"5": 0}}, 400, "read 5; allowed: 0"),
        ("GET", "/queues/log/physical/0/range", None, 400, "start: read nothing"),
        ("GET", "/queues/log/physical/0/range?start=0&end=9", None, 400, "read 9; allowed: 0 to 0"),
        (
            "GET",
            "/queues/log/physical/x/range?start=0&end=0",
            None,
            400,
            'physical queue: read "x"',
        ),
        ("GET", "/queues/log/physical/7/range?start=0&end=0", None, 400, "read 7; allowed: 0"),
        (
            "GET",
            "/queues/log/physical/0/range?start=0&end=0&max_messages=0",
            None,
            400,
            'max_messages: read "0"; allowed: 1 to',
        ),
    ],
)
async def test_mistakes_are_told(method: str, path: str, body: Any, status: int, told: str) -> None:
    """Every wrong request has its status and says what was read and what is allowed."""
    async with running_plugin(queues=QUEUES) as plugin:
        answer = await ask(plugin, method, path, body)
        assert (answer.status, list(answer.json)) == (status, ["error"])
        assert told in answer.json["error"]
        assert answer.headers["Content-Type"].startswith("application/json")


async def test_allowed_methods_are_told() -> None:
    """A wrong method is answered with the right ones."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert "GET" in (await ask(plugin, "DELETE", "/queues")).headers["Allow"]


async def test_body_of_another_type_is_refused() -> None:
    """A web page cannot have a browser change queues of this machine without being asked."""
    async with running_plugin(queues=QUEUES) as plugin:
        plain = {"Content-Type": "text/plain"}
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {}, plain)
        assert answer.status == 415
        assert answer.json["error"] == 'Content-Type: read "text/plain"; allowed: application/json'


async def test_no_large_answer_is_made_while_clients_take_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither messages of a range nor received ones; figures are small."""
    monkeypatch.setattr("penstock.plugins.web.guard.MOST_UNSENT_BYTES", 0)
    async with running_plugin(queues=QUEUES) as plugin:
        asked = [
            await ask(plugin, "GET", "/queues/log/physical/0/range?start=0&end=0"),
            await ask(plugin, "POST", "/queues/work/dequeue", {}),
        ]
        assert [answer.status for answer in asked] == [503, 503]
        assert (await ask(plugin, "GET", "/queues")).status == 200


async def test_a_compressed_body_is_refused() -> None:
    """415, by its header: a little of it may hold very much."""
    async with running_plugin(queues=QUEUES) as plugin:
        path = "/queues/work/messages"
        body = gzip.compress(b'{"topic": "a", "text": "b"}')
        answer = await ask(plugin, "POST", path, body, {"Content-Encoding": "gzip"})
        assert answer.status == 415
        assert answer.json["error"] == 'Content-Encoding: read "gzip"; allowed: none'
        plain = {"Content-Encoding": "identity"}
        assert (await ask(plugin, "POST", path, {"topic": "a", "text": "b"}, plain)).status == 200


async def test_request_bodies_are_bounded() -> None:
    """A body longer than `max_request_bytes` is refused."""
    async with running_plugin(queues=QUEUES, max_request_bytes=2000) as plugin:
        path = "/queues/work/messages"
        small = await ask(plugin, "POST", path, {"topic": "a", "text": "x" * 1900})
        assert small.status == 200
        answer = await ask(plugin, "POST", path, {"topic": "a", "text": "x" * 2000})
        assert answer.status == 413
        assert "2000" in answer.json["error"]


async def test_range_below_the_earliest_offset_is_gone() -> None:
    """What was committed is gone, and the answer says from where to read."""
    async with running_plugin(queues=QUEUES) as plugin:
        rows = [{"topic": "a", "text": "x"}] * 3
        await ask(plugin, "POST", "/queues/log/messages", {"messages": rows})
        committed = await ask(plugin, "POST", "/queues/log/commit", {"offsets": {"0": 2}})
        assert (committed.status, committed.json) == (200, {"committed": True})
        answer = await ask(plugin, "GET", "/queues/log/physical/0/range?start=1&end=3")
        assert answer.status == 410
        assert "start: read 1; allowed: 2 or more" in answer.json["error"]


async def test_too_many_requests_are_told_to_come_later() -> None:
    """What a queue cannot begin now has status 429."""
    busy = {"work": QUEUES["work"] | {"max_leased_messages": 1}}
    async with running_plugin(queues=busy) as plugin:
        rows = [{"topic": "a", "text": "x"}] * 2
        await ask(plugin, "POST", "/queues/work/messages", {"messages": rows})
        await ask(plugin, "POST", "/queues/work/dequeue", {})
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {})
        assert (answer.status, "received and not deleted" in answer.json["error"]) == (429, True)


@pytest.mark.parametrize(
    ("error", "status"), [(StorageFullError("disk full"), 507), (StorageError("odd"), 503)]
)
async def test_storage_that_refuses_is_told(
    error: StorageError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enqueue or delete that is not safe is never answered with 200, and health says why."""
    async with running_plugin(queues=QUEUES) as plugin:
        path, row = "/queues/work/messages", {"topic": "a", "text": "x"}
        await ask(plugin, "POST", path, row)
        (received,) = (await ask(plugin, "POST", "/queues/work/dequeue", {})).json["messages"]

        def refuse(*_: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(plugin.engine._store, "write", refuse)  # type: ignore[attr-defined]
            answer = await ask(plugin, "POST", path, row)
            assert (answer.status, f"stored: {error}" in answer.json["error"]) == (status, True)
            body = {"receipt_handles": [received["receipt_handle"]]}
            answer = await ask(plugin, "POST", "/queues/work/delete", body)
            assert (answer.status, answer.json) == (status, {"error": str(error)})
            answer = await ask(plugin, "GET", "/health")
            assert (answer.status, answer.json) == (503, {"error": str(error)})
        assert (await ask(plugin, "POST", path, row)).status == 200
        answer = await ask(plugin, "GET", "/health")
        assert (answer.status, answer.json) == (200, {"status": "ok"})


async def test_failure_of_the_server_is_logged_and_told_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody expected is a 500, with its trace in the log alone."""
    async with running_plugin(queues=QUEUES) as plugin:

        def fail() -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(plugin.queues["log"], "offsets", fail)
        with caplog.at_level(logging.ERROR):
            answer = await ask(plugin, "GET", "/queues/log/offsets")
    assert answer.status == 500
    assert "secret" not in answer.json["error"]
    assert "secret" in caplog.text


async def test_health_says_what_is_set_aside() -> None:
    """The queue goes on, so the status of the answer is 200."""
    async with running_plugin(queues=QUEUES) as plugin:
        row = {"topic": "a", "text": "x"}
        await ask(plugin, "POST", "/queues/work/messages", row)
        segments = plugin.engine._store._segments  # type: ignore[attr-defined]
        (key,) = [key for key, held in segments.items() if held]
        segment, gone = segments[key][0]
        segments[key][0] = (segment._replace(frame=b"broken"), gone)
        answer = await ask(plugin, "POST", "/queues/work/dequeue", {})
        assert answer.json == {"messages": []}
        answer = await ask(plugin, "GET", "/health")
        found = {"status": "damaged", "set_aside": {"work": 1}}
        assert (answer.status, answer.json) == (200, found)
        assert (await ask(plugin, "GET", "/queues/work")).json["set_aside"] == 1
