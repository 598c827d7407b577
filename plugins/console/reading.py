"""What the console shows: the routes that change nothing."""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web
from prometheus_client import Metric as Family

from penstock.broker.client_report import as_json
from penstock.broker.counters import Metric
from penstock.broker.operations_contract import (
    ClientRow,
    Operations,
    RetainedRow,
    SubscriptionRow,
    TopicRow,
)
from penstock.plugins.console import exposition
from penstock.plugins.console.callers import Callers
from penstock.plugins.console.delivery_rates import DeliveryRates
from penstock.plugins.console.lists import MAX_LIMIT, Form, Page
from penstock.plugins.console.overview import Overview
from penstock.plugins.console.report_text import describe
from penstock.plugins.console.shared import Answers, Shared
from penstock.plugins.console.streams import Streams
from penstock.plugins.web.operators import OPERATOR
from penstock.plugins.web.service import RequestError, show

Row = TypeVar("Row")

VERSION: Final = importlib.metadata.version("penstock-mqtt")

ROWS_IN_A_TURN: Final = 100
"""So many rows are looked at before other tasks run: a millisecond."""

SHOWN_BYTES: Final = 64 * 1024
"""So much of a retained payload is shown."""

_CLIENTS: Final = Form[ClientRow](
    name="clients",
    key=lambda row: row.client_id,
    key_name="client_id",
    sorts=(
        *("rtt", "withheld", "queued", "queued_bytes", "inflight", "delivered", "dropped"),
        *("connected_seconds", "delivered_per_second"),
    ),
    texts=lambda row: (row.client_id, row.username, row.address, row.listener),
)
_TOPICS: Final = Form[TopicRow](
    name="topics",
    key=lambda row: f"{row.topic}\0{row.size}",
    key_name="topic",
    sorts=("bytes", "messages", "oldest_seconds"),
    texts=lambda row: (row.topic,),
    first="bytes",
)
_SUBSCRIPTIONS: Final = Form[SubscriptionRow](
    name="subscriptions",
    key=lambda row: f"{row.client_id}\0{row.share_name}\0{row.topic_filter}",
    key_name="client_id",
    sorts=("qos",),
    texts=lambda row: (row.client_id, row.topic_filter, row.share_name),
)
_RETAINED: Final = Form[RetainedRow](
    name="retained",
    key=lambda row: row.topic,
    key_name="topic",
    sorts=("bytes", "age_seconds"),
    texts=lambda row: (row.topic, row.publisher),
)


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
        self._process = Shared(exposition.of_process, clock, "console process")
        self._lists = Answers(clock)
        self.streams = Streams()
        self.overview = Overview(self._metrics.get, clock, self._more, log_fault)
        self._rates = DeliveryRates()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/healthz", self._health),
            web.get("/readyz", self._ready),
            web.get("/metrics", self._scrape),
            web.get("/metrics/per-object", self._scrape_objects),
            web.get("/api/me", self._me),
            web.get("/api/overview", self._overview),
            web.get("/api/clients", self._clients),
            web.get("/api/clients/{client_id}", self._client),
            web.get("/api/proxy", self._proxy),
            web.get("/api/bans", self._bans),
            web.get("/api/topics", self._list_topics),
            web.get("/api/subscriptions", self._subscriptions),
            web.get("/api/retained", self._list_retained),
            web.get("/api/retained/{topic}", self._retained),
            web.get("/api/uplinks", self._uplinks),
            web.get("/api/tail", self._tail, allow_head=False),
            web.get("/api/log", self._log),
        ]

    def forget(self) -> None:
        """Look at everything again: something was changed."""
        self._problems.forget()
        self._lists.forget()

    async def close(self) -> None:
        """End what runs."""
        self.streams.close()
        await self.overview.close()
        for shared in (self._problems, self._metrics, self._process, self._lists):
            shared.close()

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
        metrics = exposition.distinct(await self._metrics.get())
        families = [exposition.family(metric) for metric in metrics]
        families += await self._process.get()
        return await _written(families, request)

    async def _scrape_objects(self, request: web.Request) -> web.Response:
        if not self.per_object:
            raise RequestError(
                "path: read /metrics/per-object; allowed: with plugins: {console: {per_object: "
                "true}}",
                404,
            )
        operations = self._program.need()
        clients = Page(_CLIENTS, {"sort": "queued_bytes", "limit": str(MAX_LIMIT)})
        await self._add_clients(clients)
        topics = Page(_TOPICS, {"limit": str(MAX_LIMIT)})
        await _add(topics, await operations.topics())
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
            program = self._program
            found |= {
                "kind": program.kind,
                "version": VERSION,
                "name": socket.gethostname(),
                "started_seconds": round(program.clock() - program.started_at, 3),
                "has": list(program.has),
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
        }

    async def _log(self, _: web.Request) -> web.Response:
        return web.json_response({"level": self._program.need().log_level})

    # -- clients ------------------------------------------------------------------------------

    async def _list(
        self, request: web.Request, make: Callable[[Mapping[str, str]], Coroutine[Any, Any, str]]
    ) -> web.Response:
        """Answer with a list, which `make` writes by the query, for all who ask the same."""
        query = dict(request.query)
        text = await self._lists.get(request.path_qs, lambda: make(query))
        return web.json_response(text=text)

    async def _clients(self, request: web.Request) -> web.Response:
        page = Page(_CLIENTS, request.query)
        if page.sort != _CLIENTS.key_name or page.search:
            return await self._list(request, self._write_clients)
        # By their ids, only those of the page have to be looked at.
        operations = self._program.need()
        ids = Page(_CLIENT_IDS, request.query)
        await _add(ids, operations.client_ids())
        rows: list[Any] = []
        for some in _in_turns(ids.rows):
            rows += [as_json(row) for one in some if (row := operations.row(one)) is not None]
            await asyncio.sleep(0)
        return web.json_response(text=ids.text(rows))

    async def _write_clients(self, query: Mapping[str, str]) -> str:
        page = Page(_CLIENTS, query)
        await self._add_clients(page)
        return page.text()

    async def _add_clients(self, page: Page[ClientRow]) -> None:
        """Show a page all clients; of their rows, only those of the page are kept."""
        operations, rates, now = self._program.need(), self._rates, self._program.clock()
        rates.begin(now)
        for some in _in_turns(operations.client_ids()):
            rows = filter(None, map(operations.row, some))
            page.add([rates.with_rate(row, now) for row in rows])
            await asyncio.sleep(0)

    async def _client(self, request: web.Request) -> web.Response:
        operations = self._program.need()
        client_id = request.match_info["client_id"]
        report = operations.report(client_id)
        if report is None:
            raise unknown_client(client_id)
        found = as_json(report)
        row = operations.row(client_id)
        found |= {
            "row": None if row is None else as_json(row),
            "why": describe(found),
            "lately": [as_json(one) for one in operations.lately(client_id)],
        }
        return web.json_response(found)

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

    # -- topics -------------------------------------------------------------------------------

    async def _list_topics(self, request: web.Request) -> web.Response:
        return await self._list(request, self._write_topics)

    async def _write_topics(self, query: Mapping[str, str]) -> str:
        page = Page(_TOPICS, query)
        return await _write(page, await self._program.need().topics())

    async def _subscriptions(self, request: web.Request) -> web.Response:
        return await self._list(request, self._write_subscriptions)

    async def _write_subscriptions(self, query: Mapping[str, str]) -> str:
        page = Page(_SUBSCRIPTIONS, query)
        rows = await self._program.need().subscriptions(query.get("client") or None)
        wanted = query.get("filter")
        if wanted:
            rows = [row for row in rows if row.topic_filter == wanted]
        return await _write(page, rows)

    async def _list_retained(self, request: web.Request) -> web.Response:
        return await self._list(request, self._write_retained)

    async def _write_retained(self, query: Mapping[str, str]) -> str:
        page = Page(_RETAINED, query)
        return await _write(page, await self._program.need().retained(query.get("filter") or "#"))

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


