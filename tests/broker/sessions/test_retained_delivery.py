"""Retained messages reach a new subscription in slices, in order, and none is dropped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.sessions import retained_delivery
from penstock.broker.sessions.retained_delivery import SLICE_MESSAGES, UNSENT_BYTES, RetainedDue
from penstock.broker.sessions.session import pump
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

LASTING = {"session_expiry_interval": 100}


def retain(broker: VirtualBroker, n_topics: int, *, qos: int = 0, size: int = 1) -> None:
    """Retain a message on each of some topics below `r`."""
    publisher = broker.connect("publisher")
    for number in range(n_topics):
        publisher.publish(
            f"r/{number}", b"r" * size, retain=True, qos=qos, packet_id=1 if qos else 0
        )


def paused(broker: VirtualBroker, client_id: str = "c") -> VirtualClient:
    """Connect a client whose transport has no room."""
    client = broker.connect(client_id, properties=LASTING)
    client.connection.pause_sending(broker.now)
    return client


def go_on(client: VirtualClient) -> None:
    """Let a client's transport have room."""
    client.connection.resume_sending(client.broker.now)
    client.broker.settle()


@pytest.mark.mqtt5("3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1])
def test_more_retained_messages_than_may_wait_all_come(qos: int) -> None:
    """[MQTT-3.3.1-9]: the queue's limits hold, and drop none of what a client asks for."""
    broker = VirtualBroker(Limits(queued_messages=10, queued_bytes=1000, inflight_messages=4))
    retain(broker, 300, qos=qos, size=50)
    client = broker.connect("c")
    client.subscribe("r/#", 1)
    seen: list[str] = []
    while packets := client.take_all(Publish):
        assert len(packets) <= 4 or not qos
        assert client.session.outbox.n_messages <= 10
        seen += [packet.topic for packet in packets]
        for packet in packets:
            if packet.qos:
                client.send(PubAck(packet.packet_id))
    assert sorted(seen) == sorted(f"r/{number}" for number in range(300))
    assert client.session.ledger.dropped == {}
    client.session.check_invariants()


def test_one_subscribe_takes_no_more_than_its_slice_before_others_have_their_turn() -> None:
    """A SUBSCRIBE to everything is answered at once, and what it asks for comes bit by bit."""
    broker = VirtualBroker()
    retain(broker, 1000)
    client = broker.connect("c")
    n_before = broker.core.counters.publish_sent
    frame = write_packet(Subscribe(1, (SubscriptionRequest("#"), SubscriptionRequest("r/#"))), 5)
    client.connection.receive_data(frame, broker.now)
    assert broker.core.counters.publish_sent - n_before == SLICE_MESSAGES
    other = broker.connect("other")
    other.send(PingReq())
    other.take(PingResp)
    assert len(client.payloads()) == 2000


def test_live_messages_between_retained_ones_do_not_keep_others_from_their_turn() -> None:
    """A pump leaves the rest to its next turn, whatever waits: it does not ask to be looked at."""
    broker = VirtualBroker()
    retain(broker, 20 * SLICE_MESSAGES)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("#"),)))
    live = broker.connect("live")
    for number in range(3):
        live.publish(f"live/{number}", b"live")
    client.connection.resume_sending(broker.now)
    broker.core.turn.take_touched()
    for _ in range(5):
        client.connection.outgoing.needs_look = False
        client.connection.outgoing.want_pump()
        broker.core.turn.take_touched()
        client.connection.outgoing.needs_look = False
        pump(client.connection.client, 0, broker.now)
        assert client.connection.outgoing.wants_more
        assert not client.connection.outgoing.needs_look
        client.connection.outgoing.data_to_send()
        broker.core.turn.take_touched()


def test_bytes_that_are_not_sent_yet_are_bounded() -> None:
    """Large messages by reference are given to the connection only as it has room."""
    broker = VirtualBroker()
    retain(broker, 50, size=UNSENT_BYTES // 4)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("#"),)))
    assert client.connection.outgoing.out_bytes < 2 * UNSENT_BYTES
    go_on(client)
    assert len(client.payloads()) == 50


@pytest.mark.mqtt5("3.8.4-3", "3.8.4-4")
def test_a_filter_that_is_repeated_begins_anew() -> None:
    """[MQTT-3.8.4-4]: all of it comes after the last SUBSCRIBE, what is due still but once."""
    broker = VirtualBroker()
    retain(broker, 5)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("r/#"),) * 20))
    client.send(Subscribe(2, (SubscriptionRequest("r/+"), SubscriptionRequest("r/#", 1))))
    go_on(client)
    topics = Counter(packet.topic for packet in client.take_all(Publish))
    assert topics == {f"r/{number}": 2 for number in range(5)}


