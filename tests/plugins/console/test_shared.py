from __future__ import annotations

import asyncio
import time

import pytest

from penstock.plugins.console.shared import (
    LEAST_SECONDS,
    MOST_SECONDS,
    SHARE_OF_A_CORE,
    Shared,
    Timed,
)


def work(seconds: float) -> None:
    """Use the processor for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_only_its_own_work_is_measured() -> None:
    """What others do while it waits does not count; its result and its errors are passed on."""

    async def make(error: Exception | None = None) -> str:
        work(0.01)
        await asyncio.sleep(0)
        work(0.01)
        if error is not None:
            raise error
        return "made"

    async def other() -> None:
        work(0.5)

    asyncio.create_task(other())  # noqa: RUF006 (it ends within this test)
    timed = Timed(make())
    assert await timed == "made"
    assert 0.02 <= timed.seconds < 0.5
    with pytest.raises(KeyError):
        await Timed(make(KeyError()))


async def test_a_cancelled_one_is_cancelled_within() -> None:
    """Nothing of it goes on when nobody waits any more."""
    ended: list[str] = []

    async def make() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async def wait() -> None:
        await Timed(make())

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["ended"]


async def test_who_asks_meanwhile_or_soon_gets_the_same_answer() -> None:
    """Also when one of them leaves; later, or after a change, it is made again."""
    now, n_made = 0.0, 0

    async def make() -> int:
        nonlocal n_made
        n_made += 1
        await asyncio.sleep(0)
        return n_made

    shared = Shared(make, lambda: now, "test")
    leaving = asyncio.ensure_future(shared.get())
    others = [asyncio.ensure_future(shared.get()) for _ in range(5)]
    leaving.cancel()
    assert await asyncio.gather(*others) == [1] * 5
    now += LEAST_SECONDS / 2
    assert await shared.get() == 1
    now += LEAST_SECONDS / 2
    assert await shared.get() == 2
    shared.forget()
    assert await shared.get() == 3


async def test_what_costs_much_is_made_seldom() -> None:
    """So that watching takes a small share of the processor, whatever there is to look at."""
    now, n_made = 0.0, 0

    async def make() -> int:
        nonlocal n_made
        n_made += 1
        work(0.02)
        return n_made

    shared = Shared(make, lambda: now, "test")
    assert await shared.get() == 1
    now += 0.02 / SHARE_OF_A_CORE * 0.99
    assert await shared.get() == 1
    now += MOST_SECONDS
    assert await shared.get() == 2


async def test_an_error_is_told_to_all_and_not_kept() -> None:
    """The next who asks may get an answer."""
    answers: list[Exception | str] = [OSError("no"), "yes"]

    async def make() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = Shared(make, lambda: 0.0, "test")
    with pytest.raises(OSError, match="no"):
        await shared.get()
    assert await shared.get() == "yes"
