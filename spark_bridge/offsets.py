"""A query's position in a queue, and its next micro-batch.

A position is, for each physical queue, the offset of the next message to read, and the incarnation
of the queue. Spark writes the position's JSON form to the checkpoint before a micro-batch runs, and
asks for the same range again after a crash. So two positions determine a range, and the queue keeps
every message until the query's group has committed the position after it.

The module only compares positions with what the queue reports. A difference that this query's own
reading cannot explain (messages that are gone unread, a queue that was created again or is shorter
than the checkpoint) is reported, never skipped.

An older checkpoint has positions without an incarnation. They are taken for those of the
queue that exists, where their offsets do not contradict that; the next micro-batch's position has
the incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.plugins.queue.client import is_same_incarnation
from penstock.spark_bridge.errors import QueueChangedError

_QUEUE: Final = "queue"
_INCARNATION: Final = "incarnation"
_NEXT: Final = "next"


@dataclass(frozen=True, slots=True)
class Held:
    """What a queue holds.

    Attributes:
        incarnation: of the queue.
        offsets: physical queue to (earliest offset held, offset of the next message to be
            enqueued).
    """

    incarnation: str
    offsets: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Position:
    """A query's position.

    Attributes:
        queue: the logical queue, so that a checkpoint cannot be used for another one.
        following: physical queue to the offset of the next message to read.
        incarnation: of the queue; "" in an older checkpoint.
    """

    queue: str
    following: Mapping[int, int]
    incarnation: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the form for Spark; equal positions have equal JSON texts."""
        incarnation = {_INCARNATION: self.incarnation} if self.incarnation else {}
        following = {str(number): self.following[number] for number in sorted(self.following)}
        return {_QUEUE: self.queue, **incarnation, _NEXT: following}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], queue: str) -> Position:
        """Read the form for Spark back.

        Args:
            value: what ``to_json`` returned.
            queue: the logical queue that the query's options name.

        Raises:
            QueueChangedError: the checkpoint belongs to another queue or to another source.
        """
        try:
            name = value[_QUEUE]
            following = {int(number): int(offset) for number, offset in value[_NEXT].items()}
            incarnation = str(value.get(_INCARNATION, ""))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise QueueChangedError(
                f"the checkpoint holds {value!r}, which is no position in a Penstock queue; "
                "use a checkpoint directory of this query's own"
            ) from None
        if name != queue:
            raise QueueChangedError(
                f"the checkpoint belongs to queue {name!r}, the query reads {queue!r}; "
                "use a checkpoint directory of this query's own"
            )
        return cls(queue, following, incarnation)

    def is_of(self, held: Held) -> bool:
        """Say whether the position may be one in the queue that exists."""
        return not self.incarnation or is_same_incarnation(self.incarnation, held.incarnation)


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one physical queue with ``start <= offset < end``.

    Attributes:
        physical_queue: its number.
        start: first offset.
        end: the offset after the last.
        incarnation: of the queue.
    """

    physical_queue: int
    start: int
    end: int
    incarnation: str


def latest(queue: str, held: Held) -> Position:
    """Return the position after all messages in the queue."""
    following = {number: end for number, (_, end) in held.offsets.items()}
    return Position(queue, following, held.incarnation)


def find_losses(start: Position, held: Held) -> list[str]:
    """Report messages that the query has still to read and the queue no longer holds.

    Args:
        start: the query's position.
        held: what the queue holds now.

    Returns:
        A sentence for each physical queue that lost something, or one for a queue that was created
        again; empty when nothing is lost.
    """
    if not start.is_of(held):
        recreated = (
            "the queue was deleted and created again since the checkpoint was written (incarnation "
            f"{start.incarnation}, the queue's is {held.incarnation}): what the query had not read "
            "is gone, and the checkpoint's offsets mean nothing in the new queue"
        )
        return [recreated]
    losses = []
    for number, wanted in sorted(start.following.items()):
        if number not in held.offsets:
            losses.append(
                f"physical queue {number} is gone, the checkpoint stands at offset {wanted} in it "
                f"(the queue has {', '.join(map(str, sorted(held.offsets))) or 'none'})"
            )
            continue
        first, following = held.offsets[number]
        if following < wanted:
            losses.append(
                f"physical queue {number} ends at offset {following}, the checkpoint stands at "
                f"{wanted}: the queue was created anew or restored from a backup"
            )
        elif first > wanted:
            losses.append(
                f"offsets {wanted} to {first - 1} of physical queue {number} left the queue before "
                "this query read them: another query commits its group, or they expired or were "
                "purged"
            )
    return losses


def resume(start: Position, held: Held) -> Position:
    """Return the position from which to read on, after losses were reported.

    Args:
        start: the query's position.
        held: what the queue holds now.

    Returns:
        ``start`` where the queue still holds it; the queue's earliest offset for a physical queue
        that is new, was created again or lost messages. Physical queues that are gone are left out.
    """
    known = start.following if start.is_of(held) else {}
    following = {}
    for number, (first, end) in held.offsets.items():
        wanted = known.get(number, first)
        following[number] = first if wanted > end else max(wanted, first)
    return Position(start.queue, following, held.incarnation)


def plan_end(start: Position, past: Position, *, max_messages: int | None = None) -> Position:
    """Return the end of the next micro-batch.

    A limit is divided in proportion to the messages that wait in each physical queue. So all of
    them advance through about the same time, and windows of event time see little lateness.

    Args:
        start: the query's position, held by the queue (see ``resume``).
        past: the end of what may be read: that of the queue, or of an available-now run. Physical
            queues that it lacks are not read.
        max_messages: messages of the micro-batch at most, 1 or more; None for no limit.

    Returns:
        A position at or after ``start``, equal to it where nothing waits.
    """
    waiting = {
        number: max(0, past.following.get(number, begin) - begin)
        for number, begin in start.following.items()
    }
    shares = waiting if max_messages is None else _share(max_messages, waiting)
    following = {number: begin + shares[number] for number, begin in start.following.items()}
    return Position(start.queue, following, start.incarnation)


def _share(limit: int, waiting: Mapping[int, int]) -> dict[int, int]:
    """Divide a limit in proportion; the remainder of the rounding goes to the longest queues."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {number: limit * count // total for number, count in waiting.items()}
    left = limit - sum(shares.values())
    longest_first = sorted(waiting, key=lambda number: (-waiting[number], number))
    for number in longest_first[:left]:
        shares[number] += 1
    return shares


def plan_ranges(start: Position, end: Position, held: Held) -> list[Range]:
    """Return what a micro-batch reads, a range for each physical queue with messages.

    Args:
        start: the end of the micro-batch before.
        end: the end of this one.
        held: what the queue holds now; has the first offset of a physical queue that is not in
            ``start`` yet. Nothing in it was committed, so the answer is the same after a crash.

    Returns:
        Ranges in the order of the physical queues, none of them empty; none at all where the queue
        was created again after ``end`` was planned.
    """
    if not end.is_of(held):
        return []
    known = start.following if start.is_of(held) else {}
    ranges = []
    for number, past in sorted(end.following.items()):
        first = held.offsets[number][0] if number in held.offsets else past
        begin = known.get(number, first)
        begin = first if begin > past else max(begin, first)
        if begin < past:
            ranges.append(Range(number, begin, past, held.incarnation))
    return ranges
