"""Positions of a query in its queues, and the ranges that a micro-batch reads.

A position is, for each queue, its incarnation and for each of its physical queues the offset of the
next message to read. Spark writes the position's JSON form to the checkpoint before a micro-batch
runs, and asks for the same range again after a crash. So two positions determine a range, and a
queue keeps every message until the query's group has committed the position after it.

A position has two more fields. `reader` is the name of the query to which its group belongs. It is
made with the checkpoint, and nothing else distinguishes two queries. `first` is where the query's
first micro-batch begins. Spark has only the end of that batch in the checkpoint, and asks for its
beginning again when it repeats the batch; ``latest`` would then be another place.

The module only compares positions with what a queue reports. A difference that this query's own
reading cannot explain (messages that are gone unread, a queue that was created again or is shorter
than the checkpoint) is reported, never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from penstock.spark_bridge.errors import QueueChangedError

_INCARNATION: Final = "incarnation"
_NEXT: Final = "next"
_READER: Final = "reader"
_FIRST: Final = "first"

ONE_TASK_MESSAGES: Final = 25_000
"""One task reads so many messages of 1 KiB in half a second of processor time. More tasks would
save little, and each would write a small file of its own."""


@dataclass(frozen=True, slots=True)
class QueueContents:
    """What a queue holds.

    Attributes:
        incarnation: UUID of the queue; a queue that is created again gets another one.
        offsets: physical queue to (earliest offset held, offset of the next message to be
            enqueued).
    """

    incarnation: str
    offsets: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A place in one queue.

    Attributes:
        following: physical queue to the offset of the next message to read.
        incarnation: UUID of the queue.
        reader: name of the query; "" in a position that is not of a checkpoint.
        first: where the micro-batch that ends here begins, with the keys of `following`; None where
            it begins at the end of the one before.
    """

    following: Mapping[int, int]
    incarnation: str
    reader: str = ""
    first: Mapping[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form for Spark; equal positions have equal JSON texts."""
        told = {_INCARNATION: self.incarnation, _READER: self.reader}
        first = {} if self.first is None else {_FIRST: _texts(self.first)}
        return (
            {name: text for name, text in told.items() if text}
            | first
            | {_NEXT: _texts(self.following)}
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> QueuePosition:
        """Read the form for Spark back.

        Raises:
            KeyError, TypeError, ValueError or AttributeError: the value is not a position.
        """
        first = value.get(_FIRST)
        return cls(
            _numbers(value[_NEXT]),
            str(value[_INCARNATION]),
            str(value.get(_READER, "")),
            None if first is None else _numbers(first),
        )

    def is_at(self, other: QueuePosition) -> bool:
        """Say whether two positions are one place."""
        return self.following == other.following and self.incarnation == other.incarnation

    def is_of(self, held: QueueContents) -> bool:
        """Say whether the position is one in the queue that exists."""
        return self.incarnation == held.incarnation


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offsets[number] for number in sorted(offsets)}


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in offsets.items()}


@dataclass(frozen=True, slots=True)
class Position:
    """A query's position: a place in each of its queues, by name."""

    queues: Mapping[str, QueuePosition]

    @property
    def reader(self) -> str:
        """The name of the query; "" in a position that is not of a checkpoint."""
        return next((one.reader for one in self.queues.values() if one.reader), "")

    def beginnings(self) -> Position:
        """Return where the micro-batch that ends here begins, in queues that tell it."""
        return Position(
            {
                queue: replace(one, following=one.first, first=None)
                for queue, one in self.queues.items()
                if one.first is not None
            }
        )

    def named(self, reader: str) -> Position:
        """Return the position with the name of its query, where its first micro-batch begins."""
        return Position(
            {
                queue: replace(one, reader=reader, first=one.following)
                for queue, one in self.queues.items()
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form for Spark; equal positions have equal JSON texts."""
        return {name: self.queues[name].to_json() for name in sorted(self.queues)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], names: Sequence[str] | None = None) -> Position:
        """Read the form for Spark back.

        Args:
            value: what ``to_json`` returned.
            names: the queues that the query's options name; None for any. Those that the checkpoint
                lacks are left out.

        Raises:
            QueueChangedError: the checkpoint belongs to another source, or has a queue that the
                query does not read.
        """
        try:
            queues = {name: QueuePosition.from_json(one) for name, one in value.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise QueueChangedError(
                f"the checkpoint holds {value!r}, which is no position in a Penstock queue; "
                "use a checkpoint directory of this query's own"
            ) from None
        for name in queues:
            if names is not None and name not in names:
                raise QueueChangedError(
                    f"the checkpoint belongs to queue {name!r}, the query reads "
                    f"{', '.join(map(repr, names))}; use a checkpoint directory of this query's own"
                )
        return cls(queues)


def least(positions: Sequence[Position]) -> Position:
    """Return the least of several positions of one query, queue by queue.

    A queue counts that only some of them have. A physical queue that is missing in one of these is
    left out.
    """
    found: dict[str, QueuePosition] = {}
    for position in positions:
        for queue, one in position.queues.items():
            other = found.get(queue, one)
            following = {
                number: min(offset, other.following[number])
                for number, offset in one.following.items()
                if number in other.following and one.incarnation == other.incarnation
            }
            found[queue] = QueuePosition(following, other.incarnation, other.reader)
    return Position(found)


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one physical queue with ``start <= offset < end``.

    Attributes:
        queue: the logical queue.
        physical_queue: its number.
        start: first offset.
        end: the offset after the last.
        incarnation: of the queue.
    """

    queue: str
    physical_queue: int
    start: int
    end: int
    incarnation: str


def find_losses(start: QueuePosition, held: QueueContents) -> list[str]:
    """Report messages that the query has still to read and the queue no longer holds.

    Args:
        start: the query's position in the queue.
        held: what the queue holds.

    Returns:
        A sentence for each physical queue that lost something, or one for a queue that was created
        again; empty when nothing is lost.
    """
    if not start.is_of(held):
        recreated = (
            "the queue was deleted and created again since the checkpoint was written (incarnation "
            f"{start.incarnation}, the queue's is {held.incarnation}), or its storage was restored "
            "from an earlier copy: what the query had not read is gone, and the checkpoint's "
            "offsets mean nothing in the new queue"
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
                "this query read them: they expired, or were dropped or purged, or another program "
                "commits the group"
            )
    return losses


def resume(start: QueuePosition, held: QueueContents) -> QueuePosition:
    """Return the position from which to read on, after losses were reported.

    Args:
        start: the query's position in the queue.
        held: what the queue holds.

    Returns:
        ``start`` where the queue still holds it; the queue's earliest offset for a physical queue
        that is new, was created again or lost messages. Physical queues that are gone are left out.
    """
    known = start.following if start.is_of(held) else {}
    following = {}
    for number, (first, end) in held.offsets.items():
        wanted = known.get(number, first)
        following[number] = first if wanted > end else max(wanted, first)
    return QueuePosition(following, held.incarnation)


def ranges_between(queue: str, start: QueuePosition, end: QueuePosition) -> list[Range]:
    """Return a range for each physical queue with messages between two positions.

    Args:
        queue: the logical queue.
        start: has every physical queue that `end` has.
        end: of the same incarnation.
    """
    return [
        Range(queue, number, start.following[number], past, end.incarnation)
        for number, past in sorted(end.following.items())
        if start.following[number] < past
    ]


def split(ranges: Sequence[Range], min_partitions: int) -> list[list[Range]]:
    """Return what each task is to read.

    Without `min_partitions`, a few messages are one task, and of more each range is one. With it,
    the longest ranges are cut until there are so many, if there are so many messages: each into
    equal parts, as many as its share of all messages asks for. The tasks depend on nothing else, so
    a micro-batch that is repeated has the same ones.

    Args:
        ranges: none of them empty.
        min_partitions: at least so many tasks; 0 where any number will do.
    """
    total = sum(one.end - one.start for one in ranges)
    if not min_partitions and 0 < total <= ONE_TASK_MESSAGES:
        return [list(ranges)]
    if len(ranges) >= min_partitions:
        return [[one] for one in ranges]
    parts = []
    for one in ranges:
        n_messages = one.end - one.start
        # Rounded up, so that all parts together are at least as many as asked for.
        n_parts = min(n_messages, -(-min_partitions * n_messages // total))
        cuts = [one.start + n_messages * part // n_parts for part in range(n_parts + 1)]
        for begin, past in pairwise(cuts):
            parts.append([Range(one.queue, one.physical_queue, begin, past, one.incarnation)])
    return parts
