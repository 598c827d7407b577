"""The files of an SQLite database: permissions, lock, format, and a watch for deleted files.

Theory of operation. SQLite opens its files by name and uses the descriptors from then on. It goes
on writing to a file that was deleted or replaced, and everything written there is lost when the
process ends. So the names are checked before and after each commit: a commit to a file that has
lost its name is not reported as stored.

A link to the database is followed, as SQLite does. Beside the file itself lie its write-ahead log
``-wal``, the log's index ``-shm``, and a ``.lock`` by which one process has all of them at a time.
The system releases the lock when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

from penstock.broker.errors import PenstockError

_LOGGER: Final = logging.getLogger("penstock.database")

PRIVATE_MODE: Final = 0o600
"""Only their owner has access to files that hold messages."""

PAGE_BYTES: Final = 8192
"""Twice the default: large rows need half as many pages, with fewer links between them."""
CHECKPOINT_PAGES: Final = 1000
"""The write-ahead log has 8 MiB before a checkpoint, which then delays the commit behind it by some
ten milliseconds, not hundreds."""
LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""The write-ahead log is cut to this size after a reader has let it grow."""
BUSY_SECONDS: Final = 5.0
"""A write waits so long for another program that has locked the file, such as a backup."""

_NO_SPACE: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
)
"""SQLite's extended result codes for a disk without space."""

_LOG: Final = "-wal"
_SUFFIXES: Final = ("", _LOG, "-shm")


class DatabaseFileError(PenstockError):
    """A file cannot be used; the message names it, what was read and what is allowed."""


def open_private(path: str) -> int:
    """Open a file that only this program uses, or create it; return its descriptor.

    The directory may be writable by others. A link there could lead to another file, which would be
    overwritten, so links are refused.

    Raises:
        DatabaseFileError: the name is a link, is no regular file, or the file has a second name.
        OSError: the file cannot be opened or created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    allowed = "allowed: no file, or one with only this name"
    try:
        descriptor = os.open(path, flags, PRIVATE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DatabaseFileError(f"{path}: read a symbolic link; {allowed}") from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    read = "a file with several names" if stat.S_ISREG(status.st_mode) else "no regular file"
    raise DatabaseFileError(f"{path}: read {read}; {allowed}")


def behind_links(path: str) -> str:
    """Return the name of the file behind a link; any other name is returned as it is."""
    return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114


class DatabaseFile:
    """The files of one database, locked until `close`.

    Attributes:
        path: name of the database with links resolved: two links to one file are one database.
        tightened: names of the files that other users could read until now.
    """

    def __init__(self, path: str) -> None:
        """Take the lock on ``PATH.lock``, and create an empty database where there is none.

        A file that cannot be created is left to SQLite, whose error message explains it better.

        Raises:
            DatabaseFileError: another process has the database, a file cannot be used, or the
                database is missing beside its log.
        """
        self.path = path = behind_links(path)
        self.tightened: list[str] = []
        self._is_filled = False
        self._watched: dict[str, tuple[int, int]] = {}
        self._descriptor = -1
        had_lock = os.path.lexists(f"{path}.lock")
        self._lock = self._take_lock()
        try:
            self._check_log()
            self._tell_if_empty(was_used=had_lock)
            with suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(path, flags, PRIVATE_MODE)
            self._tighten()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> int:
        name = f"{self.path}.lock"
        try:
            lock = open_private(name)
        except OSError as error:
            raise DatabaseFileError(
                f"{name} cannot be written: {error.strerror}; allowed: a path in a directory that "
                "is there, where this user may write"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
            os.close(lock)
            raise DatabaseFileError(
                f"in use by process {holder or 'unknown'}; allowed: one process at a time, each "
                "with a path of its own"
            ) from error
        os.ftruncate(lock, 0)
        with suppress(OSError):  # on a full disk; the lock does not need it
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock

    def _check_log(self) -> None:
        """Refuse a log without its database: SQLite deletes a log beside an empty database.

        Raises:
            DatabaseFileError: SQLite would delete the log.
        """
        name = f"{self.path}{_LOG}"
        n_bytes = _size(name)
        if n_bytes and not _size(self.path):
            raise DatabaseFileError(
                f"read no database, or an empty one, beside {name} of {n_bytes:,} bytes; allowed: "
                "both files, or neither. Put the database back to keep what it held; to begin "
                f"without, move {name} away"
            )

    def _tell_if_empty(self, *, was_used: bool) -> None:
        """Log that nothing is restored: the start may be in another folder, or a copy has failed.

        It `was_used` where its lock file was there before.
        """
        place = os.path.abspath(self.path)  # noqa: PTH100
        if not os.path.lexists(self.path):
            if was_used:
                _LOGGER.warning("%s is gone, and its lock file is there: it begins empty", place)
            else:
                _LOGGER.info("%s: no database is there, a new one begins empty", place)
        elif not _size(self.path):
            _LOGGER.warning(
                "%s has no bytes: it begins empty; if it held anything, stop and put a copy back",
                place,
            )

    def _tighten(self) -> None:
        """Take all access to the files from group and others, where others could read them.

        A group that may read them while others may not was given that on purpose.
        """
        for suffix in _SUFFIXES:
            name = self.path + suffix
            with suppress(OSError):  # the file is missing, or belongs to another user
                mode = stat.S_IMODE(os.stat(name).st_mode)  # noqa: PTH116 (beside other calls of os)
                if mode & stat.S_IRWXO:
                    os.chmod(name, mode & stat.S_IRWXU)  # noqa: PTH101
                    self.tightened.append(name)

    def watch(self) -> None:
        """Remember which files SQLite has open, for `why_lost`."""
        for name in (self.path, f"{self.path}{_LOG}"):
            found = _status(name)
            if found is not None:
                self._watched[name] = found.st_dev, found.st_ino
        self._is_filled = _size(self.path) > 0

    def why_lost(self) -> str:
        """Name the file that was deleted, replaced or emptied since `watch`; "" where none was.

        Any thread may call this.
        """
        n_bytes = 0
        for name, identity in self._watched.items():
            found = _status(name)
            if found is None or (found.st_dev, found.st_ino) != identity:
                return (
                    f"{name} was deleted or replaced: what is written would be lost; put it back, "
                    "or stop and start again"
                )
            if name == self.path:
                n_bytes = found.st_size
        if self._is_filled and not n_bytes:
            return (
                f"{self.path} was emptied: what is written would be lost; stop, and put a copy back"
            )
        return ""

    @property
    def log_bytes(self) -> int:
        """Length of the write-ahead log, the part that is not in use included."""
        return _size(f"{self.path}{_LOG}")

    def flush(self) -> None:
        """Flush what was written to the database itself to the disk. Any thread may call this.

        Raises:
            OSError: the disk has failed.
        """
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Release the lock; may be called once, when SQLite has closed the database.

        To close any descriptor of the database releases SQLite's own locks on it.
        """
        if self._descriptor >= 0:
            os.close(self._descriptor)
        os.close(self._lock)


