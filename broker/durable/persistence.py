"""The journal's changes in an SQLite file: one thread writes, the loop's thread gets the results.

Where the disk had no room for a message, the driver looks for room every `RETRY_SECONDS`, and
nothing is put off: what a commit deletes makes room.

Deadlines are kept by the database's own clock. It is stored every `CLOCK_SECONDS`, and when the
wall clock was set, which a restart of the machine needs to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from penstock.broker.config.policy import Persistence
from penstock.broker.durable.commits import LOG_PERIOD_SECONDS, RETRY_SECONDS, Commits, Surroundings
from penstock.broker.durable.database import RESERVE_BYTES, DatabaseError, SessionDatabase
from penstock.broker.durable.records import Batch
from penstock.broker.durable.recovery import restore
from penstock.broker.durable.storage_clock import Clocks
from penstock.broker.errors import PeerError

if TYPE_CHECKING:
    from penstock.broker.sessions.broker_state import Core

CLOCK_SECONDS: Final = 60.0
"""The clock is stored once in this time. A session that waits for its client may last longer by as
much if the broker is killed."""

STEP_SECONDS: Final = 1.0
"""The wall clock may differ by so much from its last reading before it counts as set."""


class PersistentState(Commits):
    """The journal of one broker on its database."""

    def __init__(self, config: Persistence, broker: Surroundings) -> None:
        """Open the database and bring the broker into the state of its last commit.

        Raises:
            DatabaseError: the database cannot be used.
        """
        self._room_timer: asyncio.TimerHandle | None = None
        self._full_logged_at = -math.inf
        self._is_full_logged = False
        self._clock_timer: asyncio.TimerHandle | None = None
        self._epoch = 0.0
        self._database = SessionDatabase(config.path, is_flushed=config.durability == "full")
        self._writer = ThreadPoolExecutor(1, "penstock-persistence")
        super().__init__(config, broker)
        self.journal.measured(self._database.room_bytes)
        was_collecting = gc.isenabled()
        gc.disable()  # its repeated passes over the restored objects take half of the time
        try:
            self._restore(broker.core)
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

    def _store_clock(self) -> None:
        """Store the clock, in the writer's thread."""
        if self._clock_timer is not None:
            self._clock_timer.cancel()
        self._epoch = self._time.epoch
        self._loop.run_in_executor(self._writer, self._database.store_clock)
        self._clock_timer = self._loop.call_later(CLOCK_SECONDS, self._store_clock)

    def _times(self) -> tuple[float, float]:
        if abs(self._time.epoch - self._epoch) > STEP_SECONDS:
            self._store_clock()
        return self._time.shift, self._time.away

    def _start_writing(self, batch: Batch, begin: float) -> None:
        # asyncio's `run_in_executor` takes twice as long on the loop's thread.
        self._writer.submit(self._write_in_thread, batch, begin)

    def _write_in_thread(self, batch: Batch, begin: float) -> None:
        error = None
        try:
            self._database.write(batch)
        except BaseException as refused:  # noqa: BLE001 (told on the loop's thread)
            error = refused
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._written, batch, error, begin)

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

    async def backup(self, folder: str) -> int:
        """Copy the database into a folder, as ``sessions.db``, while all goes on; return its bytes.

        Raises:
            DatabaseError: there is no copy.
        """
        return await asyncio.to_thread(self._database.copy_to, f"{folder}/sessions.db")

    def _end(self) -> None:
        super()._end()
        for timer in (self._room_timer, self._clock_timer):
            if timer is not None:
                timer.cancel()
        self._room_timer = self._clock_timer = None
        self._writer.shutdown(wait=True)
        self._database.close()
