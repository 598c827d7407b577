from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.sidecar.direction import Direction
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.gates import SwitchGate
from tests.helpers.proxied_clients import CONNACK_SECONDS, DOWN, UP, VirtualClient, publish

WHOLE_CONNECT = Connect(
    client_id="sensor",
    clean_start=False,
    keep_alive=30,
    username="u",
    password=b"p",
    will=Will("gone", b"x", 1, True, {"will_delay_interval": 5}),
    properties={"receive_maximum": 10, "user_property": [("a", "b")]},
)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
def test_connect_and_what_follows_go_upstream_untouched(version: int, chunk_bytes: int) -> None:
    """However it is cut, the broker gets the client's very bytes, but for the proxy's window."""
    connect = dataclasses.replace(WHOLE_CONNECT, protocol_version=version)
    subscribe = Subscribe(1, (SubscriptionRequest("a/#", 1),))
    data = write_packet(connect, version) + write_packet(subscribe, version)
    proxied = VirtualClient(version)
    for begin in range(0, len(data), chunk_bytes):
        proxied.client_sends_bytes(data[begin : begin + chunk_bytes])
    assert proxied.broker_got == data.replace(b"\x21\x00\x0a", b"\x21\x27\x10")
    assert (proxied.broker_got == data) == (version == 4)
    assert proxied.proxied.wants_broker
    assert (proxied.proxied.link.client_id, proxied.proxied.link.username) == ("sensor", "u")


def test_the_broker_is_told_that_no_topic_alias_is_understood() -> None:
    """[MQTT-3.1.2-27]: the one property that is left out of a CONNECT."""
    expected = {**WHOLE_CONNECT.properties, "receive_maximum": 10_000}
    properties = {**WHOLE_CONNECT.properties, "topic_alias_maximum": 10}
    proxied = VirtualClient()
    proxied.client_sends(dataclasses.replace(WHOLE_CONNECT, properties=properties))
    assert proxied.to_broker() == [dataclasses.replace(WHOLE_CONNECT, properties=expected)]


@pytest.mark.parametrize(("client", "proxy", "told"), [(None, 5000, 5000), (300, 5000, 300)])
def test_the_broker_and_the_client_are_told_the_proxys_maximum_packet_size(
    client: int | None, proxy: int, told: int
) -> None:
    """A larger packet would end the connection, and the next one, as the broker sends it again."""
    proxied = VirtualClient(maximum_packet_size=proxy)
    proxied.client_sends(Connect(properties={"maximum_packet_size": client} if client else {}))
    (connect,) = proxied.to_broker()
    assert isinstance(connect, Connect)
    assert connect.properties["maximum_packet_size"] == told
    proxied.proxied.broker_connected()
    proxied.broker_sends(ConnAck(properties={"receive_maximum": 20}))
    properties = {"receive_maximum": 20, "maximum_packet_size": proxy}
    assert proxied.to_client() == [ConnAck(properties=properties)]


