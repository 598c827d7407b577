"""The routes of readers that read ranges and commit positions."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import SHARE_PREFIX, validate_topic_filter
from penstock.plugins.queue.batch_format import Selection, last_offset
from penstock.plugins.queue.client import Plan
from penstock.plugins.queue.engines.contract import IncarnationError, Position
from penstock.plugins.queue.http import answers, arrow
from penstock.plugins.queue.http.requests import (
    MAX_OFFSET,
    MAX_SECONDS,
    Context,
    object_of,
    optional_integer,
    query_of,
    read_position,
    read_start,
    seconds,
    text_of,
)
from penstock.plugins.queue.service import PlanStart
from penstock.plugins.queue.wire.frames import COLUMNS, LOOKED_AT_HEADER, NEXT_OFFSET_HEADER
from penstock.plugins.web.service import CHECK_ROOM, SEND_PIECES, RequestError, integer, show

MAX_RANGE_MESSAGES: Final = 100_000

MAX_PLANNED_QUEUES: Final = 100
"""The most queues of one request. Each is looked at again whenever one of them gets a message."""

MAX_TOPIC_FILTERS: Final = 20

MAX_READER_CHARACTERS: Final = 200
"""The longest name of a group's reader."""

_START_KEYS: Final = frozenset({"incarnation", "offsets", "until"})

RANGES_AT_A_TIME: Final = 4
"""How many answers of some megabytes are made concurrently. Each is handed over before the next one
begins, for which there may be no room then (`penstock.plugins.web.connection_limits`)."""


class Positions:
    """The routes and their answers."""

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
        plans = await context.service.plan(
            {queue: PlanStart(start)},
            optional_integer(body, "max_messages"),
            optional_integer(body, "max_bytes"),
            wait,
        )
        return web.json_response(position_json(plans[queue].end))

    async def plan_queues(self, request: web.Request) -> web.StreamResponse:
        """``POST /plan``."""
        context = self._context
        caller = context.caller(request)
        body = await context.object(request, "queues", "max_messages", "max_bytes", "wait_seconds")
        asked = body.get("queues")
        if not isinstance(asked, dict) or not 1 <= len(asked) <= MAX_PLANNED_QUEUES:
            raise RequestError(
                f"queues: read {show(asked)}; allowed: an object of 1 to {MAX_PLANNED_QUEUES} "
                "queues to positions"
            )
        starts = {}
        most = MAX_SECONDS
        for name, value in asked.items():
            context.check_queue(caller, name, "read")
            position = object_of(value, f"queues.{name}", _START_KEYS)
            until = position.get("until")
            incarnation = text_of(position, "incarnation", f"queues.{name}.")
            starts[name] = PlanStart(
                read_position(position),
                until
                if until is None
                else read_position({"incarnation": incarnation, "offsets": until}).offsets,
            )
            most = min(most, context.service.queue(name).spec.max_wait_seconds)
        plans = await context.service.plan(
            starts,
            optional_integer(body, "max_messages"),
            optional_integer(body, "max_bytes"),
            seconds("wait_seconds", body.get("wait_seconds", 0), most),
        )
        return web.json_response({"queues": {name: plan_json(one) for name, one in plans.items()}})

    async def range(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}/physical/{number}/range``."""
        context = self._context
        queue = context.queue(request, "read")
        content_type = answers.accepted_type(request)
        wanted = _read_selection(request)
        query = query_of(
            request,
            ["start", "end", "max_messages", "incarnation", "columns", "topic_filter"],
            repeatable="topic_filter",
        )
        number = integer("physical queue", request.match_info["number"], 0, MAX_OFFSET, int)
        start = integer("start", query.get("start"), 0, MAX_OFFSET, int)
        end = integer("end", query.get("end"), 0, MAX_OFFSET, int)
        most = query.get("max_messages", str(MAX_RANGE_MESSAGES))
        max_messages = integer("max_messages", most, 1, MAX_OFFSET, int)
        if content_type == arrow.CONTENT_TYPE:
            await arrow.load()
        engine = context.service.engine
        async with self._making_ranges:
            request.config_dict[CHECK_ROOM]()
            incarnation = engine.outline(queue).incarnation
            if query.get("incarnation", incarnation) != incarnation:
                raise IncarnationError(queue, query["incarnation"][:80], incarnation)
            max_messages = min(max_messages, MAX_RANGE_MESSAGES)
            frames = await engine.read(queue, number, start, end, max_messages)
            next_offset = last_offset(frames[-1]) + 1 if frames else end
            pieces = await context.slicer.run(answers.write_range(frames, content_type, wanted))
        headers = {
            NEXT_OFFSET_HEADER: str(next_offset),
            LOOKED_AT_HEADER: str(answers.count(frames)),
        }
        return await request.config_dict[SEND_PIECES](request, pieces, content_type, headers)

    async def commit(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/groups/{group}/commit``."""
        context = self._context
        queue, group = context.queue(request, "read"), request.match_info["group"]
        body = await context.object(request, "incarnation", "offsets", "reader")
        reader = text_of(body, "reader", "", "")
        if len(reader) > MAX_READER_CHARACTERS:
            raise RequestError(
                f"reader: read {len(reader)} characters; allowed: {MAX_READER_CHARACTERS}"
            )
        position = read_position({name: body[name] for name in body if name != "reader"})
        position = await context.service.commit(queue, group, position, reader)
        return web.json_response(position_json(position))

    async def seek(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/groups/{group}/seek``."""
        context = self._context
        queue, group = context.queue(request, "admin"), request.match_info["group"]
        body = await context.object(request, "to")
        start = read_start("to", body.get("to"))
        position = await context.service.seek(queue, group, start)
        return web.json_response(position_json(position))


def _read_selection(request: web.Request) -> Selection:
    """Return the columns and the topic filters of a request for a range.

    Raises:
        RequestError: an unknown column, or no topic filter.
    """
    query = request.query
    columns = query.get("columns")
    names = COLUMNS if columns is None else [name for name in columns.split(",") if name]
    for name in names:
        if name not in COLUMNS:
            raise RequestError(
                f"columns: read {show(name)}; allowed: {', '.join(COLUMNS)}, with commas between "
                "them"
            )
    filters = query.getall("topic_filter", [])
    if len(filters) > MAX_TOPIC_FILTERS:
        raise RequestError(
            f"topic_filter: read {len(filters)} of them; allowed: {MAX_TOPIC_FILTERS}"
        )
    for one in filters:
        if one.startswith(SHARE_PREFIX):
            raise RequestError(
                f"topic_filter: topic filter {show(one)} is of a shared subscription; allowed: one "
                f"without {SHARE_PREFIX}"
            )
        try:
            validate_topic_filter(one)
        except MalformedPacketError as error:
            raise RequestError(f"topic_filter: {error}") from error
    return Selection(frozenset(names), tuple(filters))


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    ends = {
        name: {str(number): offset for number, offset in sorted(offsets.items())}
        for name, offsets in (("earliest", plan.earliest), ("latest", plan.latest))
    }
    return position_json(plan.end) | ends


def position_json(position: Position) -> dict[str, Any]:
    """Return a position as JSON has it."""
    offsets = {str(number): offset for number, offset in sorted(position.offsets.items())}
    return {"incarnation": position.incarnation, "offsets": offsets}