@pytest.mark.mqtt5("3.3.1-10", "3.3.1-11")
@pytest.mark.parametrize("retain_handling", [1, 2])
def test_what_is_due_stays_due_when_the_subscription_is_renewed(retain_handling: int) -> None:
    """[MQTT-3.8.4-4]: nothing is lost by a second SUBSCRIBE that asks for nothing again."""
    broker = VirtualBroker()
    retain(broker, 3, qos=1)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("r/#", 0),)))
    client.send(Subscribe(1, (SubscriptionRequest("r/#", 1, retain_handling=retain_handling),)))
    go_on(client)
    assert [packet.qos for packet in client.take_all(Publish)] == [1, 1, 1]


def test_a_live_message_is_not_overtaken_by_an_older_retained_one() -> None:
    """What is due of a topic goes out before a live message of it does, and only once."""
    broker = VirtualBroker()
    retain(broker, 200)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("r/#"),)))
    publisher = broker.connect("publisher")
    publisher.publish("r/150", b"live")
    publisher.publish("r/199", b"newer", retain=True)
    publisher.publish("r/198", b"", retain=True)
    go_on(client)
    came: dict[str, list[bytes]] = {}
    for packet in client.take_all(Publish):
        came.setdefault(packet.topic, []).append(packet.payload)
    assert came.pop("r/150") == [b"r", b"live"]
    assert came.pop("r/199") == [b"newer"]
    assert came.pop("r/198") == [b""]
    assert set(map(tuple, came.values())) == {(b"r",)}
    assert len(came) == 197


@pytest.mark.mqtt5("3.10.4-2")
def test_nothing_is_due_to_a_subscription_that_is_gone() -> None:
    """[MQTT-3.10.4-2]: UNSUBSCRIBE stops what has not begun to leave."""
    broker = VirtualBroker()
    retain(broker, 3)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("r/#"), SubscriptionRequest("r/1"))))
    client.send(Unsubscribe(2, ("r/#",)))
    go_on(client)
    assert [packet.topic for packet in client.take_all(Publish)] == ["r/1"]


@pytest.mark.parametrize(("qos", "n_expected"), [(0, 0), (1, 4)])
def test_what_is_due_outlives_the_connection_but_for_qos_0(qos: int, n_expected: int) -> None:
    """A session that lasts goes on with its retained messages where it was."""
    broker = VirtualBroker()
    retain(broker, 3, qos=1)
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("r/#", qos),)))
    client.lose()
    broker.connect("publisher").publish("r/1", b"live", qos=1)
    again = broker.connect("c", clean_start=False, properties=LASTING)
    packets = again.take_all(Publish)
    of_one = [packet.payload for packet in packets if packet.topic == "r/1"]
    assert of_one == ([b"r", b"live"] if qos else [])
    assert len(packets) == n_expected
    again.session.check_invariants()


def test_what_has_expired_meanwhile_is_not_sent() -> None:
    """[MQTT-3.3.2-5] holds while a message is due."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    for topic in ("a", "b"):
        publisher.publish(topic, b"x", retain=True, properties={"message_expiry_interval": 5})
    client = paused(broker)
    client.send(Subscribe(1, (SubscriptionRequest("+"),)))
    broker.advance(6)
    publisher.publish("a", b"live")
    go_on(client)
    assert client.payloads() == [b"live"]


def test_a_session_that_ends_is_owed_nothing() -> None:
    """What was due has never been matched: the books balance without it."""
    broker = VirtualBroker()
    retain(broker, 3, qos=1)
    client = broker.connect("c")
    client.connection.pause_sending(broker.now)
    client.send(Subscribe(1, (SubscriptionRequest("r/#", 1),)))
    session = client.session
    client.lose()
    assert not session.retained_due
    assert broker.core.ledger().outstanding() == 0


def test_the_cost_of_a_subscribe_grows_as_its_filters_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up among all that is due: thousands of filters would stop the broker."""
    n_looks = 0

    class Counting(RetainedDue):
        def __getattribute__(self, name: str) -> Any:
            nonlocal n_looks
            n_looks += name == "subscription"
            return super().__getattribute__(name)

    monkeypatch.setattr(retained_delivery, "RetainedDue", Counting)
    broker = VirtualBroker()
    client = broker.connect("c")
    filters = tuple(SubscriptionRequest(f"many/{number}/+") for number in range(300))
    for _ in range(2):
        client.send(Subscribe(1, filters))
        finish(client)
    assert n_looks < 3000


@pytest.mark.parametrize("ends", ["unsubscribe", "lose"])
def test_an_answer_of_access_control_that_comes_too_late_changes_nothing(ends: str) -> None:
    """The subscription is gone while access control takes its time."""
    access = Access(publish=False, subscribe=False)
    broker = VirtualBroker(access=access)
    retain(broker, 3)
    client = broker.connect("c")
    access.waits = True
    client.send(Subscribe(1, (SubscriptionRequest("r/#"),)))
    if ends == "lose":
        client.lose()
    else:
        client.send(Unsubscribe(2, ("r/#",)))
    broker.finish_waiting()
    assert client.payloads() == []
    assert broker.core.ledger().outstanding() == 0


