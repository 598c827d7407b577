"""Room for messages in the outboxes of their subscribers, and publishers that wait for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths import acknowledged_runs
from penstock.broker.mqtt.packets import PubComp, Publish, PubRel
from penstock.broker.routing import queue_capacity
from penstock.broker.routing.queue_capacity import HELD_BYTES, LOG_SECONDS, QueueCapacity
from tests.helpers.full import FULL, SMALL, acknowledged, check, drain, kept, send, stalled
from tests.helpers.virtual import VirtualBroker, will


@pytest.mark.parametrize("qos", [1, 2])
def test_an_mqtt_5_publisher_is_told_that_a_subscriber_has_no_room(qos: int) -> None:
    """Nobody gets what was refused: its repeat would come to the others twice."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    other = kept(broker, "other")
    publisher = broker.connect("p")
    send(publisher, 1, 2, 3, 4, qos=qos)
    answers = acknowledged(publisher)
    assert answers == {1: 0, 2: 0, 3: FULL, 4: FULL}
    assert drain(other) == [b"1", b"2"]
    assert broker.core.counters.publish_refused == {"queue_full": 2}
    assert not broker.core.ledger().dropped
    if qos == 2:
        assert list(publisher.session.incoming) == [1, 2]
        publisher.send(PubRel(1), PubRel(2))
        assert [packet.packet_id for packet in publisher.take_all(PubComp)] == [1, 2]
    assert drain(kept(broker)) == [b"1", b"2"]
    send(publisher, 3, qos=qos)
    assert acknowledged(publisher) == {3: 0}
    check(broker)


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_of_mqtt_3_1_1_wait_for_room_and_come_once_in_order(qos: int) -> None:
    """Without an acknowledgement until then, and what comes behind them waits as well."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    other = kept(broker, "other")
    publisher = broker.connect("p", 4)
    send(publisher, 1, 2, 3, 4, qos=qos)
    publisher.send(Publish("elsewhere", qos=qos, packet_id=9), Publish("t", b"QoS 0"))
    assert acknowledged(publisher) == {1: 0, 2: 0}
    assert drain(other) == [b"1", b"2", b"QoS 0"]
    assert broker.core.room.n_held == 3
    subscriber = kept(broker)
    assert drain(subscriber) == [b"1", b"2"]
    broker.advance(0)
    assert list(acknowledged(publisher)) == [3, 4, 9]
    assert drain(subscriber) == [b"3", b"4"]
    assert drain(other) == [b"3", b"4"]
    assert not broker.core.room.waiting
    assert broker.core.ledger().dropped == {"queue_full": 1}  # of QoS 0
    check(broker)


def test_a_client_that_must_make_room_itself_is_read_from() -> None:
    """It publishes to what it is subscribed to, and has its own acknowledgements to send."""
    broker = VirtualBroker(Limits(queued_messages=1, inflight_messages=1))
    client = broker.connect("c", 4)
    client.subscribe("t", 1)
    send(client, *range(1, 11))
    assert len(acknowledged(client)) == 2
    found: list[bytes] = []
    for _ in range(10):
        found += client.acknowledge()
        broker.advance(0)
    assert found == [b"%d" % number for number in range(1, 11)]
    assert len(acknowledged(client)) == 8
    check(broker)


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_that_stays_full_does_not_stop_its_topics_for_good(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After `queue_full_seconds` what comes is dropped for it, until it is down to half."""
    broker = VirtualBroker(Limits(**SMALL, queue_full_seconds=60.0))
    stalled(broker)
    other = kept(broker, "other")
    publisher = broker.connect("p", version)
    caplog.set_level(logging.INFO)
    send(publisher, 1, 2, 3)
    assert "client s: full (limits.queued_messages: 2, limits.queued_bytes" in caplog.text
    broker.advance(59)
    assert acknowledged(publisher).get(3) == (None if version == 4 else FULL)
    broker.advance(2)
    send(publisher, 4)
    assert acknowledged(publisher)[4] == 0
    assert drain(other) == [b"1", b"2", *([b"3"] if version == 4 else []), b"4"]
    assert "client s: not down to half of its limits within 60 s" in caplog.text
    assert "client s: 1 messages for it dropped: queue_full (limits.queued_m" in caplog.text
    subscriber = kept(broker)
    assert drain(subscriber) == [b"1", b"2"]
    broker.advance(1)
    assert "client s: has room again" in caplog.text
    subscriber.stall()
    send(publisher, 5, 6, 7)
    assert acknowledged(publisher).get(7) == (None if version == 4 else FULL)
    check(broker)


