"""Clients that take each other's connection over, again and again: two that have one identifier.

A client that comes back before the broker has noticed that it was gone takes its own connection
over, once in a while. Two clients with one Client Identifier do so as fast as they reconnect.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FIGHT_TAKEOVERS: Final = 3
FIGHT_SECONDS: Final = 300.0
"""So many within this time are a fight, also where both wait a minute and more in between."""

MOST_CLIENTS: Final = 1_000
"""Whose takeovers are counted at a time; of more, the one that began first is forgotten."""


class Takeovers:
    """Counts takeovers by Client Identifier."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, list[tuple[float, str]]] = OrderedDict()

    def add(self, client_id: str, peer: str, now: float) -> str:
        """Count a takeover; return what the log should say, or "".

        Args:
            client_id: of both.
            peer: ``ADDRESS:PORT`` of the connection that is taken over.
            now: monotonic seconds.
        """
        recent = self._recent
        taken = [one for one in recent.pop(client_id, []) if now - one[0] < FIGHT_SECONDS]
        taken = [*taken, (now, peer)][-FIGHT_TAKEOVERS:]
        recent[client_id] = taken
        if len(recent) > MOST_CLIENTS:
            recent.popitem(last=False)
        if len(taken) < FIGHT_TAKEOVERS:
            return ""
        peers = " and ".join(dict.fromkeys(peer for _, peer in taken))
        return (
            f"its connection was taken over {len(taken)} times in {now - taken[0][0]:.3g} s, of "
            f"{peers}: two clients may have this client id"
        )
