from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest

from penstock.plugins.queue.http import arrow
from penstock.plugins.queue.wire.frames import (
    BATCH_CONTENT_TYPE,
    LOOKED_AT_HEADER,
    NEXT_OFFSET_HEADER,
    read_batch,
)
from tests.plugins.queue.http.serving import LONG_SECONDS, Serving, serving

POSITION = "/queues/log/position"
PLAN = "/queues/log/plan"
COMMIT = "/queues/log/groups/spark/commit"
SEEK = "/queues/log/groups/spark/seek"


async def position(server: Serving, at: str = "earliest") -> dict[str, Any]:
    """Ask for a position."""
    found: dict[str, Any] = (await server.ask("GET", f"{POSITION}?at={at}")).json
    return found


async def payloads(server: Serving, start: int, end: int) -> list[bytes]:
    """Read a range."""
    answer = await server.ask("GET", f"/queues/log/physical/0/range?start={start}&end={end}")
    assert answer.status == 200, answer
    return [base64.b64decode(one["payload"]) for one in answer.json["messages"]]


async def test_a_reader_plans_reads_and_commits() -> None:
    """Its position moves; what it has committed is gone, as there is no other group."""
    async with serving() as server:
        await server.store_rows("log", "a", "b", "c")
        start = await position(server)
        answer = await server.ask("POST", PLAN, start | {"max_messages": 2})
        end = answer.json
        assert (start["offsets"], end["offsets"]) == ({"0": 0}, {"0": 2})
        assert start["incarnation"] == end["incarnation"]
        assert await payloads(server, 0, 2) == [b"a", b"b"]
        assert (await server.ask("POST", COMMIT, end)).json == end
        group = (await server.ask("GET", "/queues/log/groups/spark")).json
        assert (group["position"], group["waiting"]) == ({"0": 2}, 1)
        gone = await server.ask("GET", "/queues/log/physical/0/range?start=1&end=3")
        assert (gone.status, gone.json["earliest"]) == (410, 2)
        assert "start: read 1; allowed: 2 or more" in gone.json["error"]


async def test_a_plan_without_a_position_begins_at_the_earliest_offsets() -> None:
    """And ends where the limits say."""
    async with serving() as server:
        await server.store_rows("log", "a", "b")
        assert (await server.ask("POST", PLAN, {})).json["offsets"] == {"0": 2}


async def test_a_held_plan_is_answered_when_a_message_comes() -> None:
    """A reader need not poll."""
    async with serving() as server:
        start = await position(server)
        body = start | {"wait_seconds": LONG_SECONDS}
        planning = asyncio.create_task(server.ask("POST", PLAN, body))
        await server.store_rows("log", "late")
        assert (await planning).json["offsets"] == {"0": 1}


async def test_a_plan_of_several_queues_shares_its_limits() -> None:
    """In proportion to what waits; each plan tells what its queue holds."""
    async with serving() as server:
        await server.store_rows("log", *"abcdef")
        await server.store_rows("work", *"abc")
        starts = {}
        for name in ("log", "work"):
            starts[name] = (await server.ask("GET", f"/queues/{name}/position")).json
        answer = await server.ask("POST", "/plan", {"queues": starts, "max_messages": 6})
        plans = answer.json["queues"]
        assert sum(plans["log"]["offsets"].values()) == 4
        assert sum(plans["work"]["offsets"].values()) == 2
        assert plans["log"]["incarnation"] == starts["log"]["incarnation"]
        assert (plans["log"]["earliest"], plans["log"]["latest"]) == ({"0": 0}, {"0": 6})
        starts["log"]["until"] = {"0": 1}
        answer = await server.ask("POST", "/plan", {"queues": starts, "max_messages": 1})
        plans = answer.json["queues"]
        assert plans["log"]["offsets"] == {"0": 0}
        assert sum(plans["work"]["offsets"].values()) == 1
        del starts["work"]
        answer = await server.ask("POST", "/plan", {"queues": starts})
        assert answer.json["queues"]["log"]["offsets"] == {"0": 1}


async def test_a_held_plan_of_several_queues_is_answered_when_one_gets_a_message() -> None:
    """Whichever it is."""
    async with serving() as server:
        starts = {}
        for name in ("log", "work"):
            starts[name] = (await server.ask("GET", f"/queues/{name}/position")).json
        body = {"queues": starts, "wait_seconds": LONG_SECONDS}
        planning = asyncio.create_task(server.ask("POST", "/plan", body))
        await server.store_rows("work", "late")
        plans = (await planning).json["queues"]
        assert sum(plans["work"]["offsets"].values()) == 1
        assert plans["log"]["offsets"] == {"0": 0}


async def test_a_plan_of_several_queues_names_what_is_wrong() -> None:
    """The queue, and what is allowed."""
    async with serving() as server:
        at = await position(server)
        for queues, status, told in (
            ({"logg": at}, 404, 'queue: read "logg"; allowed: '),
            ({}, 400, "queues: read {}; allowed: an object of 1 to 100"),
            ({"log": 1}, 400, "queues.log: read 1; allowed: a JSON object"),
            ({"log": {"offsets": {}}}, 400, "queues.log.incarnation: read nothing"),
            ({"log": at | {"offsets": {"0": 9}}}, 400, "read 9; allowed: 0 to 0"),
            ({"log": at | {"until": {"0": 9}}}, 400, "read 9; allowed: 0 to 0"),
        ):
            answer = await server.ask("POST", "/plan", {"queues": queues})
            assert (answer.status, told in answer.json["error"]) == (status, True), answer.body
        old = at | {"incarnation": "0" * 32}
        answer = await server.ask("POST", "/plan", {"queues": {"log": old}})
        assert (answer.status, answer.json["queue"]) == (409, "log")
        assert answer.json["incarnation"] == at["incarnation"]


