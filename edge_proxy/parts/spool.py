"""Stores parts on the disk, in an SQLite file for one process.

Each method is one transaction, which is on the disk when it returns (``synchronous=FULL``). The
methods block. One thread at a time may call them.

On a full disk nothing more is stored. What is there can still be published and deleted, with the
space of a `DiskReserve`.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Final, NamedTuple

from penstock.broker.durable.database_file import Format, behind_links, in_words
from penstock.broker.durable.disk_reserve import DiskReserve
from penstock.broker.durable.locked_database import LockedDatabase
from penstock.broker.errors import PenstockError
from penstock.edge_proxy.parts.part_format import STREAM_BYTES, Part, Trailer
from penstock.edge_proxy.parts.partial_message import PartialMessage, Span

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
        # With 0: (the stream, the first number that was not reserved).
        """CREATE TABLE cutting (
            packet_id INTEGER PRIMARY KEY, id BLOB NOT NULL, sent_bytes INTEGER NOT NULL)""",
    ),
)

NUMBERS: Final = 2**28
"""How many message numbers are reserved at a time; a stream has a million times as many."""

RESERVE_BYTES: Final = 4 * 1024**2
"""Space of the reserve. Deleting a large message needs less: it writes one page in a thousand."""


class SpoolError(PenstockError):
    """The file cannot be used or written; the message names it."""


class SpoolFullError(SpoolError):
    """The disk is full."""


class SpoolReadError(SpoolError):
    """Pieces of a message cannot be read, though the file is there."""


class Spooled(NamedTuple):
    """A message in the spool.

    Attributes:
        number: its key in the spool; later messages have larger ones.
        marks: properties of its parts that belong to the whole, encoded as in MQTT 5.
        expires_at: seconds of `now`; None where it does not expire.
        last_at: seconds of `attended` at which its last part came.
        packet_id: packet identifier of the whole message, which may have been sent; None before.
    """

    number: int
    partial: PartialMessage
    marks: bytes
    expires_at: float | None
    last_at: float
    packet_id: int | None


class Ended(NamedTuple):
    """A message that was delivered or dropped.

    Attributes:
        reason: why it was dropped; "" where it was delivered.
        at: seconds of `attended`.
        packet_id: packet identifier that is to be released at QoS 2, or None.
    """

    message_id: bytes
    reason: str
    at: float
    packet_id: int | None


class Piece(NamedTuple):
    """Bytes of a payload that are to be stored.

    Attributes:
        start: offset of the bytes in its payload.
        data: the bytes.
    """

    number: int
    start: int
    data: bytes | memoryview


class Spool(LockedDatabase):
    """The SQLite file."""

    what = "spool"
    allowed = "a spool that was made here, or a path where no file is and one can be created"
    format = FORMAT
    error = SpoolError
    full_error = SpoolFullError

    _reserve: DiskReserve

    def __init__(self, path: str) -> None:
        # Beside the file itself, as a link may lead to another disk.
        reserve = DiskReserve(f"{behind_links(path)}.reserve", RESERVE_BYTES)
        super().__init__(path, reserve=reserve)

    def _write(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """Make a small change or a deletion; on a full disk, with the space of the reserve."""

        def write() -> None:
            with self._transaction() as connection:
                change(connection)

        self._with_space(write)

    def _execute(self, sql: str, parameters: Sequence[object]) -> None:
        """Make a small change by one statement; see `_write`."""
        self._write(lambda connection: connection.execute(sql, parameters))

    # -- messages that are put together --------------------------------------------------------

    def messages(self) -> list[Spooled]:
        """Return all messages, oldest first."""
        found = []
        with self._transaction() as connection:
            for row in connection.execute("SELECT * FROM message ORDER BY number").fetchall():
                number, message_id, topic, total_bytes, qos, retain, digest, properties, *rest = row
                trailer = None if digest is None else Trailer(digest, properties)
                first = Part(message_id, 0, total_bytes, qos, bool(retain), None, b"")
                partial = PartialMessage(first, topic)
                partial.trailer = trailer
                for start, n_bytes in connection.execute(
                    "SELECT start, n_bytes FROM piece WHERE message = ? ORDER BY start", (number,)
                ):
                    partial.add_span(Span(start, start + n_bytes))
                found.append(Spooled(number, partial, *rest))
        return found

    def ended(self) -> list[Ended]:
        """Return the messages that were delivered or dropped and are remembered."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT id, reason, at, packet_id FROM ended ORDER BY rowid"
            ).fetchall()
        return [Ended(*row) for row in rows]

    def store(self, messages: Sequence[Spooled], pieces: Sequence[Piece]) -> None:
        """Store pieces, and what is known of their messages.

        Raises:
            SpoolError: nothing is stored.
        """
        self._hold_reserve()
        with self._transaction() as connection:
            for number, one, marks, expires_at, last_at, _ in messages:
                digest, properties = one.trailer or (None, None)
                # The message may be delivered once more.
                connection.execute("DELETE FROM ended WHERE id = ?", (one.message_id,))
                fixed = number, one.message_id, one.topic, one.total_bytes, one.qos, one.retain
                connection.execute(
                    "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
                    " ON CONFLICT (number) DO UPDATE SET digest = excluded.digest,"
                    " properties = excluded.properties, marks = excluded.marks,"
                    " expires_at = excluded.expires_at, last_at = excluded.last_at",
                    (*fixed, digest, properties, marks, expires_at, last_at),
                )
            connection.executemany(
                "INSERT INTO piece VALUES (?, ?, ?, ?)",
                [(number, start, data, len(data)) for number, start, data in pieces],
            )

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """Return the (row, bytes) of a message's pieces in the order of the payload.

        Raises:
            SpoolReadError: they cannot be read.
        """
        connection, _ = self._opened()
        with self._reading():
            return connection.execute(
                "SELECT rowid, n_bytes FROM piece WHERE message = ? ORDER BY start", (number,)
            ).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SpoolReadError(f"{self.name}: {in_words(error)}") from error

    def read(self, rows: Sequence[int]) -> bytes:
        """Return the data of some pieces, joined.

        Raises:
            SpoolReadError: they cannot be read.
        """
        connection, _ = self._opened()
        found: list[bytes] = []
        with self._reading():
            for row in rows:
                piece = connection.execute("SELECT data FROM piece WHERE rowid = ?", (row,))
                found += piece.fetchone() or ()
        if len(found) < len(rows):
            raise SpoolReadError(f"{self.name}: a piece is missing")
        return b"".join(found)

    def digest(self, number: int) -> bytes:
        """Return the SHA-256 of a message's payload.

        Raises:
            SpoolReadError: it cannot be read.
        """
        found = sha256()
        for row, _ in self.pieces(number):
            found.update(self.read([row]))
        return found.digest()

    def publishing(self, number: int, packet_id: int) -> None:
        """Note that a whole message is about to be published."""
        self._execute("UPDATE message SET packet_id = ? WHERE number = ?", (packet_id, number))

    def end(self, number: int | None, ended: Ended) -> None:
        """Forget a message's parts, and remember that it was delivered or dropped."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO ended VALUES (?, ?, ?, ?)", ended)
            if number is not None:
                connection.execute("DELETE FROM piece WHERE message = ?", (number,))
                connection.execute("DELETE FROM message WHERE number = ?", (number,))

        self._write(change)

    def released(self, message_id: bytes) -> None:
        """Note that the PUBREL of a message was taken."""
        self._execute("UPDATE ended SET packet_id = NULL WHERE id = ?", (message_id,))

    def forget(self, before: float, n_kept: int) -> None:
        """Forget messages that were delivered or dropped, and give unused space back."""
        self._execute(
            "DELETE FROM ended WHERE packet_id IS NULL"
            " AND (at < ? OR rowid <= (SELECT max(rowid) FROM ended) - ?)",
            (before, n_kept),
        )
        self._trim()

    # -- messages that are cut -----------------------------------------------------------------

    def cutting(self) -> dict[int, tuple[bytes, int]]:
        """Return the messages that are being cut: packet identifier to (id, bytes published)."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT packet_id, id, sent_bytes FROM cutting WHERE packet_id > 0"
            ).fetchall()
        return {packet_id: (message_id, sent) for packet_id, message_id, sent in rows}

    def cut(self, packet_id: int, message_id: bytes, sent_bytes: int) -> None:
        """Note how far a message was cut, and that its parts are published."""
        self._execute(
            "INSERT OR REPLACE INTO cutting VALUES (?, ?, ?)", (packet_id, message_id, sent_bytes)
        )

    def end_cutting(self, packet_id: int | None) -> None:
        """Forget a message that was cut; None for all."""
        self._execute(
            "DELETE FROM cutting WHERE packet_id > 0 AND (?1 IS NULL OR packet_id = ?1)",
            (packet_id,),
        )

    def stream(self) -> bytes:
        """Return the stream of what is cut here. It stays the same as long as the file exists."""
        stream, _ = self._reserve_numbers(0)
        return stream

    def reserve_numbers(self) -> int:
        """Return the first of `NUMBERS` new numbers, larger than all before, also after a kill."""
        _, number = self._reserve_numbers(NUMBERS)
        return number

    def _reserve_numbers(self, n_numbers: int) -> tuple[bytes, int]:
        found: list[tuple[bytes, int]] = []

        def change(connection: sqlite3.Connection) -> None:
            rows = connection.execute("SELECT id, sent_bytes FROM cutting WHERE packet_id = 0")
            stream, number = rows.fetchone() or (secrets.token_bytes(STREAM_BYTES), 0)
            connection.execute(
                "INSERT OR REPLACE INTO cutting VALUES (0, ?, ?)", (stream, number + n_numbers)
            )
            found[:] = [(stream, number)]

        self._write(change)
        return found[0]
