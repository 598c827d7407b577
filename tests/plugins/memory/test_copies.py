from __future__ import annotations

from penstock.plugins.memory.copies import CopyStore
from tests.helpers.virtual import VirtualBroker

PAYLOAD = b"x" * 100_000


def waiting_payloads(broker: VirtualBroker, payload: bytes) -> list[object]:
    """Publish to two subscribers that are away, and return what waits for each."""
    for name in ("a", "b"):
        client = broker.connect(name, clean_start=True, properties={"session_expiry_interval": 600})
        client.subscribe("t", 1)
        client.lose()
    broker.connect("p").publish("t", payload, qos=1)
    return [
        delivery.message.payload
        for name in ("a", "b")
        for delivery in broker.session(name).outbox.waiting()
    ]


def test_each_subscriber_has_a_payload_of_its_own() -> None:
    """With store copy nothing is shared, as paper 002's baseline has it."""
    broker = VirtualBroker(payload_store=CopyStore())
    first, second = waiting_payloads(broker, PAYLOAD)
    assert first == second == PAYLOAD
    assert first is not second
    client = broker.connect("a", clean_start=False, properties={"session_expiry_interval": 600})
    assert client.acknowledge() == [PAYLOAD]
    assert not broker.session("a").outbox.n_messages


def test_small_payloads_stay_with_their_message() -> None:
    """No store is asked about a payload that is joined to its header anyway."""
    first, second = waiting_payloads(VirtualBroker(payload_store=CopyStore()), b"y" * 4096)
    assert first is second