@pytest.mark.parametrize("version", [4, 5])
def test_what_another_broker_has_routed_waits_for_a_full_session_for_a_second(version: int) -> None:
    """All that it has for others waits behind it; clients of this broker wait as before."""
    broker = VirtualBroker(Limits(**SMALL, queue_full_seconds=60.0))
    stalled(broker)
    forwarder = broker.connect("$cluster/b", version, is_forwarded=True)
    forwarder.connection.client.is_patient = True
    publisher = broker.connect("p")
    send(forwarder, 1, 2, 3)
    send(publisher, 4)
    assert acknowledged(forwarder) == {1: 0, 2: 0}
    broker.advance(2)
    assert acknowledged(forwarder) == {3: 0}
    send(forwarder, 4)
    assert acknowledged(forwarder) == {4: 0}
    send(publisher, 5)
    assert acknowledged(publisher) == {4: FULL, 5: FULL}
    check(broker)


@pytest.mark.parametrize("version", [4, 5])
def test_sessions_that_are_full_together_are_waited_for_together(version: int) -> None:
    """Ten clients that stay away stop their topic for as long as one does, and not one by one."""
    broker = VirtualBroker(Limits(**SMALL, queue_full_seconds=60.0))
    for number in range(10):
        stalled(broker, f"s{number}")
    publisher = broker.connect("p", version)
    send(publisher, 1, 2, 3)
    broker.advance(61)
    send(publisher, 4)
    assert acknowledged(publisher)[4] == 0
    check(broker)


def test_of_very_many_sessions_that_are_full_some_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their lines, all at once, would stop everybody."""
    broker = VirtualBroker(Limits(queued_messages=1, queue_full_seconds=60.0))
    for number in range(100):
        stalled(broker, f"s{number}")
    publisher = broker.connect("p")
    caplog.set_level(logging.INFO)
    send(publisher, 1, 2)
    lines = [line for line in caplog.messages if ": full (" in line]
    assert len(lines) == queue_capacity.LOGGED_SESSIONS + 2  # 32 and 64
    assert lines[-1].startswith("client s63: ")
    assert lines[-1].endswith("full sessions: 64")
    caplog.clear()
    broker.advance(61)
    send(publisher, 3)
    lines = [line for line in caplog.messages if "within 60 s" in line]
    assert len(lines) == queue_capacity.LOGGED_SESSIONS + 2
    lines = [line for line in caplog.messages if "1 messages for it dropped" in line]
    assert len(lines) == queue_capacity.LOGGED_SESSIONS + 2
    for number in range(100):
        drain(kept(broker, f"s{number}"))
    caplog.clear()
    broker.advance(1)
    lines = [line for line in caplog.messages if "has room again" in line]
    assert len(lines) == queue_capacity.LOGGED_SESSIONS + 2
    assert lines[-1].endswith("still full: 0")


def test_without_that_limit_publishers_wait_until_the_client_has_gone() -> None:
    """For good, where nothing else makes queue_capacity."""
    broker = VirtualBroker(Limits(**SMALL, queue_full_seconds=None))
    subscriber = kept(broker)
    subscriber.stall()
    publisher = broker.connect("p", 4)
    send(publisher, 1, 2, 3)
    broker.advance(9_000)
    assert list(acknowledged(publisher)) == [1, 2]
    subscriber.lose()
    broker.advance(1)
    assert list(acknowledged(publisher)) == [3]
    assert broker.core.ledger().dropped == {"queue_full": 1}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("limits", [SMALL, {"total_queued_messages": 2}], ids=["own", "of all"])
def test_a_client_that_is_away_stops_no_publisher(
    limits: dict[str, Any], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot make room: what it has none for is dropped for it alone, counted and told."""
    broker = VirtualBroker(Limits(**limits))
    for client_id, topic_filter in (("away", "t"), ("share", "$share/g/t")):
        kept(broker, client_id, topic_filter).lose()
    other = kept(broker, "other")
    publisher = broker.connect("p", version)
    caplog.set_level(logging.INFO)
    for number in range(1, 21):
        send(publisher, number)
        assert acknowledged(publisher) == {number: 0}
        assert drain(other) == [b"%d" % number]
    reason = "queue_full" if limits is SMALL else "broker_full"
    dropped = broker.session("away").ledger.dropped | broker.session("share").ledger.dropped
    assert set(dropped) == {reason}
    assert f"client away: 1 messages for it dropped: {reason} (limits." in caplog.text
    assert not broker.core.counters.publish_refused
    assert drain(kept(broker, "away")) == [b"1", *([b"2"] if limits is SMALL else [])]
    check(broker)


