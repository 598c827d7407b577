from __future__ import annotations

import os
import resource
import sqlite3
import threading
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from penstock.broker.durable.database_file import PAGE_BYTES
from penstock.plugins.queue.engine import (
    BrokenSegmentError,
    EngineStartError,
    StorageError,
    StorageFullError,
    Usage,
)
from penstock.plugins.queue.engine_sqlite import RESERVE_BYTES, TRUNCATE_SEGMENTS, SqliteStore
from penstock.plugins.queue.store import Mark, NewSegment
from tests.plugins.queue.engines.sqlite_files import KEY, opened, segment


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


def test_other_programs_may_look_into_the_file(path: Path) -> None:
    """The file can be read with SQLite's own tools while it is in use."""
    with opened(path) as store:
        store.write([segment(0, 4)], [])
        with closing(sqlite3.connect(path)) as visitor:
            assert visitor.execute("SELECT sum(n_messages) FROM segment").fetchone() == (4,)
        store.write([segment(4)], [])


def test_damage_found_while_reading_is_a_storage_error(path: Path) -> None:
    """Damage in the middle of the file is told when it is met."""
    with opened(path) as store:
        store.write([segment(0, n_bytes=100_000)], [])
    damaged = bytearray(path.read_bytes())
    damaged[3 * 8192 :] = os.urandom(len(damaged) - 3 * 8192)
    path.write_bytes(damaged)
    with opened(path) as store, pytest.raises(StorageError, match=r"queue\.db: .*malformed"):
        store.read(KEY, 0, 1, 9, 10**6)


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


def test_messages_are_refused_while_there_is_no_space_for_readers(path: Path) -> None:
    """Without room for the reserve nothing is stored, deletes go on, and space ends it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as store:
        store.write([segment(0), segment(1)], [])
        store._reserve.spend()
        resource.setrlimit(resource.RLIMIT_FSIZE, (RESERVE_BYTES // 2, hard))
        try:
            with pytest.raises(StorageFullError, match="bytes left that are kept for readers"):
                store.write([segment(2)], [])
            store.write([], [Mark(KEY, 0, 1, 1)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.write([segment(2)], [])
        assert store.usage[KEY] == Usage(0, 3, 2, 20)


@pytest.mark.parametrize("is_commit", [False, True])
def test_full_disk_is_emptied_with_the_space_kept_for_readers(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_commit: bool
) -> None:
    """Where a delete finds no space, the reserve gives it; a message never gets it."""
    reserve = path.with_name("queue.db.reserve")
    with opened(path) as store:
        store.write([segment(0), segment(1)], [])
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
                store.write([segment(2)], [])
            assert reserve.exists()
            if is_commit:
                store.truncate(KEY, 1)
            else:
                store.write([], [Mark(KEY, 0, 1, 1)])
            assert not reserve.exists()
        assert store.usage[KEY].messages == 1
        store.write([segment(2)], [])
        assert reserve.exists()


def test_log_gives_its_space_to_what_must_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full of the log, the log is written out, and the message stored."""
    log = path.with_name("queue.db-wal")
    with opened(path) as store:
        store.write([segment(0)], [])
        transaction = store._transaction

        def transaction_on_a_full_disk(
            *, must_flush: bool = False
        ) -> AbstractContextManager[sqlite3.Connection]:
            if log.stat().st_size:
                raise StorageFullError("no space left")
            return transaction(must_flush=must_flush)

        monkeypatch.setattr(store, "_transaction", transaction_on_a_full_disk)
        store.write([segment(1)], [])
        assert store.usage[KEY].next == 2


def test_write_that_fails_leaves_nothing_open(path: Path) -> None:
    """After a refused write the next one begins anew."""
    with opened(path) as store:
        store.write([segment(0)], [])
        with pytest.raises(StorageError, match="UNIQUE"):
            store.write([segment(1), segment(0)], [])
        store.write([segment(1)], [])
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 99)] == [0, 1]


def test_space_of_deleted_messages_is_used_again(path: Path) -> None:
    """A queue that is read as fast as it is filled does not let its file grow."""
    with opened(path) as store:
        for first in range(60):
            store.write([segment(first, n_bytes=200_000)], [])
            store.write([], [Mark(KEY, first, 1, 1)])
        assert path.with_name("queue.db-wal").stat().st_size < 10_000_000
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


def test_nothing_is_stored_in_a_file_that_was_deleted(path: Path) -> None:
    """Neither messages nor deletes are acknowledged, until the file is back."""
    with opened(path) as store:
        store.write([segment(0)], [])
        away = path.with_name("away")
        path.rename(away)
        for write in (
            lambda: store.write([segment(1)], []),
            lambda: store.write([], [Mark(KEY, 0, 1, 1)]),
            lambda: store.truncate(KEY, 1),
            lambda: store.read(KEY, 0, 1, 1, 1),  # its first: it would make a new file
        ):
            with pytest.raises(StorageError, match="was deleted or replaced"):
                write()
        assert not path.exists()
        away.rename(path)
        store.write([segment(1)], [])
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 10**6)] == [0, 1]


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
        store.write([segment(0, 3), segment(3)], [Mark(KEY, 0, 3, 1)])
        assert store.set_aside(KEY, 0) == 2
        assert store.set_aside(KEY, 0) == 0
        assert store.usage[KEY] == Usage(0, 4, 1, 10)
    with opened(path) as store:
        assert store.aside == {KEY: 2}
        assert store.usage[KEY] == Usage(0, 4, 1, 10)
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 10**6)] == [3]
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT first_offset, frame FROM set_aside").fetchall()
    assert rows == [(0, bytes(10))]


def test_a_segment_on_a_damaged_page_is_passed_over(path: Path) -> None:
    """Where SQLite cannot even move it: it stays where it is, and those around it are read."""
    with opened(path) as store:
        for offset in range(3):
            store.write([NewSegment(KEY, offset, 1, 0.0, b"%d" % offset * 100_000)], [])
    data = bytearray(path.read_bytes())
    for page in range(0, len(data), PAGE_BYTES):
        if data[page + 4 : page + PAGE_BYTES].strip(b"1") == b"":  # whole, in the middle of one
            data[page : page + 4] = b"\xff" * 4  # the number of the page behind it
    path.write_bytes(data)
    with opened(path) as store:
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 10**6)] == [0]
        with pytest.raises(BrokenSegmentError, match="segment at offset 1 cannot be read"):
            store.read(KEY, 1, 9, 9, 10**6)
        assert store.set_aside(KEY, 1) == 1
        assert [one.first_offset for one in store.read(KEY, 0, 9, 9, 10**6)] == [0, 2]
        assert store.aside == {KEY: 1}
