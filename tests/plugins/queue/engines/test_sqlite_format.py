from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest

from penstock.plugins.queue.batch_format import write_batch
from penstock.plugins.queue.engines.contract import EngineStartError, GroupSpec, QueueSpec
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.engines.store import EXPIRES
from penstock.plugins.queue.wire.frames import Batch
from tests.helpers.clock import Clock
from tests.plugins.queue.engines.sqlite_files import PLACE, opened, rows_of, segment, storing
from tests.plugins.queue.running import LOGGER


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
    with (
        pytest.raises(EngineStartError, match="read format 99; allowed: 1 or 2 or 3"),
        opened(path),
    ):
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


VERSION_1 = (
    (
        "CREATE TABLE physical_queue (id INTEGER PRIMARY KEY, queue TEXT NOT NULL,"
        " number INTEGER NOT NULL, earliest INTEGER NOT NULL DEFAULT 0,"
        " next INTEGER NOT NULL DEFAULT 0, messages INTEGER NOT NULL DEFAULT 0,"
        " stored_bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (queue, number))"
    ),
    (
        "CREATE TABLE segment (physical_queue INTEGER NOT NULL REFERENCES physical_queue (id),"
        " first_offset INTEGER NOT NULL, n_messages INTEGER NOT NULL, newest_at REAL NOT NULL,"
        " frame BLOB NOT NULL, PRIMARY KEY (physical_queue, first_offset))"
    ),
    (
        "CREATE TABLE gone (physical_queue INTEGER NOT NULL, first_offset INTEGER NOT NULL,"
        " bits BLOB NOT NULL, PRIMARY KEY (physical_queue, first_offset)) WITHOUT ROWID"
    ),
    "PRAGMA application_id = 0x50455154",
    "PRAGMA user_version = 1",
)


def write_version_1(path: Path, payloads: Sequence[bytes], newest_at: float, gone: int) -> None:
    """Make a file as version 1 of the format had it, with one segment in q/0 and none in q/1."""
    n = len(payloads)
    expiry = '{"message_expiry_interval": 60}'
    frame = write_batch(
        Batch(
            list(range(n)),
            ["a/b"] * n,
            list(payloads),
            [1] * n,
            ["dev"] * n,
            [newest_at] * n,
            [expiry] + [""] * (n - 1),
        )
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in VERSION_1:
            connection.execute(statement)
        n_left = n - gone.bit_count()
        connection.execute(
            "INSERT INTO physical_queue VALUES (5, 'q', 0, 0, ?, ?, ?)", (n, n_left, len(frame))
        )
        connection.execute("INSERT INTO physical_queue VALUES (6, 'q', 1, 7, 7, 0, 0)")
        connection.execute("INSERT INTO segment VALUES (5, 0, ?, ?, ?)", (n, newest_at, frame))
        connection.execute("INSERT INTO gone VALUES (5, 0, ?)", (gone.to_bytes(1, "little"),))


def test_a_file_of_version_1_is_upgraded(path: Path) -> None:
    """Messages, offsets and deletes stay; sizes and flags are found in the frames."""
    now = time.time()
    write_version_1(path, [b"one", b"three", b"seventeen"], now - 100, 0b001)
    rows = rows_of(path)
    (queue,) = rows.queues
    assert (queue.name, queue.spec) == ("q", "{}")
    assert str(uuid.UUID(queue.incarnation)) == queue.incarnation
    first, second = rows.physical
    assert (first.row_id, first.number, first.earliest, first.next) == (5, 0, 0, 3)
    assert (first.messages, first.payload_bytes) == (2, 5 + 9)
    assert (second.row_id, second.number, second.earliest, second.next) == (6, 1, 7, 7)
    (segment_,) = rows.segments[5]
    assert (segment_.first_offset, segment_.n_messages, segment_.payload_bytes) == (0, 3, 17)
    assert segment_.flags == EXPIRES
    assert segment_.newest_clock == pytest.approx(-100, abs=60)
    assert rows.gone == {(5, 0): (0b001, 3)}
    assert rows_of(path) == rows


async def test_an_incarnation_without_dashes_gets_them(path: Path) -> None:
    """Some programs have upgraded files to such ones."""
    write_version_1(path, [b"one"], time.time(), 0)
    (queue,) = rows_of(path).queues
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE logical_queue SET incarnation = replace(incarnation, '-', '')")
    engine = LocalEngine(
        SqliteStore(str(path)), clock=Clock(), commit_max_messages=10, logger=LOGGER
    )
    await engine.open()
    try:
        assert engine.snapshot("q").incarnation == queue.incarnation
    finally:
        await engine.close()


async def test_messages_of_version_1_are_received_from_the_default_group(path: Path) -> None:
    """With whatever group is made for them, from where readers had come."""
    write_version_1(path, [b"one", b"three", b"seventeen"], time.time(), 0b001)
    engine = LocalEngine(
        SqliteStore(str(path)), clock=Clock(), commit_max_messages=10, logger=LOGGER
    )
    await engine.open()
    try:
        await engine.change_queue("q", QueueSpec(physical_queues=2, groups={"g": GroupSpec()}))
        received = await engine.lease("q", "g", 0, 10, 1000)
        assert [one.payload for one in received] == [b"three", b"seventeen"]
        handles = [one.receipt_handle for one in received]
        assert await engine.settle("q", "g", "ack", handles) == {}
        assert engine.snapshot("q").messages == engine.snapshot("q").payload_bytes == 0
    finally:
        await engine.close()


def test_segments_of_version_2_are_read_without_a_checksum(path: Path) -> None:
    """They have none; what is stored from then on has."""
    with opened(path) as store:
        store.write(storing(segment(0)))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE segment DROP COLUMN checksum")
        connection.execute("PRAGMA user_version = 2")
    with opened(path) as store:
        store.write(storing(segment(1)))
        assert store.read(PLACE, [0, 1]) == {0: bytes(10), 1: bytes(10)}
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT checksum FROM segment ORDER BY first_offset").fetchall()
    assert found == [(None,), (crc32(bytes(10)),)]


def test_a_new_file_gives_space_back_bit_by_bit(path: Path) -> None:
    """A file that was made before does so once it was compacted."""
    write_version_1(path, [b"one", b"two"], 0.0, 0)
    with opened(path) as store:
        assert store.compact() >= 0
    for file in (path, path.with_name("new.db")):
        with opened(file), closing(sqlite3.connect(file)) as visitor:
            assert visitor.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_files_are_the_owner_s_alone(path: Path) -> None:
    """Messages are no business of other users."""
    with opened(path):
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes) == {
        f"queue.db{suffix}" for suffix in ("", "-wal", "-shm", ".lock", ".reserve")
    }
    assert set(modes.values()) == {0o600}
