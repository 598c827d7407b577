"""Message move tasks move dead letters back in the background."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger
from typing import Any, Final

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.sqs.errors import RESOURCE_NOT_FOUND, UNSUPPORTED_OPERATION, SqsError

MAX_PER_SECOND: Final = 500
"""The largest rate of a task, as at Amazon."""
KEPT_TASKS: Final = 10
"""How many of the newest tasks of each queue are listed, as at Amazon."""

_STEP_MESSAGES: Final = 100
"""How many messages one step moves. A task that is cancelled ends after the step."""


@dataclass(slots=True)
class MoveTask:
    """A task, running or over.

    Attributes:
        destination: queue that all go to; None for the one in which each died.
        per_second: messages at most; None for no limit.
        to_move: messages that the source held when it began.
        started_at: milliseconds since the Unix epoch.
        failure: why it failed; "" where it did not.
    """

    handle: str
    source: str
    destination: str | None
    per_second: int | None
    to_move: int
    started_at: int
    moved: int = 0
    status: str = "RUNNING"
    failure: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it may still move messages."""
        return self.status in ("RUNNING", "CANCELLING")


class MoveTasks:
    """The tasks of all queues; they end with the program."""

    def __init__(
        self, service: QueueService, wall_clock: Callable[[], float], logger: Logger
    ) -> None:
        self._service = service
        self._wall_clock = wall_clock
        self._logger = logger
        self._tasks: dict[str, deque[MoveTask]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def start(self, source: str, destination: str | None, per_second: int | None) -> MoveTask:
        """Begin a task.

        Raises:
            SqsError: one is running.
        """
        tasks = self._tasks.setdefault(source, deque(maxlen=KEPT_TASKS))
        if tasks and tasks[-1].is_running:
            raise SqsError(
                UNSUPPORTED_OPERATION,
                f"There is already a task running for queue {source}. Only one active task is "
                "allowed for a source queue at a given time.",
            )
        to_move = self._service.engine.outline(source).messages
        now = int(self._wall_clock() * 1000)
        task = MoveTask(secrets.token_urlsafe(24), source, destination, per_second, to_move, now)
        tasks.append(task)
        running = asyncio.create_task(self._run(task), name=f"queue move task {source}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return task

    def of(self, source: str, most: int) -> list[MoveTask]:
        """Return the newest tasks of a queue, the newest first."""
        return list(reversed(self._tasks.get(source, ())))[:most]

    def find(self, handle: str) -> MoveTask:
        """Return a task that is running.

        Raises:
            SqsError: there is none with this handle.
        """
        for tasks in self._tasks.values():
            for task in tasks:
                if task.handle == handle and task.is_running:
                    return task
        raise SqsError(RESOURCE_NOT_FOUND, "No running task has this TaskHandle.")

    def cancel(self, task: MoveTask) -> int:
        """End a task after its step; return how many messages it has moved so far."""
        task.status = "CANCELLING"
        return task.moved

    async def close(self) -> None:
        """End all tasks; what they have moved stays moved."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, task: MoveTask) -> None:
        try:
            while task.status == "RUNNING" and task.moved < task.to_move:
                step = min(_STEP_MESSAGES, task.per_second or _STEP_MESSAGES)
                step = min(step, task.to_move - task.moved)
                moved = await self._service.redrive(task.source, task.destination, step)
                task.moved += moved
                if not moved:
                    break
                if task.per_second and task.moved < task.to_move:
                    await asyncio.sleep(moved / task.per_second)
            task.status = "CANCELLED" if task.status == "CANCELLING" else "COMPLETED"
        except PenstockError as error:
            task.status, task.failure = "FAILED", str(error)
        except Exception:
            task.status, task.failure = "FAILED", "the server failed; its log says why"
            self._logger.exception("move task of queue %s failed", task.source)


def shown(task: MoveTask, arn_of: Callable[[str], str]) -> dict[str, Any]:
    """Return a task as a list of tasks has it."""
    found: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": arn_of(task.source),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_at,
    }
    if task.is_running:
        found["TaskHandle"] = task.handle
    if task.destination is not None:
        found["DestinationArn"] = arn_of(task.destination)
    if task.per_second is not None:
        found["MaxNumberOfMessagesPerSecond"] = task.per_second
    if task.failure:
        found["FailureReason"] = task.failure
    return found
