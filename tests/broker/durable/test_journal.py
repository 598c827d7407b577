"""What is kept over the end of the process, and who waits for it, on a virtual disk."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.durable import journal as journal_module
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.durable import DurableBroker, keep, subscribed
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualClient


def test_a_clean_session_is_not_written() -> None:
    """What ends with its connection costs no disk, nor does QoS 0."""
    broker = DurableBroker()
    client = broker.connect("c")
    client.subscribe("t", 2)
    broker.connect("p").publish("t", b"x", qos=1)
    subscribed(broker)
    broker.commits_at_once = False
    n_changes = broker.journal.n_changes
    client.publish("t/1", b"x")
    assert broker.journal.n_changes == n_changes
    assert client.session.journal is None
    assert [row.client_id for row in broker.disk.sessions.values()] == ["s"]
    assert not broker.disk.messages


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_answered_after_the_commit(qos: int) -> None:
    """Nothing is acknowledged that the end of the process could lose."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publisher.publish("t/1", b"x", qos=qos)
    assert not publisher.inbox
    broker.commit()
    publisher.take(PubAck if qos == 1 else PubRec)
    client = broker.crash().connect("s", **keep())
    assert client.connack.session_present
    assert client.payloads() == [b"x"]


def test_without_a_durable_target_nobody_waits() -> None:
    """A message that only clean sessions get is acknowledged at once, with an idle disk."""
    broker = DurableBroker()
    broker.connect("c").subscribe("t", 1)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publisher.publish("t", b"x", qos=1)
    publisher.take(PubAck)
    assert broker.seal() is None


