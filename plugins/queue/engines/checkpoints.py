"""Checkpoints copy the write-ahead log into the database on a thread of their own.

Theory of operation. A checkpoint copies pages from the log into the database and flushes both files
to the disk. SQLite makes one within a commit when the log is long, and that commit and those behind
it wait. Here a thread with a connection of its own copies pages while commits go on (``PASSIVE``).
SQLite begins the log anew only when all of it has been copied, which a commit in the meantime
prevents, so the log grows under load. When it is `LOG_PAGES` long, the writer copies the rest
between two commits: the pages since the thread's last checkpoint.

SQLite flushes the database when it has copied the whole log. Here it is flushed after each
checkpoint of the thread, so that the writer's has little to flush.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.broker.durable.database_file import CHECKPOINT_PAGES, PAGE_BYTES

LOG_PAGES: Final = 2 * CHECKPOINT_PAGES
"""The length of the log, 16 MiB, at which the writer itself makes a checkpoint."""
PASS_BYTES: Final = CHECKPOINT_PAGES // 2 * PAGE_BYTES
"""The bytes that are added to the log between two checkpoints of the thread."""
ROWS_BYTES: Final = 6 * PAGE_BYTES
"""What a transaction adds to the log besides frames: about the pages with changed rows."""


class Checkpointer:
    """The thread that copies a database's log."""

    def __init__(self, connection: sqlite3.Connection, flush: Callable[[], None]) -> None:
        self._connection = connection
        self._flush = flush
        # Bytes that were added to the log, each written by one thread.
        self._n_added = 0
        self._n_seen = 0
        self._n_finished = 0
        self._is_closing = False
        self._is_due = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="penstock-queue-checkpoints", daemon=True
        )
        self._thread.start()

    def note(self, n_bytes: int) -> None:
        """Count what a transaction has added to the log, about; called by the writing thread."""
        self._n_added += n_bytes
        if self._n_added - self._n_seen >= PASS_BYTES:
            self._is_due.set()

    def finish(self, writer: sqlite3.Connection, *, above_bytes: int) -> None:
        """Copy the rest of a log that is longer; called by the writing thread between commits."""
        if self._n_added - self._n_finished < above_bytes:
            return
        self._n_finished = self._n_added
        with self.paused(), suppress(sqlite3.Error):
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the thread, and have it wait, as SQLite makes one checkpoint at a time."""
        with self._turn:
            yield

    def close(self) -> None:
        """End the thread; may be called again."""
        self._is_closing = True
        self._is_due.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while True:
            self._is_due.wait()
            self._is_due.clear()
            if self._is_closing:
                return
            self._n_seen = self._n_added
            # What cannot be copied, as on a full disk, stays in the log.
            with self._turn, suppress(sqlite3.Error, OSError):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._flush()
