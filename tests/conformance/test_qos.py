"""Sections 4.1 to 4.4: what a session remembers, the QoS flows, what is sent again."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.broker_state import Core
from tests.conformance.clients import IN_EACH_VERSION, PROTOCOL_ERROR, assert_closed, keep, pair
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient


def come_back(client: VirtualClient) -> VirtualClient:
    """Lose a client's connection and connect it again to its session."""
    client.lose()
    name = client.session.client_id
    return client.broker.connect(name, client.version, **keep(client.version))


# -- 4.1


@pytest.mark.mqtt5("4.1.0-1")
@pytest.mark.mqtt311("4.1.0-1", "4.1.0-2")
@IN_EACH_VERSION
def test_a_session_lasts_as_long_as_its_connection(version: int) -> None:
    """However long that is, whatever the client has asked for behind it."""
    broker = VirtualBroker()
    options = keep(version, 1)
    subscriber = broker.connect("s", version, **options)
    subscriber.subscribe("t", 1)
    broker.advance(1e7)
    broker.connect("p", version).publish("t", b"x", qos=1)
    assert subscriber.payloads() == [b"x"]


# -- 4.3.1


@pytest.mark.mqtt5("4.3.1-1", "3.3.1-2")
@pytest.mark.mqtt311("4.3.1-1", "3.3.1-2")
@IN_EACH_VERSION
def test_qos_0_goes_out_as_qos_0_and_never_again(version: int) -> None:
    """Without DUP; who was away has missed it."""
    publisher, subscriber = pair(VirtualBroker(), version, 2)
    publisher.publish("t", b"x")
    assert subscriber.take(Publish) == Publish("t", b"x")
    assert come_back(subscriber).inbox == []


# -- 4.3.2


@pytest.mark.mqtt5("4.3.2-1", "4.3.2-2", "4.3.2-3")
@pytest.mark.mqtt311("4.3.2-1")
@IN_EACH_VERSION
def test_qos_1_is_unacknowledged_until_its_puback(version: int) -> None:
    """Sent first without DUP, again after each reconnect, and no more once it is acknowledged."""
    publisher, subscriber = pair(VirtualBroker(), version, 1)
    publisher.publish("t", b"x", qos=1, packet_id=99)
    first = subscriber.take(Publish)
    assert (first.qos, first.dup) == (1, False)
    for _ in range(2):
        subscriber = come_back(subscriber)
        repeated = subscriber.take(Publish)
        assert (repeated.packet_id, repeated.dup) == (first.packet_id, True)
    subscriber.send(PubAck(first.packet_id))
    assert come_back(subscriber).inbox == []


@pytest.mark.mqtt5("4.3.2-4", "4.3.2-5")
@pytest.mark.mqtt311("4.3.2-2")
@pytest.mark.parametrize("dup", [False, True])
@IN_EACH_VERSION
def test_after_puback_a_packet_identifier_is_that_of_a_new_message(
    version: int, *, dup: bool
) -> None:
    """QoS 1 is at least once: what comes is delivered, DUP or not."""
    publisher, subscriber = pair(VirtualBroker(), version)
    publisher.publish("t", b"1", qos=1, packet_id=5)
    publisher.publish("t", b"2", qos=1, packet_id=5, dup=dup)
    assert publisher.inbox == [PubAck(5), PubAck(5)]
    assert subscriber.payloads() == [b"1", b"2"]


# -- 4.3.3, sender


