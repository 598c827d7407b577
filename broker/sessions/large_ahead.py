"""The time for which small messages of a client with one connection have waited behind large ones.

Theory of operation. A connection delivers its bytes in order, so a small message that is sent while
a large one is on its way arrives after it. A large one is *on its way* from when the connection has
taken it until it has arrived:

* at QoS 1 and 2, until it is acknowledged. This holds behind a relay, too, where the kernel's
  figures end at the relay;
* at QoS 0, until a message that was sent after it is acknowledged. Without any such message, until
  the kernel has taken all that there is for the connection.

Nothing is noted of a small message. While a large one is on its way, the counter of small messages
is looked at now and then. Those that came between two looks have waited from the middle between
these until the large one has arrived, less the round trip of the path as it was without it. Where
its arrival is not told by an acknowledgement of its own, the last look that found it on its way
counts, so that no wait is too long. Where the connection ends before, nothing counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.client_report import SmallWaitFigures
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.outbox.delivery import NO_QUEUE
from penstock.broker.routing.subscriber import Subscriber

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.outbox.message_counts import Ledger

LOOK_SECONDS: Final = 0.25
"""Seconds until the first look at a large message that is on its way."""

LOOK_RATIO: Final = 1 / 16
"""The time until the next look over the time for which the message has been on its way, if that is
longer than `LOOK_SECONDS`."""

LEAST_SECONDS: Final = 0.1
"""Shorter waits are not counted: many of them, on a good link, would hide few long ones."""

WINDOW_SECONDS: Final = 300.0
"""Figures are those of the present window and of the one before."""

TOLD_SECONDS: Final = 0.5
TOLD_MESSAGES: Final = 10
"""From this mean on, and from so many messages on, the log tells of it."""


class OneConnection(Subscriber, Protocol):
    """A session, as its account of waits sees it.

    Attributes:
        ledger: the account of this subscriber.
        n_direct: messages delivered past it since it was read.
        link: what is known of the path to the client.
        large_ahead: its account of waits; None before the first large message.
    """

    ledger: Ledger
    n_direct: int
    link: Link
    large_ahead: LargeAhead | None


@dataclass(eq=False, slots=True)
class _Large:
    """A large message on its way.

    Attributes:
        qos: of it.
        packet_id: its own; at QoS 0 the last one that was given before it was sent.
        rtt: of the path when it was sent, seconds; 0.0 where that is not known.
        seen_at: monotonic seconds at which it was last known to be on its way.
        looks: (monotonic seconds, small messages that had come for the client), oldest first; they
            end where the next large one is sent.
    """

    qos: int
    packet_id: int
    rtt: float
    seen_at: float
    looks: list[tuple[float, int]]


class LargeAhead:
    """The large messages on their way to one client, and what small ones have waited for them."""

    __slots__ = ("_has_timer", "_on_way", "_since", "_waits", "_waits_before")

    def __init__(self) -> None:
        self._on_way: deque[_Large] = NO_QUEUE
        self._has_timer = False
        self._since = 0.0
        self._waits = self._waits_before = (0, 0.0)

    def sent(self, session: OneConnection, delivery: Delivery, now: float) -> None:
        """Note a large message that the connection has taken."""
        inflight = session.inflight
        if session.outbox.order is not None or (delivery.qos and not inflight.holds(delivery)):
            return
        look = (now, _n_small(session))
        if self._on_way is NO_QUEUE:
            self._on_way = deque()
        elif self._on_way:
            self._on_way[-1].looks.append(look)
        packet_id = delivery.packet_id if delivery.qos else inflight.last_packet_id
        rtt = session.link.rtt_latest or session.link.rtt_min or 0.0
        self._on_way.append(_Large(delivery.qos, packet_id, rtt, now, [look]))
        if not self._has_timer:
            self._look_at(session, now + LOOK_SECONDS)

    def acknowledged(self, session: OneConnection, delivery: Delivery, now: float) -> None:
        """Note that the client has acknowledged a large message: at QoS 2 by PUBCOMP."""
        for n, large in enumerate(self._on_way, 1):
            if large.qos and large.packet_id == delivery.packet_id:
                self._have_arrived(session, n, now, now)
                return

    def connection_lost(self) -> None:
        """Forget what was on its way."""
        if self._on_way:
            self._on_way.clear()

    def _look_at(self, session: OneConnection, when: float) -> None:
        self._has_timer = True
        session.outgoing.core.timers.at(when, partial(self._look, session))

    def _look(self, session: OneConnection, now: float) -> None:
        """See what is still on its way."""
        self._has_timer = False
        on_way, inflight = self._on_way, session.inflight
        if not on_way or session.client is None:
            return
        outgoing = session.outgoing
        is_sending = outgoing.out or outgoing.served.transport.get_write_buffer_size()
        n_arrived, until = 0, now
        n_since_at_most = len(inflight)
        for n, large in enumerate(on_way, 1):
            n_since = inflight.n_since(large.packet_id)
            n_since_at_most -= large.qos > 0
            has_left = not (large.qos or n_since or is_sending) and n == n_arrived + 1
            if has_left or n_since > n_since_at_most:  # one of them is acknowledged
                n_arrived, until = n, large.seen_at
            else:
                large.seen_at = now
        if n_arrived:
            self._have_arrived(session, n_arrived, until, now)
        if on_way:
            newest = on_way[-1].looks
            newest.append((now, _n_small(session)))
            wait = max(LOOK_SECONDS, (now - newest[0][0]) * LOOK_RATIO)
            self._look_at(session, now + wait)

    def _have_arrived(self, session: OneConnection, n_large: int, until: float, now: float) -> None:
        """Count what has waited for the oldest large messages, which have arrived at `until`."""
        on_way = self._on_way
        if n_large == len(on_way):
            on_way[-1].looks.append((now, _n_small(session)))
        n_messages, seconds = 0, 0.0
        for _ in range(n_large):
            large = on_way.popleft()
            end = until - max(large.qos, 1) * large.rtt
            for (before, n_before), (after, n_after) in pairwise(large.looks):
                waited = end - (before + after) / 2
                if waited >= LEAST_SECONDS:
                    n_messages += n_after - n_before
                    seconds += waited * (n_after - n_before)
        if n_messages:
            self._turn_window(now)
            self._waits = self._waits[0] + n_messages, self._waits[1] + seconds
            self._tell(session, now)

    def _turn_window(self, now: float) -> None:
        """Begin another window where the present one is over."""
        age = now - self._since
        if age >= WINDOW_SECONDS:
            self._waits_before = self._waits if age < 2 * WINDOW_SECONDS else (0, 0.0)
            self._waits = 0, 0.0
            self._since = now if not self._waits_before[0] else self._since + WINDOW_SECONDS

    def figures(self, now: float) -> SmallWaitFigures | None:
        """Return what small messages have waited lately; None where none has."""
        self._turn_window(now)
        n_messages = self._waits[0] + self._waits_before[0]
        if not n_messages:
            return None
        seconds = self._waits[1] + self._waits_before[1]
        since = self._since - (WINDOW_SECONDS if self._waits_before[0] else 0.0)
        return SmallWaitFigures(n_messages, round(seconds / n_messages, 6), round(now - since, 6))

    def _tell(self, session: OneConnection, now: float) -> None:
        """Log that another connection would help, at most once an hour."""
        waits = self.figures(now)
        core = session.outgoing.core
        if (
            waits is not None
            and waits.messages >= TOLD_MESSAGES
            and waits.mean_seconds > TOLD_SECONDS
            and session.outbox.order is None
            and core.told.is_due(f"lanes {session.client_id}", now)
        ):
            core.logger.info(
                "client %s: %d small messages waited %.1f s on average behind large ones; with two "
                "lanes they would not: docs/how-to/lanes.md",
                session.client_id,
                waits.messages,
                waits.mean_seconds,
            )


def large_sent(session: OneConnection, delivery: Delivery, now: float) -> None:
    """Note a large message that the connection has taken, unless it is one in this process.

    An uplink has lanes of its own behind its client here.
    """
    if session.large_ahead is None:
        if session.client_id.startswith(LOCAL_CLIENT_PREFIX):
            return
        session.large_ahead = LargeAhead()
    session.large_ahead.sent(session, delivery, now)


def _n_small(session: OneConnection) -> int:
    """Return how many small messages have come for a client."""
    ledger = session.ledger
    return ledger.matched + session.n_direct - ledger.large
