from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.append_buffer import Stored
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    EngineStartError,
    GroupSpec,
    NewMessage,
    QueueSpec,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.service import InUseError, QueueService
from penstock.plugins.queue.strategies.enqueue import physical_queue_of
from tests.plugins.queue.running import LONG_SECONDS, Receipts, message, put, running_service, until

AT_ONCE = ReceiveRequest(10)
LONG = ReceiveRequest(10, LONG_SECONDS)


def held(service: QueueService, group: str = "default") -> int:
    """Return how many requests of a group are held."""
    requests = service.figures("q")["groups"][group].get("requests", {"held": 0})
    number: int = requests["held"]
    return number


async def test_changed_policy_file_changes_queue_and_groups(tmp_path: Path) -> None:
    """At the next start the file's settings hold; messages and other groups are kept."""
    groups: dict[str, Any] = {"a": {}, "b": {"kind": "offsets"}}
    async with running_service(folder=tmp_path, groups=groups) as service:
        await put(service, b"1")
    groups = {"a": {"visibility_timeout": 5.0}, "c": {}}
    async with running_service(folder=tmp_path, groups=groups, max_messages=9) as service:
        snapshot = service.engine.snapshot("q")
        assert snapshot.spec.max_messages == 9
        assert snapshot.groups["a"].spec.visibility_timeout == 5.0
        assert sorted(snapshot.groups) == ["a", "b", "c"]
        assert len(await service.queue("q").receive("a", AT_ONCE)) == 1


async def test_group_of_the_file_cannot_change_its_kind(tmp_path: Path) -> None:
    """The start ends with what to change; nothing is lost."""
    async with running_service(folder=tmp_path, groups={"a": {}}):
        pass
    told = "plugins.queue.queues.q.groups.a.kind: read offsets; allowed: lease, as the group exi"
    with pytest.raises(EngineStartError, match=told):
        async with running_service(folder=tmp_path, groups={"a": {"kind": "offsets"}}):
            pass


async def test_queue_of_a_request_is_there_after_a_restart(tmp_path: Path) -> None:
    """Queues that were created at run time persist with their settings."""
    async with running_service(folder=tmp_path) as service:
        await service.create("other", QueueSpec(topics=("a/#",), tags={"team": "x"}))
        await put(service, b"1", queue="other")
    async with running_service(folder=tmp_path) as service:
        assert service.names() == ["other", "q"]
        assert service.queue("other").spec.topics == ("a/#",)
        assert len(await service.queue("other").receive("default", AT_ONCE)) == 1
        await service.delete("other")
    async with running_service(folder=tmp_path) as service:
        assert service.names() == ["q"]


async def test_the_dead_letter_queue_of_a_group_is_not_deleted() -> None:
    """The error names the groups; it can be deleted when they have another one or none."""
    async with running_service() as service:
        await service.create("failed", QueueSpec())
        spec = GroupSpec(dead_letter_queue="failed")
        await service.create_group("q", "b", spec)
        await service.create_group("q", "a", spec)
        told = (
            "queue: read failed, the dead_letter_queue of q/(a, q/b|b, q/a); allowed: a queue that"
        )
        with pytest.raises(InUseError, match=told):
            await service.delete("failed")
        assert service.names() == ["failed", "q"]
        await service.change_group("q", "a", GroupSpec())
        await service.delete_group("q", "b")
        await service.delete("failed")
        assert service.names() == ["q"]


