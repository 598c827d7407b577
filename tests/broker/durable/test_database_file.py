"""The files of a database: private, locked, and looked up by name."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.broker.durable.database_file import DatabaseFile, DatabaseFileError, open_private


@contextmanager
def opened(path: Path) -> Iterator[DatabaseFile]:
    """Have a database's files."""
    with closing(DatabaseFile(str(path))) as file:
        yield file


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Have a umask for a while."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database will be."""
    return tmp_path / "x.db"


def test_files_are_their_owners_alone_whatever_the_umask(path: Path) -> None:
    """SQLite gives its log and index the permissions of the database."""
    with umask(0), opened(path) as file, closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        modes = {found.name: mode(found) for found in path.parent.iterdir()}
        assert modes == dict.fromkeys(("x.db", "x.db-wal", "x.db-shm", "x.db.lock"), 0o600)
        assert not file.tightened


@pytest.mark.parametrize(
    ("before", "after"), [(0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o400, 0o400)]
)
def test_files_that_everybody_may_read_are_tightened(path: Path, before: int, after: int) -> None:
    """A group that alone may read them was meant to."""
    path.write_bytes(b"x")
    path.chmod(before)
    with opened(path) as file:
        assert mode(path) == after
        assert file.tightened == ([str(path)] if before != after else [])


def test_what_begins_empty_is_told_with_its_whole_name(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start may be in another folder, the file may be gone, or a copy of it have failed."""
    monkeypatch.chdir(path.parent)
    caplog.set_level(logging.INFO)

    def told() -> list[tuple[str, str]]:
        with opened(Path(path.name)):
            pass
        lines = [(record.levelname, record.message) for record in caplog.records]
        caplog.clear()
        return lines

    assert told() == [("INFO", f"{path}: no database is there, a new one begins empty")]
    assert told() == [
        (
            "WARNING",
            f"{path} has no bytes: it begins empty; if it held anything, stop and put a copy back",
        )
    ]
    path.unlink()
    assert told() == [("WARNING", f"{path} is gone, and its lock file is there: it begins empty")]
    path.write_bytes(b"x")
    assert told() == []


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(path: Path, make: object) -> None:
    """Another's file would be emptied."""
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    assert callable(make)
    make(path.with_name("x.db.lock"), victim)
    with pytest.raises(DatabaseFileError, match=r"x\.db\.lock: read a .*allowed: no file, or one"):
        DatabaseFile(str(path))
    assert victim.read_bytes() == b"precious"


def test_a_lock_that_is_no_file_is_refused(path: Path) -> None:
    """A FIFO neither holds the start up nor ends it in an error of the system."""
    os.mkfifo(path.with_name("x.db.lock"))
    with pytest.raises(DatabaseFileError, match="read no regular file"):
        DatabaseFile(str(path))


def test_a_dangling_link_makes_no_file(path: Path) -> None:
    """Nothing appears where it leads."""
    path.symlink_to(path.with_name("nothing"))
    with pytest.raises(DatabaseFileError, match="read a symbolic link"):
        open_private(str(path))
    assert not path.with_name("nothing").exists()


def test_two_at_a_time_are_refused(path: Path) -> None:
    """The second is told who has it."""
    with (
        opened(path),
        pytest.raises(DatabaseFileError, match=f"in use by process {os.getpid()}; allowed: one"),
    ):
        DatabaseFile(str(path))
    with opened(path):
        pass


def test_a_database_is_one_by_whatever_link(path: Path) -> None:
    """Two programs that have it by two names would both write, and SQLite's log is one."""
    link = path.with_name("elsewhere")
    link.mkdir()
    link /= "y.db"
    link.symlink_to(path)
    with opened(path), pytest.raises(DatabaseFileError, match="in use by process"):
        DatabaseFile(str(link))
    path.with_name("x.db-wal").write_bytes(bytes(4152))
    with pytest.raises(DatabaseFileError, match=r"beside \S+x\.db-wal of 4,152 bytes"):
        DatabaseFile(str(link))
    assert [found.name for found in link.parent.iterdir()] == ["y.db"]


def test_a_database_that_was_emptied_is_noticed(path: Path) -> None:
    """Its log alone holds nothing: the next start would refuse it."""
    path.write_bytes(b"x")
    with opened(path) as file:
        file.watch()
        assert not file.why_lost()
        os.truncate(path, 0)
        assert f"{path} was emptied" in file.why_lost()


@pytest.mark.parametrize("is_there", [False, True])
def test_no_database_beside_a_filled_log_is_refused(path: Path, *, is_there: bool) -> None:
    """SQLite would throw the log away."""
    log = path.with_name("x.db-wal")
    log.write_bytes(bytes(4152))
    if is_there:
        path.touch()
    with pytest.raises(DatabaseFileError, match=r"beside \S+x\.db-wal of 4,152 bytes; allowed"):
        DatabaseFile(str(path))
    assert log.stat().st_size == 4152
    log.write_bytes(b"")
    with opened(path):
        pass


@pytest.mark.parametrize("name", ["x.db", "x.db-wal"])
def test_a_file_that_is_gone_is_noticed_until_it_is_back(path: Path, name: str) -> None:
    """Deleted, or another one in its place; the very file may come back."""
    with opened(path) as file:
        path.with_name("x.db-wal").touch()
        file.watch()
        assert not file.why_lost()
        own, aside = path.with_name(name), path.with_name("aside")
        own.rename(aside)
        assert f"{own} was deleted or replaced" in file.why_lost()
        own.touch()
        assert file.why_lost()
        aside.rename(own)
        assert not file.why_lost()
