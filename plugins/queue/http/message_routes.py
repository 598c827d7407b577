"""The routes that store, receive, settle and show messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.append_buffer import DROP_REASONS, Stored
from penstock.plugins.queue.engines.contract import (
    Action,
    NewMessage,
    RangeGoneError,
    StorageError,
    StorageFullError,
)
from penstock.plugins.queue.http import answers, arrow, messages
from penstock.plugins.queue.http.requests import (
    JSON_TYPE,
    MAX_SECONDS,
    AnswerError,
    Context,
    query_of,
    read_action,
    read_body,
    read_handles,
    seconds,
)
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.wire.frames import BATCH_CONTENT_TYPE, NOT_ACKNOWLEDGED_HEADER
from penstock.plugins.web.service import CHECK_ROOM, SEND_PIECES, RequestError, integer

MAX_HANDLES: Final = 10_000
MAX_ACKNOWLEDGED: Final = 1_000
"""The most receipt handles that one receive acknowledges, because a header tells which ones
failed."""
MAX_PEEKED: Final = 1_000
MAX_BYTES: Final = 2**40
MESSAGES_IN_A_STEP: Final = 500
"""How many messages of a request the engine gets before other tasks of the loop run."""
HANDLES_IN_A_STEP: Final = 100
"""How many receipt handles are settled before other tasks of the loop run. Making a dead letter of
one takes some 10 µs."""

_STATUS_OF: Final = {
    "storage_error": 503,
    "closing": 503,
    "storage_full": 507,
    "queue_full": 429,
    "pending_full": 429,
    "unreadable": 400,
}
"""The HTTP status by the reason of a refusal. Of several reasons, the first in this order
decides."""

DUPLICATE: Final = "duplicate"


class MessageRoutes:
    """The routes and their answers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def store(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/messages``."""
        context = self._context
        queue, caller = context.enter(request, "write")
        readers = {JSON_TYPE: messages.read_rows, BATCH_CONTENT_TYPE: messages.read_frames}
        if request.content_type == arrow.CONTENT_TYPE:
            _check_arrow()
            await arrow.load()
        if arrow.IS_INSTALLED:
            readers[arrow.CONTENT_TYPE] = messages.read_arrow
        async with read_body(request, context.bodies, list(readers)) as data:
            reader = readers[request.content_type]
            sender = messages.Sender(caller, context.clock())
            new = await context.slicer.run(reader(data, sender))
        outcomes = await self._store(queue, new)
        return _stored_answer(outcomes, await context.slicer.run(_ids(outcomes)))

    async def _store(self, queue: str, new: Sequence[NewMessage]) -> list[Stored]:
        """Store messages, some of them in each round of the loop."""
        tasks: list[asyncio.Task[Sequence[Stored]]] = []
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(new), MESSAGES_IN_A_STEP):
                some = new[start : start + MESSAGES_IN_A_STEP]
                name = f"store messages {start} to {start + len(some)} of a request"
                tasks.append(group.create_task(self._store_some(queue, some), name=name))
                await asyncio.sleep(0)
        return [one for task in tasks for one in task.result()]

    async def _store_some(self, queue: str, some: Sequence[NewMessage]) -> Sequence[Stored]:
        try:
            return await self._context.service.queue(queue).buffer.store(some)
        except StorageError as error:
            reason = "storage_full" if isinstance(error, StorageFullError) else "storage_error"
            return [Stored(-1, -1, reason)] * len(some)

    async def receive(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/groups/{group}/receive``."""
        context = self._context
        queue, group = context.queue(request, "read"), request.match_info["group"]
        content_type = answers.accepted_type(request)
        body = await context.object(
            request,
            "max_messages",
            "wait_seconds",
            "visibility_timeout",
            "min_messages",
            "min_bytes",
            "acknowledge",
        )
        asked = self._receive_request(queue, body)
        handles: Sequence[str] = ()
        if "acknowledge" in body:
            handles = read_handles(body, MAX_ACKNOWLEDGED, "acknowledge")
        if content_type == arrow.CONTENT_TYPE:
            await arrow.load()
        request.config_dict[CHECK_ROOM]()
        headers: dict[str, str] = {}
        if handles:
            # First: this may be what makes room for leases, or the next message of a key visible.
            failed = await self._settle(queue, group, "ack", handles, 0.0)
            if failed:
                headers[NOT_ACKNOWLEDGED_HEADER] = _by_reason(failed)
        deliveries = await context.service.queue(queue).receive(group, asked)
        try:
            pieces = await context.slicer.run(answers.write_received(deliveries, content_type))
        except BaseException:
            context.service.engine.give_back(queue, group, deliveries)
            raise
        return await request.config_dict[SEND_PIECES](request, pieces, content_type, headers)

    def _receive_request(self, queue: str, body: Mapping[str, Any]) -> ReceiveRequest:
        spec = self._context.service.queue(queue).spec
        n_max = integer("max_messages", body.get("max_messages", spec.n_max), 1, spec.n_max)
        visibility_timeout = body.get("visibility_timeout")
        return ReceiveRequest(
            n_max,
            seconds("wait_seconds", body.get("wait_seconds", 0), spec.max_wait_seconds),
            (
                None
                if visibility_timeout is None
                else seconds(
                    "visibility_timeout", visibility_timeout, MAX_SECONDS, is_zero_allowed=False
                )
            ),
            integer("min_messages", body.get("min_messages", 1), 1, n_max),
            integer("min_bytes", body.get("min_bytes", 0), 0, MAX_BYTES),
        )

    async def settle(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/groups/{group}/settle``."""
        context = self._context
        queue, group = context.queue(request, "read"), request.match_info["group"]
        body = await context.object(request, "action", "receipt_handles", "seconds")
        action = read_action(body)
        handles = read_handles(body, MAX_HANDLES)
        later = seconds("seconds", body.get("seconds", 0), MAX_SECONDS)
        if action == "extend" and "seconds" not in body:
            raise RequestError("seconds: read nothing; allowed: seconds, as the action is extend")
        failed = await self._settle(queue, group, action, handles, later)
        return web.json_response(
            {
                "settled": len(handles) - len(failed),
                "failed": {str(index): why for index, why in sorted(failed.items())},
            }
        )

    async def _settle(
        self, queue: str, group: str, action: Action, handles: Sequence[str], later: float
    ) -> Mapping[int, str]:
        """Settle receives, some of them in each round of the loop."""
        settle = self._context.service.settle
        if len(handles) <= HANDLES_IN_A_STEP:
            return await settle(queue, group, action, handles, later)
        found: dict[int, Mapping[int, str]] = {}
        errors: list[PenstockError] = []

        async def settle_some(start: int) -> None:
            some = handles[start : start + HANDLES_IN_A_STEP]
            try:
                found[start] = await settle(queue, group, action, some, later)
            except PenstockError as error:  # the others go on: a settle may be repeated
                errors.append(error)

        async with asyncio.TaskGroup() as tasks:
            for start in range(0, len(handles), HANDLES_IN_A_STEP):
                tasks.create_task(settle_some(start), name=f"settle from receipt handle {start}")
                await asyncio.sleep(0)
        if errors:
            raise errors[0]
        return {start + index: why for start, some in found.items() for index, why in some.items()}

    async def peek(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}/peek``."""
        context = self._context
        queue = context.queue(request, "read")
        query = query_of(request, ["max_messages", "group"])
        missing = integer("max_messages", query.get("max_messages", "10"), 1, MAX_PEEKED, int)
        engine = context.service.engine
        snapshot = engine.snapshot(queue)
        begin: Mapping[int, int] = {}
        if "group" in query:
            group = snapshot.groups.get(query["group"])
            if group is None:
                raise unknown_group(query["group"], snapshot.groups)
            begin = group.position
        request.config_dict[CHECK_ROOM]()
        found: list[tuple[int, Sequence[bytes]]] = []
        for number, held in sorted(snapshot.usage.items()):
            start = max(begin.get(number, 0), held.earliest)
            if start < held.next and missing:
                try:
                    frames = await engine.read(queue, number, start, held.next, missing)
                except RangeGoneError as error:  # meanwhile
                    start = min(error.earliest, held.next)
                    frames = await engine.read(queue, number, start, held.next, missing)
                missing -= answers.count(frames)
                found.append((number, frames))
        return await context.send(request, answers.write_peeked(found), JSON_TYPE)


def _by_reason(failed: Mapping[int, str]) -> str:
    """Return what is wrong with receipt handles as a short JSON text."""
    indexes: dict[str, list[int]] = {}
    for index, why in sorted(failed.items()):
        indexes.setdefault(why, []).append(index)
    return json.dumps(indexes, separators=(",", ":"))


def unknown_group(name: str, groups: Mapping[str, Any]) -> RequestError:
    """Return the error of a group that a queue does not have."""
    allowed = ", ".join(sorted(groups)) or "none, the queue has no groups"
    return RequestError(f"group: read {name[:80]}; allowed: {allowed}", 404)


def _check_arrow() -> None:
    if not arrow.IS_INSTALLED:
        raise RequestError(
            f"Content-Type: read {arrow.CONTENT_TYPE}; allowed: {JSON_TYPE}, "
            f"{BATCH_CONTENT_TYPE}; for Arrow, the server lacks pyarrow",
            415,
        )


def _ids(outcomes: Sequence[Stored]) -> Generator[None, None, list[str | None]]:
    """Return by what each message is known to its receivers; None where that is not known."""
    found: list[str | None] = []
    for start in range(0, len(outcomes), MESSAGES_IN_A_STEP):
        found += [
            None if offset < 0 or number < 0 else f"{number}-{offset}"
            for number, offset, _ in outcomes[start : start + MESSAGES_IN_A_STEP]
        ]
        yield
    return found


def _stored_answer(outcomes: Sequence[Stored], ids: Sequence[str | None] = ()) -> web.Response:
    """Return the answer to messages that were stored or not."""
    duplicates = [index for index, one in enumerate(outcomes) if one.reason == DUPLICATE]
    refused = {
        str(index): one.reason
        for index, one in enumerate(outcomes)
        if one.reason not in ("", DUPLICATE)
    }
    stored = len(outcomes) - len(duplicates) - len(refused)
    more = {"stored": stored, "ids": ids, "duplicates": duplicates, "refused": refused}
    if not refused:
        return web.json_response(more)
    reasons = set(refused.values())
    status = next((code for reason, code in _STATUS_OF.items() if reason in reasons), 503)
    why = "; ".join(f"{one}: {DROP_REASONS.get(one, one)}" for one in sorted(reasons))
    raise AnswerError(f"{len(refused)} messages refused, {stored} stored; {why}", status, more)