async def test_messages_under_way_to_a_queue_that_is_gone_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program has deleted it while its node was away; the others are served and kept."""
    async with running_service() as service:
        engine = service.engine
        under_way: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as patched:
            patched.setattr(engine, "append", lambda *_: under_way)
            storing = asyncio.create_task(service.queue("q").buffer.store([NewMessage(message())]))
            await asyncio.sleep(0)
        await engine.delete_queue("q")
        await engine.create_queue("late", QueueSpec())
        await asyncio.wait_for(service.maintain(), LONG_SECONDS)
        assert service.names() == ["late"]
        closing = asyncio.create_task(service.close())
        await asyncio.sleep(0)
        under_way.set_result(AppendResult([-1], (), {0: "storage_error"}))
        assert await storing == [Stored(-1, -1, "storage_error")]
        await closing


async def test_store_tells_where_each_message_is() -> None:
    """Messages are dealt round robin, in their order."""
    async with running_service(physical_queues=2) as service:
        outcomes = await service.queue("q").buffer.store(
            [NewMessage(message(b"%d" % n)) for n in range(3)]
        )
        assert outcomes == [Stored(0, 0, ""), Stored(1, 0, ""), Stored(0, 1, "")]
        again = [NewMessage(message(), b"once"), NewMessage(message(), b"once")]
        await service.queue("q").buffer.store(again[:1])
        assert [each.reason for each in await service.queue("q").buffer.store(again[1:])] == [
            "duplicate"
        ]


async def test_full_queue_stores_what_fits_and_has_room_after_an_ack() -> None:
    """A partial batch says which messages were stored; publishers are told of room."""
    async with running_service(max_messages=2) as service:
        told: list[bool] = []
        service.queue("q").buffer.on_room = lambda: told.append(True)
        outcomes = await service.queue("q").buffer.store([NewMessage(message())] * 3)
        assert [each.reason for each in outcomes] == ["", "", "queue_full"]
        assert service.queue("q").buffer.reserve(message()) == "queue_full"
        received = await service.queue("q").receive("default", AT_ONCE)
        await service.settle("q", "default", "ack", [one.receipt_handle for one in received])
        assert told == [True]
        await put(service, b"more")


@pytest.mark.parametrize("when_full", ["refuse", "drop_newest"])
async def test_what_comes_for_a_queue_that_another_program_has_just_deleted_takes_no_room(
    when_full: str,
) -> None:
    """The limit of what waits is that of all queues together."""
    async with running_service(when_full=when_full, max_messages=9) as service:
        await service.engine.delete_queue("q")
        (outcome,) = await service.queue("q").buffer.store([NewMessage(message())])
        assert outcome.reason == ("closing" if when_full == "refuse" else "")
        assert service.queue("q").buffer.requested.dropped == {"closing": 1}
        assert service._budget.n_messages == 0


@pytest.mark.parametrize("way", ["purge", "commit", "seek"])
async def test_publishers_are_told_of_room_that_others_make(way: str) -> None:
    """By whatever messages may have left."""
    groups = {"spark": {"kind": "offsets"}}
    async with running_service(max_messages=1, groups=groups) as service:
        told: list[bool] = []
        await put(service, b"a")
        service.queue("q").buffer.on_room = lambda: told.append(True)
        assert service.queue("q").buffer.reserve(message()) == "queue_full"
        if way == "purge":
            assert await service.purge("q") == 1
        elif way == "commit":
            await service.commit("q", "spark", await service.engine.locate("q", "latest"))
        else:
            await service.seek("q", "spark", "latest")
        assert told == [True]


async def test_unknown_names_are_told_with_the_known_ones() -> None:
    """Every call that names a queue says which there are."""
    async with running_service() as service:
        told = "queue: read x; allowed: q"
        with pytest.raises(UnknownQueueError, match=told):
            service.queue("x")
        for call in (
            service.settle("x", "default", "ack", []),
            service.delete("x"),
            service.change("x", QueueSpec()),
            service.create_group("x", "g", GroupSpec()),
        ):
            with pytest.raises(UnknownQueueError, match=told):
                await call
        with pytest.raises(UnknownGroupError):
            await service.queue("q").receive("x", AT_ONCE)


async def test_changed_queue_deals_and_receives_over_its_physical_queues() -> None:
    """More physical queues are used from the change on."""
    async with running_service(physical_queues=1, dequeue="rds", sleep_time=0.01) as service:
        await put(service, b"0")
        assert len(await service.queue("q").receive("default", AT_ONCE)) == 1
        spec = replace(service.engine.snapshot("q").spec, physical_queues=3)
        await service.change("q", spec)
        outcomes = await service.queue("q").buffer.store([NewMessage(message())] * 3)
        assert [each.physical_queue for each in outcomes] == [0, 1, 2]
        assert len(await service.queue("q").receive("default", AT_ONCE)) == 3


async def test_the_file_parts_no_key_until_its_queue_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A later message of each key waits for the earlier one, though the file has other numbers."""
    keys: dict[str, Any] = {"key": "topic", "groups": {"default": {"order": "key"}}}
    topics = [f"t/{number}" for number in range(20)]
    async with running_service(folder=tmp_path, physical_queues=2, **keys) as service:
        for topic in topics:
            await put(service, b"1", topic=topic)
    caplog.set_level("INFO")
    async with running_service(folder=tmp_path, physical_queues=8, **keys) as service:
        assert "queue q: physical_queues: read 8; allowed: 2, while it holds" in caplog.text
        for topic in topics:
            await put(service, b"2", topic=topic)
        receive = ReceiveRequest(100)
        leased = []
        while received := await service.queue("q").receive("default", receive):
            leased += received
        assert sorted((one.topic, one.payload) for one in leased) == sorted(
            (topic, payload) for topic in topics for payload in (b"1", b"2")
        )
        first = {one.topic: one.payload for one in reversed(leased)}
        assert set(first.values()) == {b"1"}
        await service.maintain()
        assert service.engine.outline("q").spec.physical_queues == 2
        handles = [one.receipt_handle for one in leased]
        await service.settle("q", "default", "ack", handles, 0.0)
        await service.maintain()
        assert service.engine.outline("q").spec.physical_queues == 8
        assert "queue q: it is empty: physical_queues is 8, key is topic" in caplog.text
        outcomes = await service.queue("q").buffer.store(
            [NewMessage(message(topic=one)) for one in topics]
        )
        assert [one.physical_queue for one in outcomes] == [
            physical_queue_of(one, 8) for one in topics
        ]