def test_a_live_message_goes_behind_the_one_that_access_control_is_asked_about() -> None:
    """The answer about the live message counts for the retained one, too."""
    access = Access(publish=False, subscribe=False)
    broker = VirtualBroker(access=access)
    retain(broker, 1)
    client = broker.connect("c")
    access.waits = True
    client.send(Subscribe(1, (SubscriptionRequest("r/#"),)))
    access.waits = False
    broker.connect("publisher").publish("r/0", b"live")
    broker.finish_waiting()
    assert client.payloads() == [b"r", b"live"]


class RetainedMachine(RuleBasedStateMachine):
    """A subscriber of retained topics that stall and change while it takes them.

    The last value of every topic arrives last, and no topic of a SUBSCRIBE is missing.
    """

    def __init__(self) -> None:
        super().__init__()
        # Room for all live messages of a run: with one that is dropped goes what is due of it.
        self.broker = VirtualBroker(Limits(queued_messages=70, inflight_messages=2))
        self.publisher = self.broker.connect("p")
        self.client = self.broker.connect("c")
        self.is_paused = False
        self.number = self.subscribed_at = 0
        self.retained: dict[str, int] = {}
        self.due: dict[str, int] = {}
        self.newest: dict[str, int] = {}

    def read(self) -> None:
        """Take what came: of each topic nothing older after something newer."""
        for packet in self.client.take_all(Publish):
            number = int(packet.payload or b"0")
            if number:
                newest = self.newest.get(packet.topic, 0)
                # What came before the last SUBSCRIBE may be newer than what is retained.
                assert newest <= max(number, self.subscribed_at)
                self.newest[packet.topic] = max(number, newest)
            if packet.qos:
                self.client.send(PubAck(packet.packet_id))

    @rule(topic=st.sampled_from(["a", "a/1", "a/2", "b/1", "b/2/3"]), is_retained=st.booleans())
    def publish(self, topic: str, *, is_retained: bool) -> None:
        """A message comes."""
        self.number += 1
        self.publisher.publish(topic, b"%d" % self.number, retain=is_retained)
        if is_retained:
            self.retained[topic] = self.number
        self.read()

    @rule(topic=st.sampled_from(["a", "a/1", "b/2/3"]))
    def clear(self, topic: str) -> None:
        """A retained message is removed."""
        self.publisher.publish(topic, b"", retain=True)
        self.retained.pop(topic, None)
        self.due.pop(topic, None)
        self.read()

    @rule(topic_filter=st.sampled_from(["#", "a/#", "+/+"]), qos=st.integers(0, 1))
    def subscribe(self, topic_filter: str, qos: int) -> None:
        """It subscribes."""
        self.client.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
        self.subscribed_at = self.number
        if topic_filter == "#":
            self.due |= self.retained
        self.read()

    @rule(is_paused=st.booleans())
    def room(self, *, is_paused: bool) -> None:
        """Its transport fills up or drains."""
        self.is_paused = is_paused
        if is_paused:
            self.client.connection.pause_sending(self.broker.now)
        else:
            go_on(self.client)
            self.read()
            while any(isinstance(packet, Publish) for packet in self.client.inbox):
                self.read()
            assert not self.client.session.retained_due
            for topic, number in self.due.items():
                assert self.newest.get(topic, 0) >= number
            self.due.clear()

    @invariant()
    def books_balance(self) -> None:
        """T5: conservation after every step."""
        self.client.session.check_invariants()


TestRetainedMachine = RetainedMachine.TestCase
TestRetainedMachine.settings = settings(
    max_examples=examples(80), stateful_step_count=30, deadline=None
)


def test_live_messages_do_not_overtake_a_large_retained_one_of_their_topic() -> None:
    """[MQTT-4.6.0-6]: the last one that a SUBSCRIBE brings may have to wait like any other."""
    broker = VirtualBroker(gate=SwitchGate(10, most_seconds=1))
    publisher = broker.connect("p")
    publisher.publish("cam", b"a large retained one", retain=True)
    client = broker.connect("c")
    client.subscribe("cam")
    client.session.check_invariants()
    publisher.publish("cam", b"live")
    assert client.payloads() == []
    broker.advance(1.1)
    assert client.payloads() == [b"a large retained one", b"live"]


@pytest.mark.mqtt5("3.2.0-1")
def test_nothing_due_goes_out_before_the_connack_that_waits_for_the_disk() -> None:
    """A live message sends ahead what is due of its topic, and both wait for CONNACK."""
    broker = DurableBroker()
    publisher = broker.connect("p")
    publisher.publish("r/1", b"old", qos=1, retain=True)
    kept = {"session_expiry_interval": 1000}
    client = broker.connect("s", clean_start=False, properties=kept)
    client.connection.pause_sending(broker.now)
    client.subscribe("r/#", 1)
    client.lose()
    broker.commits_at_once = False
    client = VirtualClient(broker)
    client.send(Connect(client_id="s", clean_start=False, keep_alive=0, properties=kept))
    publisher.publish("r/1", b"new", qos=1)
    assert not client.inbox
    broker.commit()
    client.take(ConnAck)
    assert client.payloads() == [b"old", b"new"]
