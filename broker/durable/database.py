"""The SQLite database behind a journal: its format, reading it whole, and writing batches.

The file is in write-ahead mode. With `durability: full` the log is flushed at each commit. With
`normal` flushing is left to the operating system, which outlives the process. One process has the
file at a time (`DatabaseFile`): two brokers would each keep sessions of their own.

A restart may find the disk full. Nothing is written before the first commit. Where there is no room
for the log's index, the index is kept in memory. A payload that fits nowhere else stays in the
database (`StayingPayload`).

On a full disk, messages still leave the database, with the space of a `DiskReserve`: a commit needs
space in the log for each page that it changes, also where it only deletes. Deleted rows leave free
pages in the file, which take new rows. `room_bytes` says how much may be stored so that deleting
remains possible.
"""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from penstock.broker.durable.database_file import (
    CHECKPOINT_PAGES,
    PAGE_BYTES,
    DatabaseFileError,
    Format,
    behind_links,
    in_words,
    is_out_of_space,
    transaction,
)
from penstock.broker.durable.disk_reserve import DiskReserve
from penstock.broker.durable.locked_database import LockedDatabase
from penstock.broker.durable.records import Batch
from penstock.broker.durable.storage_clock import Clocks, StorageClock
from penstock.broker.errors import PenstockError
from penstock.broker.payload import PIECE_BYTES, Payload
from penstock.broker.session_rows import (
    DeliveryRow,
    IncomingRow,
    MessageRow,
    RetainedRow,
    SessionRow,
    Stored,
    SubscriptionRow,
    WillRow,
)

CACHE_KIB: Final = 4096
"""SQLite's page cache, which fills as pages are read. Messages that wait for one session lie among
those of others. Deleting 800 messages of each of four sessions, of 160,000 in all, takes 1.8 us a
message with this size, and 4.9 us with 512 or 2048 KiB."""

PLENTY_BYTES: Final = 8 * 1024**3
MEASURED_SECONDS: Final = 0.25
"""With so much room it is looked at again after this time, and not after each commit. Whoever fills
half of it meanwhile leaves as much as may wait for a commit. A look takes 8 us, and twice lets
another thread have the interpreter's lock."""

_TABLES: Final[dict[str, tuple[str, type[Any], str]]] = {
    "sessions": (
        "session",
        SessionRow,
        """row INTEGER PRIMARY KEY, client_id TEXT NOT NULL, username TEXT,
        listener TEXT NOT NULL, version INTEGER NOT NULL, expiry_interval REAL, lost_at REAL,
        origin BLOB NOT NULL, sent_up_to INTEGER NOT NULL""",
    ),
    "subscriptions": (
        "subscription",
        SubscriptionRow,
        """session INTEGER NOT NULL, topic_filter TEXT NOT NULL, qos INTEGER NOT NULL,
        no_local INTEGER NOT NULL, retain_as_published INTEGER NOT NULL,
        subscription_id INTEGER NOT NULL, is_retained_due INTEGER NOT NULL, sizes TEXT,
        PRIMARY KEY (session, topic_filter)""",
    ),
    "messages": (
        "message",
        MessageRow,
        """row INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB, qos INTEGER NOT NULL,
        retain INTEGER NOT NULL, arrived_at REAL NOT NULL, expires_at REAL, properties BLOB,
        publisher TEXT NOT NULL""",
    ),
    "deliveries": (
        "delivery",
        DeliveryRow,
        """row INTEGER PRIMARY KEY, session INTEGER NOT NULL, message INTEGER NOT NULL,
        qos INTEGER NOT NULL, retain INTEGER NOT NULL, subscription_ids TEXT,
        packet_id INTEGER NOT NULL, is_released INTEGER NOT NULL, share TEXT NOT NULL""",
    ),
    "incoming": (
        "incoming",
        IncomingRow,
        """session INTEGER NOT NULL, packet_id INTEGER NOT NULL,
        PRIMARY KEY (session, packet_id)""",
    ),
    "retained": ("retained", RetainedRow, "topic TEXT PRIMARY KEY, message INTEGER NOT NULL"),
    "wills": (
        "will",
        WillRow,
        """client_id TEXT PRIMARY KEY, username TEXT, listener TEXT NOT NULL,
        topic TEXT NOT NULL, payload BLOB NOT NULL, qos INTEGER NOT NULL, retain INTEGER NOT NULL,
        properties BLOB NOT NULL""",
    ),
}
"""The table, the class of its rows and the table's columns, by the field of `Stored`."""

