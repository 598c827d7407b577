"""Copies of a queue's database: backup and restore.

A copy is marked. Who opens it gives its queues new incarnations: the offsets that it will give to
new messages were those of others, after the copy was made, and readers may have read these.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from penstock.broker.durable.database_file import (
    BUSY_SECONDS,
    DatabaseFile,
    DatabaseFileError,
    connect,
    in_words,
    set_up,
)
from penstock.plugins.queue.engines.contract import (
    BackupExistsError,
    BackupFolderError,
    EngineStartError,
    StorageError,
)
from penstock.plugins.queue.engines.sqlite_format import FORMAT
from penstock.plugins.queue.engines.store import COPIED


def backup(database: str, path: str, busy_seconds: float = BUSY_SECONDS) -> int:
    """Copy a database that may be in use to a new file; return its bytes.

    Raises:
        BackupExistsError: there is a file.
        BackupFolderError: none can be made there.
        StorageError: there is no copy.
    """
    with closing(_connect(database, busy_seconds, f"backup to {path}")) as source:
        return _copy(source, path, f"backup to {path}", lambda _: None)


def restore(copy: str, path: str) -> int:
    """Put a copy of a database where a policy file has its database; return how many queues it has.

    The copy stays. It may have been made by other means than `backup`.

    Raises:
        EngineStartError: the copy is no queue's database, or the place is not free.
        StorageError: it cannot be written there.
    """
    what = f"restore {copy} to {path}"
    if not Path(copy).is_file():
        raise EngineStartError(f"{what}: read no file; allowed: a copy of a queue's database")
    try:
        file = DatabaseFile(path)
    except DatabaseFileError as error:
        raise EngineStartError(f"{what}: {error}") from error
    try:
        if Path(file.path).stat().st_size:
            raise EngineStartError(
                f"{what}: read a database there; allowed: none. Move it away, with {path}-wal and "
                f"{path}-shm"
            )
        Path(file.path).unlink()  # the empty file that taking the lock has made
        with closing(_connect(copy, BUSY_SECONDS, what)) as source:
            try:
                (application_id,) = source.execute("PRAGMA application_id").fetchone()
            except sqlite3.Error as error:
                raise EngineStartError(f"{what}: {in_words(error)}") from error
            if application_id != FORMAT.application_id:
                raise EngineStartError(
                    f"{what}: read something else; allowed: a copy of a queue's database"
                )
            _copy(source, file.path, what, lambda target: set_up(target, FORMAT))
        with closing(_connect(file.path, BUSY_SECONDS, what)) as restored:
            (n_queues,) = restored.execute("SELECT count(*) FROM logical_queue").fetchone()
    finally:
        file.close()
    return int(n_queues)


def _connect(path: str, busy_seconds: float, what: str) -> sqlite3.Connection:
    try:
        return connect(path, busy_seconds)
    except sqlite3.Error as error:
        raise StorageError(f"{what}: {in_words(error)}") from error


def _copy(
    source: sqlite3.Connection, path: str, what: str, prepare: Callable[[sqlite3.Connection], None]
) -> int:
    there = f"{what}: read a file; allowed: a path without one"
    if os.path.lexists(path):
        raise BackupExistsError(there)
    with _part_of(path, what) as part:
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as target:
                source.backup(target, pages=-1)
                prepare(target)
                target.execute("INSERT OR REPLACE INTO meta VALUES (?, '1')", (COPIED,))
            with Path(part).open("rb+") as written:
                os.fsync(written.fileno())
            try:
                os.link(part, path)  # unlike a rename, it replaces nothing
            except FileExistsError as error:
                raise BackupExistsError(there) from error
            return Path(path).stat().st_size
        except (OSError, DatabaseFileError) as error:
            raise StorageError(f"{what}: {error}") from error
        except sqlite3.Error as error:
            raise StorageError(f"{what}: {in_words(error)}") from error


@contextmanager
def _part_of(path: str, what: str) -> Iterator[str]:
    """Make a file beside one that is to be written; delete it afterwards."""
    folder, name = os.path.split(path)
    try:
        descriptor, part = tempfile.mkstemp(".part", f"{name}.", folder or ".")
    except OSError as error:
        raise BackupFolderError(
            f"{what}: {error.strerror}; allowed: a new file in a folder that is there, to which "
            "the user of the server may write"
        ) from error
    os.close(descriptor)
    try:
        yield part
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(part + suffix).unlink()