def test_a_lane_that_is_away_has_the_room_of_the_other_one() -> None:
    """What comes for it waits for the lane that is connected, which can make room."""
    broker = VirtualBroker(Limits(**SMALL))
    lanes = {}
    for one, other in (("s", "l"), ("l", "s")):
        names = {"user_property": [("penstock-lane-of", other)], "session_expiry_interval": 1000}
        lanes[one] = broker.connect(one, properties=names, clean_start=False)
    lanes["l"].subscribe("t", 1)
    lanes["s"].stall()
    lanes["l"].lose()
    broker.advance(11)
    publisher = broker.connect("p")
    for number, code in ((1, 0), (2, 0), (3, FULL)):
        send(publisher, number)
        broker.advance(0.1)
        assert acknowledged(publisher) == {number: code}


def test_messages_that_nobody_waits_for_are_dropped() -> None:
    """QoS 0 and wills: there is nobody to be told."""
    broker = VirtualBroker(Limits(**SMALL, inflight_messages=1))
    subscriber = kept(broker)
    broker.connect("dying", will=will("t", b"gone", qos=1)).lose()
    publisher = broker.connect("p")
    send(publisher, 1, 2)
    broker.connect("dying", will=will("t", b"dropped", qos=1)).lose()
    assert subscriber.session.ledger.dropped == {"queue_full": 1}
    publisher.publish("t", b"QoS 0", qos=0)
    assert drain(subscriber)[0] == b"gone"
    check(broker)


@pytest.mark.parametrize("limits", [{"total_queued_messages": 3}, {"total_queued_bytes": 1500}])
def test_the_limit_of_all_sessions_refuses_what_would_not_fit_for_all(
    limits: dict[str, Any],
) -> None:
    """A message for two sessions needs room for two, or goes to neither."""
    broker = VirtualBroker(Limits(**limits))
    stalled(broker)
    stalled(broker, "s2")
    publisher = broker.connect("p")
    send(publisher, 1, 2, 3, 4, 5, 6)
    codes = list(acknowledged(publisher).values())
    assert codes[0] == 0
    assert codes[-1] == FULL
    n_taken = codes.count(0)
    assert broker.core.counters.publish_refused == {"broker_full": 6 - n_taken}
    assert not broker.core.ledger().dropped
    for client_id in ("s", "s2"):
        assert len(drain(kept(broker, client_id))) == n_taken
    check(broker)


