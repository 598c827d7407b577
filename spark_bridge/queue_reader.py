"""A queue as the source needs it: patient with its server, strict about what is missing.

Importable without Spark. One object serves one process; it holds a connection and is not pickled
(what Spark pickles are the options, from which each worker makes its own).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pyarrow as pa

from penstock.plugins.queue.client import Batch, QueueClient, QueueError, join_batches
from penstock.spark_bridge.errors import QueueChangedError, QueueUnavailableError
from penstock.spark_bridge.offsets import Held, Position, Range, find_losses, resume
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.rows import to_record_batch

_T = TypeVar("_T")

_NO_ANSWER: Final = 0
_NOT_FOUND: Final = 404
_GONE: Final = 410
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
        self._client = client or QueueClient(options.url, options.timeout_seconds)
        self._log = log or logging.getLogger(__name__)
        self._sleep = sleep
        self._clock = clock

    def held(self) -> Held:
        """Return what the queue holds now.

        Raises:
            QueueUnavailableError: no such queue, or no answer for ``retry_seconds``.
        """
        return self._patiently(lambda: self._client.offsets(self.options.queue))

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
        """Let the queue delete everything before ``end``; may be repeated.

        Where losses are allowed, a physical queue that is gone or was created anew since is left
        as it is: what it holds now was not read.

        Raises:
            QueueUnavailableError: no answer for ``retry_seconds``. Nothing is lost then: the next
                commit covers this one.
        """
        following = dict(end.following)
        if not self.options.fail_on_data_loss:
            held = self.held()
            following = {
                number: offset
                for number, offset in following.items()
                if number in held and offset <= held[number][1]
            }
        self._patiently(lambda: self._client.commit(self.options.queue, following))

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
            batch = self._read(number, position, wanted.end, count)
            read = len(batch.offset)
            following = batch.offset[-1] + 1 if read else wanted.end
            if read != following - position:
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

    def _read(self, number: int, start: int, end: int, count: int) -> Batch:
        """Read from ``start``, or from the earliest offset after it that is still there."""
        queue = self.options.queue
        try:
            return self._patiently(
                lambda: self._client.read_range(queue, number, start, end, count)
            )
        except QueueError:
            earliest = self.held().get(number, (end, end))[0]
            if start < earliest < end:
                return self._read(number, earliest, end, count)
            return join_batches([])

    def _tell_loss(self, what: str) -> None:
        queue = self.options.queue
        if self.options.fail_on_data_loss:
            raise QueueChangedError(
                f"queue {queue!r}: {what}. To go on with what is there, set fail_on_data_loss to "
                "false; to start anew, use an empty checkpoint directory"
            )
        self._log.warning("penstock: queue %r: %s; reading on", queue, what)

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Ask until an answer comes, ``retry_seconds`` long.

        Raises:
            QueueError: status 410, which the caller understands.
            QueueUnavailableError: anything else that the server refused, or no answer.
        """
        give_up_at = self._clock() + self.options.retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return ask()
            except QueueError as error:
                if error.status == _GONE:
                    raise
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


def _may_pass(error: QueueError) -> bool:
    """Whether asking again can help: no answer, or the server's own trouble."""
    return error.status == _NO_ANSWER or error.status >= _SERVER_ERRORS
