"""Runs long work on an event loop that serves others, one slice in each round of the loop.

Theory of operation. Work is a generator that yields wherever it may be interrupted. It runs on
until it has used up its slice; then it waits for a turn. However much work there is, each round of
the loop runs one slice: what the loop serves besides waits for one slice, not for all of the work.
Short work never waits.

A thread would do no better: the interpreter lets one thread run at a time, and a busy one gives way
only after `penstock.broker.process.program.SWITCH_SECONDS`, so that each round of the loop would
begin as late as that, also where there is very much work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_SECONDS: Final = 0.001
"""A slice takes this time, unless a single step takes longer: a tenth of what a client on the same
machine would notice."""

Work = Generator[None, None, T]
"""A generator that yields where it may be interrupted, and returns its result."""


class Slicer:
    """Runs works on one event loop; share one between all that may be large."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def run(self, work: Work[T]) -> T:
        """Return a work's result; what it raises is raised.

        If the caller is cancelled, the work is closed where it stands.
        """
        try:
            until = self._clock() + SLICE_SECONDS
            while True:
                next(work)
                if self._clock() >= until:
                    await self._turn()
                    until = self._clock() + SLICE_SECONDS
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            work.close()

    def _turn(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._give_turn)
        return future

    def _give_turn(self) -> None:
        waiting = self._waiting
        while waiting and (future := waiting.popleft()).done():
            pass  # its caller was cancelled
        if not future.done():
            future.set_result(None)
        self._is_scheduled = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_soon(self._give_turn)
