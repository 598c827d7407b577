from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from penstock.plugins.queue.access import QueueAccess
from penstock.plugins.queue.append_buffer import DROP_REASONS
from penstock.plugins.queue.engines.contract import (
    BackupExistsError,
    StorageError,
    StorageFullError,
)
from penstock.plugins.queue.http import arrow
from penstock.plugins.queue.http.admin_routes import api_document
from penstock.plugins.queue.http.api import QueueApi
from penstock.plugins.queue.http.message_routes import MAX_ACKNOWLEDGED
from penstock.plugins.queue.http.messages import MAX_MESSAGES, PROPERTY_KEYS
from penstock.plugins.queue.http.positions import MAX_PLANNED_QUEUES, MAX_READER_CHARACTERS
from penstock.plugins.queue.http.publishing import MAX_WAIT_SECONDS
from penstock.plugins.queue.http.requests import ACTIONS, GROUP_KEYS, SPEC_KEYS
from penstock.plugins.queue.wire.frames import BATCH_CONTENT_TYPE
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from tests.helpers.clock import Clock
from tests.plugins.queue.http.serving import QUEUES, Answer, Serving, serving

QUEUE: Final = "/queues/{queue}"
GROUPS: Final = "/queues/{queue}/groups"
GROUP: Final = "/queues/{queue}/groups/{group}"
RANGE: Final = f"{QUEUE}/physical/{{number}}/range"
SOME: Final = {
    "queue": "work",
    "group": "default",
    "number": "0",
    "writer": "w",
    "stage": "a",
    "place": "0",
    "query": "q",
    "batch": "0",
}

OF_PUBLISHING: Final = ("/stages/", "/batches/")
"""Paths whose own statuses ``test_publishing`` holds against the document."""

JSON: Final = "application/json"

EVERYWHERE: Final = {"401", "403", "408", "413", "415", "429"}
"""Statuses that every operation has that can have them; tested for all operations alike."""


PUBLISHED: Final[dict[str, Any]] = json.loads(api_document())


def strict() -> dict[str, Any]:
    """Return the document, without room for keys that it does not name."""
    found = copy.deepcopy(PUBLISHED)

    def close(schema: Any) -> None:
        if isinstance(schema, dict):
            if "properties" in schema and schema.get("type") == "object":
                schema.setdefault("additionalProperties", False)
            for one in schema.values():
                close(one)
        elif isinstance(schema, list):
            for one in schema:
                close(one)

    close(found)
    return found


DOCUMENT: Final = strict()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of each operation."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                yield method.upper(), path, operation


