from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from penstock.plugins.queue.engines.contract import Action
from penstock.plugins.queue.engines.requests import Run
from penstock.plugins.queue.engines.sqlite import SqliteStore
from tests.plugins.queue.engines.local_engine import payloads, put, running_engine
from tests.plugins.queue.running import until


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_is_settled_at_the_moment_of_a_seek_is_replayed_after_a_restart_too(
    tmp_path: Path, *, is_first: bool
) -> None:
    """The storage would have it as settled, and the group would not."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path, "normal"), groups=("g", "r")) as engine:
        await put(engine, b"a", b"b")
        received = await engine.lease("q", "g", 0, 2, 99)
        may_go = threading.Event()
        engine._state.submit(Run(may_go.wait, None, None))
        changes = [
            engine.settle("q", "g", "ack", [received[1].receipt_handle]),
            engine.seek("q", "g", "earliest"),
        ]
        both = asyncio.gather(*changes if is_first else reversed(changes))
        await asyncio.sleep(0)
        may_go.set()
        await both
        assert await payloads(engine) == [b"a", b"b"]
    async with running_engine(SqliteStore(path, "normal")) as engine:
        assert await payloads(engine) == [b"a", b"b"]


def write(has_begun: threading.Event, may_end: threading.Event) -> None:
    """Keep the writing thread."""
    has_begun.set()
    may_end.wait()


@pytest.mark.parametrize("action", ["ack", "dead"])
async def test_what_is_settled_while_a_seek_is_being_written_is_replayed(
    tmp_path: Path, action: Action
) -> None:
    """Also after a restart; and none of it dies, as a receive would count that is forgotten."""
    path = str(tmp_path / "queue.db")
    async with running_engine(SqliteStore(path, "normal"), groups=("g", "r")) as engine:
        await put(engine, b"a", b"b")
        received = await engine.lease("q", "g", 0, 2, 99)
        first, writes, may_end = threading.Event(), threading.Event(), threading.Event()
        engine._state.submit(Run(first.wait, None, None))
        seeking = asyncio.create_task(engine.seek("q", "g", "earliest"))
        await asyncio.sleep(0)
        engine._state.submit(Run(partial(write, writes, may_end), None, None))
        first.set()
        await until(writes.is_set)
        settling = asyncio.create_task(
            engine.settle("q", "g", action, [received[1].receipt_handle])
        )
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(seeking, settling)
        assert engine.snapshot("q").groups["g"].settled.get(action, 0) == 0
        assert await payloads(engine) == [b"a", b"b"]
    async with running_engine(SqliteStore(path, "normal")) as engine:
        assert await payloads(engine) == [b"a", b"b"]
