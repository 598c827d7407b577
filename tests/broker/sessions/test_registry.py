"""Sessions that come, go, are taken over and end; wills, on a virtual clock."""

from __future__ import annotations

import logging

import pytest

from penstock.broker.events import Callbacks
from penstock.broker.mqtt.packets import (
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.durable import keep
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient, will


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
    callbacks = Callbacks(session_ended=(lambda event: ended.append(event.session.client_id),))
    broker = VirtualBroker(callbacks=callbacks)
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


def test_a_large_will_is_withheld_as_any_large_message() -> None:
    """Its size class is that of its topic."""
    broker = VirtualBroker(gate=SwitchGate())
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


# -- clients that vanish while what they sent is still handled ---------------------------------


def vanish(client: VirtualClient, *packets: Packet) -> None:
    """Send packets of which the first four are handled, and be gone."""
    broker = client.broker
    broker.core.turn.most_steps = 4
    broker.core.turn.is_running = True
    data = b"".join(write_packet(packet, client.version) for packet in packets)
    client.connection.receive_data(data, broker.now)
    assert client.connection.wants_turn
    client.connection.peer_left(broker.now)
    broker.core.turn.is_running = False


def take_turns(client: VirtualClient) -> None:
    """Handle what a client has left, turn by turn, then end its connection."""
    connection = client.connection
    while connection.wants_turn:
        connection.go_on(client.broker.now)
    client.lose()


def states(number: int) -> list[Publish]:
    """Return retained messages, each of which is a step of its own."""
    return [Publish("will/state", b"%d" % n, retain=True) for n in range(number)]


@pytest.mark.parametrize(("seconds", "reason"), [(0, None), (60, "offline")])
def test_a_vanished_client_is_no_subscriber_while_the_rest_of_its_input_is_handled(
    seconds: int, reason: str | None
) -> None:
    """Nothing is sent to it, a clean session matches nothing; QoS 1 waits in a kept one."""
    broker = VirtualBroker()
    watcher = watched(broker)
    client = broker.connect("s", **keep(seconds))
    client.subscribe("t", 1)
    client.subscribe("will/#", 0)
    n_before = client.session.settle_direct().matched
    vanish(client, *states(20))
    session = client.session
    n_handled = session.settle_direct().matched - n_before
    assert broker.core.counters.clients_connected == 1
    assert broker.core.tree.n_subscriptions == (3 if seconds else 1)
    broker.connect("p").publish("t", b"kept", qos=1)
    take_turns(client)
    assert [int(payload) for payload in watcher.payloads()] == list(range(20))
    if reason is None:
        assert broker.core.sessions.get("s") is None
        assert session.ledger.matched - n_before == n_handled
    else:
        assert session.ledger.dropped[reason] == 20 - n_handled
        assert session.outbox.n_messages == 1
        session.check_invariants()


@pytest.mark.mqtt5("3.1.2-8")
def test_the_will_of_a_vanished_client_comes_behind_all_that_it_has_sent() -> None:
    """Else a retained "online" would replace the "gone" of its will."""
    broker = VirtualBroker()
    watcher = watched(broker)
    client = broker.connect("s", will=will("will/state", b"gone", retain=True))
    vanish(client, *states(20))
    take_turns(client)
    assert watcher.payloads()[-2:] == [b"19", b"gone"]


@pytest.mark.mqtt5("3.14.4-3")
def test_a_disconnect_in_what_a_vanished_client_has_left_takes_its_will_back() -> None:
    """The end of what it sent counts like the beginning."""
    broker = VirtualBroker()
    watcher = watched(broker)
    client = broker.connect("s", will=will("will/state", b"gone"))
    vanish(client, *states(20), Disconnect())
    take_turns(client)
    assert watcher.payloads()[-1] == b"19"


def test_the_keep_alive_of_a_vanished_client_does_not_count() -> None:
    """It says nothing more, but what it has said waits in line."""
    broker = VirtualBroker()
    watcher = watched(broker)
    client = broker.connect("s", keep_alive=1)
    client.connection.peer_left(broker.now)
    broker.advance(10)
    client.publish("will/state", b"waited")
    client.lose()
    assert watcher.payloads() == [b"waited"]


def test_subscriptions_that_a_vanished_client_has_asked_for_end_with_its_session() -> None:
    """Made before it was gone or found in what it left."""
    broker = VirtualBroker()
    watched(broker)
    n_subscriptions = broker.core.tree.n_subscriptions
    client = broker.connect("s")
    for topic_filter in ("a", "b/+", "$share/s/c"):
        client.subscribe(topic_filter, 1)
    wanted = Subscribe(1, (SubscriptionRequest("a", 2), SubscriptionRequest("d", 1)))
    vanish(client, *states(20), wanted, Unsubscribe(2, ("b/+", "$share/s/c", "d")))
    take_turns(client)
    assert broker.core.tree.n_subscriptions == n_subscriptions
    assert broker.core.sessions.get("s") is None


def test_a_session_interval_counts_from_when_the_client_vanished() -> None:
    """Not from when the rest of what it had sent was handled."""
    broker = VirtualBroker()
    client = broker.connect("s", **keep(10))
    vanish(client, *states(20))
    broker.advance(4)
    take_turns(client)
    broker.advance(5.5)
    assert broker.core.sessions.get("s") is not None
    broker.advance(0.5)
    assert broker.core.sessions.get("s") is None


@pytest.mark.mqtt5("3.1.4-3")
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_client_that_comes_back_ends_what_its_vanished_connection_has_left(
    *, is_clean: bool
) -> None:
    """What the old connection sent must not come behind what the new one sends."""
    broker = VirtualBroker()
    watcher = watched(broker)
    client = broker.connect("s", **keep(60))
    vanish(client, *states(20))
    options = keep(60) | {"clean_start": is_clean}
    again = broker.connect("s", **options)
    assert again.connack.session_present != is_clean
    again.publish("will/state", b"new")
    take_turns(client)
    assert watcher.payloads()[-1] == b"new"
    assert again.session.is_connected
    assert broker.core.counters.clients_connected == 2


def test_input_of_a_vanished_client_that_is_dropped_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whole messages, by their reason; what is left in the driver's hands too."""
    caplog.set_level(logging.INFO)
    broker = VirtualBroker()
    client = broker.connect("s")
    vanish(client, *states(20))
    n_handled = broker.core.counters.publish_received
    rest = write_packet(Publish("t", b"x", qos=1, packet_id=1), 5) + b"\x30\x10"
    client.connection.drop_input(rest)
    client.lose()
    n_dropped = 21 - n_handled
    assert broker.core.counters.publish_refused == {"publisher gone": n_dropped}
    assert f"gone; {n_dropped} of its messages were not handled" in caplog.text
    assert broker.core.sessions.get("s") is None


def test_clients_that_fight_for_one_id_are_told_once_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both work for a second at a time, and without this line nothing says why."""
    broker = VirtualBroker()
    for _ in range(20):
        for _ in range(5):
            broker.connect("s")
            broker.advance(1)
        broker.advance(300)
    told = [message for message in caplog.messages if "two clients may have" in message]
    assert len(told) == 2
    assert told[0].startswith("client s: its connection was taken over 3 times in 2 s, of ")


def test_a_client_that_only_publishes_gets_nothing_made_for_messages_to_it() -> None:
    """Its session is as good as any other as soon as there is something for it."""
    broker = VirtualBroker()
    reader = broker.connect("r")
    reader.subscribe("t")
    for version in (4, 5):
        client = broker.connect("c", version)
        client.publish("t", b"x", qos=1)
        broker.advance(10)
        assert broker.session("c").is_unused
        broker.core.ledger()
        client.send(Disconnect())
        assert broker.core.sessions.get("c") is None
    assert reader.payloads() == [b"x", b"x"]
    client = broker.connect("c")
    session = broker.session("c")
    client.subscribe("t", 1)
    assert not session.is_unused
    assert session.is_direct
    reader.publish("t", b"y", qos=1)
    assert client.payloads() == [b"y"]
    session.check_invariants()
    assert (session.link.client_id, session.link.listener) == ("c", session.listener)
