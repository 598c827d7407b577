"""Draining: the clients leave one after the other, so that other brokers are not flooded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.network.in_process import LISTENER as IN_PROCESS

if TYPE_CHECKING:
    from penstock.broker.network.transport import MqttProtocol
    from penstock.broker.operations.program import Program

AT_ONCE: Final = 50
"""So many clients leave in one slice, where there is no time to spread them."""


async def drain_clients(program: Program, seconds: float, clock: Callable[[], float]) -> None:
    """Disconnect all clients, but those in the broker's own process."""
    begin = clock()
    leaving = [one for one in program.protocols if one.arrival.listener != IN_PROCESS]
    for number, protocol in enumerate(leaving, 1):
        program.take_turn(partial(_send_away, protocol, clock()))
        wait = begin + seconds * number / len(leaving) - clock()
        if wait > 0:
            await asyncio.sleep(wait)
        elif not number % AT_ONCE:
            await asyncio.sleep(0)


def _send_away(protocol: MqttProtocol, now: float) -> None:
    if protocol.connection is None:  # it waits for a place
        protocol.abort()
    else:
        protocol.connection.client.shut_down(now)
