"""What is done for one connection when the driver serves it, whatever its transport is.

The order of these steps decides what a client gets first, who waits, and who reads. The broker's
connections on asyncio and those of a virtual broker both take them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.broker.receiving.connection import Connection
from penstock.broker.sending.write_queue import Outgoing
from penstock.broker.sessions.pump import pump


class Outlet(Protocol):
    """The sending side of a transport; asyncio's is one."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes it holds that are not sent."""

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        """Send bytes, or hold them."""

    def writelines(self, data: Iterable[bytes | bytearray | memoryview], /) -> None:
        """Send pieces, or hold them."""


class Served(Protocol):
    """What a driver serves: a connection with its transport.

    Attributes:
        is_reading: the transport reads from the client.
    """

    is_reading: bool

    @property
    def transport(self) -> Outlet:
        """Its transport."""

    def is_late(self, now: float) -> bool:
        """Say whether a call that began at `now` has taken its time, and others wait."""

    def wait_for_turn(self) -> None:
        """Take another turn when the others have had theirs."""

    def run_suspended(self, connection: Connection) -> None:
        """Run what the connection is suspended on."""

    def heard_at(self, now: float) -> float:
        """Return when bytes last came that are not read; `now` where that cannot be told."""

    def see_to_reading(self, connection: Connection) -> None:
        """Read if the connection wants it, and take another turn if it wants one."""

    def close(self, connection: Connection) -> None:
        """Close the transport; all that there is room for is written."""


def write(outgoing: Outgoing, transport: Outlet) -> bool:
    """Write what is in `out`, or as much of it as the others get in this round.

    Returns:
        Whether the rest may be written in the next round.
    """
    out = outgoing.data_to_send()
    if len(out) == 1:
        transport.write(out[0])
    elif out:
        transport.writelines(out)
    return bool(outgoing.out) and not outgoing.is_stuck


def look(connection: Connection, served: Served, now: float) -> None:
    """Do all that the connection wants: move on its outbox, write, wait, read or not, close."""
    client = connection.client
    outgoing = connection.outgoing
    outgoing.needs_look = False
    transport = served.transport
    while True:
        pump(client, transport.get_write_buffer_size(), now)
        if not outgoing.out:
            break
        write(outgoing, transport)
        if outgoing.is_paused or outgoing.out or not outgoing.wants_more:
            break
        if served.is_late(now):
            break
    if outgoing.out:
        if not outgoing.is_stuck:
            client.core.turn.touch(outgoing)
    elif outgoing.wants_more and not outgoing.is_paused:
        served.wait_for_turn()
    if client.suspended is not None:
        served.run_suspended(connection)
    if not (served.is_reading and client.wants_reading):
        served.see_to_reading(connection)
    if client.is_closing:
        connection.stop_receiving()
        while outgoing.out and not outgoing.is_stuck:
            write(outgoing, transport)
        served.close(connection)
