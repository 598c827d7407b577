from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.plugins.queue.append_buffer import Stored
from penstock.plugins.queue.batch_format import write_batch
from penstock.plugins.queue.engines.contract import StorageError, StorageFullError
from penstock.plugins.queue.engines.store import Changes
from penstock.plugins.queue.http import arrow, message_routes
from penstock.plugins.queue.http.requests import AnswerError
from penstock.plugins.queue.wire.frames import (
    BATCH_CONTENT_TYPE,
    NOT_ACKNOWLEDGED_HEADER,
    Batch,
    read_deliveries,
)
from tests.helpers.skipping_loop import SkippingLoop
from tests.plugins.queue.http.serving import LONG_SECONDS, Serving, serving

STORE = "/queues/work/messages"
RECEIVE = "/queues/work/groups/default/receive"
SETTLE = "/queues/work/groups/default/settle"
AS_BATCH = {"Accept": BATCH_CONTENT_TYPE}


async def until_held(server: Serving, n_requests: int) -> None:
    """Wait until so many requests of the group are held."""
    async with asyncio.timeout(LONG_SECONDS):
        while True:
            figures = server.service.figures("work")["groups"]["default"]
            if figures.get("requests", {}).get("held", 0) == n_requests:
                return
            await asyncio.sleep(0.005)


async def test_json_carries_whole_messages() -> None:
    """A message goes in and out as JSON: payload in base64, properties as an object."""
    properties = {
        "content_type": "x",
        "correlation_data": "AP8=",
        "user_property": [["a", "b"], ["a", "c"]],
    }
    row = {"topic": "a/ü", "payload": "AP8=", "publisher": "p", "properties": properties}
    async with serving() as server:
        answer = await server.ask("POST", STORE, row)
        outcome = {"stored": 1, "ids": ["0-0"], "duplicates": [], "refused": {}}
        assert (answer.status, answer.json) == (200, outcome)
        (received,) = await server.receive()
        assert (received["topic"], received["publisher"]) == ("a/ü", "p")
        assert base64.b64decode(received["payload"]) == b"\x00\xff"
        assert received["properties"] == properties
        assert (received["receive_count"], received["offset"], received["qos"]) == (1, 0, 1)


@pytest.mark.parametrize("accept", ["application/json", BATCH_CONTENT_TYPE, arrow.CONTENT_TYPE])
async def test_a_receive_acknowledges_what_came_before(accept: str) -> None:
    """Before it looks for messages; the header has what settles nothing, in each form."""
    async with serving() as server:
        await server.store_rows("work", "x", "y", "z")
        handles = [one["receipt_handle"] for one in await server.receive()]
        body = {"acknowledge": [handles[2], handles[0], "forged"]}
        answer = await server.ask("POST", RECEIVE, body, {"Accept": accept})
        assert answer.status == 200
        assert json.loads(answer.headers[NOT_ACKNOWLEDGED_HEADER]) == {"unknown": [2]}
        assert server.service.figures("work")["messages"] == 1
        body = {"acknowledge": [*handles, "forged"]}
        answer = await server.ask("POST", RECEIVE, body, {"Accept": accept})
        told = json.loads(answer.headers[NOT_ACKNOWLEDGED_HEADER])
        assert told == {"stale": [0, 2], "unknown": [3]}
        assert server.service.figures("work")["messages"] == 0
        answer = await server.ask("POST", RECEIVE, {"acknowledge": []}, {"Accept": accept})
        assert (answer.status, answer.headers[NOT_ACKNOWLEDGED_HEADER]) == (200, None)


async def test_what_a_receive_acknowledges_makes_room_for_it_and_is_done_while_it_waits() -> None:
    """It acknowledges leases, and the next message of a key becomes visible."""
    group = {"default": {"order": "key", "max_leased_messages": 1}}
    queue = {"physical_queues": 1, "key": "topic", "groups": group}
    async with serving(queues={"work": queue}) as server:
        await server.store_rows("work", "x", "y")
        (first,) = await server.receive()
        answer = await server.ask("POST", RECEIVE, {})
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        (second,) = await server.receive(acknowledge=[first["receipt_handle"]])
        assert (first["offset"], second["offset"]) == (0, 1)
        body = {"acknowledge": [second["receipt_handle"]], "wait_seconds": 20}
        waiting = asyncio.create_task(server.ask("POST", RECEIVE, body))
        await until_held(server, 1)
        assert server.service.figures("work")["messages"] == 0
        await server.store_rows("work", "z")
        (third,) = (await waiting).json["messages"]
        assert third["offset"] == 2


