"""Copies of a database; `penstock queue restore` and the contract's backups show the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.plugins.queue.engines import sqlite_copies
from penstock.plugins.queue.engines.contract import (
    BackupExistsError,
    BackupFolderError,
    EngineStartError,
)
from penstock.plugins.queue.engines.store import COPIED
from tests.plugins.queue.engines.sqlite_files import opened, rows_of, segment, storing


def test_a_copy_is_marked_and_its_database_is_not(tmp_path: Path) -> None:
    """While the database is in use, with what is in its log alone."""
    path, copy = tmp_path / "queue.db", tmp_path / "copy.db"
    with opened(path) as store:
        store.write(storing(segment(0)))
        assert sqlite_copies.backup(str(path), str(copy)) == copy.stat().st_size
    assert rows_of(path).meta.get(COPIED, "") == ""
    copied = rows_of(copy)
    assert copied.meta[COPIED] == "1"
    assert [one.first_offset for one in copied.segments[1]] == [0]
    assert sorted(one.name for one in tmp_path.iterdir() if ".part" in one.name) == []


def test_nothing_is_replaced(tmp_path: Path) -> None:
    """Neither a file where a copy is to be made, nor a database, nor a log beside none."""
    path, copy = tmp_path / "queue.db", tmp_path / "copy.db"
    with opened(path):
        sqlite_copies.backup(str(path), str(copy))
        with pytest.raises(BackupExistsError, match="read a file"):
            sqlite_copies.backup(str(path), str(copy))
        with pytest.raises(BackupFolderError, match="a folder that is there"):
            sqlite_copies.backup(str(path), str(tmp_path / "none" / "copy.db"))
    with pytest.raises(EngineStartError, match="read a database there"):
        sqlite_copies.restore(str(copy), str(path))
    (tmp_path / "other.db-wal").write_bytes(b"log")
    with pytest.raises(EngineStartError, match="beside"):
        sqlite_copies.restore(str(copy), str(tmp_path / "other.db"))
