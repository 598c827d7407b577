from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.queue.publishing.stage_file import StageError, StageFile, StageSpaceError
from tests.broker.network.test_in_process import local_clients
from tests.broker.serving import serving as serving_broker
from tests.plugins.queue.http.serving import Serving, serving
from tests.plugins.queue.http.test_openapi import hold, operations

STAGE = "/stages/w/a/0"
GIVE_UP = "/stages/w"
BATCH = "/batches/query/0"
ROW = {"topic": "a", "text": "x"}
ROWS = {"messages": [ROW]}
COMMIT = {"writer": "w", "stages": [{"name": "a", "rows": 1}], "wait_seconds": 60}

DOCUMENTED = {
    STAGE: "/stages/{writer}/{stage}/{place}",
    GIVE_UP: "/stages/{writer}",
    BATCH: "/batches/{query}/{batch}",
}


@contextlib.asynccontextmanager
async def publishing(folder: Path, **keys: Any) -> AsyncIterator[Serving]:
    """Serve the API of a broker."""
    async with serving_broker() as broker:
        section = {"path": str(folder / "stage.db")} | keys
        async with serving(clients=local_clients(broker), publishing=section) as server:
            yield server


async def ask(server: Serving, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request; return status and answer, which is as documented."""
    method = "DELETE" if path == GIVE_UP else "PUT"
    answer = await server.ask(method, path, body)
    by_name = {(method, path): operation for method, path, operation in operations()}
    hold(answer, by_name[method, DOCUMENTED.get(path) or DOCUMENTED[STAGE]])
    return answer.status, answer.json


async def test_a_batch_is_staged_published_and_known(tmp_path: Path) -> None:
    """A repeat is told so; what was given up is gone."""
    async with publishing(tmp_path) as server:
        assert await ask(server, STAGE, ROWS) == (200, {"rows": 1})
        assert await ask(server, "/stages/w/a/1", {"messages": [ROW] * 2}) == (200, {"rows": 3})
        assert await ask(server, GIVE_UP) == (200, {"stages": 1})
        assert await ask(server, GIVE_UP) == (200, {"stages": 0})
        await ask(server, STAGE, ROWS)
        status, first = await ask(server, BATCH, COMMIT)
        assert (status, first) == (
            200,
            {
                "finished": True,
                "repeated": False,
                "rows": 1,
                "done": 1,
                "unpublished": {},
                "obstacle": "",
            },
        )
        assert await ask(server, BATCH, COMMIT) == (200, first | {"repeated": True})


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"topic": "a/+", "text": ""}, "messages[1].topic: malformed packet"),
        ({"topic": None, "text": ""}, "messages[1].topic: read nothing; allowed: text"),
        ({"text": ""}, "messages[1].topic: read nothing; allowed: text"),
        (ROW | {"qos": 3}, "messages[1].qos: read 3; allowed: 0 to 2"),
        (ROW | {"retain": 1}, "messages[1].retain: read 1; allowed: true or false"),
        ({"topic": "a"}, "messages[1].payload: read neither; allowed: payload (base64) or text"),
        (ROW | {"key": "k"}, "messages[1]: read unknown key"),
        (ROW | {"properties": {"x": 1}}, "messages[1].properties: read unknown key"),
        ({"topic": "$SYS/x", "text": ""}, "messages[1]: topics that begin with $SYS"),
    ],
)
async def test_a_row_that_cannot_be_published_is_named(
    tmp_path: Path, row: dict[str, Any], told: str
) -> None:
    """By its place in the request; nothing of the request is staged."""
    async with publishing(tmp_path) as server:
        status, answer = await ask(server, STAGE, {"messages": [ROW, row]})
        assert (status, answer["index"]) == (400, 1)
        assert answer["error"].startswith(told)
        assert server.batches is not None
        assert server.batches.held()["rows"] == 0
        assert server.batches.counts.refused == {"row": 1}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/stages/w/a/-1", ROWS, 'place: read "-1"'),
        ("/stages/w%20/a/0", ROWS, 'writer: read "w "; allowed: 1 to 128 letters'),
        (STAGE, {}, "messages: read nothing"),
        (BATCH, COMMIT | {"stages": []}, "stages: read 0 stages"),
        (BATCH, COMMIT | {"stages": [{"name": "a"}]}, "stages[0].rows: read nothing"),
        (BATCH, COMMIT | {"stages": [{"name": "a", "rows": 1}] * 2}, 'name: read "a" again'),
        (BATCH, COMMIT | {"wait_seconds": 61}, "wait_seconds: read 61; allowed: 0 to 60"),
        (BATCH, COMMIT | {"writer": ""}, "writer: read"),
    ],
)
async def test_a_request_that_is_not_valid_is_refused(
    tmp_path: Path, path: str, body: Any, told: str
) -> None:
    """With what was read and what is allowed."""
    async with publishing(tmp_path) as server:
        status, answer = await ask(server, path, body)
        assert status == 400
        assert told in answer["error"]


async def test_what_the_stage_cannot_do_has_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """409 for a stage that is not there, 429 for a full stage, 503 and 507 for the disk."""
    async with publishing(tmp_path, max_rows=1) as server:
        assert (await ask(server, BATCH, COMMIT))[0] == 409
        assert (await ask(server, "/stages/w/a/1", ROWS))[0] == 409
        assert (await ask(server, STAGE, {"messages": [ROW] * 2}))[0] == 429
        for error, status in ((StageError("broken"), 503), (StageSpaceError("no space"), 507)):

            def fail(*_: Any, error: Exception = error) -> None:
                raise error

            with monkeypatch.context() as patched:
                for method in ("store", "commit", "drop"):
                    patched.setattr(StageFile, method, fail)
                for path, body in ((STAGE, ROWS), (BATCH, COMMIT), (GIVE_UP, None)):
                    assert (await ask(server, path, body))[0] == status


async def test_a_gateway_alone_and_a_policy_without_publishing_refuse(tmp_path: Path) -> None:
    """503 and 404."""
    async with serving(publishing={"path": str(tmp_path / "stage.db")}) as server:
        status, answer = await ask(server, STAGE, ROWS)
        assert (status, "no broker runs here" in answer["error"]) == (503, True)
    async with serving() as server:
        for path, body in ((STAGE, ROWS), (BATCH, COMMIT), (GIVE_UP, None)):
            status, answer = await ask(server, path, body)
            assert (status, "plugins.queue.publishing" in answer["error"]) == (404, True)