async def test_a_receive_that_cannot_acknowledge_receives_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client sends the same request again: no message is leased by one that has failed."""
    async with serving() as server:
        await server.store_rows("work", "x", "y")
        (first,) = await server.receive(max_messages=1)
        body = {"acknowledge": [first["receipt_handle"]]}

        def refuse(_: Changes) -> None:
            raise StorageError("the disk says no")

        with monkeypatch.context() as refusing:
            refusing.setattr(server.store, "write", refuse)
            answer = await server.ask("POST", RECEIVE, body)
        assert (answer.status, answer.json["error"]) == (503, "the disk says no")
        assert server.service.figures("work")["groups"]["default"]["leased"] == 1
        (second,) = await server.receive(acknowledge=body["acknowledge"])
        assert (first["payload"], second["payload"]) == ("eA==", "eQ==")


async def test_many_receipt_handles_are_settled_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some in each round of the loop; indexes are those of the request."""
    monkeypatch.setattr(message_routes, "HANDLES_IN_A_STEP", 2)
    async with serving() as server:
        await server.store_rows("work", "u", "v", "w", "x", "y")
        handles = [one["receipt_handle"] for one in await server.receive()]
        sizes = []
        settle = server.service.settle

        async def settle_some(*arguments: Any) -> Any:
            sizes.append(len(arguments[3]))
            return await settle(*arguments)

        monkeypatch.setattr(server.service, "settle", settle_some)
        body = {"action": "ack", "receipt_handles": [*handles[:3], "forged", *handles[2:]]}
        answer = await server.ask("POST", SETTLE, body)
        assert answer.json == {"settled": 5, "failed": {"3": "unknown", "4": "stale"}}
        assert sizes == [2, 2, 2, 1]
        assert server.service.engine.snapshot("work").messages == 0


