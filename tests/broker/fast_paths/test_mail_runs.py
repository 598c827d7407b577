"""Messages that waited for a kept session elsewhere, and leave as a run."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.extensions import MailRun
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.writer import publish_header
from tests.helpers.access import Access
from tests.helpers.durable import keep
from tests.helpers.kept import Mailboxes, Node
from tests.helpers.virtual import VirtualBroker, VirtualClient


def connected(node: Node, **options: Any) -> VirtualClient:
    """Return the client ``s``, whose session is kept."""
    return node.connect("s", **keep() | options)


def test_what_waits_leaves_together_and_its_identifiers_are_stored() -> None:
    """What was acknowledged is gone; the rest comes again at another broker, under its own."""
    boxes = Mailboxes()
    a, b = Node(boxes), Node(boxes)
    client = connected(a)
    client.subscribe("t/#", 1)
    for number in range(4):
        boxes.put("s", "t/1", b"%d" % number)
    got = client.take_all(Publish)
    assert [packet.payload for packet in got] == [b"0", b"1", b"2", b"3"]
    assert a.n_in_runs == 4
    client.send(PubAck(got[0].packet_id))
    ids = [delivery.packet_id for delivery in boxes["s"].inflight.values()]
    assert ids == [packet.packet_id for packet in got[1:]]
    client.lose()
    again = connected(b).take_all(Publish)
    assert [(each.payload, each.packet_id, each.dup) for each in again] == [
        (packet.payload, packet.packet_id, True) for packet in got[1:]
    ]


def test_run_is_cut_where_the_window_ends() -> None:
    """The owner is asked for more as soon as anything is acknowledged."""
    boxes = Mailboxes()
    node = Node(boxes)
    client = connected(node, properties={"session_expiry_interval": 60, "receive_maximum": 3})
    client.subscribe("t", 1)
    for number in range(7):
        boxes.put("s", "t", b"%d" % number)
    got = client.take_all(Publish)
    assert len(got) == 3
    client.send(PubAck(got[0].packet_id))
    client.send(PubAck(got[2].packet_id))  # not in their order
    more = client.take_all(Publish)
    assert [packet.payload for packet in more] == [b"3", b"4"]
    for packet in (got[1], *more):
        client.send(PubAck(packet.packet_id))
    assert client.payloads() == [b"5", b"6"]
    node.session("s").check_invariants()


def run_of(*payloads: bytes, version: int = 5, qos: int = 1, **properties: Any) -> MailRun:
    """Return a run of topic ``t``."""
    heads = (
        publish_header(b"t", len(one), qos, packet_id=1, properties=properties, version=version)
        for one in payloads
    )
    packets = b"".join(head + one for head, one in zip(heads, payloads, strict=True))
    return MailRun(1, packets, len(payloads), version, qos, "s", 0.0)


def taken(node: Node, run: MailRun) -> int | None:
    """Give a run, and let it leave; no mailbox has it."""
    n_taken = node.core.take_mail_run(node.session("s"), run, node.now)
    VirtualBroker.settle(node)
    return n_taken


def test_messages_of_qos_0_leave_as_they_came() -> None:
    """Nothing of them is kept."""
    node = Node(Mailboxes())
    client = connected(node)
    client.subscribe("t", 0)
    assert taken(node, run_of(b"1", b"2", qos=0, content_type="x")) == 2
    got = client.take_all(Publish)
    assert [(each.payload, each.properties) for each in got] == [
        (b"1", {"content_type": "x"}),
        (b"2", {"content_type": "x"}),
    ]
    assert node.core.ledger().delivered == 2


def test_the_first_message_that_must_be_looked_at_ends_a_run() -> None:
    """One that may expire, or is large for a connection."""
    node = Node(Mailboxes())
    connected(node).subscribe("t", 1)
    plain, late = run_of(b"1"), run_of(b"2", message_expiry_interval=9)
    both = plain._replace(packets=plain.packets + late.packets, n_messages=2)
    assert taken(node, both) == 1
    assert taken(node, late) is None
    assert taken(node, run_of(bytes(1_000_000))) is None


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ({"qos": 0}, run_of(b"1")),
        ({"properties": {"subscription_identifier": [3]}}, run_of(b"1")),
        ({"no_local": True}, run_of(b"1")),
        ({}, run_of(b"1", version=4)),
        ({}, run_of(b"1")._replace(packets=b"\x36\0")),
        ({}, run_of(b"1")._replace(packets=run_of(b"1").packets.replace(b"t", b"\xff", 1))),
        ({"topic_filter": "u"}, run_of(b"1")),
    ],
)
def test_session_that_gets_anything_else_is_given_messages_one_by_one(
    options: dict[str, Any], run: MailRun
) -> None:
    """Another QoS, an identifier, not its own messages, the form of another version; or none."""
    node = Node(Mailboxes())
    connected(node).subscribe(**{"topic_filter": "t", "qos": 1, **options})
    assert taken(node, run) is None


def test_access_control_is_asked_about_each_topic() -> None:
    """What the client may not receive is left to the way that counts it."""
    access = Access(publish=False, subscribe=False)
    access.answers_last = True
    node = Node(Mailboxes(), access=access)
    connected(node).subscribe("+", 1)
    assert taken(node, run_of(b"1")) == 1
    access.refused.add(("receive", "t"))
    assert taken(node, run_of(b"1")._replace(row=9)) is None