_CLIENT_IDS: Final = Form[str](
    name="clients",
    key=lambda client_id: client_id,
    key_name="client_id",
    sorts=_CLIENTS.sorts,
    texts=lambda client_id: (client_id,),
)


def _in_turns(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield some rows at a time; others are to have a turn after each."""
    for start in range(0, len(rows), ROWS_IN_A_TURN):
        yield rows[start : start + ROWS_IN_A_TURN]


async def _add(page: Page[Row], rows: Sequence[Row]) -> None:
    for some in _in_turns(rows):
        page.add(some)
        await asyncio.sleep(0)


async def _write(page: Page[Row], rows: Sequence[Row]) -> str:
    await _add(page, rows)
    return page.text()


async def _written(families: Sequence[Family], request: web.Request) -> web.Response:
    body, content_type = await exposition.write(families, request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


def _shown(value: object) -> str:
    """Return a value that JSON does not have."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def unknown_client(client_id: str) -> RequestError:
    """Return the error of a client that is not there."""
    return RequestError(
        f"client: read {show(client_id)}; allowed: a client that has a session, or one of the last "
        "that have gone",
        404,
    )


def unknown_topic(topic: str) -> RequestError:
    """Return the error of a topic without a retained message."""
    return RequestError(f"topic: read {show(topic)}; allowed: one that has a retained message", 404)
