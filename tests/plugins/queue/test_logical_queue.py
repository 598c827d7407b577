from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from penstock.plugins.queue import logical_queue
from penstock.plugins.queue.engines.contract import Position, StorageError
from penstock.plugins.queue.logical_queue import ANSWER_BYTES, BusyError, ReceiveRequest
from penstock.plugins.queue.service import PlanStart, QueueService
from penstock.plugins.queue.wire.frames import ReceivedMessage
from tests.helpers.clock import Clock
from tests.plugins.queue.running import LONG_SECONDS, put, put_at, running_service, until

STRATEGIES = ("conventional", "pms", "rds", "rds+wake")
HOLDING = ("pms", "rds", "rds+wake")
LONG = ReceiveRequest(10, LONG_SECONDS)


async def receive(service: QueueService, request: ReceiveRequest = LONG) -> list[ReceivedMessage]:
    """Receive from the only group of `q`."""
    return await service.queue("q").receive("default", request)


def payloads(received: Sequence[ReceivedMessage]) -> list[bytes]:
    """Return their payloads."""
    return [one.payload for one in received]


def counts(service: QueueService) -> dict[str, Any]:
    """Return the counters of requests; all zero before the first."""
    group = service.figures("q")["groups"]["default"]
    found: dict[str, Any] = group.get("requests", {"held": 0, "retries": 0, "waiting": 0})
    return found


@pytest.mark.parametrize("dequeue", HOLDING)
async def test_held_request_is_answered_when_a_message_has_come(dequeue: str) -> None:
    """A request that found nothing is kept and answered with what comes later (paper 000)."""
    clock = Clock()
    async with running_service(clock, dequeue=dequeue, sleep_time=0.005) as service:
        request = asyncio.create_task(receive(service))
        await until(lambda: counts(service)["held"] == 1)
        await put_at(service, 3, b"a")
        clock.now += 0.005
        assert payloads(await request) == [b"a"]
        assert counts(service)["waiting"] == 0


@pytest.mark.parametrize("dequeue", HOLDING)
async def test_held_request_is_answered_with_nothing_when_the_wait_ends(dequeue: str) -> None:
    """A client waits no longer than it asked for."""
    clock = Clock()
    async with running_service(clock, dequeue=dequeue, sleep_time=0.005) as service:
        request = asyncio.create_task(receive(service, ReceiveRequest(10, 0.02)))
        await until(lambda: counts(service)["held"] == 1)
        clock.now += 0.02
        assert await request == []
        assert counts(service)["retries"] >= 1
        assert counts(service)["held"] == 0


async def test_held_requests_go_by_a_changed_strategy() -> None:
    """A strategy that is changed at run time holds no request by the old one."""
    async with running_service(dequeue="rds", sleep_time=LONG_SECONDS) as service:
        request = asyncio.create_task(receive(service))
        await until(lambda: counts(service)["held"] == 1)
        spec = replace(service.queue("q").spec, dequeue="rds+wake")
        await service.change("q", spec)
        await until(lambda: counts(service)["retries"] == 2)
        await put(service, b"a")
        assert payloads(await request) == [b"a"]


