"""A session that another user takes up, on a virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from penstock.broker.access_control import (
    RECEIVE,
    SUBSCRIBE,
    AccessControl,
    Action,
    ConnectAttempt,
    SessionView,
)
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import Connect, Disconnect, PubAck, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Later, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.full import check
from tests.helpers.virtual import VirtualBroker, VirtualClient

KEEP = {"session_expiry_interval": 100}


class Users(AccessControl):
    """Access control by user name: only alice may have what begins with ``secret``.

    Attributes:
        asked: (user name, topic, action) of each question but those for PUBLISH.
        waits: answers take a wait.
    """

    checks_publish = False

    def __init__(self, *, subscribe: bool = False, receive: bool = True) -> None:
        self.checks_subscribe = subscribe
        self.checks_receive = receive
        self.asked: list[tuple[str | None, str, Action]] = []
        self.waits = False

    def authenticate(self, attempt: ConnectAttempt) -> bool:
        """Let everybody in."""
        del attempt
        return True

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Answer for a topic or filter."""
        self.asked.append((session.username, topic, action))
        is_allowed = session.username == "alice" or not topic.startswith("secret")
        return Later(is_allowed) if self.waits else is_allowed


def connect(broker: VirtualBroker, username: str, *, is_clean: bool = False) -> VirtualClient:
    """Return the client `dev` of a user."""
    return broker.connect("dev", username=username, clean_start=is_clean, properties=KEEP)


def left_by_alice(broker: VirtualBroker, *topic_filters: str, qos: int = 1) -> None:
    """Let alice subscribe and go."""
    client = connect(broker, "alice")
    for topic_filter in topic_filters:
        client.subscribe(topic_filter, qos)
    client.send(Disconnect())


@pytest.mark.mqtt5("3.1.2-5")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_is_only_for_a_user_who_may_receive_it(qos: int) -> None:
    """The session goes on; what its next user may not have is dropped and counted."""
    broker = VirtualBroker(access=Users())
    left_by_alice(broker, "#", qos=qos)
    sender = broker.connect("p", username="alice")
    for packet_id, topic in enumerate(("secret/1", "open", "secret/2"), 1):
        sender.publish(topic, topic.encode(), qos=qos, packet_id=packet_id)
    bob = connect(broker, "bob")
    assert bob.connack.session_present
    assert bob.payloads() == [b"open"]
    assert broker.core.ledger().dropped == {"not_authorized": 2}
    check(broker)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_another_user_has_not_acknowledged_is_not_sent_again(qos: int) -> None:
    """Inflight messages are judged as those that wait; a PUBREL says nothing and goes out."""
    broker = VirtualBroker(access=Users())
    alice = connect(broker, "alice")
    alice.subscribe("#", qos)
    sender = broker.connect("p", username="alice")
    for packet_id, payload in enumerate((b"1", b"2"), 1):
        sender.publish("secret", payload, qos=qos, packet_id=packet_id)
    assert alice.payloads() == [b"1", b"2"]
    alice.send(PubAck(1) if qos == 1 else PubRec(1))
    bob = connect(broker, "bob")
    (said,) = alice.take_all(Disconnect)
    assert said.reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert bob.payloads() == []
    assert len(bob.take_all(PubRel)) == (qos == 2)
    assert broker.core.ledger().dropped == {"not_authorized": 1}
    check(broker)


def test_subscriptions_of_another_user_are_judged_anew() -> None:
    """One that is refused ends, with what it has brought; the others stay."""
    broker = VirtualBroker(access=Users(subscribe=True, receive=False))
    left_by_alice(broker, "secret/#", "$share/g/secret/x", "open")
    sender = broker.connect("p", username="alice")
    sender.publish("secret/1", b"s", qos=1)
    sender.publish("open", b"o", qos=1)
    bob = connect(broker, "bob")
    sender.publish("secret/1", b"later", qos=1)
    sender.publish("secret/x", b"later", qos=1)
    assert bob.payloads() == [b"o"]
    assert list(bob.session.subscriptions) == ["open"]
    check(broker)


