"""Message Expiry Interval, on a virtual clock: counted down wherever a message waits."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import Publish
from penstock.broker.outbox.outbox import MIN_SWEEP_MESSAGES
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

KEEP: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 9999}}


def expiring(seconds: int) -> dict[str, Any]:
    """Return the properties of a message that expires after some seconds."""
    return {"message_expiry_interval": seconds}


def left(client: VirtualClient) -> list[tuple[bytes, int | None]]:
    """Take all PUBLISH packets off; return payloads and what is left of their intervals."""
    return [
        (packet.payload, packet.properties.get("message_expiry_interval"))
        for packet in client.take_all(Publish)
    ]


@pytest.mark.mqtt5("3.3.2-6")
@pytest.mark.parametrize(("waits", "is_left"), [(0, 30), (0.25, 30), (1, 29), (12.5, 18)])
def test_a_retained_message_goes_out_with_what_is_left(waits: float, is_left: int) -> None:
    """The interval less the whole seconds for which the broker has kept it."""
    broker = VirtualBroker()
    broker.connect("p").publish("t", b"x", retain=True, properties=expiring(30))
    broker.advance(waits)
    client = broker.connect("s")
    client.subscribe("t")
    assert left(client) == [(b"x", is_left)]


@pytest.mark.mqtt5("3.3.2-6")
def test_a_withheld_message_goes_out_with_what_is_left() -> None:
    """Waiting behind a gate counts as waiting."""
    gate = SwitchGate(10)
    broker = VirtualBroker(gate=gate)
    client = broker.connect("s")
    client.subscribe("t")
    broker.connect("p").publish("t", b"x" * 11, properties=expiring(30))
    broker.advance(20)
    assert client.inbox == []
    gate.is_open = True
    broker.advance(1.5)
    assert left(client) == [(b"x" * 11, 9)]


@pytest.mark.mqtt5("3.3.2-5")
def test_a_withheld_message_leaves_at_its_deadline() -> None:
    """Before the gate wants to look again, and what waits behind it on its topic goes on."""
    broker = VirtualBroker(gate=SwitchGate(10))
    client = broker.connect("s")
    client.subscribe("t", 1)
    publisher = broker.connect("p")
    publisher.publish("t", b"x" * 11, qos=1, properties=expiring(3))
    publisher.publish("t", b"small", qos=1)
    broker.advance(2.9)
    assert client.inbox == []
    broker.advance(0.2)
    assert left(client) == [(b"small", None)]
    assert client.session.ledger.expired == 1
    client.session.check_invariants()


@pytest.mark.mqtt5("3.3.2-5")
def test_retained_messages_leave_by_themselves() -> None:
    """At their deadline, though nobody asks for them; counted."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    for seconds in (10, 20):
        publisher.publish(f"t/{seconds}", b"x", retain=True, properties=expiring(seconds))
    publisher.publish("t", b"x", retain=True)
    for topics in ({"t/10", "t/20", "t"}, {"t/20", "t"}, {"t"}):
        assert set(broker.core.retained.by_topic) == topics
        broker.advance(10)
    assert broker.core.retained.expired_total == 2
    assert broker.core.retained.n_limited == 1


def test_a_newer_retained_message_has_its_own_deadline() -> None:
    """The old one's is void, and leaves nothing behind."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    for _ in range(1000):
        publisher.publish("t", b"old", retain=True, properties=expiring(10))
    assert len(broker.core.timers) < 500
    broker.advance(5)
    publisher.publish("t", b"new", retain=True, properties=expiring(10))
    broker.advance(6)
    assert broker.core.retained.by_topic["t"].payload == b"new"
    publisher.publish("t", b"for ever", retain=True)
    broker.advance(100)
    assert broker.core.retained.by_topic["t"].payload == b"for ever"
    assert broker.core.retained.expired_total == 0


def test_a_message_that_expires_at_once_goes_to_who_is_there() -> None:
    """An interval of 0 passes unaltered; nobody gets it later."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t")
    broker.connect("p").publish("t", b"x", retain=True, properties=expiring(0))
    assert left(client) == [(b"x", 0)]
    late = broker.connect("late")
    late.subscribe("t")
    assert left(late) == []


def test_what_expires_in_a_queue_makes_room_before_it_is_full() -> None:
    """A client that stays away does not hold its expired messages in memory."""
    broker = VirtualBroker()
    client = broker.connect("s", **KEEP)
    client.subscribe("t", 1)
    session = client.session
    client.lose()
    publisher = broker.connect("p")
    for number in range(MIN_SWEEP_MESSAGES * 10):
        publisher.publish("t", b"%d" % number, qos=1, properties=expiring(5))
        broker.advance(1)
        assert session.outbox.n_messages <= 2 * MIN_SWEEP_MESSAGES
    session.check_invariants()
    client = broker.connect("s", **KEEP)
    assert len(left(client)) < 5
    assert session.ledger.expired >= MIN_SWEEP_MESSAGES * 9


@pytest.mark.mqtt5("3.3.2-6")
def test_the_interval_of_a_will_runs_from_its_publication() -> None:
    """MQTT 5.0, 3.1.3.2.4: not from CONNECT, and not while the will is delayed."""
    broker = VirtualBroker()
    properties = {"will_delay_interval": 30, "content_type": "a", **expiring(10)}
    dying = broker.connect(
        "d",
        properties={"session_expiry_interval": 100},
        will=will(retain=True, properties=properties),
    )
    broker.advance(60)
    dying.lose()
    broker.advance(33)
    client = broker.connect("s")
    client.subscribe("will")
    packet = client.take(Publish)
    assert packet.properties == {"content_type": "a", "message_expiry_interval": 7}
    broker.advance(7)
    assert len(broker.core.retained) == 0
