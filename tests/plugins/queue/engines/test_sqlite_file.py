from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.plugins.queue.engines import sqlite_copies
from penstock.plugins.queue.engines.contract import (
    BackupExistsError,
    BackupFolderError,
    EngineStartError,
)
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.engines.store import COPIED
from tests.plugins.queue.engines.sqlite_files import opened, rows_of, segment, storing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "queue.db"


def test_second_process_is_refused_while_the_first_has_the_file(path: Path) -> None:
    """Leases live in one process; another is told which one, and may open once that has gone."""
    program = (
        "import sys\n"
        "from penstock.plugins.queue.engines.sqlite import SqliteStore\n"
        "store = SqliteStore(sys.argv[1])\n"
        "store.open()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with (
            pytest.raises(EngineStartError, match=f"in use by process {holder.pid}; allowed: one"),
            opened(path),
        ):
            pass
        holder.kill()
    assert rows_of(path).queues == []


def test_file_of_another_kind_is_refused(path: Path) -> None:
    """What is no SQLite file is left as it is."""
    path.write_bytes(b"not a database, but long enough to be looked at as one" * 20)
    before = path.read_bytes()
    with (
        pytest.raises(EngineStartError, match=r"queue\.db: read file is not a database"),
        opened(path),
    ):
        pass
    assert path.read_bytes() == before


def test_database_of_another_program_is_refused(path: Path) -> None:
    """No tables are made in a database that is not a queue's."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE users (name TEXT)")
    with pytest.raises(EngineStartError, match="another program's database"), opened(path):
        pass


def test_file_of_a_later_format_is_refused(path: Path) -> None:
    """A format that this version does not know is not touched."""
    with opened(path):
        pass
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(EngineStartError, match=r"read format 99; allowed: 1\."), opened(path):
        pass


def test_damaged_file_is_refused(path: Path) -> None:
    """A file whose tables cannot be read is told at the start."""
    with opened(path) as store:
        store.write(storing(segment(0, n_bytes=100_000)))
    damaged = bytearray(path.read_bytes())
    damaged[100:8192] = os.urandom(8092)
    path.write_bytes(damaged)
    with pytest.raises(EngineStartError, match=r"malformed|not a database"), opened(path):
        pass


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    """A path in a directory that is not there is told, with what is allowed."""
    with (
        pytest.raises(EngineStartError, match="No such file or directory; allowed: a path in a"),
        opened(tmp_path / "missing" / "queue.db"),
    ):
        pass


def test_directory_is_refused(tmp_path: Path) -> None:
    """A directory in place of the file is told, with what is allowed."""
    with (
        pytest.raises(EngineStartError, match=r"unable to open .*; allowed: a queue's database"),
        opened(tmp_path),
    ):
        pass


def test_locked_file_is_refused(path: Path) -> None:
    """A file that another program is writing to is told at the start, after a wait."""
    with opened(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = SqliteStore(str(path), busy_seconds=0.05)
        with pytest.raises(EngineStartError, match="database is locked"):
            store.open()
    with opened(path):
        pass


def open_without_rights(folder: Path) -> str:
    """Open ``queue.db`` in a folder as a user without special rights; return what it says."""
    program = (
        "import os, sys\n"
        "from penstock.plugins.queue.engines.sqlite import SqliteStore\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "try:\n"
        "    SqliteStore('queue.db').open()\n"
        "except Exception as error:\n"
        "    sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    return ended.stderr


def test_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A directory without the right to write is told at the start."""
    tmp_path.chmod(0o555)
    told = open_without_rights(tmp_path)
    assert "EngineStartError: queue database queue.db: " in told
    assert "Permission denied; allowed: a path in a directory that is there" in told


def test_file_that_cannot_be_written_is_refused() -> None:
    """A file without the right to write is told at the start, not at the first message."""
    # Pytest's own directories are closed to the other user, on the way to the file.
    with TemporaryDirectory() as folder:
        path = Path(folder, "queue.db")
        with opened(path):
            pass
        path.parent.chmod(0o777)
        path.with_name("queue.db.lock").chmod(0o666)
        path.chmod(0o444)
        told = open_without_rights(path.parent)
    assert "EngineStartError: queue database queue.db: " in told
    assert "readonly" in told


def test_a_new_file_gives_space_back_bit_by_bit(path: Path) -> None:
    """It is no smaller only once it was compacted."""
    with opened(path), closing(sqlite3.connect(path)) as visitor:
        assert visitor.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_files_are_the_owner_s_alone(path: Path) -> None:
    """Messages are no business of other users."""
    with opened(path):
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes) == {
        f"queue.db{suffix}" for suffix in ("", "-wal", "-shm", ".lock", ".reserve")
    }
    assert set(modes.values()) == {0o600}


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
