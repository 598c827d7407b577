"""One call of the driver into the core, and what that has caused so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.outbox.outbox import Outbox
    from penstock.broker.sending.throttle import Throttle
    from penstock.broker.sending.write_queue import Outgoing

MOST_STEPS: Final = 64
"""Steps after which the rest of a chunk is put off until the others have had their turn. A packet
that takes its own way is a step, and so is each delivery of a message that cannot just be copied:
some 5 to 10 us, half a millisecond for all. With 32, a turn took fewer acknowledgements, where they
come one by one, than messages of a window of 100: a subscriber of QoS 1 that once fell behind its
Receive Maximum stayed there, at 97,000 messages a second instead of 380,000."""


class Turn:
    """What the current call into the core has caused, and what the driver does after it.

    Attributes:
        is_running: the driver is inside a call and looks at touched connections after it.
        touched: connections that the driver must serve; it takes them by `take_touched`.
        congested: (throttle and outbox of the subscriber, payload bytes) of each message of the
            current publish that found its subscriber without room.
        steps: of the current chunk: packets that took their own way, and deliveries that were no
            mere copies.
        most_steps: the number of steps at which the rest of a chunk is put off.
    """

    __slots__ = ("_wake", "congested", "is_running", "most_steps", "steps", "touched")

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            wake: called when a connection is touched outside of a turn.
        """
        self._wake = wake
        self.is_running = False
        self.touched: list[Outgoing] = []
        self.congested: list[tuple[Throttle, Outbox, int]] = []
        self.steps = 0
        self.most_steps = MOST_STEPS

    def touch(self, outgoing: Outgoing) -> None:
        """Let the driver look at all that the connection may want."""
        outgoing.needs_look = True
        if not outgoing.is_touched:
            self.write_soon(outgoing)

    def write_soon(self, outgoing: Outgoing) -> None:
        """Let the driver write what is in `out`, and no more; the connection is not touched yet."""
        outgoing.is_touched = True
        self.touched.append(outgoing)
        if not self.is_running:
            self._wake()

    def take_touched(self) -> list[Outgoing]:
        """Return what was touched since the last call, and start a new list."""
        touched, self.touched = self.touched, []
        for outgoing in touched:
            outgoing.is_touched = False
        return touched
