from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.plugins.queue.engines.checkpoints import PASS_BYTES, Checkpointer
from tests.helpers.process import SECONDS


class Flushes:
    """Counts calls; the next one fails if wanted."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.is_failing = False
        self._has_come = threading.Semaphore(0)

    def flush(self) -> None:
        """Be called."""
        self.n_calls += 1
        self._has_come.release()
        if self.is_failing:
            raise OSError("the disk has failed")

    def wait(self) -> None:
        """Wait for a call that was not waited for."""
        assert self._has_come.acquire(timeout=SECONDS)


class Database:
    """A database whose writer makes no checkpoints.

    Attributes:
        log: its log.
        writer: its connection.
        flushes: of the database.
        checkpoints: under test.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.log = path.with_name(f"{path.name}-wal")
        self.writer = sqlite3.connect(path, isolation_level=None)
        self.writer.execute("PRAGMA journal_mode = WAL")
        self.writer.execute("PRAGMA wal_autocheckpoint = 0")
        self.writer.execute("CREATE TABLE t (b BLOB)")
        self.flushes = Flushes()
        own = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.checkpoints = Checkpointer(own, self.flushes.flush)

    def write(self) -> None:
        """Add a row that takes pages of its own."""
        self.writer.execute("INSERT INTO t VALUES (zeroblob(50000))")

    @property
    def n_bytes(self) -> int:
        """Bytes of the file itself, without its log."""
        return self._path.stat().st_size


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """One in a new file."""
    made = Database(tmp_path / "t.db")
    with closing(made.writer):
        yield made
        made.checkpoints.close()


def test_the_log_is_copied_when_enough_was_written(database: Database) -> None:
    """By the thread, into the database, which is then flushed."""
    database.write()
    database.checkpoints.note(PASS_BYTES - 1)
    assert not database.flushes.n_calls
    before = database.n_bytes
    database.checkpoints.note(1)
    database.flushes.wait()
    assert database.n_bytes > before + 50_000


def test_it_counts_anew_after_each_checkpoint(database: Database) -> None:
    """A checkpoint for each so many bytes, not for each transaction behind them."""
    database.checkpoints.note(PASS_BYTES)
    database.flushes.wait()
    database.checkpoints.note(PASS_BYTES - 1)
    database.checkpoints.close()
    assert database.flushes.n_calls == 1


def test_a_writer_makes_its_own_checkpoint_while_the_thread_is_paused(database: Database) -> None:
    """The log is then empty; the thread goes on afterwards."""
    database.write()
    with database.checkpoints.paused():
        database.checkpoints.note(PASS_BYTES)
        done = database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert done == (0, 0, 0)
    database.flushes.wait()


def test_the_writer_copies_the_rest_of_a_long_log(database: Database) -> None:
    """So that the next transaction begins it anew, whatever the thread has come to."""
    log = database.log
    for _ in range(3):
        database.write()
        database.checkpoints.note(1_000)
        database.checkpoints.finish(database.writer, above_bytes=3_000)
    full = log.stat().st_size
    assert database.n_bytes > 3 * 50_000
    for _ in range(2):
        database.write()
        database.checkpoints.note(1_000)
        database.checkpoints.finish(database.writer, above_bytes=3_000)
    assert log.stat().st_size == full
    assert not database.flushes.n_calls


def test_an_error_does_not_end_the_thread(database: Database) -> None:
    """What could not be copied is copied the next time."""
    database.flushes.is_failing = True
    database.checkpoints.note(PASS_BYTES)
    database.flushes.wait()
    database.flushes.is_failing = False
    database.write()
    before = database.n_bytes
    database.checkpoints.note(PASS_BYTES)
    database.flushes.wait()
    assert database.n_bytes > before
