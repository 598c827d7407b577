from __future__ import annotations

import logging

import pytest

from broker.client_log import ClientLog
from broker.config import Limits
from broker.events import ClientConnected, Listeners
from tests.helpers.virtual import VirtualBroker

LOGGER = logging.getLogger("penstock.test")


def broker_with_log(listeners: Listeners | None = None) -> VirtualBroker:
    """Return a broker whose log is written, with room for two messages of a session."""
    limits = Limits(queued_messages=2)
    return VirtualBroker(limits, listeners=ClientLog(LOGGER).added_to(listeners or Listeners()))


def test_what_was_dropped_while_a_client_was_away_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Five messages for two places: three are told once, when the client is back."""
    broker = broker_with_log()
    publisher = broker.connect("p")
    broker.connect("s", clean_start=False, properties={"session_expiry_interval": 60})
    subscriber = broker.clients["s"]
    subscriber.subscribe("t", qos=1)
    subscriber.lose()
    for _ in range(5):
        publisher.publish("t", b"x", qos=1)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            broker.connect("s", clean_start=False)
    assert caplog.messages == ["client s: 3 messages for it dropped while it was away: queue_full 3"]
