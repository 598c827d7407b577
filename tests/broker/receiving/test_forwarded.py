"""Messages that another broker has routed: sessions get them, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.events import Callbacks
from penstock.broker.extensions import SHARE_PROPERTY
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.sessions.broker_state import Core
from tests.helpers.access import Access
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker, VirtualClient

BOTH = pytest.mark.parametrize("core_class", [Core, FastCore])


class Retaining(HoldingSink):
    """A sink that is offered all that is to be retained."""

    takes_retained = True


def forwarder(broker: VirtualBroker, version: int = 5, **options: Any) -> VirtualClient:
    """Connect a client that forwards."""
    return broker.connect("$uplink/$cluster/b", version, is_forwarded=True, **options)


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
def test_sessions_get_what_was_forwarded_and_nobody_else(core_class: type[Core], qos: int) -> None:
    """No sink, no shared subscription; nothing is retained, and no callback counts it again."""
    told: list[Any] = []
    callbacks = Callbacks(message_received=(told.append,), message_routed=(told.append,))
    sink = Retaining("#")
    broker = VirtualBroker(core_class=core_class, sinks=[sink])
    subscriber, member = broker.connect("s"), broker.connect("m")
    subscriber.subscribe("a/#", 1, retain_as_published=True)
    member.subscribe("$share/g/a/b", 1)
    broker.core.tell(callbacks)
    client = forwarder(broker)
    for retain in (False, True):
        client.publish("a/b", b"x", qos=qos, retain=retain)
    broker.core.tell(Callbacks())
    for retain in (False, True):
        client.publish("a/b", b"x", qos=qos, retain=retain)
    assert [packet.retain for packet in subscriber.take_all(Publish)] == [False, True] * 2
    assert not member.take_all(Publish)
    assert not sink.messages
    assert not broker.core.retained.by_topic
    assert not told
    assert len(client.take_all(PubAck)) == 4 * qos


@BOTH
def test_what_was_forwarded_needs_no_right_to_publish(core_class: type[Core]) -> None:
    """The broker that it came to has asked; who may receive it is asked here."""
    access = Access()
    access.answers_last = True
    broker = VirtualBroker(core_class=core_class, access=access)
    one, other = broker.connect("one"), broker.connect("other")
    for subscriber in (one, other):
        subscriber.subscribe("t")
    access.refused = {("receive", "t", "other")}
    access.rules_changed()
    client = forwarder(broker)
    client.publish("t", b"x")
    assert (one.payloads(), other.payloads()) == ([b"x"], [])


def to_share(client: VirtualClient, share: str, payload: bytes, qos: int = 1) -> int | None:
    """Publish for a member of a shared subscription, and return the reason code if there is one."""
    properties = {"user_property": [("a", "b"), (SHARE_PROPERTY, share)]}
    client.publish("t/1", payload, qos=qos, properties=properties)
    acknowledgements = client.take_all(PubAck)
    return acknowledgements[0].reason_code if acknowledgements else None


@BOTH
def test_a_message_for_a_share_goes_to_one_member_of_it_alone(core_class: type[Core]) -> None:
    """Neither to subscribers of the topic nor to members of other shares."""
    broker = VirtualBroker(core_class=core_class)
    clients = {name: broker.connect(name) for name in ("one", "two", "other", "plain")}
    clients["one"].subscribe("$share/g/t/#", 1)
    clients["two"].subscribe("$share/g/t/#", 1)
    clients["other"].subscribe("$share/h/t/#", 1)
    clients["plain"].subscribe("t/#", 1)
    client = forwarder(broker, names_shares=True)
    for number in range(4):
        assert to_share(client, "$share/g/t/#", b"%d" % number) == 0
    assert to_share(client, "$share/g/t/#", b"4", qos=0) is None
    got = {name: each.take_all(Publish) for name, each in clients.items()}
    assert [len(got[name]) for name in ("one", "two", "other", "plain")] == [3, 2, 0, 0]
    assert got["one"][0].properties == {"user_property": [("a", "b")]}


@BOTH
def test_a_share_without_a_member_that_can_take_it_refuses(core_class: type[Core]) -> None:
    """So that whoever has sent it can give it to a member elsewhere; also if it is patient."""
    access = Access()
    broker = VirtualBroker(core_class=core_class, access=access)
    client = forwarder(broker, names_shares=True)
    client.connection.client.is_patient = True
    assert to_share(client, "$share/g/t/#", b"nobody") == 0x97
    member = broker.connect("m", properties={"session_expiry_interval": 60})
    member.subscribe("$share/g/t/#", 0)
    access.refused = {("receive", "t/1", "m")}
    assert to_share(client, "$share/g/t/#", b"may not") == 0x97
    access.refused = set()
    assert to_share(client, "$share/g/t/#", b"can") == 0
    assert member.payloads() == [b"can"]
    member.lose()
    assert to_share(client, "$share/g/t/#", b"away at QoS 0") == 0x97
    assert broker.core.counters.publish_refused == {"no_member": 3}


def test_a_message_that_names_no_share_is_refused() -> None:
    """A User Property of its publisher must not be taken for the name."""
    broker = VirtualBroker()
    client = forwarder(broker, names_shares=True)
    client.connection.client.is_patient = True
    client.publish(
        "t", b"x", qos=1, properties={"user_property": [(SHARE_PROPERTY, "s"), ("a", "")]}
    )
    assert client.take_all(PubAck)[0].reason_code >= 0x80
    publisher = broker.connect("p")
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    publisher.publish("t", b"y", properties={"user_property": [(SHARE_PROPERTY, "s")]})
    assert subscriber.payloads() == [b"y"]