async def test_a_receive_waits_for_a_storage_that_is_away_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not once for each physical queue: they would all be away."""
    monkeypatch.setattr(logical_queue, "LATE_SECONDS", 0.001)
    async with running_service(physical_queues=40) as service:
        for number in range(40):
            await put_at(service, number, b"a")
        tried: list[int] = []

        async def lease(_queue: str, _group: str, number: int, *_: Any) -> Any:
            tried.append(number)
            await asyncio.sleep(0.002)
            raise StorageError("no server takes it")

        monkeypatch.setattr(service.engine, "lease", lease)
        with pytest.raises(StorageError, match="no server takes it"):
            await receive(service, ReceiveRequest(10))
        assert len(tried) == 1


@pytest.mark.parametrize("dequeue", STRATEGIES)
async def test_tries_are_limited_as_configured(dequeue: str) -> None:
    """`max_queues_per_dequeue` bounds the physical queues that one request touches."""
    keys: dict[str, Any] = {"max_queues_per_dequeue": 4, "dequeue": dequeue}
    async with running_service(physical_queues=6, **keys) as service:
        for number in range(6):
            await put_at(service, number, b"a", b"b")
        assert len(await receive(service, ReceiveRequest(100))) == 8
        assert counts(service)["hit_dequeues"] == 4


async def test_wake_answers_when_the_minimum_is_there() -> None:
    """`min_messages` and `min_bytes` let a back end take a batch; others get single messages."""
    async with running_service(time.monotonic) as service:
        batch = asyncio.create_task(receive(service, ReceiveRequest(10, 30.0, min_messages=3)))
        large = asyncio.create_task(receive(service, ReceiveRequest(10, 30.0, min_bytes=500)))
        await until(lambda: counts(service)["held"] == 2)
        await put(service, b"a")
        await put(service, b"b")
        assert not batch.done()
        assert not large.done()
        await put(service, b"c", b"d")
        assert len(await batch) >= 3
        await put(service, bytes(600))
        assert sum(map(len, payloads(await large))) >= 500


async def test_message_that_becomes_visible_again_wakes_a_request() -> None:
    """A receiver that waits gets what another one has given up."""
    async with running_service() as service:
        await put(service, b"a")
        (first,) = await receive(service)
        request = asyncio.create_task(receive(service))
        await until(lambda: counts(service)["held"] == 1)
        await service.settle("q", "default", "nack", [first.receipt_handle])
        (again,) = await request
        assert again.receive_count == 2


async def test_answer_is_bounded_in_bytes() -> None:
    """An answer over several physical queues stays near its byte limit."""
    async with running_service(physical_queues=3) as service:
        for number in range(3):
            await put_at(service, number, *[bytes(ANSWER_BYTES // 2)] * 2)
        assert len(await receive(service, ReceiveRequest(100))) == 2
        assert counts(service)["missed_dequeues"] == 0


async def test_large_answer_is_leased_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes round between them; order and limits are those of one lease."""
    monkeypatch.setattr("penstock.plugins.queue.logical_queue.LEASE_MESSAGES", 7)
    async with running_service(time.monotonic, physical_queues=1) as service:
        await put_at(service, 0, *(b"%d" % n for n in range(30)))
        first = await receive(service, ReceiveRequest(20))
        assert payloads(first) == [b"%d" % n for n in range(20)]
        assert payloads(await receive(service, ReceiveRequest(20))) == [
            b"%d" % n for n in range(20, 30)
        ]


async def test_waiting_requests_are_bounded() -> None:
    """Past `max_waiting_requests` a request is told to come back later."""
    async with running_service(max_waiting_requests=2) as service:
        requests = [asyncio.create_task(receive(service)) for _ in range(2)]
        await until(lambda: counts(service)["waiting"] == 2)
        with pytest.raises(BusyError, match="queue q, group default: 2 requests wait; allowed: 2"):
            await receive(service)
        service.close_requests()
        assert await asyncio.gather(*requests) == [[], []]


@pytest.mark.parametrize("dequeue", HOLDING)
async def test_close_answers_who_waits(dequeue: str) -> None:
    """When the program ends, waiting requests are answered and not left hanging."""
    async with running_service(dequeue=dequeue) as service:
        requests = [asyncio.create_task(receive(service)) for _ in range(3)]
        await until(lambda: counts(service)["retries"] >= 3)
        service.close_requests()
        assert await asyncio.gather(*requests) == [[], [], []]
        assert await receive(service) == []


