"""What the console changes: the routes of the role `admin`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from aiohttp import web

from penstock.broker.client_report import as_json
from penstock.broker.operations_contract import LONGEST_BAN_SECONDS, BanKind
from penstock.plugins.console.callers import DETAIL, Callers
from penstock.plugins.console.parts import unknown_client
from penstock.plugins.console.reading import Program, Reading, unknown_topic
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.operators import OPERATOR
from penstock.plugins.web.service import RequestError, integer, show

MOST_BODY_BYTES: Final = 256 * 1024
"""A Client Identifier may be as long as the protocol allows, escaped."""

MOST_BODIES_BYTES: Final = 4 * 1024 * 1024

BODY_SECONDS: Final = 10.0

LONGEST_DRAIN_SECONDS: Final = 86_400

JSON_TYPE: Final = "application/json"


class Acting:
    """The routes and their answers."""

    def __init__(self, program: Program, callers: Callers, reading: Reading) -> None:
        self._program = program
        self._callers = callers
        self._changed = reading.forget
        self._parts = reading.parts
        self._bodies = Bodies(MOST_BODIES_BYTES, BODY_SECONDS)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        client = "/api/clients/{client_id}"
        return [
            web.post("/api/login", self._login),
            web.post("/api/logout", self._logout),
            web.post(f"{client}/disconnect", self._disconnect),
            web.post(f"{client}/release", self._release),
            web.post(f"{client}/drop", self._drop),
            web.delete(client, self._end_session),
            web.post("/api/bans", self._ban),
            web.delete("/api/bans/{kind}/{value}", self._unban),
            web.delete("/api/retained/{topic}", self._clear_retained),
            web.post("/api/reload", self._reload),
            web.post("/api/drain", self._drain),
            web.put("/api/log", self._set_log_level),
            web.post("/api/backup", self._back_up),
        ]

    async def _body(self, request: web.Request, *keys: str) -> Mapping[str, Any]:
        """Return the JSON object in a body; no body counts as an empty one.

        Raises:
            RequestError: another content type, no JSON object, or an unknown key.
        """
        if not request.body_exists:
            return {}
        # A page of another site may send other types without asking first.
        if request.content_type != JSON_TYPE:
            read = show(request.headers.get("Content-Type"))
            raise RequestError(f"Content-Type: read {read}; allowed: {JSON_TYPE}", 415)
        async with self._bodies.read(request) as data:
            try:
                found = json.loads(data) if data else {}
                json.dumps(found, ensure_ascii=False).encode()  # fails of half a surrogate pair
            except (ValueError, RecursionError) as error:
                raise RequestError("body: read no JSON; allowed: a JSON object") from error
        if not isinstance(found, dict):
            raise RequestError(f"body: read {show(found)}; allowed: a JSON object")
        for key in found:
            if key not in keys:
                allowed = ", ".join(keys) or "none"
                raise RequestError(f"body: read unknown key {show(key)}; allowed: {allowed}")
        return found

    def _done(
        self, request: web.Request, answer: Mapping[str, Any], told: str = ""
    ) -> web.Response:
        """Answer a change that was made; `told` is for its line in the log."""
        request[DETAIL] = told or json.dumps(answer)
        self._changed()
        return web.json_response(answer)

    # -- logins -------------------------------------------------------------------------------

    async def _login(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "username", "password", "token")
        return await self._callers.login(request, body)

    async def _logout(self, request: web.Request) -> web.Response:
        await self._body(request)
        return self._callers.logout(request)

    # -- clients ------------------------------------------------------------------------------

    async def _disconnect(self, request: web.Request) -> web.Response:
        client_id = request.match_info["client_id"]
        body = await self._body(request, "reason")
        reason = _text(body, "reason", "an operator has disconnected it")
        if not await self._parts.do(client_id, "disconnect", reason):
            raise RequestError(
                f"client: read {show(client_id)}; allowed: one that is connected", 404
            )
        return self._done(request, {"disconnected": True}, reason)

    async def _release(self, request: web.Request) -> web.Response:
        return self._done(request, {"released": await self._end_hold(request, "release_held")})

    async def _drop(self, request: web.Request) -> web.Response:
        return self._done(request, {"dropped": await self._end_hold(request, "drop_held")})

    async def _end_hold(self, request: web.Request, method: str) -> int:
        await self._body(request)
        n_messages: int = await self._parts.do(request.match_info["client_id"], method)
        return n_messages

    async def _end_session(self, request: web.Request) -> web.Response:
        await self._body(request)
        client_id = request.match_info["client_id"]
        if not await self._parts.do(client_id, "end_session"):
            raise unknown_client(client_id)
        return self._done(request, {"ended": True})

    async def _ban(self, request: web.Request) -> web.Response:
        body = await self._body(request, "kind", "value", "seconds", "reason")
        kind = _kind(body.get("kind"))
        value = _text(body, "value")
        seconds = integer("seconds", body.get("seconds"), 1, LONGEST_BAN_SECONDS)
        reason = _text(body, "reason", "")
        by = request[OPERATOR].name
        request[DETAIL] = f"{kind} {value} for {seconds} s"
        told = await self._parts.do_everywhere("ban", kind, value, seconds, reason, by)
        answer = {"kind": kind, "value": value, "seconds": seconds, "reason": reason, "by": by}
        return self._done(request, answer | {"disconnected": sum(told)} | self._parts.missing())

    async def _unban(self, request: web.Request) -> web.Response:
        await self._body(request)
        kind, value = _kind(request.match_info["kind"]), request.match_info["value"]
        if not any(await self._parts.do_everywhere("unban", kind, value)):
            raise RequestError(f"ban: read {kind} {show(value)}; allowed: one that there is", 404)
        return self._done(request, {"removed": True} | self._parts.missing())

    async def _clear_retained(self, request: web.Request) -> web.Response:
        await self._body(request)
        topic = request.match_info["topic"]
        if not self._program.need().clear_retained(topic):
            raise unknown_topic(topic)
        return self._done(request, {"cleared": True})

    # -- the program --------------------------------------------------------------------------

    async def _reload(self, request: web.Request) -> web.Response:
        await self._body(request)
        reloaded = as_json(await self._program.need().reload())
        answer = self._done(request, reloaded)
        if reloaded["failed"]:
            told = "; ".join(f"{key}: {why}" for key, why in reloaded["failed"].items())
            answer = web.json_response({"error": told} | reloaded, status=409)
        return answer

    async def _drain(self, request: web.Request) -> web.Response:
        body = await self._body(request, "seconds")
        seconds = integer("seconds", body.get("seconds", 30), 0, LONGEST_DRAIN_SECONDS)
        await self._parts.do_everywhere("drain", seconds, on_machine=True)
        return self._done(
            request,
            {"draining": True} | self._parts.missing(on_machine=True),
            f"within {seconds} s",
        )

    async def _set_log_level(self, request: web.Request) -> web.Response:
        body = await self._body(request, "level")
        await self._parts.do_everywhere("set_log_level", _text(body, "level"), on_machine=True)
        return self._done(
            request,
            {"level": self._program.need().log_level} | self._parts.missing(on_machine=True),
        )

    async def _back_up(self, request: web.Request) -> web.Response:
        path = _text(await self._body(request, "path"), "path")
        if not request[OPERATOR].name:
            # Every account of the machine may call then, and the program may be run by root.
            raise RequestError(
                "login: read none; allowed: a login or a token, as this writes files", 403
            )
        request[DETAIL] = path
        n_bytes = await self._program.need().backup(path)
        return self._done(request, {"bytes": n_bytes}, path)


def _text(body: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return a text of a body.

    Raises:
        RequestError: it is none, or is empty where there must be one.
    """
    value = body.get(key, default)
    if not isinstance(value, str) or not (value or default is not None) or "\0" in value:
        raise RequestError(f"{key}: read {show(value)}; allowed: a text")
    return value


def _kind(value: object) -> BanKind:
    """Return what a ban is about.

    Raises:
        RequestError: it is another word.
    """
    if value not in get_args(BanKind):
        raise RequestError(f"kind: read {show(value)}; allowed: {', '.join(get_args(BanKind))}")
    return cast("BanKind", value)
