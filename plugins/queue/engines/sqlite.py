"""The SQLite store keeps messages on disk, on one machine, for one process.

The write-ahead log is flushed on each commit that stores messages (``synchronous=FULL``), so these
survive a power cut. A commit that only settles is flushed with the next one that stores: it
survives the end of the process, and a power cut at worst brings settled messages back, which
at-least-once delivery allows. A lock on ``PATH.lock`` gives the file to one process at a time:
leases are in memory, and two processes would give one message to two receivers. Other programs may
read the file while it is open. Once it is deleted or replaced, no more messages are accepted.

Checkpoints of the log are made beside the commits (`Checkpointer`).

On a full disk messages are refused, and readers go on with the space of a `DiskReserve`. Until that
space can be reserved again, no message is accepted.

The facts about a segment are in a table beside its frame, so that the start reads no frames.

Each frame is stored with its CRC-32, and one that has another when it is read is broken: SQLite
notices damage of its own structures, and gives out bytes of a message as the disk returns them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from penstock.broker.durable.database_file import (
    BUSY_SECONDS,
    CHECKPOINT_PAGES,
    PAGE_BYTES,
    behind_links,
    connect,
    in_words,
    transaction,
)
from penstock.broker.durable.disk_reserve import DiskReserve
from penstock.broker.durable.locked_database import LockedDatabase
from penstock.plugins.queue.engines.checkpoints import LOG_PAGES, ROWS_BYTES, Checkpointer
from penstock.plugins.queue.engines.contract import EngineStartError, StorageError, StorageFullError
from penstock.plugins.queue.engines.sqlite_copies import backup
from penstock.plugins.queue.engines.sqlite_format import FORMAT
from penstock.plugins.queue.engines.store import (
    BrokenSegmentError,
    Changes,
    DeduplicationRow,
    GroupRow,
    PhysicalRow,
    QueueRow,
    Rows,
    Segment,
)

RESERVE_BYTES: Final = (LOG_PAGES + CHECKPOINT_PAGES) * PAGE_BYTES
"""The space that is reserved for a full disk: enough to copy the longest write-ahead log into the
file, and for the deletes after that."""
AMPLE_BYTES: Final = 1024 * 1024
"""With so many free bytes on the disk, a message is certainly stored."""
PROBE_BYTES: Final = PAGE_BYTES
"""How much a probe writes where that is not certain."""
SWEEP_SEGMENTS: Final = 256
"""The most segments of deleted queues that one transaction deletes, some 64 MiB."""
SPARE_PAGES: Final = 2_000
"""The unused pages that a file always keeps, 16 MB."""
TRIM_PAGES: Final = 64
"""How many pages are given back to the file system at a time, half a MB. Pages behind them are
moved, which takes about as long as a commit."""
_OF_QUEUES: Final = "queue IN (SELECT id FROM logical_queue)"


class SqliteStore(LockedDatabase):
    """Rows and frames in an SQLite file; see `Store` for the contract of its methods.

    Attributes:
        tightened: names of its files that other users could read until it was opened.
    """

    what = "queue database"
    allowed = (
        "a queue's database that no other process writes to, or a path where no file is and one "
        "can be created"
    )
    format = FORMAT
    error = StorageError
    full_error = StorageFullError

    _reserve: DiskReserve

    def __init__(
        self, path: str, durability: str = "full", *, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        # Beside the file itself, as a link may lead to another disk.
        reserve = DiskReserve(f"{behind_links(path)}.reserve", RESERVE_BYTES)
        super().__init__(path, reserve=reserve, busy_seconds=busy_seconds)
        self.tightened: Sequence[str] = ()
        self._durability = durability
        self._rows = Rows()
        self._checkpoints: Checkpointer | None = None
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []

    def open(self) -> Rows:
        """Open the file, or create it, and return its rows."""
        try:
            self.tightened = self.open_file()
            with self._explaining():
                self._checkpoints = Checkpointer(self._opened_again(), self._opened()[1].flush)
        except StorageError as error:
            self.close()
            raise EngineStartError(str(error)) from error
        rows, self._rows = self._rows, Rows()
        return rows

    def _prepare(self) -> None:
        super()._prepare()
        connection, _ = self._opened()
        # For transactions that add more to the log than `Checkpointer` takes them for.
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        with transaction(connection):
            self._rows = _read_rows(connection)

    def _start_clock(self) -> None:
        """Do nothing: the engine keeps its clock among the rows."""

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        self._local = threading.local()
        super().close()

    def write(self, changes: Changes) -> None:
        """Write the rows of one transaction."""
        if not changes.any():
            return
        self._check_there()
        is_storing = bool(changes.segments)
        if is_storing:
            self._hold_reserve()
        if self._checkpoints is not None:
            self._checkpoints.finish(self._opened()[0], above_bytes=LOG_PAGES * PAGE_BYTES)
        self._with_space(lambda: self._write(changes), is_urgent=not is_storing)
        frames = (*changes.segments, *changes.replaced_segments)
        self._note_log(sum(one.stored_bytes for _, one, _ in frames))

    def probe(self, *, is_failing: bool) -> None:
        """See whether a message would be stored; where that is in doubt, by a write."""
        self._check_there()
        self._hold_reserve()
        status = os.statvfs(behind_links(self._path))
        if not is_failing and status.f_bavail * status.f_frsize >= AMPLE_BYTES:
            return

        def write() -> None:
            with self._transaction(must_flush=True) as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('probe', ?)", (" " * PROBE_BYTES,)
                )

        self._with_space(write, is_urgent=False)

    def _write(self, changes: Changes) -> None:
        aside: list[tuple[int, int, int, float, bytes, int]] = []
        unreadable: set[tuple[int, int]] = set()
        for place, segment, n_missing in changes.aside:
            first, n_messages = segment.first_offset, segment.n_messages
            frame = self._frame_left(place, first)
            if frame is None:
                unreadable.add((place, first))  # it cannot even be deleted
            aside.append((place, first, n_messages, segment.newest_at, frame or b"", n_missing))
        replaced = changes.replaced_segments
        with self._transaction(must_flush=changes.must_flush) as connection:
            many = partial(_execute_many, connection)
            _write_names(connection, changes)
            many(
                "INSERT OR REPLACE INTO physical_queue VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                changes.physical,
            )
            many(
                "INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (place, one.first_offset, one.n_messages, one.newest_at, frame, crc32(frame))
                    for place, one, frame in changes.segments
                ],
            )
            many(
                "INSERT INTO segment_facts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(place, *one) for place, one, _ in changes.segments],
            )
            many(
                "UPDATE segment SET frame = ?, checksum = ?"
                " WHERE physical_queue = ? AND first_offset = ?",
                [(frame, crc32(frame), place, one.first_offset) for place, one, frame in replaced],
            )
            many(
                "INSERT OR REPLACE INTO segment_facts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(place, *one) for place, one, _ in replaced],
            )
            many(
                "INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?)",
                [(*key, _bits(bits), n) for key, (bits, n) in changes.gone.items()],
            )
            many(
                "INSERT OR REPLACE INTO settled VALUES (?, ?, ?, ?)",
                [(*key, _bits(bits)) for key, bits in changes.settled.items()],
            )
            many(
                "INSERT OR REPLACE INTO receives VALUES (?, ?, ?, ?)",
                [(*key, counts) for key, counts in changes.receives.items()],
            )
            many("INSERT OR REPLACE INTO set_aside VALUES (?, ?, ?, ?, ?, ?)", aside)
            deleted = [one for one in changes.deleted_segments if one not in unreadable]
            many("DELETE FROM segment WHERE physical_queue = ? AND first_offset = ?", deleted)
            for table in ("segment_facts", "gone", "settled", "receives"):
                many(
                    f"DELETE FROM {table} WHERE physical_queue = ? AND first_offset = ?",  # noqa: S608 (a name of ours)
                    changes.deleted_segments,
                )
            many(
                "INSERT OR REPLACE INTO floor VALUES (?, ?, ?)",
                [(*key, offset) for key, offset in changes.floors.items()],
            )
            # From both ends, as the rows of slower groups lie below.
            passed = [(*key, *span) for key, span in changes.passed.items()]
            for table in ("settled", "receives"):
                many(
                    f"DELETE FROM {table} WHERE consumer_group = ?1 AND physical_queue = ?2"  # noqa: S608 (a name of ours)
                    " AND first_offset >= ?3 AND first_offset < ?4",
                    passed,
                )

    def read(self, physical_id: int, first_offsets: Sequence[int]) -> dict[int, bytes]:
        """Return the frames of segments by first offset."""
        found: dict[int, bytes] = {}
        for first in first_offsets:
            row = self._read_frame(physical_id, first)
            if row is None:
                continue
            frame, checksum = row
            if frame is None:
                raise BrokenSegmentError(physical_id, first, "its frame is no bytes")
            if crc32(frame) != checksum:
                raise BrokenSegmentError(
                    physical_id,
                    first,
                    f"the CRC-32 of its frame is {crc32(frame)}, it was stored with {checksum}",
                )
            found[first] = frame
        return found

    def _read_frame(self, physical_id: int, first: int) -> tuple[bytes | None, Any] | None:
        """Return a frame and the checksum it was stored with, unchecked; None for no segment.

        Raises:
            BrokenSegmentError: SQLite cannot read it.
            StorageError: the file cannot be read.
        """
        try:
            # Not decoded as a text, where damage has turned it into one.
            row: tuple[bytes | None, Any] | None = (
                self._reader()
                .execute(
                    "SELECT CAST(frame AS BLOB), checksum FROM segment"
                    " WHERE physical_queue = ? AND first_offset = ?",
                    (physical_id, first),
                )
                .fetchone()
            )
        except sqlite3.Error as error:
            if _is_damage(error):
                raise BrokenSegmentError(physical_id, first, str(error)) from error
            raise StorageError(f"{self.name}: {in_words(error)}") from error
        return row

    def _frame_left(self, place: int, first_offset: int) -> bytes | None:
        """Return a frame as it is; None where SQLite cannot read it.

        It is read before the transaction, in which SQLite could do nothing more after that.
        """
        try:
            row = self._read_frame(place, first_offset)
        except BrokenSegmentError:
            return None
        return None if row is None else row[0] or b""

    def sweep(self) -> bool:
        """Delete some segments of deleted queues."""
        return self._with_space(self._sweep)

    def _sweep(self) -> bool:
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT id FROM physical_queue WHERE queue NOT IN (SELECT id FROM logical_queue)"
                " LIMIT 1"
            ).fetchone()
            if row is None:
                return False
            found = connection.execute(
                "SELECT physical_queue, first_offset FROM segment_facts WHERE physical_queue = ?"
                " ORDER BY first_offset LIMIT ?",
                (row[0], SWEEP_SEGMENTS),
            ).fetchall()
            for table in ("segment", "segment_facts", "gone", "settled", "receives"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE physical_queue = ? AND first_offset = ?",  # noqa: S608 (a name of ours)
                    found,
                )
            if len(found) < SWEEP_SEGMENTS:
                connection.execute("DELETE FROM physical_queue WHERE id = ?", row)
            return True

    def trim(self) -> bool:
        """Give some free pages back to the file system."""
        self._check_there()
        connection, _ = self._opened()
        with self._explaining():
            (n_free,) = connection.execute("PRAGMA freelist_count").fetchone()
            (n_pages,) = connection.execute("PRAGMA page_count").fetchone()
            # A quarter is kept, as pages that are filled again are cheaper than new ones.
            if n_free <= SPARE_PAGES or n_free * 4 <= n_pages:
                return False
            # Each step of the statement frees a page; `execute` makes only one.
            connection.executescript(f"PRAGMA incremental_vacuum({TRIM_PAGES})")
            self._note_log(2 * TRIM_PAGES * PAGE_BYTES)
        return True

    def compact(self) -> int:
        """Rewrite the file without free pages."""
        self._check_there()
        connection, _ = self._opened()
        with self._explaining():
            self._shorten_log()
            before = self._file_bytes()
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
            self._shorten_log()
        return before - self._file_bytes()

    def backup(self, path: str) -> int:
        """Copy the file while it is in use."""
        self._check_there()
        return backup(self._path, path, self._busy_seconds)

    def figures(self) -> Mapping[str, Any]:
        """Return the sizes of the file and its log, and of what the reserve holds."""
        log = Path(f"{behind_links(self._path)}-wal")
        return {
            "engine": "sqlite",
            "path": self._path,
            "file_bytes": self._file_bytes(),
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "reserve_bytes": RESERVE_BYTES,
        }

    def _file_bytes(self) -> int:
        try:
            return Path(self._path).stat().st_size
        except OSError:
            return 0

    def _reader(self) -> sqlite3.Connection:
        """Return this thread's own connection for reading."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            self._check_there()  # else SQLite would create it
            connection = self._opened_again()
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
            self._readers.append(connection)
        return connection

    def _opened_again(self) -> sqlite3.Connection:
        """Return a further connection. It has opened the file, which may be deleted later."""
        connection = connect(self._path, self._busy_seconds)
        connection.execute("PRAGMA schema_version").fetchone()
        return connection

    @contextmanager
    def _transaction(self, *, must_flush: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction.

        Args:
            must_flush: with `durability: full`, the changes survive a power cut.

        Raises:
            StorageError: SQLite refused; nothing has changed.
        """
        connection, _ = self._opened()
        synchronous = "FULL" if must_flush and self._durability == "full" else "NORMAL"
        if synchronous != self._synchronous:
            with self._explaining():
                connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        with super()._transaction():
            yield connection
        self._note_log(ROWS_BYTES)

    def _shorten_log(self) -> None:
        """Do so while no checkpoint is made."""
        with nullcontext() if self._checkpoints is None else self._checkpoints.paused():
            super()._shorten_log()

    def _note_log(self, n_bytes: int) -> None:
        if self._checkpoints is not None:
            self._checkpoints.note(n_bytes)


def _execute_many(
    connection: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]]
) -> None:
    """Execute a statement for each row; without rows, which is usual, at no cost."""
    if rows:
        connection.executemany(statement, rows)


def _write_names(connection: sqlite3.Connection, changes: Changes) -> None:
    """Write the rows of queues and groups, of deduplication and of the meta table."""
    many = partial(_execute_many, connection)
    many("INSERT OR REPLACE INTO logical_queue VALUES (?, ?, ?, ?)", changes.queues)
    for queue_id in changes.deleted_queues:
        mine = "IN (SELECT id FROM consumer_group WHERE queue = ?)"
        for table in ("floor", "settled", "receives"):
            connection.execute(f"DELETE FROM {table} WHERE consumer_group {mine}", (queue_id,))  # noqa: S608
        connection.execute("DELETE FROM consumer_group WHERE queue = ?", (queue_id,))
        connection.execute("DELETE FROM deduplication WHERE queue = ?", (queue_id,))
        connection.execute("DELETE FROM logical_queue WHERE id = ?", (queue_id,))
    many("INSERT OR REPLACE INTO consumer_group VALUES (?, ?, ?, ?, ?, ?)", changes.groups)
    many("UPDATE consumer_group SET used_at = ? WHERE id = ?", changes.group_uses)
    for group_id in (*changes.deleted_groups, *changes.reset_groups):
        for table in ("settled", "receives"):
            connection.execute(f"DELETE FROM {table} WHERE consumer_group = ?", (group_id,))  # noqa: S608
    for group_id in changes.deleted_groups:
        connection.execute("DELETE FROM floor WHERE consumer_group = ?", (group_id,))
        connection.execute("DELETE FROM consumer_group WHERE id = ?", (group_id,))
    stored = changes.deduplication
    forgotten = [key for key, row in stored.items() if row is None]
    many("DELETE FROM deduplication WHERE queue = ? AND identifier = ?", forgotten)
    rows = [row for row in stored.values() if row is not None]
    many("INSERT OR REPLACE INTO deduplication VALUES (?, ?, ?, ?, ?)", rows)
    many("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(changes.meta.items()))


def _read_rows(connection: sqlite3.Connection) -> Rows:
    """Read all but frames."""
    read = connection.execute
    rows = Rows(
        queues=list(map(QueueRow._make, read("SELECT * FROM logical_queue ORDER BY id"))),
        physical=list(
            map(
                PhysicalRow._make,
                read(f"SELECT * FROM physical_queue WHERE {_OF_QUEUES} ORDER BY queue, number"),  # noqa: S608
            )
        ),
        groups=list(
            map(
                GroupRow._make,
                read(f"SELECT * FROM consumer_group WHERE {_OF_QUEUES} ORDER BY id"),  # noqa: S608
            )
        ),
        floors={(group, place): offset for group, place, offset in read("SELECT * FROM floor")},
        deduplication=list(
            map(DeduplicationRow._make, read("SELECT * FROM deduplication ORDER BY stored_at"))
        ),
        meta=dict(read("SELECT name, value FROM meta")),
    )
    for place, *facts in read("SELECT * FROM segment_facts ORDER BY physical_queue, first_offset"):
        rows.segments.setdefault(place, []).append(Segment(*facts))
    for place, first, bits, n_bytes in read("SELECT * FROM gone"):
        rows.gone[place, first] = int.from_bytes(bits, "little"), n_bytes
    for place, first, group, bits in read("SELECT * FROM settled"):
        rows.settled[place, first, group] = int.from_bytes(bits, "little")
    for place, first, group, counts in read("SELECT * FROM receives"):
        rows.receives[place, first, group] = counts
    rows.aside = dict(
        read("SELECT physical_queue, sum(n_missing) FROM set_aside GROUP BY physical_queue")
    )
    return rows


def _bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _is_damage(error: sqlite3.Error) -> bool:
    """Say whether SQLite or the disk reported damaged data."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_CORRUPT or code == sqlite3.SQLITE_IOERR_READ
