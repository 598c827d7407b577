"""PUBLISH while access control takes its time, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Access, Later, finish
from tests.helpers.virtual import VirtualBroker

KEEP: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


def waiting() -> Access:
    """Return access control that lets everybody publish, after a wait."""
    return Access(subscribe=False, receive=False)


@pytest.mark.parametrize("old_first", [True, False])
def test_qos2_is_delivered_once_though_the_publisher_came_back_while_it_waited(
    *, old_first: bool
) -> None:
    """[MQTT-4.3.3-10]: what waits for access control on the old connection has come, too."""
    access = waiting()
    broker = VirtualBroker(access=access)
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 2)
    old = broker.connect("p", **KEEP)
    access.waits = True
    old.publish("t", b"x", qos=2, packet_id=7)
    access.waits = False
    new = broker.connect("p", **KEEP)
    if not old_first:
        new.publish("t", b"x", qos=2, packet_id=7, dup=True)
    finish(old)
    if old_first:
        new.publish("t", b"x", qos=2, packet_id=7, dup=True)
    assert subscriber.payloads() == [b"x"]
    assert new.take(PubRec).packet_id == 7
    new.send(PubRel(7))
    assert new.take(PubComp).reason_code == 0


def test_a_session_that_ends_while_others_are_asked_about_gets_nothing() -> None:
    """The answer comes too late for it, and nothing is booked on a session that is gone."""
    access = Access(publish=False, subscribe=False)
    broker = VirtualBroker(access=access)
    gone, there = broker.connect("gone"), broker.connect("there")
    for client in (gone, there):
        client.subscribe("t", 1)
    publisher = broker.connect("p")
    session = gone.session
    access.waits = True
    publisher.publish("t", b"x", qos=1)
    gone.lose()
    finish(publisher)
    assert there.acknowledge() == [b"x"]
    assert session.ledger.matched == 0


def test_a_publish_whose_check_is_cancelled_is_refused_and_not_lost() -> None:
    """The client may repeat it; what it sends afterwards is answered."""
    access = waiting()
    broker = VirtualBroker(access=access)
    publisher = broker.connect("p", **KEEP)
    access.waits = True
    publisher.publish("t", b"x", qos=2, packet_id=7)
    suspended = publisher.connection.client.suspended
    assert suspended is not None
    with pytest.raises(KeyboardInterrupt):
        suspended.throw(KeyboardInterrupt())
    publisher.connection.resume(broker.now)
    broker.settle()
    assert publisher.take(PubRec).reason_code == ReasonCode.UNSPECIFIED_ERROR
    assert publisher.session.incoming == {}


def test_a_client_whose_events_are_too_many_waits_for_the_callbacks() -> None:
    """It is not read from until they have caught up; nothing it sent is lost."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    publisher = broker.connect("p")

    async def wait() -> None:
        await Later(None)

    counters = broker.core.counters
    broker.core.catch_up = lambda: None if counters.publish_received < 3 else wait()
    publisher.send(*[Publish("t", b"%d" % number, qos=1, packet_id=1) for number in range(5)])
    assert not publisher.is_reading
    assert subscriber.payloads() == [b"0", b"1", b"2"]
    other = broker.connect("other")
    assert other.connection.client.suspended is not None
    finish(other)
    finish(publisher)
    assert publisher.is_reading
    assert subscriber.payloads() == [b"3", b"4"]
    assert len(publisher.take_all(PubAck)) == 5
