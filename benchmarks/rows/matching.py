"""How fast is a broker with 10,000 topic filters with wildcards?

A hundred clients share the filters, three of which match each topic that has any, of three
different clients. Publishing: one publisher sends QoS 0 messages of 64 bytes on 1,000 of the
topics at random, as fast as it is read; each goes to three subscribers. Subscribing: all
clients subscribe all filters at once, a hundred a packet; each round takes new filters, and
the old ones are unsubscribed while no clock runs.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.load import Load
from benchmarks.loads.stream import Shape, wildcard_filters
from benchmarks.peers import RunningPeer
from benchmarks.rows.rates import Meter, measure_run
from benchmarks.rows.row import Measurement, Row, Scale, Target

CLIENTS: Final = 100
FILTERS: Final = 10_000
SHAPE: Final = Shape(64, 64, topics=1_000, subscribers=CLIENTS, filters=FILTERS)
LEAST_ROUNDS: Final = 2


def measure_matching(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return messages published per second, each delivered three times."""
    with Load(peer.access, SHAPE) as load:
        return measure_run(load, peer, scale, per_message=1.0)


def measure_subscribing(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return subscriptions acknowledged per second."""
    meter = Meter(peer)
    rounds = 0
    with ExitStack() as stack:
        clients = [
            stack.enter_context(sock)
            for sock in wire.open_clients(peer.port, [f"bench-filters-{i}" for i in range(CLIENTS)])
        ]
        while rounds < LEAST_ROUNDS or meter.elapsed_seconds < scale.seconds:
            filters = wildcard_filters(FILTERS, f"round{rounds}")
            own = [filters[i::CLIENTS] for i in range(CLIENTS)]
            subscribes = [wire.subscribe_packet(1, each, 0) for each in own]
            unsubscribes = [wire.unsubscribe_packet(2, each) for each in own]
            answer = bytes([wire.SUBACK, 2 + FILTERS // CLIENTS, 0, 1]) + bytes(FILTERS // CLIENTS)
            with meter:
                for sock, packet in zip(clients, subscribes, strict=True):
                    sock.sendall(packet)
                for sock in clients:
                    wire.expect(sock, answer)
            rounds += 1
            for sock, packet in zip(clients, unsubscribes, strict=True):
                sock.sendall(packet)
                wire.expect(sock, wire.acknowledgement(wire.UNSUBACK, 2))
    details = {"rounds": rounds, **meter.details(rounds * FILTERS)}
    return Measurement(rounds * FILTERS / meter.elapsed_seconds, details=details)


ROWS: Final = (
    Row(
        name="wildcard_publishing",
        group="wildcards",
        title="10,000 filters with wildcards on 100 clients, 1,000 topics, 3 matches each",
        unit="published/s",
        target=Target(least_ratio=3),
        measure=measure_matching,
        has_ceiling=True,
    ),
    Row(
        name="wildcard_subscribing",
        group="wildcards",
        title="subscribing 10,000 filters with wildcards",
        unit="subscriptions/s",
        target=Target(least_ratio=0.5),
        measure=measure_subscribing,
        has_ceiling=True,
    ),
)
