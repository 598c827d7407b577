"""The stage file is an SQLite database of batches that are not published, or being published.

Each method is one transaction, which is on the disk when it returns. The methods block; one thread
at a time calls them.

Theory of operation. A *stage* holds what one attempt of one task has uploaded, in chunks, until it
is named by a commit, deleted, or too old. A commit makes a *publication* of some stages, in their
order, and deletes the other stages of the same writer. `n_done` of a publication says how far it
was published. A finished one is deleted, and its batch number becomes the last of its query: lower
ones are known for repeats.

The rows of an owner are numbered over all of its publications. The number of a row gives the packet
identifier of its PUBLISH, so that it is the same after a crash.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.durable.database_file import Format
from penstock.broker.durable.locked_database import LockedDatabase
from penstock.broker.errors import PenstockError

FORMAT: Final = Format(
    application_id=0x50537467,
    version=1,
    schema=(
        """CREATE TABLE stage (
            number INTEGER PRIMARY KEY, owner TEXT NOT NULL, writer TEXT NOT NULL,
            name TEXT NOT NULL, at REAL NOT NULL, publication INTEGER, place INTEGER)""",
        "CREATE UNIQUE INDEX stage_name ON stage (owner, writer, name)",
        "CREATE INDEX stage_publication ON stage (publication) WHERE publication IS NOT NULL",
        """CREATE TABLE chunk (
            stage INTEGER NOT NULL, place INTEGER NOT NULL, n_rows INTEGER NOT NULL,
            n_bytes INTEGER NOT NULL, at REAL NOT NULL, data BLOB NOT NULL)""",
        "CREATE UNIQUE INDEX chunk_place ON chunk (stage, place)",
        # first_row: the number of its first row among all of its owner.
        """CREATE TABLE publication (
            number INTEGER PRIMARY KEY, owner TEXT NOT NULL, query TEXT NOT NULL,
            batch INTEGER NOT NULL, at REAL NOT NULL, n_rows INTEGER NOT NULL,
            first_row INTEGER NOT NULL, n_done INTEGER NOT NULL, unpublished TEXT NOT NULL)""",
        "CREATE INDEX publication_owner ON publication (owner, query, batch)",
        # The last finished batch of a query.
        """CREATE TABLE query (
            owner TEXT NOT NULL, name TEXT NOT NULL, batch INTEGER NOT NULL, at REAL NOT NULL,
            n_rows INTEGER NOT NULL, unpublished TEXT NOT NULL, PRIMARY KEY (owner, name))""",
        "CREATE TABLE owner (name TEXT PRIMARY KEY, next_row INTEGER NOT NULL)",
    ),
)


class StageError(PenstockError):
    """The file cannot be used or written; the message names it."""


class StageSpaceError(StageError):
    """The disk is full."""


class NoStageError(PenstockError):
    """A commit names a stage that is not there as it says."""


class StageKey(NamedTuple):
    """A stage.

    Attributes:
        owner: name of the token; "" where callers need none.
        writer: the writer of the batch; all of its stages have one writer.
    """

    owner: str
    writer: str
    name: str


class BatchKey(NamedTuple):
    """A batch: no two are published under one key.

    Attributes:
        number: the number of the batch; it rises.
    """

    owner: str
    query: str
    number: int


class Publication(NamedTuple):
    """A batch that was committed.

    Attributes:
        unpublished: rows that were not published, by reason.
        number: the number by which the file knows it; 0 if it is finished.
        first_row: number of its first row among all rows of its owner.
        at: when it was committed, in seconds of `attended`.
    """

    key: BatchKey
    n_rows: int
    n_done: int
    unpublished: Mapping[str, int]
    number: int = 0
    first_row: int = 0
    at: float = 0.0

    @property
    def is_finished(self) -> bool:
        """Whether all of it is done."""
        return not self.number


class Committed(NamedTuple):
    """What became of a commit.

    Attributes:
        is_repeat: the batch was committed before, and the stages of then count.
    """

    publication: Publication
    is_repeat: bool
    n_dropped: int


class Chunk(NamedTuple):
    """Rows of a publication that follow each other.

    Attributes:
        n_rows: how many.
        at: when they were staged, in seconds of `now`.
    """

    n_before: int
    n_rows: int
    at: float
    data: bytes


class StageTotals(NamedTuple):
    """What the stage holds.

    Attributes:
        n_bytes: the bytes of all stages.
    """

    stages: int
    rows: int
    n_bytes: int
    publications: int


class StageFile(LockedDatabase):
    """The file."""

    what = "stage"
    allowed = "a path where the file is, or where one can be created"
    format = FORMAT
    error = StageError
    full_error = StageSpaceError

    def __init__(self, path: str, durability: str) -> None:
        super().__init__(path, {"full": "FULL", "normal": "NORMAL"}[durability])

    # -- stages --------------------------------------------------------------------------------

    def held(self) -> StageTotals:
        """Return what the stage holds."""
        with self._transaction() as connection:
            (stages,) = connection.execute(
                "SELECT count(*) FROM stage WHERE publication IS NULL"
            ).fetchone()
            rows, n_bytes = connection.execute(
                "SELECT coalesce(sum(n_rows), 0), coalesce(sum(n_bytes), 0) FROM chunk"
            ).fetchone()
            (publications,) = connection.execute("SELECT count(*) FROM publication").fetchone()
        return StageTotals(stages, rows, n_bytes, publications)

    def store(
        self,
        key: StageKey,
        place: int,
        n_rows: int,
        n_bytes: int,
        data: bytes,
        at: float,
        attended_at: float | None = None,
    ) -> int:
        """Store a chunk, or store it again; return the rows of its stage.

        Args:
            key: the key of the stage; the first chunk creates it.
            place: the place of the chunk in its stage, from 0.
            n_rows: the rows of the chunk.
            n_bytes: the bytes that the rows count.
            data: the rows.
            at: seconds of `now`.
            attended_at: the same of `attended`; None where there is no difference.

        Raises:
            NoStageError: the chunk is not the next one, or the stage was committed.
            StageError: nothing is stored.
        """
        seen_at = at if attended_at is None else attended_at
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT number, publication FROM stage WHERE owner = ? AND writer = ? AND name = ?",
                key,
            ).fetchone()
            if found is not None and found[1] is not None:
                raise NoStageError(
                    f"stage {key.name}: read a chunk after its commit; allowed: none"
                )
            if found is None:
                number = connection.execute(
                    "INSERT INTO stage (owner, writer, name, at) VALUES (?, ?, ?, ?)",
                    (*key, seen_at),
                ).lastrowid
            else:
                number = found[0]
            (n_chunks,) = connection.execute(
                "SELECT count(*) FROM chunk WHERE stage = ?", (number,)
            ).fetchone()
            if place > n_chunks:
                raise NoStageError(
                    f"stage {key.name}: read chunk {place}; allowed: 0 to {n_chunks} (chunks that "
                    "were uploaded before may have expired, or were given up)"
                )
            connection.execute(
                "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?)",
                (number, place, n_rows, n_bytes, at, data),
            )
            connection.execute("UPDATE stage SET at = ? WHERE number = ?", (seen_at, number))
            (total,) = connection.execute(
                "SELECT sum(n_rows) FROM chunk WHERE stage = ?", (number,)
            ).fetchone()
        return int(total)

    def drop(self, owner: str, writer: str) -> int:
        """Delete the stages of a writer that are not committed; return how many."""
        with self._transaction() as connection:
            return _drop(
                connection, "owner = ? AND writer = ? AND publication IS NULL", (owner, writer)
            )

    def expire(self, before: float, forget_before: float) -> int:
        """Delete old stages, and forget old queries; return how many stages were deleted.

        Args:
            before: seconds of `attended`: stages without a newer chunk are deleted.
            forget_before: the same of the last batch of a query.
        """
        with self._transaction() as connection:
            n_stages = _drop(connection, "at < ? AND publication IS NULL", (before,))
            connection.execute(
                "DELETE FROM query WHERE at < ? AND NOT EXISTS (SELECT 1 FROM publication"
                " WHERE publication.owner = query.owner AND publication.query = query.name)",
                (forget_before,),
            )
        self._trim()
        return n_stages

    # -- publications --------------------------------------------------------------------------

    def find(self, key: BatchKey) -> Publication | None:
        """Return the publication of a batch; None where it was not committed."""
        with self._transaction() as connection:
            return _find(connection, key)

    def commit(
        self, key: BatchKey, writer: str, stages: Sequence[tuple[str, int]], at: float
    ) -> Committed:
        """Make stages a publication, and delete the others of their writer.

        Where the batch was committed before, all stages of the writer are deleted.

        Raises:
            NoStageError: a stage is missing, or has other rows.
        """
        with self._transaction() as connection:
            known = _find(connection, key)
            if known is None:
                self._make(connection, key, writer, stages, at)
            n_dropped = _drop(
                connection, "owner = ? AND writer = ? AND publication IS NULL", (key.owner, writer)
            )
            found = known or _find(connection, key)
        assert found is not None  # noqa: S101 (it was made)
        return Committed(found, known is not None, n_dropped)

    def _make(
        self,
        connection: sqlite3.Connection,
        key: BatchKey,
        writer: str,
        stages: Sequence[tuple[str, int]],
        at: float,
    ) -> None:
        numbers: list[int] = []
        for name, n_rows in stages:
            found = connection.execute(
                "SELECT number, (SELECT coalesce(sum(n_rows), 0) FROM chunk WHERE stage = number)"
                " FROM stage WHERE owner = ? AND writer = ? AND name = ? AND publication IS NULL",
                (key.owner, writer, name),
            ).fetchone()
            if found is None:
                raise NoStageError(
                    f"stage {name}: read nothing; allowed: a stage of this token and writer that "
                    "has not expired and was not committed or given up"
                )
            if found[1] != n_rows:
                raise NoStageError(f"stage {name}: read {n_rows} rows; allowed: {found[1]}")
            numbers.append(found[0])
        total = sum(n_rows for _, n_rows in stages)
        (first_row,) = connection.execute(
            "INSERT INTO owner VALUES (?, ?) ON CONFLICT (name) DO UPDATE"
            " SET next_row = next_row + excluded.next_row RETURNING next_row",
            (key.owner, total),
        ).fetchone()
        number = connection.execute(
            "INSERT INTO publication (owner, query, batch, at, n_rows, first_row, n_done,"
            " unpublished) VALUES (?, ?, ?, ?, ?, ?, 0, '{}')",
            (*key, at, total, first_row - total),
        ).lastrowid
        connection.executemany(
            "UPDATE stage SET publication = ?, place = ? WHERE number = ?",
            [(number, place, stage) for place, stage in enumerate(numbers)],
        )

    def owners(self) -> list[str]:
        """Return the owners that have publications."""
        with self._transaction() as connection:
            return [
                owner for (owner,) in connection.execute("SELECT DISTINCT owner FROM publication")
            ]

    def next_row(self, owner: str) -> int | None:
        """Return the number of an owner's next row to be published; None where it had none ever."""
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT first_row + n_done FROM publication WHERE owner = ?"
                " UNION ALL SELECT next_row FROM owner WHERE name = ? ORDER BY 1 LIMIT 1",
                (owner, owner),
            ).fetchone()
        return None if found is None else int(found[0])

    def next_publication(self, owner: str) -> Publication | None:
        """Return the oldest publication of an owner; None where all are finished."""
        with self._transaction() as connection:
            row = connection.execute(
                f"{_SELECT} WHERE owner = ? ORDER BY number LIMIT 1", (owner,)
            ).fetchone()
        return None if row is None else _publication(row)

    def next_chunk(self, one: Publication) -> Chunk | None:
        """Return the chunk with the next row to be published; None where all are done."""
        with self._transaction() as connection:
            n_before = 0
            for rowid, n_rows, at in connection.execute(
                "SELECT chunk.rowid, n_rows, chunk.at FROM stage JOIN chunk ON stage = number"
                " WHERE publication = ? ORDER BY stage.place, chunk.place",
                (one.number,),
            ):
                if n_before + n_rows > one.n_done:
                    (data,) = connection.execute(
                        "SELECT data FROM chunk WHERE rowid = ?", (rowid,)
                    ).fetchone()
                    return Chunk(n_before, n_rows, at, data)
                n_before += n_rows
        return None

    def advance(self, one: Publication, n_done: int, unpublished: Mapping[str, int]) -> Publication:
        """Note how far a publication was published; return it."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE publication SET n_done = ?, unpublished = ? WHERE number = ?",
                (n_done, json.dumps(unpublished), one.number),
            )
        return one._replace(n_done=n_done, unpublished=unpublished)

    def finish(self, one: Publication, at: float) -> None:
        """Delete a publication with its stages, and remember that its batch was published."""
        with self._transaction() as connection:
            _drop(connection, "publication = ?", (one.number,))
            connection.execute("DELETE FROM publication WHERE number = ?", (one.number,))
            connection.execute(
                "INSERT INTO query VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (owner, name) DO UPDATE"
                " SET batch = excluded.batch, at = excluded.at, n_rows = excluded.n_rows,"
                " unpublished = excluded.unpublished WHERE excluded.batch > query.batch",
                (*one.key, at, one.n_rows, json.dumps(one.unpublished)),
            )


_SELECT: Final = (
    "SELECT owner, query, batch, n_rows, n_done, unpublished, number, first_row, at"
    " FROM publication"
)


def _publication(row: tuple[str, str, int, int, int, str, int, int, float]) -> Publication:
    owner, query, batch, n_rows, n_done, unpublished, number, first_row, at = row
    key = BatchKey(owner, query, batch)
    return Publication(key, n_rows, n_done, json.loads(unpublished), number, first_row, at)


def _find(connection: sqlite3.Connection, key: BatchKey) -> Publication | None:
    row = connection.execute(
        f"{_SELECT} WHERE owner = ? AND query = ? AND batch = ?", key
    ).fetchone()
    if row is not None:
        return _publication(row)
    last = connection.execute(
        "SELECT batch, n_rows, unpublished FROM query WHERE owner = ? AND name = ?", key[:2]
    ).fetchone()
    if last is None or last[0] < key.number:
        return None
    if last[0] > key.number:
        return Publication(key, 0, 0, {})  # of an older one, nothing more is known
    return Publication(key, last[1], last[1], json.loads(last[2]))


def _drop(connection: sqlite3.Connection, which: str, values: tuple[object, ...]) -> int:
    """Delete stages with their chunks; return how many stages."""
    connection.execute(
        f"DELETE FROM chunk WHERE stage IN (SELECT number FROM stage WHERE {which})",  # noqa: S608 (no value is in it)
        values,
    )
    return connection.execute(f"DELETE FROM stage WHERE {which}", values).rowcount  # noqa: S608
