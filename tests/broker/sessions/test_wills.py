"""Wills under access control and size classes; when they are due is the registry's tests."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, Will
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.wills import will_bytes, will_message
from tests.helpers.access import Access
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = Will("w", bytes(1000))
TWO = Limits(total_will_bytes=2 * will_bytes(LARGE))
UNAVAILABLE = ReasonCode.SERVER_UNAVAILABLE
"""As which return code 3 of MQTT 3.1.1 is read."""


def answer(broker: VirtualBroker, client_id: str, will: Will | None, version: int = 5) -> ConnAck:
    """Connect a client with a will and return what it is told."""
    client = VirtualClient(broker, version)
    client.send(Connect(client_id=client_id, protocol_version=version, will=will))
    return client.take(ConnAck)


@pytest.mark.parametrize(
    ("version", "code"), [(5, ReasonCode.QUOTA_EXCEEDED), (4, UNAVAILABLE), (3, UNAVAILABLE)]
)
def test_wills_are_bounded_in_all(version: int, code: int) -> None:
    """128 KiB of each CONNECT stayed, as many as came. Who has a will may come with another."""
    broker = VirtualBroker(TWO)
    for client_id in "ab":
        assert answer(broker, client_id, LARGE, version).reason_code == 0
    refused = answer(broker, "c", LARGE, version)
    assert refused.reason_code == code
    if version == 5:
        reason = f"allowed: {TWO.total_will_bytes} bytes of all wills"
        assert refused.properties == {"reason_string": reason}
    assert broker.core.counters.connections_refused == {"wills": 1}
    assert broker.core.sessions.get("c") is None
    assert answer(broker, "c", None, version).reason_code == 0
    assert answer(broker, "a", LARGE, version).reason_code == 0
    assert broker.core.sessions.will_bytes == TWO.total_will_bytes


@pytest.mark.parametrize("how", ["disconnected", "lost", "delayed", "taken over", "expired"])
def test_a_will_that_is_gone_makes_room(how: str) -> None:
    """Sent or void; one that is delayed stays until then."""
    broker = VirtualBroker(TWO)
    delay = {"delayed": 50, "expired": 500}.get(how, 0)
    kept = {"session_expiry_interval": 100}
    properties = {"will_delay_interval": delay} if delay else {}
    mine = Will("w", bytes(1000), properties=properties)
    client = broker.connect("a", will=mine, properties=kept)
    assert broker.core.sessions.will_bytes == will_bytes(mine)
    if how == "disconnected":
        client.send(Disconnect())
    elif how == "taken over":
        broker.connect("a")
    else:
        client.lose()
    assert bool(broker.core.sessions.will_bytes) is bool(delay)
    broker.advance(delay)
    assert broker.core.sessions.will_bytes == 0


def test_wills_come_back_beyond_the_limit() -> None:
    """Those that are delayed over a restart with a lower limit; they count."""
    broker = DurableBroker()
    delayed = Will("w", bytes(1000), properties={"will_delay_interval": 50})
    for client_id in "abc":
        broker.connect(client_id, will=delayed, properties={"session_expiry_interval": 100})
    broker = DurableBroker(broker.disk, limits=TWO, now=broker.now)
    assert broker.core.sessions.will_bytes == 3 * will_bytes(delayed)
    assert answer(broker, "d", LARGE).reason_code == ReasonCode.QUOTA_EXCEEDED
    broker.advance(60)
    assert answer(broker, "d", LARGE).reason_code == 0


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


def test_wills_share_the_number_for_their_arrival() -> None:
    """Very many clients may be lost in a moment."""
    broker = VirtualBroker()
    waiting = broker.connect("s", properties={"session_expiry_interval": 60})
    waiting.subscribe("w/#", 1)
    clients = [broker.connect(name, will=Will(f"w/{name}", b"gone", qos=1)) for name in "abc"]
    waiting.connection.pause_sending(broker.now)
    for client in clients:
        broker.advance(0.01)
        client.lose()
    arrivals = [delivery.message.arrived_at for delivery in waiting.session.outbox.waiting()]
    assert arrivals == [1000.0] * 3
    assert len(set(map(id, arrivals))) == 1
