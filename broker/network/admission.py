"""Admission: how many connections the broker, a listener and an address may have.

Theory of operation. Each network connection takes a `Place` when it is accepted, before anything is
read from it, and gives it back at its end. So a place costs little whatever the peer does. A
connection above a limit gets a place with a `refusal`, which answers its CONNECT: the client learns
why. Only `MAX_REFUSED` of these may exist at a time; further connections are cut off without an
answer. On a listener that lets its clients wait, as aMQTT does, a connection above the listener's
limit waits for a place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from penstock.broker.config.addresses import address_key
from penstock.broker.counters import Counters, count
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.session_quota import move

MAX_REFUSED: Final = 64
"""Connections at a time that stay open only to be told why they are refused."""


class Places:
    """The connections that one listener may have.

    Attributes:
        waits: whether a connection above the limit waits; if False, it is refused.
        waiting: connections that wait for a place, in the order of their arrival.
    """

    def __init__(self, max_connections: int = 0, *, waits: bool = True) -> None:
        """Begin with every place free; the arguments are those of `change`."""
        self._n_taken = 0
        self.waiting: dict[Place, None] = {}
        self.change(max_connections, waits=waits)

    def change(self, max_connections: int, *, waits: bool) -> None:
        """Have more or fewer places; connections above a lower limit stay."""
        self._most = max_connections if max_connections > 0 else math.inf
        self.waits = waits
        self._let_in()

    def take(self) -> bool:
        """Take one of the places; return whether one was free."""
        if self._n_taken >= self._most:
            return False
        self._n_taken += 1
        return True

    def give_back(self) -> None:
        """Free a place, for the connection that has waited longest."""
        self._n_taken -= 1
        if self.waiting:
            self._let_in()

    def _let_in(self) -> None:
        while self.waiting and self.take():
            place = next(iter(self.waiting))
            del self.waiting[place]
            place.turn_has_come()


class Place:
    """What one connection takes up, from its acceptance to its end.

    Attributes:
        refusal: reason code that answers its CONNECT, or None.
    """

    __slots__ = ("_admission", "_has_left", "_key", "_places", "is_waiting", "on_turn", "refusal")

    def __init__(self, admission: Admission, places: Places) -> None:
        self._admission = admission
        self._places: Places | None = None
        self._key = ""
        self._has_left = False
        self.refusal: ReasonCode | None = None
        self.is_waiting = False
        self.on_turn: Callable[[], None] | None = None
        if places.take():
            self._places = places
        elif places.waits:
            self.is_waiting = True
            self._places = places
            places.waiting[self] = None

    def turn_has_come(self) -> None:
        """Go on: another connection has given its place back."""
        self.is_waiting = False
        if self.on_turn is not None:
            self.on_turn()

    def came_from(self, address: str) -> bool:
        """Count the connection for its address, as soon as the address is known; once.

        Args:
            address: of the peer, or as a proxy gave it; "" is not counted.

        Returns:
            False where the connection is to be cut off at once.
        """
        admission = self._admission
        if not address or self._key or self._has_left or not admission.counts_addresses:
            return True
        self._key = address_key(address)
        return admission.count_address(self, self._key)

    def refuse_banned(self) -> bool:
        """Refuse a connection from an address that is banned; once its address is known.

        Returns:
            False where the connection is to be cut off at once.
        """
        if self.refusal is not None:
            return True
        if not self._admission.may_hear("banned"):
            return False
        self.refuse(ReasonCode.BANNED)
        return True

    def refuse(self, reason_code: ReasonCode) -> None:
        """Keep the connection only until its refusal is sent."""
        self.refusal = reason_code
        self._give_place_back()

    def leave(self) -> None:
        """Give everything back; further calls do nothing."""
        if self._has_left:
            return
        self._has_left = True
        self.on_turn = None
        if self._places is not None:
            self._give_place_back()
        self._admission.left(self, self._key)

    def _give_place_back(self) -> None:
        places, self._places = self._places, None
        if places is None:
            return
        if self.is_waiting:
            self.is_waiting = False
            del places.waiting[self]
        else:
            places.give_back()


class Admission:
    """All places of one broker.

    Invariant: `n_connections` is the number of places that were taken and not given back.
    """

    def __init__(
        self, counters: Counters, *, connections: int, connections_per_address: int | None
    ) -> None:
        """Begin without connections."""
        self._counters = counters
        self.change(connections, connections_per_address)
        self._per_address: dict[str, int] = {}
        self._n_refused = 0
        self.n_connections = 0

    def change(self, connections: int, connections_per_address: int | None) -> None:
        """Have other limits from now on; connections above a lower limit stay.

        None is no limit for each address. Connections count for theirs from the first limit on.
        """
        self._limit = connections
        self.counts_addresses = connections_per_address is not None
        self._limit_per_address = connections_per_address or 0

    def enter(self, places: Places) -> Place | None:
        """Return a place for a connection that was just accepted.

        Returns:
            None where the connection is to be cut off at once.
        """
        if self.n_connections - self._n_refused >= self._limit:
            return self._refused("all", Place(self, _OPEN), ReasonCode.SERVER_BUSY)
        place = Place(self, places)
        if place._places is None:  # noqa: SLF001 (same module)
            return self._refused("listener", place, ReasonCode.SERVER_BUSY)
        self.n_connections += 1
        return place

    def _refused(self, limit: str, place: Place, reason_code: ReasonCode) -> Place | None:
        if not self.may_hear(limit):
            return None
        self.n_connections += 1
        place.refuse(reason_code)
        return place

    def may_hear(self, limit: str) -> bool:
        """Count a refusal; return whether the connection may stay to be told."""
        count(self._counters.connections_refused, limit)
        if self._n_refused >= MAX_REFUSED:
            count(self._counters.connections_refused, "cut_off")
            return False
        self._n_refused += 1
        return True

    def count_address(self, place: Place, key: str) -> bool:
        """Count a place for an address; see `Place.came_from`."""
        move(self._per_address, "", key)
        if self._per_address[key] <= self._limit_per_address or place.refusal is not None:
            return True
        if not self.may_hear("address"):
            return False
        place.refuse(ReasonCode.QUOTA_EXCEEDED)
        return True

    def left(self, place: Place, key: str) -> None:
        """A place was given back."""
        self.n_connections -= 1
        if place.refusal is not None:
            self._n_refused -= 1
        if key:
            move(self._per_address, key, "")


_OPEN: Final = Places()
