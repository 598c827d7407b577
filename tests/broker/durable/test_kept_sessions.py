"""Sessions that an owner keeps: they are here while their clients are connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Access, Later, finish
from tests.helpers.durable import keep
from tests.helpers.gates import SwitchGate
from tests.helpers.kept import EPOCH, Mailboxes, Node
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualClient


def connected(node: Node, **options: Any) -> VirtualClient:
    """Return the client ``s``, whose session is kept."""
    return node.connect("s", **keep() | options)


def two_nodes() -> tuple[Mailboxes, Node, Node]:
    """Return mailboxes and two brokers that have them."""
    boxes = Mailboxes()
    return boxes, Node(boxes), Node(boxes)


def test_the_owner_has_the_topic_filters_of_a_kept_session() -> None:
    """It is told of new ones and removed ones; no message is routed to them by the broker."""
    boxes, node, _ = two_nodes()
    client, other = connected(node), node.connect("o")
    for topic_filter in ("t/#", "$share/g/t/#", "t/#"):
        assert client.subscribe(topic_filter, 1) == 1
    other.publish("t/1", b"x", qos=1)
    assert not client.inbox
    assert node.core.tree.n_subscriptions == 0
    assert node.core.n_subscriptions == 1
    client.send(Unsubscribe(2, ("t/#",)))
    assert node.owner.told == [
        ("subscribed", "s", "t/#"),
        ("subscribed", "s", "$share/g/t/#"),
        ("unsubscribed", "s", "t/#"),
    ]
    assert list(boxes["s"].subscriptions) == ["$share/g/t/#"]
    client.send(Disconnect(properties={"session_expiry_interval": 0}))
    client.lose()
    assert "s" not in boxes
    assert node.core.n_subscriptions == 0
    assert ("unloaded", "s") not in node.owner.told


def test_what_the_broker_has_itself_comes_without_the_owner() -> None:
    """Retained messages for new subscriptions, and `$SYS`."""
    _, node, _ = two_nodes()
    client, other = connected(node), node.connect("o")
    other.publish("t/1", b"kept", qos=1, retain=True)
    client.subscribe("t/#", 1)
    (retained,) = client.take_all(Publish)
    assert (retained.payload, retained.retain, retained.qos) == (b"kept", True, 1)
    client.subscribe("$SYS/#")
    assert node.core.tree.n_subscriptions == 1
    assert node.owner.told == [("subscribed", "s", "t/#")]


def test_small_messages_pass_large_ones_that_wait() -> None:
    """As far as these fill a quarter of the limits: what the owner has needs no memory here."""
    boxes = Mailboxes()
    node = Node(boxes, gate=SwitchGate(), limits=Limits(queued_bytes=2000))
    client = connected(node)
    client.subscribe("#", 1)
    for number in range(4):
        boxes.put("s", f"large/{number}", bytes(101))
    boxes.put("s", "small/1", b"1")
    assert [packet.payload for packet in client.take_all(Publish)] == [b"1"]
    for number in range(8):
        boxes.put("s", f"large/{number}", bytes(101))
    boxes.put("s", "small/2", b"2")
    assert not client.take_all(Publish)
    session = node.core.sessions.get("s")
    assert session is not None
    assert session.outbox.n_bytes < 800


def test_a_session_that_is_not_kept_is_as_any_other() -> None:
    """One that ends with its connection, and those of the broker's own clients."""
    boxes, node, _ = two_nodes()
    for client in (node.connect("c"), node.connect("$uplink/x", is_forwarded=True)):
        client.subscribe("t", 1)
    node.connect("o").publish("t", b"x")
    assert node.core.tree.n_subscriptions == 2
    assert not boxes
    assert not node.owner.told


