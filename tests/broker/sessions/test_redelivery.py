"""Messages of shared subscriptions change hands; nothing is lost, the books balance."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Unsubscribe,
)
from penstock.broker.sessions.redelivery import SLICE_MESSAGES
from tests.helpers.access import Access
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.shares import LASTING, SHARE, Closed, check_books, member
from tests.helpers.virtual import VirtualBroker, VirtualClient


def publish(broker: VirtualBroker, n_messages: int, qos: int = 1) -> list[bytes]:
    """Publish numbered jobs and return their payloads."""
    publisher = broker.connect("publisher")
    payloads = [b"%d" % number for number in range(n_messages)]
    for number, payload in enumerate(payloads):
        publisher.publish("jobs", payload, qos=qos, packet_id=number + 1 if qos else 0)
    return payloads


def test_what_was_not_sent_goes_to_another_member_when_the_connection_is_lost() -> None:
    """4.8.2: nothing of it waits for the member that went away."""
    broker = VirtualBroker()
    gone = member(broker, "gone", receive_maximum=1)
    stays = member(broker, "stays", receive_maximum=1)
    payloads = publish(broker, 10)
    seen = gone.payloads() + stays.acknowledge()
    gone.lose()
    seen += stays.acknowledge()
    while more := stays.acknowledge():
        seen += more
    assert sorted(set(seen)) == payloads
    assert not broker.session("gone").outbox.n_messages
    assert broker.core.ledger().moved == 5
    check_books(broker)


@pytest.mark.parametrize("expiry", [0, 100])
def test_qos_1_that_was_sent_goes_to_another_member_once_the_connection_is_lost(
    expiry: int,
) -> None:
    """4.8.2: sent and unacknowledged, whether the session lasts or not; DUP is not set."""
    broker = VirtualBroker()
    gone = member(broker, "gone", session_expiry_interval=expiry)
    stays = member(broker, "stays")
    publish(broker, 4)
    assert len(stays.acknowledge()) == 2
    sent = gone.payloads()
    gone.lose()
    packets = stays.take_all(Publish)
    assert [packet.payload for packet in packets] == sent
    assert not any(packet.dup for packet in packets)  # [MQTT-3.3.1-3]: the first to this one
    again = broker.connect("gone", clean_start=False, properties=LASTING)
    assert again.payloads() == []
    check_books(broker)


@pytest.mark.mqtt5("4.8.2-4", "4.8.2-5")
def test_qos_2_that_was_sent_stays_with_its_member() -> None:
    """[MQTT-4.8.2-4]: completed when it comes back; [MQTT-4.8.2-5]: never given to another."""
    broker = VirtualBroker()
    gone, stays = member(broker, "gone", 2), member(broker, "stays", 2)
    publish(broker, 4, qos=2)
    half, other = gone.take_all(Publish)
    gone.send(PubRec(half.packet_id))
    gone.lose()
    assert len(stays.payloads()) == 2
    again = broker.connect("gone", clean_start=False, properties=LASTING)
    assert again.take(PubRel).packet_id == half.packet_id
    (repeated,) = again.take_all(Publish)
    assert (repeated.payload, repeated.dup) == (other.payload, True)
    again.lose()
    broker.advance(101)
    assert stays.inbox == []
    assert broker.core.ledger().dropped == {"session_ended": 2}
    check_books(broker)


def test_qos_2_that_was_not_sent_goes_to_another_member() -> None:
    """4.8.2 binds what delivery was begun; the rest may still go to whoever is there."""
    broker = VirtualBroker()
    gone = member(broker, "gone", 2, receive_maximum=1)
    publish(broker, 3, qos=2)
    stays = member(broker, "stays", 2)
    gone.lose()
    assert stays.payloads() == [b"1", b"2"]


def test_qos_0_that_waits_goes_to_another_member_when_the_connection_is_lost() -> None:
    """What a stuck connection held back is not lost with it."""
    broker = VirtualBroker()
    gone, stays = member(broker, "gone"), member(broker, "stays")
    gone.connection.pause_sending(broker.now)
    stays.connection.pause_sending(broker.now)
    payloads = publish(broker, 6, qos=0)
    gone.lose()
    stays.connection.resume_sending(broker.now)
    broker.settle()
    assert sorted(stays.payloads()) == payloads
    assert broker.core.ledger().dropped == {}
    check_books(broker)


def test_an_idle_member_takes_what_a_stuck_one_holds() -> None:
    """Nothing stays behind a member without room while another one has nothing to do."""
    broker = VirtualBroker()
    stuck = member(broker, "stuck", receive_maximum=1)
    payloads = publish(broker, 50)
    assert stuck.payloads() == [b"0"]
    idle = member(broker, "idle")
    assert idle.payloads() == payloads[1:]
    assert not stuck.session.outbox.n_messages
    check_books(broker)


def test_members_that_become_idle_together_share_what_has_piled_up() -> None:
    """What waited while all were away is spread over those that come back."""
    broker = VirtualBroker()
    for client_id in ("a", "b"):
        member(broker, client_id, receive_maximum=1).lose()
    publish(broker, 60)
    back = [member(broker, client_id, receive_maximum=20) for client_id in ("a", "b", "c")]
    received = [len(client.payloads()) for client in back]
    assert sum(received) == 60
    assert all(number == 20 for number in received)


def test_who_takes_over_gets_its_own_granted_qos() -> None:
    """[MQTT-4.8.2-3] holds for what was first given to another member too."""
    broker = VirtualBroker()
    gone = member(broker, "gone", receive_maximum=1)
    publish(broker, 2)
    modest = broker.connect("modest")
    modest.subscribe(SHARE, 0, properties={"subscription_identifier": [9]})
    gone.lose()
    packets = modest.take_all(Publish)
    assert [packet.qos for packet in packets] == [0, 0]
    assert packets[0].properties["subscription_identifier"] == [9]


@pytest.mark.mqtt5("3.10.4-2", "3.10.4-3")
def test_who_unsubscribes_keeps_what_was_sent_and_gives_the_rest_away() -> None:
    """[MQTT-3.10.4-3]: what was begun is completed; nothing new is added [MQTT-3.10.4-2]."""
    broker = VirtualBroker()
    leaves = member(broker, "leaves", receive_maximum=1)
    payloads = publish(broker, 3)
    (sent,) = leaves.take_all(Publish)
    stays = member(broker, "stays", receive_maximum=1)
    assert stays.payloads() == [payloads[1]]
    leaves.send(Unsubscribe(1, (SHARE,)))
    assert not leaves.session.outbox.n_messages
    leaves.send(PubAck(sent.packet_id))
    assert leaves.take_all(Publish) == []
    assert stays.session.outbox.n_messages == 1
    leaves.lose()
    check_books(broker)


def test_who_leaves_a_share_with_very_many_hands_them_on_slice_by_slice() -> None:
    """Others have their turn between: no slice holds the loop for long."""
    broker = VirtualBroker()
    leaver, other = member(broker, "leaver"), member(broker, "other")
    other.send(Unsubscribe(1, (SHARE,)))
    leaver.stall()
    n_messages = 2 * SLICE_MESSAGES + 100
    publish(broker, n_messages, qos=1)
    other.connection.pause_sending(broker.now)
    other.subscribe(SHARE, 1)
    leaver.send(Unsubscribe(1, (SHARE,)))
    assert leaver.session.ledger.moved == SLICE_MESSAGES
    broker.advance(0)
    assert leaver.session.ledger.moved == n_messages
    assert other.session.outbox.n_messages == n_messages
    check_books(broker)


def test_the_last_member_that_unsubscribes_gets_what_waits_for_it() -> None:
    """Where nobody else is there, what was accepted is still delivered (3.10.4)."""
    broker = VirtualBroker()
    only = member(broker, "only", receive_maximum=1)
    payloads = publish(broker, 3)
    only.send(Unsubscribe(1, (SHARE,)))
    seen = []
    while more := only.acknowledge():
        seen += more
    assert seen == payloads


def test_a_session_that_ends_hands_on_to_members_that_are_away() -> None:
    """Where all are away, what an ended session held waits for another that lasts."""
    broker = VirtualBroker()
    short = member(broker, "short", session_expiry_interval=5, receive_maximum=1)
    payloads = publish(broker, 3)
    member(broker, "long", receive_maximum=1).lose()
    short.lose()
    broker.advance(6)
    back = broker.connect("long", clean_start=False, properties=LASTING)
    assert sorted(back.acknowledge()) == payloads


def test_the_last_session_takes_what_it_holds_with_it() -> None:
    """4.8.2: a share without sessions ends, and what was not delivered is dropped."""
    broker = VirtualBroker()
    only = member(broker, "only", session_expiry_interval=0)
    publish(broker, 3)
    only.lose()
    assert broker.core.ledger().dropped == {"session_ended": 3}
    check_books(broker)


def test_who_comes_back_on_another_connection_at_once_keeps_what_it_was_sent() -> None:
    """A takeover is no absence: the same client gets it again, with DUP."""
    broker = VirtualBroker()
    client, other = member(broker, "c"), member(broker, "other")
    publish(broker, 2)
    (sent,) = client.take_all(Publish)
    other.acknowledge()
    again = broker.connect("c", clean_start=False, properties=LASTING)
    (repeated,) = again.take_all(Publish)
    assert (repeated.payload, repeated.dup) == (sent.payload, True)
    assert other.payloads() == []


def test_what_has_expired_is_not_handed_on() -> None:
    """A Message Expiry Interval that has passed ends a job, whoever held it."""
    broker = VirtualBroker()
    gone = member(broker, "gone", receive_maximum=1)
    publisher = broker.connect("p")
    for number in range(2):
        publisher.publish(
            "jobs", b"x", qos=1, packet_id=number + 1, properties={"message_expiry_interval": 5}
        )
    gone.lose()
    broker.advance(6)
    assert member(broker, "other").payloads() == []
    assert broker.core.ledger().expired == 2
    check_books(broker)


@pytest.mark.parametrize("waits", [False, True])
def test_only_a_member_that_may_receive_it_takes_over(*, waits: bool) -> None:
    """Access control is asked before a message changes hands."""
    access = Access(publish=False, subscribe=False)
    access.refused.add(("receive", "jobs", "refused"))
    broker = VirtualBroker(access=access)
    gone = member(broker, "gone")
    refused, allowed = member(broker, "refused"), member(broker, "allowed", receive_maximum=1)
    publish(broker, 3)
    seen = gone.payloads() + allowed.acknowledge()
    access.waits = waits
    gone.lose()
    broker.finish_waiting()
    while more := allowed.acknowledge():
        seen += more
        broker.finish_waiting()
    assert set(seen) == {b"0", b"1", b"2"}
    assert refused.payloads() == []
    check_books(broker)


def test_what_no_member_may_receive_is_dropped_and_counted() -> None:
    """A member's access has changed since; nobody else may have it."""
    access = Access(publish=False, subscribe=False)
    broker = VirtualBroker(access=access)
    gone = member(broker, "gone", session_expiry_interval=0)
    publish(broker, 1)
    access.refused.add(("receive", "jobs", "refused"))
    member(broker, "refused")
    gone.lose()
    assert broker.core.ledger().dropped == {"share_refused": 1}
    check_books(broker)