def check(value: Any, schema: Mapping[str, Any]) -> None:
    """Hold a JSON value against a schema of the document."""
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def hold(answer: Answer, operation: Mapping[str, Any]) -> None:
    """Hold an answer against what the document says of its status."""
    response = operation["responses"][str(answer.status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    content_type = answer.headers.get_content_type()
    assert content_type in response["content"]
    if content_type == JSON:
        check(answer.json, response["content"][JSON]["schema"])


class Case(NamedTuple):
    """A request, and the status of its answer."""

    method: str
    path: str
    status: int
    body: Any = None
    query: str = ""
    headers: Mapping[str, str] = {}
    more: Mapping[str, str] = {}


AS_BATCH: Final = {"Accept": BATCH_CONTENT_TYPE}
AS_ARROW: Final = {"Accept": arrow.CONTENT_TYPE}
AS_PAGE: Final = {"Accept": "text/html"}
LOG: Final = {"queue": "log", "group": "spark"}
OTHER: Final = {"incarnation": "of another queue", "offsets": {"0": 0}}
PLAN: Final = {"queues": {"log": OTHER}}
NO_QUEUE: Final = {"queue": "missing"}
NO_GROUP: Final = {"group": "missing"}
TEXT: Final = {"topic": "a", "text": "x"}

CASES: Final = [
    Case("GET", "/health", 200),
    Case("GET", "/openapi.json", 200),
    Case("GET", "/queues", 200),
    Case("GET", QUEUE, 200),
    Case("GET", QUEUE, 404, more=NO_QUEUE),
    Case("PUT", QUEUE, 200, {"key": "topic", "tags": {"a": "b"}}, more={"queue": "new"}),
    Case("PUT", QUEUE, 200, {"max_bytes": 5000, "groups": {"g": {"kind": "offsets"}}}),
    Case("PUT", QUEUE, 400, {"max_bytes": 0}),
    Case("PATCH", QUEUE, 200, {"max_bytes": 6000}),
    Case("PATCH", QUEUE, 400, {"max_bytes": 0}),
    Case("PATCH", QUEUE, 404, {}, more=NO_QUEUE),
    Case("PATCH", QUEUE, 409, {"key": "topic"}, more={"queue": "busy"}),
    Case("DELETE", QUEUE, 404, more=NO_QUEUE),
    Case("DELETE", QUEUE, 409, more={"queue": "gone"}),
    Case("GET", GROUP, 200),
    Case("GET", GROUP, 200, more=LOG),
    Case("GET", GROUP, 404, more=NO_GROUP),
    Case("PUT", GROUP, 200, {"max_receives": 5, "dead_letter_queue": "log"}),
    Case("PUT", GROUP, 200, {"kind": "offsets", "start": 17.5}, more={"group": "new"}),
    Case("PUT", GROUP, 400, {"kind": "other"}),
    Case("PUT", GROUP, 404, {}, more=NO_QUEUE),
    Case("PUT", GROUP, 409, {"kind": "offsets"}),
    Case("GET", GROUPS, 200),
    Case("GET", GROUPS, 404, more=NO_QUEUE),
    Case("PATCH", GROUP, 200, {"max_receives": 6}),
    Case("PATCH", GROUP, 400, {"max_receives": 0}),
    Case("PATCH", GROUP, 404, {}, more=NO_GROUP),
    Case("PATCH", GROUP, 409, {"kind": "lease"}, more=LOG),
    Case("DELETE", GROUP, 404, more=NO_GROUP),
    Case("POST", f"{QUEUE}/messages", 200, TEXT),
    Case("POST", f"{QUEUE}/messages", 200, {"messages": [TEXT | {"key": "k"}]}, more=LOG),
    Case("POST", f"{QUEUE}/messages", 400, {"topic": "+", "text": ""}),
    Case("POST", f"{QUEUE}/messages", 404, TEXT, more=NO_QUEUE),
    Case("POST", f"{QUEUE}/messages", 429, {"messages": [TEXT] * 4}, more={"queue": "full"}),
    Case("POST", f"{GROUP}/receive", 200, {"max_messages": 1}),
    Case("POST", f"{GROUP}/receive", 200, {}, headers=AS_BATCH),
    Case("POST", f"{GROUP}/receive", 200, {}, headers=AS_ARROW),
    Case("POST", f"{GROUP}/receive", 200, {"acknowledge": ["x"]}),
    Case("POST", f"{GROUP}/receive", 400, {"max_messages": 0}),
    Case("POST", f"{GROUP}/receive", 404, {}, more=NO_GROUP),
    Case("POST", f"{GROUP}/receive", 406, {}, headers=AS_PAGE),
    Case("POST", f"{GROUP}/receive", 409, {}, more=LOG),
    Case("POST", f"{GROUP}/receive", 200, {}, more={"queue": "busy"}),
    Case("POST", f"{GROUP}/receive", 429, {}, more={"queue": "busy"}),
    Case("POST", f"{GROUP}/settle", 200, {"action": "ack", "receipt_handles": ["x"]}),
    Case("POST", f"{GROUP}/settle", 400, {"action": "eat", "receipt_handles": []}),
    Case("POST", f"{GROUP}/settle", 404, {"action": "ack", "receipt_handles": []}, more=NO_GROUP),
    Case("POST", f"{GROUP}/settle", 409, {"action": "ack", "receipt_handles": []}, more=LOG),
    Case("GET", f"{QUEUE}/peek", 200, query="max_messages=5&group=default"),
    Case("GET", f"{QUEUE}/peek", 400, query="max_messages=0"),
    Case("GET", f"{QUEUE}/peek", 404, query="group=missing"),
    Case("GET", f"{QUEUE}/position", 200, query="at=17.5"),
    Case("GET", f"{QUEUE}/position", 400, query="at=noon"),
    Case("GET", f"{QUEUE}/position", 404, more=NO_QUEUE),
    Case("POST", f"{QUEUE}/plan", 200, {"max_messages": 1, "max_bytes": 10}, more=LOG),
    Case("POST", f"{QUEUE}/plan", 400, {"incarnation": "x"}),
    Case("POST", f"{QUEUE}/plan", 404, {}, more=NO_QUEUE),
    Case("POST", f"{QUEUE}/plan", 409, OTHER),
    Case("POST", "/plan", 400, {"queues": {}}),
    Case("POST", "/plan", 404, {"queues": {"missing": {"incarnation": "", "offsets": {}}}}),
    Case("POST", "/plan", 409, PLAN),
    Case("GET", RANGE, 200, query="start=0&end=1", more=LOG),
    Case("GET", RANGE, 200, query="start=0&end=1", more=LOG, headers=AS_BATCH),
    Case("GET", RANGE, 200, query="start=0&end=1", more=LOG, headers=AS_ARROW),
    Case("GET", RANGE, 400, query="start=0&end=9", more=LOG),
    Case("GET", RANGE, 404, query="start=0&end=9", more=NO_QUEUE),
    Case("GET", RANGE, 406, query="start=0&end=0", headers=AS_PAGE),
    Case("GET", RANGE, 409, query="start=0&end=0&incarnation=x"),
    Case("GET", RANGE, 410, query="start=0&end=1", more={"queue": "gone"}),
    Case("POST", f"{GROUP}/commit", 400, {"offsets": {}}, more=LOG),
    Case("POST", f"{GROUP}/commit", 404, OTHER, more=NO_QUEUE),
    Case("POST", f"{GROUP}/commit", 409, OTHER, more=LOG),
    Case("POST", f"{GROUP}/seek", 200, {"to": "earliest"}),
    Case("POST", f"{GROUP}/seek", 400, {"to": -1}),
    Case("POST", f"{GROUP}/seek", 404, {"to": "latest"}, more=NO_GROUP),
    Case("POST", f"{QUEUE}/purge", 200, {}),
    Case("POST", f"{QUEUE}/purge", 400, {"all": True}),
    Case("POST", f"{QUEUE}/purge", 404, {}, more=NO_QUEUE),
    Case("POST", f"{QUEUE}/redrive", 200, {"max_messages": 5}),
    Case("POST", f"{QUEUE}/redrive", 400, {"max_messages": 0}),
    Case("POST", f"{QUEUE}/redrive", 404, {}, more=NO_QUEUE),
    Case("POST", "/compact", 200, {}),
    Case("POST", "/compact", 400, {"all": True}),
    Case("POST", "/backup", 400, {"path": ""}),
    Case("DELETE", GROUP, 200),
    Case("DELETE", QUEUE, 200),
]  # fmt: skip
"""In an order in which each finds what it needs."""

ENGINE_METHODS: Final = {
    ("PUT", QUEUE): "create_queue",
    ("PATCH", QUEUE): "change_queue",
    ("DELETE", QUEUE): "delete_queue",
    ("PUT", GROUP): "change_group",
    ("PATCH", GROUP): "change_group",
    ("DELETE", GROUP): "delete_group",
    ("POST", f"{QUEUE}/messages"): "append",
    ("POST", f"{GROUP}/receive"): "lease",
    ("POST", f"{GROUP}/settle"): "settle",
    ("GET", f"{QUEUE}/peek"): "read",
    ("GET", f"{QUEUE}/position"): "locate",
    ("POST", f"{QUEUE}/plan"): "plan",
    ("POST", "/plan"): "plan",
    ("GET", RANGE): "read",
    ("POST", f"{GROUP}/commit"): "commit",
    ("POST", f"{GROUP}/seek"): "seek",
    ("POST", f"{QUEUE}/purge"): "purge",
    ("POST", f"{QUEUE}/redrive"): "redrive",
    ("POST", "/compact"): "compact",
    ("POST", "/backup"): "backup",
}
"""What each operation asks of the engine that can fail for its storage."""


def path_of(template: str, more: Mapping[str, str] = {}) -> str:
    """Return a path with names in it."""
    return template.format(**SOME | dict(more))


async def send(server: Serving, case: Case) -> Answer:
    """Send a case's request."""
    path = path_of(case.path, case.more) + (f"?{case.query}" if case.query else "")
    return await server.ask(case.method, path, case.body, case.headers)


def test_the_document_is_valid() -> None:
    """As the validator of the OpenAPI initiative's schema says."""
    validate(PUBLISHED)


def test_limits_and_words_are_those_of_the_code() -> None:
    """A client that goes by the document may send and gets what the code has."""
    paths, schemas = PUBLISHED["paths"], PUBLISHED["components"]["schemas"]

    def body(path: str, method: str = "post") -> Any:
        return paths[path][method]["requestBody"]["content"][JSON]["schema"]

    several = body(f"{QUEUE}/messages")["oneOf"][1]
    assert several["properties"]["messages"]["maxItems"] == MAX_MESSAGES
    handles = body(f"{GROUP}/receive")["properties"]["acknowledge"]
    assert handles["maxItems"] == MAX_ACKNOWLEDGED
    assert set(body(f"{GROUP}/settle")["properties"]["action"]["enum"]) == set(ACTIONS)
    assert body("/plan")["properties"]["queues"]["maxProperties"] == MAX_PLANNED_QUEUES
    commit = body("/batches/{query}/{batch}", "put")
    assert commit["properties"]["wait_seconds"]["maximum"] == MAX_WAIT_SECONDS
    reader = body(f"{GROUP}/commit")["properties"]["reader"]
    assert reader["maxLength"] == MAX_READER_CHARACTERS
    refused = schemas["Stored"]["properties"]["refused"]["additionalProperties"]
    assert set(refused["enum"]) == set(DROP_REASONS)
    assert set(schemas["GroupSettings"]["properties"]) == set(GROUP_KEYS)
    assert set(schemas["QueueSettings"]["properties"]) == {*SPEC_KEYS, "tags", "groups"}
    assert set(schemas["Properties"]["properties"]) == set(PROPERTY_KEYS)


async def test_every_route_is_documented_and_no_other() -> None:
    """With its methods."""
    nothing: Any = None
    api = QueueApi(nothing, nothing, Clock(), logging.getLogger("test"), Bodies(1, 1.0), Slicer())
    routes = {
        (route.method, route.resource.canonical)
        for route in api.application(1024).router.routes()
        if route.resource is not None
    }
    assert routes == {(method, path) for method, path, _ in operations()}


async def test_every_answer_is_as_documented() -> None:
    """Each operation, with each status that it alone can have, and no status besides these."""
    by_name = {
        (method, path): operation
        for method, path, operation in operations()
        if not path.startswith(OF_PUBLISHING)
    }
    seen: dict[tuple[str, str], set[str]] = {name: set() for name in by_name}
    queues = {
        **QUEUES,
        "full": {"max_messages": 3},
        "busy": {"groups": {"default": {"max_leased_messages": 1, "dead_letter_queue": "gone"}}},
        "gone": {"physical_queues": 1},
    }
    async with serving(queues=queues) as server:
        await server.store_rows("busy", "x", "x")
        await server.store_rows("gone", "x", "x")
        await server.ask("POST", "/queues/gone/purge", {})
        for case in CASES:
            answer = await send(server, case)
            assert answer.status == case.status, (case, answer.body)
            operation = by_name[case.method, case.path]
            hold(answer, operation)
            if case.status == 200 and case.body is not None:
                check(case.body, operation["requestBody"]["content"][JSON]["schema"])
            seen[case.method, case.path].add(str(case.status))
        position = (await server.ask("GET", "/queues/log/position?at=latest")).json
        answer = await server.ask("POST", "/queues/log/groups/spark/commit", position)
        hold(answer, by_name["POST", f"{GROUP}/commit"])
        seen["POST", f"{GROUP}/commit"].add("200")
        answer = await server.ask("POST", "/plan", {"queues": {"log": position}})
        hold(answer, by_name["POST", "/plan"])
        seen["POST", "/plan"].add("200")
        answer = await server.ask("GET", "/queues/log/physical/0/range?start=0&end=1")
        assert answer.status == 410
        assert answer.json["earliest"] == 1
    async with serving() as server:
        for name, statuses in (await storage_failures(server, by_name)).items():
            seen[name] |= statuses

        async def copied(_: str) -> int:
            return 4096  # a store in memory has nothing to copy

        async def refused(path: str) -> int:
            raise BackupExistsError(path)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(server.service.engine, "backup", refused)
            case = Case("POST", "/backup", 409, {"path": "copy.db"})
            answer = await send(server, case)
            assert answer.status == case.status, answer.body
            hold(answer, by_name[case.method, case.path])
            seen[case.method, case.path].add(str(case.status))
            patched.setattr(server.service.engine, "backup", copied)
            # As where another request creates the queue at the same moment.
            patched.setattr(server.service, "names", list)
            for case in (
                Case("POST", "/backup", 200, {"path": "copy.db"}),
                Case("PUT", QUEUE, 409, {"delay_seconds": 7}),
            ):
                answer = await send(server, case)
                assert answer.status == case.status, answer.body
                hold(answer, by_name[case.method, case.path])
                seen[case.method, case.path].add(str(case.status))
    documented = {
        name: {str(status) for status in operation["responses"]} - EVERYWHERE
        for name, operation in by_name.items()
    }
    assert {name: statuses - EVERYWHERE for name, statuses in seen.items()} == documented


async def storage_failures(
    server: Serving, by_name: Mapping[tuple[str, str], dict[str, Any]]
) -> dict[tuple[str, str], set[str]]:
    """Have the storage fail under every operation; return the statuses of the answers."""
    seen: dict[tuple[str, str], set[str]] = {}
    bodies = {
        f"{QUEUE}/messages": TEXT,
        f"{GROUP}/settle": {"action": "ack", "receipt_handles": ["x"]},
        f"{GROUP}/commit": OTHER,
        f"{GROUP}/seek": {"to": "latest"},
        "/backup": {"path": "x"},
        "/plan": PLAN,
    }
    await server.store_rows("work", "x", "x")
    for (method, path), engine_method in ENGINE_METHODS.items():
        statuses = {"503", "507"} & set(by_name[method, path]["responses"])
        for status in statuses:
            error = StorageFullError("no space") if status == "507" else StorageError("broken")

            def fail(*_: Any, error: Exception = error, **__: Any) -> asyncio.Future[None]:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                future.set_exception(error)
                return future

            more = {"queue": "new"} if engine_method == "create_queue" else {}
            body: Any = None if method in ("GET", "DELETE") else bodies.get(path, {})
            query = "start=0&end=1" if path == RANGE else ""
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(server.service.engine, engine_method, fail)
                answer = await send(server, Case(method, path, 0, body, query, more=more))
            assert str(answer.status) == status, (method, path, answer.body)
            hold(answer, by_name[method, path])
            seen.setdefault((method, path), set()).add(status)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server.service.engine, "failure", lambda: "no space")
        answer = await server.ask("GET", "/health")
    assert answer.status == 503
    hold(answer, by_name["GET", "/health"])
    return seen | {("GET", "/health"): {"503"}}


async def test_every_operation_needs_its_role(tmp_path: Path) -> None:
    """Without a token 401, with one of another role 403, except for health and this document."""
    digest = hashlib.sha256(b"token").hexdigest()
    file = tmp_path / "tokens.yaml"
    token = {"name": "nobody", "token_sha256": digest, "roles": {"other": ["read", "write"]}}
    file.write_text(json.dumps({"tokens": [token]}))
    async with serving(QueueAccess.load(str(file))) as server:
        for method, path, operation in operations():
            body: Any = None if method in ("GET", "DELETE") else PLAN if path == "/plan" else {}
            answer = await server.ask(method, path_of(path), body)
            is_public = operation.get("security") == []
            assert (answer.status == 401) != is_public, (method, path)
            hold(answer, operation)
            known = {"Authorization": "Bearer token"}
            answer = await server.ask(method, path_of(path), body, known)
            assert (answer.status == 403) != (is_public or path == "/queues"), (method, path)
            hold(answer, operation)


async def test_every_operation_counts_towards_the_rate_of_its_token(tmp_path: Path) -> None:
    """429, and when to come back; the document and the health are free."""
    digest = hashlib.sha256(b"token").hexdigest()
    file = tmp_path / "tokens.yaml"
    file.write_text(
        f"tokens: [{{name: busy, token_sha256: {digest}, roles: {{}},"
        " requests_per_second: 0.000001}]"
    )
    async with serving(QueueAccess.load(str(file))) as server:
        server.token = "token"
        assert (await server.ask("GET", "/queues")).status == 200
        for method, path, operation in operations():
            body: Any = None if method in ("GET", "DELETE") else {}
            answer = await server.ask(method, path_of(path), body)
            is_public = operation.get("security") == []
            assert (answer.status == 429) != is_public, (method, path)
            hold(answer, operation)
            assert is_public or int(answer.headers["Retry-After"]) > 900_000


async def test_every_body_is_checked_alike(tmp_path: Path) -> None:
    """Its type, its compression and its length; and a request for another host is refused."""
    section = {"path": str(tmp_path / "stage.db")}
    async with serving(max_request_bytes=1024, publishing=section) as server:
        for method, path, operation in operations():
            answer = await server.ask(method, path_of(path), headers={"Host": "evil.example"})
            assert answer.status == 403
            hold(answer, operation)
            if method in ("GET", "DELETE"):
                continue
            cases: list[tuple[int, bytes, dict[str, str]]] = [
                (415, b"x", {"Content-Type": "text/plain"}),
                (415, b"x", {"Content-Encoding": "gzip"}),
                (413, b"x" * 1025, {}),
                (400, b"{", {}),
            ]
            for status, body, headers in cases:
                answer = await server.ask(method, path_of(path), body, headers)
                assert answer.status == status, (method, path)
                hold(answer, operation)


async def test_the_server_answers_with_the_document() -> None:
    """At its own path, to anybody."""
    async with serving() as server:
        answer = await server.ask("GET", "/openapi.json")
    assert answer.json == PUBLISHED
