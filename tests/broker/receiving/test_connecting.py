"""CONNECT, on a virtual clock: who gets a session, and what the answer says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.broker.access_control import Accepted, Admittance, Refused
from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.extensions import DeliveryGate
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.receiving.connecting import close_if_revoked
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker, keep
from tests.helpers.virtual import VirtualBroker, VirtualClient, will


@pytest.mark.mqtt5("3.2.2-2", "3.2.2-3")
@pytest.mark.mqtt311("3.2.2-1", "3.2.2-2", "3.2.2-3")
@pytest.mark.parametrize("version", [4, 5])
def test_session_present_tells_whether_there_was_a_session(version: int) -> None:
    """[MQTT-3.2.2-2], [MQTT-3.2.2-3]: only for a session that was kept."""
    broker = VirtualBroker()
    keep = {"session_expiry_interval": 100} if version == 5 else {}
    first = broker.connect("a", version, clean_start=False, properties=keep)
    assert not first.connack.session_present
    first.send(Disconnect())
    second = broker.connect("a", version, clean_start=False, properties=keep)
    assert second.connack.session_present
    second.send(Disconnect())
    third = broker.connect("a", version, clean_start=True)
    assert not third.connack.session_present


@pytest.mark.mqtt5("3.1.3-6", "3.1.3-7", "3.2.2-16")
@pytest.mark.mqtt311("3.1.3-6")
def test_a_client_without_identifier_gets_one() -> None:
    """[MQTT-3.2.2-16]: and is told in MQTT 5."""
    broker = VirtualBroker()
    client = broker.connect("")
    assert client.connack.properties["assigned_client_identifier"] == "assigned-1"
    assert broker.connect("", 4).session.client_id == "assigned-2"


@pytest.mark.mqtt311("3.1.3-7", "3.1.3-8", "3.1.3-9")
def test_an_empty_identifier_without_clean_session_is_refused_in_mqtt_3_1_1() -> None:
    """[MQTT-3.1.3-8]: return code 2, then the connection closes."""
    client = VirtualClient(VirtualBroker(), 4)
    client.send(Connect(client_id="", protocol_version=4, clean_start=False))
    assert client.take(ConnAck).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert client.is_lost


@pytest.mark.mqtt5("3.1.3-8")
@pytest.mark.parametrize("version", [4, 5])
def test_an_empty_identifier_may_be_refused(version: int) -> None:
    """[MQTT-3.1.3-8]: a server may accept one; where it does not, it says so."""
    broker = VirtualBroker(options=MqttOptions(allow_empty_client_id=False))
    client = VirtualClient(broker, version)
    client.send(Connect(client_id="", protocol_version=version))
    assert client.take(ConnAck).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert client.is_lost
    broker.connect("named", version)


@pytest.mark.mqtt5("3.1.4-3")
def test_the_same_identifier_takes_the_session_over() -> None:
    """[MQTT-3.1.4-3]: the old connection is told and closed, the session goes on."""
    broker = VirtualBroker()
    old = broker.connect("a", clean_start=False, properties={"session_expiry_interval": 100})
    old.subscribe("t", 1)
    new = broker.connect("a", clean_start=False, properties={"session_expiry_interval": 100})
    assert old.take(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert old.is_lost
    assert new.connack.session_present
    old.connection.connection_lost(broker.now)
    assert new.session.client is new.connection.client
    broker.connect("p").publish("t", b"x", qos=1)
    assert new.payloads() == [b"x"]


def test_the_first_packet_must_be_connect() -> None:
    """[MQTT-3.1.0-1]: and nothing is answered to what cannot be a client."""
    client = VirtualClient(VirtualBroker(), 4)
    client.send(PingReq())
    assert client.inbox == []
    assert client.is_lost


@pytest.mark.parametrize("client_id", ["a", "x" * 24])
def test_mqtt_3_1_is_spoken(client_id: str) -> None:
    """As MQTT 3.1.1, but for Session Present and for a refused subscription, which it lacks."""
    broker = VirtualBroker(access=Access(subscribe=True))
    access = broker.core.access
    assert isinstance(access, Access)
    access.refused = {("subscribe", "secret")}
    old = broker.connect(client_id, 3, clean_start=False)
    assert old.session.version == 3
    assert access.attempts[0].protocol_version == 3
    assert old.subscribe("t", 2) == 2
    assert old.subscribe("secret", 1) == 1
    for version in (3, 4, 5):
        publisher = broker.connect("p", version)
        publisher.publish("t", b"%d" % version, qos=1)
        publisher.publish("secret", b"no")
    assert old.acknowledge() == [b"3", b"4", b"5"]
    old.lose()
    again = broker.connect(client_id, 3, clean_start=False)
    assert again.session is old.session
    assert not again.connack.session_present


def test_a_run_of_mqtt_3_1_passes_to_mqtt_3_1_1_as_it_is() -> None:
    """PUBLISH is the same in both: neither needs a packet of its own."""
    broker = VirtualBroker(core_class=FastCore)
    assert isinstance(broker.core, FastCore)
    for version in (3, 4):
        broker.connect(f"s{version}", version).subscribe("t")
    publisher = broker.connect("p", 3)
    publisher.publish("t", b"1")
    assert list(broker.core.fast_plans[3]) == [b"t"]
    assert broker.core.fast_plans[4] is broker.core.fast_plans[3]


@pytest.mark.parametrize("first_byte", [0x10, 0x1F])
def test_a_connect_of_mqtt_3_1_is_taken_with_bits_that_it_does_not_use(first_byte: int) -> None:
    """Those of the first byte, and of the Connect Flags without a Will; no client is sent away."""
    broker = VirtualBroker()
    for client_id, codes in (("63", [0]), ("", [ReasonCode.CLIENT_IDENTIFIER_NOT_VALID])):
        client = VirtualClient(broker, 3)
        body = bytes.fromhex(f"0006 4d5149736470 03 3b 0000 {len(client_id) // 2:04x} {client_id}")
        client.send_bytes(bytes((first_byte, len(body))) + body)
        assert [packet.reason_code for packet in client.take_all(ConnAck)] == codes
        assert client.is_lost == bool(codes[0])


def test_a_connect_of_another_version_has_no_flags_in_its_first_byte() -> None:
    """[MQTT-2.1.3-1]."""
    client = VirtualClient(VirtualBroker(), 4)
    client.send_bytes(b"\x18" + write_packet(Connect(client_id="c", protocol_version=4), 4)[1:])
    assert client.inbox == []
    assert client.is_lost


def test_mqtt_3_1_without_client_identifier_is_refused() -> None:
    """It has no assigned ones: return code 2."""
    client = VirtualClient(VirtualBroker(), 3)
    client.send(Connect(client_id="", protocol_version=3))
    assert client.take(ConnAck).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert client.is_lost


def test_mqtt_3_1_can_be_switched_off() -> None:
    """Return code 1, unacceptable protocol version."""
    client = VirtualClient(VirtualBroker(options=MqttOptions(allow_mqtt31=False)), 3)
    client.send(Connect(client_id="c", protocol_version=3))
    assert client.take(ConnAck).reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert client.is_lost


def test_connack_says_what_the_broker_allows() -> None:
    """MQTT 5.0, 3.2.2.3: what a client may send, and what was changed of its wishes."""
    broker = VirtualBroker(
        Limits(receive_maximum=7, maximum_packet_size=5000, maximum_keep_alive=30),
        session_expiry_limit=60.0,
    )
    client = broker.connect("a", keep_alive=100, properties={"session_expiry_interval": 100})
    properties = client.connack.properties
    assert properties["receive_maximum"] == 7
    assert properties["maximum_packet_size"] == 5000
    assert properties["server_keep_alive"] == 30
    assert properties["session_expiry_interval"] == 60
    assert "shared_subscription_available" not in properties  # absent: available (3.2.2.3.13)
    modest = broker.connect("b", keep_alive=10, properties={"session_expiry_interval": 50})
    assert "server_keep_alive" not in modest.connack.properties
    assert "session_expiry_interval" not in modest.connack.properties


@pytest.mark.mqtt5("3.1.4-2", "3.1.4-6")
@pytest.mark.parametrize("waits", [False, True])
def test_authentication_decides_who_connects(*, waits: bool) -> None:
    """At once or after a wait; what comes meanwhile is handled afterwards, in order."""
    access = Access()
    access.waits = waits
    broker = VirtualBroker(access=access)
    client = VirtualClient(broker)
    client.send(
        Connect(client_id="a", username="u", password=b"p"),
        Subscribe(1, (SubscriptionRequest("t", 1),)),
        Publish("t", b"x"),
    )
    finish(client)
    assert client.take(ConnAck).reason_code == 0
    assert client.take(SubAck).reason_codes == (1,)
    assert client.payloads() == [b"x"]
    assert (access.attempts[0].username, access.attempts[0].password) == ("u", b"p")
    access.is_open = False
    refused = VirtualClient(broker)
    refused.send(Connect(client_id="b"), PingReq())
    finish(refused)
    assert refused.take(ConnAck).reason_code == ReasonCode.NOT_AUTHORIZED
    assert refused.inbox == []
    assert refused.is_lost
    assert broker.core.sessions.get("b") is None


def test_who_is_refused_stands_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """An operator sees whose password to look after, and where the client is."""
    access = Access()
    access.is_open = False
    client = VirtualClient(VirtualBroker(access=access))
    with caplog.at_level("INFO"):
        client.send(Connect(client_id="pump", username="ada", password=b"secret"))
    (line,) = caplog.messages
    assert "client pump" in line
    assert "'ada'" in line
    assert client.connection.client.peer() in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("answer", "username", "told"),
    [
        (Refused(why="wrong password"), "ada", "user 'ada': wrong password, from"),
        (None, "ada", "user 'ada': unknown user, from"),
        (False, "ada", "user 'ada': not authorized, from"),
        (None, None, "no user name: not authorized, from"),
    ],
)
def test_the_log_says_why_a_client_is_refused(
    caplog: pytest.LogCaptureFixture, answer: Admittance, username: str | None, told: str
) -> None:
    """To the client it is the same in every case."""
    access = Access()
    access.answer = answer
    client = VirtualClient(VirtualBroker(access=access))
    with caplog.at_level("INFO"):
        client.send(Connect(client_id="pump", username=username, password=b"secret"))
    assert f"client pump: {told} {client.connection.client.peer()}" in caplog.messages
    assert "secret" not in caplog.text
    assert client.take(ConnAck) == ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize("fault", [None, ZeroDivisionError()])
def test_who_may_no_longer_connect_is_disconnected(fault: Exception | None) -> None:
    """The will is published and the session stays; a plugin's fault lets no client stay."""
    held = [True]

    def holds() -> bool:
        if not held and fault is not None:
            raise fault
        return bool(held)

    access = Access()
    access.answer = Accepted(holds=holds)
    broker = VirtualBroker(access=access)
    watcher = broker.connect("w")
    watcher.subscribe("will")
    client = broker.connect("c", will=will("will"), properties={"session_expiry_interval": 100})
    for is_held in (True, False):
        if not is_held:
            held.clear()
        close_if_revoked(client.connection.client, broker.now)
        broker.settle()
        assert client.is_lost is not is_held
    assert client.take(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert watcher.payloads() == [b"gone"]
    assert not broker.session("c").is_connected
    assert broker.core.counters.revoked == 1
    assert sum(broker.core.counters.extension_errors.values()) == (fault is not None)


def test_who_may_no_longer_connect_as_it_is_let_in_is_refused() -> None:
    """Files were read again while access control took its time."""
    access = Access()
    access.answer = Accepted(holds=lambda: False)
    broker = VirtualBroker(access=access)
    assert broker.connect("c").connack.reason_code == ReasonCode.NOT_AUTHORIZED
    assert broker.core.sessions.get("c") is None


def test_a_connection_that_waits_is_not_read_from() -> None:
    """While access control takes its time, TCP holds the client back."""
    access = Access()
    access.waits = True
    broker = VirtualBroker(access=access)
    client = VirtualClient(broker)
    client.send(Connect(client_id="a"))
    assert not client.is_reading
    client.send(PingReq())
    assert client.inbox == []
    finish(client)
    assert client.is_reading
    assert [type(packet) for packet in client.inbox] == [ConnAck, PingResp]


def test_authentication_that_raises_lets_nobody_in() -> None:
    """E3: a plugin's fault refuses, and is counted."""
    access = Access()
    access.error = ZeroDivisionError()
    broker = VirtualBroker(access=access)
    client = VirtualClient(broker, 4)
    client.send(Connect(client_id="a", protocol_version=4))
    assert client.take(ConnAck).reason_code == ReasonCode.NOT_AUTHORIZED
    assert sum(broker.core.counters.extension_errors.values()) == 1


def test_a_client_that_leaves_while_it_is_authenticated_has_no_session() -> None:
    """The answer comes too late."""
    access = Access()
    access.waits = True
    broker = VirtualBroker(access=access)
    client = VirtualClient(broker)
    client.send(Connect(client_id="a"))
    client.lose()
    finish(client)
    assert len(broker.core.sessions) == 0


class Listening(DeliveryGate):
    """A gate that takes note of whom it is told of, and complains of a certain property."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None, str, list[tuple[str, str]]]] = []
        self.error: Exception | None = None

    def connected(self, link: Link, user_properties: Sequence[tuple[str, str]]) -> str:
        """Take note; say what is wrong."""
        self.told.append((link.client_id, link.username, link.listener, list(user_properties)))
        if self.error is not None:
            raise self.error
        return next((f"read {value!r}" for name, value in user_properties if name == "bad"), "")

    def is_large(self, message: Message, link: Link) -> bool:
        """Nothing is."""
        del message, link
        return False


def test_the_gate_is_told_what_a_connect_says_of_the_subscriber() -> None:
    """With its names as authentication left them; before MQTT 5 there are no user properties."""
    gate = Listening()
    broker = VirtualBroker(gate=gate)
    broker.connect("a", username="u", properties={"user_property": [("x", "1"), ("x", "2")]})
    client = broker.connect("a", 4)
    client.publish("t", b"x")
    assert len(gate.told) == 1
    client.subscribe("t")
    client.subscribe("u")
    assert gate.told == [
        ("a", "u", "default", [("x", "1"), ("x", "2")]),
        ("a", None, "default", []),
    ]
    assert broker.core.counters.user_properties_ignored == 0


def test_the_gate_is_told_of_a_client_whose_session_is_durable() -> None:
    """Its outbox is made for the journal, before it subscribes."""
    gate = Listening()
    broker = DurableBroker(gate=gate)
    broker.connect("a", username="u", **keep()).subscribe("t", 1)
    assert gate.told == [("a", "u", "default", [])]
    broker.connect("a", username="u", **keep())
    assert gate.told == [("a", "u", "default", [])] * 2


@pytest.mark.parametrize("value", ["yes", "no"])
def test_a_client_may_ask_that_its_messages_wait_for_room(
    caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """They are refused otherwise; another value is named, and the client is let in."""
    caplog.set_level("INFO")
    broker = VirtualBroker()
    properties = {"user_property": [("penstock-waits", value)]}
    client = broker.connect("a", properties=properties).session.client
    assert client is not None
    assert client.waits_for_room == (value == "yes")
    assert broker.core.counters.user_properties_ignored == (value != "yes")
    told = "client a: CONNECT: user property penstock-waits: read 'no'; allowed: yes; ignored"
    assert (told in caplog.messages) == (value != "yes")


def test_a_client_that_is_no_lane_has_nothing_to_yield_to(caplog: pytest.LogCaptureFixture) -> None:
    """This is told and counted, also where the other lane that it names cannot be one."""
    caplog.set_level("INFO")
    broker = VirtualBroker()
    yields = ("penstock-yields", "yes")
    broker.connect("a", properties={"user_property": [yields]})
    told = (
        "client a: CONNECT: user property penstock-yields: read without a lane to yield to; "
        "allowed: beside penstock-lane-of; ignored"
    )
    assert caplog.messages.count(told) == 1
    assert broker.core.counters.user_properties_ignored == 1
    broker.connect("a", properties={"user_property": [yields, ("penstock-lane-of", "a")]})
    assert caplog.messages.count(told) == 2
    assert broker.core.counters.user_properties_ignored == 3
    broker.connect("a", properties={"user_property": [yields, ("penstock-lane-of", "b")]})
    assert broker.core.counters.user_properties_ignored == 3


def test_what_the_gate_can_make_nothing_of_is_logged_and_counted_once_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client is let in all the same."""
    caplog.set_level("INFO")
    broker = VirtualBroker(gate=Listening())
    for _ in range(2):
        connack = broker.connect("a", properties={"user_property": [("bad", "1\n2")]}).connack
        assert connack.reason_code == ReasonCode.SUCCESS
    assert broker.core.counters.user_properties_ignored == 2
    assert caplog.messages.count("client a: CONNECT: read '1\\n2'; ignored") == 2


def test_a_gate_that_fails_over_a_connect_keeps_nobody_out() -> None:
    """A plugin's fault is counted, and is not the client's."""
    gate = Listening()
    gate.error = RuntimeError("no")
    broker = VirtualBroker(gate=gate)
    client = broker.connect("a")
    assert client.connack.reason_code == ReasonCode.SUCCESS
    assert client.subscribe("t") == 0
    assert broker.core.counters.extension_errors == {"Listening": 1}