def test_a_session_is_resumed_at_another_broker() -> None:
    """What waits comes in order, what is inflight comes again, and so do packet identifiers."""
    boxes, a, b = two_nodes()
    client = connected(a)
    client.subscribe("t/#", 2)
    client.publish("x", b"", qos=2, packet_id=7)
    for number in range(8):
        boxes.put("s", "t/1", b"%d" % number, 1 + number % 2)
    assert [packet.payload for packet in client.inbox if isinstance(packet, Publish)] == [
        b"%d" % number for number in range(8)
    ]
    got = {packet.payload: packet for packet in client.take_all(Publish)}
    client.send(PubAck(got[b"0"].packet_id), PubRec(got[b"1"].packet_id))
    client.lose()
    assert a.core.sessions.get("s") is None
    assert a.owner.told[-1] == ("unloaded", "s")
    assert boxes["s"].session.lost_at is not None
    boxes.put("s", "t/1", b"8", 1)
    client = connected(b)
    assert client.connack.session_present
    assert boxes["s"].session.lost_at is None
    assert b.session("s").incoming.keys() == {7}
    assert client.take(PubRel).packet_id == got[b"1"].packet_id
    again = client.take_all(Publish)
    assert [(each.payload, each.dup) for each in again] == [
        *((b"%d" % number, True) for number in range(2, 8)),
        (b"8", False),
    ]
    assert [each.packet_id for each in again[:-1]] == [
        got[each.payload].packet_id for each in again[:-1]
    ]
    client.send(PubComp(got[b"1"].packet_id))
    for each in again:
        client.send(PubRec(each.packet_id) if each.qos == 2 else PubAck(each.packet_id))
        if each.qos == 2:
            client.send(PubComp(each.packet_id))
    assert not boxes["s"].entries
    assert not boxes["s"].inflight
    b.session("s").check_invariants()


def test_what_ends_with_the_broker_is_not_lost() -> None:
    """Whatever a client was sent and has not acknowledged comes again at another broker."""
    boxes, a, b = two_nodes()
    client = connected(a)
    client.subscribe("t", 1)
    a.is_refusing = True  # nothing of what follows is written
    for number in range(3):
        boxes.put("s", "t", b"%d" % number)
    assert client.payloads()
    a.die()
    client = connected(b)
    assert client.payloads() == [b"0", b"1", b"2"]


def test_a_session_is_unloaded_once_what_has_changed_is_stored() -> None:
    """A client that comes back before that finds it; the account balances after it."""
    boxes, node, _ = two_nodes()
    client = connected(node)
    client.subscribe("t", 1)
    boxes.put("s", "t", b"x")
    node.is_refusing = True
    client.lose()
    assert node.core.sessions.get("s") is not None
    client = connected(node)
    assert client.payloads() == [b"x"]
    client.lose()
    node.is_refusing = False
    node.settle()
    assert node.core.sessions.get("s") is None
    assert node.core.n_subscriptions == 0
    assert node.owner.told[-1] == ("unloaded", "s")
    ledger = node.core.ledger()
    assert ledger.matched == ledger.moved == 1
    assert list(boxes["s"].entries)


def test_a_session_stays_until_sinks_have_what_its_client_has_published() -> None:
    """At another broker, what the client sends again would be another message to them."""
    boxes, sink = Mailboxes(), HoldingSink("t")
    node = Node(boxes, sinks=[sink])
    client = connected(node)
    client.send(Publish("t", b"x", 2, packet_id=7))
    client.lose()
    assert node.core.sessions.get("s") is not None
    sink.settle()
    node.settle()
    assert node.core.sessions.get("s") is None
    assert boxes["s"].incoming == {7}


def test_a_session_stays_until_sinks_have_forgotten_what_is_released() -> None:
    """At another broker, its Packet Identifier is the next message's."""
    boxes, sink = Mailboxes(), HoldingSink("t")
    held: list[Callable[[bool], None]] = []
    sink.forget = lambda deduplication_id, done: held.append(done)  # type: ignore[method-assign] # noqa: ARG005
    node = Node(boxes, sinks=[sink])
    client = connected(node)
    client.send(Publish("t", b"x", 2, packet_id=7))
    sink.settle()
    node.settle()
    client.send(PubRel(7))
    client.lose()
    assert node.core.sessions.get("s") is not None
    held.pop()(True)
    node.settle()
    assert node.core.sessions.get("s") is None
    assert not boxes["s"].incoming


def test_a_packet_identifier_is_free_once_the_store_has_it_no_more() -> None:
    """Also for a client that releases it again, on its next connection."""
    boxes, sink = Mailboxes(), HoldingSink("t")
    held: list[Callable[[bool], None]] = []
    sink.forget = lambda deduplication_id, done: held.append(done)  # type: ignore[method-assign] # noqa: ARG005
    node = Node(boxes, sinks=[sink])
    client = connected(node)
    client.send(Publish("t", b"x", 2, packet_id=7))
    sink.settle()
    node.settle()
    client.send(PubRel(7))
    client.lose()
    client = connected(node)
    node.is_refusing = True
    held.pop()(True)
    client.send(PubRel(7))
    held.pop()(True)
    node.settle()
    assert boxes["s"].incoming == {7}
    assert not client.inbox
    node.is_refusing = False
    node.settle()
    assert not boxes["s"].incoming
    assert client.take(PubComp).packet_id == 7


