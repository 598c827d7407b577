"""The tables of a queue's database."""

from __future__ import annotations

from typing import Final

from penstock.broker.durable.database_file import Format

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
    checksum INTEGER NOT NULL,
    PRIMARY KEY (physical_queue, first_offset)
)"""
"""The table of segments. The checksum is the CRC-32 of the frame."""

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
    """CREATE TABLE set_aside (
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

FORMAT: Final = Format(
    application_id=0x50455154, version=1, schema=(_PHYSICAL_QUEUE, _SEGMENT, _GONE, *_OTHERS)
)