def test_a_publish_above_the_brokers_maximum_packet_size_is_named_to_its_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[MQTT-3.2.2-15]: DISCONNECT 0x95, as from a broker, which here need not judge it."""
    proxied = VirtualClient.connected(connack={"maximum_packet_size": 100})
    proxied.client_sends(publish("fits", 50), publish("large", 200))
    assert proxied.to_broker() == [publish("fits", 50)]
    assert proxied.to_client() == [Disconnect(ReasonCode.PACKET_TOO_LARGE)]
    assert "allowed: at most 100" in caplog.text


@pytest.mark.parametrize(
    ("packets", "text"),
    [
        ([publish("early")], "PUBLISH before CONNACK"),
        ([PingResp()], "PINGRESP before CONNACK"),
        ([ConnAck(), ConnAck()], "a second CONNACK"),
    ],
)
def test_what_a_broker_may_not_send_around_connack(
    packets: list[Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """[MQTT-3.2.0-1], [MQTT-3.2.0-2]: the log names it, and both connections end."""
    proxied = VirtualClient()
    proxied.client_sends(Connect(client_id="c"))
    proxied.proxied.broker_connected()
    proxied.broker_sends(*packets)
    assert proxied.proxied.is_closing
    assert text in caplog.text


def test_authentication_goes_on_before_connack() -> None:
    """AUTH of MQTT 5 comes first."""
    proxied = VirtualClient()
    proxied.client_sends(Connect(client_id="c", properties={"authentication_method": "x"}))
    proxied.proxied.broker_connected()
    auth = Auth(0x18, {"authentication_method": "x"})
    proxied.broker_sends(auth, ConnAck())
    assert proxied.to_client() == [auth, ConnAck()]


def test_a_connection_to_the_broker_is_wanted_only_for_a_connect() -> None:
    """Who only opens a connection costs the broker nothing."""
    proxied = VirtualClient()
    proxied.client_sends_bytes(write_packet(WHOLE_CONNECT, 5)[:-1])
    assert not proxied.proxied.wants_broker


@pytest.mark.parametrize(("n_properties", "is_taken"), [(256, True), (257, False)])
def test_a_connect_of_too_many_properties_does_not_reach_the_broker(
    n_properties: int, *, is_taken: bool
) -> None:
    """It comes from a stranger, and all other clients wait while it is read."""
    proxied = VirtualClient()
    proxied.client_sends(Connect(properties={"user_property": [("", "")] * n_properties}))
    assert proxied.proxied.wants_broker == is_taken
    assert proxied.proxied.is_closing != is_taken


def test_the_client_is_not_read_until_the_broker_is_connected() -> None:
    """What cannot be passed on stays with the client."""
    proxied = VirtualClient()
    assert proxied.proxied.wants_reading(UP)
    proxied.client_sends(Connect())
    assert not proxied.proxied.wants_reading(UP)
    proxied.proxied.broker_connected()
    assert proxied.proxied.wants_reading(UP)


def test_a_client_that_has_left_before_the_broker_was_connected_is_still_heard() -> None:
    """What came with its CONNECT is passed on, then all ends; without a broker at once."""
    for is_reached in (True, False):
        proxied = VirtualClient(5)
        proxied.client_sends(
            Connect(client_id="c", protocol_version=5), publish("up"), Disconnect()
        )
        proxied.proxied.connection_lost(UP, proxied.now)
        assert not proxied.proxied.is_closing
        assert proxied.proxied.next_deadline() == proxied.now + CONNACK_SECONDS
        if is_reached:
            proxied.proxied.broker_connected()
            proxied.settle()
            assert proxied.to_broker()[1:] == [publish("up"), Disconnect()]
        else:
            proxied.proxied.broker_unreachable("no connection")
        assert proxied.proxied.is_closing
    proxied = VirtualClient(5)
    proxied.client_sends(Connect(client_id="c", protocol_version=5))
    proxied.proxied.connection_lost(UP, proxied.now, "broke: reset")
    assert proxied.proxied.is_closing


def test_a_broker_that_does_not_keep_up_stops_the_client() -> None:
    """Backpressure goes upstream as TCP would pass it."""
    proxied = VirtualClient.connected()
    proxied.proxied.pause_sending(UP)
    assert not proxied.proxied.wants_reading(UP)
    assert proxied.proxied.wants_reading(DOWN)
    proxied.proxied.resume_sending(UP)
    assert proxied.proxied.wants_reading(UP)


def test_an_assigned_client_id_is_the_links() -> None:
    """Policies by client id see the one that the broker gave."""
    proxied = VirtualClient()
    proxied.client_sends(Connect())
    proxied.proxied.broker_connected()
    assert str(proxied.proxied) == "client at test:1"
    proxied.broker_sends(ConnAck(properties={"assigned_client_identifier": "auto-1"}))
    assert proxied.proxied.link.client_id == "auto-1"
    assert str(proxied.proxied) == "client auto-1 (test:1)"


def test_a_refusal_by_the_broker_passes(caplog: pytest.LogCaptureFixture) -> None:
    """The client sees the broker's answer, the log says what it was."""
    proxied = VirtualClient()
    proxied.client_sends(Connect(client_id="c"))
    proxied.proxied.broker_connected()
    caplog.set_level("INFO")
    proxied.broker_sends(ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED))
    assert proxied.to_client() == [ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED)]
    assert proxied.proxied.is_closing  # [MQTT-3.2.2-7] has the broker close; it is not waited for
    proxied.proxied.connection_lost(DOWN, proxied.now)
    assert caplog.messages == [
        "client c (test:1): ended: refused by the broker: not authorized (0x87)"
    ]
    assert proxied.shared.n_ended == 0


