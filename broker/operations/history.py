"""What happened to the connections of each client lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from penstock.broker.events import Callbacks, ClientConnected, ClientDisconnected, SessionEnded
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.operations_contract import Lately
from penstock.broker.outbox.last_clients import MAX_NAME_CHARACTERS

if TYPE_CHECKING:
    from penstock.broker.access_control import SessionView
    from penstock.broker.sessions.session import Session

KEPT_EVENTS: Final = 10
"""Of each client: five connections."""

MOST_CLIENTS: Final = 10_000
"""The clients to which something happened last; with ten events each, they take some 20 MB."""

Kind: TypeAlias = Literal["connected", "taken_over", "disconnected", "session_ended"]


class History:
    """The last events of each client.

    Invariant: at most `MOST_CLIENTS` clients, each with at most `KEPT_EVENTS` events, the newest
    last, and none whose name is longer than `MAX_NAME_CHARACTERS`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: OrderedDict[str, tuple[tuple[float, Kind, str, int | None], ...]] = (
            OrderedDict()
        )

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks that fill it."""
        return Callbacks(
            client_connected=(self._connected,),
            client_disconnected=(self._disconnected,),
            session_ended=(self._ended,),
        )

    def of(self, client_id: str) -> list[Lately]:
        """Return what happened to a client, newest first."""
        now = self._clock()
        return [
            Lately(
                round(max(0.0, now - at), 3),
                kind,
                peer,
                "" if kind in ("connected", "session_ended") else why_ended(reason_code),
            )
            for at, kind, peer, reason_code in reversed(self._events.get(client_id, ()))
        ]

    def _add(
        self, session: SessionView, kind: Kind, peer: str = "", reason_code: int | None = None
    ) -> None:
        events, client_id = self._events, session.client_id
        if len(client_id) > MAX_NAME_CHARACTERS:
            return
        before = events.pop(client_id, ())[1 - KEPT_EVENTS :]
        events[client_id] = (*before, (self._clock(), kind, peer, reason_code))
        if len(events) > MOST_CLIENTS:
            events.popitem(last=False)

    def _connected(self, event: ClientConnected) -> None:
        client = cast("Session", event.session).client
        peer = "" if client is None else f"{client.remote_address}:{client.remote_port}"
        self._add(event.session, "connected", peer)

    def _disconnected(self, event: ClientDisconnected) -> None:
        is_taken_over = event.reason_code == ReasonCode.SESSION_TAKEN_OVER
        kind: Kind = "taken_over" if is_taken_over else "disconnected"
        self._add(event.session, kind, event.peer, event.reason_code)

    def _ended(self, event: SessionEnded) -> None:
        self._add(event.session, "session_ended")


def why_ended(reason_code: int | None) -> str:
    """Return in words why a connection has ended."""
    if reason_code is None:
        return "the connection was lost"
    if reason_code in (ReasonCode.SUCCESS, ReasonCode.DISCONNECT_WITH_WILL):
        return "the client has disconnected"
    return describe_reason_code(reason_code)
