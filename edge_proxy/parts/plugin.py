"""The plugin ``parts``: cuts large messages into parts, and puts parts together again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from penstock.broker.counters import Metric, metrics_of
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import Claim, Plugin, PluginContext
from penstock.edge_proxy.parts.assembler import Assembler
from penstock.edge_proxy.parts.config import PartsConfig
from penstock.edge_proxy.parts.parts_context import PartsContext, PartsCounts
from penstock.edge_proxy.parts.retained_parts import RetainedParts
from penstock.edge_proxy.parts.splitter import Splitter, end_session
from penstock.edge_proxy.parts.spool import Spool

T = TypeVar("T")


class PartsPlugin(Plugin):
    """The end that cuts, the end that puts together, or both: see `PartsConfig`."""

    Config = PartsConfig
    has_local_clients = True
    open_files = 4

    def __init__(self, config: PartsConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        if others := context.others():
            allowed = "one process: the parts of a message come together in it"
            problem = ConfigProblem("plugins.parts", others, allowed)
            raise ConfigError(context.policy_file, [problem])
        self.counts = PartsCounts()
        self._spool = Spool(config.spool)
        self._thread: ThreadPoolExecutor | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._assembler: Assembler | None = None
        self._splitter: Splitter | None = None
        self._kept: RetainedParts | None = None
        clients = context.local_clients
        if clients is None:  # nothing runs where a file is only checked
            return
        of = PartsContext(
            config,
            clients,
            self._spool,
            self._in_thread,
            self.counts,
            context.logger,
            context.clock,
        )
        if config.assemble:
            self._assembler = Assembler(of)
            self.sinks = (self._assembler,)
        if config.split:
            self._splitter = Splitter(of)
            self._kept = RetainedParts(config, self.counts, context.logger)

    def also_asked(self, topic: str) -> str | None:
        """Return the topic of the message that a part belongs to; None for any other topic."""
        prefix = f"{self.config.prefix}/"
        return topic[len(prefix) :] or None if topic.startswith(prefix) else None

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        """Call a function of the spool in its thread, as it waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def start(self) -> None:
        """Open the spool.

        Raises:
            PenstockError: it cannot be used.
        """
        clients = self.context.local_clients
        if clients is None:
            return
        self._thread = ThreadPoolExecutor(1, "penstock-parts")
        for name in await self._in_thread(self._spool.open_file):
            self.context.logger.warning("%s could be read by other users; it cannot any more", name)
        if self._splitter is not None and self._kept is not None:
            self._splitter.stream = self._kept.stream = await self._in_thread(self._spool.stream)
            clients.show_retained(f"{self.config.prefix}/", self._kept.parts)

    async def restored(self) -> None:
        """Begin to cut messages, and to put them together.

        Raises:
            PenstockError: the spool cannot be read, or the broker does not let it subscribe.
        """
        clients = self.context.local_clients
        if clients is None:
            return
        if self._assembler is not None:
            await self._assembler.prepare()
            self._run("store parts", self._assembler.store())
            self._run("publish messages", self._assembler.publish())
            self._run("sweep parts", self._assembler.sweep())
        if self._splitter is not None:
            await self._splitter.prepare()
            self._run("cut messages", self._splitter.run())
        elif end_session(clients):
            self.context.logger.warning(
                "nothing is split any more: messages that waited to be cut are dropped"
            )

    def _run(self, name: str, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log a fault of the plugin."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.context.logger.error("%s: a fault of the plugin", task.get_name(), exc_info=error)

    def figures(self) -> Iterator[Metric]:
        """Yield what was done."""
        return metrics_of([({}, self.counts)])

    def claims(self) -> Sequence[Claim]:
        """Return the spool."""
        return [Claim("spool", "database", self.config.spool, "parts.db")]

    async def backup(self, folder: str) -> int:
        """Copy the spool into a folder, as ``parts.db``; return its bytes."""
        return await asyncio.to_thread(self._spool.copy_to, f"{folder}/parts.db")

    async def close(self) -> None:
        """End all tasks; what is not done goes on at the next start."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task
        for each in (self._assembler, self._splitter):
            if each is not None:
                each.close()
        if self._thread is not None:
            self._thread.shutdown()
        self._spool.close()
