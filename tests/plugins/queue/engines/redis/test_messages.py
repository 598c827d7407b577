from __future__ import annotations

import struct

from penstock.plugins.queue.engines.redis.messages import (
    Row,
    arrived_at,
    frames_of,
    read_row,
    written_row,
)
from penstock.plugins.queue.strategies.message_key import stored_key_reader
from penstock.plugins.queue.wire.frames import read_batch

ROW = Row(-1, "plant/ä", b"\x00\xff", 2, "dev-ü", 1.5, '{"content_type": "ö"}', 0.0, 0.0)


def stored(row: Row, offset: int, clock: float = 7.0) -> Row:
    """Return a message as the server would answer it."""
    head, key, topic, _, body = written_row(row, 3.0, stored_key_reader("topic"))
    age, _, interval, wall, size, flags = struct.unpack("<ddddIB", head)
    assert (age, size, flags) == (3.0, len(row.payload), 3)
    expires = clock + interval if interval >= 0 else 0.0
    info = struct.pack("<ddddIBH", clock, clock, expires, wall, size, 1, len(key)) + key + topic
    assert arrived_at(info) == row.enqueued_at
    return read_row(offset, info, body)


def test_a_message_comes_back_as_it_was_written() -> None:
    """With its offset, and the time at which the server took it."""
    assert stored(ROW, 5) == ROW._replace(offset=5, clock=7.0)


def test_an_interval_counts_from_the_arrival() -> None:
    """A Message Expiry Interval ends by the server's clock."""
    row = ROW._replace(properties='{"message_expiry_interval": 60}')
    assert stored(row, 0).expires_at == 67.0


def test_messages_are_frames_of_the_batch_format() -> None:
    """As many as the size of a frame asks for; together they hold all messages in order."""
    rows = [ROW._replace(offset=n, payload=b"%d" % n) for n in range(600)]
    frames = frames_of(rows)
    assert len(frames) > 1
    batch = read_batch(b"".join(frames))
    assert batch.offset == list(range(600))
    assert batch.payload == [b"%d" % n for n in range(600)]
    assert set(batch.topic) == {"plant/ä"}
    assert frames_of([]) == []
