"""Segments in memory: the index of a physical queue, and a cache of decoded segments."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from penstock.broker.mqtt.expiry import EXPIRY, interval_left
from penstock.plugins.queue.engines.store import DELAYED, EXPIRES, BrokenSegmentError, Segment
from penstock.plugins.queue.wire.frames import Batch, read_batch, read_offsets

DELAY_PROPERTY: Final = "penstock-delay"
"""The user property that holds the delay of a message in seconds."""
MAX_DELAY_SECONDS: Final = 366 * 86_400.0
"""The longest delay of a message, as over HTTP. A publisher that asks for more gets this."""

_COMPACT_ABOVE: Final = 64
_ROW_BYTES: Final = 250
"""The memory of a decoded message besides its texts and payload."""


class SegmentIndex:
    """The segments of one physical queue in the order of their offsets, 35 bytes each.

    A removed segment keeps its place, with no messages, until half of the places are such ones.
    """

    __slots__ = ("_clock", "_dead", "_first", "_flags", "_n", "_newest", "_payload", "_stored")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self._first = array("q")
        self._n = array("H")
        self._payload = array("I")
        self._stored = array("I")
        self._newest = array("d")
        self._clock = array("d")
        self._flags = array("B")
        self._dead = 0
        for segment in segments:
            self.append(segment)

    def __len__(self) -> int:
        return len(self._first) - self._dead

    def append(self, segment: Segment) -> None:
        """Add a segment behind all others."""
        first, n, payload, stored, newest, clock, flags = segment
        self._first.append(first)
        self._n.append(n)
        self._payload.append(payload)
        self._stored.append(stored)
        self._newest.append(newest)
        self._clock.append(clock)
        self._flags.append(flags)

    def remove(self, first_offset: int) -> None:
        """Remove a segment; one that is not there does nothing."""
        i = bisect_right(self._first, first_offset) - 1
        if i < 0 or self._first[i] != first_offset or not self._n[i]:
            return
        self._n[i] = 0
        self._dead += 1
        if self._dead > _COMPACT_ABOVE and self._dead * 2 > len(self._first):
            self._compact()

    def _compact(self) -> None:
        """Free the places of removed segments."""
        kept = [i for i, n in enumerate(self._n) if n]
        for name in ("_first", "_n", "_payload", "_stored", "_newest", "_clock", "_flags"):
            column: array[Any] = getattr(self, name)
            setattr(self, name, array(column.typecode, map(column.__getitem__, kept)))
        self._dead = 0

    def replace(self, segment: Segment) -> None:
        """Note other sizes of a segment that is there."""
        i = bisect_right(self._first, segment.first_offset) - 1
        if i >= 0 and self._first[i] == segment.first_offset and self._n[i]:
            self._payload[i] = segment.payload_bytes
            self._stored[i] = segment.stored_bytes

    def first_of(self, offset: int) -> int:
        """Return the first offset of the segment that holds an offset; -1 where none does."""
        i = bisect_right(self._first, offset) - 1
        if i < 0:
            return -1
        first: int = self._first[i]
        return first if offset < first + self._n[i] else -1

    def holding(self, offset: int) -> Segment | None:
        """Return the segment that holds an offset."""
        i = bisect_right(self._first, offset) - 1
        if i < 0 or offset >= self._first[i] + self._n[i]:
            return None
        return self._at(i)

    def following(self, offset: int) -> Segment | None:
        """Return the first segment that holds an offset or one behind it."""
        i = max(0, bisect_right(self._first, offset) - 1)
        while i < len(self._first):
            if self._n[i] and self._first[i] + self._n[i] > offset:
                return self._at(i)
            i += 1
        return None

    def since(self, offset: int) -> Iterator[Segment]:
        """Yield the segments that hold an offset or one behind it."""
        for i in range(max(0, bisect_right(self._first, offset) - 1), len(self._first)):
            if self._n[i] and self._first[i] + self._n[i] > offset:
                yield self._at(i)

    def not_before(self, clock: float) -> int:
        """Return the first offset whose segment's newest message is not older; -1 for none."""
        i = bisect_right(self._clock, clock)
        return self._first[i] if i < len(self._first) else -1

    def __iter__(self) -> Iterator[Segment]:
        """Yield all segments."""
        for i in range(len(self._first)):
            if self._n[i]:
                yield self._at(i)

    def _at(self, i: int) -> Segment:
        return Segment(
            self._first[i],
            self._n[i],
            self._payload[i],
            self._stored[i],
            self._newest[i],
            self._clock[i],
            self._flags[i],
        )


class Row(NamedTuple):
    """One message of a segment; see `Batch` for its columns."""

    offset: int
    topic: str
    payload: bytes
    qos: int
    publisher: str
    enqueued_at: float
    properties: str


