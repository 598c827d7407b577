"""The file of a plugin, as the broker opens and watches it."""

from __future__ import annotations

import resource
import sqlite3
import time
from pathlib import Path

import pytest

from penstock.broker.durable import locked_database
from penstock.broker.durable.database_file import Format
from penstock.broker.durable.locked_database import SPARE_PAGES, LockedDatabase
from penstock.broker.durable.storage_clock import Clocks, read_boot
from penstock.broker.errors import PenstockError
from tests.helpers.process import SECONDS


class NotesError(PenstockError):
    """The file cannot be used."""


class NotesFullError(NotesError):
    """The disk is full."""


class Notes(LockedDatabase):
    """A table of notes."""

    what = "notes"
    allowed = "a path for notes"
    format = Format(7, 1, ("CREATE TABLE note (text BLOB)",))
    error = NotesError
    full_error = NotesFullError

    def add(self, text: bytes) -> None:
        """Store a note."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO note VALUES (?)", (text,))

    def clear(self) -> int:
        """Delete all notes; return how many pages are unused after that."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM note")
        self._trim()
        connection, _ = self._opened()
        (n_free,) = connection.execute("PRAGMA freelist_count").fetchone()
        return int(n_free)

    def limit(self, n_pages: int) -> None:
        """Let the file have so many pages at most, as a full disk would."""
        connection, _ = self._opened()
        connection.execute(f"PRAGMA max_page_count = {n_pages}")


def test_its_clock_goes_on_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the wall clock says; time without a program is known."""
    ahead = {"wall": 0.0, "boot": 0.0}
    monkeypatch.setattr(
        locked_database,
        "Clocks",
        lambda: Clocks(
            wall=lambda: time.time() + ahead["wall"],
            boot=lambda: read_boot()._replace(seconds=read_boot().seconds + ahead["boot"]),
        ),
    )
    path = tmp_path / "notes.db"
    notes = Notes(str(path))
    notes.open_file()
    began = notes.now()
    assert began == pytest.approx(time.time(), abs=SECONDS)
    assert notes.attended() == pytest.approx(began, abs=SECONDS)
    for wall in (-1e7, 2e7):
        notes.close()
        ahead["wall"] += wall
        ahead["boot"] += 1000
        notes.open_file()
    assert notes.now() == pytest.approx(began + 2000, abs=SECONDS)
    assert notes.attended() == pytest.approx(began, abs=SECONDS)
    notes.close()


def test_a_file_is_named_when_it_cannot_be_used(tmp_path: Path) -> None:
    """What was read, and what is allowed; a closed one says so."""
    path = tmp_path / "notes.db"
    notes = Notes(str(path))
    with pytest.raises(NotesError, match=r"notes .*notes\.db: it is closed"):
        notes.add(b"x")
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(NotesError, match=r"notes\.db: .*; allowed: a path for notes"):
        notes.open_file()
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(NotesError, match="read another program's database"):
        Notes(str(tmp_path / "other.db")).open_file()


def test_a_file_that_was_deleted_or_is_full_stores_nothing(tmp_path: Path) -> None:
    """A full disk has an error of its own, after which the file is still used."""
    path = tmp_path / "notes.db"
    notes = Notes(str(path))
    notes.open_file()
    notes.add(b"x")
    notes.limit(4)
    with pytest.raises(NotesFullError, match="full"):
        notes.add(bytes(1_000_000))
    notes.add(b"x")
    path.unlink()
    with pytest.raises(NotesError, match="deleted or replaced"):
        notes.add(b"x")
    notes.close()
    notes.close()


def test_a_quota_is_a_full_disk(tmp_path: Path) -> None:
    """The system refuses a write by another error than for a full disk."""
    notes = Notes(str(tmp_path / "notes.db"))
    notes.open_file()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(NotesFullError, match="SQLITE_IOERR_WRITE"):
            notes.add(bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    notes.add(b"x")
    notes.close()


def test_unused_space_is_given_back(tmp_path: Path) -> None:
    """But for what the next rows will need."""
    notes = Notes(str(tmp_path / "notes.db"))
    notes.open_file()
    notes.add(bytes(2 * SPARE_PAGES * 8_192))
    assert notes.clear() == SPARE_PAGES
    notes.close()
