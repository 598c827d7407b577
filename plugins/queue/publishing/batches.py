"""Batches of rows: requests stage them, one request commits them, and they are published once.

Theory of operation. What requests stage is in a file (`stage_file`) and nowhere else. A commit is
one transaction of it, after which the rows are published by a client in the broker's process
(`row_publisher`), one owner's after the other, in windows. A window is published at QoS 2. When the
broker has acknowledged all of it, the file notes how far the batch was published, and then the
packet identifiers are released. So after ``kill -9`` either the file has the window, or its rows
are published again under the same packet identifiers, and the broker, which stores these with the
messages, knows those that it has.

The identifiers of the window before may not be released then: whoever connects a relay releases
them first. They are not those of the rows that follow, as all 65,535 are used in turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from logging import Logger
from typing import Final, TypeVar

from penstock.broker.counters import count
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import RELAY_CLIENT_PREFIX, LocalClients
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.plugin_guard import is_logged
from penstock.plugins.queue.config import PublishingConfig
from penstock.plugins.queue.publishing.row_publisher import RelayLostError, RowPublisher, relay_id
from penstock.plugins.queue.publishing.rows import StagedRow, read_rows, write_rows
from penstock.plugins.queue.publishing.stage_file import (
    BatchKey,
    Chunk,
    Committed,
    NoStageError,
    Publication,
    StageError,
    StageFile,
    StageKey,
)

T = TypeVar("T")

WINDOW_ROWS: Final = 256
"""How many rows are published before the file notes it."""

WINDOW_BYTES: Final = 1_048_576
"""How many bytes of rows are published before the file notes it. One row alone may be larger."""

AGAIN_SECONDS: Final = 1.0
"""The pause before another attempt to connect a relay, or to publish what the broker has refused
because its disk was full."""

AGAIN: Final = "again"
"""Stands for the reason of a row that is to be published again."""

SWEEP_SECONDS: Final = 60.0
"""The longest time between two searches for stages that are too old."""


@dataclass(eq=False, slots=True)
class PublishingCounts:
    """Counts of staged publishing, all from 0.

    Attributes:
        staged_rows: rows that were staged, repeated chunks included.
        refused: uploads and commits that were refused: `row` where a row cannot be published,
            `stage_full` at `max_rows` or `max_bytes`, `disk` where the stage cannot be written, and
            `no_stage` where a stage is not there as the request says.
        published_batches: batches that are finished.
        repeated_batches: commits of batches that had been committed before.
        published_rows: rows that the broker has acknowledged.
        without_subscriber: those of the published rows that no subscription and no queue matched.
        unpublished_rows: rows of committed batches that are not published: `expired`, `refused` by
            the broker, or `no_room` where it had no room or disk for `max_age_seconds`.
        given_up_stages: stages that their writer deleted, or did not name in its commit.
        expired_stages: stages that were deleted as nobody committed them.
    """

    staged_rows: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    published_batches: int = 0
    repeated_batches: int = 0
    published_rows: int = 0
    without_subscriber: int = 0
    unpublished_rows: dict[str, int] = field(default_factory=dict)
    given_up_stages: int = 0
    expired_stages: int = 0


class StageFullError(PenstockError):
    """The rows do not fit into the stage; they may later."""


class NoBrokerError(PenstockError):
    """Nothing can be published: there is no broker, or it has not begun."""


class Batches:
    """The batches of all owners."""

    def __init__(
        self,
        config: PublishingConfig,
        durability: str,
        clients: LocalClients | None,
        logger: Logger,
        clock: Callable[[], float],
        time: Callable[[], float] | None = None,
    ) -> None:
        self.counts = PublishingCounts()
        self._config = config
        self._clients = clients
        self._logger = logger
        self._clock = clock
        self._file = StageFile(config.path, durability)
        self._time = time or self._file.now
        self._attended = time or self._file.attended
        self._thread: ThreadPoolExecutor | None = None
        self._has_begun = False
        self._rows = self._bytes = self._stages = 0
        self._relays: dict[str, RowPublisher] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._wanted: set[str] = set()
        self._doubtful: set[str] = set()
        self._progress: dict[BatchKey, Publication] = {}
        self._obstacles: dict[BatchKey, str] = {}
        self._news = asyncio.Event()
        self._faults: dict[str, int] = {}

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        """Call a function of the file in its thread; they block for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    # -- begin and end -------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the file.

        Raises:
            StageError: it cannot be used.
        """
        self._thread = ThreadPoolExecutor(1, "penstock-stage")
        for name in await self._in_thread(self._file.open_file):
            self._logger.warning("%s could be read by other users; it cannot any more", name)
        await self._count_held()

    async def begin(self) -> None:
        """Go on with what was committed before; the broker's sessions are there."""
        self._has_begun = True
        for owner in await self._in_thread(self._file.owners):
            self._doubtful.add(owner)
            self._serve_soon(owner)
        self._sweeper = asyncio.create_task(self._sweep(), name="sweep stages")
        self._sweeper.add_done_callback(self._ended)

    async def close(self) -> None:
        """End what runs; what is not done goes on at the next start. May be called again."""
        tasks = [*self._tasks.values(), *([self._sweeper] if self._sweeper else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task
        for relay in self._relays.values():
            relay.disconnect()
        self._relays.clear()
        self._has_begun = False
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._file.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log a fault of ours."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._logger.error("%s: a fault of the plugin", task.get_name(), exc_info=error)

    async def backup(self, path: str) -> int:
        """Copy what is staged to a new file; return its bytes."""
        return await asyncio.to_thread(self._file.copy_to, path)

    def held(self) -> dict[str, int]:
        """Return what is held: `rows`, `bytes`, `stages`, `publications`."""
        held = {"rows": self._rows, "bytes": self._bytes, "stages": self._stages}
        return held | {"publications": len(self._progress)}

    async def _count_held(self) -> None:
        held = await self._in_thread(self._file.held)
        self._stages, self._rows, self._bytes = held.stages, held.rows, held.n_bytes

    # -- requests ------------------------------------------------------------------------------

    async def problem(self, owner: str, row: StagedRow) -> str:
        """Say why a row cannot be published for its owner; "" where it can.

        Raises:
            NoBrokerError: there is no broker.
        """
        await self._relay(owner)
        return await self._problem(owner, row, 0)

    async def _problem(self, owner: str, row: StagedRow, age_seconds: int) -> str:
        return await self._broker().publish_problem(
            relay_id(owner),
            row.asked_byte,
            row.topic.decode(),
            row.encoded_properties(age_seconds),
            row.payload,
        )

    def _broker(self) -> LocalClients:
        if self._clients is None or not self._has_begun:
            why = "it begins or ends" if self._clients is not None else "this is a gateway alone"
            raise NoBrokerError(f"rows cannot be published: no broker runs here ({why})")
        return self._clients

    async def stage(self, key: StageKey, place: int, rows: Sequence[StagedRow]) -> int:
        """Store a chunk of rows, each of which can be published; return the rows of its stage.

        Args:
            key: the key of the stage.
            place: the place of the chunk in it, from 0. A chunk may be stored again.
            rows: one at least.

        Raises:
            StageFullError: there is no room for them.
            NoStageError: see `StageFile.store`.
            StageError: the file cannot be written.
        """
        config = self._config
        n_bytes = sum(row.n_bytes for row in rows)
        for name, held, more, most in (
            ("max_rows", self._rows, len(rows), config.max_rows),
            ("max_bytes", self._bytes, n_bytes, config.max_bytes),
        ):
            if held + more > most:
                count(self.counts.refused, "stage_full")
                raise StageFullError(
                    f"stage: read {more} more beside {held}; allowed: {most} "
                    f"(publishing.{name}); try again when a batch was published"
                )
        self._rows += len(rows)  # until it is counted
        self._bytes += n_bytes
        try:
            total = await self._in_thread(self._store, key, place, rows, n_bytes)
        except PenstockError as error:
            self._count_refusal(error)
            raise
        finally:
            with suppress(StageError):
                await self._count_held()
        self.counts.staged_rows += len(rows)
        return total

    def _store(self, key: StageKey, place: int, rows: Sequence[StagedRow], n_bytes: int) -> int:
        data = write_rows(rows)
        return self._file.store(
            key, place, len(rows), n_bytes, data, self._time(), self._attended()
        )

    def _count_refusal(self, error: PenstockError) -> None:
        count(self.counts.refused, "disk" if isinstance(error, StageError) else "no_stage")

    async def commit(
        self, key: BatchKey, writer: str, stages: Sequence[tuple[str, int]]
    ) -> Committed:
        """Have the stages published as a batch, once; see `StageFile.commit`."""
        await self._relay(key.owner)  # before the file knows the owner
        try:
            done = await self._in_thread(self._file.commit, key, writer, stages, self._attended())
        except PenstockError as error:
            self._count_refusal(error)
            raise
        self.counts.repeated_batches += done.is_repeat
        self.counts.given_up_stages += done.n_dropped
        await self._count_held()
        if not done.publication.is_finished:
            self._progress.setdefault(key, done.publication)
            self._serve_soon(key.owner)
        return done

    async def wait(self, key: BatchKey, seconds: float) -> tuple[Publication, str]:
        """Wait until a committed batch is finished, but no longer than some seconds.

        Returns:
            How far it was published; what it waits for, or "".
        """
        until = self._clock() + seconds
        while key in self._progress and (left := until - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()
        one = self._progress.get(key)
        if one is None:
            one = await self._in_thread(self._file.find, key)
        if one is None:
            raise NoStageError(f"batch {key.number}: read nothing; allowed: a committed batch")
        return one, self._obstacles.get(key, "")

    async def drop(self, owner: str, writer: str) -> int:
        """Delete the stages of a writer that are not committed; return how many."""
        n_stages = await self._in_thread(self._file.drop, owner, writer)
        self.counts.given_up_stages += n_stages
        await self._count_held()
        return n_stages

    # -- publishing ----------------------------------------------------------------------------

    async def _relay(self, owner: str) -> RowPublisher:
        """Return a connection of an owner's relay.

        Raises:
            NoBrokerError: there is no broker.
            RelayLostError: the broker does not accept it.
        """
        clients = self._broker()
        async with self._connecting.setdefault(owner, asyncio.Lock()):
            relay = self._relays.get(owner)
            if relay is not None and not relay.is_lost:
                return relay
            next_row = await self._in_thread(self._file.next_row, owner)
            relay = RowPublisher(owner)
            # A session that this file does not know may know packet identifiers of another one.
            await relay.connect(clients, clean_start=next_row is None)
            if next_row:
                await relay.release(_packet_ids(max(0, next_row - WINDOW_ROWS), next_row))
            self._relays[owner] = relay
            return relay

    def _serve_soon(self, owner: str) -> None:
        self._wanted.add(owner)
        if owner not in self._tasks:
            task = asyncio.create_task(self._serve(owner), name=f"publish batches of {owner!r}")
            self._tasks[owner] = task
            task.add_done_callback(self._ended)

    async def _serve(self, owner: str) -> None:
        """Publish an owner's batches until all are finished."""
        while owner in self._wanted:
            self._wanted.discard(owner)
            try:
                while one := await self._in_thread(self._file.next_publication, owner):
                    await self._publish(one)
            except (RelayLostError, StageError) as error:
                self._wanted.add(owner)
                self._doubtful.add(owner)
                count(self._faults, owner)
                if is_logged(n_faults := self._faults[owner]):
                    self._logger.error(  # noqa: TRY400 (the line names the cause)
                        "batches of %r wait to be published (%d times): %s", owner, n_faults, error
                    )
                await asyncio.sleep(AGAIN_SECONDS)
        del self._tasks[owner]

    async def _publish(self, one: Publication) -> None:
        """Publish what is left of a batch.

        Raises:
            RelayLostError: the connection of the relay has ended.
            StageError: the file cannot be read or written.
        """
        key = one.key
        self._progress[key] = one
        relay = await self._relay(key.owner)
        while (found := await self._in_thread(self._next_chunk, one)) is not None:
            chunk, rows = found
            at = one.n_done - chunk.n_before
            while at < len(rows):
                window = _window(rows, at, self._broker().receive_maximum)
                one = await self._publish_window(relay, one, chunk, window)
                self._progress[key] = one
                self._tell_news()
                at += len(window)
        await self._in_thread(self._file.finish, one, self._attended())
        await self._count_held()
        self.counts.published_batches += 1
        if one.unpublished:
            self._logger.warning(
                "batch %d of query %r: %d of %d rows are not published: %s",
                key.number,
                key.query,
                sum(one.unpublished.values()),
                one.n_rows,
                ", ".join(f"{reason} {n}" for reason, n in one.unpublished.items()),
            )
        del self._progress[key]
        self._tell_news()

    def _next_chunk(self, one: Publication) -> tuple[Chunk, list[StagedRow]] | None:
        chunk = self._file.next_chunk(one)
        return None if chunk is None else (chunk, list(read_rows(chunk.data)))

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _publish_window(
        self, relay: RowPublisher, one: Publication, chunk: Chunk, window: Sequence[StagedRow]
    ) -> Publication:
        """Publish the next rows of a batch, and note it."""
        key = one.key
        unpublished = Counter(one.unpublished)
        codes: Counter[int] = Counter()
        first = one.first_row + one.n_done
        left = list(range(len(window)))
        is_doubtful = key.owner in self._doubtful
        while left:
            age = max(0, int(self._time() - chunk.at))
            answers: dict[int, asyncio.Future[int]] = {}
            for index in left:
                row = window[index]
                if row.is_expired(age):
                    unpublished["expired"] += 1
                elif is_doubtful and await self._problem(key.owner, row, age):
                    unpublished["refused"] += 1
                else:
                    packet_id = _packet_id(first + index)
                    header = row.header(packet_id, age, is_repeat=is_doubtful)
                    answers[index] = await relay.publish(header, row.payload, packet_id)
            left = []
            for index, answer in answers.items():
                code = await answer
                codes[code] += 1
                reason = self._reason(one, window[index], code)
                if reason == AGAIN:
                    left.append(index)
                elif reason:
                    unpublished[reason] += 1
            is_doubtful = False
            if left:
                await asyncio.sleep(AGAIN_SECONDS)
        self._obstacles.pop(key, None)
        for reason, n_rows in (unpublished - Counter(one.unpublished)).items():
            count(self.counts.unpublished_rows, reason, n_rows)
        n_done = one.n_done + len(window)
        one = await self._in_thread(self._file.advance, one, n_done, dict(unpublished))
        await relay.release(_packet_ids(first, first + len(window)))
        self._doubtful.discard(key.owner)
        self.counts.published_rows += sum(n for code, n in codes.items() if code < 0x80)
        self.counts.without_subscriber += codes[ReasonCode.NO_MATCHING_SUBSCRIBERS]
        return one

    def _reason(self, one: Publication, row: StagedRow, code: int) -> str:
        """Return why a row is not published, by the reason code of its PUBREC.

        Returns:
            A reason of `PublishingCounts.unpublished_rows`; `AGAIN` where it is to be published
            again; "" where it was published.
        """
        if code < 0x80:
            return ""
        if code != ReasonCode.QUOTA_EXCEEDED:
            return "refused"
        if self._attended() - one.at >= self._config.max_age_seconds:
            return "no_room"
        told = describe_reason_code(code)
        self._obstacles[one.key] = f"the broker refuses topic {row.topic.decode()!r}: {told}"
        return AGAIN

    # -- what is too old -----------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Delete stages that are too old, again and again, until cancelled."""
        config = self._config
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, config.max_age_seconds / 4))
            now = self._attended()
            try:
                n_stages = await self._in_thread(
                    self._file.expire, now - config.max_age_seconds, now - config.remember_seconds
                )
                if n_stages:
                    await self._count_held()
            except StageError as error:
                count(self._faults, "")
                if is_logged(n_faults := self._faults[""]):
                    self._logger.error("old stages are kept (%d times): %s", n_faults, error)  # noqa: TRY400
                continue
            self.counts.expired_stages += n_stages
            if n_stages:
                self._logger.warning(
                    "%d stages were deleted: nobody has committed them for %g s",
                    n_stages,
                    config.max_age_seconds,
                )


def end_relays(clients: LocalClients) -> Sequence[str]:
    """End the sessions of all relays, as nothing is published by them; return their ids."""
    return clients.end_sessions(lambda client_id: client_id.startswith(RELAY_CLIENT_PREFIX))


def _window(rows: Sequence[StagedRow], start: int, most_rows: int) -> Sequence[StagedRow]:
    """Return the rows from `start` on that are published together; at most `most_rows`."""
    end = start
    most = min(len(rows), start + WINDOW_ROWS, start + most_rows)
    n_bytes = 0
    while end < most and n_bytes < WINDOW_BYTES:
        n_bytes += rows[end].n_bytes
        end += 1
    return rows[start:end]


def _packet_id(row_number: int) -> int:
    return row_number % MAX_PACKET_ID + 1


def _packet_ids(start: int, end: int) -> list[int]:
    return [_packet_id(number) for number in range(start, end)]