_INSERTS: Final = {
    name: (
        f"INSERT OR REPLACE INTO {table} ({', '.join(kind._fields)}) VALUES ",  # noqa: S608 (names of ours)
        f"({', '.join('?' * len(kind._fields))})",
    )
    for name, (table, kind, _) in _TABLES.items()
}
"""The beginning of the statement that writes rows of a table, and the place for one row."""

FORMAT: Final = Format(
    application_id=0x50455353,
    version=1,
    schema=tuple(
        f"CREATE TABLE {name} ({columns}){'' if 'row INTEGER' in columns else ' WITHOUT ROWID'}"
        for name, _, columns in _TABLES.values()
    ),
)

_RELEASED: Final = "UPDATE delivery SET is_released = 1 WHERE row BETWEEN ? AND ?"
_MOVED: Final = "UPDATE delivery SET session = ?, packet_id = ?, is_released = ? WHERE row = ?"

_GONE: Final = (
    ("gone_sessions", "DELETE FROM session WHERE row = ?"),
    ("gone_sessions", "DELETE FROM subscription WHERE session = ?"),
    ("gone_sessions", "DELETE FROM incoming WHERE session = ?"),
    ("gone_subscriptions", "DELETE FROM subscription WHERE session = ? AND topic_filter = ?"),
    ("gone_incoming", "DELETE FROM incoming WHERE session = ? AND packet_id = ?"),
    ("gone_retained", "DELETE FROM retained WHERE topic = ?"),
    ("gone_wills", "DELETE FROM will WHERE client_id = ?"),
)
_GONE_ROWS: Final = (
    ("gone_deliveries", "DELETE FROM delivery WHERE row"),
    ("gone_messages", "DELETE FROM message WHERE row"),
)
_SMALL: Final = frozenset({"deliveries"})
"""These fields of a batch may hold very many rows of few bytes each."""

_OF_RUNS: Final = {"messages": "message_rows_of_runs", "deliveries": "delivery_rows_of_runs"}
"""These fields have further rows, by a method of the batch; these are small, too."""

LEAST_RANGE: Final = 4
"""Rows are deleted by ranges of their numbers where a range has so many rows on average."""

ROWS_AT_A_TIME: Final = 64
"""So many rows of `_SMALL` go into one call of SQLite. Each call releases the interpreter's lock
and must get it back from a thread that may keep it for 5 ms, so this halves the time for a
delivery. SQLite before 3.32 takes 999 values, and a delivery has nine."""

LOG_BYTES: Final = CHECKPOINT_PAGES * PAGE_BYTES
"""At this length the log is copied into the file."""
DELETE_BYTES: Final = LOG_BYTES
"""Messages leave so much of the disk free, as the file may grow by all that is in the log."""
RESERVE_BYTES: Final = DELETE_BYTES + LOG_BYTES
"""The reserve holds that, and a log for the pages that deleting changes."""
LEAST_BYTES: Final = RESERVE_BYTES - LOG_BYTES // 2
"""If less than this is left of a spent reserve, the log has taken it and is emptied. A log that was
emptied sooner would have to grow again at each commit."""
SPARE_PAGES: Final = 64
"""Messages leave so many free pages of the file to changes of stored rows."""

_NO_ROOM_FOR_INDEX: Final = (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP)
_EXCLUSIVE: Final = "locking_mode = EXCLUSIVE"
"""With this setting, SQLite keeps the log's index in memory."""


class DatabaseError(PenstockError):
    """The database cannot be used: the program ends with status 2, or a batch is not written.

    All of a batch is in the database, or nothing of it.
    """


