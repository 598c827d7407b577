"""Parts on the disk, in an SQLite file for one process.

Each method is one transaction, which is on the disk when it returns (``synchronous=FULL``). The
methods block; one thread at a time calls them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Final, NamedTuple

from penstock.broker.durable.database_file import (
    DatabaseFile,
    DatabaseFileError,
    Format,
    connect,
    in_words,
    set_up,
    transaction,
)
from penstock.broker.errors import PenstockError
from penstock.edge_proxy.parts.assembly import Assembly, Span
from penstock.edge_proxy.parts.part import Part, Trailer

FORMAT: Final = Format(
    application_id=0x50617274,
    version=1,
    schema=(
        # packet_id: of the PUBLISH of the whole message, once it may have been sent.
        """CREATE TABLE message (
            number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, topic TEXT NOT NULL,
            total_bytes INTEGER NOT NULL, qos INTEGER NOT NULL, retain INTEGER NOT NULL,
            digest BLOB, properties BLOB, marks BLOB NOT NULL, expires_at REAL,
            last_at REAL NOT NULL, packet_id INTEGER)""",
        """CREATE TABLE piece (
            message INTEGER NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL,
            n_bytes INTEGER NOT NULL)""",
        "CREATE UNIQUE INDEX piece_place ON piece (message, start, n_bytes)",
        # packet_id: of the PUBLISH of the message, while its PUBREL may not have been taken.
        """CREATE TABLE ended (
            id BLOB PRIMARY KEY, reason TEXT NOT NULL, at REAL NOT NULL, packet_id INTEGER)""",
        # A message that is being cut, by its packet identifier in the session that it comes from.
        """CREATE TABLE cutting (
            packet_id INTEGER PRIMARY KEY, id BLOB NOT NULL, sent_bytes INTEGER NOT NULL)""",
    ),
)

SPARE_PAGES: Final = 1_000
"""Unused pages that the file keeps, 8 MB."""


class SpoolError(PenstockError):
    """The file cannot be used or written; the message names it."""


class Spooled(NamedTuple):
    """A message of the spool.

    Attributes:
        number: by which the spool knows it; they grow.
        assembly: what has come of it.
        marks: properties of its parts that belong to the whole, in the form of MQTT 5.
        expires_at: seconds since 1970; None where it does not expire.
        last_at: the same, at which its last part came.
        packet_id: of the PUBLISH of the whole message, which may have been sent; None before.
    """

    number: int
    assembly: Assembly
    marks: bytes
    expires_at: float | None
    last_at: float
    packet_id: int | None


class Ended(NamedTuple):
    """A message that was delivered or dropped.

    Attributes:
        message_id: of the message.
        reason: why it was dropped; "" where it was delivered.
        at: seconds since 1970.
        packet_id: of a PUBLISH of QoS 2 that is to be released; None for none.
    """

    message_id: bytes
    reason: str
    at: float
    packet_id: int | None


class Piece(NamedTuple):
    """Bytes to be stored.

    Attributes:
        number: of their message.
        start: where they stand in its payload.
        data: they.
    """

    number: int
    start: int
    data: bytes | memoryview


class Spool:
    """The file.

    Args:
        path: its name.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: DatabaseFile | None = None
        self._connection: sqlite3.Connection | None = None

    def open(self) -> list[str]:
        """Open the file, or create it.

        Returns:
            Names of its files that other users could read until now.

        Raises:
            SpoolError: it cannot be used.
        """
        try:
            self._file = DatabaseFile(self._path)
            self._connection = connection = connect(self._path)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            set_up(connection, FORMAT)
            connection.execute("PRAGMA synchronous = FULL")
            self._file.watch()
        except DatabaseFileError as error:
            self.close()
            raise SpoolError(f"spool {self._path}: {error}") from error
        except sqlite3.Error as error:
            self.close()
            raise SpoolError(
                f"spool {self._path}: {in_words(error)}; allowed: a path where the file is, or "
                "where one can be created"
            ) from error
        return self._file.tightened

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        if self._file is not None:
            self._file.close()
        self._connection = self._file = None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        connection, file = self._opened()
        self._check_there(file)
        try:
            with transaction(connection):
                yield connection
        except sqlite3.Error as error:
            raise SpoolError(f"spool {self._path}: {in_words(error)}") from error
        self._check_there(file)

    def _opened(self) -> tuple[sqlite3.Connection, DatabaseFile]:
        if self._connection is None or self._file is None:
            raise SpoolError(f"spool {self._path}: it is closed")
        return self._connection, self._file

    def _check_there(self, file: DatabaseFile) -> None:
        lost = file.why_lost()
        if lost:
            raise SpoolError(f"spool {self._path}: {lost}")

    # -- messages that are put together --------------------------------------------------------

    def messages(self) -> list[Spooled]:
        """Return all messages, oldest first."""
        found = []
        with self._writing() as connection:
            for row in connection.execute("SELECT * FROM message ORDER BY number").fetchall():
                number, message_id, topic, total_bytes, qos, retain, digest, properties, *rest = row
                trailer = None if digest is None else Trailer(digest, properties)
                first = Part(message_id, 0, total_bytes, qos, bool(retain), None, b"")
                assembly = Assembly(first, topic)
                assembly.trailer = trailer
                for start, n_bytes in connection.execute(
                    "SELECT start, n_bytes FROM piece WHERE message = ? ORDER BY start", (number,)
                ):
                    assembly.add_span(Span(start, start + n_bytes))
                found.append(Spooled(number, assembly, *rest))
        return found

    def ended(self) -> list[Ended]:
        """Return what is known of messages that were delivered or dropped."""
        with self._writing() as connection:
            rows = connection.execute(
                "SELECT id, reason, at, packet_id FROM ended ORDER BY rowid"
            ).fetchall()
        return [Ended(*row) for row in rows]

    def store(self, messages: Sequence[Spooled], pieces: Sequence[Piece]) -> None:
        """Store pieces, and what is known of their messages.

        Raises:
            SpoolError: nothing is stored.
        """
        with self._writing() as connection:
            for number, one, marks, expires_at, last_at, _ in messages:
                digest, properties = one.trailer or (None, None)
                connection.execute(
                    "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
                    " ON CONFLICT (number) DO UPDATE SET digest = excluded.digest,"
                    " properties = excluded.properties, marks = excluded.marks,"
                    " expires_at = excluded.expires_at, last_at = excluded.last_at",
                    (
                        number,
                        one.message_id,
                        one.topic,
                        one.total_bytes,
                        one.qos,
                        one.retain,
                        digest,
                        properties,
                        marks,
                        expires_at,
                        last_at,
                    ),
                )
            connection.executemany(
                "INSERT INTO piece VALUES (?, ?, ?, ?)",
                [(number, start, data, len(data)) for number, start, data in pieces],
            )

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """Return the (row, bytes) of a message's pieces in the order of the payload."""
        with self._writing() as connection:
            return connection.execute(
                "SELECT rowid, n_bytes FROM piece WHERE message = ? ORDER BY start", (number,)
            ).fetchall()

    def read(self, rows: Sequence[int]) -> bytes:
        """Return the data of some pieces, joined.

        Raises:
            SpoolError: they cannot be read.
        """
        connection, _ = self._opened()
        try:
            return b"".join(
                connection.execute("SELECT data FROM piece WHERE rowid = ?", (row,)).fetchone()[0]
                for row in rows
            )
        except (sqlite3.Error, TypeError) as error:
            told = in_words(error) if isinstance(error, sqlite3.Error) else "a piece is missing"
            raise SpoolError(f"spool {self._path}: {told}") from error

    def digest(self, number: int) -> bytes:
        """Return the SHA-256 of a message's payload.

        Raises:
            SpoolError: it cannot be read.
        """
        found = sha256()
        for row, _ in self.pieces(number):
            found.update(self.read([row]))
        return found.digest()

    def publishing(self, number: int, packet_id: int) -> None:
        """Note that a whole message is going to be published."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE message SET packet_id = ? WHERE number = ?", (packet_id, number)
            )

    def end(self, number: int | None, ended: Ended) -> None:
        """Forget a message's parts, and remember that it was delivered or dropped.

        Args:
            number: of the message; None where it has none.
            ended: what is remembered.
        """
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO ended VALUES (?, ?, ?, ?)", ended)
            if number is not None:
                connection.execute("DELETE FROM piece WHERE message = ?", (number,))
                connection.execute("DELETE FROM message WHERE number = ?", (number,))

    def released(self, message_id: bytes) -> None:
        """Note that the PUBREL of a message was taken."""
        with self._writing() as connection:
            connection.execute("UPDATE ended SET packet_id = NULL WHERE id = ?", (message_id,))

    def forget(self, before: float, n_kept: int) -> None:
        """Forget messages that were delivered or dropped, and give unused space back.

        Args:
            before: seconds since 1970; older ones are forgotten.
            n_kept: of the newest; older ones are forgotten.
        """
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM ended WHERE packet_id IS NULL"
                " AND (at < ? OR rowid <= (SELECT max(rowid) FROM ended) - ?)",
                (before, n_kept),
            )
        try:
            (n_free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if n_free > SPARE_PAGES:
                # Each step of the statement frees a page; `execute` makes only one.
                connection.executescript(f"PRAGMA incremental_vacuum({n_free - SPARE_PAGES})")
        except sqlite3.Error as error:
            raise SpoolError(f"spool {self._path}: {in_words(error)}") from error

    # -- messages that are cut -----------------------------------------------------------------

    def cutting(self) -> dict[int, tuple[bytes, int]]:
        """Return the messages that are being cut: packet identifier to (id, bytes published)."""
        with self._writing() as connection:
            rows = connection.execute("SELECT packet_id, id, sent_bytes FROM cutting").fetchall()
        return {packet_id: (message_id, sent) for packet_id, message_id, sent in rows}

    def cut(self, packet_id: int, message_id: bytes, sent_bytes: int) -> None:
        """Note how far a message was cut, and that its parts are published."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO cutting VALUES (?, ?, ?)",
                (packet_id, message_id, sent_bytes),
            )

    def end_cutting(self, packet_id: int | None) -> None:
        """Forget a message that was cut; None for all."""
        with self._writing() as connection:
            if packet_id is None:
                connection.execute("DELETE FROM cutting")
            else:
                connection.execute("DELETE FROM cutting WHERE packet_id = ?", (packet_id,))
