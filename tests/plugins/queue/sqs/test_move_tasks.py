from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.sqs.errors import RESOURCE_NOT_FOUND, UNSUPPORTED_OPERATION, SqsError
from penstock.plugins.queue.sqs.move_tasks import KEPT_TASKS, MoveTask, MoveTasks, shown
from tests.plugins.queue.running import until


class Letters:
    """A service with a number of dead letters.

    Attributes:
        engine: of the service.
        left: that have not been moved.
        steps: messages of each move that was asked for.
        may_move: set while moves go on.
        error: raised by a move.
    """

    def __init__(self, left: int) -> None:
        self.engine = self
        self.left = left
        self.steps: list[int] = []
        self.may_move = asyncio.Event()
        self.may_move.set()
        self.error: Exception | None = None

    def outline(self, _: str) -> Any:
        """Return how many there are."""
        return SimpleNamespace(messages=self.left)

    async def redrive(self, _: str, __: str | None, max_messages: int) -> int:
        """Move some."""
        await self.may_move.wait()
        if self.error is not None:
            raise self.error
        moved = min(self.left, max_messages)
        self.left -= moved
        self.steps.append(moved)
        return moved


def tasks_of(letters: Any) -> MoveTasks:
    """Return the tasks of a service."""
    return MoveTasks(letters, lambda: 1.5, logging.getLogger("penstock.queue"))


async def ended(task: MoveTask) -> MoveTask:
    """Wait for the end of a task."""
    await until(lambda: not task.is_running)
    return task


def arn(name: str) -> str:
    """Return a short ARN."""
    return f"arn:{name}"


async def test_a_task_moves_everything() -> None:
    """In steps, so that it can be cancelled; it is shown while it runs and afterwards."""
    letters = Letters(250)
    tasks = tasks_of(letters)
    letters.may_move.clear()
    task = tasks.start("dead", "other", None)
    assert shown(task, arn) == {
        "TaskHandle": task.handle,
        "Status": "RUNNING",
        "SourceArn": "arn:dead",
        "DestinationArn": "arn:other",
        "ApproximateNumberOfMessagesMoved": 0,
        "ApproximateNumberOfMessagesToMove": 250,
        "StartedTimestamp": 1500,
    }
    letters.may_move.set()
    await ended(task)
    assert letters.steps == [100, 100, 50]
    found = shown(task, arn)
    assert found["Status"] == "COMPLETED"
    assert found["ApproximateNumberOfMessagesMoved"] == 250
    assert "TaskHandle" not in found


async def test_a_rate_makes_the_steps_small() -> None:
    """The last one is waited for by nobody."""
    letters = Letters(3)
    task = tasks_of(letters).start("dead", None, 500)
    assert shown(task, arn)["MaxNumberOfMessagesPerSecond"] == 500
    await ended(task)
    assert task.moved == 3


async def test_what_dies_again_meanwhile_is_left_for_another_task() -> None:
    """Or a task would never end."""
    letters = Letters(100)
    task = tasks_of(letters).start("dead", None, None)
    letters.left += 1_000
    await ended(task)
    assert task.moved == 100


async def test_a_task_ends_where_nothing_more_can_be_moved() -> None:
    """Such as messages that are no dead letters."""
    letters = Letters(100)
    tasks = tasks_of(letters)
    task = tasks.start("dead", None, None)
    letters.left = 0
    assert (await ended(task)).status == "COMPLETED"


async def test_one_task_of_a_queue_runs_at_a_time() -> None:
    """Another queue may have its own."""
    letters = Letters(1)
    letters.may_move.clear()
    tasks = tasks_of(letters)
    tasks.start("dead", None, None)
    tasks.start("other", None, None)
    with pytest.raises(SqsError) as refused:
        tasks.start("dead", None, None)
    assert refused.value.fault == UNSUPPORTED_OPERATION
    await tasks.close()


async def test_a_cancelled_task_ends_behind_its_step() -> None:
    """What was moved is moved."""
    letters = Letters(250)
    letters.may_move.clear()
    tasks = tasks_of(letters)
    task = tasks.start("dead", None, None)
    assert tasks.cancel(tasks.find(task.handle)) == 0
    letters.may_move.set()
    await ended(task)
    assert (task.status, task.moved) in (("CANCELLED", 0), ("CANCELLED", 100))
    with pytest.raises(SqsError) as refused:
        tasks.find(task.handle)
    assert refused.value.fault == RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("error", "told"), [(StorageError("broken"), "broken"), (KeyError("x"), "its log says why")]
)
async def test_a_task_that_fails_says_why(error: Exception, told: str) -> None:
    """And another one may be started."""
    letters = Letters(1)
    letters.error = error
    tasks = tasks_of(letters)
    task = await ended(tasks.start("dead", None, None))
    assert shown(task, arn)["Status"] == "FAILED"
    assert told in shown(task, arn)["FailureReason"]
    letters.error = None
    assert (await ended(tasks.start("dead", None, None))).status == "COMPLETED"


async def test_the_newest_tasks_are_listed_first() -> None:
    """As many as are asked for; older ones are forgotten."""
    tasks = tasks_of(Letters(1))
    started = [await ended(tasks.start("dead", None, None)) for _ in range(KEPT_TASKS + 2)]
    assert tasks.of("dead", 3) == started[:-4:-1]
    assert len(tasks.of("dead", 100)) == KEPT_TASKS
    assert tasks.of("none", 1) == []
