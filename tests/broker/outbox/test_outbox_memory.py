"""What messages that wait take of the memory."""

from __future__ import annotations

import gc
import tracemalloc

from penstock.broker.durable.records import Batch
from penstock.broker.mqtt.packets import PubAck
from tests.helpers.durable import DurableBroker, MemoryDisk

MESSAGES = 1_000
PAYLOAD_BYTES = 1_000
MOST_BYTES = PAYLOAD_BYTES + 350
"""Memory of each message that waits for one session, with its payload; the target is 1.6 KB."""
MOST_FURTHER_BYTES = 150
"""Memory of each further session that the message waits for; the target is 0.4 KB."""


class _Void(MemoryDisk):
    """A disk whose rows do not count."""

    def write(self, batch: Batch) -> None:
        """Take a batch and keep nothing."""


def bytes_of_a_message(n_sessions: int) -> float:
    """Return what each message takes that waits, stored, for so many sessions that are away."""
    broker = DurableBroker(_Void())
    for n in range(n_sessions):
        client = broker.connect(f"away-{n}", properties={"session_expiry_interval": 600})
        client.subscribe("t", qos=1)
        client.lose()
    publisher = broker.connect("publisher")
    publisher.publish("t", bytes(PAYLOAD_BYTES), qos=1, packet_id=1)
    broker.settle()
    tracemalloc.start(1)
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(MESSAGES):
            publisher.publish("t", bytes(PAYLOAD_BYTES), qos=1, packet_id=n + 1)
            publisher.take_all(PubAck)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / MESSAGES


def test_a_message_that_waits_takes_little_more_than_its_payload() -> None:
    """A backlog of small messages is what fills the memory; each session holds references."""
    one, two = bytes_of_a_message(1), bytes_of_a_message(2)
    assert one < MOST_BYTES
    assert two - one < MOST_FURTHER_BYTES
