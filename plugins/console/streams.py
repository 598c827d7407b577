"""The live tail as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from penstock.broker.operations_contract import Operations, Tail, TailRecord
from penstock.plugins.web.service import RequestError

MOST_STREAMS: Final = 16
"""So many people may watch at a time."""

HEARTBEAT_SECONDS: Final = 15.0
"""A stream says something so often, so that one whose client has gone is found."""

WRITE_SECONDS: Final = 10.0
"""A client that takes nothing for so long is left."""

RECORDS_AT_ONCE: Final = 100
"""So many records are sent in one round of the loop."""


class Streams:
    """The open streams."""

    def __init__(self) -> None:
        self._tails: set[Tail] = set()

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
        tail = operations.tail(
            topic_filter=query.get("filter") or None,
            client_id=query.get("client") or None,
            address=query.get("address") or None,
        )
        if tail is None:
            raise RequestError("tail: read a program without one; allowed: a broker", 404)
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
        async for records in _batches(tail):
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


async def _batches(tail: Tail) -> AsyncIterator[list[TailRecord]]:
    """Yield the records that are there, together; none where nothing happens for long."""
    records = aiter(tail)
    following: asyncio.Task[TailRecord | None] | None = None
    try:
        while True:
            batch: list[TailRecord] = []
            patience = HEARTBEAT_SECONDS
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