@pytest.mark.mqtt5("4.3.3-1", "4.3.3-2", "4.3.3-3", "4.3.3-4", "4.3.3-5", "4.3.3-6", "4.4.0-1")
@pytest.mark.mqtt311("4.3.3-1", "4.4.0-1")
@IN_EACH_VERSION
def test_qos_2_goes_out_step_by_step(version: int) -> None:
    """PUBLISH until PUBREC, then PUBREL until PUBCOMP, repeated at reconnects and only then."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 2)
    publisher.publish("t", b"x", qos=2, packet_id=99)
    first = subscriber.take(Publish)
    assert (first.qos, first.dup) == (2, False)
    broker.advance(1e5)
    assert subscriber.inbox == []
    subscriber = come_back(subscriber)
    repeated = subscriber.take(Publish)
    assert (repeated.packet_id, repeated.dup) == (first.packet_id, True)
    subscriber.send(PubRec(first.packet_id))
    assert subscriber.inbox == [PubRel(first.packet_id)]
    subscriber.inbox.clear()
    broker.advance(1e5)
    assert subscriber.inbox == []
    subscriber = come_back(subscriber)
    assert subscriber.inbox == [PubRel(first.packet_id)]
    subscriber.send(PubComp(first.packet_id))
    assert come_back(subscriber).inbox == []


@pytest.mark.mqtt5("4.3.2-3", "4.3.3-3", "4.3.3-5", "4.13.1-1")
@pytest.mark.mqtt311("4.3.2-1", "4.3.3-1", "4.8.0-1")
@pytest.mark.parametrize(
    ("qos", "kinds"),
    [(1, [PubRec]), (1, [PubComp]), (2, [PubAck]), (2, [PubComp]), (2, [PubRec, PubAck])],
    ids=lambda value: value if isinstance(value, int) else "-".join(k.__name__ for k in value),
)
@pytest.mark.parametrize("one_by_one", [False, True], ids=["run", "single"])
@IN_EACH_VERSION
def test_an_acknowledgement_of_another_step_ends_the_connection_and_loses_nothing(
    version: int, qos: int, kinds: list[type[PubAck | PubRec | PubComp]], *, one_by_one: bool
) -> None:
    """The message is unacknowledged: it is repeated, and brought to its end then."""
    broker = VirtualBroker(core_class=Core if one_by_one else FastCore)
    publisher, subscriber = pair(broker, version, 2)
    publisher.publish("t", b"x", qos=qos, packet_id=99)
    packet_id = subscriber.take(Publish).packet_id
    for kind in kinds:
        subscriber.inbox.clear()
        subscriber.send(kind(packet_id))
    assert_closed(subscriber, PROTOCOL_ERROR)
    subscriber = broker.connect("s", version, **keep(version))
    if PubRec in kinds and qos == 2:
        assert subscriber.take(PubRel) == PubRel(packet_id)
        subscriber.send(PubComp(packet_id))
    else:
        repeated = subscriber.take(Publish)
        assert (repeated.packet_id, repeated.dup, repeated.payload) == (packet_id, True, b"x")
        if qos == 1:
            subscriber.send(PubAck(packet_id))
        else:
            subscriber.send(PubRec(packet_id), PubComp(packet_id))
    assert subscriber.session.settle_direct().delivered == 1
    subscriber.session.check_invariants()


@pytest.mark.mqtt5("4.3.3-7", "4.3.3-13")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_does_not_expire(qos: int) -> None:
    """Its time is over while it is unacknowledged: it is repeated and brought to its end."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, 5, 2)
    publisher.publish("t", b"x", qos=qos, properties={"message_expiry_interval": 5})
    packet_id = subscriber.take(Publish).packet_id
    broker.advance(100)
    subscriber = come_back(subscriber)
    assert subscriber.take(Publish).packet_id == packet_id
    if qos == 2:
        subscriber.send(PubRec(packet_id))
        assert subscriber.inbox == [PubRel(packet_id)]
        broker.advance(100)
    subscriber.send(PubAck(packet_id) if qos == 1 else PubComp(packet_id))
    assert subscriber.session.settle_direct().delivered == 1
    subscriber.session.check_invariants()


# -- 4.3.3, receiver


@pytest.mark.mqtt5("4.3.3-9")
def test_after_a_refusal_a_packet_identifier_is_that_of_a_new_message() -> None:
    """A PUBREC of 0x80 or above ends the exchange."""
    access = Access()
    access.refused.add(("publish", "no"))
    broker = VirtualBroker(access=access)
    publisher, subscriber = pair(broker, 5)
    publisher.publish("no", b"1", qos=2, packet_id=7)
    assert publisher.take(PubRec).reason_code == ReasonCode.NOT_AUTHORIZED
    publisher.publish("t", b"2", qos=2, packet_id=7)
    assert publisher.take(PubRec) == PubRec(7)
    assert subscriber.payloads() == [b"2"]


@pytest.mark.mqtt5("4.3.3-13")
def test_qos_2_that_expires_before_its_pubrel_is_brought_to_its_end() -> None:
    """A publisher's exchange does not depend on what became of the message."""
    broker = VirtualBroker()
    publisher, _ = pair(broker, 5)
    publisher.publish("t", b"x", qos=2, packet_id=3, properties={"message_expiry_interval": 1})
    broker.advance(10)
    publisher.publish(
        "t", b"x", qos=2, packet_id=3, dup=True, properties={"message_expiry_interval": 1}
    )
    publisher.send(PubRel(3))
    assert publisher.inbox == [PubRec(3), PubRec(3), PubComp(3)]


# -- 4.4


@pytest.mark.mqtt5("4.4.0-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, PubAck), (2, PubRec)])
def test_a_refusal_acknowledges(qos: int, kind: type[PubAck | PubRec]) -> None:
    """What the client refuses is not sent again, and its place in the quota is free."""
    broker = VirtualBroker(Limits(inflight_messages=1))
    publisher, subscriber = pair(broker, 5, 2)
    publisher.publish("t", b"1", qos=qos)
    publisher.publish("t", b"2", qos=1, packet_id=2)
    first = subscriber.take(Publish)
    assert first.payload == b"1"
    subscriber.send(kind(first.packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert subscriber.acknowledge() == [b"2"]
    assert come_back(subscriber).inbox == []


@pytest.mark.mqtt5("4.4.0-1")
@pytest.mark.mqtt311("4.4.0-1")
@IN_EACH_VERSION
def test_nothing_is_sent_again_into_a_new_session(version: int) -> None:
    """Only a session that goes on has something to repeat."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 2)
    publisher.publish("t", b"x", qos=2)
    subscriber.send(PubRec(subscriber.take(Publish).packet_id))
    subscriber.lose()
    assert broker.connect("s", version, clean_start=True).inbox == []