async def test_a_step_of_settling_that_fails_fails_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the others have settled stays settled, and a repeat settles the rest."""
    monkeypatch.setattr(message_routes, "HANDLES_IN_A_STEP", 1)
    async with serving() as server:
        await server.store_rows("work", "x", "y")
        handles = [one["receipt_handle"] for one in await server.receive()]
        settle = server.service.settle

        async def refuse_one(*arguments: Any) -> Any:
            if handles[0] in arguments[3]:
                raise StorageError("the disk is slow")
            return await settle(*arguments)

        body = {"action": "ack", "receipt_handles": handles}
        with monkeypatch.context() as refusing:
            refusing.setattr(server.service, "settle", refuse_one)
            answer = await server.ask("POST", SETTLE, body)
        assert (answer.status, answer.json["error"]) == (503, "the disk is slow")
        answer = await server.ask("POST", SETTLE, body)
        assert answer.json == {"settled": 1, "failed": {"1": "stale"}}


async def test_extending_needs_a_time() -> None:
    """Zero seconds would make the message visible, which `nack` is for."""
    async with serving() as server:
        await server.store_rows("work", "x")
        (one,) = await server.receive()
        body = {"action": "extend", "receipt_handles": [one["receipt_handle"]]}
        answer = await server.ask("POST", SETTLE, body)
        assert (answer.status, "seconds: read nothing" in answer.json["error"]) == (400, True)
        answer = await server.ask("POST", SETTLE, body | {"seconds": 60})
        assert answer.json == {"settled": 1, "failed": {}}


async def test_batch_format_both_ways() -> None:
    """Frames of records are stored, and deliveries come in frames where they are accepted."""
    batch = Batch(
        offset=[5, 9],
        topic=["a", "b"],
        payload=[b"\x00", b"y"],
        qos=[0, 2],
        publisher=["p", ""],
        enqueued_at=[1.0, 2.0],
        properties=["", '{"content_type": "x"}'],
    )
    body = write_batch(batch) * 2
    async with serving() as server:
        answer = await server.ask("POST", STORE, body, {"Content-Type": BATCH_CONTENT_TYPE})
        assert (answer.status, answer.json["stored"]) == (200, 4)
        answer = await server.ask("POST", RECEIVE, {}, AS_BATCH)
        assert answer.headers["Content-Type"] == BATCH_CONTENT_TYPE
        received = sorted(read_deliveries(answer.body), key=lambda one: one.topic)
        assert [(one.topic, one.payload, one.qos, one.publisher) for one in received] == [
            ("a", b"\x00", 0, "p"),
            ("a", b"\x00", 0, "p"),
            ("b", b"y", 2, ""),
            ("b", b"y", 2, ""),
        ]
        assert json.loads(received[2].properties) == {"content_type": "x"}


async def test_a_large_answer_comes_whole() -> None:
    """In JSON and in the batch format, though it is written in pieces."""
    payloads = [bytes([n]) * 300_000 for n in range(5)]
    rows = [{"topic": "a", "payload": base64.b64encode(one).decode()} for one in payloads]
    async with serving() as server:
        await server.ask("POST", STORE, {"messages": rows})
        received = await server.receive()
        assert sorted(base64.b64decode(one["payload"]) for one in received) == payloads
        handles = [one["receipt_handle"] for one in received]
        await server.ask("POST", SETTLE, {"action": "nack", "receipt_handles": handles})
        answer = await server.ask("POST", RECEIVE, {}, AS_BATCH)
        assert sorted(one.payload for one in read_deliveries(answer.body)) == payloads


async def test_a_client_that_leaves_its_held_request_takes_nothing_along() -> None:
    """The request ends, and the next client gets the message as its first receiver."""
    async with serving() as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
            body = json.dumps({"wait_seconds": LONG_SECONDS}).encode()
            connection.sendall(
                b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % (RECEIVE.encode(), len(body)) + body
            )
            await until_held(server, 1)
        await until_held(server, 0)
        await server.store_rows("work", "x")
        (received,) = await server.receive(wait_seconds=LONG_SECONDS)
        assert received["receive_count"] == 1


async def test_a_partly_stored_batch_says_which_messages_are_stored() -> None:
    """429 for a full queue, with the reason by index, and when to come back."""
    async with serving(queues={"work": {"max_messages": 3}}) as server:
        rows = [{"topic": "a", "text": str(n)} for n in range(5)]
        answer = await server.ask("POST", STORE, {"messages": rows})
        assert answer.status == 429
        assert answer.json["refused"] == {"3": "queue_full", "4": "queue_full"}
        assert (answer.json["stored"], answer.json["duplicates"]) == (3, [])
        assert "2 messages refused, 3 stored" in answer.json["error"]
        assert answer.headers["Retry-After"] == "1"
        stored = {base64.b64decode(one["payload"]) for one in await server.receive()}
        assert stored == {b"0", b"1", b"2"}


async def test_duplicates_are_told_and_not_stored() -> None:
    """A message with an identifier of the queue's window is in the queue once."""
    row = {"topic": "a", "text": "x", "deduplication_id": "1"}
    async with serving() as server:
        (known,) = (await server.ask("POST", STORE, row)).json["ids"]
        answer = await server.ask("POST", STORE, {"messages": [row, row | {"text": "y"}]})
        assert answer.status == 200
        assert set(answer.json["ids"]) <= {known, None}
        outcome = {"stored": 0, "duplicates": [0, 1], "refused": {}}
        assert answer.json == outcome | {"ids": answer.json["ids"]}
        assert len(await server.receive()) == 1


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [(StorageFullError("no"), 507, "storage_full"), (StorageError("no"), 503, "storage_error")],
)
async def test_storage_that_refuses_is_told(
    error: StorageError, status: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not safe is never answered with 200; when the storage works again, so does this."""

    def refuse(*_: object) -> None:
        raise error

    async with serving() as server:
        with monkeypatch.context() as patched:
            patched.setattr(server.store, "write", refuse)
            answer = await server.ask("POST", STORE, {"topic": "a", "text": "x"})
        assert (answer.status, answer.json["stored"]) == (status, 0)
        assert answer.json["refused"] == {"0": reason}
        await server.store_rows("work", "x")


async def test_many_messages_are_stored_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given to the engine in parts; the answer is of all of them."""
    monkeypatch.setattr(message_routes, "MESSAGES_IN_A_STEP", 7)
    async with serving(queues={"work": {"physical_queues": 1, "n_max": 100}}) as server:
        await server.store_rows("work", *map(str, range(100)))
        received = await server.receive()
    texts = [base64.b64decode(one["payload"]).decode() for one in received]
    assert texts == [str(n) for n in range(100)]


async def test_no_large_answer_is_made_while_clients_take_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither received messages nor ranges; figures are small."""
    monkeypatch.setattr("penstock.plugins.web.connection_limits.MOST_UNSENT_BYTES", 0)
    async with serving() as server:
        asked = [
            await server.ask("POST", RECEIVE, {}),
            await server.ask("GET", "/queues/work/peek"),
            await server.ask("GET", "/queues/log/physical/0/range?start=0&end=0"),
        ]
        assert [answer.status for answer in asked] == [503] * 3
        assert (await server.ask("GET", "/queues")).status == 200


async def test_messages_are_given_back_where_no_answer_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The receive does not count."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("broken")

    async with serving() as server:
        await server.store_rows("work", "x")
        with monkeypatch.context() as patched:
            patched.setattr("penstock.plugins.queue.http.answers.write_received", fail)
            assert (await server.ask("POST", RECEIVE, {})).status == 500
        (received,) = await server.receive()
        assert received["receive_count"] == 1


async def test_peeking_changes_nothing() -> None:
    """The oldest messages of each physical queue, as often as somebody looks."""
    async with serving() as server:
        await server.store_rows("work", "a", "b", "c", "d")
        for _ in range(2):
            answer = await server.ask("GET", "/queues/work/peek?max_messages=3")
            found = [(one["physical_queue"], one["offset"]) for one in answer.json["messages"]]
            assert found == [(0, 0), (0, 1), (1, 0)]
        assert [one["receive_count"] for one in await server.receive()] == [1] * 4


async def test_peeking_of_a_group_begins_at_its_position() -> None:
    """What the group has committed is not shown, though it may be there for others."""
    groups = {"slow": {"kind": "offsets"}, "fast": {"kind": "offsets"}}
    async with serving(queues={"log": {"physical_queues": 1, "groups": groups}}) as server:
        await server.store_rows("log", "a", "b")
        position = (await server.ask("GET", "/queues/log/position")).json
        position["offsets"]["0"] += 1
        await server.ask("POST", "/queues/log/groups/fast/commit", position)
        shown = {
            query: [
                one["offset"]
                for one in (await server.ask("GET", f"/queues/log/peek{query}")).json["messages"]
            ]
            for query in ("", "?group=slow", "?group=fast")
        }
    assert shown == {"": [0, 1], "?group=slow": [0, 1], "?group=fast": [1]}


async def test_a_visibility_timeout_of_a_receive_holds() -> None:
    """It goes before that of the group."""
    async with serving() as server:
        await server.store_rows("work", "x")
        assert len(await server.receive(visibility_timeout=0.001)) == 1
        (again,) = await server.receive(wait_seconds=LONG_SECONDS)
        assert again["receive_count"] == 2


def test_the_first_reason_decides_the_status() -> None:
    """What the client is to wait for goes before what it is to mend."""
    reasons = ["", "unreadable", "queue_full", "storage_full"]
    statuses = []
    for n in (2, 3, 4):
        with pytest.raises(AnswerError) as raised:
            message_routes._stored_answer([Stored(-1, -1, reason) for reason in reasons[:n]])
        statuses.append(raised.value.status)
    assert statuses == [400, 429, 507]
    assert raised.value.more["refused"] == dict(
        zip("123", ["unreadable", "queue_full", "storage_full"], strict=True)
    )


async def wake_ups(n_requests: int, dequeue: str) -> int:
    """Return how often the loop wakes up in five minutes in which so many requests are held."""
    wait_seconds = 600
    body = b'{"wait_seconds": %d}' % wait_seconds
    request = (
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (RECEIVE.encode(), len(body), body)
    )
    queue = {"dequeue": dequeue, "sleep_time": wait_seconds, "max_wait_seconds": wait_seconds}
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    async with serving(queues={"work": queue}) as server:
        address = urlsplit(server.url)
        connections = []
        for _ in range(n_requests):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(request)
            connections.append((reader, writer))
        await until_held(server, n_requests)
        found = await loop.skip(300)
        server.service.close_requests()
        for reader, writer in connections:
            assert b" 200 " in await reader.readline()
            writer.close()
    return found


@pytest.mark.parametrize("dequeue", ["rds", "rds+wake"])
def test_held_requests_have_no_timers_of_their_own(dequeue: str) -> None:
    """Forty held requests wake the loop as often as one does."""
    found = []
    for n_requests in (1, 40):
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            found.append(runner.run(wake_ups(n_requests, dequeue)))
    assert found[0] == found[1]
