"""The tables of a queue's database, and how those of an older version become them."""

from __future__ import annotations

import sqlite3
import uuid
from typing import Final

from penstock.broker.durable.database_file import Format
from penstock.broker.mqtt.expiry import EXPIRY
from penstock.plugins.queue.engines.store import EXPIRES
from penstock.plugins.queue.wire.frames import read_batch

_PHYSICAL_QUEUE: Final = """CREATE TABLE physical_queue (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    number INTEGER NOT NULL,
    earliest INTEGER NOT NULL,
    next INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL
)"""

_SEGMENT: Final = """CREATE TABLE segment (
    physical_queue INTEGER NOT NULL REFERENCES physical_queue (id),
    first_offset INTEGER NOT NULL,
    n_messages INTEGER NOT NULL,
    newest_at REAL NOT NULL,
    frame BLOB NOT NULL,
    PRIMARY KEY (physical_queue, first_offset)
)"""

# In a table of its own, because SQLite rewrites the whole row on a change.
_GONE: Final = """CREATE TABLE gone (
    physical_queue INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    bits BLOB NOT NULL,
    payload_bytes INTEGER NOT NULL,
    PRIMARY KEY (physical_queue, first_offset)
) WITHOUT ROWID"""

_OTHERS: Final = (
    # Segments that could not be read, and the messages that the queue lacks for each. It is there
    # from the start: to create a table in a damaged file may fail.
    """CREATE TABLE IF NOT EXISTS set_aside (
        physical_queue INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        n_messages INTEGER NOT NULL,
        newest_at REAL NOT NULL,
        frame BLOB NOT NULL,
        n_missing INTEGER NOT NULL,
        PRIMARY KEY (physical_queue, first_offset)
    )""",
    """CREATE TABLE logical_queue (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        incarnation TEXT NOT NULL,
        spec TEXT NOT NULL
    )""",
    # What the start reads of a segment, so that it reads no frames.
    """CREATE TABLE segment_facts (
        physical_queue INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        n_messages INTEGER NOT NULL,
        payload_bytes INTEGER NOT NULL,
        stored_bytes INTEGER NOT NULL,
        newest_at REAL NOT NULL,
        newest_clock REAL NOT NULL,
        flags INTEGER NOT NULL,
        PRIMARY KEY (physical_queue, first_offset)
    ) WITHOUT ROWID""",
    """CREATE TABLE consumer_group (
        id INTEGER PRIMARY KEY,
        queue INTEGER NOT NULL,
        name TEXT NOT NULL,
        spec TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        used_at REAL NOT NULL
    )""",
    """CREATE TABLE floor (
        consumer_group INTEGER NOT NULL,
        physical_queue INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        PRIMARY KEY (consumer_group, physical_queue)
    ) WITHOUT ROWID""",
    """CREATE TABLE settled (
        physical_queue INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        consumer_group INTEGER NOT NULL,
        bits BLOB NOT NULL,
        PRIMARY KEY (physical_queue, first_offset, consumer_group)
    ) WITHOUT ROWID""",
    """CREATE TABLE receives (
        physical_queue INTEGER NOT NULL,
        first_offset INTEGER NOT NULL,
        consumer_group INTEGER NOT NULL,
        counts BLOB NOT NULL,
        PRIMARY KEY (physical_queue, first_offset, consumer_group)
    ) WITHOUT ROWID""",
    """CREATE TABLE deduplication (
        queue INTEGER NOT NULL,
        identifier BLOB NOT NULL,
        stored_at REAL NOT NULL,
        number INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        PRIMARY KEY (queue, identifier)
    ) WITHOUT ROWID""",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)

_FROM_VERSION_1: Final = (
    *_OTHERS,
    # Settings and incarnation are given at the start, when the queue is created.
    (
        "INSERT INTO logical_queue (name, incarnation, spec)"
        " SELECT queue, penstock_uuid(), '{}' FROM physical_queue GROUP BY queue"
    ),
    # The clock of the new version begins at 0 when the file is upgraded.
    (
        "INSERT INTO segment_facts SELECT physical_queue, first_offset, n_messages,"
        " penstock_payload_bytes(frame, NULL), length(frame), newest_at,"
        " newest_at - (julianday('now') - 2440587.5) * 86400.0, penstock_flags(frame) FROM segment"
    ),
    "ALTER TABLE gone RENAME TO gone_1",
    _GONE,
    (
        "INSERT INTO gone SELECT physical_queue, first_offset, bits,"
        " penstock_payload_bytes(frame, bits) FROM gone_1 JOIN segment"
        " USING (physical_queue, first_offset)"
    ),
    "DROP TABLE gone_1",
    # Renaming the old table would change the reference to it in `segment`.
    _PHYSICAL_QUEUE.replace("physical_queue", "physical_queue_2", 1),
    (
        "INSERT INTO physical_queue_2 SELECT id, (SELECT id FROM logical_queue WHERE name = queue),"
        " number, earliest, next, messages,"
        " (SELECT coalesce(sum(payload_bytes), 0) FROM segment_facts WHERE physical_queue = one.id)"
        " - (SELECT coalesce(sum(payload_bytes), 0) FROM gone WHERE physical_queue = one.id),"
        " stored_bytes FROM physical_queue AS one"
    ),
    "DROP TABLE physical_queue",
    "ALTER TABLE physical_queue_2 RENAME TO physical_queue",
)

# The CRC-32 of the frame; NULL for a segment that was stored before there was one.
_FROM_VERSION_2: Final = ("ALTER TABLE segment ADD COLUMN checksum INTEGER",)

FORMAT: Final = Format(
    application_id=0x50455154,
    version=3,
    schema=(_PHYSICAL_QUEUE, _SEGMENT, _GONE, *_OTHERS, *_FROM_VERSION_2),
    upgrades={1: _FROM_VERSION_1, 2: _FROM_VERSION_2},
)


def add_functions(connection: sqlite3.Connection) -> None:
    """Add the SQL functions that upgrades call."""
    connection.create_function("penstock_payload_bytes", 2, _payload_bytes, deterministic=True)
    connection.create_function("penstock_flags", 1, _flags, deterministic=True)
    connection.create_function("penstock_uuid", 0, lambda: str(uuid.uuid4()))


def _payload_bytes(frame: bytes, bits: bytes | None) -> int:
    """Return the payload bytes of a frame, of all messages or those of a bit map.

    A frame that cannot be read has none; it is set aside when it is met.
    """
    try:
        sizes = list(map(len, read_batch(frame).payload))
    except ValueError:
        return 0
    wanted = -1 if bits is None else int.from_bytes(bits, "little")
    return sum(size for index, size in enumerate(sizes) if wanted >> index & 1)


def _flags(frame: bytes) -> int:
    """Return the flags of a segment."""
    try:
        properties = set(read_batch(frame).properties)
    except ValueError:
        return 0
    return EXPIRES if any(EXPIRY in text for text in properties) else 0
