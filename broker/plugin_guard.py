"""Contains faults: each is counted and logged at growing intervals, and the rest goes on.

A plugin is called under a `Guard`. What it raises is counted by its name and logged in one form,
whatever kind of extension it is; the caller goes on with the answer that it has for such a case: a
gate's message is delivered, access control refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from logging import Logger
from typing import Any, TypeVar

from penstock.broker.errors import PenstockError

Answer = TypeVar("Answer")
Otherwise = TypeVar("Otherwise")


def is_logged(number: int, *, first: int = 1) -> bool:
    """Say whether one of many like cases is logged: the first ones, then each doubling."""
    return number <= first or not number & (number - 1)


def note_fault(
    logger: Logger, by_name: dict[str, int], name: str, error: Exception, *, kind: str = ""
) -> None:
    """Count an exception, and log it: the first with its traceback, then each doubling.

    For a refusal of the system, such as a full disk, or one of ours, the log has its text and not
    the code.
    """
    n_errors = by_name[name] = by_name.get(name, 0) + 1
    if not is_logged(n_errors):
        return
    is_refusal = isinstance(error, PenstockError) or (isinstance(error, OSError) and error.strerror)
    told = str(error) if is_refusal else repr(error)
    if n_errors == 1:
        trace = None if is_refusal else error
        logger.error("%s%s failed: %s", kind, name, told, exc_info=trace)
    else:
        logger.error("%s%s failed %d times: %s", kind, name, n_errors, told)


class Guard:
    """Calls into plugins. A plugin that raises harms neither a client nor the broker.

    The name of a plugin is that of its class, or the text that stands for it. Where a call costs
    too much, as for each acknowledgement, the caller has the ``try`` itself and calls `failed`.
    """

    __slots__ = ("_errors", "_logger")

    def __init__(self, logger: Logger, errors: dict[str, int]) -> None:
        """Begin without faults."""
        self._logger = logger
        self._errors = errors

    def failed(self, plugin: object, error: Exception) -> None:
        """Count and log what a plugin has raised."""
        name = plugin if isinstance(plugin, str) else type(plugin).__name__
        note_fault(self._logger, self._errors, name, error, kind="extension ")

    def call(
        self, plugin: object, ask: Callable[..., Answer], *args: Any, otherwise: Otherwise
    ) -> Answer | Otherwise:
        """Ask a plugin."""
        try:
            return ask(*args)
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
            self.failed(plugin, error)
            return otherwise

    def over(
        self, plugin: object, ask: Callable[..., Answer] | None, otherwise: Answer
    ) -> Callable[..., Answer] | None:
        """Return a plugin's function, each of whose calls is as by `call`; None for None."""
        if ask is None:
            return None

        def guarded(*args: Any) -> Answer:
            try:
                return ask(*args)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                self.failed(plugin, error)
                return otherwise

        return guarded

    def ask(self, plugin: object, ask: Callable[..., Any], *args: Any, otherwise: Any) -> Any:
        """Ask a plugin that may return an awaitable; return its answer, or what gives that.

        Arguments are those of `call`.
        """
        try:
            answer = ask(*args)
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
            self.failed(plugin, error)
            return otherwise
        if type(answer) is bool or not isinstance(answer, Awaitable):
            return answer
        return self._await(plugin, answer, otherwise)

    async def _await(self, plugin: object, awaited: Awaitable[Any], otherwise: Any) -> Any:
        try:
            return await awaited
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
            self.failed(plugin, error)
            return otherwise

    async def wait_for(
        self, plugin: object, ask: Callable[..., Any], *args: Any, otherwise: Any
    ) -> Any:
        """Ask a plugin that may return an awaitable, and wait; arguments as of `call`."""
        answer = self.ask(plugin, ask, *args, otherwise=otherwise)
        return await answer if isinstance(answer, Awaitable) else answer

    def tell(self, callbacks: Iterable[Callable[[Any], object]], event: object) -> None:
        """Call each callback of an event."""
        for callback in callbacks:
            try:
                callback(event)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                name = getattr(callback, "__qualname__", repr(callback))
                self.failed(f"{name} on {type(event).__name__}", error)

    def tell_each(self, plugins: Iterable[Any], tell: Callable[[Any], object]) -> None:
        """Tell each of several plugins something."""
        for plugin in plugins:
            try:
                tell(plugin)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                self.failed(plugin, error)
