"""Uploads rows to a broker's stage, and has the broker publish them; importable without Spark.

A task uploads the rows of its partition under a name of its attempt. The driver then names the
attempts that count. The broker publishes their rows, and remembers the batch.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from penstock.plugins.queue.batch_client import BatchClient, Published
from penstock.plugins.queue.client import QueueError
from penstock.spark_bridge.errors import PublishError, RowError
from penstock.spark_bridge.server import Patience, make_client
from penstock.spark_bridge.sink_options import SinkOptions
from penstock.spark_bridge.sink_rows import to_row

_T = TypeVar("_T")

_WAIT_SECONDS: Final = 10.0
"""The seconds for which the server holds the request for a commit that is not finished."""


class Stage(NamedTuple):
    """The rows that one attempt of a task has uploaded.

    Attributes:
        partition: the number of the task's partition.
        name: the name of the attempt, which no other attempt has.
    """

    partition: int
    name: str
    n_rows: int


class BatchPublisher:
    """Stages and publishes the rows of one writer."""

    def __init__(
        self,
        options: SinkOptions,
        writer: str,
        client: BatchClient | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._writer = writer
        self._client = client or make_client(options, BatchClient)
        self._log = logging.getLogger(__name__)
        self._patience = Patience(options.retry_seconds, self._log, sleep, clock)

    def stage(self, partition: int, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> Stage:
        """Upload the rows of a partition.

        Raises:
            RowError: a row cannot be published; nothing of the partition will be.
            PublishError: the server refuses, or does not answer for ``retrySeconds``.
        """
        options = self._options
        name = f"{partition}-{uuid.uuid4().hex}"
        chunk: list[dict[str, Any]] = []
        n_rows = n_bytes = n_chunks = 0
        for values in rows:
            place = f"partition {partition}, row {n_rows + len(chunk)}"
            row, row_bytes = to_row(names, values, options.defaults, place)
            is_full = len(chunk) >= options.rows_per_request
            if chunk and (is_full or n_bytes + row_bytes > options.bytes_per_request):
                self._upload(name, n_chunks, chunk, partition, n_rows)
                n_rows += len(chunk)
                n_chunks += 1
                chunk, n_bytes = [], 0
            chunk.append(row)
            n_bytes += row_bytes
        if chunk:
            self._upload(name, n_chunks, chunk, partition, n_rows)
        return Stage(partition, name, n_rows + len(chunk))

    def publish(self, query: str, batch: int, stages: Iterable[Stage]) -> Published | None:
        """Have the broker publish the stages as a batch, once; return when it is done.

        Returns:
            The outcome of the batch; None where there are no rows.

        Raises:
            PublishError: the server refuses, does not answer for ``retrySeconds``, or no row was
                published for so long.
        """
        named = [(one.name, one.n_rows) for one in sorted(stages) if one.n_rows]
        if not named:
            return None
        client, writer = self._client, self._writer
        clock, retry_seconds = self._patience.clock, self._options.retry_seconds
        n_done, give_up_at = -1, clock() + retry_seconds
        while True:
            found = self._patiently(
                lambda: client.publish(query, batch, writer, named, wait_seconds=_WAIT_SECONDS)
            )
            if found.is_finished:
                self._tell(query, batch, found)
                return found
            if found.n_done > n_done:
                n_done, give_up_at = (
                    found.n_done,
                    self._patience.clock() + self._options.retry_seconds,
                )
            elif clock() > give_up_at:
                raise PublishError(
                    f"batch {batch}: {n_done} of {found.n_rows} rows are published, and no further "
                    f"one for {retry_seconds:g} s (retrySeconds): "
                    f"{found.obstacle or 'a subscriber or a queue has no room'}; the broker goes "
                    "on with them"
                )

    def give_up(self) -> None:
        """Delete what was uploaded and not published; what cannot be deleted expires."""
        try:
            self._client.give_up(self._writer)
        except QueueError as error:
            self._log.warning("penstock: staged rows stay until they expire: %s", error)

    def close(self) -> None:
        """Close the connection; the publisher may be used again."""
        self._client.close()

    def _upload(
        self, name: str, place: int, chunk: Sequence[dict[str, Any]], partition: int, n_before: int
    ) -> None:
        try:
            self._patiently(lambda: self._client.stage(self._writer, name, place, chunk))
        except PublishError as error:
            refusal = error.__cause__
            index = refusal.answer.get("index") if isinstance(refusal, QueueError) else None
            if isinstance(refusal, QueueError) and refusal.status == 413 and len(chunk) == 1:
                index = 0
            if not isinstance(refusal, QueueError) or not isinstance(index, int):
                raise
            told = refusal.message.removeprefix(f"messages[{index}]").lstrip(".: ")
            raise RowError(f"partition {partition}, row {n_before + index}: {told}") from refusal

    def _tell(self, query: str, batch: int, found: Published) -> None:
        if found.is_repeat:
            self._log.info("penstock: batch %d of %s was committed before", batch, query)
        if found.unpublished:
            reasons = ", ".join(f"{reason} {n}" for reason, n in found.unpublished.items())
            self._log.warning(
                "penstock: batch %d of %s: rows that are not published: %s", batch, query, reasons
            )

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Ask until an answer comes, ``retrySeconds`` long.

        Raises:
            PublishError: a refusal, or no answer; its cause is the `QueueError`.
        """
        try:
            return self._patience.ask(ask)
        except QueueError as error:
            raise PublishError(f"{self._options.url}: {error}") from error
