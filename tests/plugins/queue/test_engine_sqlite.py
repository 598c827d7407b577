from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from plugins.queue.engine import EngineStartError, StorageError, StorageFullError, Usage
from plugins.queue.engine_sqlite import TRUNCATE_SEGMENTS, SqliteStore
from plugins.queue.store import Mark, NewSegment

KEY = ("q", 0)


def segment(first_offset: int, n_messages: int = 1, n_bytes: int = 10) -> NewSegment:
    """Return a segment of a size."""
    return NewSegment(KEY, first_offset, n_messages, 0.0, bytes(n_bytes))


@contextmanager
def opened(path: Path, durability: str = "full", physical_queues: int = 1) -> Iterator[SqliteStore]:
    """Open a store with the queue `q`."""
    store = SqliteStore(str(path), durability)
    store.open({"q": physical_queues})
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "queue.db"


def test_everything_survives_a_restart(path: Path) -> None:
    """Messages, deletes, offsets and usage are in the file."""
    with opened(path) as store:
        store.write([segment(0, 4), segment(4, 4)], [Mark(KEY, 0, 4, 0b0011)])
        store.truncate(KEY, 1)
        before = dict(store.usage)
    with opened(path) as store:
        assert store.usage == before == {KEY: Usage(1, 8, 6, 20)}
        assert [found.gone for found in store.read(KEY, 0, 8, 9, 99)] == [0b0011, 0]


def test_offsets_go_on_after_everything_was_deleted_and_a_restart(path: Path) -> None:
    """An offset is never given again."""
    with opened(path) as store:
        store.write([segment(0, 4)], [])
        store.write([], [Mark(KEY, 0, 4, 0b1111)])
    with opened(path) as store:
        assert store.usage[KEY].next == 4


def test_physical_queues_are_added(path: Path) -> None:
    """A queue that is given more physical queues has them after the restart."""
    with opened(path, physical_queues=1) as store:
        store.write([segment(0)], [])
    with opened(path, physical_queues=3) as store:
        assert [store.usage["q", number].next for number in range(3)] == [1, 0, 0]


def test_second_process_is_refused_while_the_first_has_the_file(path: Path) -> None:
    """Leases live in one process; another is told which one, and may open once that has gone."""
    program = (
        "import sys\n"
        "from plugins.queue.engine_sqlite import SqliteStore\n"
        "store = SqliteStore(sys.argv[1])\n"
        "store.open({'q': 1})\n"
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
    with opened(path) as store:
        assert store.usage[KEY].next == 0


def test_other_programs_may_look_into_the_file(path: Path) -> None:
    """The file can be read with SQLite's own tools while it is in use."""
    with opened(path) as store:
        store.write([segment(0, 4)], [])
        with closing(sqlite3.connect(path)) as visitor:
            assert visitor.execute("SELECT sum(n_messages) FROM segment").fetchone() == (4,)
        store.write([segment(4)], [])


def test_file_of_another_kind_is_refused(path: Path) -> None:
    """What is no SQLite file is left as it is."""
    path.write_bytes(b"not a database, but long enough to be looked at as one" * 20)
    before = path.read_bytes()
    with pytest.raises(EngineStartError, match=r"queue\.db: file is not a database"), opened(path):
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
    with pytest.raises(EngineStartError, match="read format 99; allowed: 1"), opened(path):
        pass


def test_damaged_file_is_refused(path: Path) -> None:
    """A file whose tables cannot be read is told at the start."""
    with opened(path) as store:
        store.write([segment(0, n_bytes=100_000)], [])
    damaged = bytearray(path.read_bytes())
    damaged[100:8192] = os.urandom(8092)
    path.write_bytes(damaged)
    with pytest.raises(EngineStartError, match=r"malformed|not a database"), opened(path):
        pass


def test_damage_found_while_reading_is_a_storage_error(path: Path) -> None:
    """Damage in the middle of the file is told when it is met."""
    with opened(path) as store:
        store.write([segment(0, n_bytes=100_000)], [])
    damaged = bytearray(path.read_bytes())
    damaged[3 * 8192 :] = os.urandom(len(damaged) - 3 * 8192)
    path.write_bytes(damaged)
    with opened(path) as store, pytest.raises(StorageError, match=r"queue\.db: .*malformed"):
        store.read(KEY, 0, 1, 9, 10**6)


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    """A path in a directory that is not there is told, with what is allowed."""
    with (
        pytest.raises(EngineStartError, match="No such file or directory; allowed: a path in a"),
        opened(tmp_path / "missing" / "queue.db"),
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
            store.open({"q": 1})
    with opened(path):
        pass


def synchronous(store: SqliteStore) -> int:
    """Return how SQLite flushed in its last transaction: 2 on the commit, 1 at checkpoints."""
    assert store._writer is not None
    (mode,) = store._writer.execute("PRAGMA synchronous").fetchone()
    return int(mode)


def test_full_durability_flushes_each_commit_of_messages(path: Path) -> None:
    """What is stored is on the disk; a delete alone may wait for the next flush."""
    with opened(path, "full") as store:
        store.write([segment(0), segment(1)], [])
        assert synchronous(store) == 2
        store.write([], [Mark(KEY, 0, 1, 1)])
        assert synchronous(store) == 1
        store.write([segment(2)], [Mark(KEY, 1, 1, 1)])
        assert synchronous(store) == 2


def test_normal_durability_leaves_flushing_to_checkpoints(path: Path) -> None:
    """`normal` is for what may be lost in a power cut."""
    with opened(path, "normal") as store:
        store.write([segment(0)], [])
        assert synchronous(store) == 1


def test_full_storage_refuses_and_recovers(path: Path) -> None:
    """With no space left a write is refused whole; with space again it works, and all is there."""
    with opened(path) as store:
        store.write([segment(0, n_bytes=50_000)], [])
        assert store._writer is not None
        (n_pages,) = store._writer.execute("PRAGMA page_count").fetchone()
        store._writer.execute(f"PRAGMA max_page_count = {n_pages + 2}")
        before = dict(store.usage)
        with pytest.raises(StorageFullError, match="full"):
            store.write([segment(1, n_bytes=500_000), segment(2)], [Mark(KEY, 0, 1, 1)])
        assert store.usage == before
        assert len(store.read(KEY, 0, 9, 9, 10**6)) == 1
        store.write([segment(1)], [])
        store._writer.execute("PRAGMA max_page_count = 1000000")
        store.write([segment(2, n_bytes=500_000)], [])
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 10**6)] == [0, 1, 2]


