"""A store in memory, for tests and for queues that may be lost with the program."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from penstock.plugins.queue.engine import Usage
from penstock.plugins.queue.store import Key, Mark, NewSegment, StoredSegment, wanted_bits


class MemoryStore:
    """Segments in dictionaries; see `Store` for the contract of its methods.

    Attributes:
        usage: what each physical queue holds.
        aside: messages that are set aside.
        tightened: empty, as there are no files.
    """

    def __init__(self) -> None:
        self.usage: dict[Key, Usage] = {}
        self.aside: dict[Key, int] = {}
        self.tightened: Sequence[str] = ()
        self._segments: dict[Key, dict[int, tuple[NewSegment, int]]] = {}
        self._lock = threading.Lock()

    def open(self, queues: Mapping[str, int]) -> None:
        """Create the physical queues."""
        for name, physical_queues in queues.items():
            for number in range(physical_queues):
                self.usage[name, number] = Usage(0, 0, 0, 0)
                self._segments[name, number] = {}

    def close(self) -> None:
        """Forget everything."""
        self.usage.clear()
        self._segments.clear()

    def write(self, segments: Sequence[NewSegment], marks: Sequence[Mark]) -> None:
        """Store segments and delete messages."""
        with self._lock:
            for segment in segments:
                self._segments[segment.key][segment.first_offset] = (segment, 0)
                usage = self.usage[segment.key]
                self.usage[segment.key] = usage._replace(
                    next=segment.first_offset + segment.n_messages,
                    messages=usage.messages + segment.n_messages,
                    stored_bytes=usage.stored_bytes + len(segment.frame),
                )
            for mark in marks:
                self._mark(mark.key, mark.first_offset, mark.bits)

    def truncate(self, key: Key, below: int) -> int:
        """Delete every message below an offset."""
        with self._lock:
            before = self.usage[key].messages
            for first_offset in [first for first in self._segments[key] if first < below]:
                self._mark(key, first_offset, (1 << (below - first_offset)) - 1)
            usage = self.usage[key]
            self.usage[key] = usage._replace(earliest=max(usage.earliest, below))
            return before - usage.messages

    def set_aside(self, key: Key, first_offset: int) -> int:
        """Drop a segment: in memory it cannot be repaired."""
        with self._lock:
            before = self.usage[key].messages
            held = self._segments[key].get(first_offset)
            if held is not None:
                self._mark(key, first_offset, (1 << held[0].n_messages) - 1)
            n_messages = before - self.usage[key].messages
            self.aside[key] = self.aside.get(key, 0) + n_messages
            return n_messages

    def why_lost(self) -> str:
        """Return "": there is no file."""
        return ""

    def older_than(self, key: Key, enqueued_before: float) -> int:
        """Return the offset below which every segment is older."""
        with self._lock:
            offset = self.usage[key].earliest
            for segment, _ in self._segments[key].values():
                if segment.newest_at >= enqueued_before:
                    break
                offset = max(offset, segment.first_offset + segment.n_messages)
            return offset

    def read(
        self, key: Key, start: int, end: int, max_messages: int, max_bytes: int
    ) -> list[StoredSegment]:
        """Return the segments with offsets in a range."""
        found: list[StoredSegment] = []
        with self._lock:
            for segment, gone in self._segments[key].values():
                first_offset, n_messages = segment.first_offset, segment.n_messages
                if first_offset >= end or max_messages <= 0 or max_bytes <= 0:
                    break
                wanted = wanted_bits(first_offset, n_messages, gone, start, end)
                if wanted:
                    found.append(StoredSegment(first_offset, n_messages, gone, segment.frame))
                    max_messages -= wanted.bit_count()
                    max_bytes -= len(segment.frame)
        return found

    def _mark(self, key: Key, first_offset: int, bits: int) -> None:
        held = self._segments[key].get(first_offset)
        if held is None:
            return
        segment, gone = held
        whole = (1 << segment.n_messages) - 1
        now_gone = gone | (bits & whole)
        n_removed = now_gone.bit_count() - gone.bit_count()
        usage = self.usage[key]
        freed = 0
        if now_gone == whole:
            del self._segments[key][first_offset]
            freed = len(segment.frame)
        else:
            self._segments[key][first_offset] = (segment, now_gone)
        self.usage[key] = usage._replace(
            messages=usage.messages - n_removed, stored_bytes=usage.stored_bytes - freed
        )
