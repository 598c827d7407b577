from __future__ import annotations

from penstock.broker.extensions import DeliveryGate
from penstock.broker.outbox.outbox_limits import OutboxLimits
from tests.helpers.guard import NoFaults


class Ordering(DeliveryGate):
    """A gate that says what may pass what."""

    keeps_topics = False
    supersedes = True

    def is_first(self, topic: str) -> bool:
        """Put one topic first."""
        return topic == "alarms"


def test_a_gate_without_a_word_about_order_leaves_it_as_it_is() -> None:
    """[MQTT-4.6.0-6], and nothing is dropped or goes first unless somebody asks for it."""
    rules = OutboxLimits(DeliveryGate(), NoFaults())
    assert rules.keeps_topics
    assert not rules.supersedes
    assert rules.is_first is None


def test_a_gate_may_say_what_passes_what() -> None:
    """What it says reaches every outbox."""
    rules = OutboxLimits(Ordering(), NoFaults())
    assert not rules.keeps_topics
    assert rules.supersedes
    assert rules.is_first is not None
    assert [rules.is_first(topic) for topic in ("alarms", "other")] == [True, False]
