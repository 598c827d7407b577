from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from penstock.plugins.queue.http import arrow
from penstock.plugins.web.service import RequestError
from tests.plugins.queue.http.serving import Serving, serving

STORE = "/queues/work/messages"
RECEIVE = "/queues/work/groups/default/receive"
RANGE = "/queues/log/physical/0/range?start=0&end=600"
AS_ARROW = {"Accept": arrow.CONTENT_TYPE}
IN_ARROW = {"Content-Type": arrow.CONTENT_TYPE}


def stream(table: pa.Table, **options: Any) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def table_of(body: bytes) -> list[dict[str, Any]]:
    """Return the rows of a stream."""
    rows: list[dict[str, Any]] = pa.ipc.open_stream(body).read_all().to_pylist()
    return rows


async def stored(server: Serving, body: bytes, queue: str = "work") -> tuple[int, Any]:
    """Store a stream; return status and JSON of the answer."""
    answer = await server.ask("POST", f"/queues/{queue}/messages", body, IN_ARROW)
    return answer.status, answer.json


async def test_messages_go_in_and_out_as_arrow() -> None:
    """With every column; what is received can be settled."""
    columns = {
        "topic": ["a", "b"],
        "payload": [b"\x00\xff", b""],
        "publisher": ["p", None],
        "properties": ['{"content_type": "x"}', ""],
        "qos": [2, None],
        "key": ["k", None],
        "delay_seconds": [0.0, None],
        "deduplication_id": ["1", None],
    }
    async with serving() as server:
        status, told = await stored(server, stream(pa.table(columns)))
        assert (status, told["stored"]) == (200, 2)
        answer = await server.ask("POST", RECEIVE, {}, AS_ARROW)
        assert answer.headers["Content-Type"] == arrow.CONTENT_TYPE
        first, second = sorted(table_of(answer.body), key=lambda row: str(row["topic"]))
        assert (first["topic"], first["payload"], first["publisher"]) == ("a", b"\x00\xff", "p")
        assert (first["qos"], second["qos"], second["payload"]) == (2, 1, b"")
        assert "penstock-key" in first["properties"]
        assert first["receive_count"] == 1
        assert first["enqueued_at"].tzinfo is not None
        assert abs(first["enqueued_at"] - dt.datetime.now(dt.UTC)) < dt.timedelta(days=1)
        body = {"action": "ack", "receipt_handles": [first["receipt_handle"]]}
        answer = await server.ask("POST", "/queues/work/groups/default/settle", body)
        assert answer.json == {"settled": 1, "failed": {}}


async def test_a_range_comes_as_arrow() -> None:
    """As many record batches as frames, whose columns are always the same."""
    async with serving() as server:
        table = pa.table({"topic": ["a"] * 600, "payload": [b"x" * 1000] * 600})
        assert (await stored(server, stream(table), "log"))[0] == 200
        answer = await server.ask("GET", RANGE, headers=AS_ARROW)
        rows = table_of(answer.body)
        assert [row["offset"] for row in rows] == list(range(600))
        assert list(rows[0]) == [
            "offset",
            "topic",
            "payload",
            "qos",
            "publisher",
            "enqueued_at",
            "properties",
        ]
        empty = await server.ask("POST", RECEIVE, {}, AS_ARROW)
        assert table_of(empty.body) == []


GOOD = {"topic": ["a"], "payload": [b"x"]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "no Arrow IPC stream"),
        (b"no stream at all, but some text", "no Arrow IPC stream"),
        (stream(pa.table(GOOD))[:-40], "no Arrow IPC stream"),
        (stream(pa.table({"topic": ["a"]})), "body: read no column payload"),
        (stream(pa.table(GOOD | {"x": [1]})), "body: read column 'x'; allowed, each once: topic"),
        (stream(pa.table(GOOD | {"qos": ["1"]})), "column qos: read type string; allowed: uint8"),
        (stream(pa.table(GOOD | {"qos": [7]})), "messages[0].qos: read 7"),
        (stream(pa.table({"topic": ["+"], "payload": [b""]})), "messages[0].topic: "),
        (
            stream(pa.table({"topic": ["a", None], "payload": [b"", b""]})),
            "topic, payload: read null",
        ),
        (stream(pa.table(GOOD).slice(0, 0)), "body: read no messages"),
        (
            stream(pa.table({"topic": ["a"] * 10_001, "payload": [b""] * 10_001})),
            "body: read 10001 messages or more; allowed: 10000",
        ),
        (
            stream(pa.table(GOOD | {"topic": pa.array(["a"]).dictionary_encode()})),
            "column topic: read type dictionary",
        ),
        (
            stream(pa.table({"topic": ["a"], "payload": [b"x" * 9000]}), compression="zstd"),
            "body: read a compressed batch",
        ),
        (stream(pa.table(GOOD | {"delay_seconds": [-1.0]})), "messages[0].delay_seconds: read -1"),
    ],
)
async def test_wrong_streams_are_told(body: bytes, told: str) -> None:
    """A mistake is a 400 that names it; what may stand for very much is not unpacked."""
    async with serving() as server:
        status, answer = await stored(server, body)
        assert (status, told in answer["error"]) == (400, True), answer


async def test_a_broken_stream_never_breaks_the_server() -> None:
    """Whatever byte is another one: the answer is 200 or 400, and the server goes on."""
    body = stream(pa.table({"topic": ["abc", "d"], "payload": [b"xyz", b""]}))
    async with serving() as server:
        for at in range(0, len(body), 3):
            changed = body[:at] + bytes([body[at] ^ 0x7F]) + body[at + 1 :]
            status, answer = await stored(server, changed)
            assert status in (200, 400), (at, answer)
        assert (await server.ask("GET", "/health")).status == 200


def test_a_schema_that_is_not_said_to_be_one_is_not_read() -> None:
    """What it points at is checked in a message of type schema alone; else it could be anywhere."""
    body = bytearray(stream(pa.table({"topic": ["a"], "payload": [b""]})))
    metadata = bytes(body[8:])  # behind the continuation and the length
    message = int.from_bytes(metadata[:4], "little")
    kind, header = (arrow._field(metadata, message, number) for number in (1, 2))
    assert kind is not None
    assert header is not None
    schema = header + int.from_bytes(metadata[header : header + 4], "little")
    body[8 + kind] = 99
    body[8 + schema : 12 + schema] = (2**31 - 1).to_bytes(4, "little")
    with pytest.raises(RequestError, match="read no Arrow IPC stream"):
        list(arrow.read_rows(body, 9))


async def test_without_pyarrow_the_other_types_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """415 for a body and 406 for an answer; a client that takes JSON too gets that."""
    monkeypatch.setattr(arrow, "IS_INSTALLED", False)
    async with serving() as server:
        status, answer = await stored(server, b"x")
        assert (status, "lacks pyarrow" in answer["error"]) == (415, True)
        refused = await server.ask("POST", RECEIVE, {}, AS_ARROW)
        assert (refused.status, "lacks pyarrow" in refused.json["error"]) == (406, True)
        either = {"Accept": f"{arrow.CONTENT_TYPE}, application/json;q=0.5"}
        answer = await server.ask("POST", RECEIVE, {}, either)
        assert (answer.status, answer.json) == (200, {"messages": []})
