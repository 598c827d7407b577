"""Back-pressure: slowing publishers down for subscribers that otherwise keep up.

Theory of operation. A publisher can send faster than a healthy subscriber reads. If the excess
were queued, memory would grow, and at the outbox's limit messages would be dropped that TCP could
have held back. So the broker stops reading from a publisher whose message found a subscriber
without room, until that subscriber has caught up. A subscriber on a bad link must not delay an
alarm for others: the wait is checked every `THROTTLE_SECONDS`, and a subscriber whose transport
has not drained once in that time is *slow*. No publisher waits for it again until it has drained
faster than that, or its outbox has been empty. No wait lasts longer than `MAX_WAIT_SECONDS`.

A publisher of few messages does not wait because of others. What a publisher adds to subscribers
without room uses up its allowance (`LITTLE_MESSAGES_PER_SECOND`, `LITTLE_BYTES_PER_SECOND`). It
waits only when the allowance is spent, or for a subscriber whose outbox is filled to a certain
share (`WAITING_SHARE`): very many publishers of few messages are a flood, too. So are those of
another broker, whose messages come on one connection (`ManyThrottle`).

The broker does not read the acknowledgements of a client that waits. If two clients that flood
each other both waited, each would wait for acknowledgements of the other that are not read. So a
client never waits for one that waits for it, directly or through others: the relation has no
cycle, and each chain ends at a client that is read from. A client in the middle of a chain is not
judged, because it is not slow by itself: from source to worker to sink, the source has to wait for
the sink too.
"""

# One throttle reads another's fields: they are two ends of one relation.
# ruff: noqa: SLF001

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from penstock.broker.outbox.outbox import Outbox
    from penstock.broker.sending.core_context import CoreContext
    from penstock.broker.sending.sender import WriteQueue

THROTTLE_SECONDS: Final = 0.05
"""Time in which a subscriber that keeps up drains `write_high_bytes` at least once. That takes
some 0.5 MB/s."""

MAX_WAIT_SECONDS: Final = 1.0
"""The longest time for which a publisher is not read from, however well its subscribers drain."""

LITTLE_MESSAGES_PER_SECOND: Final = 200.0
"""Messages that a publisher may add to subscribers without room before it has to wait."""

LITTLE_BYTES_PER_SECOND: Final = 131_072.0
"""Payload bytes that it may add to them: a quarter of the rate below which a subscriber is slow."""

LITTLE_SECONDS: Final = 0.25
"""Seconds of the allowance that may be used at once: a network delivers messages in bursts."""

MOST_DEBT_SECONDS: Final = 1.0
"""The most by which a publisher's allowance is overdrawn, such as by one large message: it is
regained in the time of the longest wait."""

WAITING_SHARE: Final = 0.125
"""Share of the messages or bytes of a full outbox up to which it has room for publishers of few
messages."""


