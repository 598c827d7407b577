"""What all sessions of a broker have together, for `$SYS` and the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.counters import Histogram, count
from penstock.broker.outbox.message_counts import Ledger

if TYPE_CHECKING:
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

SLICE: Final = 64
"""So many sessions are added up in one slice, some 0.1 ms."""

RTT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: from a local network to a link in long congestion."""


class Totals:
    """The accounts of all sessions, added up a few at a time.

    Each account balances whenever it is read, so the sum does too, although sessions change between
    the slices. A session that ends meanwhile is counted with its last account: it existed at the
    beginning, when `ended` was read.

    Attributes:
        ledger: the ledger of the ended sessions, and of those read so far.
        withheld: messages held by the gate.
        queued: messages that wait for other reasons.
        queued_bytes: payload bytes that wait.
        n_shared_subscriptions: subscriptions to shares, one for each member.
        oldest_at: monotonic seconds at which the oldest message that waits has arrived; None where
            none waits.
        by_listener: connected clients, by the name of their listener.
        rtt: the newest RTT of each connected client that has a recent one.
    """

    def __init__(self, core: Core) -> None:
        self.ledger = Ledger()
        self.ledger.add(core.ended)
        self.inflight = self.withheld = self.queued = self.queued_bytes = 0
        self.n_withheld_sessions = self.n_shared_subscriptions = 0
        self.oldest_at: float | None = None
        self.by_listener: dict[str, int] = {}
        self.rtt = Histogram(RTT_BOUNDS)
        self._rest: list[Session] = list(core.sessions)

    def read_some(self) -> bool:
        """Read one slice; return whether there are more."""
        for session in self._rest[-SLICE:]:
            if session.client is not None:
                count(self.by_listener, session.listener)
            self.n_shared_subscriptions += len(session.shares)
            if not session.is_unused:  # which has nothing, and would be made a used one
                self._add(session)
        del self._rest[-SLICE:]
        return bool(self._rest)

    def _add(self, session: Session) -> None:
        self.ledger.add(session.settle_direct())
        outbox = session.outbox
        self.inflight += len(session.inflight)
        if outbox.n_messages:
            withheld = outbox.n_withheld
            self.withheld += withheld
            self.n_withheld_sessions += withheld > 0
            self.queued += outbox.n_messages - withheld
            self.queued_bytes += outbox.n_bytes
            oldest_at = outbox.oldest_at()
            if oldest_at is not None and (self.oldest_at is None or oldest_at < self.oldest_at):
                self.oldest_at = oldest_at
        rtt = session.link.rtt_latest
        if session.client is not None and rtt is not None:
            self.rtt.observe(rtt)
