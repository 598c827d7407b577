"""Visibility timeout: which message was received, and until when it is invisible (paper 004).

A received message is invisible to other receivers until its visibility timeout has passed. A delete
in that time removes it; otherwise it becomes visible again. A late delete still counts as long as
the message was not received again, as no other receiver works on it then.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Lease:
    """One message that was received and not deleted.

    Attributes:
        offset: of the message in its physical queue.
        segment: first offset of its segment.
        segment_count: messages that the segment held when it was written.
        lease_id: names the newest receive; None after that one was given back.
        receive_count: how often it was received.
        expires_at: monotonic seconds at which it becomes visible; None when it is visible.
    """

    offset: int
    segment: int
    segment_count: int
    lease_id: int | None = None
    receive_count: int = 0
    expires_at: float | None = None


class LeaseTable:
    """The leases of one physical queue.

    Invariants: a lease is either invisible and in `_invisible`, in the order in which it
    expires, or visible and in `_visible`; `_visible` may also hold offsets whose lease is gone
    or invisible, which are skipped.

    Args:
        visibility_timeout: seconds, the same for every receive.
    """

    def __init__(self, visibility_timeout: float) -> None:
        self.visibility_timeout = visibility_timeout
        self._leases: dict[int, Lease] = {}
        self._invisible: OrderedDict[int, Lease] = OrderedDict()
        self._visible: list[int] = []

    def __len__(self) -> int:
        return len(self._leases)

    def lease(self, lease: Lease, lease_id: int, now: float) -> None:
        """Record a receive: a new `Lease`, or one that had become visible again."""
        lease.lease_id = lease_id
        lease.receive_count += 1
        lease.expires_at = now + self.visibility_timeout
        self._leases[lease.offset] = lease
        self._invisible[lease.offset] = lease

    def expire(self, now: float) -> int:
        """Make messages visible that were not deleted in time; return how many."""
        n_expired = 0
        while self._invisible:
            lease = next(iter(self._invisible.values()))
            if lease.expires_at is None or lease.expires_at > now:
                break
            self._show(lease)
            n_expired += 1
        return n_expired

    def visible_again(self, n_max: int) -> list[Lease]:
        """Take up to `n_max` visible leases out, the oldest messages first.

        Each must then be passed to `lease`, unless `is_current` says that it was deleted meanwhile,
        or to `put_back`.
        """
        taken: list[Lease] = []
        while self._visible and len(taken) < n_max:
            lease = self._leases.get(heapq.heappop(self._visible))
            if lease is not None and lease.expires_at is None and lease not in taken[-1:]:
                taken.append(lease)
        return taken

    def is_current(self, lease: Lease) -> bool:
        """Say whether the message still waits for a delete."""
        return self._leases.get(lease.offset) is lease

    def put_back(self, lease: Lease) -> None:
        """Make a message visible at once: its delete failed, or it could not be read."""
        self._leases[lease.offset] = lease
        self._show(lease)

    def release(self, offset: int, lease_id: int | None) -> None:
        """Undo a receive whose client never got the message."""
        lease = self._leases.get(offset)
        if lease is not None and lease.lease_id == lease_id and lease.expires_at is not None:
            lease.receive_count -= 1
            lease.lease_id = None
            self._show(lease)

    def delete(self, offset: int, lease_id: int) -> Lease | None:
        """Remove a message by its newest receive.

        Returns:
            The lease, for `put_back` should the delete fail; None where no message waits
            under this receive.
        """
        lease = self._leases.get(offset)
        if lease is None or lease.lease_id != lease_id:
            return None
        del self._leases[offset]
        self._invisible.pop(offset, None)
        return lease

    def drop_below(self, offset: int) -> None:
        """Forget all messages below `offset`: they are gone from the queue."""
        self._drop([held for held in self._leases if held < offset])

    def drop_segment(self, first_offset: int) -> None:
        """Forget all messages of a segment."""
        self._drop([o for o, lease in self._leases.items() if lease.segment == first_offset])

    def _drop(self, offsets: list[int]) -> None:
        for gone in offsets:
            del self._leases[gone]
            self._invisible.pop(gone, None)

    def _show(self, lease: Lease) -> None:
        self._invisible.pop(lease.offset, None)
        lease.expires_at = None
        heapq.heappush(self._visible, lease.offset)

    def check_invariants(self) -> None:
        """Raise AssertionError where an invariant of the class does not hold."""
        visible = {offset for offset, lease in self._leases.items() if lease.expires_at is None}
        if set(self._invisible) | visible != set(self._leases):
            raise AssertionError("a lease is neither visible nor invisible")
        if set(self._invisible) & visible:
            raise AssertionError("a lease is both visible and invisible")
        deadlines = [lease.expires_at or 0.0 for lease in self._invisible.values()]
        if deadlines != sorted(deadlines):
            raise AssertionError("leases do not stand in the order in which they expire")