class Throttle:
    """The back-pressure of one connection, as a publisher and as a subscriber.

    Attributes:
        outgoing: of the connection; None after its end, when it waits for no other.
        is_slow: a publisher has waited for this connection in vain.
    """

    __slots__ = (
        "_checked_at",
        "_core",
        "_held",
        "_paid_until",
        "_paused_at",
        "_resumed_at",
        "_timer",
        "_waits_since",
        "blockers",
        "is_slow",
        "outgoing",
    )

    def __init__(self, core: CoreContext, outgoing: WriteQueue) -> None:
        self._core = core
        self.outgoing: WriteQueue | None = outgoing
        self.blockers = _NOBODY
        self._held = _NOBODY
        self._timer: Timer | None = None
        self._waits_since = 0.0
        self._checked_at = 0.0
        self._paid_until = 0.0
        self._paused_at = 0.0
        self._resumed_at = 0.0
        self.is_slow = False

    def paused(self, now: float) -> None:
        """Note that this connection's transport has no room."""
        self._paused_at = now

    def resumed(self, now: float) -> None:
        """Note that its transport has drained."""
        self._resumed_at = now
        if now - self._paused_at < THROTTLE_SECONDS:
            self.is_slow = False

    def wait_for_congested(self, now: float) -> None:
        """Wait for the subscribers that had no room for the last publish."""
        congested = self._core.turn.congested
        if not congested:
            return
        if self.outgoing is not None:
            subscribers = {blocker: outbox for blocker, outbox, _ in congested}
            is_little = self._is_little(len(subscribers), now)
            for blocker, outbox in subscribers.items():
                if blocker is self or (is_little and self._has_room_for_little(outbox)):
                    continue
                if not blocker._waits_for(self):
                    self._add(blocker)
        congested.clear()
        if self.blockers and self._timer is None:
            self._waits_since = now
            self._set_timer(now)
            self._touch()

    def _is_little(self, n_subscribers: int, now: float) -> bool:
        """Book what the last publish added, and say whether it is within the allowance."""
        congested = self._core.turn.congested
        n_bytes = sum(n_bytes for _, _, n_bytes in congested)
        seconds = max(
            len(congested) / LITTLE_MESSAGES_PER_SECOND, n_bytes / LITTLE_BYTES_PER_SECOND
        )
        paid_until = max(self._paid_until, now) + seconds / n_subscribers
        self._paid_until = min(paid_until, now + MOST_DEBT_SECONDS)
        return paid_until <= now + LITTLE_SECONDS

    def _has_room_for_little(self, outbox: Outbox) -> bool:
        """Say whether few enough messages wait in an outbox that small publishers need not wait."""
        limits = self._core.limits
        return (
            outbox.n_messages < limits.queued_messages * WAITING_SHARE
            and outbox.n_bytes < limits.queued_bytes * WAITING_SHARE
        )

    def _add(self, blocker: Throttle) -> None:
        """Wait for one more subscriber."""
        if self.blockers is _NOBODY:
            self.blockers = {}
        if blocker._held is _NOBODY:
            blocker._held = {}
        self.blockers[blocker] = None
        blocker._held[self] = None

    def _touch(self) -> None:
        if self.outgoing is not None:
            self._core.turn.touch(self.outgoing)

    def _waits_for(self, other: Throttle) -> bool:
        """Say whether this connection waits for another one, directly or through others."""
        if not other._held:
            return False
        seen = {self}
        rest = [self]
        while rest:
            for blocker in rest.pop().blockers.keys() - seen:
                if blocker is other:
                    return True
                seen.add(blocker)
                rest.append(blocker)
        return False

    def _set_timer(self, now: float) -> None:
        self._checked_at = now
        self._timer = self._core.timers.at(now + THROTTLE_SECONDS, self._judge)

    def _judge(self, now: float) -> None:
        """Give up on subscribers that have not drained; go on waiting for the others."""
        checked_at = self._checked_at
        self._set_timer(now)
        is_over = now - self._waits_since >= MAX_WAIT_SECONDS
        for blocker in list(self.blockers):
            has_drained = blocker._resumed_at > checked_at
            is_slow = not has_drained and not blocker.blockers
            if is_slow:
                blocker.is_slow = True
            if is_over or is_slow:
                blocker._held.pop(self, None)
                self.blockers.pop(blocker, None)
        if not self.blockers:
            self._cancel_timer()
            self._touch()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def let_go(self) -> None:
        """Resume every publisher that waits for this connection."""
        if not self._held:
            return
        for publisher in self._held:
            publisher.blockers.pop(self, None)
            if not publisher.blockers and publisher._timer is not None:
                publisher._timer.cancel()
                publisher._timer = None
                publisher._touch()
        self._held = _NOBODY

    def leave(self) -> None:
        """Release every publisher that waits for this connection, and end its own wait."""
        if self._held is self.blockers and self._timer is None:  # neither has any
            return
        self.let_go()
        for blocker in self.blockers:
            blocker._held.pop(self, None)
        self.blockers = _NOBODY
        self._cancel_timer()

    def end(self) -> None:
        """Leave, and drop the reference to the connection, which has ended."""
        if self._held or self.blockers or self._timer is not None:
            self.leave()
        self.outgoing = None


class ManyThrottle(Throttle):
    """The back-pressure of a connection on which the messages of many publishers come.

    They do not wait because of each other, so each is one of few messages.
    """

    __slots__ = ()

    def _is_little(self, n_subscribers: int, now: float) -> bool:  # noqa: ARG002 (Throttle's form)
        return True


_NOBODY: Final = cast("dict[Throttle, None]", MappingProxyType({}))
"""Shared and read-only, for what is empty, as it is of nearly all connections: two dictionaries of
its own would take 128 bytes of each. `Throttle._add` replaces it."""