def test_acknowledgements_keep_their_order() -> None:
    """[MQTT-4.6.0-2]: one that need not wait for the disk waits for the one before it."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publisher.publish("t/1", b"x", qos=1, packet_id=1)
    publisher.publish("other", b"x", qos=1, packet_id=2)
    assert not publisher.inbox
    broker.commit()
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [1, 2]


def test_what_is_acknowledged_before_the_commit_is_never_written() -> None:
    """A subscriber that is there answers sooner than the disk, and spares it."""
    broker = DurableBroker()
    client = subscribed(broker)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publisher.publish("t/1", b"x", qos=1)
    assert client.acknowledge() == [b"x"]
    publisher.take(PubAck)
    assert broker.seal() is None


def test_a_qos_2_message_leaves_after_the_commit() -> None:
    """Before it, a repeat of its publisher after a restart would be another message."""
    broker = DurableBroker()
    client = subscribed(broker)
    publisher = broker.connect("p", **keep())
    broker.commits_at_once = False
    publisher.publish("t/1", b"x", qos=2, packet_id=7)
    assert not client.inbox
    broker.seal()
    publisher.publish("t/1", b"y", qos=2, packet_id=8)
    broker.write()
    assert client.payloads() == [b"x"]
    assert publisher.take(PubRec).packet_id == 7
    assert not publisher.inbox
    broker.commit()
    assert client.payloads() == [b"y"]
    broker = broker.crash()
    publisher = broker.connect("p", **keep())
    publisher.publish("t/1", b"x", qos=2, packet_id=7, dup=True)
    publisher.take(PubRec)
    client = broker.connect("s", **keep())
    again = client.take_all(Publish)
    assert [(p.payload, p.dup) for p in again] == [(b"x", True), (b"y", True)]


def test_pubrel_and_pubcomp_leave_after_the_commit() -> None:
    """A subscriber that has discarded an identifier must not see its PUBLISH again."""
    broker = DurableBroker()
    client = subscribed(broker)
    publisher = broker.connect("p", **keep())
    publisher.publish("t/1", b"x", qos=2, packet_id=7)
    packet_id = client.take(Publish).packet_id
    publisher.take(PubRec)
    broker.commits_at_once = False
    client.send(PubRec(packet_id))
    publisher.send(PubRel(7))
    assert not client.inbox
    assert not publisher.inbox
    broker.commit()
    assert client.take(PubRel).packet_id == packet_id
    assert publisher.take(PubComp).packet_id == 7
    broker = broker.crash()
    client = broker.connect("s", **keep())
    assert client.take(PubRel).packet_id == packet_id
    client.send(PubComp(packet_id))
    assert not client.inbox
    publisher = broker.connect("p", **keep())
    publisher.publish("t/1", b"new", qos=2, packet_id=7)
    assert client.payloads() == [b"new"]


def test_subscribing_is_answered_after_the_commit() -> None:
    """SUBACK and UNSUBACK too say what a restart must know; retained messages come behind."""
    broker = DurableBroker()
    broker.connect("p").publish("t/1", b"kept", qos=1, retain=True)
    client = broker.connect("s", **keep())
    broker.commits_at_once = False
    client.send(
        Subscribe(1, (SubscriptionRequest("t/#", 1, no_local=True, retain_as_published=True),))
    )
    assert not client.inbox
    broker.commit()
    client.take(SubAck)
    assert client.acknowledge() == [b"kept"]
    broker.commit()
    broker = broker.crash()
    restored = broker.session("s").subscriptions["t/#"]
    assert (restored.qos, restored.no_local, restored.retain_as_published) == (1, True, True)
    client = broker.connect("s", **keep())
    broker.commits_at_once = False
    client.send(Unsubscribe(2, ("t/#",)))
    assert not client.take_all(UnsubAck)
    broker.commit()
    client.take(UnsubAck)
    assert not broker.crash().session("s").subscriptions


def test_connack_says_what_is_safe() -> None:
    """Nothing comes before it, and a clean start is one after a restart too."""
    broker = DurableBroker()
    subscribed(broker).lose()
    broker.connect("p").publish("t/1", b"x", qos=1)
    broker.commits_at_once = False
    client = VirtualClient(broker)
    options: dict[str, Any] = keep() | {"client_id": "s", "keep_alive": 0}
    client.send(Connect(**options), PingReq())
    assert not client.inbox
    broker.commit()
    assert client.take(ConnAck).session_present
    assert [type(packet).__name__ for packet in client.inbox] == ["PingResp", "Publish"]
    client = VirtualClient(broker)
    client.send(Connect(**options | {"clean_start": True}))
    assert not client.inbox
    broker.commit()
    assert not client.take(ConnAck).session_present
    session = broker.crash().session("s")
    assert not session.subscriptions
    assert not session.outbox.n_messages


def test_a_session_ends_on_the_disk_too() -> None:
    """With all that was only its own."""
    broker = DurableBroker()
    client = subscribed(broker)
    publisher = broker.connect("p")
    publisher.publish("t/1", b"inflight", qos=1)
    client.lose()
    publisher.publish("t/1", b"queued", qos=1)
    assert len(broker.disk.deliveries) == 2
    broker.advance(3600)
    broker.settle()
    assert not broker.disk.sessions
    assert not broker.disk.subscriptions
    assert not broker.disk.deliveries
    assert not broker.disk.messages


@pytest.mark.mqtt5("3.2.0-1", "3.14.0-1")
def test_a_client_whose_connack_waits_is_sent_nothing_before_it() -> None:
    """Taken over, or wrong in what it sent at once, it is dropped without a DISCONNECT."""
    broker = DurableBroker()
    broker.commits_at_once = False
    clients = []
    for name, more in (("c", b""), ("c", b""), ("d", b"\x36\x03\x00\x01t")):
        client = VirtualClient(broker)
        connect = Connect(client_id=name, keep_alive=0, **keep())
        client.send_bytes(write_packet(connect, 5) + more)
        clients.append(client)
    broker.commit()
    assert [client.is_lost for client in clients] == [True, False, True]
    assert not clients[0].inbox
    assert not clients[2].inbox
    clients[1].take(ConnAck)


def test_a_full_disk_refuses_at_the_door_and_answers_who_waits_later() -> None:
    """Nobody is told that something is safe before it is; clients come and go meanwhile."""
    broker = DurableBroker()
    subscribed(broker).lose()
    publisher = broker.connect("p")
    old = broker.connect("old", 4)
    broker.is_disk_full = True
    broker.commits_at_once = False
    publisher.publish("t/1", b"waits", qos=1, packet_id=1)
    held = VirtualClient(broker)
    held.send(Connect(client_id="held", keep_alive=0, **keep()))
    assert not held.inbox
    broker.commit()
    held.take(ConnAck)
    assert not publisher.inbox
    publisher.publish("t/1", b"refused", qos=1, packet_id=2)
    publisher.publish("elsewhere", b"x", qos=1, packet_id=3)
    publisher.publish("t/1", b"x", retain=True)
    assert not publisher.inbox  # [MQTT-4.6.0-2]
    old.publish("t/1", b"refused", qos=1)
    assert old.is_lost  # MQTT 3.1.1 has no word for it
    assert broker.connect("late", **keep()).subscribe("t/#", 1) == 0x97
    broker.is_disk_full = False
    broker.commit()
    answers = [(p.packet_id, p.reason_code) for p in publisher.take_all(PubAck)]
    assert answers == [(1, 0), (2, 0x97), (3, 0x10)]
    publisher.publish("t/1", b"taken", qos=1)
    broker.commit()
    publisher.take(PubAck)
    broker = broker.crash()
    assert broker.connect("s", **keep()).payloads() == [b"waits", b"taken"]
    assert broker.core.sessions.get("late") is not None


@pytest.mark.parametrize("bound", ["messages", "bytes"])
def test_what_waits_for_its_commit_is_bounded(bound: str) -> None:
    """Past the bound a publish is refused, until there was a commit."""
    options: dict[str, Any] = {f"max_pending_{bound}": 2 if bound == "messages" else 8}
    broker = DurableBroker(**options)
    subscribed(broker).lose()
    publishers = [broker.connect(f"p{number}") for number in range(3)]  # one alone would wait
    broker.commits_at_once = False
    for publisher in publishers:
        publisher.publish("t/1", b"1234", qos=1)
    broker.commit()
    assert [each.take(PubAck).reason_code for each in publishers] == [0, 0, 0x97]
    publisher.publish("t/1", b"1234", qos=1)
    broker.commit()
    assert publisher.take(PubAck).reason_code == 0


@pytest.mark.parametrize("bound", ["messages", "bytes"])
def test_publishers_are_slowed_down_for_the_disk(bound: str) -> None:
    """Whoever publishes while half of what may wait does is not read from until the commit."""
    options: dict[str, Any] = {f"max_pending_{bound}": 4 if bound == "messages" else 16}
    broker = DurableBroker(**options)
    subscribed(broker).lose()
    publisher, other = broker.connect("p"), broker.connect("o")
    broker.commits_at_once = False
    publisher.publish("t/1", b"1234", qos=1, packet_id=1)
    assert publisher.is_reading
    publisher.publish("t/1", b"1234", qos=1, packet_id=2)
    assert not publisher.is_reading
    assert other.is_reading
    broker.commit()
    assert publisher.is_reading
    assert len(publisher.take_all(PubAck)) == 2


def test_publishers_are_slowed_down_for_the_disk_within_a_chunk() -> None:
    """None is refused, which would end its connection, for what it has sent at once."""
    n_messages = 20
    broker = DurableBroker(max_pending_messages=8)
    subscribed(broker).lose()
    publishers = [broker.connect(name, version=4) for name in ("a", "b", "c")]
    broker.commits_at_once = False
    for publisher in publishers:
        publisher.send_bytes(
            b"".join(
                write_packet(Publish("t/1", b"data", qos=1, packet_id=number), 4)
                for number in range(1, n_messages + 1)
            )
        )
    for _ in range(n_messages):
        broker.commit()
    for publisher in publishers:
        assert not publisher.is_lost
        packet_ids = [packet.packet_id for packet in publisher.take_all(PubAck)]
        assert packet_ids == list(range(1, n_messages + 1))


def test_a_disk_that_refuses_slows_nobody_down() -> None:
    """Publishers are told then, and what they acknowledge is heard."""
    broker = DurableBroker(max_pending_messages=2)
    subscribed(broker).lose()
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publisher.publish("t/1", b"1234", qos=1, packet_id=1)
    assert not publisher.is_reading
    broker.is_disk_full = True
    broker.commit()
    assert publisher.is_reading
    publisher.publish("t/1", b"1234", qos=1, packet_id=2)
    assert publisher.is_reading
    broker.is_disk_full = False
    broker.commit()
    assert [p.reason_code for p in publisher.take_all(PubAck)] == [0, 0x97]


def test_a_sink_and_the_disk_both_have_to_answer() -> None:
    """In either order; a QoS 2 identifier is stored only once the sink has its message."""
    sink = HoldingSink("t/#")
    broker = DurableBroker(sinks=[sink])
    subscribed(broker).lose()
    publisher = broker.connect("p", **keep())
    publisher.publish("t/1", b"x", qos=2, packet_id=3)
    assert not publisher.inbox
    assert broker.disk.deliveries
    assert not broker.disk.incoming
    sink.settle()
    broker.settle()
    assert publisher.take(PubRec).packet_id == 3
    assert broker.disk.incoming
    broker.commits_at_once = False
    publisher.publish("t/1", b"y", qos=1, packet_id=4)
    sink.settle()
    broker.core.turn.is_running = False
    assert not publisher.inbox
    broker.commit()
    assert publisher.take(PubAck).packet_id == 4


def test_a_topic_alias_does_not_overtake_what_it_stands_for() -> None:
    """A QoS 0 message waits behind a QoS 2 one that names the alias's topic first."""
    broker = DurableBroker()
    options = keep()
    options["properties"] = options["properties"] | {"topic_alias_maximum": 5}
    client = broker.connect("s", **options)
    client.subscribe("t/#", 2)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publisher.publish("t/long", b"first", qos=2)
    publisher.publish("t/long", b"second")
    assert not client.inbox
    broker.commit()
    first, second = client.take_all(Publish)
    assert (first.topic, second.topic) == ("t/long", "")
    assert first.properties["topic_alias"] == second.properties["topic_alias"]


