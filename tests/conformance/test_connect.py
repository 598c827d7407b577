"""Section 3.1: what makes a CONNECT, and what becomes of a client."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.conformance.clients import (
    IN_EACH_VERSION,
    MALFORMED,
    PROTOCOL_ERROR,
    assert_closed,
    assert_refused,
    connect_bytes,
    frame,
    keep,
    pair,
)
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient

WILL_FLAG, USERNAME_FLAG, PASSWORD_FLAG = 0x04, 0x80, 0x40


@pytest.mark.mqtt5("3.1.0-2", "3.14.2-1")
@pytest.mark.mqtt311("3.1.0-2")
@pytest.mark.parametrize(
    "second",
    [
        connect_bytes(4, 0x02, "0001 63"),
        connect_bytes(5, 0x02, "0001 63"),
        connect_bytes(6, 0x02, "0001 63"),
        connect_bytes(5, 0x03, "0001 63"),
        connect_bytes(4, 0x00, "0000"),
        frame(0x10, "00"),
    ],
    ids=["3.1.1", "5.0", "another version", "reserved flag", "no identifier", "cut off"],
)
@IN_EACH_VERSION
def test_a_second_connect_ends_the_connection(version: int, second: bytes) -> None:
    """A client says who it is once; whatever else is wrong with it, that is the error."""
    client = VirtualBroker().connect("c", version)
    client.send_bytes(second)
    assert_closed(client, PROTOCOL_ERROR)


@pytest.mark.mqtt5("3.1.2-1")
@pytest.mark.mqtt311("3.1.2-1")
@pytest.mark.parametrize("name", ["0004 4d515458", "0004 6d717474", "0003 4d5154", "0000"])
@IN_EACH_VERSION
def test_another_protocol_name_is_refused(version: int, name: str) -> None:
    """Whatever is not MQTT is closed, with no word but "unsupported protocol version"."""
    broker = VirtualBroker()
    client = VirtualClient(broker, 4)
    client.send_bytes(connect_bytes(version, 0x02, "0001 61", name=name))
    assert client.is_lost
    refusals = client.take_all(ConnAck)
    assert [r.reason_code for r in refusals] in ([], [ReasonCode.UNSUPPORTED_PROTOCOL_VERSION])
    assert client.inbox == []
    assert len(broker.core.sessions) == 0


@pytest.mark.mqtt5("3.1.2-2", "3.2.2-7", "3.2.2-8")
@pytest.mark.mqtt311("3.1.2-2", "3.2.2-5")
@pytest.mark.parametrize(("level", "version"), [(0, 4), (2, 4), (6, 5), (255, 5)])
def test_another_version_is_refused(level: int, version: int) -> None:
    """Return code 1 to old clients, reason code 0x84 to new ones; then the end."""
    client = VirtualClient(VirtualBroker(), version)
    client.send_bytes(connect_bytes(level, 0x02, "0001 61"))
    assert client.take(ConnAck).reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert client.is_lost


@pytest.mark.mqtt5("3.1.4-1", "4.13.1-1")
@pytest.mark.mqtt311("3.1.4-1", "3.2.2-6")
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        pytest.param(
            0x03,
            "0001 61",
            marks=[pytest.mark.mqtt5("3.1.2-3"), pytest.mark.mqtt311("3.1.2-3")],
            id="reserved flag",
        ),
        pytest.param(
            0x02 | WILL_FLAG,
            "0001 61",
            marks=[pytest.mark.mqtt5("3.1.2-9"), pytest.mark.mqtt311("3.1.2-9")],
            id="will flag, no will",
        ),
        pytest.param(
            0x02 | 0x08,
            "0001 61",
            marks=[pytest.mark.mqtt5("3.1.2-11"), pytest.mark.mqtt311("3.1.2-11", "3.1.2-13")],
            id="will QoS 1, no will flag",
        ),
        pytest.param(
            0x02 | 0x20,
            "0001 61",
            marks=[pytest.mark.mqtt5("3.1.2-13"), pytest.mark.mqtt311("3.1.2-11", "3.1.2-15")],
            id="will retain, no will flag",
        ),
        pytest.param(
            0x02,
            "0001 61 0001 77 0001 78",
            marks=pytest.mark.mqtt311("3.1.2-11"),
            id="will, no will flag",
        ),
        pytest.param(
            0x02 | WILL_FLAG | 0x18,
            "0001 61 {} 0001 77 0001 78",
            marks=[pytest.mark.mqtt5("3.1.2-12"), pytest.mark.mqtt311("3.1.2-14")],
            id="will QoS 3",
        ),
        pytest.param(
            0x02,
            "0001 61 0001 75",
            marks=[pytest.mark.mqtt5("3.1.2-16"), pytest.mark.mqtt311("3.1.2-18")],
            id="user name, no flag",
        ),
        pytest.param(
            0x02 | USERNAME_FLAG,
            "0001 61",
            marks=[pytest.mark.mqtt5("3.1.2-17"), pytest.mark.mqtt311("3.1.2-19")],
            id="user name flag, no name",
        ),
        pytest.param(
            0x02 | USERNAME_FLAG,
            "0001 61 0001 75 0001 70",
            marks=[pytest.mark.mqtt5("3.1.2-18"), pytest.mark.mqtt311("3.1.2-20")],
            id="password, no flag",
        ),
        pytest.param(
            0x02 | USERNAME_FLAG | PASSWORD_FLAG,
            "0001 61 0001 75",
            marks=[pytest.mark.mqtt5("3.1.2-19"), pytest.mark.mqtt311("3.1.2-21")],
            id="password flag, no password",
        ),
        pytest.param(
            0x02,
            "",
            marks=[pytest.mark.mqtt5("3.1.3-3"), pytest.mark.mqtt311("3.1.3-3")],
            id="no client identifier",
        ),
    ],
)
@IN_EACH_VERSION
def test_flags_and_payload_of_connect_must_agree(version: int, flags: int, payload: str) -> None:
    """A CONNECT that says one thing and has another is malformed."""
    client = VirtualClient(VirtualBroker(), version)
    client.send_bytes(connect_bytes(version, flags, payload.format("00" if version == 5 else "")))
    assert_refused(client, MALFORMED)


@pytest.mark.mqtt311("3.1.2-22", "3.1.4-1")
def test_a_password_alone_is_refused_in_mqtt_3_1_1() -> None:
    """Without a user name there is no password."""
    client = VirtualClient(VirtualBroker(), 4)
    client.send_bytes(connect_bytes(4, 0x02 | PASSWORD_FLAG, "0001 61 0001 70"))
    assert_refused(client, PROTOCOL_ERROR)


@pytest.mark.mqtt5("3.1.3-1", "3.1.3-3")
@pytest.mark.mqtt311("3.1.3-1", "3.1.3-3")
@IN_EACH_VERSION
def test_the_fields_of_connect_have_their_order(version: int) -> None:
    """Identifier, will, user name, password: each is taken for what it is."""
    access = Access()
    client = VirtualClient(VirtualBroker(access=access), version)
    properties = "00" if version == 5 else ""
    payload = f"0001 61 {properties} 0001 62 0001 63 0001 64 0001 65"
    client.send_bytes(connect_bytes(version, 0xC6, payload))
    assert client.take(ConnAck).reason_code == 0
    (attempt,) = access.attempts
    assert attempt.will is not None
    assert (attempt.client_id, attempt.will.topic, attempt.will.payload) == ("a", "b", b"c")
    assert (attempt.username, attempt.password) == ("d", b"e")


# -- sessions


@pytest.mark.mqtt5("3.1.2-4", "3.1.4-4")
@pytest.mark.mqtt311("3.1.2-6", "3.1.4-3")
@IN_EACH_VERSION
def test_a_clean_start_begins_a_new_session(version: int) -> None:
    """Neither subscriptions nor messages of the old session are there any more."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 1)
    publisher.publish("t", b"sent", qos=1)
    subscriber.lose()
    publisher.publish("t", b"queued", qos=1)
    again = broker.connect("s", version, clean_start=True)
    assert not again.connack.session_present
    publisher.publish("t", b"new", qos=1)
    assert again.inbox == []


