"""The console: metrics, health, the page, and the API behind page and command line.

docs/reference/console-api.md is the contract. What the API tells comes from the program's
`penstock.broker.operations_contract.Operations`, and from other plugins of the policy file: users
from those that know passwords, the routes of queues from the plugin that has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from penstock.broker.access_control import NOT_JUDGED, Accepted, AccessControl, ConnectAttempt
from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.counters import Metric
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.extensions import Claim, Plugin, PluginContext, Reload, overridden
from penstock.broker.mqtt.enums import MAX_STRING_BYTES
from penstock.broker.operations.metrics import process_metrics
from penstock.broker.plugin_guard import note_fault
from penstock.broker.process.machine_memory import machine_memory_bytes
from penstock.plugins.console.acting import MOST_BODY_BYTES, Acting
from penstock.plugins.console.callers import (
    NO_SUCH_USER,
    WRONG,
    Callers,
    Handler,
    PasswordCheck,
    Rules,
    read_tokens,
)
from penstock.plugins.console.config import ConsoleConfig
from penstock.plugins.console.exposition import name_problems
from penstock.plugins.console.reading import VERSION, Program, Reading
from penstock.plugins.console.static_page import StaticPage, add_security_headers
from penstock.plugins.web.bind import is_loopback
from penstock.plugins.web.nodes import HasNodes
from penstock.plugins.web.operators import Operator, Role, ServesOperators
from penstock.plugins.web.service import HttpServer, RequestError, answering_errors
from penstock.plugins.web.tls import ServerTls

KEY: Final = "plugins.console"

LONGEST_PATH: Final = 6 * MAX_STRING_BYTES + 1_000
"""A client id or a topic may be as long as the protocol allows, each byte percent-encoded, and the
order of subscriptions has two of them. If such an id were refused as `after`, a client could keep
all that come after its own from being listed."""

MOST_CONNECTIONS: Final = 128
"""So many are enough for people who look, and for monitors; a browser has up to six."""

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/api/login", "/api/logout", "/api/me"})
"""Paths that need no role; so do those of the page, which holds nothing of the program."""


LIVE: Final = ("token_file", "admins", "viewers", "anonymous", "per_object")
"""Keys whose new values count after a reload."""


class ConsolePlugin(Plugin):
    """`console` in a policy file.

    Attributes:
        http_url: the URL of page and API, once it has started.
    """

    Config = ConsoleConfig
    config: ConsoleConfig

    def __init__(self, config: ConsoleConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        _check_exposure(config, context.policy_file)
        self._tls = None
        if config.http_tls is not None:
            tls = config.http_tls
            self._tls = ServerTls(tls.certificate, tls.key, f"{KEY}.http_tls")
        if context.operations is not None:
            context.operations.watch()
        self.http_url = ""
        self._faults: dict[str, int] = {}
        self._page = StaticPage()
        self._application = web.Application(
            client_max_size=MOST_BODY_BYTES,
            middlewares=[
                answering_errors("console API", context.logger, ((PenstockError, 400),)),
            ],
        )
        self._http = HttpServer(
            self._application,
            f"{KEY}.http",
            config.http_limits,
            context.logger,
            tls=self._tls,
            longest_path=LONGEST_PATH,
            most_connections=MOST_CONNECTIONS,
            names=config.names,
            evicts_idle=True,
        )
        self.open_files = self._http.open_files
        self._callers: Callers
        self._reading: Reading | None = None

    async def start(self) -> None:
        """Open page and API.

        Raises:
            ConfigError: the tokens cannot be used, or users are named and nobody knows passwords.
            HttpStartError: the address cannot be bound.
        """
        self._build()
        (await self.reload(self.config)).apply()
        if self.context.worker.number == 1:  # the others answer it
            self.http_url = await self._http.start(self.config.http)
            self._callers.port = urlsplit(self.http_url).port or 0
            self.context.logger.info("console API listens on %s", self.http_url)
        for one in self.context.plugins.values():
            if isinstance(one, HasNodes) and one.nodes is not None and self._reading is not None:
                self._reading.join(one.nodes, self.http_url)
        if self.context.is_proxy:  # which has no sessions to restore
            await self.restored()

    async def restored(self) -> None:
        """Check that each name of `/metrics` stands for one thing.

        Raises:
            ConfigError: names two metrics with one name.
        """
        problems = name_problems(await self._program.metrics())
        if problems:
            allowed = "plugins whose metrics have names of their own"
            listed = [ConfigProblem("plugins", problem, allowed) for problem in problems]
            raise ConfigError(self.context.policy_file, listed)

    def _build(self) -> None:
        """Add all routes, now that the other plugins are there."""
        context, application = self.context, self._application
        mounted = [one for one in context.plugins.values() if isinstance(one, ServesOperators)]
        self._program = self._program_with(mounted)
        self._callers = Callers(context.clock, context.logger)
        reading = self._reading = Reading(
            self._program,
            self._callers,
            partial(note_fault, context.logger, self._faults, "console overview"),
        )
        acting = Acting(self._program, self._callers, reading)
        pages = self._page.paths
        application.middlewares.append(
            self._callers.checking(lambda path: path in OPEN_PATHS or path in pages)
        )
        application.middlewares.append(_take_named)
        application.on_response_prepare.append(add_security_headers)
        application.add_routes([*reading.routes(), *acting.routes()])
        application.add_routes([web.get("/", self._page.serve)])
        application.add_routes([web.get("/assets/{name}", self._page.serve)])
        for one in mounted:
            application.add_subapp("/api", one.operator_routes())

    def _program_with(self, mounted: Sequence[ServesOperators]) -> Program:
        context = self.context
        has = ["queues"] if mounted else []
        kind = "queue"
        if context.operations is not None:
            kind = "edge" if "uplink" in context.plugins else "broker"
            has += ["clients", "bans", "drain"]
            if context.is_proxy:
                kind = "proxy"
                has += ["proxy"]
            else:
                has += ["topics", "subscriptions", "retained", "tail", "backup"]
            if kind == "edge":
                has += ["uplinks"]
        return Program(
            kind,
            has,
            context.operations,
            self._plugin_metrics,
            self._plugin_problems,
            context.clock,
            context.clock(),
        )

    def _plugin_metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the process and its plugins, for a program without a broker."""
        clock, started_at = self.context.clock, self._program.started_at
        yield from process_metrics(VERSION, started_at, machine_memory_bytes(), clock())
        for name, plugin in self.context.plugins.items():
            for metric in plugin.figures():
                yield metric._replace(name=f"{name}_{metric.name}")

    async def _plugin_problems(self) -> dict[str, str]:
        """Return what keeps the plugins from serving, for a program without a broker."""
        plugins = self.context.plugins.items()
        return {name: why for name, plugin in plugins if (why := await plugin.problem())}

    # -- callers ------------------------------------------------------------------------------

    def _rules(self, config: ConsoleConfig) -> Rules:
        users: dict[str, Role] = dict.fromkeys(config.viewers, "viewer")
        users |= dict.fromkeys(config.admins, "admin")
        role = config.anonymous or ("none" if config.has_login else "viewer")
        anonymous: Role | None = None if role == "none" else role
        names = frozenset(name.lower() for name in self.config.names)
        return Rules(users, anonymous, names, is_secure=self._tls is not None)

    def _password_check(self, config: ConsoleConfig) -> PasswordCheck | None:
        """Return what checks passwords; None where the policy file names no users.

        Raises:
            ConfigError: it does, and no plugin knows passwords.
        """
        if not (config.admins or config.viewers):
            return None
        sources = [
            plugin.access
            for plugin in self.context.plugins.values()
            if plugin.access is not None
            and overridden(plugin.access.check_password, AccessControl.check_password) is not None
        ]
        if not sources:
            key = f"{KEY}.{'admins' if config.admins else 'viewers'}"
            allowed = "those of the plugin access, which the file must have, too"
            raise ConfigError(self.context.policy_file, [ConfigProblem(key, "users", allowed)])

        async def check(
            username: str, password: str, address: str, is_wanted: Callable[[], bool] | None
        ) -> Callable[[], bool] | str:
            attempt = ConnectAttempt(
                client_id="",
                username=username,
                password=password.encode(errors="surrogatepass"),
                protocol_version=5,
                clean_start=True,
                keep_alive=0,
                will=None,
                remote_address=address,
                remote_port=0,
                listener="",
                is_wanted=is_wanted,
            )
            for source in sources:
                answer = source.check_password(attempt)
                if isinstance(answer, Awaitable):
                    answer = await answer
                if answer is NOT_JUDGED:
                    raise RequestError(
                        "login: read too many wrong ones; allowed: again in a moment", 429
                    )
                if isinstance(answer, Accepted):
                    return answer.holds or (lambda: True)
                if answer is not None:
                    return WRONG
            return NO_SUCH_USER

        return check

    async def reload(self, config: ConsoleConfig) -> Reload:
        """Read tokens and certificate again, and take who may do what; requests that run go on.

        Raises:
            ConfigError: the tokens cannot be used, users are named and nobody knows passwords, or
                other machines could come in without more ado.
            TlsError: the certificate cannot be used.
        """
        start, file = self.config, self.context.policy_file
        _check_exposure(config, file)  # by which the next start goes
        now = replace(
            config, http=start.http, http_tls=start.http_tls, without_tls=start.without_tls
        )
        _check_exposure(now, file)
        read: list[str] = []
        tokens: dict[bytes, Operator] = {}
        check_password = self._password_check(config)
        if config.token_file is not None:
            named_by = NamedBy(self.context.policy_file, f"{KEY}.token_file")
            tokens = await asyncio.to_thread(read_tokens, config.token_file, named_by)
            read.append(f"token_file {config.token_file}")
        take_certificate = None
        if self._tls is not None and self.config.http_tls is not None:
            take_certificate = await asyncio.to_thread(self._tls.read)
            read.append(f"certificate {self.config.http_tls.certificate}")

        def apply() -> None:
            if take_certificate is not None:
                take_certificate()
            callers = self._callers
            callers.tokens, callers.check_password = tokens, check_password
            callers.rules = self._rules(config)
            callers.drop_stale()
            if self._reading is not None:
                self._reading.per_object = config.per_object

        return Reload(read, LIVE, apply=apply)

    def claims(self) -> Sequence[Claim]:
        """Return the address of page and API."""
        return [Claim("http", "address", self.config.http)]

    async def close(self) -> None:
        """End streams, answer running requests and stop listening."""
        if self._reading is not None:
            await self._reading.close()
        await self._http.close()
        if self._reading is not None:
            self._callers.close()