def test_what_a_durable_member_held_goes_to_another_one_after_a_restart() -> None:
    """Inflight or waiting when the process ended, it does not wait for the same member."""
    broker = DurableBroker()
    holder = member(broker, "holder", receive_maximum=2)
    payloads = publish(broker, 5)
    assert len(holder.take_all(Publish)) == 2
    member(broker, "other", receive_maximum=1).lose()
    broker = broker.crash()
    other = broker.connect("other", clean_start=False, properties=LASTING)
    assert other.connack.session_present
    seen: list[bytes] = []
    while more := other.acknowledge():
        seen += more
    assert sorted(seen) == payloads
    assert not broker.disk.deliveries
    check_books(broker)


class ShareMachine(RuleBasedStateMachine):
    """Three workers of one share that come, stall and go as workers do, on paths good and bad.

    While the share has a member with a session, no QoS 1 message is lost; no QoS 2 message
    comes twice; the books balance.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = Closed()
        self.broker = VirtualBroker(Limits(inflight_messages=2), gate=self.gate)
        self.publisher = self.broker.connect("p")
        self.clients: dict[str, VirtualClient] = {}
        self.unanswered: dict[str, list[Publish]] = {"a": [], "b": [], "c": []}
        self.number = 0
        self.acknowledged: set[bytes] = set()
        self.expected: set[bytes] = set()
        self.qos2: dict[bytes, str] = {}
        # One that never ends and never answers keeps the share, and what nobody else takes.
        keeper = self.broker.connect("keeper", properties={"session_expiry_interval": 0xFFFFFFFF})
        keeper.subscribe(SHARE, 2)
        keeper.lose()

    def read(self) -> None:
        """Take what came; a QoS 2 message comes to one worker only."""
        for name, client in self.clients.items():
            for packet in client.take_all(Publish):
                self.unanswered[name].append(packet)
                if packet.qos == 2:
                    assert self.qos2.setdefault(packet.payload, name) == name
            for released in client.take_all(PubRel):
                client.send(PubComp(released.packet_id))

    @rule(
        name=st.sampled_from("abc"),
        qos=st.integers(1, 2),
        expiry=st.sampled_from([0, 50]),
        receive_maximum=st.sampled_from([1, 5]),
    )
    def connect(self, name: str, qos: int, expiry: int, receive_maximum: int) -> None:
        """A worker connects, or connects anew, and joins."""
        self.unanswered[name].clear()
        client = self.broker.connect(
            name,
            clean_start=False,
            properties={"session_expiry_interval": expiry, "receive_maximum": receive_maximum},
        )
        self.clients[name] = client
        client.subscribe(SHARE, qos)
        self.read()

    @rule(qos=st.integers(0, 2), n_bytes=st.lists(st.sampled_from([1, 20]), min_size=1, max_size=5))
    def publish(self, qos: int, n_bytes: list[int]) -> None:
        """Jobs come, small and large."""
        for width in n_bytes:
            self.number += 1
            payload = b"%*d" % (width, self.number)
            self.publisher.publish("jobs", payload, qos=qos)
            if qos == 1:
                self.expected.add(payload)
            if qos == 2:
                self.publisher.send(PubRel(1))
            self.publisher.inbox.clear()
        self.read()

    @precondition(lambda self: any(self.unanswered.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A worker has done a job."""
        name = data.draw(st.sampled_from([n for n in "abc" if self.unanswered[n]]))
        packet = self.unanswered[name].pop(0)
        if packet.qos == 1:
            self.acknowledged.add(packet.payload)
            self.clients[name].send(PubAck(packet.packet_id))
        elif packet.qos == 2:
            self.clients[name].send(PubRec(packet.packet_id))
        self.read()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_paused=st.booleans())
    def room(self, data: st.DataObject, *, is_paused: bool) -> None:
        """A worker's transport fills up or drains."""
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        if is_paused:
            client.connection.pause_sending(self.broker.now)
        else:
            client.connection.resume_sending(self.broker.now)
            self.broker.settle()
        self.read()

    @rule(bad=st.sets(st.sampled_from("abc")))
    def paths(self, bad: set[str]) -> None:
        """Paths become good or bad."""
        self.gate.held = tuple(bad)
        for session in self.broker.core.sessions:
            session.link_changed()
        self.broker.settle()
        self.read()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), how=st.sampled_from(["lost", "goodbye", "unsubscribe"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        """A worker goes."""
        name = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients[name]
        if how == "unsubscribe":
            client.send(Unsubscribe(1, (SHARE,)))
        else:
            del self.clients[name]
            self.unanswered[name].clear()
            if how == "goodbye":
                client.send(Disconnect())
            else:
                client.lose()
        self.read()

    @rule(seconds=st.sampled_from([1, 60]))
    def time(self, seconds: int) -> None:
        """Sessions expire."""
        self.broker.advance(seconds)
        self.read()

    @invariant()
    def books_balance(self) -> None:
        """T5: conservation, per subscriber and for the broker, after every step."""
        check_books(self.broker)

    def teardown(self) -> None:
        """At the end one worker does all that is left: every QoS 1 job was done by somebody."""
        for client in self.clients.values():
            client.send(Disconnect())
        self.broker.advance(100)
        last = self.broker.connect("last")
        last.subscribe(SHARE, 2)
        while packets := last.take_all(Publish):
            for packet in packets:
                if packet.qos == 1:
                    self.acknowledged.add(packet.payload)
                    last.send(PubAck(packet.packet_id))
                else:
                    assert packet.payload not in self.qos2
                    last.send(PubRec(packet.packet_id))
            for released in last.take_all(PubRel):
                last.send(PubComp(released.packet_id))
        assert self.expected <= self.acknowledged
        check_books(self.broker)


TestShareMachine = ShareMachine.TestCase
TestShareMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
