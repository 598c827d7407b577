"""Slow appends are timed, so that the enqueue controller leaves slow physical queues out."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from logging import Logger
from typing import Any

from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.strategies.slowdown_exclusion import (
    Attempt,
    EnqueueCounts,
    SlowdownExclusion,
)


class SlowAppends:
    """Times appends, and has physical queues left out that are slow, or away.

    What waits in a slow one is not sent elsewhere: it is stored there at last, or the engine
    refuses it, and never twice.
    """

    def __init__(
        self,
        name: str,
        exclusion: SlowdownExclusion[int],
        slowdown_detection_time: float,
        logger: Logger,
    ) -> None:
        self._name = name
        self._exclusion = exclusion
        self._seconds = slowdown_detection_time
        self._logger = logger
        self._timer: asyncio.TimerHandle | None = None
        self._known: set[int] = set()
        self._away: Collection[int] | None = ()

    @property
    def excluded(self) -> list[int]:
        """Return the numbers of the physical queues that are left out, ascending."""
        return sorted(self._exclusion.excluded)

    @property
    def counts(self) -> EnqueueCounts:
        """Return what was done, since the program began."""
        return self._exclusion.counts

    def change_physical_queues(self, n: int) -> None:
        """Go by so many from now on."""
        self._exclusion.change_targets(range(n))
        self._known &= set(range(n))  # what is gone is not quick again
        self._away = None  # what is new may be away
        self._tell()

    def note_away(self, numbers: Collection[int]) -> None:
        """Leave out what cannot be reached; to be called before messages are dealt.

        Args:
            numbers: the numbers of the physical queues; the same object as before says nothing new.
        """
        if numbers is not self._away:
            self._away = numbers
            self._exclusion.note_unreachable(numbers, asyncio.get_running_loop().time())
            self._tell()

    def sent(self, number: int, future: asyncio.Future[Any]) -> None:
        """Time messages that were just sent to a physical queue; see `contract.Sent`."""
        attempt = self._exclusion.send(number, asyncio.get_running_loop().time())
        future.add_done_callback(partial(self._ended, attempt))
        self._set_timer()

    def close(self) -> None:
        """Stop the timer; appends that end later do no harm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self, attempt: Attempt[int], future: asyncio.Future[Any]) -> None:
        now = asyncio.get_running_loop().time()
        if future.cancelled() or isinstance(future.exception(), StorageError):
            self._exclusion.failed(attempt, now)
        else:
            self._exclusion.answered(attempt, now)
        self._tell()

    def _look(self) -> None:
        self._timer = None
        self._exclusion.overdue(asyncio.get_running_loop().time())
        self._tell()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            deadline = self._exclusion.next_deadline()
            if deadline is not None:
                self._timer = asyncio.get_running_loop().call_at(deadline, self._look)

    def _tell(self) -> None:
        """Log what has changed."""
        excluded = self._exclusion.excluded.keys()
        if excluded == self._known:
            return
        for number in sorted(excluded - self._known):
            self._logger.warning(
                "queue %s: physical queue %d is left out: it is away, fails, or takes over %g s to "
                "store",
                self._name,
                number,
                self._seconds,
            )
        for number in sorted(self._known - excluded):
            self._logger.info("queue %s: physical queue %d is quick again", self._name, number)
        self._known = set(excluded)
