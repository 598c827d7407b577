"""An SQLite file that one process has at a time, and one thread at a time uses.

Each transaction is on the disk when it returns, and the file is then still where it was: see
`penstock.broker.durable.database_file`. The methods block, but for those that tell the time.

The file has a clock of its own, by which deadlines are kept; see
`penstock.broker.durable.storage_clock`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, Final, TypeVar

from penstock.broker.durable.database_file import (
    BUSY_SECONDS,
    PAGE_BYTES,
    DatabaseFile,
    DatabaseFileError,
    Format,
    connect,
    copy_database,
    in_words,
    is_out_of_space,
    set_up,
    transaction,
)
from penstock.broker.durable.disk_reserve import DiskReserve
from penstock.broker.durable.storage_clock import Clocks, StorageClock
from penstock.broker.errors import PenstockError

T = TypeVar("T")

_CLOCK_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 0), text TEXT NOT NULL)"
)
SPARE_PAGES: Final = 1_000
"""A file keeps so many unused pages, 8 MB."""


class LockedDatabase:
    """The file; a subclass has the tables and what is done with them.

    Attributes:
        what: the word for the file in errors, such as ``spool``.
        allowed: the paths that are allowed, for errors.
        format: the format of the file.
        error: raised where the file cannot be used or written; the message names it.
        full_error: the error that is raised where the disk is full, a subclass of `error`.
        pragmas: settings of SQLite that a new file needs before its tables.
        name: the file in messages.
    """

    what: ClassVar[str]
    allowed: ClassVar[str]
    format: ClassVar[Format]
    error: ClassVar[type[PenstockError]]
    full_error: ClassVar[type[PenstockError]]
    pragmas: tuple[str, ...] = ("auto_vacuum = INCREMENTAL",)

    def __init__(
        self,
        path: str,
        synchronous: str = "FULL",
        reserve: DiskReserve | None = None,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """Name the file; `open_file` follows.

        `synchronous` is SQLite's setting of that name, ``FULL`` or ``NORMAL``. The `reserve` is
        space that the file keeps for deleting. Another program that writes is waited for.
        """
        self.name = f"{self.what} {path}"
        self._path = path
        self._synchronous = synchronous
        self._reserve = reserve
        self._busy_seconds = busy_seconds
        self._file: DatabaseFile | None = None
        self._connection: sqlite3.Connection | None = None
        self._clock: StorageClock | None = None

    def open_file(self) -> list[str]:
        """Open the file, or create it.

        Returns:
            Names of its files that other users could read until then.

        Raises:
            PenstockError: `error`: it cannot be used.
        """
        try:
            self._file = DatabaseFile(self._path)
            try:
                self._prepare()
            except sqlite3.Error:
                # On a full disk, even the index of a log needs space.
                if self._reserve is None or not self._reserve.give_up():
                    raise
                self._prepare()
            self._file.watch()
            if self._reserve is not None:
                self._reserve.hold()
            self._start_clock()
        except DatabaseFileError as error:
            self.close()
            raise self._failed(str(error)) from error
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from error
        return self._file.tightened

    def _failed(self, told: str) -> PenstockError:
        return self.error(f"{self.name}: {told}")

    def _unusable(self, error: sqlite3.Error) -> PenstockError:
        return self._failed(f"read {in_words(error)}; allowed: {self.allowed}")

    def _prepare(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = connection = connect(self._path, self._busy_seconds)
        for pragma in (f"page_size = {PAGE_BYTES}", *self.pragmas):
            connection.execute(f"PRAGMA {pragma}")
        set_up(connection, self.format)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _start_clock(self) -> None:
        self._clock = self._new_clock(Clocks())
        self._store_clock()

    def _new_clock(self, clocks: Clocks, at_least: float = 0.0) -> StorageClock:
        """Return a clock that goes on with the stored one; a new one begins at the wall time.

        It has certainly reached `at_least` seconds.
        """
        connection, _ = self._opened()
        with suppress(sqlite3.Error):  # on a full disk
            connection.execute(_CLOCK_TABLE)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'clock'")
        row = None
        if tables.fetchone() is not None:  # else there was no room for the table
            row = connection.execute("SELECT text FROM clock").fetchone()
        text = "" if row is None else str(row[0])
        reached = at_least if text else max(at_least, clocks.wall())
        return StorageClock(clocks, text, reached, is_off_counted=True)

    def _store_clock(self) -> None:
        """Store the clock, as far as the disk takes it."""
        if self._connection is not None and self._clock is not None:
            with suppress(sqlite3.Error):
                text = self._clock.stored_text()
                self._connection.execute("INSERT OR REPLACE INTO clock VALUES (0, ?)", (text,))

    def now(self) -> float:
        """Return the seconds of the file's clock. Any thread may call this once it is open.

        Raises:
            PenstockError: `error`: it is closed.
        """
        if self._clock is None:
            raise self._failed("it is closed")
        return self._clock()

    def attended(self) -> float:
        """Return the same without the time for which no program had the file open."""
        now = self.now()
        return now if self._clock is None else now - self._clock.away

    def copy_to(self, path: str) -> int:
        """Copy the file, as of one moment, to a new one; any thread may call it. Return its bytes.

        Raises:
            PenstockError: `error`: there is no copy.
        """
        try:
            return copy_database(self._path, path)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(f"backup to {path}: {error}") from error

    def close(self) -> None:
        """Close the file; may be called again."""
        self._store_clock()
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        if self._file is not None:
            self._file.close()
        self._connection = self._file = None

    def _opened(self) -> tuple[sqlite3.Connection, DatabaseFile]:
        """Return the connection and the file.

        Raises:
            PenstockError: `error`: it is closed.
        """
        if self._connection is None or self._file is None:
            raise self._failed("it is closed")
        return self._connection, self._file

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction.

        Raises:
            PenstockError: `error` or `full_error`: nothing is stored, or the file was deleted.
        """
        connection, _ = self._opened()
        self._check_there()
        with self._explaining(), transaction(connection):
            yield connection
        self._check_there()  # else what is written would be lost at the end of the process

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raise what SQLite raises in a block as `error` or `full_error`."""
        try:
            yield
        except sqlite3.Error as error:
            kind = self.full_error if is_out_of_space(error) else self.error
            raise kind(f"{self.name}: {in_words(error)}") from error

    def why_lost(self) -> str:
        """Name the file that was deleted, replaced or emptied; "" for none. Any thread may ask."""
        lost = "" if self._file is None else self._file.why_lost()
        return f"{self.name}: {lost}" if lost else ""

    def _check_there(self) -> None:
        if lost := self.why_lost():
            raise self.error(lost)

    # -- a full disk ---------------------------------------------------------------------------

    def _with_space(self, change: Callable[[], T], *, is_urgent: bool = True) -> T:
        """Make a change; where the disk is full, with any space that can be found for it.

        Args:
            change: run again when there is more space.
            is_urgent: whether the reserve may be spent on it.

        Raises:
            PenstockError: `error` or `full_error`: the change was not made.
        """
        try:
            return change()
        except self.full_error:
            self._shorten_log()
        try:
            return change()
        except self.full_error:
            if not is_urgent or self._reserve is None or not self._reserve.spend():
                raise
        return change()

    def _hold_reserve(self) -> None:
        """Check that there is space in addition to the reserve.

        Raises:
            PenstockError: `full_error`: there is none; `error`: its path is not usable.
        """
        reserve = self._reserve
        try:
            if reserve is None or reserve.hold():
                return
            self._shorten_log()
            if reserve.hold():
                return
        except DatabaseFileError as error:
            raise self._failed(str(error)) from error
        raise self.full_error(
            f"{self.name}: the disk has less than the {reserve.n_bytes:,} bytes left that are kept "
            "for deleting"
        )

    def _shorten_log(self) -> None:
        """Move the write-ahead log's contents into the file, and free its space."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- space that is not used ----------------------------------------------------------------

    def _trim(self) -> None:
        """Give unused space back to the file system, but for `SPARE_PAGES`; store the clock.

        Raises:
            PenstockError: `error`: the file cannot be written.
        """
        connection, _ = self._opened()
        self._store_clock()
        with self._explaining():
            (n_free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if n_free > SPARE_PAGES:
                # Each step of the statement frees a page; `execute` makes only one.
                connection.executescript(f"PRAGMA incremental_vacuum({n_free - SPARE_PAGES})")