class Format(NamedTuple):
    """The contents of one of Penstock's databases.

    Attributes:
        application_id: stands in the file's header, so that no other program's database is used.
        version: the version of the schema.
        schema: statements that create the tables.
    """

    application_id: int
    version: int
    schema: tuple[str, ...]


def connect(path: str, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open a connection, for use by one thread at a time.

    It waits for `busy_seconds` for another program that writes to the database.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    return sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )


def copy_database(path: str, to: str) -> int:
    """Copy a database, which may be in use, to a new file, as of one moment; return its bytes.

    Raises:
        sqlite3.Error: there is no copy.
        OSError: it is not on the disk.
    """
    with closing(connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target, pages=-1)
    descriptor = os.open(to, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return _size(to)


def set_up(connection: sqlite3.Connection, database: Format) -> None:
    """Set a new file up, or check that it is one of ours.

    Raises:
        DatabaseFileError: it is not, or its file system cannot be used.
        sqlite3.Error: it cannot be read or written.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if n_tables and application_id != database.application_id:
        raise DatabaseFileError(
            "read another program's database; allowed: one that was made here, or a path where "
            "nothing is"
        )
    if n_tables and version != database.version:
        raise DatabaseFileError(
            f"read format {version}; allowed: {database.version}. It was written by "
            "another version of Penstock: start that, or move the file away to begin without what "
            "it holds"
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise DatabaseFileError(
            f"read journal mode {mode}; allowed: a file system that can share memory, which "
            "network file systems cannot"
        )
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
    # Some builds overwrite deleted data, which doubles the writes.
    connection.execute("PRAGMA secure_delete = OFF")
    # The write lock, so that a read-only file is refused at the start.
    with transaction(connection):
        if not n_tables:
            for statement in database.schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {database.application_id}")
            connection.execute(f"PRAGMA user_version = {database.version}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a block in one transaction: all of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself after some errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def in_words(error: sqlite3.Error) -> str:
    """Return SQLite's text for an error, with the error's name."""
    return f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"


def is_out_of_space(error: sqlite3.Error) -> bool:
    """Say whether SQLite found no space for what it was to write.

    SQLite tells a full disk alone by that name. A quota, a limit of the size of files and a disk
    that finds out late that it is full are write errors to it, and so is a disk that is broken. The
    index of the log has an error of its own.
    """
    return getattr(error, "sqlite_errorcode", 0) in _NO_SPACE


def _size(name: str) -> int:
    found = _status(name)
    return 0 if found is None else found.st_size


def _status(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116
    except OSError:
        return None