@pytest.mark.mqtt311("3.1.2-6")
def test_a_clean_session_is_not_used_again() -> None:
    """It ends with its connection, whatever the next CONNECT asks for."""
    broker = VirtualBroker()
    client = broker.connect("s", 4, clean_start=True)
    client.subscribe("t", 1)
    client.lose()
    broker.connect("p", 4).publish("t", b"x", qos=1)
    again = broker.connect("s", 4, clean_start=False)
    assert not again.connack.session_present
    assert again.inbox == []


@pytest.mark.mqtt5("3.1.2-5", "3.1.2-23", "3.1.3-2", "3.1.4-4")
@pytest.mark.mqtt311("3.1.2-4", "3.1.2-5", "3.1.3-2", "3.1.4-3", "4.1.0-1")
@IN_EACH_VERSION
def test_a_session_goes_on_where_it_was(version: int) -> None:
    """Found by its client identifier: subscriptions, and what came for them meanwhile."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, version, 2)
    subscriber.lose()
    broker.advance(500)
    for qos in (1, 2):
        publisher.publish("t", b"%d" % qos, qos=qos, packet_id=qos)
    other = broker.connect("S", version, **keep(version))
    assert not other.connack.session_present
    again = broker.connect("s", version, **keep(version))
    assert again.connack.session_present
    assert again.payloads() == [b"1", b"2"]
    publisher.publish("t", b"3")
    assert again.payloads() == [b"3"]
    assert other.inbox == []


@pytest.mark.mqtt5("3.1.2-6")
@pytest.mark.mqtt311("3.1.2-4")
@IN_EACH_VERSION
def test_a_session_is_made_where_there_is_none(version: int) -> None:
    """A client that wants to go on and is not known begins anew."""
    broker = VirtualBroker()
    client = broker.connect("c", version, **keep(version))
    assert not client.connack.session_present
    client.subscribe("t")
    client.publish("t", b"x")
    assert client.payloads() == [b"x"]


@pytest.mark.mqtt311("3.1.2-7")
@IN_EACH_VERSION
def test_retained_messages_outlive_their_publishers_session(version: int) -> None:
    """They belong to the topic."""
    broker = VirtualBroker()
    publisher = broker.connect("p", version)
    publisher.publish("t", b"kept", retain=True)
    publisher.send(Disconnect())
    assert broker.core.sessions.get("p") is None
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t")
    assert subscriber.payloads() == [b"kept"]


@pytest.mark.mqtt5("3.1.4-3")
@pytest.mark.mqtt311("3.1.4-2")
@IN_EACH_VERSION
def test_a_client_is_disconnected_when_it_connects_again(version: int) -> None:
    """The old connection ends, and an MQTT 5 client is told why."""
    broker = VirtualBroker()
    old = broker.connect("c", version)
    new = broker.connect("c", version)
    assert_closed(old, ReasonCode.SESSION_TAKEN_OVER)
    new.send(PingReq())
    assert new.inbox == [PingResp()]


# -- client identifiers


@pytest.mark.mqtt5("3.1.3-5")
@pytest.mark.mqtt311("3.1.3-5")
@pytest.mark.parametrize(
    "client_id",
    ["0", "z", "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ"],
)
@IN_EACH_VERSION
def test_plain_client_identifiers_are_accepted(version: int, client_id: str) -> None:
    """Letters and digits, one to 23 of them."""
    client = VirtualBroker().connect(client_id, version)
    assert client.connack.reason_code == 0
    assert client.session.client_id == client_id


# -- wills


@pytest.mark.mqtt5("3.1.2-7", "3.1.2-8", "3.1.2-10", "3.1.2-14")
@pytest.mark.mqtt311("3.1.2-8", "3.1.2-10", "3.1.2-16")
@pytest.mark.parametrize("qos", [0, 1, 2])
@IN_EACH_VERSION
def test_a_will_is_published_once_and_not_retained_unless_it_says_so(
    version: int, qos: int
) -> None:
    """The loss of a connection is told, at the will's QoS, and is over then."""
    broker = VirtualBroker()
    _, watcher = pair(broker, version, 2)
    client = broker.connect("c", version, will=Will("w", b"gone", qos=qos), **keep(version))
    assert watcher.inbox == []
    client.lose()
    packet = watcher.take(Publish)
    assert (packet.topic, packet.payload, packet.qos) == ("w", b"gone", qos)
    assert len(broker.core.retained) == 0
    broker.connect("c", version, **keep(version)).lose()
    assert watcher.inbox == []


