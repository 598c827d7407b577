"""What an idle client takes of the memory, without its socket."""

from __future__ import annotations

import tracemalloc

from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PingReq, PingResp, Publish
from penstock.broker.mqtt.receive_buffer import LARGE_FRAME_BYTES
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.virtual import VirtualBroker

CLIENTS = 200
MOST_BYTES = 4_000
"""Memory of each connection in the core; the target of 10 KB includes transport and plugins."""


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
            connection.outgoing.served = None  # the client itself does not count
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


def test_a_large_message_is_not_copied_for_what_comes_behind_it() -> None:
    """To copy 16 MB takes 10 ms, in which nobody is served; the packet behind has its turn."""
    broker = VirtualBroker(core_class=FastCore)
    client = broker.connect("c", 4)
    client.publish("t", b"first")
    packet = write_packet(Publish("t", bytes(2 * LARGE_FRAME_BYTES)), 4)
    stop = len(packet) - 1000
    last = packet[stop:] + write_packet(PingReq(), 4)
    tracemalloc.start(1)
    try:
        for start in range(0, stop, 65_536):
            client.send_bytes(packet[start : min(stop, start + 65_536)])
        client.send_bytes(last)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1.5 * len(packet)
    client.take(PingResp)
    assert broker.core.counters.publish_received == 2
