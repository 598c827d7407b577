"""Whose turn it is to have a password verified."""

from __future__ import annotations

import asyncio

import pytest

from penstock.plugins.access.fair_queue import FairQueue


class Workers:
    """Who works, by names such as `a1`, the first of address `a`.

    Attributes:
        begun: names in the order in which they got a place.
    """

    def __init__(self, n_places: int = 1) -> None:
        self._queue = FairQueue(n_places)
        self._may_end: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.begun: list[str] = []

    async def _work(self, name: str) -> None:
        async with self._queue.turn(name[0]):
            self.begun.append(name)
            await self._may_end[name].wait()

    async def come(self, *names: str) -> None:
        """Let some ask for a place, one after the other."""
        for name in names:
            self._may_end[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._work(name))
            await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        """Let some end their work, one after the other."""
        for name in names:
            self._may_end[name].set()
            await self._tasks[name]
            await asyncio.sleep(0)

    def drop(self, name: str) -> asyncio.Task[None]:
        """Cancel one, who does not know yet."""
        self._tasks[name].cancel()
        return self._tasks[name]

    def let_end(self, name: str) -> None:
        """Let one end its work, who does not know yet."""
        self._may_end[name].set()


async def test_address_with_one_waits_for_one_of_an_address_with_many() -> None:
    """Queues are served in turn, each in its own order."""
    workers = Workers()
    await workers.come("a1", "a2", "a3", "a4", "b1", "c1", "b2")
    await workers.end("a1", "a2", "b1", "c1", "a3", "b2", "a4")
    assert workers.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_no_more_work_than_there_are_places() -> None:
    """A place that is free is had at once, and free again after its work."""
    workers = Workers(2)
    await workers.come("a1", "b1", "c1")
    assert workers.begun == ["a1", "b1"]
    await workers.end("b1", "c1")
    await workers.come("d1")
    assert workers.begun == ["a1", "b1", "c1", "d1"]
    await workers.end("a1", "d1")


async def test_who_leaves_has_no_turn() -> None:
    """The next one has it, of the same queue or another."""
    workers = Workers()
    await workers.come("a1", "a2", "b1", "b2")
    for name in ("a2", "b1"):
        with pytest.raises(asyncio.CancelledError):
            await workers.drop(name)
    await workers.end("a1", "b2")
    await workers.come("c1")
    assert workers.begun == ["a1", "b2", "c1"]
    await workers.end("c1")


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_place_is_not_lost_with_who_leaves_as_it_is_free(*, leaves_first: bool) -> None:
    """Whichever of both is first: the next one has it."""
    workers = Workers()
    await workers.come("a1", "a2", "b1")
    if leaves_first:
        workers.let_end("a1")
        task = workers.drop("a2")
    else:
        task = workers.drop("a2")
        workers.let_end("a1")
    with pytest.raises(asyncio.CancelledError):
        await task
    await workers.end("a1", "b1")
    await workers.come("c1")
    assert workers.begun == ["a1", "b1", "c1"]
    await workers.end("c1")


async def test_who_leaves_with_a_place_just_given_passes_it_on() -> None:
    """It was its turn, and it never began."""
    workers = Workers()
    await workers.come("a1", "a2", "b1")
    workers._queue._give_place()
    with pytest.raises(asyncio.CancelledError):
        await workers.drop("a2")
    await asyncio.sleep(0)
    assert workers.begun == ["a1", "b1"]
    await workers.end("a1", "b1")
