"""The plugin of the broker that stores topics in queues, and serves the APIs of the queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from logging import Logger
from typing import Final

from aiohttp import web

from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.counters import Metric
from penstock.broker.durable.storage_clock import Clocks
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import Claim, Plugin, PluginContext, Reload
from penstock.broker.message import Message
from penstock.broker.plugin_guard import note_fault
from penstock.plugins.queue.access import QueueAccess, require_tokens
from penstock.plugins.queue.append_buffer import AppendBuffer
from penstock.plugins.queue.config import LogicalQueueConfig, QueueConfig, QueueRedisConfig
from penstock.plugins.queue.consumers import QueueConsumers
from penstock.plugins.queue.engines.contract import Engine, StorageError
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.http.api import QueueApi
from penstock.plugins.queue.logical_queue import LogicalQueue
from penstock.plugins.queue.publishing.batches import Batches, end_relays
from penstock.plugins.queue.queue_metrics import queue_metrics
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.sqs.api import SqsApi
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.service import HttpServer
from penstock.plugins.web.tls import ServerTls

MAINTAIN_SECONDS: Final = 2.0
"""The interval between two calls of `Engine.maintain`. A message may outlive its retention by so
much."""

KEY: Final = "plugins.queue"
"""The key of the plugin in the policy file."""


class QueuePlugin(Plugin):
    """Stores messages published to the queues' topics and serves them to back ends.

    Attributes:
        sinks: route targets of the queues that there are.
        sources: feeds consumers over MQTT.
        batches: the batches of requests that the broker publishes; None without them.
        http_url: the address of the HTTP API once started; None without one.
        sqs_url: the address of the Amazon SQS protocols once started; None without them.
    """

    Config = QueueConfig

    def __init__(self, config: QueueConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self.engine: Engine = _engine(config, context)
        self.service = QueueService(config, self.engine, context.clock, context.logger)
        self.http_url: str | None = None
        self.sqs_url: str | None = None
        self.sinks: Sequence[AppendBuffer] = [queue.buffer for queue in self._queues()]
        self._consumers = QueueConsumers(self.service, context.clock, context.logger)
        self.sources = [self._consumers]
        self._access, self._tls = _access_and_tls(config, context.policy_file)
        self._servers: list[HttpServer] = []
        self.batches: Batches | None = None
        is_first = context.worker.number == 1  # it has the APIs, and what they stage
        if config.publishing is not None and is_first:
            self.batches = Batches(
                config.publishing,
                config.durability,
                context.local_clients,
                context.logger,
                context.clock,
            )
            self.has_local_clients = context.local_clients is not None
        bodies = Bodies(config.http_limits.body_bytes, config.http_limits.body_timeout_seconds)
        slicer = Slicer()
        logger, clock = context.logger, context.clock
        self._http = self._sqs = None
        self._api = QueueApi(
            self.service, self._access, clock, logger, bodies, slicer, self.batches
        )
        if config.http is not None and is_first:
            self._http = self._server(self._api.application(config.max_request_bytes), "http")
        if config.sqs is not None and is_first:
            ignores = config.sqs_unsupported == "ignore"
            sqs = SqsApi(self.service, self._access, clock, logger, bodies, slicer, ignores=ignores)
            self._sqs = self._server(sqs.application(config.max_request_bytes), "sqs")
        self.open_files = sum(server.open_files for server in self._servers)
        self._maintaining: asyncio.Task[None] | None = None

    @classmethod
    def alone(cls, config: QueueConfig, logger: Logger, policy_file: str) -> QueuePlugin:
        """Return the plugin for a program without a broker."""
        return cls(config, PluginContext(logger, policy_file, time.monotonic))

    def tell_stored(self, callback: Callable[[str, Sequence[Message]], None]) -> None:
        """Tell of the messages that are stored from now on, by queue and commit."""
        self.service.stored.callback = callback

    async def start(self) -> None:
        """Open the engine and the APIs.

        Raises:
            EngineStartError: the engine cannot be opened.
            HttpStartError: an address cannot be bound.
            ConfigError: a file that `redis` names cannot be read.
        """
        config, logger = self.config, self.context.logger
        try:
            self._check_files(config)
            await self.service.open()
            if self.batches is not None:
                await self.batches.open()
            self._change_sinks()
            self.service.on_change = self._change_sinks
            self._maintaining = asyncio.create_task(self._maintain(), name="queue maintenance")
            if self._http is not None:
                self.http_url = await self._http.start(config.http)
                logger.info("queue API listens on %s", self.http_url)
            if self._sqs is not None:
                self.sqs_url = await self._sqs.start(config.sqs)
                logger.info("Amazon SQS listens on %s", self.sqs_url)
            if config.tokens is None and (self.http_url or self.sqs_url):
                logger.info(
                    "without plugins.queue.tokens, every account of this machine may store, take "
                    "and delete there"
                )
        except BaseException:
            await self.close()
            raise

    async def restored(self) -> None:
        """Publish what was committed before, and what will be."""
        clients = self.context.local_clients
        if self.batches is not None and clients is not None:
            await self.batches.begin()
        elif clients is not None:
            end_relays(clients)

    def figures(self) -> Iterator[Metric]:
        """Yield what the queues hold, and what became of requests and batches; see `Plugin`."""
        is_shared = self.config.engine == "redis"
        return queue_metrics(self.service, self.batches, is_shared=is_shared)

    async def problem(self) -> str:
        """Return why the engine stores nothing now; "" where it does."""
        health = await self.engine.probe()
        return "" if health.is_partial else health.problem or ""

    async def backup(self, folder: str) -> int:
        """Copy the queues into a folder, as ``queue.db``, where this program keeps them.

        Batches that are published go to ``publishing.db``. What Redis keeps is copied there.
        """
        n_bytes = 0
        if self.config.engine == "sqlite":
            n_bytes += await self.engine.backup(f"{folder}/queue.db")
        if self.batches is not None:
            n_bytes += await self.batches.backup(f"{folder}/publishing.db")
        return n_bytes

    def operator_routes(self) -> web.Application:
        """Return the routes of operators; see `penstock.plugins.web.operators`."""
        return self._api.management(self.config.max_request_bytes)

    def _check_files(self, config: QueueConfig) -> None:
        if self.config.engine == "redis":
            from penstock.plugins.redis.server import check_files  # noqa: PLC0415 (of an extra)

            check_files(config.redis, self.context.policy_file, f"{KEY}.redis")

    async def reload(self, config: QueueConfig) -> Reload:
        """Read the tokens and the certificate again, and take new and changed queues; see `Plugin`.

        What is gone from the file is served as before: it may hold messages.
        """
        self._check_files(config)
        read: list[str] = []
        applies: list[Callable[[], None]] = []
        if not self._access.is_open:
            applies.append(await asyncio.to_thread(self._access.read))
            read.append(f"tokens {self._access.file}")
        if self._tls is not None:
            applies.append(await asyncio.to_thread(self._tls.read))
            read.append(f"certificate {self.config.http_tls.certificate}")
        before = self.config.queues
        gone: list[tuple[str, ...]] = [
            ("queues", name) for name in before if name not in config.queues
        ]
        gone += [
            ("queues", name, "groups", group)
            for name, queue in before.items()
            if name in config.queues
            for group in queue.groups
            if group not in config.queues[name].groups
        ]
        changed = {
            name: queue for name, queue in config.queues.items() if before.get(name) != queue
        }

        def apply() -> Awaitable[None]:
            for each in applies:
                each()
            return self._take(changed)

        return Reload(read, ["queues"], gone, apply)

    async def _take(self, queues: Mapping[str, LogicalQueueConfig]) -> None:
        """Create or change some queues; those that they send dead letters to may be among them."""
        for name, queue in sorted(queues.items(), key=lambda each: _sends_dead_letters(each[1])):
            await self.service.bring(name, queue)
        self.config = replace(self.config, queues={**self.config.queues, **queues})

    def claims(self) -> Sequence[Claim]:
        """Return the addresses of the APIs, and the files of SQLite."""
        config = self.config
        claims = [
            Claim(key, "address", bind)
            for key, bind in (("http", config.http), ("sqs", config.sqs))
            if bind is not None
        ]
        if config.engine == "sqlite":
            claims.append(Claim("path", "database", config.path, "queue.db"))
        if config.publishing is not None:
            claims.append(
                Claim("publishing.path", "database", config.publishing.path, "publishing.db")
            )
        return claims

    async def close(self) -> None:
        """Answer waiting requests, store accepted messages and stop; may be called again."""
        await self._consumers.close()
        self.service.close_requests()
        servers, self._servers = self._servers, []
        for server in servers:
            await server.close()
        if self._maintaining is not None:
            self._maintaining.cancel()
            with suppress(asyncio.CancelledError):
                await self._maintaining
            self._maintaining = None
        await self.service.close()
        if self.batches is not None:
            await self.batches.close()

    def _queues(self) -> list[LogicalQueue]:
        return [self.service.queue(name) for name in self.service.names()]

    def _change_sinks(self) -> None:
        """Have the broker feed the queues that there are, by the topics that they have."""
        queues, before = self._queues(), self.sinks
        self.sinks = [queue.buffer for queue in queues]
        routes = self.context.sink_routes
        if routes is None:
            return
        kept = {queue.buffer for queue in queues if queue.buffer.is_fed_by(queue.spec)}
        for sink in before:
            if sink not in kept:
                routes.remove(sink)
        for queue in queues:
            if queue.buffer not in kept or queue.buffer not in before:
                queue.buffer.be_fed_by(queue.spec)
                routes.add(queue.buffer)

    async def _maintain(self) -> None:
        """Have the engine do what time asks for, whatever errors occur."""
        faults: dict[str, int] = {}
        told = ""
        while True:
            await asyncio.sleep(MAINTAIN_SECONDS)
            self._consumers.note_uses()
            try:
                await self.service.maintain()
                told = ""
            except StorageError as error:
                if str(error) != told:
                    told = str(error)
                    self.context.logger.warning("queue: retention and expiry wait: %s", error)
            except Exception as error:  # noqa: BLE001 (the next attempt must follow any error)
                note_fault(self.context.logger, faults, "queue maintenance", error)

    def _server(self, application: web.Application, key: str) -> HttpServer:
        server = HttpServer(
            application, f"{KEY}.{key}", self.config.http_limits, self.context.logger, tls=self._tls
        )
        self._servers.append(server)
        return server


def _sends_dead_letters(queue: LogicalQueueConfig) -> bool:
    return any(group.dead_letter_queue is not None for group in queue.groups.values())


def _access_and_tls(config: QueueConfig, policy_file: str) -> tuple[QueueAccess, ServerTls | None]:
    """Read the files of tokens and certificate.

    Raises:
        ConfigError: the tokens cannot be used, or other machines could send requests without one.
        TlsError: the certificate cannot be used.
    """
    access = QueueAccess.open_to_all()
    if config.tokens is not None:
        access = QueueAccess.load(config.tokens, NamedBy(policy_file, f"{KEY}.tokens"))
    for key, bind in (("http", config.http), ("sqs", config.sqs)):
        if bind is not None:
            require_tokens(access, f"{KEY}.{key}", bind, policy_file)
    tls = None
    if config.http_tls is not None:
        tls = ServerTls(config.http_tls.certificate, config.http_tls.key, f"{KEY}.http_tls")
    return access, tls


def _engine(config: QueueConfig, context: PluginContext) -> Engine:
    """Return what keeps the messages.

    Raises:
        ConfigError: several brokers or processes cannot share it, or a package is not installed.
    """
    if config.engine == "redis":
        return _redis_engine(config.redis, context)
    if others := context.others():
        read = f"{config.engine}, and {others}"
        problem = ConfigProblem(f"{KEY}.engine", read, "redis, which all of them share")
        raise ConfigError(context.policy_file, [problem])
    store = (
        MemoryStore() if config.engine == "memory" else SqliteStore(config.path, config.durability)
    )
    return LocalEngine(
        store,
        clock=context.clock,
        commit_max_messages=config.commit_max_messages,
        read_ahead_bytes=config.read_ahead_bytes,
        logger=context.logger,
    )


def _redis_engine(config: QueueRedisConfig, context: PluginContext) -> Engine:
    """Return the engine on a Redis server.

    Raises:
        ConfigError: the package for it is not installed.
    """
    try:
        from penstock.plugins.queue.engines.redis.engine import RedisEngine, queue_server  # noqa: PLC0415 (of an extra)
    except ModuleNotFoundError as error:
        problem = ConfigProblem(
            f"{KEY}.engine",
            f"redis, and the package {error.name} is not installed",
            "sqlite or memory; pip install 'penstock-mqtt[redis]' brings it",
        )
        raise ConfigError(context.policy_file, [problem]) from error
    return RedisEngine(queue_server(config), clocks=Clocks(context.clock), logger=context.logger)
