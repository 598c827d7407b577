"""Reads the queues of one query: plans micro-batches, reads ranges, and commits positions.

It waits for a server that does not answer, and reports every message that is missing. It is
importable without Spark. One object serves one process and holds a connection. Only its options are
pickled: a process that unpickles it opens a connection of its own, and reads the files of token and
certificates on its own machine.

Theory of operation. `plan` sends one request for all queues, which the server holds until there are
messages: an idle query costs one request for each wait. The answer says what each queue holds. That
is compared with the query's position, so that no loss passes unnoticed. `read` requests the columns
that the query names, from the same server or from the Redis servers that keep the messages. Each
answer, of some MiB, becomes one Arrow record batch. `commit` tells the queues which messages the
query will not read again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from penstock.plugins.queue import client as queue_client
from penstock.plugins.queue.client import (
    AccessError,
    OtherIncarnationError,
    OtherReaderError,
    QueueClient,
    QueueError,
    RangeGoneError,
    UnknownNameError,
)
from penstock.spark_bridge.errors import (
    GroupTakenError,
    OptionError,
    QueueChangedError,
    QueueUnavailableError,
)
from penstock.spark_bridge.offsets import (
    Position,
    QueueContents,
    QueuePosition,
    Range,
    find_losses,
    ranges_between,
    resume,
)
from penstock.spark_bridge.options import EARLIEST_OFFSET, LATEST_OFFSET, PlaceOption, SourceOptions
from penstock.spark_bridge.ranges.gateway import GatewayRanges, Piece
from penstock.spark_bridge.rows import RowOrigin
from penstock.spark_bridge.server import NO_ANSWER, Patience, make_client

if TYPE_CHECKING:
    from penstock.spark_bridge.ranges.redis_nodes import RedisRanges

_T = TypeVar("_T")

GROUP_KIND: Final = "offsets"

_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of a micro-batch.

    Attributes:
        end: the position at its end; the position at its start if there are no messages.
    """

    end: Position
    latest: Position


class ReadSettings(NamedTuple):
    """Settings of a queue, for a task that does not ask the queue's server.

    Attributes:
        key: the setting that defines a message's key.
        keeps_last: whether a newer message removes older ones of its key.
    """

    key: str | None
    keeps_last: bool


def _range_reader(options: SourceOptions, client: QueueClient) -> GatewayRanges | RedisRanges:
    if options.redis is None:
        return GatewayRanges(options, client)
    try:
        from penstock.spark_bridge.ranges.redis_nodes import RedisRanges  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise OptionError(
            "options 'redis...': redis is not installed; pip install 'penstock-mqtt[redis]'"
        ) from error
    return RedisRanges(options, options.redis)


