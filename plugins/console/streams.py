"""The live tail as server-sent events, of all nodes where there are several.

A node that is watched from another one has a tail open for it as long as that asks for what is new,
again and again. It says how many records it has got: an answer that came too late is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from penstock.broker.operations_contract import Operations, Tail, TailRecord
from penstock.plugins.web.service import RequestError

if TYPE_CHECKING:
    from penstock.plugins.console.parts import Parts
    from penstock.plugins.web.nodes import Nodes

MOST_STREAMS: Final = 16
"""So many people may watch at a time."""

HEARTBEAT_SECONDS: Final = 15.0
"""A stream says something so often, so that one whose client has gone is found."""

WRITE_SECONDS: Final = 10.0
"""A client that takes nothing for so long is left."""

RECORDS_AT_ONCE: Final = 100
"""So many records are sent in one round of the loop."""


MOST_WAITING: Final = 1_000
"""So many records of all nodes wait for a client; those after them are lost."""

PAUSE_SECONDS: Final = 0.1
"""Other nodes are asked for records no more often."""

LOOK_SECONDS: Final = 0.3
"""So long another node's question waits for what happens."""

FORGOTTEN_SECONDS: Final = 5.0
"""A tail for another node that has not asked for so long is closed."""


class _Watched:
    """A tail that another node has open here, and has got so many records from."""

    def __init__(self, tail: Tail, n_got: int) -> None:
        self.tail = tail
        self.batches = _batches(tail, LOOK_SECONDS)
        self.is_asked = asyncio.Lock()
        self.last: list[TailRecord] = []
        self.n_sent = n_got
        self.closing: asyncio.TimerHandle | None = None


class _WholeTail:
    """A tail of all nodes; a `Tail`."""

    def __init__(self, own: Tail, nodes: Nodes, narrowed: Mapping[str, Any]) -> None:
        self.n_lost = 0
        self._own = own
        self._records: asyncio.Queue[TailRecord | None] = asyncio.Queue()
        self._n_full = 0
        self._following = asyncio.create_task(self._follow(), name="console tail")
        watch = self._watch(nodes, secrets.token_hex(8), narrowed)
        self._watching = asyncio.create_task(watch, name="console tail of nodes")

    def _put(self, record: TailRecord) -> None:
        if self._records.qsize() < MOST_WAITING:
            self._records.put_nowait(record)
        else:
            self._n_full += 1

    async def _follow(self) -> None:
        async for record in self._own:
            self._put(record)
        self._records.put_nowait(None)

    async def _watch(self, nodes: Nodes, name: str, narrowed: Mapping[str, Any]) -> None:
        counted: dict[str, int] = {}
        got: dict[str, int] = {}
        while True:
            pause = asyncio.create_task(asyncio.sleep(PAUSE_SECONDS))
            answers = await nodes.ask(nodes.others, "tail", name, dict(narrowed), got)
            for node, answer in answers.items():
                counted[node] = answer["n_lost"]
                got[node] = answer["n_sent"]
                for record in answer["records"]:
                    self._put(TailRecord(*record))
            self.n_lost = self._own.n_lost + self._n_full + sum(counted.values())
            await pause

    def __aiter__(self) -> AsyncIterator[TailRecord]:
        return self

    async def __anext__(self) -> TailRecord:
        record = await self._records.get()
        if record is None:
            raise StopAsyncIteration
        return record

    def close(self) -> None:
        """Watch nothing more, and end the iterator."""
        self._watching.cancel()
        self._own.close()


