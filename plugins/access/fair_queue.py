"""A fair queue by address, which decides whose password is verified next.

An attacker can open as many connections as the limits allow, and guess on each. In a single queue
the fleet would wait behind all of these guesses and time out. So each address has a queue of its
own, and the queues are served round-robin: a client at another address waits for one guess of the
attacker, not for all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TypeAlias

_Queue: TypeAlias = "OrderedDict[asyncio.Future[None], None]"


class FairQueue:
    """A few places to work at a time, given to the queues round-robin.

    Invariant: no queue is empty; there is no queue while a place is free.
    """

    def __init__(self, n_places: int) -> None:
        """Begin with every place free."""
        self._n_free = n_places
        self._queues: OrderedDict[str, _Queue] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self, queue: str) -> AsyncIterator[None]:
        """Wait for a place and hold it during the `async with` block."""
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
            else:  # the place was given between the cancellation and this line
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
        """Give a place to the head of the queue whose turn it is, or free it."""
        while self._queues:
            name, queue = self._queues.popitem(last=False)
            place, _ = queue.popitem(last=False)
            if queue:
                self._queues[name] = queue  # behind the others
            if not place.done():  # else its waiter was cancelled and is about to leave
                place.set_result(None)
                return
        self._n_free += 1
