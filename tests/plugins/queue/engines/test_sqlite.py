from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import threading
from contextlib import AbstractContextManager, closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.broker.durable.database_file import PAGE_BYTES, DatabaseFile
from penstock.plugins.queue.engines import sqlite
from penstock.plugins.queue.engines.checkpoints import PASS_BYTES
from penstock.plugins.queue.engines.contract import (
    BackupExistsError,
    BackupFolderError,
    EngineStartError,
    StorageError,
    StorageFullError,
)
from penstock.plugins.queue.engines.sqlite import RESERVE_BYTES, SWEEP_SEGMENTS, SqliteStore
from penstock.plugins.queue.engines.store import (
    BrokenSegmentError,
    Changes,
    DeduplicationRow,
    GroupRow,
    Rows,
)
from tests.helpers.process import SECONDS
from tests.plugins.queue.engines.sqlite_files import (
    PLACE,
    deleting,
    firsts,
    naming,
    opened,
    rows_of,
    segment,
    storing,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "queue.db"


def test_every_row_survives_a_restart(path: Path) -> None:
    """What one transaction writes is what the next start reads."""
    group = GroupRow(3, 1, "g", "{}", 9, 1.5)
    identifier = DeduplicationRow(1, b"id", 2.5, 0, 4)
    changes = storing(
        segment(0, 4),
        segment(4, 4),
        groups=[group],
        floors={(3, PLACE): 2},
        gone={(PLACE, 0): (0b0011, 5)},
        settled={(PLACE, 4, 3): 1 << 200},
        receives={(PLACE, 4, 3): b"counts"},
        deduplication={(1, b"id"): identifier},
        meta={"clock": "12.5"},
    )
    with opened(path) as store:
        store.write(changes)
    rows = rows_of(path)
    assert (rows.queues, rows.physical) == (naming().queues, naming().physical)
    assert rows.segments == {PLACE: [segment(0, 4), segment(4, 4)]}
    assert (rows.groups, rows.floors) == ([group], {(3, PLACE): 2})
    assert (rows.gone, rows.settled) == (changes.gone, changes.settled)
    assert (rows.receives, rows.deduplication) == (changes.receives, [identifier])
    assert (rows.meta, rows.aside) == ({"clock": "12.5"}, {})


def test_group_of_a_queue_that_is_gone_is_not_read(path: Path) -> None:
    """A file that holds one opens all the same."""
    with opened(path) as store:
        store.write(Changes(groups=[GroupRow(3, 9, "g", "{}", 0, 0.0)]))
    assert rows_of(path).groups == []


def test_a_deleted_segment_leaves_nothing(path: Path) -> None:
    """What groups have settled and received of it goes with it."""
    key = (PLACE, 0, 3)
    with opened(path) as store:
        store.write(storing(segment(0, 4), settled={key: 1}, receives={key: b"x"}))
        store.write(Changes(gone={(PLACE, 0): (1, 1)}))
        store.write(deleting(0))
    rows = rows_of(path)
    assert (rows.segments, rows.gone, rows.settled, rows.receives) == ({}, {}, {}, {})


def test_what_a_group_has_passed_leaves(path: Path) -> None:
    """Bit maps and counts up to its floor from where it was before, and of no other group."""
    rows = {(PLACE, first, group): 1 for first in (0, 4, 8) for group in (3, 4)}
    with opened(path) as store:
        store.write(Changes(settled=rows, receives=dict.fromkeys(rows, b"x")))
        store.write(Changes(passed={(3, PLACE): (4, 8)}))
    left = rows_of(path)
    assert set(left.settled) == set(left.receives)
    assert set(rows) - set(left.settled) == {(PLACE, 4, 3)}


def test_groups_are_deleted_and_reset(path: Path) -> None:
    """One that is reset has settled nothing; of one that is deleted nothing is left."""
    groups = [GroupRow(number, 1, f"g{number}", "{}", 0, 0.0) for number in (3, 4)]
    keys = [(PLACE, 0, 3), (PLACE, 0, 4)]
    with opened(path) as store:
        store.write(
            Changes(
                groups=groups,
                floors={(3, PLACE): 1, (4, PLACE): 2},
                settled=dict.fromkeys(keys, 1),
                receives=dict.fromkeys(keys, b"x"),
            )
        )
        store.write(Changes(deleted_groups=[3], reset_groups=[4]))
    rows = rows_of(path)
    assert (rows.groups, rows.floors) == ([groups[1]], {(4, PLACE): 2})
    assert (rows.settled, rows.receives) == ({}, {})


def test_a_deleted_queue_is_swept_in_steps(path: Path) -> None:
    """It is gone at once, and its segments bit by bit, so that others go on being stored."""
    n = SWEEP_SEGMENTS + 3
    with opened(path) as store:
        store.write(storing(*map(segment, range(n))))
        store.write(Changes(deleted_queues=[1]))
    assert (rows_of(path).queues, rows_of(path).physical) == ([], [])
    store = SqliteStore(str(path))
    store.open()
    try:
        assert store.sweep()
        assert len(firsts(store, n)) == 3
        assert store.sweep()
        assert not store.sweep()
        assert firsts(store, n) == []
    finally:
        store.close()
    assert rows_of(path).segments == {}


def test_deduplication_identifiers_are_replaced_and_deleted(path: Path) -> None:
    """Each has one row."""
    with opened(path) as store:
        for row in (DeduplicationRow(1, b"a", 1.0, 0, 1), DeduplicationRow(1, b"a", 2.0, 0, 2)):
            store.write(Changes(deduplication={(1, b"a"): row}))
        assert rows_of_open(store) == [(1, b"a", 2.0, 0, 2)]
        store.write(Changes(deduplication={(1, b"a"): None}))
        assert rows_of_open(store) == []


def rows_of_open(store: SqliteStore) -> list[tuple[object, ...]]:
    """Return the deduplication rows of an open store."""
    assert store._connection is not None
    return store._connection.execute("SELECT * FROM deduplication").fetchall()


def test_other_programs_may_look_into_the_file(path: Path) -> None:
    """The file can be read with SQLite's own tools while it is in use."""
    with opened(path) as store:
        store.write(storing(segment(0, 4)))
        with closing(sqlite3.connect(path)) as visitor:
            assert visitor.execute("SELECT sum(n_messages) FROM segment").fetchone() == (4,)
        store.write(storing(segment(4)))


def test_damage_found_while_reading_is_a_storage_error(path: Path) -> None:
    """Damage in the middle of the file is told when it is met."""
    with opened(path) as store:
        store.write(storing(segment(0, n_bytes=100_000)))
    damaged = bytearray(path.read_bytes())
    damaged[-5 * 8192 :] = os.urandom(5 * 8192)
    path.write_bytes(damaged)
    with opened(path) as store, pytest.raises(StorageError, match="malformed"):
        store.read(PLACE, [0])


def synchronous(store: SqliteStore) -> int:
    """Return how SQLite flushed in its last transaction: 2 on the commit, 1 at checkpoints."""
    assert store._connection is not None
    (mode,) = store._connection.execute("PRAGMA synchronous").fetchone()
    return int(mode)


def test_full_durability_flushes_each_commit_of_messages(path: Path) -> None:
    """What is stored is on the disk; a delete alone may wait for the next flush."""
    with opened(path, "full") as store:
        store.write(storing(segment(0), segment(1)))
        assert synchronous(store) == 2
        store.write(deleting(0))
        assert synchronous(store) == 1
        store.write(storing(segment(2), deleted_segments=[(PLACE, 1)]))
        assert synchronous(store) == 2


def test_normal_durability_leaves_flushing_to_checkpoints(path: Path) -> None:
    """`normal` is for what may be lost in a power cut."""
    with opened(path, "normal") as store:
        store.write(storing(segment(0)))
        assert synchronous(store) == 1


def test_a_start_on_a_full_disk_reads_with_the_space_of_the_reserve(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting many rows takes a file beside the database."""
    with opened(path) as store:
        store.write(storing(segment(0)))
    read = sqlite._read_rows

    def read_rows(connection: sqlite3.Connection) -> Rows:
        if path.with_name(f"{path.name}.reserve").exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return read(connection)

    monkeypatch.setattr(sqlite, "_read_rows", read_rows)
    with opened(path) as store:
        assert firsts(store) == [0]


def test_a_disk_with_little_space_is_tried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free pages of the file, or of its log, may take a message all the same."""
    with opened(path) as store:
        store.write(storing(segment(0, n_bytes=50_000)))
        assert store._connection is not None
        (n_pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {n_pages}")
        store.probe(is_failing=False)
        with pytest.raises(StorageFullError, match="full"):
            store.probe(is_failing=True)
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=512))
        with pytest.raises(StorageFullError, match="full"):
            store.probe(is_failing=False)
        store.write(deleting(0))
        store.probe(is_failing=False)


def test_full_storage_refuses_and_recovers(path: Path) -> None:
    """With no space left a write is refused whole; with space again it works, and all is there."""
    with opened(path) as store:
        store.write(storing(segment(0, n_bytes=50_000)))
        assert store._connection is not None
        (n_pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {n_pages + 2}")
        with pytest.raises(StorageFullError, match="full"):
            store.write(
                storing(segment(1, n_bytes=500_000), segment(2), deleted_segments=[(PLACE, 0)])
            )
        assert firsts(store) == [0]
        store.write(storing(segment(1)))
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.write(storing(segment(2, n_bytes=500_000)))
        assert firsts(store) == [0, 1, 2]


def test_file_that_cannot_grow_refuses_and_recovers(path: Path) -> None:
    """An error of the operating system while writing refuses the write and harms nothing else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as store:
        store.write(storing(segment(0)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            with pytest.raises(StorageError, match="disk"):
                store.write(storing(segment(1, n_bytes=500_000)))
            store.write(storing(segment(1)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.write(storing(segment(2, n_bytes=500_000)))
    with opened(path) as store:
        assert firsts(store) == [0, 1, 2]


def test_a_new_file_on_a_full_disk_is_told_at_the_start(path: Path) -> None:
    """Once there is space, it is made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(EngineStartError, match=rf"{path}: .*(full|disk I/O error)"):
            SqliteStore(str(path)).open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with opened(path) as store:
        store.write(storing(segment(0)))


def test_a_file_that_is_read_only_for_a_time_refuses_and_recovers(path: Path) -> None:
    """As on a file system that was mounted anew; what was stored is there."""
    with opened(path) as store:
        store.write(storing(segment(0)))
        assert store._connection is not None
        store._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StorageError, match=f"{path}: .*readonly"):
            store.write(storing(segment(1)))
        assert firsts(store) == [0]
        store._connection.execute("PRAGMA query_only = OFF")
        store.write(storing(segment(1)))
        assert firsts(store) == [0, 1]


def test_a_file_that_another_program_has_locked_refuses_and_recovers(path: Path) -> None:
    """Reading goes on meanwhile."""
    with opened(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.write(storing(segment(0)))
        assert store._connection is not None
        store._connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=f"{path}: .*locked"):
            store.write(storing(segment(1)))
        assert firsts(store) == [0]
        other.execute("ROLLBACK")
        store.write(storing(segment(1)))
        assert firsts(store) == [0, 1]


def test_messages_are_refused_while_there_is_no_space_for_readers(path: Path) -> None:
    """Without room for the reserve nothing is stored, deletes go on, and space ends it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as store:
        store.write(storing(segment(0), segment(1)))
        store._reserve.spend()
        resource.setrlimit(resource.RLIMIT_FSIZE, (RESERVE_BYTES // 2, hard))
        try:
            with pytest.raises(StorageFullError, match="bytes left that are kept for deleting"):
                store.write(storing(segment(2)))
            store.write(deleting(0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.write(storing(segment(2)))
        assert firsts(store) == [1, 2]


@pytest.mark.parametrize("is_sweep", [False, True])
def test_full_disk_is_emptied_with_the_space_kept_for_readers(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_sweep: bool
) -> None:
    """Where a delete finds no space, the reserve gives it; a message never gets it."""
    reserve = path.with_name("queue.db.reserve")
    with opened(path) as store:
        store.write(storing(segment(0), segment(1)))
        transaction = store._transaction

        def transaction_on_a_full_disk(
            *, must_flush: bool = False
        ) -> AbstractContextManager[sqlite3.Connection]:
            if reserve.exists():
                raise StorageFullError("no space left")
            return transaction(must_flush=must_flush)

        with monkeypatch.context() as patched:
            patched.setattr(store, "_transaction", transaction_on_a_full_disk)
            with pytest.raises(StorageFullError, match="no space left"):
                store.write(storing(segment(2)))
            assert reserve.exists()
            if is_sweep:
                store.sweep()
            else:
                store.write(deleting(0))
            assert not reserve.exists()
        assert firsts(store) == ([0, 1] if is_sweep else [1])
        store.write(storing(segment(2)))
        assert reserve.exists()


def test_log_gives_its_space_to_what_must_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full of the log, the log is written out, and the message stored."""
    log = path.with_name("queue.db-wal")
    with opened(path) as store:
        store.write(storing(segment(0)))
        transaction = store._transaction

        def transaction_on_a_full_disk(
            *, must_flush: bool = False
        ) -> AbstractContextManager[sqlite3.Connection]:
            if log.stat().st_size:
                raise StorageFullError("no space left")
            return transaction(must_flush=must_flush)

        monkeypatch.setattr(store, "_transaction", transaction_on_a_full_disk)
        store.write(storing(segment(1)))
        assert firsts(store) == [0, 1]


def test_write_that_fails_leaves_nothing_open(path: Path) -> None:
    """After a refused write the next one begins anew."""
    with opened(path) as store:
        store.write(storing(segment(0)))
        with pytest.raises(StorageError, match="UNIQUE"):
            store.write(storing(segment(1), segment(0)))
        store.write(storing(segment(1)))
        assert firsts(store) == [0, 1]


def test_space_of_deleted_messages_is_used_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is read as fast as it is filled lets neither its file nor its log grow."""
    monkeypatch.setattr("penstock.plugins.queue.engines.sqlite.LOG_PAGES", 100)
    with opened(path) as store:
        for first in range(60):
            store.write(storing(segment(first, n_bytes=200_000)))
            store.write(deleting(first))
        # Its length, a transaction of 26 pages, and headers.
        assert path.with_name("queue.db-wal").stat().st_size < 135 * PAGE_BYTES
    assert path.stat().st_size < 3 * 200_000


def test_nothing_is_lost_by_a_kill_after_a_part_of_the_log_was_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in database and log together is every commit."""
    has_copied = threading.Semaphore(0)
    flush = DatabaseFile.flush

    def told(file: DatabaseFile) -> None:
        flush(file)
        has_copied.release()

    monkeypatch.setattr(DatabaseFile, "flush", told)
    with opened(path) as store:
        for first in range(6):
            store.write(storing(segment(first, n_bytes=PASS_BYTES // 4)))
        assert has_copied.acquire(timeout=SECONDS)
        store.write(storing(segment(6)))
        copy = path.with_name("left.db")
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    assert [one.first_offset for one in rows_of(copy).segments[PLACE]] == list(range(7))


def test_reads_go_on_while_a_write_is_under_way(path: Path) -> None:
    """A reader does not wait for the writer, and sees what was committed."""
    with opened(path) as store:
        store.write(storing(segment(0)))
        found: list[int] = []
        with store._transaction() as connection:
            connection.execute("UPDATE physical_queue SET next = 99")
            thread = threading.Thread(target=lambda: found.extend(firsts(store)))
            thread.start()
            thread.join()
        assert found == [0]


def test_closed_store_refuses_writes(path: Path) -> None:
    """A write after the close is an error, not silence."""
    with opened(path) as store:
        store.close()
        with pytest.raises(StorageError, match="closed"):
            store.write(storing(segment(0)))


def test_nothing_is_stored_in_a_file_that_was_deleted(path: Path) -> None:
    """Neither messages nor deletes are acknowledged, until the file is back."""
    with opened(path) as store:
        store.write(storing(segment(0)))
        away = path.with_name("away")
        path.rename(away)
        for write in (
            lambda: store.write(storing(segment(1))),
            lambda: store.write(deleting(0)),
            store.sweep,
            store.compact,
            lambda: store.read(PLACE, [0]),  # its first: it would make a new file
        ):
            with pytest.raises(StorageError, match="was deleted or replaced"):
                write()
        assert not path.exists()
        away.rename(path)
        store.write(storing(segment(1)))
        assert firsts(store) == [0, 1]


def test_a_reserve_that_is_a_link_is_refused(path: Path) -> None:
    """What it leads to would grow to the reserve's size."""
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    reserve = path.with_name("queue.db.reserve")
    reserve.symlink_to(victim)
    with (
        pytest.raises(EngineStartError, match=r"queue\.db\.reserve: read a symbolic link"),
        opened(path),
    ):
        pass
    assert victim.read_bytes() == b"precious"


def test_what_was_set_aside_is_kept_and_counted_after_a_restart(path: Path) -> None:
    """Its bytes are in a table of their own, for whoever may mend them."""
    with opened(path) as store:
        store.write(storing(segment(0, 3), segment(3)))
        store.write(Changes(deleted_segments=[(PLACE, 0)], aside=[(PLACE, segment(0, 3), 2)]))
    rows = rows_of(path)
    assert (rows.aside, rows.segments) == ({PLACE: 2}, {PLACE: [segment(3)]})
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT first_offset, frame FROM set_aside").fetchall()
        assert connection.execute("SELECT first_offset FROM segment").fetchall() == [(3,)]
    assert found == [(0, bytes(10))]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ("frame = 'no bytes'", b"no bytes"),
        ("frame = NULL", b""),
        ("frame = CAST(x'ff' AS TEXT)", b"\xff"),
        ("checksum = checksum + 1", bytes(10)),
        ("checksum = 'seven'", bytes(10)),
    ],
)
def test_a_frame_that_is_not_as_it_was_stored_is_broken(
    path: Path, change: str, left: bytes
) -> None:
    """Whatever the disk has made of its row; it is kept as it is."""
    with opened(path) as store:
        store.write(storing(segment(0), segment(1)))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET sql = replace(sql, 'frame BLOB NOT NULL', 'frame BLOB')"
            )
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE segment SET {change} WHERE first_offset = 0")  # noqa: S608 (of the table above)
    with opened(path) as store:
        with pytest.raises(BrokenSegmentError, match="segment at offset 0 cannot be read"):
            store.read(PLACE, [0, 1])
        assert sorted(store.read(PLACE, [1])) == [1]
        store.write(Changes(deleted_segments=[(PLACE, 0)], aside=[(PLACE, segment(0), 1)]))
        assert firsts(store) == [1]
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        assert connection.execute("SELECT frame FROM set_aside").fetchall() == [(left,)]


def test_a_frame_that_was_made_smaller_has_a_checksum_of_its_own(path: Path) -> None:
    """As a new one has."""
    with opened(path) as store:
        store.write(storing(segment(0, 2)))
        store.write(Changes(replaced_segments=[(PLACE, segment(0, 2), b"smaller")]))
        assert store.read(PLACE, [0]) == {0: b"smaller"}


def test_a_segment_on_a_damaged_page_is_passed_over(path: Path) -> None:
    """Where SQLite cannot even move it: it stays where it is, and those around it are read."""
    with opened(path) as store:
        for offset in range(3):
            facts = segment(offset, n_bytes=100_000)
            frame = b"%d" % offset * 100_000
            store.write(Changes(must_flush=True, segments=[(PLACE, facts, frame)]))
    data = bytearray(path.read_bytes())
    for page in range(0, len(data), PAGE_BYTES):
        if data[page + 4 : page + PAGE_BYTES].strip(b"1") == b"":  # whole, in the middle of one
            data[page : page + 4] = b"\xff" * 4  # the number of the page behind it
    path.write_bytes(data)
    with opened(path) as store:
        with pytest.raises(BrokenSegmentError, match="segment at offset 1 cannot be read"):
            store.read(PLACE, [0, 1, 2])
        assert sorted(store.read(PLACE, [0, 2])) == [0, 2]
        broken = segment(1, n_bytes=100_000)
        store.write(Changes(deleted_segments=[(PLACE, 1)], aside=[(PLACE, broken, 1)]))
    rows = rows_of(path)
    assert [one.first_offset for one in rows.segments[PLACE]] == [0, 2]
    assert rows.aside == {PLACE: 1}


def test_free_pages_are_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that was drained does not keep the disk full; and no page is moved for nothing."""
    for name in ("SPARE_PAGES", "TRIM_PAGES"):
        monkeypatch.setattr(f"penstock.plugins.queue.engines.sqlite.{name}", 20)
    with opened(path) as store:
        store.write(storing(*(segment(first, n_bytes=100_000) for first in range(20))))
        assert not store.trim()
        filled = n_pages(store)
        store.write(deleting(*range(10, 20)))
        assert store.trim()
        assert n_pages(store) == filled - 20
        while n_pages(store) > filled * 0.7:
            store.trim()
        before = n_pages(store)
        store.trim()
        assert before - n_pages(store) in (0, 20)


def n_pages(store: SqliteStore) -> int:
    """Return the pages of a file."""
    assert store._connection is not None
    (n,) = store._connection.execute("PRAGMA page_count").fetchone()
    return int(n)


def test_compacting_gives_all_unused_space_back(path: Path) -> None:
    """And tells how much; what is stored stays."""
    with opened(path) as store:
        store.write(storing(*(segment(first, n_bytes=100_000) for first in range(20))))
        store.write(deleting(*range(1, 20)))
        freed = store.compact()
        assert 1_700_000 < freed < 2_100_000
        assert firsts(store) == [0]
        store.write(storing(segment(20)))
    assert path.stat().st_size < 300_000


def test_a_backup_is_a_queue_of_its_own(path: Path) -> None:
    """It is made while the file is in use, is the owner's alone, and replaces nothing."""
    copy = path.with_name("copy.db")
    with opened(path) as store:
        store.write(storing(segment(0)))
        assert store.backup(str(copy)) == copy.stat().st_size
        store.write(storing(segment(1)))
        told = r"copy\.db: read a file; allowed: a path without"
        with pytest.raises(BackupExistsError, match=told):
            store.backup(str(copy))
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [one.first_offset for one in rows_of(copy).segments[PLACE]] == [0]
    assert not list(path.parent.glob("*.part"))


def test_a_backup_that_cannot_be_written_is_told(path: Path) -> None:
    """Nothing is left of it."""
    with (
        opened(path) as store,
        pytest.raises(BackupFolderError, match=r"backup to .*missing/copy\.db: No such file"),
    ):
        store.backup(str(path.with_name("missing") / "copy.db"))


def test_a_backup_touches_no_other_file(path: Path) -> None:
    """Neither one with a name that begins with its own, nor one that a link leads to."""
    other = path.with_name("copy.db.part")
    other.write_bytes(b"another")
    link = path.with_name("link.db")
    link.symlink_to(path.with_name("missing.db"))
    with opened(path) as store:
        store.backup(str(path.with_name("copy.db")))
        with pytest.raises(BackupExistsError):
            store.backup(str(link))
    assert other.read_bytes() == b"another"
    assert [one.name for one in path.parent.glob("*.part")] == [other.name]


def test_figures_name_the_file_and_its_sizes(path: Path) -> None:
    """For operators."""
    with opened(path) as store:
        store.write(storing(segment(0, n_bytes=100_000)))
        figures = store.figures()
    assert (figures["engine"], figures["path"]) == ("sqlite", str(path))
    assert figures["log_bytes"] > 100_000
    assert figures["reserve_bytes"] == RESERVE_BYTES


def test_nothing_is_written_for_no_changes(path: Path) -> None:
    """A closed store takes them, as there is nothing to take."""
    with opened(path) as store:
        store.close()
        store.write(Changes())
        with pytest.raises(StorageError, match="closed"):
            store.write(Changes(meta={"a": "b"}))
