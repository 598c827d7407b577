"""An engine on a store, with one queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.plugins.queue.engines.contract import (
    AppendResult,
    Engine,
    GroupSpec,
    NewMessage,
    QueueSpec,
)
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.store import Store
from tests.helpers.clock import Clock
from tests.plugins.queue.running import LOGGER, message

GROUPS = {"g": GroupSpec(), "r": GroupSpec(kind="offsets")}


@asynccontextmanager
async def running_engine(
    of: Store, *, clock: Callable[[], float] | None = None, groups: Sequence[str] = ("g",)
) -> AsyncIterator[LocalEngine]:
    """Open an engine with the queue `q` of one physical queue, and some of `GROUPS`."""
    engine = LocalEngine(of, clock=clock or Clock(), commit_max_messages=1000, logger=LOGGER)
    await engine.open()
    if "q" not in engine.queues():
        spec = QueueSpec(physical_queues=1, groups={name: GROUPS[name] for name in groups})
        await engine.create_queue("q", spec)
    try:
        yield engine
    finally:
        await engine.close()


async def put(engine: Engine, *payloads: bytes, **more: Any) -> AppendResult:
    """Have messages stored in one transaction."""
    assert engine.reserve("q", len(payloads), sum(map(len, payloads)))
    return await engine.append("q", 0, [NewMessage(message(each, **more)) for each in payloads])


async def payloads(engine: Engine, n_max: int = 9) -> list[bytes]:
    """Receive messages; return their payloads."""
    return [one.payload for one in await engine.lease("q", "g", 0, n_max, 10**9)]
