"""Sessions that come, go, are taken over and end; wills, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from broker.events import Listeners
from broker.extensions import Verdict
from broker.link import Link
from broker.message import Message
from broker.mqtt.packets import Disconnect, Publish, Will
from broker.outbox_rules import OpenGate
from tests.helpers.virtual import VirtualBroker, VirtualClient, will


def keep(seconds: int) -> dict[str, Any]:
    """Return the options of a client whose session outlives its connection."""
    return {"clean_start": False, "properties": {"session_expiry_interval": seconds}}


def watched(broker: VirtualBroker) -> VirtualClient:
    """Return a client that sees every will."""
    watcher = broker.connect("w")
    watcher.subscribe("will/#", 1)
    return watcher


@pytest.mark.mqtt5("3.1.2-5", "3.1.2-23")
def test_a_kept_session_gets_what_came_while_it_was_away() -> None:
    """[MQTT-4.1.0-1]: subscriptions stay, QoS 1 and 2 wait, QoS 0 does not."""
    broker = VirtualBroker()
    client = broker.connect("s", **keep(60))
    client.subscribe("t", 2)
    client.send(Disconnect())
    publisher = broker.connect("p")
    for qos in (0, 1, 2):
        publisher.publish("t", b"%d" % qos, qos=qos, packet_id=qos)
    client = broker.connect("s", **keep(60))
    assert client.connack.session_present
    assert client.payloads() == [b"1", b"2"]
    assert client.session.ledger.dropped == {"offline": 1}
    client.session.check_invariants()


@pytest.mark.mqtt5("4.1.0-2")
def test_a_session_ends_with_its_interval() -> None:
    """[MQTT-3.1.2-23]: until then it is there, then it is gone with all it had."""
    broker = VirtualBroker(session_expiry_limit=100.0)
    for client_id, interval in (("short", 10), ("long", 1000), ("never", 0)):
        client = broker.connect(client_id, **keep(interval))
        client.subscribe("t", 1)
        client.lose()
    broker.connect("p").publish("t", b"x", qos=1)
    assert [s.client_id for s in broker.core.sessions if s.client_id != "p"] == ["short", "long"]
    broker.advance(10)
    assert broker.core.sessions.get("short") is None
    broker.advance(91)  # the broker's own limit
    assert broker.core.sessions.get("long") is None
    assert broker.core.tree.n_subscriptions == 0
    assert broker.core.ended.dropped == {"session_ended": 2}
    assert broker.core.ledger().outstanding() == 0


def test_a_reconnect_stops_the_expiry() -> None:
    """A session that is connected does not end."""
    broker = VirtualBroker()
    broker.connect("s", **keep(10)).lose()
    broker.advance(9)
    client = broker.connect("s", **keep(10))
    broker.advance(100)
    assert broker.core.sessions.get("s") is client.session


@pytest.mark.mqtt5("3.1.2-4", "3.1.4-4")
def test_clean_start_ends_the_old_session() -> None:
    """[MQTT-3.1.2-4]: nothing of it is left, and what it held is counted."""
    broker = VirtualBroker()
    client = broker.connect("s", **keep(60))
    client.subscribe("t", 1)
    client.lose()
    broker.connect("p").publish("t", b"x", qos=1)
    client = broker.connect("s", clean_start=True)
    assert not client.connack.session_present
    assert client.payloads() == []
    assert client.session.subscriptions == {}
    assert broker.core.ended.dropped == {"session_ended": 1}


def test_what_is_inflight_when_a_session_ends_is_counted() -> None:
    """Messages matched = delivered + dropped, for sessions that are gone too."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 1)
    broker.connect("p").publish("t", b"x", qos=1)
    client.lose()
    assert broker.core.ended.dropped == {"session_ended": 1}
    assert broker.core.ended.outstanding() == 0


@pytest.mark.mqtt5("3.1.2-7", "3.1.2-8", "3.1.2-10", "3.1.2-15")
@pytest.mark.mqtt311("3.1.2-8", "3.1.2-10", "3.1.2-17")
@pytest.mark.parametrize("version", [4, 5])
def test_the_will_is_published_when_the_connection_is_lost(version: int) -> None:
    """[MQTT-3.1.2-8]: with its QoS and RETAIN, once."""
    broker = VirtualBroker()
    watcher = watched(broker)
    client = broker.connect("c", version, will=Will("will/c", b"gone", qos=1, retain=True))
    client.lose()
    packet = watcher.take(Publish)
    assert (packet.payload, packet.qos) == (b"gone", 1)
    assert broker.core.retained.by_topic["will/c"].payload == b"gone"
    broker.connect("c", version).lose()
    assert watcher.inbox == []