class SessionDatabase(LockedDatabase):
    """One open database, for one thread at a time; any thread may call `read_payload`.

    Attributes:
        tightened: names of its files that other users could read until now.
        n_staying: payloads that `read` left in the database.
        room_bytes: bytes of messages for which there is room; `write` and `measure` set it.
    """

    what = "persistence database"
    allowed = (
        "a database of this broker that can be written, or a path where nothing is and a file can "
        "be made. To begin without what it holds, move the file away"
    )
    format = FORMAT
    error = full_error = DatabaseError
    pragmas: tuple[str, ...] = (f"cache_size = -{CACHE_KIB}",)

    _reserve: DiskReserve

    def __init__(self, path: str, *, is_flushed: bool) -> None:
        """Open the file, or create it; `is_flushed`: each commit is then on the disk.

        Raises:
            DatabaseError: the file is in use, not ours, damaged, or cannot be created.
        """
        reserve = DiskReserve(f"{behind_links(path)}.reserve", RESERVE_BYTES)
        super().__init__(path, "FULL" if is_flushed else "NORMAL", reserve)
        self.n_staying = 0
        self._measured_until = -math.inf
        self._turn = threading.Lock()
        self.tightened = self.open_file()
        (self._page_bytes,) = self._opened()[0].execute("PRAGMA page_size").fetchone()
        self.measure()

    def _prepare(self) -> None:
        try:
            super()._prepare()
        except sqlite3.Error as error:
            if error.sqlite_errorcode not in _NO_ROOM_FOR_INDEX or _EXCLUSIVE in self.pragmas:
                raise
            if not self._reserve.give_up():
                self.pragmas = (_EXCLUSIVE, *self.pragmas)
            self._prepare()

    def _start_clock(self) -> None:
        """Do nothing: `start_clock` needs the times of the rows."""

    def start_clock(self, clocks: Clocks, newest: float) -> StorageClock:
        """Start the clock of the database, which has reached the `newest` time of a row; return it.

        Raises:
            DatabaseError: the file is damaged.
        """
        try:
            self._clock = self._new_clock(clocks, newest)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return self._clock

    def store_clock(self) -> None:
        """Store the clock, as far as the disk takes it: it is stored again and again."""
        with self._turn:
            self._store_clock()

    def read(self, keep: Callable[[bytes], Payload]) -> Stored:
        """Return everything that the file holds.

        Args:
            keep: stores one payload and returns what stands for it. It gets one payload at a time,
                as all of them together may not fit into memory. Where it raises OSError, the
                payload stays in the database.

        Raises:
            DatabaseError: the file is damaged.
        """
        stored = Stored()
        connection, _ = self._opened()
        try:
            for name, (table, kind, _) in _TABLES.items():
                order = " ORDER BY row" if table == "delivery" else ""
                columns = ", ".join(kind._fields)
                rows = connection.execute(f"SELECT {columns} FROM {table}{order}")  # noqa: S608 (names of ours)
                with closing(rows):
                    found: Iterator[Any] = map(kind._make, rows)
                    if kind is MessageRow:
                        found = (self._kept(row, keep) for row in found)
                    setattr(stored, name, list(found))
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return stored

    def _kept(self, row: MessageRow, keep: Callable[[bytes], Payload]) -> MessageRow:
        """Return a message's row with what stands for its payload."""
        payload = row.payload
        if not isinstance(payload, bytes):
            return row
        try:
            return row._replace(payload=keep(payload))
        except OSError:
            self.n_staying += 1
            return row._replace(payload=StayingPayload(self, row.row, len(payload)))

    def read_payload(self, row: int, start: int, n_bytes: int) -> bytes:
        """Return a part of a stored message's payload. Any thread may call this.

        Raises:
            OSError: the row is gone, or SQLite cannot read it.
        """
        connection, _ = self._opened()
        try:
            with self._turn, connection.blobopen("message", "payload", row, readonly=True) as blob:
                blob.seek(start)
                return blob.read(n_bytes)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"a stored payload cannot be read: {error}") from error

    def write(self, batch: Batch) -> None:
        """Write a batch in one transaction; the same batch may be written again.

        Raises:
            DatabaseError: SQLite refused, or the file was deleted, replaced or emptied.
        """
        connection, _ = self._opened()
        self._check_there()
        with self._turn:
            try:
                self._write(connection, batch)
            except sqlite3.Error as error:
                self._measured_until = -math.inf
                self._write_again(connection, batch, error)
            finally:
                if self.room_bytes < PLENTY_BYTES or time.monotonic() > self._measured_until:
                    self._measure()
        self._check_there()

    def _write_again(
        self, connection: sqlite3.Connection, batch: Batch, error: sqlite3.Error
    ) -> None:
        """Write a batch that was refused, with the space of the reserve if that helps.

        Raises:
            DatabaseError: it is refused.
        """
        is_spent = is_out_of_space(error) and self._reserve.spend()
        self._shorten_log()
        if is_spent:
            try:
                return self._write(connection, batch)
            except sqlite3.Error as again:
                error = again
        raise self._failed(in_words(error)) from error

    def measure(self) -> None:
        """Look how much room there is, and reserve space again where there is enough.

        See `room_bytes`. A message needs its bytes in the log first, and then in free pages of the
        file or at its end. The file may grow only while the reserve is held, if there can be one.
        """
        with self._turn:
            self._measure()

    def _measure(self) -> None:
        self._measured_until = time.monotonic() + MEASURED_SECONDS
        connection, file = self._opened()
        try:
            (n_free,) = connection.execute("PRAGMA freelist_count").fetchone()
            on_disk = _left_on_disk(file.path)
            if not self._reserve.is_held:
                if on_disk < LEAST_BYTES and on_disk + file.log_bytes >= RESERVE_BYTES:
                    self._shorten_log()
                    on_disk = _left_on_disk(file.path)
                if on_disk >= RESERVE_BYTES and self._reserve.hold():
                    on_disk = _left_on_disk(file.path)
        except (OSError, sqlite3.Error, DatabaseFileError):
            self.room_bytes = 0
            return
        in_file = max(0, n_free - SPARE_PAGES) * self._page_bytes
        for_log = on_disk - DELETE_BYTES
        if self._reserve.is_held and self._reserve.is_possible:
            for_log += RESERVE_BYTES
        growth = on_disk if self._reserve.is_held or not self._reserve.is_possible else 0
        self.room_bytes = max(0, min(for_log, (for_log + in_file) // 2, in_file + growth))

    def _write(self, connection: sqlite3.Connection, batch: Batch) -> None:
        with transaction(connection):
            # First, as new rows take the pages of deleted ones. No batch puts what it deletes.
            for name, statement in _GONE_ROWS:
                if row_numbers := getattr(batch, name):
                    _delete_many(connection, statement, row_numbers)
            for name, statement in _GONE:
                keys = getattr(batch, name)
                if keys:
                    connection.executemany(statement, keys)
            for name, (head, place) in _INSERTS.items():
                rows = getattr(batch, name)
                if name in _OF_RUNS:
                    _write_many(connection, head, place, list(getattr(batch, _OF_RUNS[name])()))
                if name in _SMALL:
                    _write_many(connection, head, place, rows)
                elif rows:
                    connection.executemany(head + place, rows)
            if batch.released:
                connection.executemany(_RELEASED, batch.released)
            if batch.moved_deliveries:
                moved = iter(batch.moved_deliveries)
                connection.executemany(_MOVED, zip(moved, moved, moved, moved, strict=True))


def _write_many(
    connection: sqlite3.Connection, head: str, place: str, rows: Sequence[Sequence[object]]
) -> None:
    """Write rows, `ROWS_AT_A_TIME` in a statement; of the rest half as many, and so on."""
    n_done, n_rows = 0, ROWS_AT_A_TIME
    while n_done < len(rows):
        while n_rows > len(rows) - n_done:
            n_rows //= 2
        values = list(chain.from_iterable(rows[n_done : n_done + n_rows]))
        connection.execute(head + ", ".join([place] * n_rows), values)
        n_done += n_rows


def _delete_many(connection: sqlite3.Connection, statement: str, keys: array[int]) -> None:
    """Delete rows by their numbers: by ranges, where most of them follow each other."""
    ranges: list[list[int]] = []
    for key in keys:
        if ranges and key == ranges[-1][1] + 1:
            ranges[-1][1] = key
        else:
            ranges.append([key, key])
    if len(ranges) * LEAST_RANGE <= len(keys):
        connection.executemany(f"{statement} BETWEEN ? AND ?", ranges)
        return
    for first in range(0, len(keys), ROWS_AT_A_TIME):
        some = keys[first : first + ROWS_AT_A_TIME].tolist()
        connection.execute(f"{statement} IN ({', '.join('?' * len(some))})", some)


def _left_on_disk(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@dataclass(eq=False, slots=True)
class StayingPayload:
    """A payload that is read from the database as it is sent.

    See `penstock.broker.payload.StoredPayload`. The message's row exists as long as anything refers
    to the stored message.
    """

    _database: SessionDatabase
    _row: int
    _n_bytes: int

    def __len__(self) -> int:
        return self._n_bytes

    def read(self) -> bytes:
        """Return the payload.

        Raises:
            OSError: it cannot be read.
        """
        return self._database.read_payload(self._row, 0, self._n_bytes)

    def read_piece(self, start: int) -> bytes:
        """Return a piece of the payload.

        Raises:
            OSError: it cannot be read.
        """
        return self._database.read_payload(
            self._row, start, min(PIECE_BYTES, self._n_bytes - start)
        )
