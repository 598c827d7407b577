"""Positions of a query in its queues, and the ranges that a micro-batch reads.

A position has, for each queue, the queue's incarnation and, for each physical queue, the offset of
the next message to read. Spark writes the position as JSON to the checkpoint before a micro-batch
runs, and asks for the same range again after a crash. So two positions define a range, and a queue
keeps every message until the query's group has committed a position after it.

A position has two more fields. `reader` is the name of the query that owns the group. It is created
with the checkpoint, and nothing else distinguishes two queries. `first` is the start of the query's
first micro-batch. The checkpoint has only the end of that batch, and Spark asks for its start again
when it repeats the batch; by then, ``latest`` would be another offset.

The module only compares positions with what a queue reports. It reports every difference that this
query's own reading does not explain: unread messages that are gone, a queue that was created again
or that is shorter than the checkpoint.
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
"""The most messages that one task reads: with 1 KiB each they take half a second of processor
time. More tasks would save little, and each would write a small file."""


@dataclass(frozen=True, slots=True)
class QueueContents:
    """The messages that a queue holds.

    Attributes:
        incarnation: the queue's UUID; a queue that is created again gets another one.
        offsets: the earliest offset of each physical queue, and that of the next message to be
            enqueued.
    """

    incarnation: str
    offsets: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A position in one queue.

    Attributes:
        following: the offset of the next message to read, for each physical queue.
        reader: the query's name; "" in a position that is not from a checkpoint.
        first: the start of the micro-batch that ends here, in the form of `following`; None if it
            starts at the end of the previous one.
    """

    following: Mapping[int, int]
    incarnation: str
    reader: str = ""
    first: Mapping[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form for Spark; equal positions have equal JSON texts."""
        reader = {_READER: self.reader} if self.reader else {}
        first = {} if self.first is None else {_FIRST: _texts(self.first)}
        following = {_NEXT: _texts(self.following)}
        return {_INCARNATION: self.incarnation} | reader | first | following

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
        """Tell whether two positions have the same offsets."""
        return self.following == other.following and self.incarnation == other.incarnation

    def is_of(self, contents: QueueContents) -> bool:
        """Tell whether the position belongs to the queue that exists."""
        return self.incarnation == contents.incarnation


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offsets[number] for number in sorted(offsets)}


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in offsets.items()}


@dataclass(frozen=True, slots=True)
class Position:
    """A query's position in each of its queues, by the queue's name."""

    queues: Mapping[str, QueuePosition]

    @property
    def reader(self) -> str:
        """The query's name; "" in a position that is not from a checkpoint."""
        return next((one.reader for one in self.queues.values() if one.reader), "")

    def beginnings(self) -> Position:
        """Return the start of the micro-batch that ends here, for the queues that have it."""
        return Position(
            {
                queue: replace(one, following=one.first, first=None)
                for queue, one in self.queues.items()
                if one.first is not None
            }
        )

    def named(self, reader: str) -> Position:
        """Return this start of the first micro-batch with the query's name."""
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
            value: a result of ``to_json``.
            names: the queues in the query's options; None for any. The result lacks those that are
                not in the checkpoint.

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
    """Return the least of several positions of one query, for each queue.

    A queue needs to be in one of the positions only. A physical queue that one of these lacks is
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
        start: the first offset.
        end: the offset after the last one.
    """

    queue: str
    physical_queue: int
    start: int
    end: int
    incarnation: str


def find_losses(start: QueuePosition, contents: QueueContents) -> list[str]:
    """Report unread messages that are gone from the queue.

    Returns:
        a sentence for each physical queue that lost messages, or one for a queue that was created
        again; empty if nothing is lost.
    """
    if not start.is_of(contents):
        recreated = (
            "the queue was deleted and created again since the checkpoint was written (incarnation "
            f"{start.incarnation}, the queue's is {contents.incarnation}), or its storage was "
            "restored from an earlier copy: what the query had not read is gone, and the "
            "checkpoint's offsets mean nothing in the new queue"
        )
        return [recreated]
    losses = []
    for number, wanted in sorted(start.following.items()):
        if number not in contents.offsets:
            losses.append(
                f"physical queue {number} is gone, the checkpoint stands at offset {wanted} in it "
                f"(the queue has {', '.join(map(str, sorted(contents.offsets))) or 'none'})"
            )
            continue
        first, following = contents.offsets[number]
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


def resume(start: QueuePosition, contents: QueueContents) -> QueuePosition:
    """Return the position from which to continue, after losses were reported.

    Returns:
        the offsets of ``start`` that the queue still has; the earliest offset of a physical queue
        that is new, was created again or lost messages. Physical queues that are gone are left out.
    """
    known = start.following if start.is_of(contents) else {}
    following = {}
    for number, (first, end) in contents.offsets.items():
        wanted = known.get(number, first)
        following[number] = first if wanted > end else max(wanted, first)
    return QueuePosition(following, contents.incarnation)


def ranges_between(queue: str, start: QueuePosition, end: QueuePosition) -> list[Range]:
    """Return a range for each physical queue with messages between two positions."""
    return [
        Range(queue, number, start.following[number], past, end.incarnation)
        for number, past in sorted(end.following.items())
        if start.following[number] < past
    ]


def split(ranges: Sequence[Range], min_partitions: int) -> list[list[Range]]:
    """Divide ranges among tasks.

    Without `min_partitions`, up to `ONE_TASK_MESSAGES` make one task, and more make one task for
    each range. With it, each range is cut into equal parts, their number in proportion to its share
    of all messages, so that there are enough tasks if there are enough messages. The tasks depend
    on nothing else, so a repeated micro-batch has the same tasks.

    Returns:
        the ranges of each task.
    """
    total = sum(one.end - one.start for one in ranges)
    if not min_partitions and 0 < total <= ONE_TASK_MESSAGES:
        return [list(ranges)]
    if len(ranges) >= min_partitions:
        return [[one] for one in ranges]
    parts = []
    for one in ranges:
        n_messages = one.end - one.start
        # Rounded up, so that there are at least as many parts as tasks are wanted.
        n_parts = min(n_messages, -(-min_partitions * n_messages // total))
        cuts = [one.start + n_messages * part // n_parts for part in range(n_parts + 1)]
        for begin, past in pairwise(cuts):
            parts.append([Range(one.queue, one.physical_queue, begin, past, one.incarnation)])
    return parts
