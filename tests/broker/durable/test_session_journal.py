"""What a share with durable members was given is safe with members that are not durable, too."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.sessions.session import pump
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualClient

SHARE = "$share/workers/jobs"
FOR_EVER = {"session_expiry_interval": 0xFFFFFFFF}


def durable_member(
    broker: DurableBroker, client_id: str = "durable", qos: int = 2
) -> VirtualClient:
    """Connect a member whose session outlives the process."""
    client = broker.connect(client_id, clean_start=False, properties=FOR_EVER)
    client.subscribe(SHARE, qos)
    return client


def passing_member(broker: DurableBroker, client_id: str = "passing") -> VirtualClient:
    """Connect a member whose session ends with its connection."""
    client = broker.connect(client_id)
    client.subscribe(SHARE, 2)
    return client


def publish(broker: DurableBroker, *payloads: bytes, qos: int = 1) -> None:
    """Publish jobs that are all acknowledged."""
    publisher = broker.connect("publisher")
    for packet_id, payload in enumerate(payloads, start=1):
        publisher.publish("jobs", payload, qos=qos, packet_id=packet_id)
    codes = [answer.reason_code for answer in publisher.take_all(PubAck)]
    codes += [answer.reason_code for answer in publisher.take_all(PubRec)]
    assert codes == [0] * len(payloads)


def restarted(broker: DurableBroker) -> VirtualClient:
    """End the process without a word; return the durable member, connected to the next one."""
    return durable_member(broker.crash())


@pytest.mark.parametrize("n_waiting", [0, 2])
def test_what_moved_to_a_member_without_lasting_session_survives_the_process(
    n_waiting: int,
) -> None:
    """Its publisher was told that it is safe: the durable member gets it after all."""
    broker = DurableBroker()
    durable_member(broker).lose()
    publish(broker, b"a", b"b")
    passing = passing_member(broker)
    assert passing.payloads() == [b"a", b"b"]
    publish(broker, *[b"%d" % number for number in range(n_waiting)])
    found = restarted(broker).payloads()
    assert found == [b"a", b"b", *[b"%d" % number for number in range(n_waiting)]]


def test_what_such_a_member_has_acknowledged_does_not_come_again() -> None:
    """Done is done, and its row is gone."""
    broker = DurableBroker()
    durable_member(broker).lose()
    passing = passing_member(broker)
    publish(broker, b"a", b"b")
    assert [row.session for row in broker.disk.deliveries.values()] == [0, 0]
    assert passing.acknowledge() == [b"a", b"b"]
    assert not broker.disk.deliveries
    assert restarted(broker).payloads() == []


def test_the_publisher_of_a_share_with_a_durable_member_waits_for_the_commit() -> None:
    """Nothing is acknowledged that is not safe, whichever member has it."""
    broker = DurableBroker()
    durable_member(broker).lose()
    passing = passing_member(broker)
    publisher = broker.connect("publisher")
    broker.commits_at_once = False
    publisher.publish("jobs", b"a", qos=1)
    assert passing.take(Publish).payload == b"a"
    assert not publisher.inbox
    broker.commit()
    assert publisher.take(PubAck).reason_code == 0


def test_a_share_without_durable_members_stores_nothing() -> None:
    """Nothing of it could outlive the process: its publishers do not wait for the disk."""
    broker = DurableBroker()
    passing = passing_member(broker)
    broker.commits_at_once = False
    n_changes = broker.journal.n_changes
    publish(broker, b"a")
    assert passing.payloads() == [b"a"]
    assert broker.journal.n_changes == n_changes


@pytest.mark.mqtt5("4.8.2-5")
def test_qos_2_that_waits_for_a_member_survives_and_what_was_sent_goes_to_nobody_else() -> None:
    """[MQTT-4.8.2-5]: who was sent a QoS 2 message is the only one to get it."""
    broker = DurableBroker()
    durable_member(broker).lose()
    passing = broker.connect("passing", properties={"receive_maximum": 1})
    passing.subscribe(SHARE, 2)
    publish(broker, b"a", b"b", qos=2)
    (sent,) = passing.take_all(Publish)
    assert sent.payload == b"a"
    assert restarted(broker).payloads() == [b"b"]


def test_a_stored_qos_2_message_is_sent_once_its_row_is_gone() -> None:
    """Else a restart would give it to another client as well."""
    broker = DurableBroker()
    durable_member(broker).lose()
    passing = broker.connect("passing", properties={"receive_maximum": 1})
    passing.subscribe(SHARE, 2)
    publish(broker, b"a", b"b", qos=2)
    passing.send(PubRec(passing.take(Publish).packet_id))
    released = passing.take(PubRel)
    broker.commits_at_once = False
    passing.send(PubComp(released.packet_id))
    assert not passing.inbox
    broker.commit()
    assert passing.take(Publish).payload == b"b"
    assert not broker.disk.deliveries


def test_what_such_a_member_leaves_is_stored_with_who_takes_it() -> None:
    """Its session ends: the durable member has it, on the disk as in the memory."""
    broker = DurableBroker()
    durable = durable_member(broker)
    durable.lose()
    passing = passing_member(broker)
    publish(broker, b"a", b"b")
    passing.send(Disconnect())
    (row,) = broker.disk.sessions
    assert [found.session for found in broker.disk.deliveries.values()] == [*row, *row]
    assert restarted(broker).payloads() == [b"a", b"b"]


@pytest.mark.parametrize("how", ["unsubscribes", "ends"])
def test_without_durable_members_left_a_restart_drops_and_counts_it(how: str) -> None:
    """Nobody is left who would get it: the database starts all the same."""
    broker = DurableBroker()
    durable = durable_member(broker)
    passing = passing_member(broker)
    passing.connection.pause_sending(broker.now)
    durable.connection.pause_sending(broker.now)
    publish(broker, b"a", b"b")
    if how == "unsubscribes":
        durable.send(Unsubscribe(1, (SHARE,)))
    else:
        broker.connect("durable", clean_start=True)
    again = broker.crash()
    assert not again.disk.deliveries
    assert not again.disk.messages
    assert again.core.ledger().outstanding() == 0


def test_what_access_control_is_asked_about_is_stored_meanwhile() -> None:
    """It has left one member and has not come to another: it must not be lost between."""
    access = Access()
    broker = DurableBroker(access=access)
    durable_member(broker, "away").lose()
    publish(broker, b"a", b"b")
    taker = broker.connect("taker", clean_start=False, properties=FOR_EVER)
    access.waits = True
    taker.send(Subscribe(1, (SubscriptionRequest(SHARE, 2),)))
    finish(taker)
    assert len(broker.waiting) == 1
    assert {row.session for row in broker.disk.deliveries.values()} == {0}
    access.waits = False
    again = broker.crash()
    assert durable_member(again, "away").payloads() == [b"a", b"b"]
    broker.waiting[0].close()


def test_a_restart_asks_who_may_receive_what_was_in_nobodys_hands() -> None:
    """Access control has the last word on each member."""
    access = Access()
    broker = DurableBroker(access=access)
    durable_member(broker).lose()
    passing_member(broker)
    publish(broker, b"a")
    access.refused.add(("receive", "jobs", "durable"))
    again = broker.crash()
    assert again.core.ledger().dropped == {"share_refused": 1}
    assert not again.disk.deliveries


def test_no_message_of_a_share_overtakes_one_that_is_held() -> None:
    """One that waited is stored, and leaves after the commit; a newer one is not stored."""
    broker = DurableBroker()
    durable_member(broker).lose()
    member = broker.connect("passing", properties={"receive_maximum": 2})
    member.subscribe(SHARE, 2)
    publish(broker, b"a", b"b", b"c", qos=2)
    sent = member.take_all(Publish)
    broker.commits_at_once = False
    for packet in sent:
        member.send(PubRec(packet.packet_id))
    member.send(*(PubComp(packet.packet_id) for packet in sent))
    publish(broker, b"d", qos=2)
    broker.commit()
    assert member.payloads() == [b"c", b"d"]


def test_a_client_whose_own_messages_keep_answers_waiting_is_sent_what_waits_for_it() -> None:
    """Some PUBCOMP of its own QoS 2 messages waits for a commit at any time."""
    broker = DurableBroker()
    client = broker.connect("c", properties={**FOR_EVER, "receive_maximum": 1})
    client.subscribe("for/c", 1)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    got = []
    for number in range(1, 11):
        broker.seal()
        if number == 5:
            for packet_id in (1, 2, 3):
                publisher.publish("for/c", b"%d" % packet_id, qos=1, packet_id=packet_id)
        for packet in client.take_all(Publish):
            got.append(packet.payload)
            client.send(PubAck(packet.packet_id))
        client.send(*(PubRel(packet.packet_id) for packet in client.take_all(PubRec)))
        client.publish("from/c", qos=2, packet_id=number)
        assert client.session.sender is not None
        assert client.session.sender.held or number < 4
        if broker.journal.sealed is not None:
            broker.write()
    assert got == [b"1", b"2", b"3"]


def test_a_client_whose_hold_is_full_is_left_in_peace_while_the_disk_refuses() -> None:
    """Nothing can leave its outbox: to try again at once, again and again, would take all time."""
    broker = DurableBroker()
    client = broker.connect("c", properties=FOR_EVER)
    client.subscribe("for/c", 2)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    for packet_id in range(1, 13):
        publisher.publish("for/c", b"x" * 8_000, qos=2, packet_id=packet_id)
    assert client.session.outbox.n_messages
    broker.seal()
    broker.journal.failed()
    assert client.session.client is not None
    pump(client.session.client, 0, broker.now)
    assert not client.session.outgoing.is_pump_wanted
    broker.commit()
    assert len(client.payloads()) == 12