def test_what_a_dropped_session_has_published_is_not_routed_any_more() -> None:
    """Another broker has the client, which has sent it again there."""
    sink, access = HoldingSink("t"), Access()
    node = Node(Mailboxes(), sinks=[sink], access=access)
    client = connected(node)
    access.waits = True
    client.send(Publish("t", b"x", 2, packet_id=7))
    node.core.sessions.drop("s", ReasonCode.SESSION_TAKEN_OVER, node.now)
    finish(client)
    assert not sink.messages


def test_sessions_that_are_unloaded_at_once_let_others_have_their_turn() -> None:
    """The driver runs a number of timers at a time, of which each session is one."""
    _, node, _ = two_nodes()
    clients = [node.connect(f"s{number}", **keep()) for number in range(3)]
    node.is_refusing = True
    for client in clients:
        client.lose()
    node.is_refusing = False
    node.commit()  # what was refused
    node.commit()
    for n_left in (2, 1, 0):
        node.core.timers.run(node.now, 1)
        assert len(node.core.sessions) == n_left


@pytest.mark.parametrize(("delay", "payloads"), [(0, [b"gone"]), (30, [])])
def test_a_session_that_another_broker_asks_for_does_not_end(
    delay: int, payloads: list[bytes]
) -> None:
    """Its connection is closed, and its will published, unless that is delayed."""
    boxes, a, b = two_nodes()
    observer = a.connect("o")
    observer.subscribe("will")
    client = connected(a, will=Will("will", b"gone", properties={"will_delay_interval": delay}))
    client.subscribe("t", 1)
    other = connected(b)
    assert other.connack.session_present
    assert client.take(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    a.advance(100)
    assert observer.payloads() == payloads
    assert list(boxes["s"].subscriptions) == ["t"]
    boxes.put("s", "t", b"x")
    assert other.payloads() == [b"x"]


def test_a_session_stays_until_its_delayed_will_is_published() -> None:
    """The broker that had the client publishes it."""
    _, node, _ = two_nodes()
    observer = node.connect("o")
    observer.subscribe("will")
    client = connected(node, will=Will("will", b"gone", properties={"will_delay_interval": 30}))
    client.lose()
    node.advance(29)
    assert node.core.sessions.get("s") is not None
    node.advance(2)
    assert observer.payloads() == [b"gone"]
    assert node.core.sessions.get("s") is None


def test_a_session_that_is_dropped_leaves_no_trace() -> None:
    """Nothing more of it is written, and its will is not published."""
    boxes, a, b = two_nodes()
    observer = a.connect("o")
    observer.subscribe("will")
    client = connected(a, will=Will("will", b"gone"))
    client.subscribe("t", 1)
    boxes.put("s", "t", b"x")
    boxes["s"].owner = b  # who has it by now
    (got,) = client.take_all(Publish)
    client.send(PubAck(got.packet_id))
    a.core.sessions.drop("s", ReasonCode.SESSION_TAKEN_OVER, a.now)
    a.settle()
    assert client.take(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert not observer.inbox
    assert a.core.sessions.get("s") is None
    assert a.owner.told[-1] == ("unloaded", "s")
    assert [mail.message.payload for mail in boxes["s"].entries.values()] == [b"x"]
    assert boxes["s"].session.lost_at is None
    a.core.sessions.drop("s", ReasonCode.SESSION_TAKEN_OVER, a.now)


def test_clean_start_begins_a_new_session() -> None:
    """Nothing of the old one is left."""
    boxes, a, b = two_nodes()
    client = connected(a)
    client.subscribe("t", 1)
    client.lose()
    client = connected(b, clean_start=True)
    assert not client.connack.session_present
    assert not boxes["s"].subscriptions
    client.subscribe("t", 1)
    boxes.put("s", "t", b"x")
    client = connected(b, clean_start=True)  # both are of one commit
    assert not client.connack.session_present
    assert not boxes["s"].subscriptions
    assert not boxes["s"].entries


def test_a_client_that_is_gone_when_its_session_comes_leaves_it_where_it_is() -> None:
    """Also where it goes while its user is asked about."""
    boxes, a, b = two_nodes()
    client = connected(a, username="u")
    client.subscribe("t", 1)
    client.lose()
    b.wait = Later(None)
    client = VirtualClient(b)
    client.send(Connect(client_id="s", keep_alive=0, **keep()))
    client.lose()
    finish(client)
    assert b.core.sessions.get("s") is None
    b.wait = None
    b.core.access = access = Access(publish=False, receive=False)
    access.waits = True
    client = VirtualClient(b)
    client.send(Connect(client_id="s", keep_alive=0, username="v", **keep()))
    suspended = client.connection.client.suspended
    assert suspended is not None
    while b.core.sessions.get("s") is None:
        suspended.send(None)
    client.lose()
    finish(client)
    b.settle()
    assert b.core.sessions.get("s") is None
    assert list(boxes["s"].subscriptions) == ["t"]


def test_two_connections_that_wait_for_a_session_get_one() -> None:
    """The second one takes the first one over."""
    boxes, a, b = two_nodes()
    client = connected(a)
    client.subscribe("t", 1)
    client.lose()
    b.wait = Later(None)
    one, two = VirtualClient(b), VirtualClient(b)
    for client in (one, two):
        client.send(Connect(client_id="s", keep_alive=0, **keep()))
    for client in (one, two):
        finish(client)
        assert client.take(ConnAck).session_present
    assert one.take(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    boxes.put("s", "t", b"x")
    assert two.payloads() == [b"x"]
    b.session("s").check_invariants()


def test_a_session_that_cannot_be_read_refuses_its_client() -> None:
    """Nothing of it is left in the broker."""
    boxes, a, b = two_nodes()
    client = connected(a)
    client.subscribe("t", 1)
    boxes.put("s", "t", b"x")
    client.lose()
    (number,) = boxes["s"].entries
    mail = boxes["s"].entries[number]
    boxes["s"].entries[number] = mail._replace(message=mail.message._replace(properties=b"\x05"))
    client = VirtualClient(b)
    client.send(Connect(client_id="s", keep_alive=0, **keep()))
    assert client.take(ConnAck).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert b.core.sessions.get("s") is None


def test_mail_is_delivered_as_the_session_has_subscribed() -> None:
    """Greatest QoS, identifiers, Retain As Published, No Local; else the owner may forget it."""
    boxes, node, _ = two_nodes()
    client = connected(node)
    client.subscribe("t/#", 1, properties={"subscription_identifier": [3]})
    client.subscribe(
        "t/+", 0, retain_as_published=True, properties={"subscription_identifier": [5]}
    )
    client.subscribe("own", 1, no_local=True)
    client.subscribe("$share/g/s", 1)
    boxes.put("s", "t/1", b"a", 2, retain=True)
    boxes.put("s", "t/1/2", b"b", 2, retain=True)
    boxes.put("s", "t/1", b"c", 0)
    boxes.put("s", "own", b"d", 1, by="s")
    boxes.put("s", "own", b"e", 1, by="o")
    boxes.put("s", "unknown", b"f", 1)
    boxes.put("s", "s", b"g", 1, share="$share/g/s")
    boxes.put("s", "s", b"h", 1, share="$share/h/s")
    boxes.put("s", "s", b"i", 1, share="$share/g/s", is_repeat=True)
    got = client.take_all(Publish)
    assert [(each.payload, each.qos, each.retain) for each in got] == [
        (b"a", 1, True),
        (b"b", 1, False),
        (b"c", 0, False),
        (b"e", 1, False),
        (b"g", 1, False),
        (b"i", 1, False),
    ]
    assert [sorted(each.properties.get("subscription_identifier", ())) for each in got[:2]] == [
        [3, 5],
        [3],
    ]
    assert [each.message.payload for each in boxes["s"].entries.values()] == [
        b"a",
        b"b",
        b"e",
        b"g",
        b"i",
    ]
    for each in got:
        if each.qos:
            client.send(PubAck(each.packet_id))
    assert not boxes["s"].entries


def test_what_has_expired_in_the_mailbox_is_not_delivered() -> None:
    """It is counted, and the owner may forget it [MQTT-3.3.2-5]."""
    boxes, node, _ = two_nodes()
    client = connected(node)
    client.subscribe("t", 1)
    boxes.put("s", "t", b"late", expires_at=EPOCH + node.now - 1)
    boxes.put("s", "t", b"in time", expires_at=EPOCH + node.now + 5)
    assert client.payloads() == [b"in time"]
    assert node.session("s").ledger.expired == 1
    assert [mail.message.payload for mail in boxes["s"].entries.values()] == [b"in time"]


def test_a_client_without_room_is_given_no_more() -> None:
    """The next window comes once the outbox is empty, and no message overtakes another."""
    boxes, node, _ = two_nodes()
    client = connected(node, properties={"session_expiry_interval": 60, "receive_maximum": 1})
    client.subscribe("t", 1)
    for number in range(9):
        boxes.put("s", "t", b"%d" % number)
        assert node.session("s").outbox.n_messages <= 2
    got: list[bytes] = []
    while client.inbox:
        got += client.acknowledge()
    assert got == [b"%d" % number for number in range(9)]
    assert not boxes["s"].entries