def test_shared_message_goes_to_another_member() -> None:
    """Nothing of a share is lost because one of its members has changed hands."""
    broker = VirtualBroker(access=Users())
    left_by_alice(broker, "$share/g/secret")
    broker.connect("p", username="alice").publish("secret", b"job", qos=1)
    other = broker.connect("other", username="alice", clean_start=False, properties=KEEP)
    other.connection.client.end(broker.now)
    other = broker.connect("other", username="alice", clean_start=False, properties=KEEP)
    other.subscribe("$share/g/secret", 1)
    bob = connect(broker, "bob")
    assert (bob.payloads(), other.payloads()) == ([], [b"job"])
    check(broker)


def test_the_same_user_is_not_asked_about() -> None:
    """A fleet that comes back costs no questions."""
    access = Users(subscribe=True)
    broker = VirtualBroker(access=access)
    left_by_alice(broker, "secret")
    broker.connect("p", username="alice").publish("secret", b"s", qos=1)
    access.asked.clear()
    assert connect(broker, "alice").payloads() == [b"s"]
    assert access.asked == []


def test_clean_start_asks_about_nothing() -> None:
    """What ends anyway need not be judged."""
    access = Users(subscribe=True)
    broker = VirtualBroker(access=access)
    left_by_alice(broker, "secret")
    broker.connect("p", username="alice").publish("secret", b"s", qos=1)
    access.asked.clear()
    assert connect(broker, "bob", is_clean=True).payloads() == []
    assert access.asked == []


def test_nothing_slips_through_while_access_control_takes_its_time() -> None:
    """What comes meanwhile is judged by the new name; the old client is gone before that."""
    access = Users(subscribe=True)
    broker = VirtualBroker(access=access)
    alice = connect(broker, "alice")
    alice.subscribe("#", 1)
    sender = broker.connect("p", username="alice")
    access.waits = True
    bob = VirtualClient(broker)
    bob.send(
        Connect(client_id="dev", username="bob", clean_start=False, keep_alive=0, properties=KEEP)
    )
    assert alice.take(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    access.waits = False
    sender.publish("secret", b"s", qos=1)
    sender.publish("open", b"o", qos=1)
    finish(bob)
    assert bob.payloads() == [b"o"]
    assert ("bob", "#", SUBSCRIBE) in access.asked
    assert ("bob", "secret", RECEIVE) in access.asked
    check(broker)


def test_session_that_ends_while_it_is_judged_is_begun_anew() -> None:
    """A client that waited for its session gets a new one."""
    access = Users(subscribe=True)
    broker = VirtualBroker(access=access)
    left_by_alice(broker, "open")
    access.waits = True
    bob = VirtualClient(broker)
    bob.send(
        Connect(client_id="dev", username="bob", clean_start=False, keep_alive=0, properties=KEEP)
    )
    broker.core.sessions.end(broker.session("dev"), broker.now)
    finish(bob)
    assert bob.session.username == "bob"
    assert not bob.session.subscriptions


class LastingUsers(Users):
    """The same, whose answers last: its messages go in runs."""

    answers_last = True


def test_what_is_taken_from_one_user_stays_on_the_disk_for_another_session() -> None:
    """Also of a stored run that has changed since the last commit."""
    broker = DurableBroker(access=LastingUsers(), core_class=FastCore)
    dev = connect(broker, "alice")
    other = broker.connect("other", username="alice", clean_start=False, properties=KEEP)
    for client in (dev, other):
        client.subscribe("#", 2)
    sender = broker.connect("p", username="alice")
    sender.send(*(Publish("secret", b"%d" % i, 2, packet_id=i) for i in (1, 2, 3)))
    ids = [packet.packet_id for packet in dev.take_all(Publish)]
    broker.commits_at_once = False
    dev.send(PubRec(ids[0]))
    bob = VirtualClient(broker)
    bob.send(Connect(client_id="dev", username="bob", clean_start=False, properties=KEEP))
    broker.commit()
    assert broker.core.ledger().dropped == {"not_authorized": 2}
    again = broker.crash().connect("other", username="alice", clean_start=False, properties=KEEP)
    assert again.payloads() == [b"1", b"2", b"3"]