async def test_a_message_that_waits_when_its_queue_is_deleted_is_refused() -> None:
    """Its publisher is told, and its room is free again."""
    receipts = Receipts()
    async with running_service() as service:
        buffer = service.queue("q").buffer
        buffer._commit_wait_seconds = LONG_SECONDS
        arriving = message()
        assert buffer.reserve(arriving) == ""
        buffer.accept(arriving, receipts)
        await service.delete("q")
        assert receipts.have([ReasonCode.SERVER_SHUTTING_DOWN])
        assert service._budget.n_messages == 0
        assert buffer.counts.dropped == {"closing": 1}


async def test_requests_of_a_deleted_queue_or_group_fail() -> None:
    """Who waits is told at once; a queue of the same name is another one."""
    async with running_service(groups={"default": {}, "b": {}}) as service:
        waiting = asyncio.create_task(service.queue("q").receive("b", LONG))
        await until(lambda: held(service, "b") == 1)
        await service.delete_group("q", "b")
        with pytest.raises(UnknownGroupError, match="b"):
            await waiting
        waiting = asyncio.create_task(service.queue("q").receive("default", LONG))
        await until(lambda: held(service) == 1)
        incarnation = service.engine.snapshot("q").incarnation
        await service.delete("q")
        with pytest.raises(UnknownQueueError, match="q"):
            await waiting
        await service.create("q", QueueSpec())
        assert service.engine.snapshot("q").incarnation != incarnation
        await put(service, b"new")
        assert len(await service.queue("q").receive("default", AT_ONCE)) == 1


async def test_what_a_request_has_begun_is_so_though_its_client_has_left(tmp_path: Path) -> None:
    """The queues that are served are those of the storage, after the next maintenance at least."""
    async with running_service(folder=tmp_path) as service:
        await put(service, b"1")
        engine, served = service.engine, service.names
        changed = replace(engine.outline("q").spec, topics=("changed",))
        for begun, is_so in (
            (service.create("r", QueueSpec()), lambda: "r" in engine.queues()),
            (service.change("q", changed), lambda: engine.outline("q").spec == changed),
            (service.delete("r"), lambda: "r" not in engine.queues()),
        ):
            request = asyncio.create_task(begun)
            await asyncio.sleep(0)
            request.cancel()
            await until(is_so)
            await service.maintain()
            assert served() == sorted(engine.queues())
        assert service.queue("q").spec == changed
        await service.delete("q")


async def test_a_queue_that_is_created_while_one_of_its_name_is_deleted_is_served(
    tmp_path: Path,
) -> None:
    """It would be in the storage, and unknown to publishers and readers."""
    async with running_service(folder=tmp_path) as service:
        await put(service, b"old")
        deleting = asyncio.create_task(service.delete("q"))
        await until(lambda: "q" not in service.engine.queues())
        await asyncio.gather(deleting, service.create("q", QueueSpec(max_messages=7)))
        assert service.queue("q").spec.max_messages == 7
        await put(service, b"new")
        (received,) = await service.queue("q").receive("default", AT_ONCE)
        assert received.payload == b"new"


async def test_changes_are_told() -> None:
    """The broker's routes follow the queues that there are."""
    async with running_service() as service:
        seen: list[list[str]] = []
        service.on_change = lambda: seen.append(list(service.names()))
        await service.create("r", QueueSpec(topics=("a",)))
        await service.create("r", service.engine.snapshot("r").spec)
        await service.change("r", QueueSpec(topics=("b",)))
        await service.delete("r")
        assert seen == [["q", "r"], ["q", "r"], ["q"]]
