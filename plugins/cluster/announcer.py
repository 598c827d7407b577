"""Tells the other nodes what this one subscribes to, and knows when they have taken it.

Theory of operation. What changes during one turn of the loop, or while earlier changes are on their
way, leaves together. Each change has a number. The others confirm up to which number they have
taken them: a subscription holds everywhere once all have confirmed the change that it is in.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PenstockError
from penstock.plugins.cluster.engine import ClusterEngine, is_fenced
from penstock.plugins.cluster.routes import Op, OwnRoutes
from penstock.plugins.redis.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

MOST_OPS: Final = 500
"""Filters of one change."""
MOST_CALLS: Final = 4
"""Changes on their way; what comes meanwhile collects."""
ROUTED_SECONDS: Final = 5.0
"""How long a SUBACK waits for the other nodes."""
_RETRY_SECONDS: Final = 1.0


class NotConfirmedError(PenstockError):
    """Other nodes have not confirmed a subscription in time."""


class Announcer:
    """Sends the changes of this node's routes.

    Args:
        engine: of this node.
        own: see below.

    Attributes:
        own: the subscriptions of this node.
        number: of the newest change.
        answered: that of the newest one that the engine has.
        confirmed: the other members, to the number up to which each has taken the changes.
        failure: why changes are not stored; "" where they are.
        catch_up: waits until all is taken that others have changed by now. A message that was
            retained just before a node knew of a subscription is not sent to it: the subscriber
            gets it as a retained one, if this node has it by then.
    """

    def __init__(self, engine: ClusterEngine, own: OwnRoutes) -> None:
        self.number = 0
        self.confirmed: dict[str, int] = {}
        self.failure = ""
        self.catch_up: Callable[[], Awaitable[None]] = _nothing
        self._engine = engine
        self.own = own
        self.answered = self._answered_at_beat = 0
        self._n_calls = 0
        self._is_open = False
        self._is_scheduled = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._repair: asyncio.Task[None] | None = None

    # -- changes -----------------------------------------------------------------------------------

    def subscribed(self, topic_filter: str) -> None:
        """Take note of a session's new subscription."""
        self.own.subscribed(topic_filter)
        self._soon()

    def unsubscribed(self, topic_filter: str) -> None:
        """Take note of the end of a session's subscription."""
        self.own.unsubscribed(topic_filter)
        self._soon()

    def change_kept(self, name: str, value: str) -> None:
        """Take note of a change of a kept session; see `OwnRoutes`."""
        self.own.change_kept(name, value)
        self._soon()

    def start(self) -> None:
        """Tell the others of everything, in an epoch for which they know nothing."""
        self.number = self.answered = self._answered_at_beat = 0
        self.confirmed = dict.fromkeys(self.confirmed, 0)
        self.own.tell_all()
        self._is_open = True
        self._wake(everybody=True)
        self._soon()

    def stop(self) -> None:
        """Send nothing until `start`."""
        self._is_open = False

    def close(self) -> None:
        """Send nothing more; nobody waits."""
        self.stop()
        self._wake(everybody=True)
        if self._repair is not None:
            self._repair.cancel()

    def _soon(self, seconds: float = 0.0) -> None:
        if self._is_scheduled or not self._is_open:
            return
        self._is_scheduled = True
        asyncio.get_running_loop().call_later(seconds, self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        while self._is_open and self._n_calls < MOST_CALLS and (ops := self.own.take(MOST_OPS)):
            self.number += 1
            self._n_calls += 1
            sent = partial(self._sent, ops, self.number, self._engine.epoch)
            self._engine.change(ops, self.number).add_done_callback(sent)

    def _sent(self, ops: Sequence[Op], number: int, epoch: int, call: asyncio.Future[Any]) -> None:
        self._n_calls -= 1
        error = None if call.cancelled() else call.exception()
        if epoch != self._engine.epoch or call.cancelled() or (error and is_fenced(error)):
            return  # all is told anew in the next epoch
        if error is None:
            self.failure = ""
            self.answered = max(self.answered, number)
            self._soon()
            return
        self.failure = str(error)
        self.own.tell_again(ops)
        last = self.last_number()
        self._waiters = [(max(at, last), waiter) for at, waiter in self._waiters]
        self._soon(_RETRY_SECONDS)

    def last_number(self) -> int:
        """Return the number that the last change has which is not sent yet, or was."""
        return self.number + -(-self.own.n_untold // MOST_OPS)

    def beaten(self, number: int) -> None:
        """Compare what the engine has with what it has answered before the beat: all is there.

        Where it is not, a failover has lost it, and it is sent again.
        """
        if number < self._answered_at_beat and (self._repair is None or self._repair.done()):
            self._repair = asyncio.create_task(self._tell_again(), name="penstock-cluster repair")
        self._answered_at_beat = self.answered

    async def _tell_again(self) -> None:
        found: list[str] = []
        try:
            async for some in self._engine.routes_of(self._engine.node):
                found += some
        except StorageError:
            self._answered_at_beat = self.answered = self.number  # the next beat tries again
            return
        self.own.tell([one for one in found if one not in self.own.counts])
        self.own.tell_all()
        self.answered = self._answered_at_beat = 0
        self._soon()

    # -- confirmations -----------------------------------------------------------------------------

    def joined(self, node: str, own_number: int) -> None:
        """Take note of a member that had all changes up to a number before it joined."""
        self.confirmed[node] = own_number

    def left(self, node: str) -> None:
        """Take note that a member is not to be waited for any more."""
        self.confirmed.pop(node, None)
        self._wake()

    def confirm(self, node: str, number: int) -> None:
        """Take note that a member has taken the changes up to a number."""
        if self.confirmed.get(node, number) < number:
            self.confirmed[node] = number
            self._wake()

    def _wake(self, *, everybody: bool = False) -> None:
        if not self._waiters:
            return
        least = min(self.confirmed.values(), default=self.last_number())
        left: list[tuple[int, asyncio.Future[None]]] = []
        for number, waiter in self._waiters:
            if not everybody and number > least:
                left.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = left

    def routed(self) -> Awaitable[None] | None:
        """Return what is awaited until all members have what was subscribed; None for nothing."""
        number = self.last_number()
        if not self._is_open or all(number <= one for one in self.confirmed.values()):
            return None
        if self._engine.failure is not None:  # clients of this node go on without the others
            return None
        return asyncio.create_task(self._wait(number))

    async def _wait(self, number: int) -> None:
        """Wait for confirmations, and for what others have retained before they confirmed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((number, waiter))
        try:
            async with asyncio.timeout(ROUTED_SECONDS):
                await waiter
                await self.catch_up()
        except TimeoutError as error:
            names = ", ".join(node for node, one in self.confirmed.items() if one < number)
            raise NotConfirmedError(
                f"subscriptions were not confirmed within {ROUTED_SECONDS:g} s by "
                f"{names or self.failure or 'the engine'}"
            ) from error


async def _nothing() -> None:
    """Nothing is to be waited for."""
