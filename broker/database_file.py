"""The files of an SQLite database: who may read them, who has them, and whether they are there.

Theory of operation. SQLite opens its files by name and from then on by descriptor. It goes on
writing to a file that somebody has deleted or replaced, and all of that is gone with the process.
So the names are looked up before and after each commit: what was written to a file without its name
is not reported as stored. A link to the database is followed, as SQLite does: beside the file
itself lie its write-ahead log ``-wal``, the log's index
``-shm``, and a ``.lock`` by which one process has all of them at a time; the lock goes with the
process, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import Final

from penstock.broker.errors import PenstockError

PRIVATE_MODE: Final = 0o600
"""Of files that hold messages: their owner's alone."""

_LOG: Final = "-wal"
_SUFFIXES: Final = ("", _LOG, "-shm")


class DatabaseFileError(PenstockError):
    """A file cannot be used: which, what was read and what is allowed."""


def open_private(path: str) -> int:
    """Open a file that nobody else has a use for, or make it; return its descriptor.

    The name may lie where others may write: a link would lead to a file of theirs, or of ours, that
    is then overwritten.

    Args:
        path: name of the file.

    Raises:
        DatabaseFileError: it is a link, or no file, or has a second name.
        OSError: it cannot be opened or made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    allowed = "allowed: nothing, or a file with this name alone"
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
    """Return the name of the file itself, as it was written where it is no link."""
    return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114


class DatabaseFile:
    """The files of one database, held by a lock until `close`.

    Attributes:
        path: name of the database, without links: two that lead to one file are one database.
        tightened: names of the files that others could read, and no longer can.
    """

    def __init__(self, path: str) -> None:
        """Take the lock, and make the database, empty, where there is none.

        What cannot be made is left to SQLite, which explains it better.

        Args:
            path: name of the database; the lock is on ``PATH.lock``.

        Raises:
            DatabaseFileError: another process has it, a file cannot be used, or the database is
                missing beside its log.
        """
        self.path = path = behind_links(path)
        self.tightened: list[str] = []
        self._is_filled = False
        self._watched: dict[str, tuple[int, int]] = {}
        self._lock = self._take_lock()
        try:
            self._check_log()
            with suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
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
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock

    def _check_log(self) -> None:
        """See that SQLite does not throw the log away, as it does beside an empty database.

        Raises:
            DatabaseFileError: it would.
        """
        name = f"{self.path}{_LOG}"
        n_bytes = _size(name)
        if n_bytes and not _size(self.path):
            raise DatabaseFileError(
                f"read no database, or an empty one, beside {name} of {n_bytes:,} bytes; allowed: "
                "both files, or neither. Put the database back to keep what it held; to begin "
                f"without, move {name} away"
            )

    def _tighten(self) -> None:
        """Take the files from everybody else, where everybody could read them.

        A group that may read them was given that on purpose, with nothing for the others.
        """
        for suffix in _SUFFIXES:
            name = self.path + suffix
            with suppress(OSError):  # it is not there, or another user's
                mode = stat.S_IMODE(os.stat(name).st_mode)  # noqa: PTH116 (beside other calls of os)
                if mode & stat.S_IRWXO:
                    os.chmod(name, mode & stat.S_IRWXU)  # noqa: PTH101
                    self.tightened.append(name)

    def watch(self) -> None:
        """Take the database and its log, which SQLite has open, for those that belong here."""
        for name in (self.path, f"{self.path}{_LOG}"):
            identity = _identity(name)
            if identity is not None:
                self._watched[name] = identity
        self._is_filled = _size(self.path) > 0

    def why_lost(self) -> str:
        """Say which file was deleted, replaced or emptied since `watch`; "" for none.

        Any thread may ask.
        """
        for name, identity in self._watched.items():
            if _identity(name) != identity:
                return (
                    f"{name} was deleted or replaced: what is written would be lost; put it back, "
                    "or stop and start again"
                )
        if self._is_filled and not _size(self.path):
            return (
                f"{self.path} was emptied: what is written would be lost; stop, and put a copy back"
            )
        return ""

    def close(self) -> None:
        """Let go of the lock; not called twice."""
        os.close(self._lock)


def _size(name: str) -> int:
    try:
        return os.stat(name).st_size  # noqa: PTH116
    except OSError:
        return 0


def _identity(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino
