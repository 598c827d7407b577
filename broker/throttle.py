"""Slowing publishers down for subscribers that keep up otherwise.

Theory of operation. A publisher can send faster than a healthy subscriber reads. Were the rest
queued, memory would grow, and at the outbox's limit messages would be dropped that TCP could
have held back. So a publisher whose message meets a subscriber without room is not read from
until that subscriber has caught up. A subscriber on a bad link must not hold up an alarm for
others, though: every `THROTTLE_SECONDS` the wait is judged anew, and a subscriber whose
transport has not drained once in that time is *slow*. It is not waited for again until it has
drained faster than that, or its outbox has been empty. No wait lasts longer than
`MAX_WAIT_SECONDS`.
"""

# One throttle reads another's fields: they are two ends of one relation.
# ruff: noqa: SLF001

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.timers import Timer

if TYPE_CHECKING:
    from broker.sending import Sender

THROTTLE_SECONDS: Final = 0.05
"""Time in which a subscriber that keeps up drains `write_high_bytes` at least once; below some
0.5 MB/s it does not."""

MAX_WAIT_SECONDS: Final = 1.0
"""The longest that a publisher is not read from, however well its subscribers drain."""


class Throttle:
    """One connection's part in it, as a publisher and as a subscriber.

    Attributes:
        is_slow: a publisher has waited for this connection in vain.
    """

    __slots__ = (
        "_blockers",
        "_checked_at",
        "_connection",
        "_held",
        "_paused_at",
        "_resumed_at",
        "_timer",
        "_waits_since",
        "is_slow",
    )

    def __init__(self, connection: Sender) -> None:
        self._connection = connection
        self._blockers: set[Throttle] = set()
        self._held: set[Throttle] = set()
        self._timer: Timer | None = None
        self._waits_since = 0.0
        self._checked_at = 0.0
        self._paused_at = 0.0
        self._resumed_at = 0.0
        self.is_slow = False

    def paused(self, now: float) -> None:
        """This connection's transport has no room."""
        self._paused_at = now

    def resumed(self, now: float) -> None:
        """It has drained."""
        self._resumed_at = now
        if now - self._paused_at < THROTTLE_SECONDS:
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
            self._waits_since = now
            self._set_timer(now)
            core.touch(self._connection)

    def _set_timer(self, now: float) -> None:
        self._checked_at = now
        timers = self._connection.core.timers
        self._timer = timers.at(now + THROTTLE_SECONDS, self._judge)

    def _judge(self, now: float) -> None:
        """Give up on subscribers that have not drained; go on waiting for the others."""
        self._timer = None
        is_over = now - self._waits_since >= MAX_WAIT_SECONDS
        for blocker in list(self._blockers):
            has_drained = blocker._resumed_at > self._checked_at
            if not has_drained:
                blocker.is_slow = True
            if is_over or not has_drained:
                blocker._held.discard(self)
                self._blockers.discard(blocker)
        if self._blockers:
            self._set_timer(now)
        else:
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