@pytest.mark.parametrize("reason", ["", "broke: reset"])
@pytest.mark.parametrize("data", [b"", b"\x10"])
def test_a_stranger_that_leaves_without_a_connect_is_no_line(
    reason: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A load balancer's health checks come all day."""
    caplog.set_level("DEBUG")
    proxied = VirtualClient()
    if data:
        proxied.proxied.receive_data(UP, data, proxied.now)
    proxied.proxied.connection_lost(UP, proxied.now, reason)
    (line,) = caplog.records
    assert line.levelname == "DEBUG"
    assert (
        line.message == f"client at test:1: ended: the client's connection {reason or 'was closed'}"
    )


@pytest.mark.parametrize("version", [4, 5])
def test_without_a_broker_the_client_s_connection_is_closed(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a CONNACK, after which many clients would not try again."""
    caplog.set_level("INFO")
    proxied = VirtualClient(version)
    proxied.client_sends(Connect(client_id="c", protocol_version=version))
    proxied.broker_got = b""
    proxied.proxied.broker_unreachable("no connection to somewhere")
    proxied.settle()
    assert proxied.to_client() == []
    assert proxied.proxied.is_closing
    assert "ended: closed: no connection to somewhere" in caplog.text


def test_an_unknown_protocol_is_answered_as_mqtt_3_1_1() -> None:
    """[MQTT-3.1.2-2] of 3.1.1: unacceptable protocol level, return code 1."""
    proxied = VirtualClient(4)
    proxied.client_sends_bytes(b"\x10\x0f\x00\x06MQIsdp\x04\x02\x00\x3c\x00\x01c")
    assert proxied.client_got == b"\x20\x02\x00\x01"
    assert proxied.proxied.is_closing
    assert not proxied.proxied.wants_broker


def test_a_connect_of_mqtt_3_1_passes_with_flags_that_it_does_not_use() -> None:
    """As it came: the broker judges it."""
    virtual = VirtualClient(3)
    connect = bytes.fromhex("1f0f 0006 4d5149736470 03 3b 0000 0001 61")
    virtual.client_sends_bytes(connect)
    virtual.proxied.broker_connected()
    virtual.settle()
    assert virtual.broker_got == connect


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "first byte: read 0x47; allowed: 0x10, CONNECT"),
        (b"\x16\x03\x01", "first byte: read 0x16"),
        (b"\x10\x04\x00\x04MQ", "goes on after the end"),
        (b"\x10\xff\xff\xff\xff", "remaining length"),
        (b"\x10\xfd\xff\x07", "packet of 131073 bytes; allowed: at most 131072"),
    ],
)
def test_what_is_no_connect_is_refused(
    data: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what came; the broker never hears of it, the client gets no answer."""
    proxied = VirtualClient()
    proxied.client_sends_bytes(data)
    assert proxied.proxied.is_closing
    assert "client at test:1: ended: the client sent: " in caplog.text
    assert text in caplog.text
    assert (proxied.client_got, proxied.broker_got) == (b"", b"")


@pytest.mark.parametrize(("version", "goodbye"), [(4, []), (5, [Disconnect(0x81)])])
def test_a_malformed_packet_of_the_client_ends_the_pair(
    version: int, goodbye: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An MQTT 5 client is told why; the broker gets no DISCONNECT, so that a will is sent."""
    proxied = VirtualClient.connected(version)
    proxied.client_sends_bytes(write_packet(PingReq(), version) + b"\x36\x00")
    assert proxied.proxied.is_closing
    assert proxied.to_client() == goodbye
    assert proxied.to_broker() == [PingReq()]
    (line,) = caplog.messages
    assert line.startswith("client c (test:1): ended: the client sent: malformed packet (0x81)")


def test_a_client_that_fails_before_its_connack_is_refused() -> None:
    """[MQTT-3.14.0-1]: no DISCONNECT before CONNACK; the reason goes into that."""
    proxied = VirtualClient()
    proxied.client_sends_bytes(write_packet(Connect(), 5) + b"\x36\x00")
    assert proxied.to_client() == [ConnAck(reason_code=ReasonCode.MALFORMED_PACKET)]
    assert proxied.proxied.is_closing


def test_nothing_is_taken_after_the_end() -> None:
    """What comes late from either side is left alone; the account is closed once."""
    proxied = VirtualClient.connected()
    proxied.proxied.connection_lost(UP, proxied.now)
    proxied.client_sends(publish("up"))
    proxied.broker_sends(publish("down"))
    proxied.proxied.connection_lost(DOWN, proxied.now)
    proxied.proxied.close(ReasonCode.SERVER_SHUTTING_DOWN, proxied.now)
    proxied.proxied.broker_unreachable("late")
    proxied.proxied.handle_timeout(2000.0)
    proxied.settle()
    assert (proxied.client_got, proxied.broker_got) == (b"", b"")
    assert (proxied.shared.n_ended, proxied.shared.ended.matched) == (1, 0)
    assert proxied.proxied.next_deadline() is None


@pytest.mark.parametrize(("version", "goodbye"), [(4, []), (5, [Disconnect(0x8B)])])
def test_a_stop_says_goodbye(version: int, goodbye: list[Any]) -> None:
    """An MQTT 5 client is told that the server is shutting down."""
    proxied = VirtualClient.connected(version)
    proxied.proxied.close(ReasonCode.SERVER_SHUTTING_DOWN, proxied.now)
    proxied.settle()
    assert proxied.to_client() == goodbye
    assert proxied.to_broker() == []


def test_no_goodbye_before_the_broker_has_answered() -> None:
    """[MQTT-3.14.0-1]: DISCONNECT only after a CONNACK of success."""
    proxied = VirtualClient()
    proxied.client_sends(Connect())
    proxied.proxied.close(ReasonCode.SERVER_SHUTTING_DOWN, proxied.now)
    proxied.settle()
    assert proxied.to_client() == []


def test_the_account_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each client: who, why and where its messages went."""
    caplog.set_level("INFO")
    proxied = VirtualClient.connected(gate=SwitchGate())
    proxied.broker_sends(publish("small"), publish("big", 200, packet_id=1))
    proxied.proxied.connection_lost(DOWN, proxied.now, "broke: reset")
    assert caplog.messages[-1] == (
        "client c (test:1): ended: the broker's connection broke: reset; messages matched 2, "
        "delivered 1, expired 0, dropped 0, left to the broker 1; withheld 1, released 0"
    )


@pytest.mark.parametrize(
    ("sends", "side", "how"),
    [
        ([], UP, "the client's connection was closed"),
        ([(UP, Disconnect())], UP, "the client has disconnected"),
        ([(UP, Disconnect())], DOWN, "the client has disconnected"),
        ([(UP, PingReq()), (DOWN, PingResp())], UP, "the client's connection was closed"),
        (
            [(UP, PingReq())],
            UP,
            "the client's connection was closed; the broker has not answered its PINGREQ",
        ),
        (
            [(DOWN, Disconnect(ReasonCode.SESSION_TAKEN_OVER))],
            DOWN,
            "the broker sent DISCONNECT: session taken over (0x8E)",
        ),
        ([], DOWN, "the broker's connection was closed"),
    ],
)
def test_the_log_says_how_a_client_has_ended(
    sends: list[tuple[Direction, Packet]],
    side: Direction,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who has closed the connection, and what it said before."""
    caplog.set_level("INFO")
    proxied = VirtualClient.connected()
    for direction, packet in sends:
        (proxied.client_sends if direction is UP else proxied.broker_sends)(packet)
    proxied.proxied.connection_lost(side, proxied.now)
    (line,) = caplog.messages
    assert line.startswith(f"client c (test:1): ended: {how}; messages matched 0, ")


def test_the_log_says_that_a_broker_has_sent_no_connack(caplog: pytest.LogCaptureFixture) -> None:
    """As one does that demands a certificate, or knows no header of the PROXY protocol."""
    caplog.set_level("INFO")
    proxied = VirtualClient()
    proxied.client_sends(Connect(client_id="c"))
    proxied.proxied.broker_connected()
    proxied.proxied.connection_lost(DOWN, proxied.now, "broke: reset")
    assert caplog.messages == [
        "client c (test:1): ended: the broker has sent no CONNACK: its connection broke: reset"
    ]


def test_a_client_without_a_connect_is_sent_away_in_time() -> None:
    """A connection that stays silent does not stay for ever; one that spoke does."""
    proxied = VirtualClient(connect_timeout_seconds=10.0)
    proxied.client_sends_bytes(b"\x10")
    proxied.advance(9.9)
    assert not proxied.proxied.is_closing
    proxied.advance(0.2)
    assert proxied.proxied.is_closing
    spoke = VirtualClient.connected(connect_timeout_seconds=10.0)
    spoke.advance(100.0)
    assert not spoke.proxied.is_closing


def test_no_deadline_while_the_transport_is_full() -> None:
    """Nothing could leave: the gate is asked again when there is room."""
    gate = SwitchGate()
    proxied = VirtualClient.connected(gate=gate)
    proxied.broker_sends(publish("big", 200, packet_id=1))
    assert proxied.proxied.next_deadline() == proxied.now + 1.0
    proxied.proxied.pause_sending(DOWN)
    assert proxied.proxied.next_deadline() is None
    gate.is_open = True
    proxied.advance(2.0)
    assert proxied.topics() == []
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == ["big"]


def test_a_gate_that_raises_delivers(caplog: pytest.LogCaptureFixture) -> None:
    """The plugin is named in the log, the message goes."""

    class Broken(SwitchGate):
        def decide(self, *_: object) -> Any:
            raise RuntimeError("no verdict")

    proxied = VirtualClient.connected(gate=Broken())
    proxied.broker_sends(publish("big", 200, packet_id=1))
    assert proxied.topics() == ["big"]
    assert "extension Broken failed: RuntimeError('no verdict')" in caplog.text


@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans())
def test_bytes_of_a_client_never_raise(
    chunks: list[bytes],
    is_connected: bool,  # noqa: FBT001 (drawn)
) -> None:
    """Bytes without any order in them end the proxied client or pass."""
    proxied = VirtualClient.connected() if is_connected else VirtualClient()
    for chunk in chunks:
        proxied.client_sends_bytes(chunk)


def test_acknowledgements_of_an_earlier_connection_pass() -> None:
    """The broker knows what it sent before the client came back."""
    proxied = VirtualClient.connected()
    proxied.client_sends(PubAck(400))
    assert proxied.to_broker() == [PubAck(400)]


def test_a_connect_with_a_threshold_sets_it_and_goes_on_whole() -> None:
    """The gate here reads the user property, and so may the one of the broker behind."""
    gate = WithholdingGate(WithholdingConfig())
    connect = Connect("far", properties={"user_property": [("threshold_l", "0.75"), ("a", "b")]})
    proxied = VirtualClient(gate=gate)
    proxied.client_sends(connect)
    assert proxied.proxied.link.asked_threshold_l == 0.75
    (passed,) = proxied.to_broker()
    assert isinstance(passed, Connect)
    assert passed.properties["user_property"] == connect.properties["user_property"]


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_pair_that_has_ended_is_freed_without_the_collector(direction: Direction) -> None:
    """Clients on bad networks come and go, each with all that was withheld from it."""
    proxied = VirtualClient.connected(gate=SwitchGate())
    proxied.broker_sends(publish("big", 5000, packet_id=1))
    client = weakref.ref(proxied.proxied.client)
    gc.collect()
    gc.disable()
    try:
        proxied.proxied.connection_lost(direction, proxied.now)
        del proxied
        assert client() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_that_does_not_answer_connect_in_time(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is refused and the log says why."""
    caplog.set_level("INFO")
    proxied = VirtualClient(version)
    proxied.client_sends(Connect(client_id="c", protocol_version=version))
    proxied.proxied.broker_connected()
    assert proxied.proxied.next_deadline() == proxied.now + CONNACK_SECONDS
    proxied.now += CONNACK_SECONDS - 0.1
    proxied.proxied.handle_timeout(proxied.now)
    assert not proxied.proxied.is_closing
    proxied.now += 0.1
    proxied.proxied.handle_timeout(proxied.now)
    proxied.settle()
    assert proxied.to_client() == []
    assert proxied.proxied.is_closing
    assert "ended: closed: no CONNACK in 30 s" in caplog.text


def test_an_answer_to_connect_ends_its_deadline() -> None:
    """A client that was accepted may be silent as long as its broker lets it."""
    proxied = VirtualClient.connected()
    assert proxied.proxied.next_deadline() is None
    proxied.now += 2 * CONNACK_SECONDS
    proxied.proxied.handle_timeout(proxied.now)
    assert not proxied.proxied.is_closing


def test_a_client_for_which_there_is_no_place_costs_the_broker_nothing() -> None:
    """Its CONNECT is answered here."""
    proxied = VirtualClient(refusal=ReasonCode.SERVER_BUSY)
    proxied.client_sends(Connect(client_id="c"))
    assert proxied.to_client() == [ConnAck(reason_code=ReasonCode.SERVER_BUSY)]
    assert proxied.proxied.is_closing
    assert not proxied.proxied.wants_broker