class Decoded:
    """A segment whose frame was read.

    Attributes:
        first_offset: offset of its first message.
        sizes: payload bytes of each.
        clock_offset: added to `Batch.enqueued_at` to get seconds of the engine's clock.
    """

    __slots__ = (
        "_delays",
        "_expiries",
        "batch",
        "clock_offset",
        "first_offset",
        "flags",
        "memory_bytes",
        "n_messages",
        "sizes",
    )

    def __init__(self, segment: Segment, batch: Batch) -> None:
        self.first_offset = segment.first_offset
        self.n_messages = segment.n_messages
        self.batch = batch
        self.sizes = array("I", map(len, batch.payload))
        self.memory_bytes = segment.stored_bytes + segment.n_messages * _ROW_BYTES
        self.clock_offset = segment.newest_clock - segment.newest_at
        self.flags = segment.flags
        self._expiries: list[float | None] | None = None
        self._delays: list[float | None] | None = None

    def row(self, index: int) -> Row:
        """Return the columns of one message."""
        return Row._make(column[index] for column in self.batch)

    def expires_at(self, index: int) -> float | None:
        """Return the engine's time at which a message expires; None for never."""
        if not self.flags & EXPIRES:
            return None
        if self._expiries is None:
            self._expiries = [
                None if interval is None else at + self.clock_offset + interval
                for at, interval in zip(
                    self.batch.enqueued_at,
                    map(number_of, self.batch.properties, repeat(EXPIRY)),
                    strict=True,
                )
            ]
        return self._expiries[index]

    def delay(self, index: int) -> float | None:
        """Return a message's own delay in seconds; None for that of its queue."""
        if not self.flags & DELAYED:
            return None
        if self._delays is None:
            self._delays = [delay_of(text) for text in self.batch.properties]
        return self._delays[index]

    def stored_clock(self, index: int) -> float:
        """Return the engine's time at which a message arrived."""
        return self.batch.enqueued_at[index] + self.clock_offset


def decode(physical_id: int, segment: Segment, frame: bytes) -> Decoded:
    """Decode a frame.

    Raises:
        BrokenSegmentError: it does not hold the segment's messages.
    """
    try:
        batch = read_batch(frame)
    except ValueError as error:
        raise BrokenSegmentError(physical_id, segment.first_offset, str(error)) from error
    _check_offsets(physical_id, segment, batch.offset)
    return Decoded(segment, batch)


def check(physical_id: int, segment: Segment, frame: bytes) -> None:
    """Check that a frame can be decoded, without making an object for each message.

    Raises:
        BrokenSegmentError: it does not hold the segment's messages.
    """
    try:
        offsets = read_offsets(frame)
    except ValueError as error:
        raise BrokenSegmentError(physical_id, segment.first_offset, str(error)) from error
    _check_offsets(physical_id, segment, offsets)


def _check_offsets(physical_id: int, segment: Segment, offsets: list[int]) -> None:
    first, end = segment.first_offset, segment.first_offset + segment.n_messages
    if offsets != list(range(first, end)):
        why = f"it does not hold offsets {first} to {end - 1}"
        raise BrokenSegmentError(physical_id, first, why)


class SegmentCache:
    """Decoded segments of all queues; the least recently used ones are evicted."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._held: OrderedDict[tuple[int, int], Decoded] = OrderedDict()

    def get(self, physical_id: int, first_offset: int) -> Decoded | None:
        """Return a segment, which was then used last; None where it is not held."""
        found = self._held.get((physical_id, first_offset))
        if found is not None:
            self._held.move_to_end((physical_id, first_offset))
        return found

    def peek(self, physical_id: int, first_offset: int) -> Decoded | None:
        """Return a segment; any thread may call this."""
        return self._held.get((physical_id, first_offset))

    def put(self, physical_id: int, decoded: Decoded) -> None:
        """Hold a segment."""
        self.drop(physical_id, decoded.first_offset)
        self._held[physical_id, decoded.first_offset] = decoded
        self.n_bytes += decoded.memory_bytes
        while self.n_bytes > self.max_bytes and len(self._held) > 1:
            _, evicted = self._held.popitem(last=False)
            self.n_bytes -= evicted.memory_bytes

    def drop(self, physical_id: int, first_offset: int) -> None:
        """Hold a segment no longer."""
        dropped = self._held.pop((physical_id, first_offset), None)
        if dropped is not None:
            self.n_bytes -= dropped.memory_bytes


def user_property(properties: str, name: str) -> str | None:
    """Return a user property out of properties in JSON; None where there is none."""
    if not properties or name not in properties:
        return None
    for pair in json.loads(properties).get("user_property") or ():
        if pair[0] == name:
            return str(pair[1])
    return None


def number_of(properties: str, name: str) -> float | None:
    """Return a number out of properties in JSON; None where there is none."""
    if not properties or name not in properties:
        return None
    value = json.loads(properties).get(name)
    return float(value) if isinstance(value, int | float) else None


def delay_of(properties: str) -> float | None:
    """Return a message's own delay in seconds, out of properties in JSON; None for none."""
    text = user_property(properties, DELAY_PROPERTY)
    try:
        return None if text is None else min(max(0.0, float(text)), MAX_DELAY_SECONDS)
    except ValueError:
        return None


def count_down(properties: str, expires_at: float, now: float) -> str:
    """Return properties in JSON with what is left of the Message Expiry Interval [MQTT-3.3.2-6]."""
    values = json.loads(properties)
    values[EXPIRY] = interval_left(expires_at, now)
    return json.dumps(values, ensure_ascii=False)