@pytest.mark.mqtt5("3.1.2-8")
def test_the_will_is_published_at_takeover_and_timeout() -> None:
    """[MQTT-3.1.2-8]: every end without DISCONNECT counts."""
    broker = VirtualBroker()
    watcher = watched(broker)
    broker.connect("c", keep_alive=10, will=Will("will/c", b"1"))
    broker.connect("c", keep_alive=10, will=Will("will/c", b"2"))
    assert watcher.payloads() == [b"1"]
    broker.advance(16)
    assert watcher.payloads() == [b"2"]


@pytest.mark.mqtt5("3.1.2-8")
@pytest.mark.parametrize(
    ("expiry", "delay", "due"), [(100, 20, 20), (10, 20, 10), (0, 20, 0), (100, 0, 0)]
)
def test_a_delayed_will_waits_for_its_delay_or_the_sessions_end(
    expiry: int, delay: int, due: int
) -> None:
    """[MQTT-3.1.3-9]: whichever comes first."""
    broker = VirtualBroker()
    watcher = watched(broker)
    properties = {"will_delay_interval": delay, "content_type": "text/plain"}
    client = broker.connect("c", will=Will("will/c", b"x", properties=properties), **keep(expiry))
    client.lose()
    if due:
        broker.advance(due - 0.1)
        assert watcher.inbox == []
        broker.advance(0.2)
    assert watcher.take(Publish).properties == {"content_type": "text/plain"}
    broker.advance(1000)
    assert watcher.inbox == []


@pytest.mark.mqtt5("3.1.3-9")
def test_a_reconnect_in_time_makes_a_delayed_will_void() -> None:
    """[MQTT-3.1.3-9]: the client is back, so it was not gone."""
    broker = VirtualBroker()
    watcher = watched(broker)
    will = Will("will/c", b"x", properties={"will_delay_interval": 20})
    broker.connect("c", will=will, **keep(100)).lose()
    broker.advance(10)
    broker.connect("c", **keep(100))
    broker.advance(1000)
    assert watcher.inbox == []


def test_a_clean_start_is_the_end_of_the_session_that_a_will_waited_for() -> None:
    """[MQTT-3.1.3-9]: the session ends, so the will is due."""
    broker = VirtualBroker()
    watcher = watched(broker)
    will = Will("will/c", b"x", properties={"will_delay_interval": 20})
    broker.connect("c", will=will, **keep(100)).lose()
    broker.connect("c", clean_start=True)
    assert watcher.payloads() == [b"x"]


def test_the_end_of_a_session_is_told_once() -> None:
    """Whoever keeps something for a client learns when to let go of it."""
    ended: list[str] = []
    listeners = Listeners(session_ended=(lambda event: ended.append(event.session.client_id),))
    broker = VirtualBroker(listeners=listeners)
    broker.connect("a").lose()
    broker.connect("b", **keep(10)).lose()
    assert ended == ["a"]
    broker.advance(20)
    assert ended == ["a", "b"]


def test_the_expiry_interval_of_a_will_runs_from_its_publication() -> None:
    """MQTT 5.0, 3.1.3.2.4: it is the Publication Expiry Interval."""
    broker = VirtualBroker()
    for name in ("early", "late"):
        watcher = broker.connect(name, **keep(600))
        watcher.subscribe("will", 1)
        watcher.lose()
    testator = broker.connect("c", will=will(qos=1, properties={"message_expiry_interval": 10}))
    broker.advance(60)
    testator.lose()
    broker.advance(4)
    packet = broker.connect("early", **keep(600)).take(Publish)
    assert packet.properties["message_expiry_interval"] == 6
    broker.advance(7)
    assert broker.connect("late", **keep(600)).inbox == []
    assert broker.core.ledger().expired == 1


class Closed(OpenGate):
    """Holds what is larger than 100 bytes."""

    def threshold_s(self, topic: str) -> int | None:
        """Every topic has the same."""
        del topic
        return 100

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Hold it."""
        del message, link, sojourn, now
        return Verdict(deliver=False)


def test_a_large_will_is_withheld_as_any_large_message() -> None:
    """Its size class is that of its topic."""
    broker = VirtualBroker(gate=Closed())
    watcher = broker.connect("w")
    watcher.subscribe("will/#")
    broker.connect("a", will=will("will/a", bytes(101))).lose()
    broker.connect("b", will=will("will/b", bytes(100))).lose()
    assert [packet.topic for packet in watcher.take_all(Publish)] == ["will/b"]
    assert watcher.session.outbox.n_withheld == 1


def test_a_will_may_not_be_published_under_sys() -> None:
    """As any other message of a client: those topics are the broker's."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("$SYS/#")
    broker.connect("c", will=will("$SYS/broker/version", b"mine", retain=True)).lose()
    assert watcher.payloads() == []
    assert len(broker.core.retained) == 0
    assert sum(broker.core.counters.publish_refused.values()) == 1