# -- sessions that expire ----------------------------------------------------------------------


def expired(broker: DurableBroker, *client_ids: str, n_messages: int = 3) -> VirtualClient:
    """Store messages for sessions that then expire; return their publisher."""
    for client_id in client_ids:
        client = broker.connect(client_id, **keep(4))
        client.subscribe("t/#", 1)
        client.lose()
    publisher = broker.connect("p")
    subscribed(broker).lose()
    for number in range(n_messages):
        publisher.publish("t/1", b"%d" % number, qos=1)
    publisher.inbox.clear()
    broker.commits_at_once = False
    broker.advance(5)
    return publisher


def test_an_expired_session_is_deleted_when_nobody_waits_for_a_commit() -> None:
    """What is answered after a commit is not late for what is only to be cleared away."""
    broker = DurableBroker()
    publisher = expired(broker, "a", "b")
    publisher.publish("t/1", b"new", qos=1)
    batch = broker.seal()
    assert batch is not None
    assert not batch.gone_sessions
    assert not batch.gone_deliveries
    assert broker.journal.is_awake
    broker.write()
    publisher.take(PubAck)
    assert len(broker.disk.sessions) == 3
    broker.commit()
    assert [row.client_id for row in broker.disk.sessions.values()] == ["s"]
    assert len(broker.disk.deliveries) == 4
    assert broker.seal() is None


