"""Finds out for all who ask at once, and seldom where it costs much."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

LEAST_SECONDS: Final = 0.9
"""An answer is as old as this at most, as long as it is cheap: who asks each second gets a new one.
"""

MOST_SECONDS: Final = 15.0

SHARE_OF_A_CORE: Final = 0.008
"""An answer that costs more is kept longer. A page asks for two of them, and both together with the
requests are to take no more than 2 % of a core, also of 10,000 clients."""


MOST_ANSWERS: Final = 32
"""So many different questions are remembered; a page asks one or two every two seconds."""


class Timed(Generic[T]):
    """A coroutine whose own time is measured, without that of others which run in between.

    Attributes:
        seconds: of processor time that it took so far.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        """Run it step by step."""
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            began = time.thread_time()
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += time.thread_time() - began
            try:
                step = partial(self._coroutine.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001 (it is the coroutine's, such as a cancellation)
                step = partial(self._coroutine.throw, error)


class Answers(Generic[T]):
    """Answers by what was asked, each for all who ask the same."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: OrderedDict[str, Shared[T]] = OrderedDict()

    def get(self, asked: str, make: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Return the answer to what was asked, which `make` finds out."""
        answer = self._answers.get(asked)
        if answer is None:
            answer = self._answers[asked] = Shared(make, self._clock, "console list")
            if len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(asked)
        return answer.get()

    def forget(self) -> None:
        """Find all out again: something was changed."""
        self._answers.clear()

    def close(self) -> None:
        """End what runs."""
        for answer in self._answers.values():
            answer.close()


class Shared(Generic[T]):
    """An answer for all who ask within a second."""

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, T]], clock: Callable[[], float], name: str
    ) -> None:
        self._make = make
        self._clock = clock
        self._name = name
        self._task: asyncio.Task[T] | None = None
        self._stale_at = 0.0

    def get(self) -> Awaitable[T]:
        """Return the answer; others who ask meanwhile wait for the same one."""
        task = self._task
        if task is None or (task.done() and self._is_stale(task)):
            task = self._task = asyncio.create_task(self._measured(), name=self._name)
        # One who leaves does not end it for the others.
        return asyncio.shield(task)

    def _is_stale(self, task: asyncio.Task[T]) -> bool:
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock() >= self._stale_at

    async def _measured(self) -> T:
        timed = Timed(self._make())
        found = await timed
        kept = min(max(LEAST_SECONDS, timed.seconds / SHARE_OF_A_CORE), MOST_SECONDS)
        self._stale_at = self._clock() + kept
        return found

    def forget(self) -> None:
        """Find it out again for the next who asks: something was changed."""
        self._stale_at = 0.0

    def close(self) -> None:
        """End what runs."""
        if self._task is not None:
            self._task.cancel()
