"""Whose password is verified next: addresses take turns.

One stranger can have as many connections as the limits allow, and guess on each. In one queue the
fleet would stand behind all of them, and be gone by its turn. So each address has a queue of its
own, and the queues are served in turn: whoever comes from elsewhere waits for one guess of the
stranger, not for all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TypeAlias

_Queue: TypeAlias = "OrderedDict[asyncio.Future[None], None]"


class Turns:
    """Some places to work at a time, and who waits for one.

    Invariant: nobody waits while a place is free; no queue is empty.
    """

    def __init__(self, n_places: int) -> None:
        """Open the places.

        Args:
            n_places: how many may work at a time.
        """
        self._n_free = n_places
        self._queues: OrderedDict[str, _Queue] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self, queue: str) -> AsyncIterator[None]:
        """Wait for a place, and have it for the block.

        Args:
            queue: name of the one to stand in.
        """
        if self._n_free:
            self._n_free -= 1
        else:
            await self._wait(queue)
        try:
            yield
        finally:
            self._give_place()

    async def _wait(self, name: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(name, OrderedDict())[place] = None
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(name, place)
            else:  # it had just been given the place
                self._give_place()
            raise

    def _leave(self, name: str, place: asyncio.Future[None]) -> None:
        queue = self._queues.get(name)
        if queue is None:
            return
        queue.pop(place, None)
        if not queue:
            del self._queues[name]

    def _give_place(self) -> None:
        """Give a place to the first of the queue whose turn it is, or free it."""
        while self._queues:
            name, queue = self._queues.popitem(last=False)
            place, _ = queue.popitem(last=False)
            if queue:
                self._queues[name] = queue  # behind the others
            if not place.done():  # else it is just about to leave
                place.set_result(None)
                return
        self._n_free += 1
