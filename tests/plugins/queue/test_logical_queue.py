from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from penstock.plugins.queue.engines.contract import Position
from penstock.plugins.queue.group_receiver import ReceiveRequest
from penstock.plugins.queue.service import PlanStart, QueueService
from tests.plugins.queue.running import LONG_SECONDS, put, running_service

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
        await s.receive("q", "a", AT_ONCE)
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
        await service.receive("q", "default", AT_ONCE)
        await service.change("q", replace(service.queue("q").spec, dequeue="rds+wake"))
        await put(service, b"a")
        await service.receive("q", "default", AT_ONCE)
        requests = service.figures("q")["groups"]["default"]["requests"]
        assert (requests["requests"], requests["messages"], requests["waiting"]) == (2, 1, 0)
        assert requests["by_strategy"]["conventional"]["missed_dequeues"] == 1
        assert requests["by_strategy"]["rds+wake"]["hit_dequeues"] == 1
