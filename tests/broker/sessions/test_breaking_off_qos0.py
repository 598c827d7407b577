"""Messages of QoS 0 beside a large one that is broken off: they wait for the client."""

from __future__ import annotations

from penstock.broker.mqtt.packets import Subscribe, SubscriptionRequest
from penstock.broker.sessions.breaking_off import LOOK_SECONDS, RETURN_SECONDS
from tests.helpers.half_sent import Path
from tests.helpers.held_machine import MANY_PIECES


def test_what_is_of_qos_0_waits_for_the_client_to_come_back() -> None:
    """MQTT 5.0, 4.1: a server may keep it; what waited behind is not lost, nor what comes."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a", qos=0)
    assert path.break_off()
    path.publish("alarm", "b", qos=0)
    path.broker.advance(RETURN_SECONDS - 2 * LOOK_SECONDS)
    path.connect()
    assert path.names() == ["a", "b"]
    path.broker.advance(2 * RETURN_SECONDS)
    path.client.lose()
    path.publish("alarm", "c", qos=0)
    path.connect()
    assert path.names() == []
    assert path.broker.session("s").ledger.dropped == {"offline": 1}


def test_what_is_of_qos_0_is_dropped_where_the_client_does_not_come_back() -> None:
    """It is counted, and what comes from then on is for nobody."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a", qos=0)
    assert path.break_off()
    path.broker.advance(RETURN_SECONDS)
    path.publish("alarm", "b", qos=0)
    ledger = path.broker.session("s").ledger
    assert ledger.dropped == {"connection_lost": 1, "offline": 1}
    path.broker.session("s").check_invariants()


def test_retained_messages_of_qos_0_do_not_stand_behind_what_is_broken_off() -> None:
    """Those that are due wait for the client to come back, as all others do."""
    path = Path()
    names = [f"{number}" for number in range(100)]
    for name in names:
        path.publisher.publish(f"r/{name}", name.encode(), retain=True)
    path.client.connection.pause_sending(path.broker.now)
    path.client.subscribe("r/#", qos=0)
    path.publish_large("cam", "L")
    path.client.room_bytes = MANY_PIECES // 2
    path.client.connection.resume_sending(path.broker.now)
    path.broker.settle()
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect()
    assert sorted(path.names()) == sorted([*names, "a"])


def test_retained_message_of_qos_0_is_kept_before_a_live_one_of_its_topic() -> None:
    """It is for the client to have had both, in their order."""
    path = Path()
    path.publisher.publish("alarm", b"old", retain=True)
    path.publish_large("cam", "L")
    path.publish("other", "o")
    path.client.send(Subscribe(1, (SubscriptionRequest("alarm", 0),)))
    assert path.break_off()
    path.publish("alarm", "new", qos=0)
    path.connect()
    assert path.names() == ["o", "old", "new"]
    assert path.broker.session("s").ledger.dropped == {}


def test_next_loss_of_the_connection_is_as_any_other() -> None:
    """What waits at QoS 0 is dropped then, though the client was expected back a moment ago."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect().connection.pause_sending(path.broker.now)
    path.publish("alarm", "b", qos=0)
    path.client.lose()
    path.publish("alarm", "c", qos=0)
    assert path.broker.session("s").ledger.dropped == {"connection_lost": 1, "offline": 1}