def test_a_subscriber_at_qos_0_needs_no_room_for_a_full_window() -> None:
    """It gets the message at once, so that the one place that is left is the other's."""
    broker = VirtualBroker(Limits(total_queued_messages=1))
    stalled(broker)
    modest = broker.connect("modest", properties={"receive_maximum": 1})
    modest.subscribe("own", 1)
    modest.subscribe("t", 0)
    publisher = broker.connect("p")
    publisher.publish("own", b"own", qos=1)
    assert acknowledged(publisher) == {1: 0}
    send(publisher, 2)
    assert acknowledged(publisher) == {2: 0}
    assert modest.payloads() == [b"own", b"2"]
    check(broker)


def test_a_member_of_a_share_with_room_gets_the_message() -> None:
    """It is refused only where none has."""
    broker = VirtualBroker(Limits(**SMALL))
    for client_id in ("a", "b"):
        stalled(broker, client_id, "$share/g/t")
    publisher = broker.connect("p")
    send(publisher, 1, 2, 3, 4, 5)
    assert acknowledged(publisher) == {1: 0, 2: 0, 3: 0, 4: 0, 5: FULL}
    assert not broker.core.ledger().dropped
    check(broker)


def test_a_client_that_gets_two_copies_needs_room_for_both() -> None:
    """It is a member of a share, and has a subscription of its own."""
    broker = VirtualBroker(Limits(queued_messages=3))
    stalled(broker)
    stalled(broker, "s", "$share/g/t")
    publisher = broker.connect("p")
    send(publisher, 1, 2)
    assert acknowledged(publisher) == {1: 0, 2: FULL}
    assert not broker.core.ledger().dropped


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_that_never_fits_is_not_waited_for(version: int) -> None:
    """MQTT 3.1.1 has no word for it: it would be sent again for good."""
    broker = VirtualBroker(Limits(queued_bytes=10))
    stalled(broker)
    publisher = broker.connect("p", version)
    publisher.send(Publish("t", bytes(11), qos=1, packet_id=1))
    assert acknowledged(publisher) == {1: 0 if version == 4 else FULL}
    assert broker.session("s").ledger.dropped == ({"queue_full": 1} if version == 4 else {})


def test_a_publisher_that_has_much_held_is_not_read_from() -> None:
    """What waits in the broker for one client is bounded."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    publisher = broker.connect("p", 4)
    send(publisher, 1, 2)
    for number in range(3, 6):
        publisher.send(Publish("t", bytes(HELD_BYTES // 2), qos=1, packet_id=number))
    assert not publisher.connection.client.wants_reading
    subscriber = kept(broker)
    assert len(drain(subscriber)) == 2
    broker.advance(0)
    assert publisher.connection.client.wants_reading
    assert len(drain(subscriber)) == 3


@pytest.mark.parametrize("limit", ["PATIENT_HELD_BYTES", "ALL_HELD_BYTES"])
def test_a_patient_client_is_read_from_for_longer(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """It may acknowledge what goes the other way; what waits for it is bounded, too."""
    monkeypatch.setattr(queue_capacity, limit, HELD_BYTES * 2)
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    waits = {"user_property": [("penstock-waits", "yes")]}
    publisher = broker.connect("p", properties=waits)
    send(publisher, 1, 2)
    client = publisher.connection.client
    for number in range(3, 6):
        publisher.send(Publish("t", bytes(HELD_BYTES // 2), qos=1, packet_id=number))
        assert client.wants_reading
    assert client.awaiting_bytes > HELD_BYTES
    publisher.send(Publish("t", bytes(HELD_BYTES // 2), qos=1, packet_id=6))
    assert not client.wants_reading
    subscriber = kept(broker)
    assert len(drain(subscriber)) == 2
    broker.advance(0)
    assert client.wants_reading
    assert len(drain(subscriber)) == 4


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_in_the_process_is_read_from_at_its_receive_maximum(version: int) -> None:
    """A cloud that keeps to it sits exactly there; MQTT 3.1.1 knows none."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    waits = {"user_property": [("penstock-waits", "yes")]} if version == 5 else {}
    publisher = broker.connect("p", version, properties=waits)
    send(publisher, 1, 2)
    client = publisher.connection.client
    client.is_local, client.receive_maximum = True, 2
    reads = []
    for number in (3, 4, 5):
        send(publisher, number)
        reads.append(client.wants_reading)
    assert reads == [True, version == 5, False]


