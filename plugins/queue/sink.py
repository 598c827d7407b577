"""The queue as a plugin of the broker: topics to logical queues, and the HTTP API beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from logging import Logger

from penstock.broker.extensions import MessageSink, Plugin, PluginContext, Receipt
from penstock.broker.faults import note_fault
from penstock.broker.message import Message
from penstock.plugins.queue.config import LogicalQueueConfig, QueueConfig
from penstock.plugins.queue.engine import Engine, StorageError
from penstock.plugins.queue.engine_local import LocalEngine
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.engine_sqlite import SqliteStore
from penstock.plugins.queue.http_api import QueueApi
from penstock.plugins.queue.intake import Intake, PendingBudget
from penstock.plugins.queue.logical_queue import LogicalQueue
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.service import HttpServer

RETENTION_STEPS = 10
"""A message is removed at most a tenth of its retention late."""
LONGEST_RETENTION_STEP_SECONDS = 60.0


class QueueSink(MessageSink):
    """The route target of one logical queue.

    Args:
        name: unique among the broker's sinks.
        config: of the queue.
        intake: takes its messages.

    Attributes:
        name: unique among the broker's sinks.
        topic_filters: MQTT topic filters.
        sizes: the size class of its messages; None for both.
        counts: its side of the ledger.
    """

    def __init__(self, name: str, config: LogicalQueueConfig, intake: Intake) -> None:
        self.name = name
        self.topic_filters = config.topics
        self.sizes = config.sizes
        self.counts = intake.counts
        self._intake = intake

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message without waiting; see `MessageSink`."""
        self._intake.accept(message, receipt)


class QueuePlugin(Plugin):
    """Stores messages published to the queues' topics and serves them over HTTP.

    Attributes:
        queues: the logical queues by name.
        engine: holds their messages.
        http_url: of the HTTP API once started; None without one.
    """

    Config = QueueConfig

    def __init__(self, config: QueueConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self.engine: Engine = _engine(config, context)
        self.http_url: str | None = None
        self.queues = {
            name: LogicalQueue(name, queue_config, self.engine, context.clock)
            for name, queue_config in config.queues.items()
        }
        budget = PendingBudget(config.max_pending_messages, config.max_pending_bytes)
        self._intakes: list[Intake] = []
        published = {name: self._intake(queue, budget) for name, queue in self.queues.items()}
        self.sinks: Sequence[MessageSink] = [
            QueueSink(f"queue.{name}", queue.config, published[name])
            for name, queue in self.queues.items()
        ]
        over_http = {name: self._intake(queue, budget) for name, queue in self.queues.items()}
        self._api = QueueApi(
            self.queues,
            over_http,
            published,
            self.engine,
            context.clock,
            context.logger,
            Bodies(config.http_limits.body_bytes, config.http_limits.body_timeout_seconds),
        )
        self._http: HttpServer | None = None
        if config.http is not None:
            application = self._api.application(config.max_request_bytes)
            self._http = HttpServer(
                application, "plugins.queue.http", config.http_limits, context.logger
            )
            self.open_files = self._http.open_files
        self._retention: list[asyncio.Task[None]] = []

    @classmethod
    def alone(cls, config: QueueConfig, logger: Logger, policy_file: str) -> QueuePlugin:
        """Return the plugin for a program without a broker."""
        return cls(config, PluginContext(logger, policy_file, time.monotonic))

    async def start(self) -> None:
        """Open the engine and the HTTP API.

        Raises:
            EngineStartError: the engine cannot be opened.
            HttpStartError: the address cannot be bound.
        """
        await self.engine.open({name: queue.layout for name, queue in self.queues.items()})
        for queue in self.queues.values():
            queue.start()
            if queue.config.retention_seconds is not None:
                name = f"queue retention {queue.name}"
                task = asyncio.create_task(self._keep_retention(queue), name=name)
                self._retention.append(task)
        if self._http is not None and self.config.http is not None:
            try:
                self.http_url = await self._http.start(self.config.http)
            except BaseException:
                await self.close()
                raise
            self.context.logger.info("queue API listens on %s", self.http_url)

    async def close(self) -> None:
        """Answer waiting requests, store accepted messages and stop; may be called again."""
        for queue in self.queues.values():
            queue.close()
        if self._http is not None:
            await self._http.close()
            self._http = None
        for task in self._retention:
            task.cancel()
        await asyncio.gather(*self._retention, return_exceptions=True)
        self._retention.clear()
        for intake in self._intakes:
            await intake.close()
        await self.engine.close()

    def _intake(self, queue: LogicalQueue, budget: PendingBudget) -> Intake:
        intake = Intake(
            queue,
            self.engine,
            budget,
            commit_wait_seconds=self.config.commit_wait_seconds,
            commit_max_messages=self.config.commit_max_messages,
            logger=self.context.logger,
        )
        self._intakes.append(intake)
        return intake

    async def _keep_retention(self, queue: LogicalQueue) -> None:
        """Remove expired messages periodically."""
        retention = queue.config.retention_seconds or 0.0
        step = min(retention / RETENTION_STEPS, LONGEST_RETENTION_STEP_SECONDS)
        faults: dict[str, int] = {}
        while True:
            try:
                await queue.expire_old()
            except StorageError as error:
                self.context.logger.warning("queue %s: cannot expire: %s", queue.name, error)
            except Exception as error:  # noqa: BLE001 (the next attempt must follow any error)
                note_fault(self.context.logger, faults, f"retention of queue {queue.name}", error)
            await asyncio.sleep(step)


def _engine(config: QueueConfig, context: PluginContext) -> Engine:
    store = (
        MemoryStore() if config.engine == "memory" else SqliteStore(config.path, config.durability)
    )
    return LocalEngine(
        store,
        clock=context.clock,
        commit_max_messages=config.commit_max_messages,
        logger=context.logger,
    )
