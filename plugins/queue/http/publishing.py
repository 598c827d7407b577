"""The routes of batches: some requests stage rows, and one publishes them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping
from typing import Any, Final

from aiohttp import web

from penstock.broker.counters import count
from penstock.plugins.queue.access import ALL_QUEUES, Caller
from penstock.plugins.queue.http import messages
from penstock.plugins.queue.http.requests import (
    JSON_TYPE,
    MAX_OFFSET,
    AnswerError,
    Context,
    no_json,
    object_of,
    read_body,
    text_of,
)
from penstock.plugins.queue.publishing.batches import Batches
from penstock.plugins.queue.publishing.rows import StagedRow, new_row
from penstock.plugins.queue.publishing.stage_file import BatchKey, Publication, StageKey
from penstock.plugins.web.json_text import JsonTextError, read_json
from penstock.plugins.web.service import RequestError, integer, show

ROW_KEYS: Final = frozenset({"payload", "properties", "qos", "retain", "text", "topic"})

NAME_FORM: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
NAME_ALLOWED: Final = "1 to 128 letters, digits, dots, colons, dashes and underscores"

MAX_STAGES: Final = 100_000
"""The most stages of one batch, which is more than the tasks of a batch."""

MAX_WAIT_SECONDS: Final = 60.0

ROWS_IN_A_STEP: Final = 50
"""How many rows are judged before other tasks of the loop run."""

Reading = Generator[None, None, list[StagedRow]]


class Publishing:
    """The routes and their answers."""

    def __init__(self, context: Context, batches: Batches | None) -> None:
        self._context = context
        self._batches = batches

    def _enter(self, request: web.Request) -> tuple[Batches, Caller]:
        caller = self._context.allow(request, ALL_QUEUES, "publish")
        if self._batches is None:
            raise RequestError(
                "read a request to publish; allowed: none, as the policy file has no "
                "plugins.queue.publishing",
                404,
            )
        return self._batches, caller

    async def stage(self, request: web.Request) -> web.StreamResponse:
        """``PUT /stages/{writer}/{stage}/{place}``."""
        batches, caller = self._enter(request)
        key = StageKey(caller.name, _name(request, "writer"), _name(request, "stage"))
        place = integer("place", request.match_info["place"], 0, MAX_OFFSET, int)
        try:
            async with read_body(request, self._context.bodies, [JSON_TYPE]) as data:
                sender = messages.Sender(caller, self._context.clock())
                rows = await self._context.slicer.run(_read(data, sender))
            for index, row in enumerate(rows):
                problem = await batches.problem(caller.name, row)
                if problem:
                    raise _row_error(index, f"messages[{index}]: {problem}")
                if not (index + 1) % ROWS_IN_A_STEP:
                    await asyncio.sleep(0)
        except RequestError:
            count(batches.counts.refused, "row")
            raise
        total = await batches.stage(key, place, rows)
        return web.json_response({"rows": total})

    async def give_up(self, request: web.Request) -> web.StreamResponse:
        """``DELETE /stages/{writer}``."""
        batches, caller = self._enter(request)
        n_stages = await batches.drop(caller.name, _name(request, "writer"))
        return web.json_response({"stages": n_stages})

    async def publish(self, request: web.Request) -> web.StreamResponse:
        """``PUT /batches/{query}/{batch}``."""
        batches, caller = self._enter(request)
        key = BatchKey(
            caller.name,
            _name(request, "query"),
            integer("batch", request.match_info["batch"], 0, MAX_OFFSET, int),
        )
        body = await self._context.object(request, "writer", "stages", "wait_seconds")
        writer = _check_name("writer", text_of(body, "writer", ""))
        wait = body.get("wait_seconds", 0)
        if not isinstance(wait, (int, float)) or not 0 <= wait <= MAX_WAIT_SECONDS:
            raise RequestError(
                f"wait_seconds: read {show(wait)}; allowed: 0 to {MAX_WAIT_SECONDS:g} seconds"
            )
        done = await batches.commit(key, writer, _stages(body.get("stages")))
        one, obstacle = done.publication, ""
        if not one.is_finished:
            one, obstacle = await batches.wait(key, wait)
        return web.json_response(_publication(one, obstacle, is_repeat=done.is_repeat))


def _publication(one: Publication, obstacle: str, *, is_repeat: bool) -> dict[str, Any]:
    return {
        "finished": one.is_finished,
        "repeated": is_repeat,
        "rows": one.n_rows,
        "done": one.n_done,
        "unpublished": dict(one.unpublished),
        "obstacle": obstacle,
    }


def _name(request: web.Request, key: str) -> str:
    return _check_name(key, request.match_info[key])


def _check_name(key: str, name: str) -> str:
    if not NAME_FORM.fullmatch(name):
        raise RequestError(f"{key}: read {show(name)}; allowed: {NAME_ALLOWED}")
    return name


def _stages(given: Any) -> list[tuple[str, int]]:
    """Return the name and rows of each stage of a commit."""
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_STAGES:
        read = f"{len(given)} stages" if isinstance(given, list) else show(given)
        raise RequestError(f"stages: read {read}; allowed: a list of 1 to {MAX_STAGES}")
    stages: dict[str, int] = {}
    for index, one in enumerate(given):
        path = f"stages[{index}]"
        row = object_of(one, path, frozenset({"name", "rows"}))
        name = _check_name(f"{path}.name", text_of(row, "name", f"{path}."))
        if name in stages:
            raise RequestError(f"{path}.name: read {show(name)} again; allowed: each once")
        stages[name] = integer(f"{path}.rows", row.get("rows"), 1, MAX_OFFSET)
    return list(stages.items())


def _read(data: bytearray, sender: messages.Sender) -> Reading:
    """Read the rows of a JSON body; a work for `penstock.plugins.web.cooperative_work.Slicer`."""
    try:
        body = yield from read_json(data)
    except JsonTextError as error:
        raise no_json(error) from error
    rows = messages.rows_of(object_of(body, "body", frozenset({"messages"})))
    found: list[StagedRow] = []
    for index, row in enumerate(rows):
        try:
            found.append((yield from _row(row, f"messages[{index}].", sender)))
        except RequestError as error:
            raise _row_error(index, str(error)) from error
        yield
    return found


def _row(row: Any, path: str, sender: messages.Sender) -> Generator[None, None, StagedRow]:
    row = object_of(row, path.removesuffix("."), ROW_KEYS)
    retain = row.get("retain", False)
    if not isinstance(retain, bool):
        raise RequestError(f"{path}retain: read {show(retain)}; allowed: true or false")
    new = yield from messages.read_row(row, path, sender)
    message = new.message
    return new_row(
        message.topic,
        message.read_payload(),
        message.qos,
        retain=retain,
        properties=message.properties,
    )


def _row_error(index: int, text: str) -> AnswerError:
    more: Mapping[str, Any] = {"index": index}
    return AnswerError(text, 400, more)
