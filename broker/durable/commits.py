"""When the journal's changes are written: to the database, or to a plugin's store.

Changes that come while one batch is written go into the next. A batch is sealed as soon as a client
waits for what only the commit can tell it, or when nothing is left to write. Otherwise it is sealed
`commit_wait_seconds` after the first change: acknowledgements may still make it smaller. An empty
batch is not written. Changes that no client waits for are put off for `UNAWAITED_SECONDS`, and most
go with those that one waits for. A batch that is refused is tried again every `RETRY_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from penstock.broker.config.policy import Persistence
from penstock.broker.counters import Histogram
from penstock.broker.durable.journal import Journal
from penstock.broker.durable.kept_sessions import KeptSessions
from penstock.broker.durable.records import Batch
from penstock.broker.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.extensions import SessionOwner, SessionStore
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

RETRY_SECONDS: Final = 1.0
"""Time between two attempts to write a refused batch, or between two looks for room."""

UNAWAITED_SECONDS: Final = 0.05
"""How long changes that no client waits for are put off, such as the end of a connection. Where 50
devices a second connect, take a command and leave, these were a quarter of the commits, each of
which takes 0.5 ms of processor time."""

LOG_PERIOD_SECONDS: Final = 60.0
"""Time between two log lines while the disk goes on refusing."""

ORIGIN_BYTES: Final = 8
"""Length of a session's origin: 100 million sessions are unlikely to have two equal ones."""

