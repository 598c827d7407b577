"""Slowing publishers down for subscribers that keep up otherwise.

Theory of operation. A publisher can send faster than a healthy subscriber reads. Were the rest
queued, memory would grow, and at the outbox's limit messages would be dropped that TCP could
have held back. So a publisher whose message meets a subscriber without room is not read from
until that subscriber has room, but no longer than `THROTTLE_SECONDS`: a subscriber on a bad
link must not hold up an alarm for others. One that was waited for in vain is *slow* until its
outbox has been empty, and is not waited for again.
"""

# One throttle reads another's fields: they are two ends of one relation.
# ruff: noqa: SLF001

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.timers import Timer

if TYPE_CHECKING:
    from broker.sending import Sender

THROTTLE_SECONDS: Final = 0.02
"""The longest wait for one subscriber. One on this machine or in this data centre drains in
less; one on a bad link does not."""


class Throttle:
    """One connection's part in it, as a publisher and as a subscriber.

    Attributes:
        is_slow: a publisher has waited for this connection in vain.
    """

    __slots__ = ("_blockers", "_connection", "_held", "_timer", "is_slow")

    def __init__(self, connection: Sender) -> None:
        self._connection = connection
        self._blockers: set[Throttle] = set()
        self._held: set[Throttle] = set()
        self._timer: Timer | None = None
        self.is_slow = False

    @property
    def is_blocked(self) -> bool:
        """Whether nothing should be read from this connection now."""
        return bool(self._blockers)

    def wait_for_congested(self, now: float) -> None:
        """Wait for the subscribers whom the last publish found without room."""
        core = self._connection.core
        if not core.congested:
            return
        for connection in core.congested:
            if connection.throttle is not self:
                self._blockers.add(connection.throttle)
                connection.throttle._held.add(self)
        core.congested.clear()
        if self._blockers and self._timer is None:
            self._timer = core.timers.at(now + THROTTLE_SECONDS, self._waited_in_vain)
            core.touch(self._connection)

    def _waited_in_vain(self, _now: float) -> None:
        self._timer = None
        for blocker in self._blockers:
            blocker.is_slow = True
            blocker._held.discard(self)
        self._blockers.clear()
        self._connection.core.touch(self._connection)

    def let_go(self) -> None:
        """Let every publisher go on that waits for this connection."""
        for publisher in self._held:
            publisher._blockers.discard(self)
            if not publisher._blockers and publisher._timer is not None:
                publisher._timer.cancel()
                publisher._timer = None
                publisher._connection.core.touch(publisher._connection)
        self._held.clear()

    def leave(self) -> None:
        """The connection has ended: nobody waits for it, and it waits for nobody."""
        self.let_go()
        for blocker in self._blockers:
            blocker._held.discard(self)
        self._blockers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
