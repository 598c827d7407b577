from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.plugins.queue.leases import Lease, LeaseTable
from tests.helpers.effort import examples

TIMEOUT = 10.0


def lease_one(table: LeaseTable, offset: int = 0, lease_id: int = 1, now: float = 0.0) -> Lease:
    """Book a first receive."""
    lease = Lease(offset, 0, 100)
    table.lease(lease, lease_id, now)
    return lease


def test_delete_within_the_timeout_removes_the_message() -> None:
    """A delete in the visibility timeout removes it for good (paper 004)."""
    table = LeaseTable(TIMEOUT)
    lease = lease_one(table)
    assert table.delete(0, 1) is lease
    assert table.expire(99.0) == 0
    assert len(table) == 0


def test_message_is_visible_again_after_the_timeout() -> None:
    """What is not deleted in time becomes visible again, with its receives counted."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    assert table.expire(9.9) == 0
    assert table.visible_again(10) == []
    assert table.expire(10.0) == 1
    (again,) = table.visible_again(10)
    table.lease(again, 2, 10.0)
    assert again.receive_count == 2


def test_old_handle_is_dead_once_the_message_was_received_again() -> None:
    """Only the newest receive may delete: another may be at work on the message."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    table.expire(10.0)
    table.lease(table.visible_again(1)[0], 2, 10.0)
    assert table.delete(0, 1) is None
    assert table.delete(0, 2) is not None


def test_late_delete_counts_while_nobody_has_received_the_message_anew() -> None:
    """A delete after the timeout spares a second delivery when nobody else has it."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    table.expire(10.0)
    assert table.delete(0, 1) is not None
    assert table.visible_again(10) == []


def test_visible_messages_come_oldest_first_and_up_to_the_limit() -> None:
    """Messages that are visible again are given in the order of their offsets."""
    table = LeaseTable(TIMEOUT)
    for offset in (7, 3, 5):
        lease_one(table, offset, lease_id=offset)
    table.expire(10.0)
    assert [lease.offset for lease in table.visible_again(2)] == [3, 5]
    assert [lease.offset for lease in table.visible_again(2)] == [7]


def test_failed_delete_makes_the_message_visible() -> None:
    """A message whose delete failed is delivered again: at least once."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    deleted = table.delete(0, 1)
    assert deleted is not None
    table.put_back(deleted)
    assert [lease.offset for lease in table.visible_again(5)] == [0]


def test_message_is_visible_once_however_often_it_became_visible() -> None:
    """A late delete that fails does not give the message to two receivers."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    table.expire(10.0)
    late = table.delete(0, 1)
    assert late is not None
    table.put_back(late)
    assert table.visible_again(5) == [late]


def test_receive_that_was_given_back_does_not_count() -> None:
    """A message whose receiver never got it is visible at once, with no receive counted."""
    table = LeaseTable(TIMEOUT)
    lease = lease_one(table)
    table.release(0, 1)
    assert table.visible_again(5) == [lease]
    assert lease.receive_count == 0
    assert table.delete(0, 1) is None


def test_release_of_a_dead_handle_changes_nothing() -> None:
    """A receive that is not the newest cannot be given back."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    table.release(0, 99)
    table.release(5, 1)
    assert table.visible_again(5) == []


def test_messages_that_left_the_queue_are_forgotten() -> None:
    """What is older than the earliest offset is neither leased nor visible."""
    table = LeaseTable(TIMEOUT)
    for offset in range(4):
        lease_one(table, offset, lease_id=offset + 1)
    table.release(0, 1)
    table.drop_below(2)
    assert len(table) == 2
    table.expire(10.0)
    assert [lease.offset for lease in table.visible_again(9)] == [2, 3]


def test_check_invariants_finds_broken_books() -> None:
    """The check is able to fail."""
    table = LeaseTable(TIMEOUT)
    lease_one(table)
    table._invisible.clear()
    with pytest.raises(AssertionError, match="neither visible nor invisible"):
        table.check_invariants()


class LeasesAgainstModel(RuleBasedStateMachine):
    """Receives, deletes, expiries and retention in any order, beside a plain model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(TIMEOUT)
        self.now = 0.0
        self.next_offset = 0
        self.next_lease_id = 1
        # Offset to (lease id, when it becomes visible); None once it is.
        self.model: dict[int, tuple[int, float | None]] = {}
        self.taken: list[Lease] = []

    @rule()
    def receive_new(self) -> None:
        """A message is received for the first time."""
        lease_one(self.table, self.next_offset, self.next_lease_id, self.now)
        self.model[self.next_offset] = (self.next_lease_id, self.now + TIMEOUT)
        self.next_offset += 1
        self.next_lease_id += 1

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        """Time passes, and leases expire."""
        self.now += seconds
        expired = [
            offset
            for offset, (_, visible_at) in self.model.items()
            if visible_at is not None and visible_at <= self.now
        ]
        assert self.table.expire(self.now) == len(expired)
        for offset in expired:
            self.model[offset] = (self.model[offset][0], None)

    @rule(n_max=st.integers(1, 5))
    def receive_again(self, n_max: int) -> None:
        """What is visible again is received anew."""
        visible = sorted(offset for offset, held in self.model.items() if held[1] is None)
        taken = self.table.visible_again(n_max)
        assert [lease.offset for lease in taken] == visible[:n_max]
        for lease in taken:
            self.table.lease(lease, self.next_lease_id, self.now)
            self.model[lease.offset] = (self.next_lease_id, self.now + TIMEOUT)
            self.next_lease_id += 1

    @precondition(lambda self: self.model)
    @rule(data=st.data(), is_newest=st.booleans(), fails=st.booleans())
    def delete(self, data: st.DataObject, *, is_newest: bool, fails: bool) -> None:
        """A handle is used, the newest or a dead one; the storage may fail."""
        offset = data.draw(st.sampled_from(sorted(self.model)))
        lease_id = self.model[offset][0] if is_newest else self.next_lease_id
        deleted = self.table.delete(offset, lease_id)
        assert (deleted is not None) == (is_newest and lease_id != 0)
        if deleted is None:
            return
        if fails:
            self.table.put_back(deleted)
            self.model[offset] = (lease_id, None)
        else:
            del self.model[offset]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A receive is given back."""
        offset = data.draw(st.sampled_from(sorted(self.model)))
        lease_id, visible_at = self.model[offset]
        self.table.release(offset, lease_id)
        if visible_at is not None:
            self.model[offset] = (0, None)

    @rule(back=st.integers(0, 5))
    def drop_below(self, back: int) -> None:
        """Messages leave the queue unread."""
        below = self.next_offset - back
        self.table.drop_below(below)
        self.model = {offset: held for offset, held in self.model.items() if offset >= below}

    @invariant()
    def books_agree(self) -> None:
        """Table and model hold the same messages."""
        self.table.check_invariants()
        assert len(self.table) == len(self.model)


LeasesAgainstModel.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=30, deadline=None
)
TestLeasesAgainstModel = LeasesAgainstModel.TestCase
