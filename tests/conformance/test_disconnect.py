"""Sections 3.12 to 3.14: signs of life, and the end of a connection."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.conformance.clients import IN_EACH_VERSION, answer, assert_closed, frame, keep, pair
from tests.helpers.access import Access, finish
from tests.helpers.virtual import VirtualBroker, VirtualClient

BREACHES = {
    "malformed": (frame(0x36, "0001 74 0001 00"), ReasonCode.MALFORMED_PACKET),
    "not allowed": (frame(0x82, "0001 00"), ReasonCode.PROTOCOL_ERROR),
    "too large": (frame(0x30, "0001 74 00" + "00" * 300), ReasonCode.PACKET_TOO_LARGE),
    "a server's": (frame(0xD0, ""), ReasonCode.PROTOCOL_ERROR),
    "undefined reason": (frame(0xE0, "01"), ReasonCode.PROTOCOL_ERROR),
}


def limited() -> VirtualBroker:
    """Return a broker that takes packets of 300 bytes."""
    return VirtualBroker(Limits(maximum_packet_size=300))


@pytest.mark.mqtt5("3.12.4-1")
@pytest.mark.mqtt311("3.12.4-1")
@IN_EACH_VERSION
def test_each_pingreq_is_answered(version: int) -> None:
    """One for one."""
    client = VirtualBroker().connect("c", version)
    client.send(PingReq(), PingReq(), PingReq())
    assert client.inbox == [PingResp()] * 3


@pytest.mark.mqtt5(
    "3.14.2-1", "3.14.2-2", "3.14.2-3", "3.14.2-4", "3.14.4-1", "3.14.4-2", "4.13.1-1", "4.13.2-1"
)
@pytest.mark.parametrize("breach", BREACHES)
def test_disconnect_says_why_and_is_the_last_packet(breach: str) -> None:
    """A code of its table, no Session Expiry Interval, nothing that takes room; then the end."""
    data, code = BREACHES[breach]
    client = limited().connect("c", **keep(5, maximum_packet_size=20))
    came = answer(client, PingReq(), data, PingReq(), Publish("t"))
    assert came.startswith(b"\xd0\x00\xe0")
    assert len(came) <= 2 + 4
    assert came[4] == code
    assert client.is_lost
    assert answer(client, PingReq()) == b""


@pytest.mark.mqtt311("4.8.0-1")
@pytest.mark.parametrize("breach", BREACHES)
def test_mqtt_3_1_1_closes_without_a_word(breach: str) -> None:
    """Servers have no DISCONNECT there."""
    client = limited().connect("c", 4)
    assert answer(client, BREACHES[breach][0], PingReq()) == b""
    assert client.is_lost


@pytest.mark.mqtt5("3.14.0-1")
@pytest.mark.parametrize("breach", BREACHES)
def test_no_disconnect_comes_before_connack(breach: str) -> None:
    """Neither instead of a CONNECT nor after a refused one."""
    broker = limited()
    client = VirtualClient(broker)
    client.send_bytes(BREACHES[breach][0])
    assert client.is_lost
    assert client.take_all(Disconnect) == []
    client = VirtualClient(broker)
    client.send(Connect(properties={"authentication_method": "none of these"}))
    client.send_bytes(BREACHES[breach][0])
    assert client.is_lost
    assert client.take_all(Disconnect) == []


@pytest.mark.mqtt5("3.14.0-1")
def test_no_disconnect_comes_to_who_has_not_connected() -> None:
    """Neither at the time-out of CONNECT, nor when the broker stops, nor while it judges."""
    access = Access()
    access.waits = True
    broker = VirtualBroker(access=access)
    silent, stopped, judged = (VirtualClient(broker) for _ in range(3))
    judged.send(Connect(client_id="c"))
    for client in (stopped, judged):
        client.connection.client.shut_down(broker.now)
    finish(judged)
    broker.advance(1000)
    for client in (silent, stopped, judged):
        assert client.is_lost
        assert client.inbox == []


@pytest.mark.mqtt5("3.14.4-1")
@pytest.mark.mqtt311("3.14.4-3")
@IN_EACH_VERSION
def test_nothing_is_sent_to_a_client_that_has_said_disconnect(version: int) -> None:
    """Neither an answer nor a message, though its session goes on."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 1)
    subscriber.send(
        Disconnect(), PingReq(), Subscribe(1, (SubscriptionRequest("u"),)), Publish("t", b"own")
    )
    publisher.publish("t", b"x", qos=1)
    assert subscriber.inbox == []
    assert subscriber.is_lost
    again = broker.connect("s", version, **keep(version))
    assert again.payloads() == [b"x"]


@pytest.mark.mqtt5("3.14.2-1")
def test_each_end_has_its_reason() -> None:
    """Taken over, silent, administrative: the reader refuses a code that is not of the table."""
    broker = VirtualBroker()
    taken, silent = broker.connect("a"), broker.connect("b", keep_alive=10)
    broker.connect("a")
    broker.advance(16)
    assert_closed(taken, ReasonCode.SESSION_TAKEN_OVER)
    assert_closed(silent, ReasonCode.KEEP_ALIVE_TIMEOUT)
