"""Messages that another broker has routed: sessions get them, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.events import Callbacks
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


SHARE = "$share/g/t/#"


def codes(client: VirtualClient, *payloads: bytes, qos: int = 1) -> list[int]:
    """Publish messages together, and return the reason codes of their acknowledgements."""
    packets = [
        Publish("t/1", payload, qos=qos, packet_id=n if qos else 0)
        for n, payload in enumerate(payloads, 1)
    ]
    client.send(*packets)
    return [packet.reason_code for packet in client.take_all(PubAck)]


@BOTH
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [4, 5])
def test_messages_for_a_share_go_to_one_member_of_it_alone(
    core_class: type[Core], version: int, qos: int
) -> None:
    """Neither to subscribers of the topic nor to members of other shares."""
    broker = VirtualBroker(core_class=core_class)
    names = ("one", "two", "other", "plain")
    clients = {name: broker.connect(name, version) for name in names}
    clients["other"].subscribe("$share/h/t/#", 1)
    clients["plain"].subscribe("t/#", 1)
    clients["one"].subscribe(SHARE, 1)
    client = forwarder(broker, version, share=SHARE)
    assert codes(client, b"0", qos=qos) == [0] * qos
    clients["two"].subscribe(SHARE, 1)
    payloads = [b"%d" % number for number in range(1, 10)]
    assert codes(client, *payloads, qos=qos) == [0] * 9 * qos
    got = {name: each.payloads() for name, each in clients.items()}
    assert sorted(got["one"] + got["two"]) == [b"0", *payloads]
    assert len(got["two"]) in (4, 5)
    assert not got["other"]
    assert not got["plain"]


@BOTH
def test_a_share_without_a_member_that_can_take_it_refuses(core_class: type[Core]) -> None:
    """So that whoever has sent it can give it to a member elsewhere; also if it is patient."""
    access = Access()
    broker = VirtualBroker(core_class=core_class, access=access)
    client = forwarder(broker, share=SHARE)
    client.connection.client.is_patient = True
    assert codes(client, b"nobody") == [0x97]
    member = broker.connect("m", properties={"session_expiry_interval": 60})
    member.subscribe(SHARE, 0)
    access.refused = {("receive", "t/1", "m")}
    assert codes(client, b"may not") == [0x97]
    access.refused = set()
    assert codes(client, b"can", b"too") == [0, 0]
    assert member.payloads() == [b"can", b"too"]
    member.lose()
    assert codes(client, b"away at QoS 0") == [0x97]
    assert broker.core.counters.publish_refused == {"no_member": 3}


@BOTH
def test_a_client_of_mqtt_3_1_1_is_closed_behind_what_a_share_has_taken(
    core_class: type[Core],
) -> None:
    """No acknowledgement of it can say that a message is refused."""
    broker = VirtualBroker(core_class=core_class)
    client = forwarder(broker, 4, share=SHARE)
    client.connection.client.is_patient = True
    member = broker.connect("m", 4)
    member.subscribe(SHARE, 1)
    assert codes(client, b"1", b"2") == [0, 0]
    member.lose()
    assert codes(client, b"3", b"4") == []
    assert client.is_lost


@pytest.mark.parametrize("version", [4, 5])
def test_the_session_of_a_client_that_forwards_ends_with_its_connection(version: int) -> None:
    """Nothing of it is stored: there may be one for each shared subscription of each broker."""
    broker = VirtualBroker()
    client = forwarder(broker, version, clean_start=True)
    client.lose()
    assert broker.core.sessions.get("$uplink/$cluster/b") is None
