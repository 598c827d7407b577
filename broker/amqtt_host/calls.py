"""Plugins are called at once where a coroutine cannot suspend, and in a task where it can.

Theory of operation. A plugin that waits, such as for a database, may fall behind a fast publisher.
From `max_events` tasks on, `catch_up` asks the cause of events to wait until there are fewer:
back-pressure slows the publishers to the plugin's pace. A plugin that finishes no event in
`MAX_WAIT_SECONDS` is stuck, and is no longer waited for. Its events still become tasks, up to
`N_STUCK` times as many; further ones are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeAlias

from penstock.broker.amqtt_host.handlers import Handler, run_now

SHUTDOWN_SECONDS: Final = 5.0
"""Each step of the shutdown waits this long for plugins that are still at work."""

MAX_WAIT_SECONDS: Final = 1.0
"""A client waits no longer than this for plugins, as in `penstock.broker.sending.throttle`."""

N_STUCK: Final = 10
"""The events of stuck plugins may reach this multiple of `max_events`."""

Answers: TypeAlias = "list[Any] | Awaitable[list[Any]]"


class PluginCalls:
    """Calls handlers; exceptions are reported, never passed on."""

    def __init__(
        self,
        logger: logging.Logger,
        on_error: Callable[[str, Exception], None],
        on_dropped: Callable[[str], None],
        *,
        max_events: int,
    ) -> None:
        """Begin without tasks.

        Args:
            logger: the logger for plugins that take too long.
            on_error: gets the name of a handler and the exception it raised.
            on_dropped: gets the name of a handler whose event was dropped.
            max_events: tasks of events from which on clients wait.
        """
        self._logger = logger
        self._on_error = on_error
        self._on_dropped = on_dropped
        self._max_events = max_events
        self._tasks: set[asyncio.Task[Any]] = set()
        self._n_events = 0
        self._n_finished = 0
        self._is_stuck = False
        self._waiting: list[asyncio.Future[None]] = []

    # -- questions -------------------------------------------------------------------------

    def ask(self, handlers: Sequence[Handler], asked: dict[str, Any]) -> Answers:
        """Return every handler's answer, or an awaitable of all answers.

        The answer of a handler that raises is False.
        """
        for handler in handlers:
            if handler.can_wait or handler.is_slow:
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

    def fire(self, handlers: Iterable[Handler], told: dict[str, Any]) -> None:
        """Pass an event to each handler, except those with too many unfinished ones."""
        for handler in handlers:
            if handler.can_wait and self._n_events >= self._max_events * N_STUCK:
                self._on_dropped(handler.name)
            else:
                for task in self._start((handler,), told):
                    self._n_events += 1
                    task.add_done_callback(self._event_done)

    def _event_done(self, _task: asyncio.Task[Any]) -> None:
        self._n_events -= 1
        self._n_finished += 1
        self._is_stuck = False
        if self._n_events < self._max_events:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def catch_up(self) -> Coroutine[Any, Any, None] | None:
        """Return what the cause of events must wait for; None where plugins keep up."""
        if self._n_events < self._max_events or self._is_stuck:
            return None
        return self._wait_for_room()

    async def _wait_for_room(self) -> None:
        n_before = self._n_finished
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await asyncio.wait_for(future, MAX_WAIT_SECONDS)
        except TimeoutError:
            self._waiting.remove(future)
            if self._n_finished == n_before and not self._is_stuck:
                self._is_stuck = True
                self._logger.warning("aMQTT plugins are stuck, with %d events", self._n_events)

    def _start(self, handlers: Iterable[Handler], told: dict[str, Any]) -> list[asyncio.Task[Any]]:
        """Call each handler; return the tasks of those that may suspend."""
        tasks = []
        for handler in handlers:
            if handler.can_wait:
                tasks.append(self._own(self._answer(handler, told), handler.name))
            else:
                self._answer_now(handler, told)
        return tasks

    async def fire_and_wait(
        self, handlers: Iterable[Handler], timeout_seconds: float | None
    ) -> None:
        """Call each handler and wait for all; those still at work are cancelled in the end."""
        await self._finish(self._start(handlers, {}), timeout_seconds)

    async def finish(self) -> None:
        """Wait for every running task, for `SHUTDOWN_SECONDS` at most."""
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
