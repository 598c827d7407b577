"""Wills under access control and size classes; when they are due is the registry's tests."""

from __future__ import annotations

import pytest

from broker.mqtt.packets import Will
from broker.wills import will_message
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker


@pytest.mark.parametrize("waits", [False, True])
def test_a_will_may_do_no_more_than_its_client(*, waits: bool) -> None:
    """What the client may not publish, its loss does not publish either; it is counted."""
    access = Access(subscribe=False, receive=False)
    broker = VirtualBroker(access=access)
    watcher = broker.connect("w")
    watcher.subscribe("#", 1)
    clients = [
        broker.connect(name, will=Will(topic, b"gone", qos=1, retain=True))
        for name, topic in (("a", "secret"), ("b", "open"))
    ]
    access.refused.add(("publish", "secret"))
    access.waits = waits
    for client in clients:
        client.lose()
    broker.finish_waiting()
    broker.settle()
    assert watcher.acknowledge() == [b"gone"]
    assert list(broker.core.retained.by_topic) == ["open"]
    assert sum(broker.core.counters.publish_refused.values()) == 1


def test_a_will_becomes_a_message_when_it_is_due() -> None:
    """Its expiry runs from then, its delay does not travel, its size class is set."""
    properties = {"will_delay_interval": 5, "message_expiry_interval": 60, "content_type": "t"}
    will = Will("t", b"12345", qos=1, properties=properties)
    message = will_message(will, "c", 100.0, threshold_s=4)
    assert message.is_large
    assert message.expires_at == 160.0
    assert message.publisher == "c"
    assert set(message.properties) == {"message_expiry_interval", "content_type"}
    assert not will_message(will, "c", 100.0).is_large