@pytest.mark.mqtt5("3.1.2-15")
@pytest.mark.mqtt311("3.1.2-17")
@IN_EACH_VERSION
def test_a_retained_will_is_there_for_later_subscribers(version: int) -> None:
    """Will Retain makes the will the retained message of its topic."""
    broker = VirtualBroker()
    broker.connect("c", version, will=Will("w", b"gone", retain=True)).lose()
    late = broker.connect("late", version)
    late.subscribe("w")
    assert late.payloads() == [b"gone"]


@pytest.mark.mqtt5("3.1.2-8", "3.1.2-10", "3.14.4-3")
@pytest.mark.mqtt311("3.1.2-8", "3.1.2-10", "3.14.4-3")
@IN_EACH_VERSION
def test_a_client_that_says_goodbye_has_no_will(version: int) -> None:
    """DISCONNECT makes it void, for the connections to come as well."""
    broker = VirtualBroker()
    _, watcher = pair(broker, version)
    client = broker.connect("c", version, will=Will("w", b"gone"), **keep(version))
    client.send(Disconnect())
    broker.connect("c", version, **keep(version)).lose()
    broker.advance(10_000)
    assert watcher.inbox == []


@pytest.mark.mqtt311("3.1.2-12")
@IN_EACH_VERSION
def test_a_client_without_a_will_leaves_in_silence(version: int) -> None:
    """No will flag, no message; not even that of an earlier connection."""
    broker = VirtualBroker()
    _, watcher = pair(broker, version)
    broker.connect("c", version, will=Will("w", b"old")).send(Disconnect())
    broker.connect("c", version).lose()
    assert watcher.inbox == []


