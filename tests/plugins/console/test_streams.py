from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from yarl import URL

from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.operations_contract import TailRecord
from penstock.plugins.console import streams
from penstock.plugins.console.streams import Streams
from tests.broker.serving import until
from tests.helpers.process import SECONDS
from tests.helpers.virtual import VirtualBroker
from tests.plugins.console.running import console

RECORD = TailRecord(1.0, "publish", "c", "127.0.0.1:1", "t\n", 5, 1, "x" * 10_000)


class ScriptedTail:
    """A tail whose records a test decides about.

    Attributes:
        n_lost: as in a tail.
        closed: set once nobody reads any more.
    """

    def __init__(self, n_records: int) -> None:
        self.n_lost = 0
        self.closed = asyncio.Event()
        self._n_left = n_records

    def __aiter__(self) -> AsyncIterator[TailRecord]:
        return self

    async def __anext__(self) -> TailRecord:
        """Return the next record; after the last one, wait for the end."""
        if not self._n_left:
            await self.closed.wait()
            raise StopAsyncIteration
        self._n_left -= 1
        if not self._n_left:
            self.n_lost = 3
        return RECORD

    def close(self) -> None:
        """End it."""
        self.closed.set()


def operations_with(tail: ScriptedTail) -> type[BrokerOperations]:
    """Return operations whose tail this is."""

    class WithTail(BrokerOperations):
        """Has one tail."""

        def tail(self, **_: str | None) -> ScriptedTail:  # type: ignore[override]
            """Return it."""
            return tail

    return WithTail


async def test_records_come_as_events_and_what_was_lost_is_told() -> None:
    """Each event is one line of JSON, whatever a topic has in it."""
    tail = ScriptedTail(2)
    async with (
        console(VirtualBroker(), operations_with(tail)) as plugin,
        aiohttp.ClientSession() as session,
        session.get(f"{plugin.http_url}/api/tail") as answer,
    ):
        assert answer.content_type == "text/event-stream"
        events = [(await answer.content.readuntil(b"\n\n")).decode() for _ in range(3)]
        tail.close()
        events.append((await answer.content.readuntil(b"\n\n")).decode())
    kinds = [event.split("\n")[0] for event in events]
    assert kinds == ["event: record", "event: record", "event: lost", "event: end"]
    data = [json.loads(event.split("\n")[1].removeprefix("data: ")) for event in events]
    assert data[0] == RECORD._asdict()
    assert data[2] == {"records": 3}


async def test_records_of_a_node_that_answers_too_late_come_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once each, in their order."""
    monkeypatch.setattr(streams, "PAUSE_SECONDS", 0.0)
    tails = [ScriptedTail(2 * streams.RECORDS_AT_ONCE + 1), ScriptedTail(1)]
    there = SimpleNamespace(node="b")
    watched = Streams(
        cast(
            "Any",
            SimpleNamespace(need=lambda: operations_with(tails[0])(time.monotonic), nodes=there),
        )
    )
    n_asked = 0

    async def ask(_: Iterable[str], _part: str, *args: Any) -> dict[str, Any]:
        nonlocal n_asked
        answer = await watched.more(*json.loads(json.dumps(args)))
        n_asked += 1
        return {"b": answer} if n_asked % 3 == 0 else {}

    nodes = cast("Any", SimpleNamespace(others=["b"], ask=ask))
    whole = streams._WholeTail(cast("Any", tails[1]), nodes, {})
    for _ in range(2 * streams.RECORDS_AT_ONCE + 2):
        assert await anext(whole) == RECORD
    await until(lambda: whole.n_lost == 2 * 3)
    assert whole._records.empty()
    whole.close()
    watched.close()


async def test_who_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else gets the place, and nothing waits for the reader for ever."""
    monkeypatch.setattr(streams, "WRITE_SECONDS", 0.05)
    tail = ScriptedTail(1_000_000)
    async with console(VirtualBroker(), operations_with(tail)) as plugin:
        url = URL(plugin.http_url)
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=1)
        writer.write(b"GET /api/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(tail.closed.wait(), SECONDS)
        assert not plugin._reading.streams._tails  # type: ignore[union-attr]
        writer.close()
        del reader


async def test_who_leaves_is_noticed() -> None:
    """The tail ends with its connection."""
    tail = ScriptedTail(1)
    async with (
        console(VirtualBroker(), operations_with(tail)) as plugin,
        aiohttp.ClientSession() as session,
    ):
        answer = await session.get(f"{plugin.http_url}/api/tail")
        await answer.content.readuntil(b"\n\n")
        answer.close()
        await asyncio.wait_for(tail.closed.wait(), SECONDS)