COMMIT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds: from a disk with a cache of its own to one that is overloaded."""

FLUSH_SECONDS: Final = 5.0
"""Each `flush` waits so long for a disk that refuses; the end of the broker has two."""

LONE_SECONDS: Final = 0.025
"""Between two looks at messages that are not noted (`LoneMessages`), so that no publisher waits for
more than 50 ms for a subscriber. 500 pairs that keep two processors busy acknowledge within 15 to
50 ms."""

BUSY_SECONDS: Final = 0.05
"""The loop is found busy or not over at least this time."""

BUSY_RATIO: Final = 0.2
"""The loop's thread is busy where it has used so much of a processor. That is some 5,000 messages a
second that each came by itself. It stays busy down to half of that."""


class Surroundings(NamedTuple):
    """The broker around a journal.

    Attributes:
        core: without clients; its plugins have started.
        clock: returns monotonic seconds, as every `now` of the core.
        settle: runs a call into the core as a turn of the driver.
        is_near: says of a connection's file descriptor whether its RTT is short.
        logger: the log of refusals.
    """

    core: Core
    clock: Callable[[], float]
    settle: Callable[[Callable[[], None]], None]
    is_near: Callable[[int], bool]
    logger: logging.Logger


class Commits(ABC):
    """The journal of one broker, and when its changes are written.

    Attributes:
        journal: the changes, and who waits for the commit.
        commit_seconds: the time of each commit.
    """

    _writes_to: ClassVar = "the disk"

    def __init__(
        self,
        config: Persistence,
        broker: Surroundings,
        *,
        keeps: Callable[[Session], bool] | None = None,
    ) -> None:
        """Make the journal of a broker.

        Args:
            config: the config from the policy file; its durability is not ``memory``.
            broker: what is around the journal.
            keeps: as of `Journal`.
        """
        self._config = config
        core, self._clock, self._settle, is_near, self._logger = broker
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._unawaited_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._busy_at = self._clock(), time.thread_time()
        self._logged_at = -math.inf
        self._n_committed = 0
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        self._progress: asyncio.Future[None] | None = None
        self._is_closed = False
        self.journal = Journal(
            core,
            wake=self._wake,
            hurry=self._hurry,
            look_later=self._look_later,
            is_near=is_near,
            new_origin=lambda: secrets.token_bytes(ORIGIN_BYTES),
            max_pending_messages=config.max_pending_messages,
            max_pending_bytes=config.max_pending_bytes,
            keeps=keeps,
        )

    @abstractmethod
    def _times(self) -> tuple[float, float]:
        """Return the first two arguments of `Journal.seal`."""

    @abstractmethod
    def _start_writing(self, batch: Batch, begin: float) -> None:
        """Write a batch elsewhere; `_written` is to follow on the loop's thread."""

    def _look_for_room(self) -> None:  # noqa: B027 (a default)
        """Take over how much room there is, where that has an end."""

    def _wake(self) -> None:
        if self._timer is None and self.journal.sealed is None and not self._is_closed:
            wait = 0.0 if self.journal.is_urgent else self._config.commit_wait_seconds
            self._timer = self._loop.call_later(wait, self._waited)

    def _waited(self) -> None:
        """Commit, or put that off where no client waits for it and the disk has room."""
        self._timer = None
        if self.journal.is_awaited or self.journal.is_full:
            self._commit()
        elif self._unawaited_timer is None:
            self._unawaited_timer = self._loop.call_later(UNAWAITED_SECONDS, self._commit)

    def _hurry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_closed:
            return
        self._timer = self._loop.call_later(0, self._commit)

    def _cancel_timers(self) -> None:
        """Let no commit begin by itself."""
        for timer in (self._timer, self._unawaited_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._unawaited_timer = None

    def _look_later(self) -> None:
        if not self._is_closed:
            self._look_timer = self._loop.call_later(LONE_SECONDS, self._look)

    def _look(self) -> None:
        self._see_how_busy()
        self._settle(self.journal.look_at_lone)

    def _see_how_busy(self) -> None:
        """Take note of how busy the loop has been, if the last time was some time ago."""
        now = self._clock()
        before, used_before = self._busy_at
        if now - before >= BUSY_SECONDS:
            used = time.thread_time()
            self._busy_at = now, used
            lone = self.journal.lone
            ratio = BUSY_RATIO / 2 if lone.is_busy else BUSY_RATIO
            lone.is_busy = used - used_before >= ratio * (now - before)

    def _commit(self) -> None:
        """Seal what has changed and write it."""
        if self.journal.sealed is not None:
            return
        self._cancel_timers()
        self._see_how_busy()
        batch = self.journal.seal(*self._times())
        if batch is None:
            self._look_for_room()
            self._has_progressed()
        elif batch.is_empty():
            self._look_for_room()
            self._committed(batch)
        else:
            self._write(batch)

    def _write(self, batch: Batch) -> None:
        self._timer = None
        self._start_writing(batch, self._clock())

    def _written(self, batch: Batch, error: BaseException | None, begin: float) -> None:
        self.commit_seconds.observe(self._clock() - begin)
        self._look_for_room()
        if error is None:
            if self.journal.is_failing:
                self._logger.warning("persistence: %s takes commits again", self._writes_to)
                self._logged_at = -math.inf
            self._committed(batch)
            return
        now = self._clock()
        if now - self._logged_at >= LOG_PERIOD_SECONDS:
            self._logged_at = now
            self._logger.error(
                "persistence: %s; until it is written, publishes to persistent sessions are "
                "refused",
                error,
                exc_info=None if isinstance(error, PenstockError) else error,
            )
        self._timer = self._loop.call_later(RETRY_SECONDS, self._write, batch)
        self._settle(self.journal.failed)

    def _committed(self, batch: Batch) -> None:
        self._n_committed = batch.number
        self._settle(self.journal.committed)
        if self.journal.is_awake:
            self._wake()
        self._has_progressed()

    def _has_progressed(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def flush(self) -> bool:
        """Wait until everything changed so far is committed; later changes are not waited for.

        Returns:
            False where the disk refuses for too long.
        """
        journal = self.journal
        self._settle(journal.note_all)
        wanted = journal.number
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._n_committed < wanted and (journal.is_awake or not journal.is_settled):
                    self._progress = self._loop.create_future()
                    if journal.sealed is None:
                        self._hurry()
                    await self._progress
        except TimeoutError:
            return False
        return True

    def _end(self) -> None:
        self._is_closed = True
        self._cancel_timers()
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    @abstractmethod
    async def backup(self, folder: str) -> int:
        """Copy what is stored on this machine into a folder; return its bytes."""

    async def close(self) -> None:
        """Commit everything, then end."""
        if not await self.flush():
            self._logger.error(
                "persistence: %s could not be written: unacknowledged messages are lost",
                self._stored_at(),
            )
        self._end()

    def _stored_at(self) -> str:
        return self._config.path


class StoreCommits(Commits):
    """The journal of sessions that a plugin keeps: `SessionStore` has what is written."""

    _writes_to = "the session store"

    def __init__(self, owner: SessionOwner, store: SessionStore, broker: Surroundings) -> None:
        """Make the journal of the sessions that the owner keeps."""
        kept = KeptSessions(broker.core, owner, store)
        super().__init__(Persistence(), broker, keeps=kept.keeps)
        self._store = store
        kept.attach(self.journal)
        self._writing: asyncio.Task[None] | None = None

    def _times(self) -> tuple[float, float]:
        return self._store.epoch(), 0.0

    def _start_writing(self, batch: Batch, begin: float) -> None:
        self._writing = self._loop.create_task(
            self._write_to_store(batch, begin), name="penstock-persistence"
        )

    async def _write_to_store(self, batch: Batch, begin: float) -> None:
        error = None
        try:
            await self._store.write(batch)
        except Exception as refused:  # noqa: BLE001 (told where it is tried again)
            error = refused
        self._written(batch, error, begin)

    def _end(self) -> None:
        super()._end()
        if self._writing is not None:
            self._writing.cancel()

    def _stored_at(self) -> str:
        return "what plugins keep of sessions"

    async def backup(self, folder: str) -> int:  # noqa: ARG002 (as of `Commits`)
        """Copy nothing: it is not on this machine."""
        return 0
