"""The broker's clients over HTTP: the state of each one's link, and where its messages are.

* ``GET /api/clients``: reports of up to ``limit`` clients (100; 1000 at most) in the order of their
  client ids, beginning after the id ``after`` where it is given; ``next`` is the ``after`` for the
  rest.
* ``GET /api/withholding``: counters and histograms of all clients' large messages.
* ``GET /api/proxy``: the state of a proxy, of its broker's addresses and of its payloads.
* ``GET /api/clients/{client_id}``: the report of one client, whose id is percent-encoded.

Answers are JSON; `penstock.broker.client_report` describes a report. An error is ``{"error":
"..."}``. The API changes nothing. Other machines reach it with a bearer token alone.

There may be very many clients, and the same event loop serves them and this API. So a request is
answered in slices of a few clients.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from logging import Logger
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from penstock.broker.client_report import as_json
from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.config.secret_file import read_secret
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import Claim, Plugin, PluginContext, Reload
from penstock.broker.mqtt.enums import MAX_STRING_BYTES
from penstock.broker.operations_contract import Operations
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.web.bind import is_loopback
from penstock.plugins.web.service import (
    HttpServer,
    RequestError,
    answering_errors,
    error_answer,
    integer,
    show,
)

DEFAULT_PAGE_CLIENTS: Final = 100
MAX_PAGE_CLIENTS: Final = 1_000

REPORTS_IN_A_TURN: Final = 8
"""So many reports are made in one slice; each takes some 50 us to make and encode."""

LONGEST_PATH: Final = 3 * MAX_STRING_BYTES + 1_000
"""A client id may be as long as the protocol allows, each byte percent-encoded. If such an id were
refused as `after`, a client could keep all ids after its own from being listed."""

MOST_CONNECTIONS: Final = 64
"""So many are enough for people who look, and for monitors."""

IDS_IN_A_TURN: Final = 1_000
"""So many client ids are sorted in one slice, together with those of a page: 0.3 ms."""


class ConsoleApi:
    """The routes and their answers.

    Args:
        clients: the clients of the broker.
        logger: gets unexpected errors.

    Attributes:
        token: the token that requests must carry; None for none.
    """

    def __init__(self, clients: Operations, logger: Logger) -> None:
        self.token: str | None = None
        self._clients = clients
        self._logger = logger

    def application(self) -> web.Application:
        """Return the API as an aiohttp application."""
        application = web.Application(
            middlewares=[answering_errors("console API", self._logger), self._checking_token()]
        )
        application.add_routes(
            [
                web.get("/api/clients", self._list),
                web.get("/api/clients/{client_id}", self._show),
                web.get("/api/withholding", self._withholding),
                web.get("/api/proxy", self._proxy),
            ]
        )
        return application

    def _checking_token(self) -> Middleware:
        """Return a middleware that refuses requests without the token, where there is one."""

        @web.middleware
        async def check_token(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            header = request.headers.get("Authorization", "")
            scheme, _, token = header.partition(" ")
            is_right = self.token is None or (
                scheme.lower() == "bearer"
                and hmac.compare_digest(
                    token.strip().encode(errors="surrogateescape"), self.token.encode()
                )
            )
            if is_right:
                return await handler(request)
            read = "another token" if header else "nothing"
            told = f"Authorization: read {read}; allowed: Bearer and the token of this console"
            answer = error_answer(401, told)
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer

        return check_token

    async def _list(self, request: web.Request) -> web.Response:
        asked = request.query.get("limit", str(DEFAULT_PAGE_CLIENTS))
        limit = integer("limit", asked, 1, MAX_PAGE_CLIENTS, int)
        client_ids = await self._page(request.query.get("after", ""), limit)
        rows: list[str] = []
        for n, client_id in enumerate(client_ids, start=1):
            report = self._clients.report(client_id)
            if report is not None and report.gone_seconds is None:  # its session may have ended
                rows.append(json.dumps(as_json(report)))
            if not n % REPORTS_IN_A_TURN:
                await asyncio.sleep(0)
        behind = client_ids[-1] if len(client_ids) == limit else None
        text = '{{"clients": [{}], "next": {}}}'.format(", ".join(rows), json.dumps(behind))
        return web.Response(text=text, content_type="application/json")

    async def _page(self, after: str, limit: int) -> list[str]:
        """Return the first client ids after one, in order."""
        client_ids = self._clients.client_ids()
        first: list[str] = []
        for start in range(0, len(client_ids), IDS_IN_A_TURN):
            some = client_ids[start : start + IDS_IN_A_TURN]
            first = sorted([*first, *(one for one in some if one > after)])[:limit]
            await asyncio.sleep(0)
        return first

    async def _show(self, request: web.Request) -> web.Response:
        client_id = request.match_info["client_id"]
        report = self._clients.report(client_id)
        if report is None:
            raise RequestError(
                f"client: read {show(client_id)}; allowed: a client that has a session, or "
                "one of the last that have gone",
                404,
            )
        return web.json_response(as_json(report))

    async def _withholding(self, _request: web.Request) -> web.Response:
        metrics = [metric.as_json() for metric in self._clients.withholding()]
        return web.json_response({"metrics": metrics})

    async def _proxy(self, _request: web.Request) -> web.Response:
        state = self._clients.proxy()
        if state is None:
            raise RequestError(
                "proxy: this is a broker; allowed: the console of an edge proxy", 404
            )
        return web.json_response(dict(state))


class ConsolePlugin(Plugin):
    """`console` in a policy file.

    Attributes:
        http_url: the URL of the HTTP API, once it has started.
    """

    Config = ConsoleConfig

    def __init__(self, config: ConsoleConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        if context.operations is None:
            problem = ConfigProblem(
                "plugins.console", "a plugin that tells of clients", "in a broker or a proxy"
            )
            raise ConfigError(context.policy_file, [problem])
        if config.token_file is None and not is_loopback(config.http):
            allowed = (
                "an address of this machine, such as 127.0.0.1:8081, while callers need no token; "
                "to serve other machines, name a file with one: plugins: {console: {token_file: "
                "FILE}}"
            )
            problem = ConfigProblem("plugins.console.http", config.http, allowed)
            raise ConfigError(context.policy_file, [problem])
        context.operations.watch()
        self.http_url = ""
        self._api = ConsoleApi(context.operations, context.logger)
        self._http = HttpServer(
            self._api.application(),
            "plugins.console.http",
            config.http_limits,
            context.logger,
            longest_path=LONGEST_PATH,
            most_connections=MOST_CONNECTIONS,
        )
        self.open_files = self._http.open_files

    async def start(self) -> None:
        """Open the HTTP API.

        Raises:
            ConfigError: the token cannot be used.
            HttpStartError: the address cannot be bound.
        """
        (await self.reload(self.config)).apply()
        self.http_url = await self._http.start(self.config.http)
        self.context.logger.info("console API listens on %s", self.http_url)

    async def reload(self, config: ConsoleConfig) -> Reload:
        """Read the token again; requests that run go on.

        Raises:
            ConfigError: the file cannot be used.
        """
        file, token = config.token_file, None
        if file is not None:
            named_by = NamedBy(self.context.policy_file, "plugins.console.token_file")
            token = read_secret(file, named_by)
        # Without a token, the address must be of this machine, which is checked at the start.
        takes = [] if (file is None) != (self.config.token_file is None) else ["token_file"]

        def apply() -> None:
            self._api.token = token

        return Reload([] if file is None else [f"token_file {file}"], takes, apply=apply)

    def claims(self) -> Sequence[Claim]:
        """Return the address of the HTTP API."""
        return [Claim("http", "address", self.config.http)]

    async def close(self) -> None:
        """Answer running requests and stop listening."""
        await self._http.close()
