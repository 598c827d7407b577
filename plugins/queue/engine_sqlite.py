"""A store in an SQLite file: durable, on one machine, for one process.

The write-ahead log is flushed on each commit that stores messages (``synchronous=FULL``), so these
survive a power cut. A commit that only deletes is flushed with the next one that stores: it
survives the end of the process, and a power cut at worst brings deleted messages back, which
at-least-once delivery allows. A lock on ``PATH.lock`` gives the file to one process at a time:
leases are in memory, and two processes would give one message to two receivers. Other programs may
read the file while it is open. Once it is deleted or replaced, no more messages are accepted.

On a full disk messages are refused, and readers go on with the space of a `DiskReserve`. Until that
space can be reserved again, no message is accepted.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final, TypeVar

from penstock.broker.durable.database_file import (
    BUSY_SECONDS,
    CHECKPOINT_PAGES,
    PAGE_BYTES,
    DatabaseFile,
    DatabaseFileError,
    Format,
    behind_links,
    connect,
    in_words,
    set_up,
    transaction,
)
from penstock.plugins.queue.disk_reserve import DiskReserve
from penstock.plugins.queue.engine import (
    BrokenSegmentError,
    EngineStartError,
    StorageError,
    StorageFullError,
    Usage,
)
from penstock.plugins.queue.store import Key, Mark, NewSegment, StoredSegment, wanted_bits

T = TypeVar("T")

FORMAT: Final = Format(
    application_id=0x50455154,
    version=1,
    schema=(
        """CREATE TABLE physical_queue (
            id INTEGER PRIMARY KEY,
            queue TEXT NOT NULL,
            number INTEGER NOT NULL,
            earliest INTEGER NOT NULL DEFAULT 0,
            next INTEGER NOT NULL DEFAULT 0,
            messages INTEGER NOT NULL DEFAULT 0,
            stored_bytes INTEGER NOT NULL DEFAULT 0,
            UNIQUE (queue, number)
        )""",
        """CREATE TABLE segment (
            physical_queue INTEGER NOT NULL REFERENCES physical_queue (id),
            first_offset INTEGER NOT NULL,
            n_messages INTEGER NOT NULL,
            newest_at REAL NOT NULL,
            frame BLOB NOT NULL,
            PRIMARY KEY (physical_queue, first_offset)
        )""",
        # In a table of its own, because SQLite rewrites the whole row on a change.
        """CREATE TABLE gone (
            physical_queue INTEGER NOT NULL,
            first_offset INTEGER NOT NULL,
            bits BLOB NOT NULL,
            PRIMARY KEY (physical_queue, first_offset)
        ) WITHOUT ROWID""",
    ),
)

RESERVE_BYTES: Final = 3 * CHECKPOINT_PAGES * PAGE_BYTES
"""Enough for the write-ahead log when the disk is full, up to twice its usual size, and for the
deletes after that."""
TRUNCATE_SEGMENTS: Final = 256
"""Segments that one transaction deletes at most, some 64 MiB, so that a reader that commits a long
range does not delay the storing of messages."""
_READ: Final = """
    SELECT first_offset, n_messages, bits, frame
    FROM segment LEFT JOIN gone USING (physical_queue, first_offset)
    WHERE physical_queue = ?1 AND first_offset < ?3 AND first_offset >= coalesce(
        (SELECT max(first_offset) FROM segment WHERE physical_queue = ?1 AND first_offset <= ?2),
        ?2)"""
_ASIDE: Final = """CREATE TABLE IF NOT EXISTS set_aside (
    physical_queue INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    n_messages INTEGER NOT NULL,
    newest_at REAL NOT NULL,
    frame BLOB NOT NULL,
    n_missing INTEGER NOT NULL,
    PRIMARY KEY (physical_queue, first_offset)
)"""
"""Segments that could not be read, with the columns of `segment`, and the number of messages that
the queue lacks for each. Created with the first of them; a program that does not know the table
ignores it."""


class SqliteStore:
    """Segments in an SQLite file; see `Store` for the contract of its methods.

    Args:
        path: name of the file.
        durability: `full` or `normal`; see `QueueConfig`.
        busy_seconds: how long to wait for another program that writes to the file.

    Attributes:
        usage: what each physical queue holds.
        aside: messages of each physical queue that are set aside.
        tightened: names of its files that other users could read until now.
    """

    def __init__(
        self, path: str, durability: str = "full", *, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self.usage: dict[Key, Usage] = {}
        self.aside: dict[Key, int] = {}
        self.tightened: Sequence[str] = ()
        self._unreadable: dict[Key, set[int]] = {}
        self._path = path
        self._durability = durability
        self._busy_seconds = busy_seconds
        self._synchronous = ""
        # Beside the file itself, as a link may lead to another disk.
        self._reserve = DiskReserve(f"{behind_links(path)}.reserve", RESERVE_BYTES)
        self._ids: dict[Key, int] = {}
        self._file: DatabaseFile | None = None
        self._writer: sqlite3.Connection | None = None
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []

    def open(self, queues: Mapping[str, int]) -> None:
        """Open the file, or create it."""
        try:
            self._file = DatabaseFile(self._path)
            self.tightened = self._file.tightened
            try:
                self._prepare(queues)
            except (sqlite3.Error, StorageError):
                # On a full disk even the log's index needs the space of the reserve.
                if not self._reserve.give_up():
                    raise
                self._prepare(queues)
            self._file.watch()
            self._reserve.hold()
        except DatabaseFileError as error:
            self.close()
            raise EngineStartError(f"queue database {self._path}: {error}") from error
        except sqlite3.Error as error:
            self.close()
            raise EngineStartError(
                f"{self._explain(error)}; allowed: a queue's database that no other "
                "process writes to, or a path where no file is and one can be created"
            ) from error
        except StorageError as error:
            self.close()
            raise EngineStartError(str(error)) from error
        except EngineStartError:
            self.close()
            raise

    def _prepare(self, queues: Mapping[str, int]) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = connect(self._path, self._busy_seconds)
        set_up(self._writer, FORMAT)
        self._make_queues(self._writer, queues)
        self._count_aside(self._writer)

    def close(self) -> None:
        """Close the file and release its lock."""
        for connection in (*self._readers, self._writer):
            if connection is not None:
                # A last checkpoint may fail on a full disk; the log is read at the next start.
                with suppress(sqlite3.Error):
                    connection.close()
        self._readers.clear()
        self._local = threading.local()
        self._writer = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def why_lost(self) -> str:
        """Name the file that was deleted or replaced; "" for none."""
        lost = "" if self._file is None else self._file.why_lost()
        return f"queue database {self._path}: {lost}" if lost else ""

    def _check_there(self) -> None:
        lost = self.why_lost()
        if lost:
            raise StorageError(lost)

    def write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        """Store segments and delete messages in one transaction."""
        self._check_there()
        if segments and not self._hold_reserve():
            raise StorageFullError(
                f"queue database {self._path}: the disk has less than the "
                f"{self._reserve.n_bytes:,} bytes left that are kept for readers"
            )
        self._with_space(lambda: self._write(segments, marks), is_for_readers=not segments)
        self._check_there()  # else the messages would be lost at the end of the process

    def _write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        changed: dict[Key, Usage] = {}
        with self._transaction(must_flush=bool(segments)) as connection:
            connection.executemany(
                "INSERT INTO segment VALUES (?, ?, ?, ?, ?)",
                [
                    (self._ids[key], first_offset, n_messages, newest_at, frame)
                    for key, first_offset, n_messages, newest_at, frame in segments
                ],
            )
            for key, first_offset, n_messages, _, frame in segments:
                usage = changed.get(key) or self.usage[key]
                changed[key] = usage._replace(
                    next=first_offset + n_messages,
                    messages=usage.messages + n_messages,
                    stored_bytes=usage.stored_bytes + len(frame),
                )
            for mark in marks:
                usage = changed.get(mark.key) or self.usage[mark.key]
                changed[mark.key] = self._mark(connection, mark, usage)
            self._write_usage(connection, changed)
        self.usage.update(changed)

    def truncate(self, key: Key, below: int) -> int:
        """Delete messages below an offset, a limited number of segments in one transaction."""
        self._check_there()
        return self._with_space(lambda: self._truncate(key, below), is_for_readers=True)

    def _truncate(self, key: Key, below: int) -> int:
        usage = self.usage[key]
        row_id = self._ids[key]
        with self._transaction() as connection:
            bound = connection.execute(
                "SELECT first_offset + n_messages FROM segment WHERE physical_queue = ?"
                " AND first_offset < ? ORDER BY first_offset LIMIT 1 OFFSET ?",
                (row_id, below, TRUNCATE_SEGMENTS - 1),
            ).fetchone()
            below = below if bound is None else min(below, bound[0])
            whole = "physical_queue = ?1 AND first_offset < ?2 AND first_offset + n_messages <= ?2"
            n_messages, n_bytes = connection.execute(
                f"SELECT total(n_messages), total(length(frame)) FROM segment WHERE {whole}",  # noqa: S608 (a text of ours)
                (row_id, below),
            ).fetchone()
            gone = connection.execute(
                f"SELECT bits FROM gone JOIN segment USING (physical_queue, first_offset)"  # noqa: S608 (a text of ours)
                f" WHERE {whole}",
                (row_id, below),
            ).fetchall()
            connection.execute(f"DELETE FROM segment WHERE {whole}", (row_id, below))  # noqa: S608 (a text of ours)
            n_gone = sum(int.from_bytes(bits, "little").bit_count() for (bits,) in gone)
            usage = usage._replace(
                earliest=max(usage.earliest, below),
                messages=usage.messages - int(n_messages) + n_gone,
                stored_bytes=usage.stored_bytes - int(n_bytes),
            )
            cut = connection.execute(
                "SELECT first_offset, n_messages FROM segment"
                " WHERE physical_queue = ? AND first_offset < ?",
                (row_id, below),
            ).fetchone()
            if cut is not None:
                bits = (1 << (below - cut[0])) - 1
                usage = self._mark(connection, Mark(key, cut[0], cut[1], bits), usage)
            connection.execute(
                "DELETE FROM gone WHERE physical_queue = ? AND first_offset < ?",
                (row_id, below if cut is None else cut[0]),
            )
            self._write_usage(connection, {key: usage})
        n_removed = self.usage[key].messages - usage.messages
        self.usage[key] = usage
        return n_removed

    def set_aside(self, key: Key, first_offset: int) -> int:
        """Move a segment into a table of its own; where SQLite cannot, it is skipped."""
        self._check_there()
        place = (self._ids[key], first_offset)
        where = "physical_queue = ?1 AND first_offset = ?2"
        with self._transaction() as connection:
            row = connection.execute(
                f"SELECT n_messages, length(frame), bits FROM segment LEFT JOIN gone"  # noqa: S608 (a text of ours)
                f" USING (physical_queue, first_offset) WHERE {where}",
                place,
            ).fetchone()
        if row is None:
            return 0
        n_messages: int = row[0] - int.from_bytes(row[2] or b"", "little").bit_count()
        usage = self.usage[key]
        usage = usage._replace(
            messages=usage.messages - n_messages, stored_bytes=usage.stored_bytes - row[1]
        )
        try:
            with self._transaction(must_flush=True) as connection:
                connection.execute(_ASIDE)
                connection.execute(
                    f"INSERT INTO set_aside SELECT *, {n_messages} FROM segment WHERE {where}",  # noqa: S608
                    place,
                )
                for table in ("segment", "gone"):
                    connection.execute(f"DELETE FROM {table} WHERE {where}", place)  # noqa: S608
                self._write_usage(connection, {key: usage})
        except StorageError as error:
            if not isinstance(error.__cause__, sqlite3.Error) or not _is_damage(error.__cause__):
                raise
            self._unreadable.setdefault(key, set()).add(first_offset)
        else:
            self.usage[key] = usage
        self.aside[key] = self.aside.get(key, 0) + n_messages
        return n_messages

    def _count_aside(self, connection: sqlite3.Connection) -> None:
        """Count the messages that earlier runs have set aside."""
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'set_aside'")
        if known.fetchone() is not None:
            for key, row_id in self._ids.items():
                (n_messages,) = connection.execute(
                    "SELECT total(n_missing) FROM set_aside WHERE physical_queue = ?", (row_id,)
                ).fetchone()
                if n_messages:
                    self.aside[key] = int(n_messages)

    def older_than(self, key: Key, enqueued_before: float) -> int:
        """Return the offset below which every segment is older."""
        offset = self.usage[key].earliest
        with self._read_errors():
            rows = self._reader().execute(
                "SELECT first_offset + n_messages, newest_at FROM segment"
                " WHERE physical_queue = ? ORDER BY first_offset",
                (self._ids[key],),
            )
            with closing(rows):
                for behind, newest_at in rows:
                    if newest_at >= enqueued_before:
                        break
                    offset = behind
        return offset

    def read(
        self, key: Key, start: int, end: int, max_messages: int, max_bytes: int
    ) -> list[StoredSegment]:
        """Return the segments that hold messages in a range."""
        place = (self._ids[key], start, end)
        statement = _READ
        if key in self._unreadable:
            passed = ", ".join(map(str, self._unreadable[key]))
            statement += f" AND first_offset NOT IN ({passed})"
        statement += " ORDER BY first_offset"
        with self._read_errors():
            try:
                with closing(self._reader().execute(statement, place)) as rows:
                    return list(_wanted(rows, start, end, max_messages, max_bytes))
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
            found: list[StoredSegment] = []
            singly = self._read_singly(key, statement, place)
            try:
                for segment in _wanted(singly, start, end, max_messages, max_bytes):
                    found.append(segment)  # noqa: PERF402 (rows before an error are kept)
            except BrokenSegmentError:
                if not found:
                    raise
            return found

    def _read_singly(
        self, key: Key, statement: str, place: tuple[int, int, int]
    ) -> Iterator[tuple[int, int, bytes | None, bytes]]:
        """Yield the rows of a statement, each read by itself.

        Raises:
            BrokenSegmentError: SQLite finds the next one damaged.
            sqlite3.DatabaseError: the damage is not limited to frames.
        """
        reader = self._reader()
        without_frames = statement.replace("bits, frame", "bits, NULL", 1)
        for row in reader.execute(without_frames, place).fetchall():
            try:
                ((frame,),) = reader.execute(
                    "SELECT frame FROM segment WHERE physical_queue = ? AND first_offset = ?",
                    (place[0], row[0]),
                ).fetchall()
            except sqlite3.DatabaseError as error:
                raise BrokenSegmentError(key, row[0], str(error)) from error
            yield row[0], row[1], row[2], frame

    def _reader(self) -> sqlite3.Connection:
        """Return this thread's own connection for reading."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            self._check_there()  # else SQLite would create it
            connection = connect(self._path, self._busy_seconds)
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
            self._readers.append(connection)
        return connection

    def _make_queues(self, connection: sqlite3.Connection, queues: Mapping[str, int]) -> None:
        wanted = [(name, number) for name, n in queues.items() for number in range(n)]
        # Take the write lock, so that a read-only file is refused at the start.
        with self._transaction():
            connection.executemany(
                "INSERT INTO physical_queue (queue, number) VALUES (?, ?) ON CONFLICT DO NOTHING",
                wanted,
            )
            rows = connection.execute(
                "SELECT id, queue, number, earliest, next, messages, stored_bytes"
                " FROM physical_queue ORDER BY queue, number"
            ).fetchall()
        for row_id, queue, number, *usage in rows:
            self._ids[queue, number] = row_id
            self.usage[queue, number] = Usage(*usage)

    def _mark(self, connection: sqlite3.Connection, mark: Mark, usage: Usage) -> Usage:
        """Delete messages of one segment; return its physical queue's new usage."""
        place = (self._ids[mark.key], mark.first_offset)
        row = connection.execute(
            "SELECT bits, length(frame) FROM segment LEFT JOIN gone"
            " USING (physical_queue, first_offset) WHERE physical_queue = ? AND first_offset = ?",
            place,
        ).fetchone()
        if row is None:
            return usage
        gone = int.from_bytes(row[0] or b"", "little")
        whole = (1 << mark.n_messages) - 1
        now_gone = gone | (mark.bits & whole)
        n_removed = now_gone.bit_count() - gone.bit_count()
        freed = 0
        if now_gone == whole:
            freed = row[1]
            for table in ("segment", "gone"):
                connection.execute(
                    f"DELETE FROM {table} WHERE physical_queue = ? AND first_offset = ?",  # noqa: S608 (two names of ours)
                    place,
                )
        else:
            bits = now_gone.to_bytes((mark.n_messages + 7) // 8, "little")
            connection.execute("INSERT OR REPLACE INTO gone VALUES (?, ?, ?)", (*place, bits))
        return usage._replace(
            messages=usage.messages - n_removed, stored_bytes=usage.stored_bytes - freed
        )

    def _write_usage(self, connection: sqlite3.Connection, changed: Mapping[Key, Usage]) -> None:
        connection.executemany(
            "UPDATE physical_queue SET earliest = ?, next = ?, messages = ?, stored_bytes = ?"
            " WHERE id = ?",
            [(*usage, self._ids[key]) for key, usage in changed.items()],
        )

    @contextmanager
    def _transaction(self, *, must_flush: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction.

        Args:
            must_flush: with `durability: full`, the changes survive a power cut.

        Raises:
            StorageError: SQLite refused; nothing has changed.
        """
        connection = self._writer
        if connection is None:
            raise StorageError(f"queue database {self._path}: closed")
        try:
            synchronous = "FULL" if must_flush and self._durability == "full" else "NORMAL"
            if synchronous != self._synchronous:
                connection.execute(f"PRAGMA synchronous = {synchronous}")
                self._synchronous = synchronous
            with transaction(connection):
                yield connection
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            raise (StorageFullError if is_full else StorageError)(self._explain(error)) from error

    def _with_space(self, change: Callable[[], T], *, is_for_readers: bool) -> T:
        """Make a change; where the disk is full, with any space that can be found for it.

        Args:
            change: run again when there is more space.
            is_for_readers: whether the reserve may be spent on it.

        Raises:
            StorageError: the change was not made.
        """
        try:
            return change()
        except StorageFullError:
            self._shorten_log()
        try:
            return change()
        except StorageFullError:
            if not is_for_readers or not self._reserve.spend():
                raise
        return change()

    def _hold_reserve(self) -> bool:
        """Say whether there is space for messages in addition to the reserve.

        Raises:
            StorageError: the reserve's path is not usable.
        """
        try:
            if self._reserve.hold():
                return True
            self._shorten_log()
            return self._reserve.hold()
        except DatabaseFileError as error:
            raise StorageError(f"queue database {self._path}: {error}") from error

    def _shorten_log(self) -> None:
        """Move the write-ahead log's contents into the file, and free its space."""
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(self._explain(error)) from error

    def _explain(self, error: sqlite3.Error) -> str:
        return f"queue database {self._path}: {in_words(error)}"


def _wanted(
    rows: Iterable[tuple[int, int, bytes | None, bytes]],
    start: int,
    end: int,
    max_messages: int,
    max_bytes: int,
) -> Iterator[StoredSegment]:
    """Yield the segments among rows that hold messages in a range, up to the limits."""
    for first_offset, n_messages, bits, frame in rows:
        gone = int.from_bytes(bits or b"", "little")
        wanted = wanted_bits(first_offset, n_messages, gone, start, end)
        if not wanted:
            continue
        yield StoredSegment(first_offset, n_messages, gone, frame)
        max_messages -= wanted.bit_count()
        max_bytes -= len(frame)
        if max_messages <= 0 or max_bytes <= 0:
            break


def _is_damage(error: sqlite3.Error) -> bool:
    """Say whether SQLite or the disk reported damaged data."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_CORRUPT or code == sqlite3.SQLITE_IOERR_READ