def test_file_that_cannot_grow_refuses_and_recovers(path: Path) -> None:
    """An error of the operating system while writing refuses the write and harms nothing else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as store:
        store.write([segment(0)], [])
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            with pytest.raises(StorageError, match="disk"):
                store.write([segment(1, n_bytes=500_000)], [])
            store.write([segment(1)], [])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.write([segment(2, n_bytes=500_000)], [])
    with opened(path) as store:
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 10**6)] == [0, 1, 2]


def open_without_rights(folder: Path) -> str:
    """Open ``queue.db`` in a folder as a user without special rights; return what it says."""
    program = (
        "import os, sys\n"
        "from plugins.queue.engine_sqlite import SqliteStore\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "try:\n"
        "    SqliteStore('queue.db').open({'q': 1})\n"
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


def test_space_of_deleted_messages_is_used_again(path: Path) -> None:
    """A queue that is read as fast as it is filled does not let its file grow."""
    with opened(path) as store:
        for first in range(60):
            store.write([segment(first, n_bytes=200_000)], [])
            store.write([], [Mark(KEY, first, 1, 1)])
    assert path.stat().st_size < 3 * 200_000


def test_long_truncation_stops_on_the_way(path: Path) -> None:
    """One transaction deletes a bounded number of segments; repeated, it comes to the end."""
    n = TRUNCATE_SEGMENTS * 2 + 3
    with opened(path) as store:
        store.write([segment(first) for first in range(n)], [])
        removed = []
        while store.usage[KEY].earliest < n:
            removed.append(store.truncate(KEY, n))
        assert removed == [TRUNCATE_SEGMENTS, TRUNCATE_SEGMENTS, 3]
        assert store.usage[KEY] == Usage(n, n, 0, 0)


def test_reads_go_on_while_a_write_is_under_way(path: Path) -> None:
    """A reader does not wait for the writer, and sees what was committed."""
    with opened(path) as store:
        store.write([segment(0)], [])
        found: list[int] = []
        with store._transaction() as connection:
            connection.execute("UPDATE physical_queue SET next = 99")
            thread = threading.Thread(
                target=lambda: found.extend(
                    one.first_offset for one in store.read(KEY, 0, 9, 9, 99)
                )
            )
            thread.start()
            thread.join()
        assert found == [0]


def test_closed_store_refuses_writes(path: Path) -> None:
    """A write after the close is an error, not silence."""
    with opened(path) as store:
        store.close()
        with pytest.raises(StorageError, match="closed"):
            store.write([segment(0)], [])
