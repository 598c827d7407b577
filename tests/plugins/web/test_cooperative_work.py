from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from penstock.plugins.web.cooperative_work import SLICE_SECONDS, Slicer
from tests.helpers.clock import Clock


def steps(clock: Clock, n: int, seconds: float) -> Generator[None, None, int]:
    """Work of steps that take as long."""
    for _ in range(n):
        clock.now += seconds
        yield
    return n


class Rounds:
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.n = 0
        self._handle = asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.n += 1
        self._handle = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        """Count no further."""
        self._handle.cancel()


async def test_short_work_does_not_wait() -> None:
    """It is done before the loop goes round."""
    clock = Clock()
    rounds = Rounds()
    assert await Slicer(lambda: clock.now).run(steps(clock, 9, SLICE_SECONDS / 10)) == 9
    rounds.stop()
    assert rounds.n == 0


async def test_long_work_lets_the_loop_go_round_after_each_slice() -> None:
    """A step that takes a whole slice is a slice."""
    clock = Clock()
    rounds = Rounds()
    assert await Slicer(lambda: clock.now).run(steps(clock, 20, SLICE_SECONDS)) == 20
    rounds.stop()
    assert rounds.n >= 20


async def test_a_round_of_the_loop_has_one_slice_whatever_the_number_of_works() -> None:
    """Ten works of ten slices each take a hundred rounds, and each goes on in its turn."""
    clock = Clock()
    slicer = Slicer(lambda: clock.now)
    rounds = Rounds()
    done: list[int] = []

    async def run(number: int) -> None:
        await slicer.run(steps(clock, 10, SLICE_SECONDS))
        done.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(run(number))
    rounds.stop()
    assert rounds.n >= 90
    assert done == list(range(10))


async def test_what_a_work_raises_is_raised() -> None:
    """After a turn, too."""
    clock = Clock()

    def fail() -> Generator[None, None, None]:
        yield from steps(clock, 3, SLICE_SECONDS)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await Slicer(lambda: clock.now).run(fail())


async def test_a_cancelled_work_ends_and_others_go_on() -> None:
    """Its turn goes to the next one."""
    clock = Clock()
    slicer = Slicer(lambda: clock.now)
    ended: list[str] = []

    def endless() -> Generator[None, None, None]:
        try:
            while True:
                clock.now += SLICE_SECONDS
                yield
        finally:
            ended.append("endless")

    first = asyncio.create_task(slicer.run(endless()))
    second = asyncio.create_task(slicer.run(steps(clock, 5, SLICE_SECONDS)))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 5
    with pytest.raises(asyncio.CancelledError):
        await first
    assert ended == ["endless"]