async def test_client_that_goes_away_leaves_its_messages_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a cancelled request had found is visible at once, and is not a receive."""
    async with running_service(physical_queues=2) as service:
        await put_at(service, 0, b"a")
        await put_at(service, 1, b"b")
        lease, reached = service.engine.lease, asyncio.Event()

        async def lease_then_wait(
            queue: str, group: str, number: int, *rest: Any
        ) -> list[ReceivedMessage]:
            if number == 1:
                reached.set()
                await asyncio.Event().wait()
            return await lease(queue, group, number, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(service.engine, "lease", lease_then_wait)
            request = asyncio.create_task(receive(service))
            await reached.wait()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        assert counts(service)["waiting"] == 0
        assert {one.receive_count for one in await receive(service)} == {1}


async def test_message_of_a_woken_request_that_goes_away_wakes_another() -> None:
    """A client that leaves at the moment of an arrival does not keep the message from others."""
    async with running_service() as service:
        first = asyncio.create_task(receive(service))
        await until(lambda: counts(service)["held"] == 1)
        second = asyncio.create_task(receive(service))
        await until(lambda: counts(service)["held"] == 2)
        receiver = service.queue("q").receivers["default"]
        wake = receiver._wake

        def wake_and_cancel(requests: Any) -> None:
            wake(requests)
            if requests and not first.done():
                first.cancel()

        receiver._wake = wake_and_cancel  # type: ignore[method-assign]
        await put(service, b"a")
        assert payloads(await second) == [b"a"]
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_ten_thousand_held_requests_need_one_task_and_one_timer() -> None:
    """What waits costs nothing until a message comes, and then what one request costs."""
    async with running_service() as service:
        before = len(asyncio.all_tasks())
        requests = [asyncio.ensure_future(receive(service)) for _ in range(10_000)]
        await until(lambda: counts(service)["held"] == 10_000)
        # The callers' own tasks, and one that waits for arrivals.
        assert len(asyncio.all_tasks()) - before <= 10_000 + 1 + 1
        rounds = counts(service)["retries"]
        await put(service, b"a")
        await until(lambda: any(request.done() for request in requests))
        assert counts(service)["retries"] - rounds <= 2
        assert sum(request.done() for request in requests) == 1
        service.close_requests()
        answers = await asyncio.gather(*requests)
        assert sum(map(len, answers)) == 1


async def test_group_is_unused_once_no_request_is_held() -> None:
    """Its expiry counts from the end of its last held request, though no message comes."""
    clock = Clock()
    groups = {"default": {"group_expiry_seconds": 60}}
    async with running_service(clock, groups=groups) as service:
        request = asyncio.create_task(receive(service, ReceiveRequest(10, 0.02)))
        await until(lambda: counts(service)["held"] == 1)
        clock.now += 0.02
        assert await request == []
        clock.now += 61
        await service.engine.maintain()
        assert "default" not in service.engine.outline("q").groups


async def test_request_that_is_held_as_the_last_one_leaves_is_woken() -> None:
    """It waits for arrivals anew: the wait of those before is ending, and wakes no one."""
    async with running_service() as service:
        first = asyncio.create_task(receive(service))
        await until(lambda: counts(service)["held"] == 1)
        first.cancel()
        second = asyncio.create_task(receive(service))  # it begins in the same round of the loop
        await asyncio.wait([first])
        await put(service, b"a")
        await until(second.done)
        assert payloads(await second) == [b"a"]


async def test_unreadable_physical_queue_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A storage error is told only where no other physical queue has a message."""
    async with running_service(physical_queues=2) as service:
        lease = service.engine.lease

        async def lease_or_fail(
            queue: str, group: str, number: int, *rest: Any
        ) -> list[ReceivedMessage]:
            if number == 0:
                raise StorageError("unreadable")
            return await lease(queue, group, number, *rest)

        monkeypatch.setattr(service.engine, "lease", lease_or_fail)
        await put_at(service, 0, b"lost")
        await put_at(service, 1, b"a")
        assert payloads(await receive(service)) == [b"a"]
        with pytest.raises(StorageError, match="unreadable"):
            await receive(service)
        assert counts(service)["waiting"] == 0