def _check_exposure(config: ConsoleConfig, policy_file: str) -> None:
    """Refuse an address that other machines reach, where they could come in without more ado.

    Raises:
        ConfigError: names the key.
    """
    if is_loopback(config.http):
        return
    here = "an address of this machine, such as 127.0.0.1:8081"
    problem = None
    if not config.has_login:
        problem = ConfigProblem(
            f"{KEY}.http",
            config.http,
            f"{here}, while nobody can log in; to serve other machines, name users or tokens: "
            "plugins: {console: {admins: [USER]}} or {token_file: FILE}",
        )
    elif config.anonymous in ("viewer", "admin"):
        problem = ConfigProblem(f"{KEY}.anonymous", config.anonymous, f"none; or http with {here}")
    elif config.http_tls is None and not config.without_tls:
        problem = ConfigProblem(
            f"{KEY}.http",
            f"{config.http}, and no http_tls",
            f"{here}; or http_tls: {{certificate: FILE, key: FILE}}; or without_tls: true, where "
            "nobody can listen on the way",
        )
    if problem is not None:
        raise ConfigError(policy_file, [problem])


@web.middleware
async def _take_named(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take a name from the query where `-` stands in the path.

    To a browser, the names ``.`` and ``..`` in a path are the way up, however they are encoded. A
    client could keep itself from being disconnected by such a name.
    """
    named = request.query.get("named")
    if named is not None:
        for key, value in request.match_info.items():
            if value == "-":
                request.match_info[key] = named
    return await handler(request)
