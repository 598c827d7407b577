"""Fault: clients send nothing, or half a packet, or never read again."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.loads import wire
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

N_CLIENTS: Final = 200
KEEP_ALIVE_SECONDS: Final = 2
CONNECT_TIMEOUT_SECONDS: Final = 3.0
WITHIN_SECONDS: Final = 20.0
"""A time longer than the keep-alive, the time limit for CONNECT and that for a peer that does
not read."""

PAYLOAD: Final = bytes(100_000)
SMALL_BUFFER_BYTES: Final = 4096

POLICY: Final = {"limits": {"connect_timeout_seconds": CONNECT_TIMEOUT_SECONDS}}


def inflict(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Open connections of each kind, publish to those that subscribe, and count what is left."""
    broker.configure(POLICY)
    broker.start()
    n_each = effort.count(N_CLIENTS, least=4) // 4
    with ExitStack() as stack:
        for number in range(n_each):
            stack.enter_context(wire.open_connection(broker.port))  # and sends nothing
            half = stack.enter_context(wire.open_connection(broker.port))
            packet = wire.connect_packet(f"half-{number}")
            half.sendall(packet[: rng.randrange(1, len(packet))])
            asleep = stack.enter_context(wire.open_connection(broker.port))
            name = f"asleep-{number}"
            asleep.sendall(wire.connect_packet(name, keep_alive=KEEP_ALIVE_SECONDS))
            closed = stack.enter_context(
                wire.open_client(
                    broker.port, f"closed-{number}", receive_buffer_bytes=SMALL_BUFFER_BYTES
                )
            )
            wire.subscribe(closed, "t", 1)
            closed.shutdown(socket.SHUT_WR)
        with wire.open_client(broker.port, "publisher") as publisher:
            for number in range(1, 6):
                publisher.sendall(wire.publish_packet("t", PAYLOAD, number))
                wire.expect(publisher, wire.acknowledgement(wire.PUBACK, number))
        left = broker.wait_for_connections(0, WITHIN_SECONDS)
        n_opened = 4 * n_each
    return [
        Finding("connections opened", n_opened),
        Finding(f"left after {WITHIN_SECONDS:g} s", left, most=0),
    ]


SILENCE: Final = Fault(
    "silence",
    "clients send nothing, half a CONNECT, no more after CONNECT with a keep-alive of 2 s, or FIN "
    "after SUBSCRIBE, and read nothing",
    inflict,
)