async def test_storage_error_is_freed_without_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests that fail one after the other do not fill the memory till it runs."""

    class UnreadableError(StorageError):
        """Found among all objects, if it is there."""

    async def fail(*_: object) -> list[ReceivedMessage]:
        raise UnreadableError("unreadable")

    async with running_service(physical_queues=2, dequeue="rds") as service:
        monkeypatch.setattr(service.engine, "lease", fail)
        gc.collect()
        gc.disable()
        try:
            with suppress(UnreadableError):
                await receive(service)
            assert not [each for each in gc.get_objects() if isinstance(each, UnreadableError)]
        finally:
            gc.enable()


AT_ONCE = ReceiveRequest(10)


async def plan(
    service: QueueService, start: Position, max_messages: int | None, wait_seconds: float = 0
) -> Position:
    """Return the end of the next range of the queue."""
    plans = await service.plan({"q": PlanStart(start)}, max_messages, None, wait_seconds)
    return plans["q"].end


async def test_plan_waits_for_messages() -> None:
    """A reader that has read everything gets the next range when there is one."""
    groups = {"spark": {"kind": "offsets"}}
    async with running_service(physical_queues=2, groups=groups) as service:
        start = await service.engine.locate("q", "earliest")
        assert await plan(service, start, None) == start
        planning = asyncio.create_task(plan(service, start, 10, LONG_SECONDS))
        await asyncio.sleep(0)
        await put(service, b"a")
        end = await planning
        assert dict(end.offsets) == {0: 1, 1: 0}
        again = asyncio.create_task(plan(service, end, 10, LONG_SECONDS))
        await asyncio.sleep(0)
        service.close_requests()
        assert await again == end


async def test_plan_of_a_cancelled_reader_leaves_nothing_behind() -> None:
    """A reader that goes away ends its wait."""
    async with running_service() as service:
        start = await service.engine.locate("q", "latest")
        planning = asyncio.create_task(plan(service, start, 10, LONG_SECONDS))
        await asyncio.sleep(0)
        planning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await planning
        assert not service.queue("q")._plans


async def test_figures_are_json() -> None:
    """Everything that operators see can be sent as it is."""
    async with running_service(physical_queues=2, groups={"a": {}, "b": {"kind": "offsets"}}) as s:
        await put(s, b"1", b"22")
        await s.queue("q").receive("a", AT_ONCE)
        figures = json.loads(json.dumps(s.figures("q")))
        assert (figures["name"], figures["messages"], figures["payload_bytes"]) == ("q", 2, 3)
        assert figures["physical_queues"]["1"]["messages"] == 1
        assert figures["enqueued"]["requested"]["stored"] == 2
        requests = figures["groups"]["a"]["requests"]
        assert requests["messages"] == 2
        assert requests["by_strategy"]["rds+wake"]["messages"] == 2
        assert figures["groups"]["a"]["leased"] == 2
        assert figures["groups"]["b"]["position"] == {"0": 0, "1": 0}
        assert figures["settings"]["physical_queues"] == 2


async def test_requests_are_counted_by_strategy_and_in_all() -> None:
    """A change of the strategy begins a second account; the sums go on."""
    async with running_service(dequeue="conventional", physical_queues=1) as service:
        await service.queue("q").receive("default", AT_ONCE)
        await service.change("q", replace(service.queue("q").spec, dequeue="rds+wake"))
        await put(service, b"a")
        await service.queue("q").receive("default", AT_ONCE)
        requests = service.figures("q")["groups"]["default"]["requests"]
        assert (requests["requests"], requests["messages"], requests["waiting"]) == (2, 1, 0)
        assert requests["by_strategy"]["conventional"]["missed_dequeues"] == 1
        assert requests["by_strategy"]["rds+wake"]["hit_dequeues"] == 1
