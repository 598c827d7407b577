"""A queue as the source needs it: patient with its server, strict about what is missing.

Importable without Spark. One object serves one process; it holds a connection and is not pickled
(what Spark pickles are the options, from which each worker makes its own).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa

from penstock.plugins.queue import client as queue_client
from penstock.plugins.queue.client import (
    AccessError,
    Batch,
    OtherIncarnationError,
    QueueClient,
    QueueError,
    RangeGoneError,
    UnknownNameError,
    join_batches,
    read_token,
)
from penstock.spark_bridge.errors import OptionError, QueueChangedError, QueueUnavailableError
from penstock.spark_bridge.offsets import Held, Position, Range, find_losses, resume
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.rows import to_record_batch

_T = TypeVar("_T")

GROUP_KIND: Final = "offsets"

_NO_ANSWER: Final = 0
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500

_FIRST_REQUEST_MESSAGES: Final = 100
"""Nothing is known of the messages' size yet: 100 of 1 MB still fit a worker."""

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


class QueueReader:
    """Reads one logical queue for one query.

    Args:
        options: checked options.
        client: the queue's client; None makes one from the options.
        log: where losses that the options allow are told; None for this module's logger.
        sleep: how to wait between two attempts, seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        client: QueueClient | None = None,
        *,
        log: logging.Logger | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self._client = client or make_client(options)
        self._log = log or logging.getLogger(__name__)
        self._sleep = sleep
        self._clock = clock

    def held(self) -> Held:
        """Return what the queue holds now.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retry_seconds``.
        """
        queue = self.options.queue
        while True:
            earliest = self._patiently(lambda: self._client.position(queue, "earliest"))
            latest = self._patiently(lambda: self._client.position(queue, "latest"))
            # Physical queues may have been added between the two, or the queue created again.
            is_one_queue = earliest.incarnation == latest.incarnation
            if is_one_queue and earliest.offsets.keys() == latest.offsets.keys():
                break
        offsets = {
            number: (first, latest.offsets[number]) for number, first in earliest.offsets.items()
        }
        return Held(latest.incarnation, offsets)

    def join(self) -> Position:
        """Create the query's group where it is missing.

        Returns:
            The group's position: where a query without a checkpoint begins.

        Raises:
            QueueUnavailableError: no such queue, no answer for ``retry_seconds``, or no right to
                create the group.
            OptionError: the group is of the other kind.
        """
        queue, group = self.options.queue, self.options.group
        try:
            found = self._patiently(lambda: self._client.group(queue, group), UnknownNameError)
        except UnknownNameError:
            found = self._create_group()
        kind = found["settings"]["kind"]
        if kind != GROUP_KIND:
            raise OptionError(
                f"option 'group': read {group!r}, which is of kind {kind} in queue {queue!r}; "
                f"allowed: a group of kind {GROUP_KIND}, or the name of a new one"
            )
        following = {int(number): offset for number, offset in found["position"].items()}
        return Position(queue, following, found["incarnation"])

    def _create_group(self) -> dict[str, Any]:
        queue, group = self.options.queue, self.options.group
        settings = {"kind": GROUP_KIND, "start": "earliest"}
        try:
            return self._patiently(
                lambda: self._client.put_group(queue, group, settings), AccessError
            )
        except AccessError as error:
            raise QueueUnavailableError(
                f"queue {queue!r} has no group {group!r}, and this token may not create it "
                f"({error.message}); declare it in the policy file: groups: {{{group}: "
                f"{{kind: {GROUP_KIND}}}}}"
            ) from error

    def wait_for_messages(self, start: Position) -> Position:
        """Return the end of the queue once there is a message after ``start``.

        The server holds the request for ``wait_seconds`` at most; ``start`` is returned then, or
        where the queue was created again meanwhile, which the next `resume` tells.

        Raises:
            QueueUnavailableError: no answer for ``retry_seconds``.
        """
        options = self.options
        at = queue_client.Position(start.incarnation, start.following)
        try:
            end = self._patiently(
                lambda: self._client.plan(options.queue, at, wait_seconds=options.wait_seconds),
                OtherIncarnationError,
            )
        except OtherIncarnationError:
            return start
        return Position(options.queue, end.offsets, end.incarnation)

    def resume(self, start: Position, held: Held) -> Position:
        """Return the position to read on from, after comparing it with what the queue holds.

        Raises:
            QueueChangedError: something that was still to be read is gone, and the options do not
                allow that.
        """
        losses = find_losses(start, held)
        if losses:
            self._tell_loss("; ".join(losses))
        return resume(start, held)

    def commit(self, end: Position) -> None:
        """Let the queue delete what no other group needs of all before ``end``; may be repeated.

        Where losses are allowed, a queue or physical queue that is gone or was created anew since
        is left as it is: what it holds now was not read.

        Raises:
            QueueChangedError: the queue was created again, and the options do not allow that.
            QueueUnavailableError: no answer for ``retry_seconds``. Nothing is lost then: the next
                commit covers this one.
        """
        held = self.held()
        if not end.is_of(held):
            if self.options.fail_on_data_loss:
                self._tell_loss("; ".join(find_losses(end, held)))
            return
        following = dict(end.following)
        if not self.options.fail_on_data_loss:
            following = {
                number: offset
                for number, offset in following.items()
                if number in held.offsets and offset <= held.offsets[number][1]
            }
        queue, group = self.options.queue, self.options.group
        position = queue_client.Position(held.incarnation, following)
        try:
            self._patiently(lambda: self._client.commit(queue, group, position), UnknownNameError)
        except UnknownNameError:
            self.join()  # it was deleted, or expired
            self._patiently(lambda: self._client.commit(queue, group, position))

    def record_batches(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, every one of them, in order.

        A batch has at most ``max_messages_per_request`` messages and, as far as the sizes before
        tell, ``max_bytes_per_request`` payload bytes.

        Raises:
            QueueChangedError: a message of the range is gone, and the options do not allow that.
            QueueUnavailableError: no answer for ``retry_seconds``.
        """
        options = self.options
        number, position = wanted.physical_queue, wanted.start
        count = min(_FIRST_REQUEST_MESSAGES, options.max_messages_per_request)
        while position < wanted.end:
            batch = self._read(wanted, position, count)
            read = len(batch.offset)
            following = batch.offset[-1] + 1 if read else wanted.end
            if read != following - position and not self._keeps_last():
                missing = following - position - read
                self._tell_loss(
                    f"{missing} of the messages {position} to {following - 1} of physical queue "
                    f"{number} are gone"
                )
            if read:
                yield to_record_batch(number, batch)
                mean_bytes = max(1, sum(map(len, batch.payload)) // read)
                fitting = max(1, options.max_bytes_per_request // mean_bytes)
                # Sizes may rise again: the next request is at most eight times this one.
                count = min(options.max_messages_per_request, fitting, 8 * count)
            position = following

    def close(self) -> None:
        """Close the connection; the reader may be used again."""
        self._client.close()

    def _read(self, wanted: Range, start: int, count: int) -> Batch:
        """Read from ``start``, or from the earliest offset after it that is still there."""
        queue, number, end = self.options.queue, wanted.physical_queue, wanted.end
        try:
            return self._patiently(
                lambda: self._client.read_range(
                    queue, number, start, end, count, incarnation=wanted.incarnation
                ),
                RangeGoneError,
                OtherIncarnationError,
            )
        except OtherIncarnationError as error:
            self._tell_loss(error.message)
        except RangeGoneError:
            earliest = self.held().offsets.get(number, (end, end))[0]
            if start < earliest < end:
                return self._read(wanted, earliest, count)
        return join_batches([])

    def _keeps_last(self) -> bool:
        """Whether messages may leave the queue for newer ones of their key, which is no loss."""
        figures = self._patiently(lambda: self._client.queue(self.options.queue))
        return bool(figures["settings"]["keeps_last"])

    def _tell_loss(self, what: str) -> None:
        queue = self.options.queue
        if self.options.fail_on_data_loss:
            raise QueueChangedError(
                f"queue {queue!r}: {what}. To go on with what is there, set fail_on_data_loss to "
                "false; to start anew, use an empty checkpoint directory"
            )
        self._log.warning("penstock: queue %r: %s; reading on", queue, what)

    def _patiently(self, ask: Callable[[], _T], *passed: type[QueueError]) -> _T:
        """Ask until an answer comes, ``retry_seconds`` long.

        Args:
            ask: makes the request.
            passed: errors that the caller understands.

        Raises:
            QueueError: one of those.
            QueueUnavailableError: anything else that the server refused, or no answer.
        """
        give_up_at = self._clock() + self.options.retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return ask()
            except passed:
                raise
            except QueueError as error:
                if not _may_pass(error) or self._clock() + pause > give_up_at:
                    raise self._unavailable(error) from error
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _unavailable(self, error: QueueError) -> QueueUnavailableError:
        queue, url = self.options.queue, self.options.url
        if error.status == _NOT_FOUND:
            return QueueUnavailableError(f"no queue {queue!r} at {url}: {error.message}")
        if error.status == _NO_ANSWER:
            return QueueUnavailableError(f"queue {queue!r} cannot be reached: {error.message}")
        return QueueUnavailableError(f"queue {queue!r} at {url} refuses: {error}")


def make_client(options: SourceOptions) -> QueueClient:
    """Return a client of the queue that the options name.

    Raises:
        OptionError: the token or the certificates cannot be read.
    """
    try:
        token = read_token(options.token_file) if options.token_file else None
    except (OSError, ValueError) as error:
        raise OptionError(f"option 'token_file': {error}; allowed: a file with a token") from error
    try:
        return QueueClient(
            options.url, options.timeout_seconds, token=token, ca_file=options.ca_file or None
        )
    except OSError as error:  # of ssl, which does not name the file
        raise OptionError(
            f"option 'ca_file': read {options.ca_file!r} ({error}); allowed: a PEM file"
        ) from error


def _may_pass(error: QueueError) -> bool:
    """Whether asking again can help: no answer, or the server's own trouble."""
    return error.status in (_NO_ANSWER, _TOO_MANY) or error.status >= _SERVER_ERRORS
