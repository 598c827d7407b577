from __future__ import annotations

import logging
import pickle
from asyncio import Queue
from typing import Any

import pytest
from amqtt.adapters import BufferReader
from amqtt.mqtt import packet_dict
from amqtt.mqtt.packet import MQTTPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import ApplicationMessage, IncomingApplicationMessage, OutgoingApplicationMessage
from amqtt.session import Session as AmqttSession

from penstock.broker.access_control import ConnectAttempt
from penstock.broker.amqtt_host.packets import HostedMessage, packet_view, retained_view
from penstock.broker.amqtt_host.sessions import HostedSession, session_of_attempt
from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.sessions.broker_state import Core

PACKETS: list[Packet] = [
    Connect("c", 4, username="u", password=b"p", will=Will("w", b"x", qos=1)),
    ConnAck(session_present=True),
    Publish("a/b", b"payload"),
    Publish("a/b", b"payload", qos=1, retain=True, dup=True, packet_id=5),
    Publish("t", b"x" * 20_000),
    PubAck(1),
    PubRec(2),
    PubRel(3),
    PubComp(4),
    Subscribe(5, (SubscriptionRequest("a/#", 1), SubscriptionRequest("b", 2))),
    SubAck(5, (1, 0x80)),
    Unsubscribe(6, ("a/#", "b")),
    UnsubAck(6),
    PingReq(),
    PingResp(),
    Disconnect(),
]


def view_of(frame: bytes, version: int | None = 4) -> Any:
    """Return the view of one whole packet."""
    return packet_view(frame[0], len(frame), (frame,), version)


def _values(part: Any) -> dict[str, Any]:
    """Return what a part of aMQTT's packets holds."""
    return {name: getattr(part, name) for name in getattr(part, "__slots__", ())}


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: type(packet).__name__)
async def test_view_shows_what_amqtt_would_have_decoded(packet: Packet) -> None:
    """Each packet of MQTT 3.1.1 has aMQTT's class, flags, headers and payload."""
    frame = write_packet(packet, 4)
    amqtt_class = packet_dict[frame[0] >> 4]
    theirs: Any = await amqtt_class.from_stream(BufferReader(frame))
    ours = view_of(frame)
    assert isinstance(ours, amqtt_class)
    assert repr(ours.fixed_header) == repr(theirs.fixed_header)
    for part in ("variable_header", "payload"):
        assert type(getattr(ours, part)) is type(getattr(theirs, part))
        assert _values(getattr(ours, part)) == _values(getattr(theirs, part))
    assert ours.bytes_length == len(frame) == theirs.bytes_length
    assert ours.to_bytes() == frame


def test_size_and_type_need_no_decoding() -> None:
    """What aMQTT's `$SYS` plugin reads of a packet is known without looking into it."""
    view: Any = packet_view(0x31, 1_000_000, (b"\x31no packet",), 4)
    assert view.bytes_length == 1_000_000
    assert view.fixed_header.packet_type == 3
    assert view.retain_flag
    assert view


@pytest.mark.parametrize(
    "size_bytes", [2, 129, 131, 16_386, 16_388, 2_097_155, 2_097_157, 268_435_460]
)
def test_remaining_length_follows_from_the_size(size_bytes: int) -> None:
    """The fixed header's length is right on both sides of each step of its encoding."""
    header = packet_view(0x30, size_bytes, (b"",), 4)
    length: int = header.fixed_header.remaining_length
    n_bytes = 1 if length < 128 else 2 if length < 16_384 else 3 if length < 2_097_152 else 4
    assert 1 + n_bytes + length == size_bytes


def test_publish_answers_by_its_parts() -> None:
    """A plugin reads topic, data, QoS and packet identifier as of aMQTT's own packet."""
    view = view_of(write_packet(PACKETS[3], 4))
    assert (view.topic_name, view.data, view.packet_id) == ("a/b", b"payload", 5)
    assert (view.qos, view.retain_flag, view.dup_flag) == (1, True, True)


