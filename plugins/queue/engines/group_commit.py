"""Group commit: one thread writes, and all that arrives during a commit is in the next one.

A commit costs one flush of the disk however many messages it holds. A single message is committed
at once; under load the groups grow by themselves, as more messages come during a commit.

A transaction is built when the one before it is in the state, so that it is built from what is so.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Sequence
from logging import Logger
from typing import Final

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.requests import Request, Run, Trim
from penstock.plugins.queue.engines.transaction import Surroundings, Transaction

MOST_REQUESTS: Final = 256
"""The most requests of one commit. The loop spends some 10 µs on each after the commit, however few
messages it has: requests for a queue of 1,024 physical queues have one or two."""
LOG_PERIOD_SECONDS: Final = 10.0
"""The least time between two log lines while the storage refuses."""


class GroupCommit:
    """The writing thread of one store.

    Attributes:
        failure: why messages, or else other changes, were last refused; None once they succeed.
    """

    def __init__(
        self,
        around: Surroundings,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        max_messages: int,
        logger: Logger,
    ) -> None:
        self.failure: str | None = None
        self._around = around
        self._loop = loop
        self._clock = clock
        self._max_messages = max_messages
        self._logger = logger
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._applied: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closing = False
        self._held: Request | None = None
        self._logged_at = -math.inf
        self._is_failure_logged = False
        self._n_refused = 0
        self._thread = threading.Thread(target=self._run, name="penstock-queue-writer", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its future is completed on the loop's thread."""
        self._requests.put(request)

    def probe(self) -> None:
        """See whether a message would be stored; called as a `Run`, in the writing thread.

        Raises:
            StorageError: says why it would not.
        """
        try:
            self._around.store.probe(is_failing=self.failure is not None)
        except StorageError as error:
            self._failed(error, 0)
            raise
        self._succeeded(is_storing=True)

    async def close(self) -> None:
        """Write everything that was submitted, then end the thread; may be called again."""
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while self._commit():
            pass

    def _commit(self) -> bool:
        """Commit a group; return False when all is done. No reference to it is kept afterwards."""
        group = self._next_group()
        if not group:
            return False
        errors: dict[int, PenstockError] = {}
        transaction = None
        try:
            for request in group:
                if isinstance(request, Run):
                    self._call(request, errors)
            transaction = self._write(group, errors)
        except Exception as error:
            self._logger.exception("queue storage failed")
            transaction = None
            failed = StorageError(f"{type(error).__name__}: {error}")
            errors = {id(request): failed for request in group}
        self._loop.call_soon_threadsafe(self._settle, group, transaction, errors)
        self._applied.get()
        return True

    def _next_group(self) -> list[Request]:
        """Return what is to be committed together; nothing when all is done."""
        if self._held is not None:
            alone, self._held = self._held, None
            return [alone]
        group: list[Request] = []
        n_messages = 0
        while n_messages < self._max_messages and len(group) < MOST_REQUESTS:
            try:
                request = self._requests.get(block=not group and not self._is_closing)
            except queue.Empty:
                break
            if request is None:
                self._is_closing = True
            elif request.is_alone:
                if not group:
                    return [request]
                self._held = request
                break
            else:
                group.append(request)
                n_messages += request.n_messages or 1
        return group

    def _call(self, request: Run, errors: dict[int, PenstockError]) -> None:
        try:
            request.result = request.call()
        except StorageError as error:
            errors[id(request)] = _bare(error)

    def _write(
        self, group: Sequence[Request], errors: dict[int, PenstockError]
    ) -> Transaction | None:
        """Write a group in one transaction; without what cannot be stored where that fails."""
        try:
            return self._write_together(group, errors)
        except StorageError as error:
            refused = [request for request in group if not request.is_for_readers]
            others = [request for request in group if request.is_for_readers]
            self._failed(error, sum(request.n_messages for request in refused))
            bare = _bare(error)
            errors.update({id(request): bare for request in refused})
            if not refused or not others:
                errors.update({id(request): bare for request in others})
                return None
        try:
            return self._write_together(others, errors)
        except StorageError as error:
            bare = _bare(error)
            errors.update({id(request): bare for request in others})
            return None

    def _write_together(
        self, group: Sequence[Request], errors: dict[int, PenstockError]
    ) -> Transaction:
        transaction = Transaction(self._around)
        for request in group:
            try:
                if id(request) not in errors:
                    request.build(transaction)
            except PenstockError as error:
                errors[id(request)] = _bare(error)
        transaction.encode()
        transaction.finish()
        if transaction.changes.any():
            self._around.store.write(transaction.changes)
            self._succeeded(is_storing=bool(transaction.changes.segments))
        return transaction

    def _settle(
        self,
        group: Sequence[Request],
        transaction: Transaction | None,
        errors: dict[int, PenstockError],
    ) -> None:
        """Change the state and complete the futures, on the loop's thread."""
        try:
            if transaction is not None:
                transaction.apply()
                for more in transaction.more:
                    self.submit(Trim(*more))
            for request in group:
                self._settle_one(request, errors.get(id(request)))
        except Exception as error:
            self._logger.exception("queue state failed")
            failed = StorageError(f"{type(error).__name__}: {error}")
            for request in group:
                _complete(request, failed)
        finally:
            self._applied.put(None)

    def _settle_one(self, request: Request, error: PenstockError | None) -> None:
        if error is not None:
            request.failed()
        else:
            request.done()
            if request.is_repeated:
                self.submit(request)
                return
        _complete(request, error)

    def _failed(self, error: StorageError, n_refused: int) -> None:
        self.failure = str(error)
        self._n_refused += n_refused
        now = self._clock()
        if now - self._logged_at >= LOG_PERIOD_SECONDS:
            self._logged_at = now
            self._is_failure_logged = True
            self._logger.error(
                "queue storage refuses to write: %s; %d messages refused so far",
                error,
                self._n_refused,
            )

    def _succeeded(self, *, is_storing: bool) -> None:
        # On a full disk deletes still succeed while messages are refused.
        if self.failure is None or (self._n_refused and not is_storing):
            return
        if self._is_failure_logged:
            self._logger.warning(
                "queue storage writes again; %d messages were refused", self._n_refused
            )
        self.failure = None
        self._n_refused = 0
        self._is_failure_logged = False


def _complete(request: Request, error: PenstockError | None) -> None:
    future = request.future
    if future is None or future.done():
        return
    if error is None:
        future.set_result(request.result)
    else:  # a copy for each: the task that awaits it adds a traceback
        future.set_exception(_copy(error))


def _bare(error: PenstockError) -> PenstockError:
    """Return an error without its traceback, whose frames would hold a whole group.

    A frame and the error that it raised refer to each other. Only the cycle collector, which runs
    when the program is idle, would free them, while on a full disk each group is refused.
    """
    return error.with_traceback(None)


def _copy(error: PenstockError) -> PenstockError:
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made