# -- keep-alive and what a client asks for


@pytest.mark.mqtt5("3.1.2-22", "3.2.2-22")
@pytest.mark.mqtt311("3.1.2-24")
@IN_EACH_VERSION
def test_the_clients_own_keep_alive_holds(version: int) -> None:
    """After one and a half of it the client is gone as if its network had failed: by its will."""
    broker = VirtualBroker()
    _, watcher = pair(broker, version)
    client = broker.connect("c", version, keep_alive=8, will=Will("w", b"gone"))
    assert "server_keep_alive" not in client.connack.properties
    broker.advance(11.9)
    assert not client.is_lost
    broker.advance(0.2)
    assert_closed(client, ReasonCode.KEEP_ALIVE_TIMEOUT)
    assert watcher.payloads() == [b"gone"]


@pytest.mark.mqtt5("3.1.2-29")
def test_who_wants_no_problem_information_gets_codes_only() -> None:
    """With Request Problem Information 0 every answer but CONNACK and DISCONNECT is bare."""
    access = Access()
    broker = VirtualBroker(access=access)
    client = broker.connect("c", properties={"request_problem_information": 0})
    access.refused = {("subscribe", "no"), ("publish", "no")}
    client.send(
        Subscribe(1, (SubscriptionRequest("no"),)),
        Unsubscribe(2, ("no",)),
        Publish("no", qos=1, packet_id=3),
        Publish("no", qos=2, packet_id=4),
    )
    answers: list[Any] = client.inbox
    assert [type(packet) for packet in answers] == [SubAck, UnsubAck, PubAck, PubRec]
    assert [packet.properties for packet in answers] == [{}] * 4
    assert {packet.reason_code for packet in answers[2:]} == {ReasonCode.NOT_AUTHORIZED}


# -- who is let in


@pytest.mark.mqtt5("3.1.4-2", "3.1.4-6", "3.2.2-6", "3.2.2-7", "4.13.2-1")
@pytest.mark.mqtt311("3.1.4-5", "3.2.2-4", "3.2.2-5")
@IN_EACH_VERSION
def test_nothing_of_a_refused_client_is_processed(version: int) -> None:
    """It gets the one answer, without Session Present though it has a session, and the end."""
    access = Access()
    broker = VirtualBroker(access=access)
    publisher, subscriber = pair(broker, version, 1)
    publisher.send(Disconnect())
    subscriber.lose()
    access.is_open = False
    refused = VirtualClient(broker, version)
    refused.send(
        Connect(client_id="s", protocol_version=version, **keep(version)),
        Publish("t", b"x", retain=True),
        PingReq(),
    )
    refused.send(PingReq())
    connack = refused.take(ConnAck)
    assert (connack.session_present, connack.reason_code) == (False, ReasonCode.NOT_AUTHORIZED)
    assert refused.inbox == []
    assert refused.is_lost
    assert len(broker.core.retained) == 0


@pytest.mark.mqtt5("3.1.4-5")
@pytest.mark.mqtt311("3.1.4-4", "7.0.0-2")
@IN_EACH_VERSION
def test_a_plain_connect_is_accepted(version: int) -> None:
    """CONNECT without anything special, as every client can send it, gets a CONNACK of 0."""
    client = VirtualClient(VirtualBroker(), version)
    client.send_bytes(connect_bytes(version, 0x02, "0001 61"))
    assert client.take(ConnAck).reason_code == 0
    assert not client.is_lost