class QueueReader:
    """Reads the queues of one query."""

    def __init__(
        self,
        options: SourceOptions,
        client: QueueClient | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self._client = client or make_client(options, QueueClient)
        self._ranges = _range_reader(options, self._client)
        self._log = logging.getLogger(__name__)
        self._patience = Patience(options.retry_seconds, self._log, sleep, clock)
        self._settings: dict[str, Mapping[str, Any]] = {}
        self._owners: dict[str, str] = {}

    def __reduce__(self) -> tuple[type[QueueReader], tuple[SourceOptions]]:
        return (type(self), (self.options,))

    def close(self) -> None:
        """Close the connection; the reader may be used again."""
        self._ranges.close()
        self._client.close()

    # -- where a query begins ------------------------------------------------------------------

    def contents(self, queue: str) -> QueueContents:
        """Return what a queue contains.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retrySeconds``.
        """
        while True:
            earliest = self._located(queue, "earliest")
            latest = self._located(queue, "latest")
            # Physical queues may have been added between the two, or the queue created again.
            is_one_queue = earliest.incarnation == latest.incarnation
            if is_one_queue and earliest.following.keys() == latest.following.keys():
                break
        offsets = {
            number: (first, latest.following[number])
            for number, first in earliest.following.items()
        }
        return QueueContents(latest.incarnation, offsets)

    def located(self, place: PlaceOption) -> Position:
        """Return the position that an option names, other than ``group``.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retrySeconds``.
            OptionError: the option names an offset that its queue does not have.
        """
        if isinstance(place, Mapping):
            return Position({queue: self._at_offsets(queue, place[queue]) for queue in place})
        at: str | float = "earliest" if place == "group" else place
        return Position({queue: self._located(queue, at) for queue in self.options.queues})

    def _located(self, queue: str, at: str | float) -> QueuePosition:
        found = self._patiently(queue, lambda: self._client.position(queue, at))
        return QueuePosition(found.offsets, found.incarnation)

    def _at_offsets(self, queue: str, offsets: Mapping[int, int]) -> QueuePosition:
        contents = self.contents(queue)
        if offsets.keys() != contents.offsets.keys():
            raise OptionError(
                f"position in queue {queue!r}: read offsets of physical queues "
                f"{', '.join(map(str, sorted(offsets))) or 'none'}; allowed: of "
                f"{', '.join(map(str, sorted(contents.offsets)))}"
            )
        following = {}
        for number, offset in offsets.items():
            first, end = contents.offsets[number]
            following[number] = {EARLIEST_OFFSET: first, LATEST_OFFSET: end}.get(offset, offset)
            if not first <= following[number] <= end:
                raise OptionError(
                    f"position in queue {queue!r}: read offset {offset} of physical queue "
                    f"{number}; allowed: {first} to {end}, what the queue holds"
                )
        return QueuePosition(following, contents.incarnation)

    def join(self) -> Position:
        """Create the query's group in each queue that does not have it.

        Returns:
            The group's position in each queue.

        Raises:
            QueueUnavailableError: no such queue, no answer for ``retrySeconds``, or no right to
                create the group.
            OptionError: the group is of the other kind.
        """
        return Position({queue: self._join(queue) for queue in self.options.queues})

    def check_group(self, reader: str) -> None:
        """Check that the group belonged to this query, or to none, when it was joined.

        Raises:
            GroupTakenError: it belongs to another query.
        """
        for queue, owner in self._owners.items():
            if owner not in ("", reader):
                raise GroupTakenError(queue, self.options.group, owner)

    def _join(self, queue: str) -> QueuePosition:
        group = self.options.group
        try:
            found = self._patiently(
                queue, lambda: self._client.group(queue, group), UnknownNameError
            )
        except UnknownNameError:
            found = self._create_group(queue)
        kind = found["settings"]["kind"]
        if kind != GROUP_KIND:
            raise OptionError(
                f"option 'group': read {group!r}, which is of kind {kind} in queue {queue!r}; "
                f"allowed: a group of kind {GROUP_KIND}, or the name of a new one"
            )
        self._owners[queue] = found.get("reader", "")
        following = {int(number): offset for number, offset in found["position"].items()}
        return QueuePosition(following, found["incarnation"])

    def claim(self, position: Position) -> None:
        """Reserve the group for the query, in each queue of its checkpoint's position.

        Raises:
            QueueUnavailableError: no answer for ``retrySeconds``.
            GroupTakenError: the group belongs to another query.
        """
        for queue, one in position.queues.items():
            if one.reader:
                self._commit(queue, replace(one, following={}))

    def _create_group(self, queue: str) -> dict[str, Any]:
        group = self.options.group
        settings = {"kind": GROUP_KIND, "start": "earliest"}
        try:
            return self._patiently(
                queue, lambda: self._client.put_group(queue, group, settings), AccessError
            )
        except AccessError as error:
            raise QueueUnavailableError(
                f"queue {queue!r} has no group {group!r}, and this token may not create it "
                f"({error.message}); declare it in the policy file: groups: {{{group}: "
                f"{{kind: {GROUP_KIND}}}}}"
            ) from error

    # -- plan ----------------------------------------------------------------------------------

    def plan(
        self,
        start: Position,
        *,
        until: Position | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        wait_seconds: float = 0,
    ) -> BatchPlan:
        """Return the end of the next micro-batch.

        Args:
            start: the position at its start.
            until: the last position at which it may end; None for the end of the queues.
            max_messages: the most messages, of all queues together; None for any number.
            max_bytes: about the most stored bytes, likewise.
            wait_seconds: the server may delay its answer for so long while there are no messages.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retrySeconds``.
            QueueChangedError: unread messages are gone, and the options do not allow that.
        """
        while True:
            at = {
                queue: queue_client.Position(one.incarnation, one.following)
                for queue, one in start.queues.items()
            }
            ends = until and {
                queue: one.following
                for queue, one in until.queues.items()
                # An end in an earlier queue of the same name has no meaning.
                if one.incarnation == at[queue].incarnation
            }
            try:
                plans = self._patiently(
                    "",
                    lambda at=at, ends=ends: self._client.plan_queues(  # type: ignore[misc]
                        at,
                        until=ends,
                        max_messages=max_messages,
                        max_bytes=max_bytes,
                        wait_seconds=wait_seconds,
                    ),
                    OtherIncarnationError,
                    _RefusedError,
                )
            except (OtherIncarnationError, _RefusedError) as error:
                resumed = self.resumed(start)
                if resumed == start:
                    raise self._unavailable("", error) from error
                start = resumed
                continue
            break
        for queue, plan in plans.items():
            contents = QueueContents(
                plan.end.incarnation,
                {number: (first, plan.latest[number]) for number, first in plan.earliest.items()},
            )
            for loss in find_losses(start.queues[queue], contents):
                self._tell_loss(queue, loss)
        return BatchPlan(
            Position(
                {
                    queue: QueuePosition(plan.end.offsets, plan.end.incarnation)
                    for queue, plan in plans.items()
                }
            ),
            Position(
                {
                    queue: QueuePosition(plan.latest, plan.end.incarnation)
                    for queue, plan in plans.items()
                }
            ),
        )

    def resumed(self, start: Position) -> Position:
        """Compare a position with what the queues contain; return where to continue reading.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retrySeconds``.
            QueueChangedError: unread messages are gone, and the options do not allow that.
        """
        queues = {}
        for queue, one in start.queues.items():
            contents = self.contents(queue)
            for loss in find_losses(one, contents):
                self._tell_loss(queue, loss)
            queues[queue] = resume(one, contents)
        return Position(queues)

    def ranges(self, start: Position, end: Position) -> list[Range]:
        """Return the ranges between two positions, one for each physical queue.

        The server is asked only if `start` lacks a part of `end`. Added physical queues, and a
        queue that was created again, are read from their first message; a queue that is new to the
        query is read from its group's position.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retrySeconds``.
        """
        found = []
        for queue, past in sorted(end.queues.items()):
            begin = start.queues.get(queue) or self._join(queue)
            is_complete = (
                begin.incarnation == past.incarnation
                and begin.following.keys() >= past.following.keys()
            )
            if not is_complete:
                contents = self.contents(queue)
                if not past.is_of(contents):
                    for loss in find_losses(past, contents):
                        self._tell_loss(queue, loss)
                    continue
                begin = resume(begin, contents)
                known = {
                    number: offset
                    for number, offset in past.following.items()
                    if number in contents.offsets
                }
                past = QueuePosition(known, contents.incarnation)  # noqa: PLW2901 - the part that exists
            found += ranges_between(queue, begin, past)
        return found

    # -- read ----------------------------------------------------------------------------------

    def read_settings(self, queue: str) -> ReadSettings | None:
        """Return the settings of a queue that its tasks need, or None; the server is asked once."""
        if self.options.redis is None and "key" not in self.options.columns:
            return None
        settings = self._queue_settings(queue)
        return ReadSettings(settings["key"], keeps_last=settings["keeps_last"])

    def read(self, wanted: Range, settings: ReadSettings | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, a record batch for each answer.

        Raises:
            QueueUnavailableError: no answer for ``retrySeconds``.
            QueueChangedError: a message of the range is gone, and the options do not allow that.
        """
        key = None if settings is None else settings.key
        place = RowOrigin(wanted.queue, wanted.physical_queue, key, self.options.large_above_bytes)
        position = wanted.start
        while position < wanted.end:
            piece = self._read(wanted, position, place)
            missing = piece.next_offset - position - piece.looked_at
            if missing and not self._keeps_last(wanted.queue, settings):
                self._tell_loss(
                    wanted.queue,
                    f"{missing} of the messages {position} to {piece.next_offset - 1} of physical "
                    f"queue {wanted.physical_queue} are gone",
                )
            if piece.batch is not None:
                yield piece.batch
            position = piece.next_offset

    def _keeps_last(self, queue: str, settings: ReadSettings | None) -> bool:
        if settings is not None:
            return settings.keeps_last
        keeps_last: bool = self._queue_settings(queue)["keeps_last"]
        return keeps_last

    def _read(self, wanted: Range, start: int, place: RowOrigin) -> Piece:
        """Read from ``start``, or from the earliest offset after it that still exists."""
        queue, end = wanted.queue, wanted.end
        try:
            return self._patiently(
                queue,
                lambda: self._ranges.read(wanted, start, place),
                RangeGoneError,
                OtherIncarnationError,
                _RefusedError,
            )
        except (OtherIncarnationError, _RefusedError) as error:
            # A refusal means that the queue does not have the offset or the physical queue.
            self._tell_loss(queue, error.message)
        except RangeGoneError as error:
            earliest = error.earliest or end
            if start < earliest < end:
                return self._read(wanted, earliest, place)
        return Piece(None, end, 0)

    def _queue_settings(self, queue: str) -> Mapping[str, Any]:
        if queue not in self._settings:
            found = self._patiently(queue, lambda: self._client.queue(queue))
            self._settings[queue] = found["settings"]
        return self._settings[queue]

    # -- commit --------------------------------------------------------------------------------

    def commit(self, position: Position) -> None:
        """Tell the queues that the query will not read what is before a position; repeatable.

        A queue that removes messages by their age is not told. So a query whose checkpoint is set
        back can read them again.

        Raises:
            QueueUnavailableError: no answer for ``retrySeconds``.
            QueueChangedError: a queue was created again, and the options do not allow that.
            GroupTakenError: the group belongs to another query.
        """
        for queue, one in position.queues.items():
            if not self._leaves_by_age(queue):
                self._commit(queue, one)

    def _leaves_by_age(self, queue: str) -> bool:
        """Tell whether a queue makes room without commits."""
        settings = self._queue_settings(queue)
        is_limited = settings["max_messages"] is not None or settings["max_bytes"] is not None
        refuses = is_limited and settings["when_full"] != "drop_oldest"
        return settings["retention_seconds"] is not None and not refuses

    def _commit(self, queue: str, position: QueuePosition) -> None:
        group = self.options.group
        at = queue_client.Position(position.incarnation, position.following)
        while True:
            try:
                self._patiently(
                    queue,
                    lambda at=at: self._client.commit(  # type: ignore[misc]
                        queue, group, at, reader=position.reader
                    ),
                    OtherIncarnationError,
                    OtherReaderError,
                    UnknownNameError,
                    _RefusedError,
                )
            except OtherIncarnationError as error:
                self._tell_loss(queue, error.message)
            except OtherReaderError as error:
                raise GroupTakenError(queue, group, error.reader) from error
            except UnknownNameError:
                self._join(queue)  # the group has expired, or was deleted
                continue
            except _RefusedError as error:
                # The queue does not have these offsets. The next plan reports it.
                contents = self.contents(queue)
                known = {
                    number: offset
                    for number, offset in at.offsets.items()
                    if number in contents.offsets and offset <= contents.offsets[number][1]
                }
                if known == at.offsets:
                    raise self._unavailable(queue, error) from error
                at = queue_client.Position(at.incarnation, known)
                continue
            return

    # -- requests ------------------------------------------------------------------------------

    def _tell_loss(self, queue: str, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise QueueChangedError(
                f"queue {queue!r}: {what}. To go on with what is there, set failOnDataLoss to "
                "false; to start anew, use an empty checkpoint directory, an empty output and "
                "another group"
            )
        self._log.warning("penstock: queue %r: %s; reading on", queue, what)

    def _patiently(self, queue: str, ask: Callable[[], _T], *passed: type[QueueError]) -> _T:
        """Repeat a request until it is answered, for ``retrySeconds`` at most.

        Raises:
            QueueError: one of `passed`.
            QueueUnavailableError: any other refusal, or no answer.
        """
        try:
            return self._patience.ask(ask)
        except passed:
            raise
        except QueueError as error:
            if error.status == _BAD_REQUEST and _RefusedError in passed:
                raise _RefusedError(error.status, error.message, error.answer) from error
            raise self._unavailable(queue, error) from error

    def _unavailable(self, queue: str, error: QueueError) -> QueueUnavailableError:
        url = self.options.url
        name = repr(queue) if queue else self.options.shown_queues
        if error.status == _NOT_FOUND:
            return QueueUnavailableError(f"no queue {name} at {url}: {error.message}")
        if error.status == NO_ANSWER:
            return QueueUnavailableError(f"queue {name} cannot be reached: {error.message}")
        return QueueUnavailableError(f"queue {name} at {url} refuses: {error}")


class _RefusedError(QueueError):
    """Status 400, which the caller handles."""