def test_many_expired_messages_are_deleted_though_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would pile up as long as somebody does."""
    monkeypatch.setattr(journal_module, "MOST_EXPIRED", 8)
    broker = DurableBroker()
    publisher = expired(broker, "a", "b", "c")
    publisher.publish("t/1", b"new", qos=1)
    batch = broker.seal()
    assert batch is not None
    assert len(batch.gone_sessions) == 3
    assert len(batch.gone_deliveries) == 9
    broker.write()


def test_a_session_that_was_to_be_deleted_does_not_come_back() -> None:
    """After a crash its time is over."""
    broker = DurableBroker()
    publisher = expired(broker, "a", "b")
    publisher.publish("t/1", b"new", qos=1)
    broker.seal()
    broker.write()
    again = broker.crash()
    assert again.core.sessions.client_ids() == ["s"]
    assert len(again.disk.sessions) == 1


def test_a_new_session_of_a_client_takes_the_place_of_its_expired_one() -> None:
    """In one commit: two of them would be read after a crash."""
    broker = DurableBroker()
    expired(broker, "a", "b")
    client = VirtualClient(broker)
    client.send(Connect(client_id="a", protocol_version=5, **keep(4)))
    batch = broker.seal()
    assert batch is not None
    assert len(batch.gone_sessions) == 1
    assert len(batch.gone_deliveries) == 3
    broker.write()
    assert not client.take(ConnAck).session_present
    assert sorted(row.client_id for row in broker.disk.sessions.values()) == ["a", "b", "s"]


@pytest.mark.parametrize("seconds", [4, 0])
def test_a_session_that_expires_before_its_loss_is_stored_is_deleted_whole(seconds: int) -> None:
    """Messages without their session cannot be read after a crash."""
    broker = DurableBroker()
    client = broker.connect("a", **keep(4))
    client.subscribe("t/#", 1)
    client.connection.pause_sending(broker.now)
    publisher = broker.connect("p")
    subscribed(broker).lose()
    publisher.publish("t/1", b"stored", qos=1)
    publisher.inbox.clear()
    broker.commits_at_once = False
    if seconds == 0:
        properties = {"session_expiry_interval": 0}
        client.send(Disconnect(properties=properties))
    client.lose()
    broker.advance(5)
    publisher.publish("t/1", b"new", qos=1)
    broker.seal()
    broker.write()
    publisher.take(PubAck)
    broker.disk.check()
    assert broker.crash().core.sessions.client_ids() == ["s"]


def test_an_expired_session_is_deleted_when_its_client_comes_back_without_one() -> None:
    """Else its will would be found beside the user of an earlier one."""
    broker = DurableBroker()
    publisher = expired(broker, "a", "b")
    publisher.publish("t/1", b"new", qos=1)
    client = VirtualClient(broker)
    client.send(Connect(client_id="a", protocol_version=5, clean_start=True, will=Will("w", b"x")))
    broker.seal()
    broker.write()
    assert sorted(row.client_id for row in broker.disk.sessions.values()) == ["b", "s"]
    assert list(broker.disk.wills) == [("a",)]


def test_expired_sessions_without_messages_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts like a message."""
    monkeypatch.setattr(journal_module, "MOST_EXPIRED", 3)
    broker = DurableBroker()
    publisher = expired(broker, "a", "b", "c", n_messages=0)
    publisher.publish("t/1", b"new", qos=1)
    batch = broker.seal()
    assert batch is not None
    assert len(batch.gone_sessions) == 3
    broker.write()


