from __future__ import annotations

import itertools
from collections import Counter

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import (
    PubAck,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.session import DIRECT_BYTES
from tests.helpers.access import Access, finish
from tests.helpers.virtual import VirtualBroker, VirtualClient

SHARE = "$share/workers/jobs/#"


def workers(broker: VirtualBroker, n_workers: int, qos: int = 1) -> list[VirtualClient]:
    """Return the connected members of one share."""
    members = [broker.connect(f"w{number}") for number in range(n_workers)]
    for member in members:
        assert member.subscribe(SHARE, qos) == qos
    return members


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_and_all_have_their_turn(qos: int) -> None:
    """4.8.2: one session of a shared subscription takes each message; they take turns."""
    broker = VirtualBroker()
    members = workers(broker, 3, qos)
    publisher = broker.connect("p")
    for number in range(9):
        publisher.publish("jobs/a", b"%d" % number, qos=qos, packet_id=number + 1 if qos else 0)
    received = [member.payloads() for member in members]
    assert [len(payloads) for payloads in received] == [3, 3, 3]
    assert sorted(itertools.chain(*received)) == [b"%d" % number for number in range(9)]


@pytest.mark.mqtt5("4.8.2-3")
def test_each_member_gets_the_qos_that_it_was_granted() -> None:
    """[MQTT-4.8.2-3]: members may have different QoS; the message's own is the bound."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    modest, careful = broker.connect("modest"), broker.connect("careful")
    modest.subscribe(SHARE, 0)
    careful.subscribe(SHARE, 2)
    for number in range(4):
        publisher.publish("jobs", b"x", qos=1, packet_id=number + 1)
    assert [packet.qos for packet in modest.take_all(Publish)] == [0, 0]
    assert [packet.qos for packet in careful.take_all(Publish)] == [1, 1]


def test_shares_and_subscriptions_of_ones_own_are_apart() -> None:
    """4.8.2: each share is served on its own, and so is a normal subscription of a member."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    one, other = broker.connect("one"), broker.connect("other")
    one.subscribe(SHARE, properties={"subscription_identifier": [7]})
    one.subscribe("jobs/+", properties={"subscription_identifier": [8]})
    other.subscribe("$share/others/jobs/a", retain_as_published=True)
    publisher.publish("jobs/a", b"x", retain=True)
    of_one = one.take_all(Publish)
    assert sorted(p.properties["subscription_identifier"] for p in of_one) == [[7], [8]]
    (of_other,) = other.take_all(Publish)
    assert of_other.retain
    assert not any(packet.retain for packet in of_one)


def test_no_retained_messages_for_a_share() -> None:
    """4.8.2: retained messages are not sent to a session that joins, first or later."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    publisher.publish("jobs/a", b"kept", retain=True)
    for member in workers(broker, 2):
        assert member.payloads() == []
        member.subscribe(SHARE, retain_handling=0)
        assert member.payloads() == []


@pytest.mark.mqtt5("3.8.3-4")
def test_a_share_knows_no_no_local() -> None:
    """[MQTT-3.8.3-4]: No Local on a shared subscription is a protocol error."""
    client = VirtualBroker().connect()
    client.send(Subscribe(1, (SubscriptionRequest(SHARE, 0, no_local=True),)))
    assert client.is_lost


@pytest.mark.mqtt5("4.8.2-1", "4.8.2-2")
@pytest.mark.parametrize(
    "topic_filter", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/g#/a"]
)
def test_a_share_needs_a_name_and_a_filter(topic_filter: str) -> None:
    """[MQTT-4.8.2-1], [MQTT-4.8.2-2]: a malformed packet."""
    client = VirtualBroker().connect()
    client.send(Subscribe(1, (SubscriptionRequest(topic_filter),)))
    assert client.is_lost


def test_clients_of_mqtt_3_1_1_may_share_too() -> None:
    """The prefix means the same to them, as with other brokers."""
    broker = VirtualBroker()
    old, new = broker.connect("old", 4), broker.connect("new", 5)
    old.subscribe(SHARE)
    new.subscribe(SHARE)
    publisher = broker.connect("p", 4)
    publisher.publish("jobs/1", b"1")
    publisher.publish("jobs/2", b"2")
    assert (old.payloads(), new.payloads()) == ([b"1"], [b"2"])


def test_a_member_subscribes_twice_and_leaves_once() -> None:
    """4.8.2: a second SUBSCRIBE renews the membership, one UNSUBSCRIBE ends it."""
    broker = VirtualBroker()
    member, other = workers(broker, 2)
    member.subscribe(SHARE, 0)
    assert broker.core.tree.n_subscriptions == 2
    publisher = broker.connect("p")
    publisher.publish("jobs", b"1", qos=1)
    assert [packet.qos for packet in member.take_all(Publish)] == [0]
    member.send(Unsubscribe(1, (SHARE,)))
    member.inbox.clear()
    for number in range(2):
        publisher.publish("jobs", b"%d" % number, qos=1)
    assert (member.payloads(), len(other.payloads())) == ([], 2)
    other.send(Unsubscribe(1, (SHARE,)))
    assert not broker.core.tree.shares
    assert broker.core.tree.n_subscriptions == 0


def test_who_has_no_room_is_passed_over() -> None:
    """A member with a full window or a paused connection gets none while another has room."""
    broker = VirtualBroker()
    slow = broker.connect("slow", properties={"receive_maximum": 1})
    stuck, free = broker.connect("stuck"), broker.connect("free")
    for member in (slow, stuck, free):
        member.subscribe(SHARE, 1)
    stuck.connection.pause_sending(broker.now)
    publisher = broker.connect("p")
    for number in range(10):
        publisher.publish("jobs", b"%d" % number, qos=1, packet_id=number + 1)
    assert len(slow.payloads()) == 1
    assert len(free.payloads()) == 9
    assert not stuck.session.outbox.n_messages


def test_a_full_window_is_no_reason_to_pass_over_a_member_at_qos_0() -> None:
    """A member that was granted QoS 0 gets its turn: no Receive Maximum counts there."""
    broker = VirtualBroker()
    modest = broker.connect("modest", properties={"receive_maximum": 1})
    other = broker.connect("other")
    modest.subscribe("own", 1)
    modest.subscribe(SHARE, 0)
    other.subscribe(SHARE, 1)
    publisher = broker.connect("p")
    publisher.publish("own", b"own", qos=1)
    for number in range(4):
        publisher.publish("jobs", b"%d" % number, qos=1, packet_id=number + 1)
    assert modest.payloads() == [b"own", b"0", b"2"]
    assert other.payloads() == [b"1", b"3"]


def test_a_member_that_is_still_given_much_is_passed_over() -> None:
    """What has as much to send already as may pass the outbox at once would let a job wait."""
    broker = VirtualBroker()
    busy, free = workers(broker, 2)
    busy.subscribe("pictures")
    publisher = broker.connect("p")
    picture = Publish("pictures", bytes(DIRECT_BYTES))
    jobs = [Publish("jobs", b"%d" % n, qos=1, packet_id=n) for n in (1, 2)]
    publisher.send(picture, *jobs)
    assert free.payloads() == [b"1", b"2"]
    assert len(busy.payloads()) == 1


def test_where_nobody_has_room_the_least_busy_member_waits() -> None:
    """What must wait is spread over the members too."""
    broker = VirtualBroker(Limits(inflight_messages=1))
    members = workers(broker, 2)
    publisher = broker.connect("p")
    for number in range(8):
        publisher.publish("jobs", b"%d" % number, qos=1, packet_id=number + 1)
    assert [member.session.outbox.n_messages for member in members] == [3, 3]


def test_nobody_offline_is_chosen_while_somebody_is_there() -> None:
    """A connected member without room comes before any that is away."""
    broker = VirtualBroker(Limits(inflight_messages=1))
    away = broker.connect("away", properties={"session_expiry_interval": 100})
    here = broker.connect("here")
    away.subscribe(SHARE, 1)
    here.subscribe(SHARE, 1)
    away.lose()
    publisher = broker.connect("p")
    for number in range(5):
        publisher.publish("jobs", b"%d" % number, qos=1, packet_id=number + 1)
    assert not broker.session("away").outbox.n_messages
    assert here.session.outbox.n_messages == 4


def test_where_all_are_away_a_message_waits_for_one_that_keeps_it() -> None:
    """QoS 1 waits for a member that was granted it; QoS 0 is dropped and counted, once."""
    broker = VirtualBroker()
    lasting = {"session_expiry_interval": 100}
    modest = broker.connect("modest", properties=lasting)
    careful = broker.connect("careful", properties=lasting)
    modest.subscribe(SHARE, 0)
    careful.subscribe(SHARE, 1)
    modest.lose()
    careful.lose()
    publisher = broker.connect("p")
    publisher.publish("jobs", b"kept", qos=1)
    publisher.publish("jobs", b"gone")
    assert broker.session("careful").outbox.n_messages == 1
    assert broker.core.ledger().dropped == {"offline": 1}
    again = broker.connect("careful", clean_start=False, properties=lasting)
    assert again.acknowledge() == [b"kept"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_message_goes_to_a_member_that_may_receive_it(*, waits: bool) -> None:
    """Access control is asked for each member in turn until one may have the topic."""
    access = Access(publish=False, subscribe=False)
    access.refused.update({("receive", "jobs/secret", f"w{number}") for number in (0, 2)})
    broker = VirtualBroker(access=access)
    members = workers(broker, 3)
    publisher = broker.connect("p")
    access.waits = waits
    for number in range(3):
        publisher.publish("jobs/secret", b"%d" % number)
        finish(publisher)
    access.refused.add(("receive", "jobs/secret", "w1"))
    publisher.publish("jobs/secret", b"nobody")
    finish(publisher)
    assert [member.payloads() for member in members] == [[], [b"0", b"1", b"2"], []]


def test_a_message_does_not_go_to_a_member_that_ends_while_another_is_asked_about() -> None:
    """The member that was chosen for the first share has gone when the second one has answered."""
    access = Access(publish=False, subscribe=False)
    broker = VirtualBroker(access=access)
    first, second = broker.connect("first"), broker.connect("second")
    for member in (first, second):
        member.subscribe(SHARE, 1)
    other = broker.connect("other")
    other.subscribe("$share/other/jobs", 1)
    publisher = broker.connect("p")
    access.waits = True
    publisher.publish("jobs", b"x", qos=1)
    suspended = publisher.connection.client.suspended
    assert suspended is not None
    suspended.send(None)  # the first share has its member; the second one is asked about
    first.lose()
    finish(publisher)
    assert (second.payloads(), other.payloads()) == ([b"x"], [b"x"])


def test_a_run_of_packets_is_spread_too() -> None:
    """Packets that come in one chunk are spread as those that come one by one."""
    broker = VirtualBroker()
    members = workers(broker, 4)
    publisher = broker.connect("p")
    publisher.send(*(Publish("jobs", b"%d" % number) for number in range(40)))
    assert [len(member.payloads()) for member in members] == [10] * 4


@pytest.mark.mqtt5("4.8.2-6")
def test_what_a_member_refuses_is_given_to_nobody_else() -> None:
    """[MQTT-4.8.2-6]: a PUBACK of 0x80 or above discards the message."""
    broker = VirtualBroker()
    members = workers(broker, 2)
    broker.connect("p").publish("jobs", b"x", qos=1)
    (packet,) = members[0].take_all(Publish)
    members[0].send(PubAck(packet.packet_id, 0x80))
    assert members[1].payloads() == []
    assert broker.core.ledger().dropped == {"refused": 1}
    members[0].lose()
    assert members[1].payloads() == []


def test_members_take_equal_parts_of_many_topics() -> None:
    """The turn is the share's, not a topic's: 100 topics are spread as one."""
    broker = VirtualBroker()
    members = workers(broker, 5)
    publisher = broker.connect("p")
    for number in range(100):
        publisher.publish(f"jobs/{number}", b"x")
    assert Counter(len(member.payloads()) for member in members) == {20: 5}


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_retained_messages_are_spread_under_access_control(made_of: type[Core]) -> None:
    """A message that is retained takes one turn: members are not passed over."""
    broker = VirtualBroker(core_class=made_of, access=Access(publish=False, subscribe=False))
    members = workers(broker, 2)
    publisher = broker.connect("p")
    for number in range(4):
        publisher.send(Publish("jobs", b"x", qos=1, retain=True, packet_id=number + 1))
    assert [len(member.payloads()) for member in members] == [2, 2]


def test_a_member_whose_right_is_taken_away_gets_no_further_part_of_a_run() -> None:
    """What was answered about members is forgotten with the rules; runs pass over the refused."""
    access = Access()
    access.answers_last = True
    broker = VirtualBroker(core_class=FastCore, access=access)
    members = workers(broker, 3)
    publisher = broker.connect("p")
    run = [Publish("jobs/a", b"x", qos=1, packet_id=number) for number in range(1, 7)]
    publisher.send(*run)
    assert [len(member.payloads()) for member in members] == [2, 2, 2]
    access.refused = {("receive", "jobs/a", "w1")}
    access.rules_changed()
    publisher.send(*run)
    assert [len(member.payloads()) for member in members] == [3, 0, 3]


def test_parts_of_a_run_that_a_lost_member_has_not_acknowledged_go_to_another() -> None:
    """A message of a run is known as one of the share (4.8.2)."""
    broker = VirtualBroker(core_class=FastCore)
    members = workers(broker, 2)
    publisher = broker.connect("p")
    publisher.send(*(Publish("jobs/a", b"%d" % n, qos=1, packet_id=n + 1) for n in range(6)))
    members[0].lose()
    assert sorted(members[1].payloads()) == [b"%d" % number for number in range(6)]