def test_packet_in_pieces_is_put_together() -> None:
    """Header and payload that were written apart, or a view of a buffer, make one packet."""
    frame = write_packet(PACKETS[2], 4)
    buffer = bytearray(frame)
    chunks = (memoryview(buffer)[:4], memoryview(buffer)[4:])
    view: Any = packet_view(frame[0], len(frame), chunks, 4)
    buffer[:] = bytes(len(buffer))  # what was lent is gone after the call
    assert view.data == b"payload"


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (Publish("t", b"p", qos=1, packet_id=9, properties={"user_property": [("a", "b")]}), "t"),
        (Connect("c", 5, username="u", properties={"session_expiry_interval": 9}), "c"),
        (Connect("c", 5, password=b"alone"), "c"),
        (Subscribe(1, (SubscriptionRequest("f", 1, no_local=True, retain_handling=2),)), "f"),
        (SubAck(1, (2, 0x87)), "128"),
        (UnsubAck(3, (0, 0x11)), "3"),
        (PubAck(4, 0x10, {"reason_string": "nobody"}), "4"),
        (ConnAck(session_present=False, reason_code=0x87), "0x5"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_mqtt_5_shows_what_3_1_1_has_of_it(packet: Packet, expected: str) -> None:
    """A packet of MQTT 5 is shown without its properties, options and reason codes."""
    frame = write_packet(packet, 5)
    view = view_of(frame, 5)
    assert expected in f"{view.variable_header} {view.payload}"
    assert view.bytes_length == len(frame)


def test_connack_before_the_session_is_told_by_its_size() -> None:
    """A CONNACK that refuses comes without a session; both versions are shown."""
    for version in (4, 5):
        frame = write_packet(ConnAck(session_present=False, reason_code=0x87), version)
        assert view_of(frame, None).variable_header.return_code == 5


def test_packet_that_mqtt_3_1_1_lacks_shows_its_fixed_header() -> None:
    """AUTH has no class in aMQTT; what is malformed has no parts."""
    auth = view_of(write_packet(Auth(0x18), 5), 5)
    assert isinstance(auth, MQTTPacket)
    assert auth.fixed_header.packet_type == 15
    assert auth.payload is None
    malformed = view_of(b"\x30\x05\xff\xffabc")
    assert malformed.variable_header is None
    assert "PublishPacket" in repr(malformed)


def test_message_shows_what_was_published() -> None:
    """A plugin reads topic, data, QoS and RETAIN of a message as of aMQTT's own."""
    view = HostedMessage(Message("t", b"payload", qos=1, retain=True))
    assert isinstance(view, IncomingApplicationMessage)
    assert (view.topic, view.data, view.qos, view.retain) == ("t", b"payload", 1, True)
    assert isinstance(view.publish_packet, PublishPacket)
    assert view.publish_packet is view.publish_packet
    assert view.publish_packet.retain_flag
    assert view.publish_packet.data == b"payload"
    assert view.puback_packet is None


def test_payload_is_read_once_and_only_when_asked_for() -> None:
    """A spilled payload is not read for a plugin that looks at the topic alone."""

    class Stored:
        n_reads = 0

        def __len__(self) -> int:
            return 3

        def read(self) -> bytes:
            self.n_reads += 1
            return b"abc"

        def read_piece(self, start: int) -> bytes:
            return self.read()[start:]

    stored = Stored()
    view = HostedMessage(Message("t", stored))
    assert view.topic == "t"
    assert stored.n_reads == 0
    assert view.data + view.data == b"abcabc"
    assert stored.n_reads == 1


def test_retained_message_has_its_source() -> None:
    """A retained message names who published it; one that clears has no data."""
    source = HostedSession("c")
    retained = retained_view(Message("t", b"x", qos=1, retain=True), source)
    assert retained.source_session is source
    assert (retained.topic, retained.data, retained.qos) == ("t", b"x", 1)
    assert not retained_view(Message("t", b"", retain=True), None).data


def attempt_of(password: bytes | None = b"secret", keep_alive: int = 30) -> ConnectAttempt:
    """Return what a client with every field sent."""
    return ConnectAttempt(
        client_id="c",
        username="user",
        password=password,
        protocol_version=4,
        clean_start=False,
        keep_alive=keep_alive,
        will=Message("will/topic", b"gone", qos=1, retain=True),
        remote_address="192.0.2.1",
        remote_port=999,
        listener="default",
        ssl_object="tls",
    )


def test_hosted_session_has_what_amqtts_has() -> None:
    """Every attribute of aMQTT's own session is there, with the same value at the beginning."""
    theirs = AmqttSession()
    ours = HostedSession("c")
    assert isinstance(ours, AmqttSession)
    for name, value in vars(theirs).items():
        if name in {"transitions", "client_id"}:
            continue
        if isinstance(value, Queue):
            assert getattr(ours, name).empty()
        else:
            assert getattr(ours, name) == value, name


def test_containers_are_made_once() -> None:
    """A queue that a plugin asks for twice is the same queue."""
    session = HostedSession("c")
    assert session.retained_messages is session.retained_messages
    assert session.attributes is session.attributes
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = session.no_such_name


def test_sessions_share_nothing() -> None:
    """What a plugin notes of one client is not seen in another's session."""
    one, other = HostedSession("one"), HostedSession("other")
    one.attributes["k"] = 1
    one.inflight_out[1] = OutgoingApplicationMessage(1, "t", 1, b"", retain=False)
    assert other.attributes == {}
    assert not other.inflight_out


def test_state_goes_with_the_connection() -> None:
    """The words of aMQTT's state machine are new, connected and disconnected."""
    session = HostedSession("c")
    assert session.transitions.is_new()
    session.connected()
    assert session.transitions.state == "connected"
    assert session.transitions.is_connected()
    assert isinstance(session.last_connect_time, int)
    session.disconnected()
    assert session.transitions.is_disconnected()
    assert isinstance(session.last_disconnect_time, int)
    session.connected()
    assert session.__dict__["last_disconnect_time"] is None
    assert "state=connected" in repr(session)


def test_sessions_are_equal_by_client_id() -> None:
    """Sessions of one client compare equal, as in aMQTT."""
    assert HostedSession("c") == HostedSession("c")
    assert HostedSession("c") != HostedSession("d")


def test_attempt_becomes_a_session_as_amqtt_makes_it() -> None:
    """Authentication plugins find the client's credentials, will and address."""
    session = session_of_attempt(attempt_of(), keep_alive_grace=2)
    assert session.client_id == "c"
    assert (session.username, session.password) == ("user", "secret")
    assert (session.remote_address, session.remote_port) == ("192.0.2.1", 999)
    assert session.clean_session is False
    assert session.keep_alive == 32
    assert session.ssl_object == "tls"
    assert session.will_flag
    assert (session.will_topic, session.will_message) == ("will/topic", b"gone")
    assert (session.will_qos, session.will_retain) == (1, True)


def test_keep_alive_of_none_gets_no_grace() -> None:
    """A client that asks for no keep-alive is not given one."""
    assert session_of_attempt(attempt_of(keep_alive=0), keep_alive_grace=2).keep_alive == 0


@pytest.mark.parametrize(("password", "text"), [(None, None), (b"\xff", "b'\\xff'")])
def test_password_that_is_no_text(password: bytes | None, text: str | None) -> None:
    """A password that is not UTF-8 reads as aMQTT reads it."""
    assert session_of_attempt(attempt_of(password), 0).password == text


def test_new_connection_brings_its_own_will_and_credentials() -> None:
    """A session that goes on takes what the newest CONNECT said, and keeps its identity."""
    session = HostedSession("c")
    session.username = "before"
    session.parent = 1
    session.take_over(session_of_attempt(attempt_of(), 0))
    assert session.username == "user"
    assert session.will_topic == "will/topic"
    assert session.parent == 1


def test_counts_are_the_brokers() -> None:
    """The figures that aMQTT's `$SYS` plugin adds up are those of the real session."""
    core = Core(
        Limits(),
        logger=logging.getLogger("test"),
        wake=lambda: None,
        spawn=lambda coroutine: coroutine.close(),
        options=MqttOptions(),
        new_client_id=lambda: "x",
    )
    hosted = HostedSession("c")
    assert hosted.inflight_in_count == hosted.inflight_out_count == 0
    assert hosted.retained_messages_count == 0
    hosted.session = session = core.sessions.create("c")
    message = Message("t", b"p", qos=1)
    session.deliver(message, 1, retain=False, subscription_ids=(), now=0.0)
    session.incoming[7] = None
    assert hosted.retained_messages_count == 1
    assert hosted.inflight_in_count == 1


def test_pickled_session_leaves_the_broker_behind() -> None:
    """A plugin may pickle a session; sockets and the broker's own parts stay out."""
    session = session_of_attempt(attempt_of(), 0)
    session.retained_messages.put_nowait(ApplicationMessage(1, "t", 1, b"", retain=False))
    copy = pickle.loads(pickle.dumps(session))  # noqa: S301 (made just now)
    assert copy == session
    assert copy.username == "user"
    assert copy.ssl_object is None
    assert copy.retained_messages.empty()
