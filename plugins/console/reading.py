"""What the console shows: the routes that change nothing."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web
from prometheus_client import Metric as Family

from penstock.broker.client_report import as_json
from penstock.broker.counters import Metric
from penstock.broker.operations_contract import Operations
from penstock.plugins.console import exposition
from penstock.plugins.console.callers import Callers, Handler
from penstock.plugins.console.lists import MAX_LIMIT
from penstock.plugins.console.overview import Overview
from penstock.plugins.console.parts import LISTS, Parts
from penstock.plugins.console.shared import Answers, Shared
from penstock.plugins.console.streams import Streams
from penstock.plugins.web.nodes import Nodes, Part
from penstock.plugins.web.operators import OPERATOR
from penstock.plugins.web.service import RequestError, show

VERSION: Final = importlib.metadata.version("penstock-mqtt")

SHOWN_BYTES: Final = 64 * 1024
"""So much of a retained payload is shown."""


class Program(NamedTuple):
    """What the console belongs to.

    Attributes:
        kind: ``broker``, ``proxy``, ``edge`` or ``queue``.
        operations: what can be seen and done; None in ``queue``.
        plugin_metrics: returns the metrics of the plugins where there are no operations.
        plugin_problems: returns what keeps the plugins from serving, where there are none.
        clock: returns monotonic seconds.
        started_at: monotonic seconds.
    """

    kind: str
    has: Sequence[str]
    operations: Operations | None
    plugin_metrics: Callable[[], Iterable[Metric]]
    plugin_problems: Callable[[], Awaitable[Mapping[str, str]]]
    clock: Callable[[], float]
    started_at: float

    def need(self) -> Operations:
        """Return the operations.

        Raises:
            RequestError: 404, the program has none.
        """
        if self.operations is None:
            raise RequestError(
                "path: read one of a broker; allowed: those of queues, as this program has no "
                "clients",
                404,
            )
        return self.operations

    async def metrics(self) -> Sequence[Metric]:
        """Return all metrics."""
        if self.operations is not None:
            return await self.operations.metrics()
        return list(self.plugin_metrics())

    async def problems(self) -> dict[str, str]:
        """Return what keeps the program from serving."""
        if self.operations is None:
            return dict(await self.plugin_problems())
        return dict(await self.operations.problems())


class Reading:
    """The routes and their answers."""

    def __init__(
        self,
        program: Program,
        callers: Callers,
        log_fault: Callable[[Exception], None],
    ) -> None:
        self._program = program
        self._callers = callers
        self.per_object = False
        clock = program.clock
        self._problems = Shared(program.problems, clock, "console readiness")
        self._metrics = Shared(program.metrics, clock, "console metrics")
        self.parts = Parts(program.need, clock, self._metrics.get, self.forget)
        self._all_metrics = Shared(self.parts.metrics_of_all, clock, "console metrics of all")
        self._process = Shared(exposition.of_process, clock, "console process")
        self._lists = Answers[str](clock)
        self.streams = Streams(self.parts)
        self.overview = Overview(self._all_metrics.get, clock, self._more, log_fault)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/healthz", self._health),
            web.get("/readyz", self._ready),
            web.get("/metrics", self._scrape),
            web.get("/metrics/per-object", self._scrape_objects),
            web.get("/api/me", self._me),
            web.get("/api/overview", self._overview),
            web.get("/api/clients/{client_id}", self._client),
            web.get("/api/proxy", self._proxy),
            web.get("/api/bans", self._bans),
            web.get("/api/retained/{topic}", self._retained),
            web.get("/api/uplinks", self._uplinks),
            web.get("/api/tail", self._tail, allow_head=False),
            web.get("/api/log", self._log),
            *(web.get(f"/api/{name}", self._listing(name)) for name in LISTS),
        ]

    def join(self, nodes: Nodes, url: str) -> None:
        """Be one of several nodes, with a console at a URL; "" for none."""

        async def of_process() -> list[Any]:
            return exposition.families_as_json(await self._process.get())

        parts = self.parts
        parts.nodes = nodes
        answers: dict[str, Part] = {
            "list": parts.own_list,
            "client": parts.own_client,
            "act": parts.act,
            "metrics": parts.own_metrics,
            "process": of_process,
            "tail": self.streams.more,
        }
        nodes.serve(answers, url, parts.tell_bans)

    def forget(self) -> None:
        """Look at everything again: something was changed."""
        self._problems.forget()
        self._lists.forget()

    async def close(self) -> None:
        """End what runs."""
        self.streams.close()
        await self.overview.close()
        shared = self._problems, self._metrics, self._all_metrics, self._process, self._lists
        for one in (*shared, self.parts):
            one.close()

    # -- health and metrics -------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        problems = await self._problems.get()
        if problems:
            if request[OPERATOR].role is None:
                # A reason may have an address or a path.
                problems = dict.fromkeys(problems, "a login or a token shows why")
            return web.json_response({"status": "not ready", "problems": problems}, status=503)
        return web.json_response({"status": "ready"})

    async def _scrape(self, request: web.Request) -> web.Response:
        metrics = exposition.distinct(await self.parts.metrics_of_workers())
        families = [exposition.family(metric) for metric in metrics]
        families += await self._of_processes()
        return await _written(families, request)

    async def _of_processes(self) -> Sequence[Family]:
        own, nodes = await self._process.get(), self.parts.nodes
        if nodes is None or not nodes.workers:
            return own
        answers = await nodes.ask(nodes.workers, "process")
        return exposition.by_worker({nodes.node: exposition.families_as_json(own), **answers})

    async def _scrape_objects(self, request: web.Request) -> web.Response:
        if not self.per_object:
            raise RequestError(
                "path: read /metrics/per-object; allowed: with plugins: {console: {per_object: "
                "true}}",
                404,
            )
        most = {"limit": str(MAX_LIMIT)}
        clients = await self.parts.page("clients", {"sort": "queued_bytes", **most})
        topics = await self.parts.page("topics", most)
        metrics = exposition.per_object(clients.rows, topics.rows)
        return await _written([exposition.family(metric) for metric in metrics], request)

    # -- the program --------------------------------------------------------------------------

    async def _me(self, request: web.Request) -> web.Response:
        operator = request[OPERATOR]
        by_cookie = "Authorization" not in request.headers
        session = self._callers.session(request) if by_cookie else None
        found: dict[str, Any] = {
            "user": operator.name,
            "role": operator.role,
            "csrf": None if session is None else session.csrf,
            "logins": self._callers.logins(),
        }
        if operator.role is not None:
            program, nodes = self._program, self.parts.nodes
            found |= {
                "kind": program.kind,
                "version": VERSION,
                "name": socket.gethostname() if nodes is None else nodes.node,
                "started_seconds": round(program.clock() - program.started_at, 3),
                "has": [*program.has, *([] if nodes is None else ["nodes"])],
            }
        return web.json_response(found)

    async def _overview(self, request: web.Request) -> web.Response:
        with_history = request.query.get("history", "") == "true"
        return web.json_response(await self.overview.answer(with_history=with_history))

    async def _more(self) -> dict[str, Any]:
        operations = self._program.operations
        return {
            "uplinks": [] if operations is None else [as_json(one) for one in operations.uplinks()],
            "problems": await self._problems.get(),
            **self.parts.missing(),
        }

    async def _log(self, _: web.Request) -> web.Response:
        return web.json_response({"level": self._program.need().log_level})

    # -- lists and clients --------------------------------------------------------------------

    def _listing(self, name: str) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            parts, query = self.parts, dict(request.query)
            if parts.is_cheap(name, query):
                return web.json_response(text=await parts.text(name, query))
            text = await self._lists.get(request.path_qs, lambda: parts.text(name, query))
            return web.json_response(text=text)

        return answer

    async def _client(self, request: web.Request) -> web.Response:
        found = await self.parts.client(request.match_info["client_id"])
        return web.json_response(found | self.parts.missing())

    async def _proxy(self, _: web.Request) -> web.Response:
        state = self._program.need().proxy()
        if state is None:
            raise RequestError(
                "proxy: this is a broker; allowed: the console of an edge proxy", 404
            )
        return web.json_response(dict(state))

    async def _bans(self, _: web.Request) -> web.Response:
        bans = [as_json(ban) for ban in self._program.need().bans()]
        return web.json_response({"bans": bans})

    async def _retained(self, request: web.Request) -> web.Response:
        topic = request.match_info["topic"]
        found = self._program.need().retained_message(topic)
        if found is None:
            raise unknown_topic(topic)
        shown_bytes = found.payload[:SHOWN_BYTES]
        try:
            text = found.payload.decode() if len(found.payload) <= SHOWN_BYTES else None
        except UnicodeDecodeError:
            text = None
        answer = as_json(found.row) | {
            "text": text,
            "base64": base64.b64encode(shown_bytes).decode(),
            "properties": dict(found.properties),
        }
        return web.json_response(text=json.dumps(answer, default=_shown))

    async def _uplinks(self, _: web.Request) -> web.Response:
        operations = self._program.operations
        uplinks = [] if operations is None else operations.uplinks()
        return web.json_response({"uplinks": [as_json(one) for one in uplinks]})

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        def may_watch() -> bool:
            return self._callers.of(request).role is not None

        return await self.streams.serve(request, self._program.need(), may_watch)


async def _written(families: Sequence[Family], request: web.Request) -> web.Response:
    body, content_type = await exposition.write(families, request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


def _shown(value: object) -> str:
    """Return a value that JSON does not have."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def unknown_topic(topic: str) -> RequestError:
    """Return the error of a topic without a retained message."""
    return RequestError(f"topic: read {show(topic)}; allowed: one that has a retained message", 404)