def test_room_that_expires_is_room() -> None:
    """A full queue of messages that are void refuses nothing."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    publisher = broker.connect("p")
    send(publisher, 1, 2, properties={"message_expiry_interval": 5})
    broker.advance(6)
    send(publisher, 3)
    assert acknowledged(publisher) == {1: 0, 2: 0, 3: 0}
    assert broker.session("s").ledger.expired == 2


def test_drops_are_logged_as_they_happen_and_not_too_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Client, how many, reason and the limits; of one client once a minute."""
    broker = VirtualBroker(Limits(**SMALL, queue_full="drop_newest"))
    stalled(broker)
    publisher = broker.connect("p")
    caplog.set_level(logging.INFO)
    send(publisher, *range(1, 11))
    line = "client s: 1 messages for it dropped: queue_full (limits.queued_messages: 2, "
    line += "limits.queued_bytes: 134217728)"
    assert caplog.messages == [line]
    broker.advance(LOG_SECONDS)
    send(publisher, 11)
    assert caplog.messages == [line, line.replace(": 1 ", ": 8 ")]


def test_a_held_message_counts_what_it_takes() -> None:
    """The payload of thousands is nothing, and the memory is not."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    publisher = broker.connect("p", 4)
    send(publisher, 1, 2)
    for number in range(3, 103):
        publisher.send(Publish("t", b"", qos=1, packet_id=number))
    assert 400 < publisher.connection.client.awaiting_bytes / 100 < 1000
    drain(kept(broker))
    broker.advance(1)
    assert broker.core.room.n_held == publisher.connection.client.awaiting_bytes == 0


def test_what_is_held_is_routed_in_many_turns() -> None:
    """Others do not wait until all that some publisher has held is routed."""
    broker = VirtualBroker(Limits(queued_messages=1000))
    stalled(broker)
    publisher = broker.connect("p", 4)
    send(publisher, *range(1, 1500))
    acknowledged(publisher)
    broker.core.sessions.end(broker.session("s"), broker.now)
    assert broker.core.room.n_held == 499
    turns: list[int] = []
    while broker.core.room.n_held:
        deadline = broker.core.timers.next_deadline()
        assert deadline is not None
        broker.now = max(broker.now, deadline)
        broker.core.timers.run(broker.now)
        broker.settle()
        turns.append(len(acknowledged(publisher)))
    assert sum(turns) == 499
    assert max(turns) <= broker.core.turn.most_steps
    assert broker.now < 1001  # each turn follows the one before


def test_who_waits_is_tried_when_those_that_are_full_have_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not whenever anybody has: a busy broker would do little else."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    other = kept(broker, "other", "elsewhere")
    publisher = broker.connect("p", 4)
    send(publisher, 1, 2, 3)
    tried: list[float] = []
    lacks = broker.core.room.lacks

    def noted(_: QueueCapacity, message: Any, *arguments: Any, **options: Any) -> str:
        tried.append(broker.now)
        return lacks(message, *arguments, **options)

    monkeypatch.setattr(QueueCapacity, "lacks", noted)
    other.connection.outgoing.want_pump()
    broker.settle()
    broker.advance(0)
    assert not tried
    drain(kept(broker))
    broker.advance(0)
    assert len(tried) == 1
    assert not broker.core.room.waiting


def test_all_publishers_are_tried_when_there_is_room() -> None:
    """However many they are, and without a wait."""
    broker = VirtualBroker(Limits(queued_messages=200))
    stalled(broker)
    send(broker.connect("first", 4), *range(1, 201))
    publishers = [broker.connect(f"p{number}", 4) for number in range(150)]
    for publisher in publishers:
        send(publisher, 1)
    assert broker.core.room.n_held == 150
    drain(kept(broker))
    broker.advance(0)
    assert broker.core.room.n_held == 0


def test_few_subscribers_are_looked_at_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers that wait in vain for a topic of very many would stop everybody."""
    monkeypatch.setattr(queue_capacity, "MOST_LOOKED", 40)
    broker = VirtualBroker(Limits(**SMALL))
    for number in range(20):
        stalled(broker, f"s{number}")
    publishers = [broker.connect(f"p{number}", 4) for number in range(6)]
    for publisher in publishers:
        send(publisher, 1, 2, 3)
    looked: list[str] = []
    lacks = broker.core.room.lacks

    def noted(message: Any, *arguments: Any, **options: Any) -> str:
        looked.append(message.publisher)
        return lacks(message, *arguments, **options)

    monkeypatch.setattr(QueueCapacity, "lacks", lambda _, *a, **options: noted(*a, **options))
    broker.advance(0.5)
    assert looked == ["p0", "p1"]
    broker.advance(1)
    assert looked == ["p0", "p1", "p2", "p3", "p4", "p5"]


