"""Routes of readers that read ranges and commit positions."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from penstock.plugins.queue.client import is_same_incarnation
from penstock.plugins.queue.engines.contract import IncarnationError, Position
from penstock.plugins.queue.http import answers, arrow
from penstock.plugins.queue.http.context import Context, query_of
from penstock.plugins.queue.http.requests import (
    MAX_OFFSET,
    optional_integer,
    read_position,
    read_start,
    seconds,
)
from penstock.plugins.web.service import CHECK_ROOM, integer

MAX_RANGE_MESSAGES: Final = 100_000

RANGES_AT_A_TIME: Final = 4
"""Answers of some megabytes that are made concurrently. Each is handed over before the next one
begins, for which there may be no room then (`penstock.plugins.web.guard`)."""


class Positions:
    """The routes and their answers.

    Args:
        context: shared by all routes.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._making_ranges = asyncio.Semaphore(RANGES_AT_A_TIME)

    async def locate(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}/position``."""
        context = self._context
        queue = context.queue(request, "read")
        start = read_start("at", query_of(request, ["at"]).get("at", "earliest"))
        return web.json_response(position_json(await context.service.engine.locate(queue, start)))

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/plan``."""
        context = self._context
        queue = context.queue(request, "read")
        body = await context.object(
            request, "incarnation", "offsets", "max_messages", "max_bytes", "wait_seconds"
        )
        most = context.service.queue(queue).spec.max_wait_seconds
        wait = seconds("wait_seconds", body.get("wait_seconds", 0), most)
        start = read_position(body, context.service.engine.outline(queue).incarnation)
        end = await context.service.plan(
            queue,
            start,
            optional_integer(body, "max_messages"),
            optional_integer(body, "max_bytes"),
            wait,
        )
        return web.json_response(position_json(end))

    async def range(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}/physical/{number}/range``."""
        context = self._context
        queue = context.queue(request, "read")
        content_type = answers.accepted_type(request)
        query = query_of(request, ["start", "end", "max_messages", "incarnation"])
        number = integer("physical queue", request.match_info["number"], 0, MAX_OFFSET, int)
        start = integer("start", query.get("start"), 0, MAX_OFFSET, int)
        end = integer("end", query.get("end"), 0, MAX_OFFSET, int)
        most = query.get("max_messages", str(MAX_RANGE_MESSAGES))
        max_messages = integer("max_messages", most, 1, MAX_OFFSET, int)
        if content_type == arrow.CONTENT_TYPE:
            await arrow.load()
        engine = context.service.engine
        async with self._making_ranges:
            request.app[CHECK_ROOM]()
            incarnation = engine.outline(queue).incarnation
            if not is_same_incarnation(query.get("incarnation", incarnation), incarnation):
                raise IncarnationError(queue, query["incarnation"][:80], incarnation)
            max_messages = min(max_messages, MAX_RANGE_MESSAGES)
            frames = await engine.read(queue, number, start, end, max_messages)
            pieces = await context.slicer.run(answers.write_range(frames, content_type))
        return await context.send_pieces(request, pieces, content_type)

    async def commit(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/groups/{group}/commit``."""
        context = self._context
        queue, group = context.queue(request, "read"), request.match_info["group"]
        position = read_position(await context.object(request, "incarnation", "offsets"))
        position = await context.service.engine.commit(queue, group, position)
        context.has_room_again(queue)
        return web.json_response(position_json(position))

    async def seek(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/groups/{group}/seek``."""
        context = self._context
        queue, group = context.queue(request, "admin"), request.match_info["group"]
        body = await context.object(request, "to")
        start = read_start("to", body.get("to"))
        position = await context.service.engine.seek(queue, group, start)
        context.has_room_again(queue)
        return web.json_response(position_json(position))


def position_json(position: Position) -> dict[str, Any]:
    """Return a position as JSON has it."""
    offsets = {str(number): offset for number, offset in sorted(position.offsets.items())}
    return {"incarnation": position.incarnation, "offsets": offsets}
