from __future__ import annotations

import asyncio

import pytest

from penstock.broker.sending import eager_coroutine


def test_a_coroutine_that_does_not_wait_has_run_when_start_returns() -> None:
    """No event loop is needed, and nothing is left to do."""
    ran = []

    async def work() -> None:
        ran.append(1)

    assert eager_coroutine.start(work()) is None
    assert ran == [1]


def test_what_is_raised_before_the_first_wait_comes_out_of_start() -> None:
    """A fault is not hidden in a task."""

    async def work() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        eager_coroutine.start(work())


async def test_the_rest_of_a_coroutine_runs_in_a_task() -> None:
    """It goes on with what it waited for, through several waits, and may raise."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    steps: list[object] = []

    async def work() -> None:
        steps.append(await first)
        await asyncio.sleep(0)
        steps.append("after")
        raise KeyError("end")

    rest = eager_coroutine.start(work())
    assert rest is not None
    assert steps == []
    task = asyncio.create_task(rest)
    first.set_result(7)
    with pytest.raises(KeyError):
        await task
    assert steps == [7, "after"]


async def test_an_error_and_a_cancellation_reach_the_coroutine() -> None:
    """It can clean up after both."""
    loop = asyncio.get_running_loop()
    seen: list[type[BaseException]] = []

    async def work(waited: asyncio.Future[None]) -> None:
        try:
            await waited
        except (OSError, asyncio.CancelledError) as error:
            seen.append(type(error))

    failing: asyncio.Future[None] = loop.create_future()
    rest = eager_coroutine.start(work(failing))
    assert rest is not None
    failing.set_exception(OSError())
    await rest

    rest = eager_coroutine.start(work(loop.create_future()))
    assert rest is not None
    task = asyncio.create_task(rest)
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert seen == [OSError, asyncio.CancelledError]
