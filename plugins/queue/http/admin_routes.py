"""The routes of operators: health, figures, and changes of queues and groups."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Generator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web
from pydantic import TypeAdapter

from penstock.broker.counters import attributes_of
from penstock.plugins.queue.access import ALL_QUEUES
from penstock.plugins.queue.config import GroupConfig, LogicalQueueConfig
from penstock.plugins.queue.engines.contract import GroupSpec, QueueSpec, UnknownQueueError
from penstock.plugins.queue.http.message_routes import unknown_group
from penstock.plugins.queue.http.requests import (
    GROUP_KEYS,
    JSON_TYPE,
    SPEC_KEYS,
    Context,
    check_role,
    optional_integer,
    read_group_spec,
    read_queue_spec,
    text_of,
)
from penstock.plugins.web.service import RequestError, error_answer, show

API_DOCUMENT: Final = Path(__file__).with_name("openapi.yaml")


@cache
def api_document() -> str:
    """Return the description of the API, with the settings that the policy file has, too."""
    document = yaml.safe_load(API_DOCUMENT.read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    for name, keys in (("QueueSettings", LogicalQueueConfig), ("GroupSettings", GroupConfig)):
        told, own = attributes_of(keys), schemas[name].setdefault("properties", {})
        for key, schema in TypeAdapter(keys).json_schema()["properties"].items():
            description = {"description": told[key].replace("None", "null")}
            own[key] = {**schema, **description, **own.get(key, {})}
            del own[key]["title"]
    return json.dumps(document)


class AdminRoutes:
    """The routes and their answers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def health(self, request: web.Request) -> web.StreamResponse:
        """``GET /health``; without a token, it names no queues."""
        service = self._context.service
        found = await service.engine.probe()
        failure = found.problem or service.engine.failure()
        if found.is_partial:
            return web.json_response({"status": "degraded", "problem": failure})
        if failure is not None:
            return error_answer(503, failure)
        names = sorted(service.engine.queues())
        aside = {name: held for name in names if (held := self._snapshot(name).set_aside)}
        if not aside:
            return web.json_response({"status": "ok"})
        caller = self._context.access.of(request)
        visible = {
            name: held for name, held in aside.items() if caller and caller.may("read", name)
        }
        return web.json_response({"status": "damaged", "set_aside": visible})

    def _snapshot(self, queue: str) -> Any:
        return self._context.service.engine.snapshot(queue)

    async def openapi(self, _: web.Request) -> web.StreamResponse:
        """``GET /openapi.json``: the description of the API."""
        text = await asyncio.to_thread(api_document)
        return web.Response(text=text, content_type=JSON_TYPE)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues``: those that the caller may see."""
        context = self._context
        caller = context.caller(request)
        names = [
            name
            for name in context.service.names()
            if caller.may("read", name) or caller.may("admin", name)
        ]
        return await context.send(request, self._write_list(names), JSON_TYPE)

    def _write_list(self, names: Sequence[str]) -> Generator[None, None, Sequence[bytes]]:
        pieces = [b'{"queues": [']
        for name in names:
            with contextlib.suppress(UnknownQueueError):  # it may be gone meanwhile
                pieces += [json.dumps(self._context.service.figures(name)).encode(), b", "]
            yield
        if len(pieces) > 1:
            del pieces[-1]
        return [*pieces, b"]}"]

    async def show(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}``."""
        queue = self._context.queue(request, "read", "admin")
        return web.json_response(self._context.service.figures(queue))

    async def put(self, request: web.Request) -> web.StreamResponse:
        """``PUT /queues/{queue}``: create it, or give it other settings."""
        context = self._context
        queue = request.match_info["queue"]
        context.allow(request, queue, "admin")
        body = await context.object(request, *SPEC_KEYS)
        spec = read_queue_spec(body)
        service = context.service
        if queue in service.names():
            held = service.engine.outline(queue).spec
            if "tags" not in body:  # among them are settings of queues that SQS has created
                spec = replace(spec, tags=held.tags)
            if "topics" not in body:  # else its publishers' messages would go nowhere from now on
                spec = replace(spec, topics=held.topics)
            await service.change(queue, spec)
        else:
            await service.create(queue, spec)
        return web.json_response(service.figures(queue))

    async def patch(self, request: web.Request) -> web.StreamResponse:
        """``PATCH /queues/{queue}``: change some settings; the others stay."""
        context = self._context
        queue = context.queue(request, "admin")
        body = await context.object(request, *SPEC_KEYS)
        held = context.service.engine.outline(queue).spec
        settings = {**_settings(replace(held, groups={}, tags={})), **body}
        if "groups" not in body:
            del settings["groups"]
        spec = read_queue_spec(settings)
        if "tags" not in body:  # those of SQS may be longer than a request may have
            spec = replace(spec, tags=held.tags)
        await context.service.change(queue, spec)
        return web.json_response(context.service.figures(queue))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """``DELETE /queues/{queue}``."""
        queue = self._context.queue(request, "admin")
        await self._context.service.delete(queue)
        return web.json_response({"deleted": True})

    async def list_groups(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}/groups``."""
        queue = self._context.queue(request, "read", "admin")
        figures = self._context.service.figures(queue)
        incarnation = figures["incarnation"]
        groups = [
            {"name": name, "incarnation": incarnation} | group
            for name, group in figures["groups"].items()
        ]
        return web.json_response({"groups": groups})

    async def show_group(self, request: web.Request) -> web.StreamResponse:
        """``GET /queues/{queue}/groups/{group}``."""
        queue = self._context.queue(request, "read", "admin")
        return self._group_answer(queue, request.match_info["group"])

    def _group_answer(self, queue: str, group: str) -> web.Response:
        figures = self._context.service.figures(queue)
        if group not in figures["groups"]:
            raise unknown_group(group, figures["groups"])
        named = {"name": group, "incarnation": figures["incarnation"]}
        return web.json_response(named | figures["groups"][group])

    async def put_group(self, request: web.Request) -> web.StreamResponse:
        """``PUT /queues/{queue}/groups/{group}``: create it, or give it other settings."""
        context = self._context
        queue, group = context.queue(request, "admin"), request.match_info["group"]
        spec = read_group_spec(await context.object(request, *GROUP_KEYS))
        if group in self._context.service.engine.outline(queue).groups:
            await context.service.change_group(queue, group, spec)
        else:
            await context.service.create_group(queue, group, spec)
        return self._group_answer(queue, group)

    async def patch_group(self, request: web.Request) -> web.StreamResponse:
        """``PATCH /queues/{queue}/groups/{group}``: change some settings; the others stay."""
        context = self._context
        queue, group = context.queue(request, "admin"), request.match_info["group"]
        body = await context.object(request, *GROUP_KEYS)
        groups = context.service.engine.outline(queue).groups
        if group not in groups:
            raise unknown_group(group, groups)
        spec = read_group_spec({**_settings(groups[group].spec), **body})
        await context.service.change_group(queue, group, spec)
        return self._group_answer(queue, group)

    async def delete_group(self, request: web.Request) -> web.StreamResponse:
        """``DELETE /queues/{queue}/groups/{group}``."""
        context = self._context
        queue, group = context.queue(request, "admin"), request.match_info["group"]
        await context.service.delete_group(queue, group)
        return web.json_response({"deleted": True})

    async def purge(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/purge``."""
        context = self._context
        queue = context.queue(request, "admin")
        await context.object(request)
        removed = await context.service.purge(queue)
        return web.json_response({"removed": removed})

    async def redrive(self, request: web.Request) -> web.StreamResponse:
        """``POST /queues/{queue}/redrive``."""
        context = self._context
        queue, caller = context.enter(request, "admin")
        body = await context.object(request, "target", "max_messages")
        target = text_of(body, "target", "") if "target" in body else None
        if target is not None:
            check_role(caller, target, "write")
        most = optional_integer(body, "max_messages")
        moved = await context.service.redrive(queue, target, most)
        return web.json_response({"moved": moved})

    async def compact(self, request: web.Request) -> web.StreamResponse:
        """``POST /compact``."""
        context = self._context
        context.allow(request, ALL_QUEUES, "admin")
        await context.object(request)
        return web.json_response({"freed_bytes": await context.service.engine.compact()})

    async def backup(self, request: web.Request) -> web.StreamResponse:
        """``POST /backup``."""
        context = self._context
        context.allow(request, ALL_QUEUES, "admin")
        path = text_of(await context.object(request, "path"), "path", "")
        if not path or "\0" in path:
            raise RequestError("path: read no path; allowed: that of a new file on the server")
        if context.access.is_open:
            _check_beside(path, context.service.engine.figures().get("path"))
        return web.json_response({"bytes": await context.service.engine.backup(path)})


def _settings(spec: QueueSpec | GroupSpec) -> dict[str, Any]:
    """Return settings as a request has them."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(spec)))
    return found


def _check_beside(path: str, database: str | None) -> None:
    """Check that a copy is to be in the folder of the database: callers need no token.

    Every account of the machine may call then, and must not have files written elsewhere as the
    user of the broker, who may be root.

    Raises:
        RequestError: 403, it is to be elsewhere.
    """
    if database is None:  # the engine has no copies
        return
    folder, given = (os.path.realpath(os.path.dirname(one) or ".") for one in (database, path))  # noqa: PTH120
    if folder != given:
        raise RequestError(
            f"path: read {show(path)}; allowed: a new file in {folder}, as callers need no token; "
            "elsewhere with a file of tokens: plugins: {queue: {tokens: FILE}}",
            403,
        )
