"""Section 3.2: the broker's first word."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import REASON_CODES, ConnAck, Connect, Publish
from penstock.broker.mqtt.reason_codes import CONNACK_RETURN_CODES, ReasonCode
from tests.conformance.clients import IN_EACH_VERSION, answer, assert_closed, keep, pair
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient


@pytest.mark.mqtt5("3.2.0-1", "3.2.0-2")
@pytest.mark.mqtt311("3.2.0-1")
@IN_EACH_VERSION
def test_connack_comes_first_and_once(version: int) -> None:
    """Before everything that waits for the session, and never again."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 2)
    publisher.publish("t", b"unacknowledged", qos=2)
    subscriber.lose()
    publisher.publish("t", b"queued", qos=1, packet_id=2)
    again = VirtualClient(broker, version)
    again.send(
        Connect(client_id="s", protocol_version=version, **keep(version)), Publish("t", b"own")
    )
    assert [type(packet) for packet in again.inbox] == [ConnAck, Publish, Publish, Publish]
    again.inbox.clear()
    again.send(Connect(client_id="s", protocol_version=version, **keep(version)))
    assert again.take_all(ConnAck) == []


@pytest.mark.mqtt5("3.2.2-1", "3.2.2-2", "3.2.2-3")
@pytest.mark.mqtt311("3.2.2-1", "3.2.2-2", "3.2.2-3")
@IN_EACH_VERSION
def test_connack_flags_hold_session_present_alone(version: int) -> None:
    """0 for a new session, 1 for one that was kept, and no other bit; with code 0."""
    broker = VirtualBroker()
    for clean, flags in ((False, 0), (False, 1), (True, 0)):
        client = VirtualClient(broker, version)
        options = keep(version) | {"clean_start": clean}
        connect = Connect(client_id="c", protocol_version=version, keep_alive=0, **options)
        came = answer(client, connect)
        assert came[0] == 0x20
        assert tuple(came[2:4]) == (flags, 0)
        client.lose()


@pytest.mark.mqtt5("3.2.2-6", "3.2.2-8")
@pytest.mark.mqtt311("3.2.2-4", "3.2.2-6")
@pytest.mark.parametrize("code", sorted(REASON_CODES[PacketType.CONNACK] - {0}))
@IN_EACH_VERSION
def test_a_refusal_has_a_code_of_its_table(version: int, code: int) -> None:
    """Whatever the reason, CONNACK says it in its version's words, or is not sent."""
    client = VirtualClient(VirtualBroker(), version)
    client.connection.client.set_version(version)
    client.connection.client.refuse_connect(ReasonCode(code))
    came = b"".join(client.connection.outgoing.data_to_send())
    if version == 5:
        assert came == bytes((0x20, 3, 0, code, 0))
    elif ReasonCode(code) in CONNACK_RETURN_CODES:
        assert came[:3] == b"\x20\x02\x00"
        assert came[3] in range(1, 6)
    else:
        assert came == b""


@pytest.mark.mqtt5("3.1.2-24", "3.2.2-19", "3.2.2-20")
@IN_EACH_VERSION
def test_a_refusal_fits_into_the_smallest_packet(version: int) -> None:
    """A CONNACK that refuses is no larger than it must be, whatever the client takes."""
    access = Access()
    access.is_open = False
    client = VirtualClient(VirtualBroker(access=access), version)
    connect = Connect(
        client_id="c",
        protocol_version=version,
        properties={"maximum_packet_size": 5} if version == 5 else {},
    )
    assert len(answer(client, connect)) == (5 if version == 5 else 4)


@pytest.mark.mqtt5("3.1.2-22", "3.2.2-22")
def test_a_server_keep_alive_is_what_the_client_is_held_to() -> None:
    """Where the broker says another value than the client's, that one counts."""
    broker = VirtualBroker(Limits(maximum_keep_alive=10))
    client = broker.connect("c", keep_alive=100)
    assert client.connack.properties["server_keep_alive"] == 10
    broker.advance(14.9)
    assert not client.is_lost
    broker.advance(0.2)
    assert_closed(client, ReasonCode.KEEP_ALIVE_TIMEOUT)


@pytest.mark.mqtt5("3.1.2-24", "3.2.0-1", "3.2.2-7", "3.14.0-1")
@pytest.mark.parametrize("maximum", range(1, 24))
def test_a_client_that_takes_no_connack_is_not_accepted(maximum: int) -> None:
    """Without a CONNACK nothing else may be sent: it is told in five bytes, where it takes them."""
    broker = VirtualBroker()
    kept = broker.connect("s", **keep(5))
    kept.subscribe("t")
    client = VirtualClient(broker)
    options = keep(5, maximum_packet_size=maximum)
    came = answer(client, Connect(client_id="s", keep_alive=0, **options))
    broker.connect("p").publish("t", b"")
    if came[2:4] == b"\x01\x00":
        assert 5 < len(came) <= maximum
        assert client.take(Publish).topic == "t"
    else:
        assert came == (b"" if maximum < 5 else b"\x20\x03\x00\x95\x00")
        assert client.is_lost
        assert client.inbox == []
        assert kept.take(Publish).topic == "t"
