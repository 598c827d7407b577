from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.plugins.queue.engine import Usage
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.engine_sqlite import SqliteStore
from penstock.plugins.queue.store import Mark, NewSegment, Store, wanted_bits
from tests.plugins.queue.running import ENGINES, store

KEY = ("q", 0)


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with the physical queues q/0 and q/1."""
    made = store(request.param, tmp_path)
    made.open({"q": 2})
    yield made
    made.close()


def segment(first_offset: int, n_messages: int = 4, newest_at: float = 0.0) -> NewSegment:
    """Return a segment whose frame says where it begins."""
    return NewSegment(KEY, first_offset, n_messages, newest_at, b"frame %d" % first_offset)


def read(
    opened: Store, start: int = 0, end: int = 1000, n: int = 1000, size: int = 10**6
) -> list[int]:
    """Return the first offsets of the segments that a range holds."""
    return [found.first_offset for found in opened.read(KEY, start, end, n, size)]


def test_new_queue_is_empty(opened: Store) -> None:
    """A physical queue begins at offset 0."""
    assert opened.usage == {("q", 0): Usage(0, 0, 0, 0), ("q", 1): Usage(0, 0, 0, 0)}
    assert read(opened) == []


def test_written_segments_read_back(opened: Store) -> None:
    """What was written is there, with usage to match, and its neighbour is untouched."""
    opened.write([segment(0), segment(4)], [])
    (first, second) = opened.read(KEY, 0, 8, 100, 100)
    assert first == (0, 4, 0, b"frame 0")
    assert second == (4, 4, 0, b"frame 4")
    assert opened.usage[KEY] == Usage(0, 8, 8, 14)
    assert opened.usage["q", 1] == Usage(0, 0, 0, 0)


def test_range_touches_the_segments_that_overlap_it(opened: Store) -> None:
    """A range finds the segment in whose middle it begins, and none that begins at its end."""
    opened.write([segment(0), segment(4), segment(8)], [])
    assert read(opened, 5, 8) == [4]
    assert read(opened, 3, 9) == [0, 4, 8]
    assert read(opened, 4, 4) == []
    assert read(opened, 12, 20) == []


def test_reading_stops_when_it_has_enough(opened: Store) -> None:
    """A read ends with the segment in which the wanted messages or bytes are reached."""
    opened.write([segment(0), segment(4), segment(8)], [])
    assert read(opened, 2, 12, n=2) == [0]
    assert read(opened, 2, 12, n=3) == [0, 4]
    assert read(opened, 0, 12, size=1) == [0]
    assert read(opened, 0, 12, size=8) == [0, 4]


def test_deleted_messages_are_marked_and_a_whole_segment_goes(opened: Store) -> None:
    """Space is given back with the last message of a segment."""
    opened.write([segment(0), segment(4)], [])
    opened.write([], [Mark(KEY, 0, 4, 0b0101)])
    assert opened.read(KEY, 0, 4, 9, 999)[0].gone == 0b0101
    assert opened.usage[KEY] == Usage(0, 8, 6, 14)
    opened.write([], [Mark(KEY, 0, 4, 0b1110)])
    assert read(opened) == [4]
    assert opened.usage[KEY] == Usage(0, 8, 4, 7)


def test_segments_without_wanted_messages_do_not_count(opened: Store) -> None:
    """Deleted messages at the front of a range do not make the answer empty."""
    opened.write([segment(0), segment(4)], [Mark(KEY, 0, 4, 0b1110)])
    assert read(opened, 1, 8, n=1, size=1) == [4]


def test_mark_on_what_is_gone_does_nothing(opened: Store) -> None:
    """A delete may come twice, or after its segment has left."""
    opened.write([segment(0)], [Mark(KEY, 0, 4, 0b1111)])
    opened.write([], [Mark(KEY, 0, 4, 0b0001)])
    assert opened.usage[KEY] == Usage(0, 4, 0, 0)


def test_truncating_deletes_below_an_offset(opened: Store) -> None:
    """Whole segments go, one that is cut through keeps the rest; offsets go on."""
    opened.write(
        [segment(0), segment(4), segment(8)], [Mark(KEY, 0, 4, 1), Mark(KEY, 4, 4, 0b1001)]
    )
    assert opened.truncate(KEY, 6) == 3 + 1
    assert opened.usage[KEY] == Usage(6, 12, 5, 14)
    (cut, whole) = opened.read(KEY, 0, 12, 99, 999)
    assert (cut.first_offset, cut.gone, whole.first_offset) == (4, 0b1011, 8)
    assert opened.truncate(KEY, 12) == 5
    assert opened.usage[KEY] == Usage(12, 12, 0, 0)


def test_older_segments_are_found_up_to_the_first_younger_one(opened: Store) -> None:
    """Retention counts from the front and stops at the first segment that may stay."""
    ages = {0: 10.0, 4: 20.0, 8: 15.0, 12: 40.0}
    opened.write([segment(first, newest_at=at) for first, at in ages.items()], [])
    assert opened.older_than(KEY, 5.0) == 0
    assert opened.older_than(KEY, 18.0) == 4
    assert opened.older_than(KEY, 20.0) == 4
    assert opened.older_than(KEY, 30.0) == 12
    assert opened.older_than(KEY, 99.0) == 16


@given(
    st.integers(0, 9), st.integers(1, 6), st.integers(0, 63), st.integers(0, 12), st.integers(0, 16)
)
def test_wanted_bits_are_those_in_range_and_there(
    first: int, n: int, gone: int, start: int, end: int
) -> None:
    """A bit is set for each message in the range that is not deleted."""
    wanted = wanted_bits(first, n, gone, start, end)
    for index in range(8):
        is_wanted = index < n and start <= first + index < end and not gone >> index & 1
        assert bool(wanted >> index & 1) == is_wanted


class StoresAgree(RuleBasedStateMachine):
    """Writes, deletes, truncations, reads and restarts in any order: both stores say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.sqlite = SqliteStore(f"{self.folder.name}/queue.db", "normal")
        self.memory = MemoryStore()
        self.newest_at = 0.0
        for one in (self.sqlite, self.memory):
            one.open({"q": 1})

    def teardown(self) -> None:
        """Close the file."""
        self.sqlite.close()
        self.folder.cleanup()

    @rule(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), age=st.floats(0, 5))
    def write(self, sizes: list[int], age: float) -> None:
        """Segments are appended."""
        self.newest_at += age
        first = self.memory.usage[KEY].next
        segments = []
        for size in sizes:
            segments.append(segment(first, size, self.newest_at))
            first += size
        for one in (self.sqlite, self.memory):
            one.write(segments, [])

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Messages of several segments are deleted."""
        found = self.memory.read(KEY, 0, 10**6, 10**6, 10**6)
        if not found:
            return
        chosen = data.draw(st.lists(st.sampled_from(found), max_size=3))
        marks = [
            Mark(KEY, one.first_offset, one.n_messages, data.draw(st.integers(1, 1023)))
            for one in chosen
        ]
        for one in (self.sqlite, self.memory):
            one.write([], marks)

    @rule(back=st.integers(0, 20))
    def truncate(self, back: int) -> None:
        """A reader commits."""
        usage = self.memory.usage[KEY]
        below = max(usage.earliest, usage.next - back)
        assert self.sqlite.truncate(KEY, below) == self.memory.truncate(KEY, below)

    @rule()
    def restart(self) -> None:
        """The file is closed and opened."""
        self.sqlite.close()
        self.sqlite = SqliteStore(f"{self.folder.name}/queue.db", "normal")
        self.sqlite.open({"q": 1})

    @rule(
        start=st.integers(0, 60),
        n=st.integers(0, 30),
        most=st.integers(1, 20),
        size=st.integers(1, 50),
    )
    def read(self, start: int, n: int, most: int, size: int) -> None:
        """Any range reads the same."""
        answers = [
            one.read(KEY, start, start + n, most, size) for one in (self.sqlite, self.memory)
        ]
        assert answers[0] == answers[1]

    @rule(back=st.floats(-1, 20))
    def look_for_old(self, back: float) -> None:
        """Retention finds the same."""
        before = self.newest_at - back
        assert self.sqlite.older_than(KEY, before) == self.memory.older_than(KEY, before)

    @invariant()
    def usage_agrees(self) -> None:
        """What is held is counted, and the counts agree."""
        assert self.sqlite.usage == self.memory.usage
        found = self.memory.read(KEY, 0, 10**6, 10**6, 10**6)
        held = sum(one.n_messages - one.gone.bit_count() for one in found)
        stored_bytes = sum(len(one.frame) for one in found)
        usage = self.memory.usage[KEY]
        assert (usage.messages, usage.stored_bytes) == (held, stored_bytes)


StoresAgree.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestStoresAgree = StoresAgree.TestCase