class Streams:
    """The open streams."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tails: set[Tail] = set()
        self._watched: dict[str, _Watched] = {}

    async def more(
        self, name: str, narrowed: Mapping[str, Any], got: Mapping[str, int]
    ) -> dict[str, Any]:
        """Answer another node with what has happened here since the records that it has got."""
        nodes = self._parts.nodes
        n_got = 0 if nodes is None else got.get(nodes.node, 0)
        one = self._watched.get(name)
        if one is None:
            tail = self._parts.need().tail(**narrowed)
            if tail is None:
                return {"records": [], "n_sent": 0, "n_lost": 0}
            one = self._watched[name] = _Watched(tail, n_got)
        if one.closing is not None:
            one.closing.cancel()
        loop = asyncio.get_running_loop()
        one.closing = loop.call_later(FORGOTTEN_SECONDS, self._forget, name)
        async with one.is_asked:
            if n_got == one.n_sent:
                one.last = await anext(one.batches, [])
                one.n_sent += len(one.last)
            return {"records": one.last, "n_sent": one.n_sent, "n_lost": one.tail.n_lost}

    def _forget(self, name: str) -> None:
        self._watched.pop(name).tail.close()

    async def serve(
        self, request: web.Request, operations: Operations, may_watch: Callable[[], bool]
    ) -> web.StreamResponse:
        """Answer with what happens until the client leaves or the program stops.

        Raises:
            RequestError: too many are open, the filter is wrong, or there is no tail.
        """
        if len(self._tails) >= MOST_STREAMS:
            raise RequestError(f"tail: read one more; allowed: {MOST_STREAMS} at a time", 503)
        query = request.query
        narrowed = {
            "topic_filter": query.get("filter") or None,
            "client_id": query.get("client") or None,
            "address": query.get("address") or None,
        }
        tail = operations.tail(**narrowed)
        if tail is None:
            raise RequestError("tail: read a program without one; allowed: a broker", 404)
        if self._parts.nodes is not None:
            tail = _WholeTail(tail, self._parts.nodes, narrowed)
        self._tails.add(tail)
        try:
            answer = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
            answer.content_type = "text/event-stream"
            with contextlib.suppress(ConnectionError):
                await answer.prepare(request)
                await self._send(answer, tail, may_watch)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # there is no way to end the answer
        finally:
            self._tails.discard(tail)
            tail.close()
        return answer

    async def _send(
        self, answer: web.StreamResponse, tail: Tail, may_watch: Callable[[], bool]
    ) -> None:
        n_lost = 0
        async for records in _batches(tail, HEARTBEAT_SECONDS):
            if not may_watch():
                break
            pieces = [_event("record", record._asdict()) for record in records]
            if tail.n_lost > n_lost:
                pieces.append(_event("lost", {"records": tail.n_lost - n_lost}))
                n_lost = tail.n_lost
            async with asyncio.timeout(WRITE_SECONDS):
                await answer.write(b"".join(pieces) or b":\n\n")
        await answer.write(_event("end", {}))
        await answer.write_eof()

    def close(self) -> None:
        """End all streams."""
        for tail in list(self._tails):
            tail.close()
        for one in self._watched.values():
            one.tail.close()
            if one.closing is not None:
                one.closing.cancel()


async def _batches(tail: Tail, longest_seconds: float) -> AsyncGenerator[list[TailRecord], None]:
    """Yield the records that are there, together; none where nothing happens for so long."""
    records = aiter(tail)
    following: asyncio.Task[TailRecord | None] | None = None
    try:
        while True:
            batch: list[TailRecord] = []
            patience = longest_seconds
            while len(batch) < RECORDS_AT_ONCE:
                if following is None:
                    following = asyncio.create_task(_next(records), name="console tail")
                await asyncio.wait((following,), timeout=patience)
                if not following.done():
                    break
                record = following.result()
                following = None
                if record is None:
                    if batch:
                        yield batch
                    return
                batch.append(record)
                patience = 0.0  # only what is there already
            yield batch
    finally:
        if following is not None:
            following.cancel()


async def _next(records: AsyncIterator[TailRecord]) -> TailRecord | None:
    """Return the next record; None at the end."""
    return await anext(records, None)


def _event(kind: str, data: object) -> bytes:
    """Return an event; JSON has no line breaks."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
