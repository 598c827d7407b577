"""Members of a shared subscription on a virtual clock, and their books."""

from __future__ import annotations

from typing import Any

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from tests.helpers.virtual import VirtualBroker, VirtualClient

SHARE = "$share/workers/jobs"
LASTING = {"session_expiry_interval": 100}


def member(broker: VirtualBroker, client_id: str, qos: int = 1, **properties: Any) -> VirtualClient:
    """Connect a member of the share, with a session that lasts."""
    client = broker.connect(client_id, clean_start=False, properties=LASTING | properties)
    client.subscribe(SHARE, qos)
    return client


def check_books(broker: VirtualBroker) -> None:
    """Every session's account balances, and so does the broker's."""
    outstanding = 0
    for session in broker.core.sessions:
        session.check_invariants()
        outstanding += session.ledger.outstanding()
    assert broker.core.ledger().outstanding() == outstanding


class Closed(DeliveryGate):
    """A gate that holds every large message back from some clients."""

    def __init__(self, *client_ids: str) -> None:
        self.held = client_ids

    def threshold_s(self, topic: str) -> int | None:
        """Return the same size for every topic."""
        del topic
        return 10

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Hold back."""
        del message, sojourn
        return Verdict(link.client_id not in self.held, now + 60, "test")