@pytest.mark.parametrize("accept", ["application/json", arrow.CONTENT_TYPE])
async def test_a_range_has_the_columns_that_are_asked_for(accept: str) -> None:
    """And the offset, which a reader needs to go on."""
    path = "/queues/log/physical/0/range?start=0&end=2&columns=topic,properties"
    async with serving() as server:
        await server.store_rows("log", "a", "b")
        answer = await server.ask("GET", path, headers={"Accept": accept})
        if accept == arrow.CONTENT_TYPE:
            rows = pa.ipc.open_stream(answer.body).read_all().to_pylist()
            assert rows[1] == {"offset": 1, "topic": "a", "properties": ""}
        else:
            assert answer.json["messages"][1] == {"offset": 1, "topic": "a", "properties": {}}


async def test_frames_without_payloads_are_short() -> None:
    """Columns that are left out do not cross the wire; a reader for whole frames refuses them."""
    path = "/queues/log/physical/0/range?start=0&end=1&columns="
    headers = {"Accept": BATCH_CONTENT_TYPE}
    async with serving() as server:
        await server.store_rows("log", "x" * 10_000)
        lengths = {
            columns: len((await server.ask("GET", path + columns, headers=headers)).body)
            for columns in ("", "qos", "payload_bytes", "payload")
        }
        assert lengths == {"": 28, "qos": 29, "payload_bytes": 32, "payload": 10_032}
        with pytest.raises(ValueError, match="leaves out columns"):
            read_batch((await server.ask("GET", path, headers=headers)).body)


async def test_a_range_leaves_out_what_matches_no_topic_filter() -> None:
    """The answer tells how far it went, as it may be empty, and how many messages it saw."""
    path = "/queues/log/physical/0/range?start=0&end=5"
    async with serving() as server:
        for topic in ("a/1", "b/1", "a/2", "b/2"):
            await server.store_rows("log", "x", topic=topic)
        await server.store_rows("log", "x", topic="c")
        for filters, wanted in (
            ("&topic_filter=a/%23", [0, 2]),
            ("&topic_filter=a/%23&topic_filter=%2b/2", [0, 2, 3]),
            ("&topic_filter=nothing", []),
            ("&topic_filter=%23", [0, 1, 2, 3, 4]),
        ):
            answer = await server.ask("GET", path + filters)
            assert [one["offset"] for one in answer.json["messages"]] == wanted
            assert answer.headers[NEXT_OFFSET_HEADER] == "5"
            assert answer.headers[LOOKED_AT_HEADER] == "5"
        answer = await server.ask("GET", f"{path}&topic_filter=nothing&max_messages=2")
        assert (answer.headers[NEXT_OFFSET_HEADER], answer.headers[LOOKED_AT_HEADER]) == ("2", "2")


async def test_columns_and_filters_that_are_none_are_told() -> None:
    """With what is allowed."""
    path = "/queues/log/physical/0/range?start=0&end=0"
    async with serving() as server:
        for query, told in (
            ("columns=topic,size", 'columns: read "size"; allowed: enqueued_at, qos'),
            ("topic_filter=a/%23/b", "# stands in '#'; allowed: # alone"),
            ("topic_filter=$share/g/a", "topic_filter: topic filter"),
            ("&".join(["topic_filter=a"] * 21), "topic_filter: read 21 of them; allowed: 20"),
        ):
            answer = await server.ask("GET", f"{path}&{query}")
            assert (answer.status, told in answer.json["error"]) == (400, True), answer.body


async def test_a_group_seeks_to_a_time() -> None:
    """To the first message that arrived at or after it; and to both ends."""
    async with serving() as server:
        await server.store_rows("log", "a")
        middle = time.time()
        await server.store_rows("log", "b")
        groups = {"spark": {"kind": "offsets"}, "holding": {"kind": "offsets"}}
        await server.ask("PUT", "/queues/log", {"physical_queues": 1, "groups": groups})
        for to, offset in (("latest", 2), (middle, 1), ("earliest", 0)):
            answer = await server.ask("POST", SEEK, {"to": to})
            assert (answer.status, answer.json["offsets"]) == (200, {"0": offset})
        assert (await position(server, str(middle)))["offsets"] == {"0": 1}
        assert (await position(server, "latest"))["offsets"] == {"0": 2}


async def test_offsets_that_are_none_are_told() -> None:
    """A commit and a range tell what is wrong."""
    async with serving() as server:
        start = await position(server)
        for offsets, told in (
            ({"0": 9}, "read 9; allowed: 0 to 0"),
            ({"5": 0}, "read 5; allowed: 0"),
        ):
            answer = await server.ask("POST", COMMIT, start | {"offsets": offsets})
            assert (answer.status, told in answer.json["error"]) == (400, True), answer.body
        for path, told in (
            ("0/range", "start: read nothing"),
            ("0/range?start=0&end=9", "read 9; allowed: 0 to 0"),
            ("x/range?start=0&end=0", 'physical queue: read "x"'),
            ("7/range?start=0&end=0", "read 7; allowed: 0"),
            ("0/range?start=0&end=0&max_messages=0", 'max_messages: read "0"; allowed: 1 to'),
            ("0/range?start=0&end=0&x=1", 'query: read "x"; allowed, each once: start'),
        ):
            answer = await server.ask("GET", f"/queues/log/physical/{path}")
            assert (answer.status, told in answer.json["error"]) == (400, True), answer.body
