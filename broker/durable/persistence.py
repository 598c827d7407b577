"""The journal's driver: one thread writes, and the loop's thread gets the results.

Changes that come while one batch is written go into the next. A batch is sealed as soon as a client
waits for what only the commit can tell it, or when nothing is left to write. Otherwise it is sealed
`commit_wait_seconds` after the first change: acknowledgements may still make it smaller. An empty
batch needs no disk. Changes that no client waits for are put off for `UNAWAITED_SECONDS`, and most
go with those that one waits for. A batch that the disk refuses is tried again every
`RETRY_SECONDS`. Where the disk had no room for a message, the driver looks for room as often, and
nothing is put off: what a commit deletes makes room.

Deadlines are kept by the database's own clock. It is stored every `CLOCK_SECONDS`, and when the
wall clock was set, which a restart of the machine needs to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from penstock.broker.config.policy import Persistence
from penstock.broker.counters import Histogram
from penstock.broker.durable.database import (
    RESERVE_BYTES,
    DatabaseError,
    SessionDatabase,
)
from penstock.broker.durable.journal import Journal
from penstock.broker.durable.records import Batch
from penstock.broker.durable.recovery import restore
from penstock.broker.durable.storage_clock import Clocks
from penstock.broker.errors import PeerError

if TYPE_CHECKING:
    from penstock.broker.sessions.broker_state import Core

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

CLOCK_SECONDS: Final = 60.0
"""The clock is stored once in this time. A session that waits for its client may last longer by as
much if the broker is killed."""

STEP_SECONDS: Final = 1.0
"""The wall clock may differ by so much from its last reading before it counts as set."""

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


class PersistentState:
    """The journal of one broker on its database.

    Attributes:
        journal: the changes, and who waits for the commit.
        commit_seconds: the time of each commit.
    """

    def __init__(
        self,
        config: Persistence,
        core: Core,
        *,
        clock: Callable[[], float],
        settle: Callable[[Callable[[], None]], None],
        is_near: Callable[[int], bool],
        logger: logging.Logger,
    ) -> None:
        """Open the database and bring the broker into the state of its last commit.

        Args:
            config: the config from the policy file; its durability is not ``memory``.
            core: without clients; its plugins have started.
            clock: returns monotonic seconds, as every `now` of the core.
            settle: runs a call into the core as a turn of the driver.
            is_near: says of a connection's file descriptor whether its RTT is short.
            logger: the log of what was restored, and of refusals of the disk.

        Raises:
            DatabaseError: the database cannot be used.
        """
        self._config = config
        self._clock = clock
        self._settle = settle
        self._logger = logger
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._unawaited_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._busy_at = clock(), time.thread_time()
        self._logged_at = -math.inf
        self._room_timer: asyncio.TimerHandle | None = None
        self._full_logged_at = -math.inf
        self._is_full_logged = False
        self._n_committed = 0
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        self._progress: asyncio.Future[None] | None = None
        self._is_closed = False
        self._clock_timer: asyncio.TimerHandle | None = None
        self._epoch = 0.0
        self._database = SessionDatabase(config.path, is_flushed=config.durability == "full")
        self._writer = ThreadPoolExecutor(1, "penstock-persistence")
        self.journal = Journal(
            core,
            wake=self._wake,
            hurry=self._hurry,
            look_later=self._look_later,
            is_near=is_near,
            new_origin=lambda: secrets.token_bytes(ORIGIN_BYTES),
            max_pending_messages=config.max_pending_messages,
            max_pending_bytes=config.max_pending_bytes,
        )
        self.journal.measured(self._database.room_bytes)
        was_collecting = gc.isenabled()
        gc.disable()  # its repeated passes over the restored objects take half of the time
        try:
            self._restore(core)
        except BaseException:
            self._end()
            raise
        finally:
            if was_collecting:
                gc.enable()
        self._store_clock()

    def _restore(self, core: Core) -> None:
        try:
            stored = self._database.read(core.keep)
            # The clock has certainly reached the newest of the stored times.
            newest = max((row.arrived_at for row in stored.messages), default=0.0)
            self._time = self._database.start_clock(Clocks(self._clock), newest)
            restore(
                core,
                self.journal,
                stored,
                epoch=self._time.shift,
                now=self._clock(),
                away=self._time.away,
            )
        except (PeerError, KeyError, ValueError, TypeError) as error:
            raise DatabaseError(
                f"persistence database {self._config.path}: read rows that do not fit together: "
                f"{error!r}; allowed: what this broker has written. To begin without what it "
                "holds, move the file away"
            ) from error
        if self._database.tightened:
            self._logger.warning(
                "persistence: other users could read %s; only its owner can from now on",
                ", ".join(self._database.tightened),
            )
        if self._database.n_staying:
            self._logger.warning(
                "persistence: no room for %d payloads outside %s: they are sent from this database",
                self._database.n_staying,
                self._config.path,
            )
        self._logger.info(
            "persistence: %d sessions, %d messages for them, %d retained messages restored from %s",
            len(stored.sessions),
            len(stored.deliveries),
            len(stored.retained),
            self._config.path,
        )

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

    def _store_clock(self) -> None:
        """Store the clock, in the writer's thread."""
        if self._clock_timer is not None:
            self._clock_timer.cancel()
        self._epoch = self._time.epoch
        self._loop.run_in_executor(self._writer, self._database.store_clock)
        self._clock_timer = self._loop.call_later(CLOCK_SECONDS, self._store_clock)

    def _commit(self) -> None:
        """Seal what has changed and write it."""
        if self.journal.sealed is not None:
            return
        self._cancel_timers()
        self._see_how_busy()
        if abs(self._time.epoch - self._epoch) > STEP_SECONDS:
            self._store_clock()
        batch = self.journal.seal(self._time.shift, self._time.away)
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
        # asyncio's `run_in_executor` takes twice as long on the loop's thread.
        self._writer.submit(self._write_in_thread, batch, self._clock())

    def _write_in_thread(self, batch: Batch, begin: float) -> None:
        error = None
        try:
            self._database.write(batch)
        except BaseException as refused:  # noqa: BLE001 (told on the loop's thread)
            error = refused
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._written, batch, error, begin)

    def _written(self, batch: Batch, error: BaseException | None, begin: float) -> None:
        self.commit_seconds.observe(self._clock() - begin)
        self._look_for_room()
        if error is None:
            if self.journal.is_failing:
                self._logger.warning("persistence: the disk takes commits again")
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
                exc_info=None if isinstance(error, DatabaseError) else error,
            )
        self._timer = self._loop.call_later(RETRY_SECONDS, self._write, batch)
        self._settle(self.journal.failed)

    def _look_for_room(self) -> None:
        """Take over how much room there is; where a message found none, look again later."""
        journal = self.journal
        now = self._clock()
        if journal.is_full and now - self._full_logged_at >= LOG_PERIOD_SECONDS:
            self._full_logged_at = now
            self._is_full_logged = True
            self._logger.error(
                "persistence: the disk of %s has no room for messages, besides %d bytes that are "
                "kept for deleting; until it has, publishes to persistent sessions are refused",
                self._config.path,
                RESERVE_BYTES,
            )
        journal.measured(self._database.room_bytes)
        if not journal.is_full:
            if self._is_full_logged:
                self._is_full_logged = False
                self._logger.warning("persistence: the disk has room for messages again")
        elif self._room_timer is None and not self._is_closed:
            self._room_timer = self._loop.call_later(RETRY_SECONDS, self._measure)

    def _measure(self) -> None:
        self._room_timer = None
        measured = self._loop.run_in_executor(self._writer, self._database.measure)
        measured.add_done_callback(lambda _: self._look_for_room())

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

    async def backup(self, folder: str) -> int:
        """Copy the database into a folder, as ``sessions.db``, while all goes on; return its bytes.

        Raises:
            DatabaseError: there is no copy.
        """
        return await asyncio.to_thread(self._database.copy_to, f"{folder}/sessions.db")

    async def close(self) -> None:
        """Commit everything, then close the file."""
        if not await self.flush():
            self._logger.error(
                "persistence: %s could not be written: unacknowledged messages are lost",
                self._config.path,
            )
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._cancel_timers()
        for timer in (self._look_timer, self._room_timer, self._clock_timer):
            if timer is not None:
                timer.cancel()
        self._look_timer = self._room_timer = self._clock_timer = None
        self._writer.shutdown(wait=True)
        self._database.close()
