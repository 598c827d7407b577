"""The file of the SQLite store: its format, creation and checks."""

from __future__ import annotations

import sqlite3
from typing import Final

from penstock.plugins.queue.engine import EngineStartError

APPLICATION_ID: Final = 0x50455154
"""In the file's header, so that another program's database is not taken for a queue."""
SCHEMA_VERSION: Final = 1
PAGE_BYTES: Final = 8192
"""Half as many pages as the default for the same segments, and fewer links between them."""
CHECKPOINT_PAGES: Final = 1000
"""8 MiB of write-ahead log: a checkpoint then delays the commit after it by some ten milliseconds,
not hundreds."""
LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Size to which the write-ahead log is cut after a reader has made it grow."""
BUSY_SECONDS: Final = 5.0
"""How long a write waits for another program that has locked the file, such as a backup."""

_SCHEMA: Final = (
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
)


def connect(path: str, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open a connection, for use by one thread at a time.

    Args:
        path: name of the database.
        busy_seconds: how long to wait for another program that writes to it.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    return sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Set a new file up, or check that it is one of ours.

    Raises:
        EngineStartError: it is not, or its file system cannot be used.
        sqlite3.Error: it cannot be read or written.
    """
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if n_tables and application_id != APPLICATION_ID:
        raise EngineStartError(
            f"queue database {path}: read another program's database; allowed: a queue's, or a "
            "path where nothing is"
        )
    if n_tables and version != SCHEMA_VERSION:
        raise EngineStartError(
            f"queue database {path}: read format {version}; allowed: {SCHEMA_VERSION}"
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise EngineStartError(
            f"queue database {path}: read journal mode {mode}; allowed: a file system that can "
            "share memory, which network file systems cannot"
        )
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
    # Some builds overwrite deleted data, which doubles the writes.
    connection.execute("PRAGMA secure_delete = OFF")
    if not n_tables:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
