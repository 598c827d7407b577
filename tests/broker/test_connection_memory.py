"""What an idle client takes of the memory, without its socket."""

from __future__ import annotations

import tracemalloc

from tests.helpers.virtual import VirtualBroker

CLIENTS = 200
MOST_BYTES = 4_000
"""Of each, in the core; the target of 10 KB holds for the transport and plugins as well."""


def test_an_idle_client_has_nothing_that_only_busy_ones_need() -> None:
    """Ten thousand silent devices are common: queues and sets are made when there is a use."""
    broker = VirtualBroker()
    broker.connect("first", keep_alive=600)
    tracemalloc.start(1)
    try:
        before, _ = tracemalloc.get_traced_memory()
        connections = [
            broker.connect(f"idle-{n}", keep_alive=600).connection for n in range(CLIENTS)
        ]
        for connection in connections:
            connection.driver = None  # the client itself does not count
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / CLIENTS < MOST_BYTES, (after - before) / CLIENTS


def test_queues_are_a_clients_own_once_there_is_something_in_them() -> None:
    """Clients that were idle share what stands for an empty queue, and nothing of what comes."""
    broker = VirtualBroker()
    clients = [broker.connect(f"c{n}") for n in range(3)]
    for client in clients[:2]:
        client.subscribe("t", qos=1)
        client.connection.pause_sending(broker.now)
    for n in range(3):
        clients[2].publish("t", b"%d" % n, qos=1, packet_id=n + 1)
    waiting = [client.session.outbox.n_messages for client in clients]
    assert waiting == [3, 3, 0]
    for client in clients:
        client.session.check_invariants()