def test_small_messages_find_room_without_a_look_while_little_waits() -> None:
    """What waits for others costs a publish nothing; more than half of a limit does."""
    broker = VirtualBroker(Limits(queued_messages=1000))
    room_of_all = broker.core.room
    stalled(broker)
    publisher = broker.connect("p")
    send(publisher, *range(1, 501))
    assert not room_of_all.over_half
    send(publisher, 501)
    assert room_of_all.over_half == {broker.session("s").outbox}
    check(broker)
    subscriber = kept(broker)
    assert len(drain(subscriber)) == 501
    assert not room_of_all.over_half
    check(broker)


@pytest.mark.parametrize("n_messages", [1, 2])
def test_a_message_for_very_many_is_refused_where_all_together_have_no_room(
    monkeypatch: pytest.MonkeyPatch, n_messages: int
) -> None:
    """However it comes, alone in a chunk or with others: its publisher is told."""
    for module in (queue_capacity, acknowledged_runs):
        monkeypatch.setattr(module, "MANY_SESSIONS", 4)
    monkeypatch.setattr(queue_capacity, "WIDE_DELIVERIES", 10)
    monkeypatch.setattr(queue_capacity, "_SLACK_BYTES", 1000)
    broker = VirtualBroker(Limits(queued_messages=1000, total_queued_messages=20))
    assert not broker.core.room.over_half
    for number in range(25):
        stalled(broker, f"s{number}")
    publisher = broker.connect("p")
    send(publisher, *range(1, n_messages + 1))
    assert acknowledged(publisher) == dict.fromkeys(range(1, n_messages + 1), FULL)
    assert broker.core.counters.publish_refused == {"broker_full": n_messages}
    assert not broker.core.ledger().dropped


def test_publishers_together_have_no_more_held_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many connections somebody makes; those that have nothing held are read from."""
    broker = VirtualBroker(Limits(**SMALL))
    stalled(broker)
    publishers = [broker.connect(f"p{number}", 4) for number in range(4)]
    send(publishers[0], 1, 2)
    for publisher in publishers[:3]:
        publisher.send(Publish("t", bytes(10), qos=1, packet_id=3))
        n_bytes = publisher.connection.client.awaiting_bytes
        monkeypatch.setattr(queue_capacity, "ALL_HELD_BYTES", n_bytes * 5 // 2)
    reading = [publisher.connection.client.wants_reading for publisher in publishers]
    assert reading == [False, False, False, True]
    publishers[0].lose()
    assert publishers[1].connection.client.wants_reading
    check(broker)