def test_sessions_that_expire_together_are_deleted_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each commit takes the loop's thread for a short time, and what is left is not forgotten."""
    monkeypatch.setattr(journal_module, "EXPIRED_AT_A_TIME", 2)
    broker = DurableBroker()
    expired(broker, "a", "b", "c", n_messages=0)
    for n_sessions in 2, 1:
        batch = broker.seal()
        assert batch is not None
        assert len(batch.gone_sessions) == n_sessions
        broker.write()
    assert [row.client_id for row in broker.disk.sessions.values()] == ["s"]
    assert broker.seal() is None


def test_retained_messages_of_qos_0_are_stored_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for them but those who have another of QoS 1 stored; a stop stores them all."""
    monkeypatch.setattr(journal_module, "RETAINED_AT_A_TIME", 2)
    broker = DurableBroker()
    publisher = broker.connect("p")
    broker.commits_at_once = False
    for number in range(7):
        publisher.publish(f"t/{number}", b"x", qos=0, retain=True)
    publisher.publish("t/8", b"x", qos=1, retain=True)
    broker.seal()
    broker.write()
    publisher.take(PubAck)
    assert {topic for (topic,) in broker.disk.retained} == {"t/0", "t/1", "t/8"}
    assert broker.journal.is_awake
    broker.seal()
    broker.write()
    assert len(broker.disk.retained) == 5
    broker.journal.note_all()
    broker.seal()
    broker.write()
    assert len(broker.disk.retained) == 8
    assert broker.journal.is_settled
