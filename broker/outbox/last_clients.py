"""The last clients that have gone, and why their messages were held.

An operator asks after a client has failed, and its session may have ended by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.broker.extensions import Decision
from penstock.broker.link import Link
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox

MAX_CLIENTS: Final = 256
"""The most clients that are remembered; each takes some 3 KB."""

MAX_NAME_CHARACTERS: Final = 256
"""A client whose Client Identifier and user name have more characters is not remembered: clients
make
up identifiers, and one may have 65,535 bytes."""

MAX_TOPIC_CHARACTERS: Final = 256
"""Characters of the topic in a remembered decision; the rest is cut off."""


class LastClient(NamedTuple):
    """A client that has gone.

    Attributes:
        username: of its last connection, or None.
        outbox: empty; it has the last decisions.
        left_at: monotonic seconds.
    """

    client_id: str
    username: str | None
    listener: str
    link: Link
    outbox: Outbox
    ledger: Ledger
    left_at: float


class LastClients:
    """The last clients that have gone, `MAX_CLIENTS` at most, each by its Client Identifier.

    Clients of which nothing was held are evicted first: many short-lived ones must not push out
    the one whose messages were held.
    """

    def __init__(self) -> None:
        self._held: dict[str, LastClient] = {}
        self._others: dict[str, LastClient | Callable[[], LastClient]] = {}

    def add(self, client: LastClient) -> None:
        """Remember a client that has gone; nothing else changes what it refers to."""
        if len(client.client_id) + len(client.username or "") > MAX_NAME_CHARACTERS:
            return
        outbox, held, others = client.outbox, self._held, self._others
        outbox.journal = None
        held.pop(client.client_id, None)
        others.pop(client.client_id, None)
        if outbox.recent:
            outbox.recent = tuple(map(_shortened, outbox.recent))
            held[client.client_id] = client
        else:
            others[client.client_id] = client
        if outbox.last_decision is not None:
            outbox.last_decision = _shortened(outbox.last_decision)
        self._evict()

    def add_unused(
        self, client_id: str, username: str | None, make: Callable[[], LastClient]
    ) -> None:
        """Remember a client that nothing was sent to."""
        if len(client_id) + len(username or "") <= MAX_NAME_CHARACTERS:
            self._held.pop(client_id, None)
            self._others.pop(client_id, None)
            self._others[client_id] = make
            if len(self._others) > MAX_CLIENTS - len(self._held):
                self._evict()

    def _evict(self) -> None:
        if len(self._held) + len(self._others) > MAX_CLIENTS:
            evicted: dict[str, Any] = self._others or self._held
            del evicted[next(iter(evicted))]

    def get(self, client_id: str) -> LastClient | None:
        """Return the last client of that name that has gone; None where none is remembered."""
        found = self._held.get(client_id) or self._others.get(client_id)
        return found() if callable(found) else found


def _shortened(decision: Decision) -> Decision:
    topic = decision.topic
    if len(topic) <= MAX_TOPIC_CHARACTERS:
        return decision
    return decision._replace(topic=f"{topic[:MAX_TOPIC_CHARACTERS]}...")
