"""Calling plugins: at once where their coroutine cannot wait, in an owned task where it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from broker.amqtt_host.handlers import Handler, run_now

SHUTDOWN_SECONDS: Final = 5.0
"""How long the end of the broker waits for plugins that are still at work, in each step."""

Answers: TypeAlias = "list[Any] | Awaitable[list[Any]]"


class PluginCalls:
    """Calls handlers; what they raise is reported, never passed on."""

    def __init__(self, logger: logging.Logger, on_error: Callable[[str, Exception], None]) -> None:
        """Start with nothing to do.

        Args:
            logger: for plugins that take too long.
            on_error: told the name of a handler and what it raised.
        """
        self._logger = logger
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- questions -------------------------------------------------------------------------

    def ask(self, handlers: Sequence[Handler], asked: dict[str, Any]) -> Answers:
        """Return every handler's answer, or something that waits for them all.

        A handler that raises has answered False.
        """
        if any(handler.can_wait or handler.is_slow for handler in handlers):
            return self._own(self._ask_all(handlers, asked), "aMQTT plugins asked")
        return [self._answer_now(handler, asked) for handler in handlers]

    def _answer_now(self, handler: Handler, asked: dict[str, Any]) -> Any:
        try:
            return run_now(handler.call(**asked))
        except Exception as error:  # noqa: BLE001 (a plugin's fault must not let a client in)
            self._on_error(handler.name, error)
            return False

    async def _ask_all(self, handlers: Sequence[Handler], asked: dict[str, Any]) -> list[Any]:
        return await asyncio.gather(*(self._answer(handler, asked) for handler in handlers))

    async def _answer(self, handler: Handler, asked: dict[str, Any]) -> Any:
        try:
            if handler.is_slow:
                return await asyncio.to_thread(run_now, handler.call(**asked))
            return await handler.call(**asked)
        except Exception as error:  # noqa: BLE001 (a plugin's fault must not let a client in)
            self._on_error(handler.name, error)
            return False

    # -- events ----------------------------------------------------------------------------

    def fire(self, handlers: Iterable[Handler], told: dict[str, Any]) -> list[asyncio.Task[Any]]:
        """Tell each handler; return the tasks of those that may still be at it."""
        tasks = []
        for handler in handlers:
            try:
                coroutine = handler.call(**told)
                if handler.can_wait:
                    task = self._own(coroutine, handler.name)
                    task.add_done_callback(partial(self._done, handler))
                    tasks.append(task)
                else:
                    run_now(coroutine)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not the client's)
                self._on_error(handler.name, error)
        return tasks

    async def fire_and_wait(
        self, handlers: Iterable[Handler], timeout_seconds: float | None
    ) -> None:
        """Tell each handler and wait for all; after the time-out those at work are cancelled."""
        await self._finish(self.fire(handlers, {}), timeout_seconds)

    async def finish(self) -> None:
        """Wait for everything that was started, for a while."""
        await self._finish(list(self._tasks), SHUTDOWN_SECONDS)

    async def _finish(self, tasks: list[asyncio.Task[Any]], timeout_seconds: float | None) -> None:
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=timeout_seconds)
        for task in pending:
            self._logger.warning("%s: cancelled after %g s", task.get_name(), timeout_seconds)
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    # -- tasks -----------------------------------------------------------------------------

    def _own(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _done(self, handler: Handler, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._on_error(handler.name, error)
