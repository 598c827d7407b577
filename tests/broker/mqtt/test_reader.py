from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.errors import MalformedPacketError, PeerError, ProtocolError
from penstock.broker.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    Publish,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.reader import answer_version, read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.writer import write_packet
from tests.broker.mqtt.strategies import packets
from tests.broker.mqtt.vectors import LONGER_FORMS, VECTORS, Vector
from tests.helpers.effort import examples

ROOT = Path(__file__).parents[3]


def name_of(vector: Vector) -> str:
    """Name a vector in pytest's report."""
    return vector.name


@pytest.mark.parametrize("vector", VECTORS + LONGER_FORMS, ids=name_of)
def test_each_packet_is_read_from_its_bytes(vector: Vector) -> None:
    """The bytes of the specification's figures give the packet."""
    assert read_packet(vector.first_byte, vector.body, vector.version) == vector.packet


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_each_packet_is_read_from_a_memoryview(vector: Vector) -> None:
    """A body need not be copied out of the chunk that it came in."""
    body = memoryview(vector.body)
    assert read_packet(vector.first_byte, body, vector.version) == vector.packet


def test_payload_is_bytes_of_its_own() -> None:
    """A payload that is kept pins neither the chunk nor the packet it came in."""
    packet = read_packet(0x30, memoryview(b"\0\1a" + b"x" * 100), 4)
    assert isinstance(packet, Publish)
    assert type(packet.payload) is bytes
    assert packet.payload == b"x" * 100


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_truncated_at_each_byte(vector: Vector) -> None:
    """A body that ends too early is refused, or is the body of another packet."""
    for end in range(len(vector.body)):
        try:
            packet = read_packet(vector.first_byte, vector.body[:end], vector.version)
        except PeerError:
            continue
        assert packet != vector.packet


CUT_SHORT = [vector for vector in VECTORS if vector.first_byte in (0x10, 0x20, 0x82, 0xA2)]


@pytest.mark.parametrize("vector", CUT_SHORT, ids=name_of)
def test_truncated_inside_a_field(vector: Vector) -> None:
    """What lacks only its last byte cannot be another packet of these types."""
    with pytest.raises(PeerError):
        read_packet(vector.first_byte, vector.body[:-1], vector.version)


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_trailing_byte(vector: Vector) -> None:
    """A byte after the last field is refused; only a PUBLISH has no last field."""
    longer = vector.body + b"\xff"
    if isinstance(vector.packet, Publish):
        packet = read_packet(vector.first_byte, longer, vector.version)
        assert isinstance(packet, Publish)
        assert packet.payload == vector.packet.payload + b"\xff"
    else:
        with pytest.raises(PeerError):
            read_packet(vector.first_byte, longer, vector.version)


@pytest.mark.parametrize("version", [4, 5])
@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_what_is_written_is_read(version: int, data: st.DataObject) -> None:
    """Every valid packet survives its way over the wire."""
    packet = data.draw(packets(version))
    frame = write_packet(packet, version)
    start, size = read_remaining_length(frame, 0)
    assert start + size == len(frame)
    assert read_packet(frame[0], frame[start:], version) == packet


@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from([4, 5]))
@settings(max_examples=examples(1000), deadline=None)
def test_random_bytes_raise_only_errors_of_the_peer(
    first_byte: int, body: bytes, version: int
) -> None:
    """Whatever comes in, only `PeerError` escapes."""
    read_or_refuse(first_byte, body, version)


@given(
    st.sampled_from(VECTORS),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=3),
)
@settings(max_examples=examples(1000), deadline=None)
def test_damaged_packets_raise_only_errors_of_the_peer(
    vector: Vector, damage: list[tuple[int, int]]
) -> None:
    """A valid packet with wrong bytes in it is refused, or read as another."""
    body = bytearray(vector.body)
    for position, value in damage:
        if position < len(body):
            body[position] = value
    read_or_refuse(vector.first_byte, bytes(body), vector.version)


def read_or_refuse(first_byte: int, body: bytes, version: int) -> None:
    """Read a packet; what is not refused can be written again and is then the same."""
    refusal = None
    try:
        packet = read_packet(first_byte, body, version)
    except PeerError as error:
        refusal = error
    if refusal is None:
        assert reread(packet, version) == packet
    else:
        assert refusal.reason_code >= 0x80


def reread(packet: Packet, version: int) -> Packet:
    """Write and read a packet."""
    frame = write_packet(packet, version)
    start, _ = read_remaining_length(frame, 0)
    return read_packet(frame[0], frame[start:], version)


CONNECT_4 = "0004 4d515454 04"
CONNECT_5 = "0004 4d515454 05"

REFUSED = [
    ("packet type 0 [MQTT-2.1.2]", 5, "00", MalformedPacketError, 0x81),
    ("PINGREQ with flags [MQTT-2.1.3-1]", 4, "c1", MalformedPacketError, 0x81),
    ("PUBREL without flags [MQTT-3.6.1-1]", 5, "60 0001", MalformedPacketError, 0x81),
    ("SUBSCRIBE without flags [MQTT-3.8.1-1]", 4, "80 0001 0001 61 00", MalformedPacketError, 0x81),
    ("PUBLISH with QoS 3 [MQTT-3.3.1-4]", 4, "36 0001 61 0001", MalformedPacketError, 0x81),
    ("PUBLISH with QoS 0 and DUP [MQTT-3.3.1-2]", 4, "38 0001 61", MalformedPacketError, 0x81),
    ("PUBLISH with packet id 0 [MQTT-2.2.1-3]", 5, "32 0001 61 0000 00", ProtocolError, 0x82),
    ("PUBLISH to a wildcard [MQTT-3.3.2-2]", 4, "30 0001 23", MalformedPacketError, 0x81),
    ("PUBLISH to + [MQTT-3.3.2-2]", 5, "30 0003 612f2b 00", MalformedPacketError, 0x81),
    ("PUBLISH without topic, 3.1.1 [MQTT-4.7.3-1]", 4, "30 0000", MalformedPacketError, 0x81),
    ("PUBLISH without topic and alias", 5, "30 0000 00", ProtocolError, 0x82),
    ("PUBLISH with topic alias 0 [MQTT-3.3.2-8]", 5, "30 0000 03 23 0000", ProtocolError, 0x94),
    ("PUBLISH with U+0000 [MQTT-1.5.4-2]", 5, "30 0002 6100 00", MalformedPacketError, 0x81),
    ("PUBLISH, surrogate [MQTT-1.5.4-1]", 5, "30 0003 eda080 00", MalformedPacketError, 0x81),
    ("PUBLISH, properties too long", 5, "30 0001 61 09 01", MalformedPacketError, 0x81),
    ("PUBACK with packet id 0", 4, "40 0000", ProtocolError, 0x82),
    ("PUBACK of 3 bytes, 3.1.1", 4, "40 0001 00", MalformedPacketError, 0x81),
    ("PUBACK, undefined reason [MQTT-3.4.2-1]", 5, "40 0001 01", ProtocolError, 0x82),
    ("PUBREL, reason of PUBACK [MQTT-3.6.2-1]", 5, "62 0001 97", ProtocolError, 0x82),
    ("CONNECT, other name [MQTT-3.1.2-1]", 5, "10 0004 4d515455 05", ProtocolError, 0x84),
    ("CONNECT, level 6 [MQTT-3.1.2-2]", 5, "10 0004 4d515454 06", ProtocolError, 0x84),
    (
        "CONNECT, reserved flag [MQTT-3.1.2-3]",
        4,
        f"10 {CONNECT_4} 03 0000 0000",
        MalformedPacketError,
        0x81,
    ),
    (
        "CONNECT, Will QoS 3 [MQTT-3.1.2-14]",
        5,
        f"10 {CONNECT_5} 1e 0000 00 0000 00 0001 61 0000",
        MalformedPacketError,
        0x81,
    ),
    (
        "CONNECT, Will QoS and no Will [MQTT-3.1.2-13]",
        4,
        f"10 {CONNECT_4} 0a 0000 0000",
        MalformedPacketError,
        0x81,
    ),
    (
        "CONNECT, Will Retain and no Will [MQTT-3.1.2-15]",
        4,
        f"10 {CONNECT_4} 22 0000 0000",
        MalformedPacketError,
        0x81,
    ),
    (
        "CONNECT, Will Topic with a wildcard",
        4,
        f"10 {CONNECT_4} 06 0000 0000 0001 23 0000",
        MalformedPacketError,
        0x81,
    ),
    (
        "CONNECT, password without user name, 3.1.1 [MQTT-3.1.2-22]",
        4,
        f"10 {CONNECT_4} 42 0000 0000 0001 70",
        ProtocolError,
        0x82,
    ),
    (
        "CONNECT, authentication data without method",
        5,
        f"10 {CONNECT_5} 02 0000 04 16 0001 00 0000",
        ProtocolError,
        0x82,
    ),
    (
        "CONNECT, receive maximum 0 (3.1.2.11.3)",
        5,
        f"10 {CONNECT_5} 02 0000 03 21 0000 0000",
        ProtocolError,
        0x82,
    ),
    ("CONNACK, reserved flags [MQTT-3.2.2-1]", 4, "20 02 00", MalformedPacketError, 0x81),
    ("CONNACK, return code 6", 4, "20 00 06", ProtocolError, 0x82),
    ("CONNACK, undefined reason [MQTT-3.2.2-8]", 5, "20 00 01 00", ProtocolError, 0x82),
    ("CONNACK, session of a refusal [MQTT-3.2.2-6]", 5, "20 01 80 00", ProtocolError, 0x82),
    ("SUBSCRIBE to nothing [MQTT-3.8.3-2]", 5, "82 0001 00", ProtocolError, 0x82),
    ("SUBSCRIBE with packet id 0", 4, "82 0000 0001 61 00", ProtocolError, 0x82),
    ("SUBSCRIBE, wrong filter", 4, "82 0001 0003 612f2b2f 00", MalformedPacketError, 0x81),
    ("SUBSCRIBE, # inside [MQTT-4.7.1-1]", 4, "82 0001 0002 6123 00", MalformedPacketError, 0x81),
    ("SUBSCRIBE with QoS 3", 5, "82 0001 00 0001 61 03", ProtocolError, 0x82),
    (
        "SUBSCRIBE, reserved bits [MQTT-3.8.3-5]",
        5,
        "82 0001 00 0001 61 40",
        MalformedPacketError,
        0x81,
    ),
    ("SUBSCRIBE, No Local in 3.1.1", 4, "82 0001 0001 61 04", MalformedPacketError, 0x81),
    ("SUBSCRIBE, Retain Handling 3", 5, "82 0001 00 0001 61 30", ProtocolError, 0x82),
    (
        "SUBSCRIBE, shared and No Local [MQTT-3.8.3-4]",
        5,
        "82 0001 00 000a 2473686172652f672f61 04",
        ProtocolError,
        0x82,
    ),
    ("SUBSCRIBE, two identifiers", 5, "82 0001 04 0b01 0b02 0001 61 00", ProtocolError, 0x82),
    ("SUBACK without codes", 4, "90 0001", ProtocolError, 0x82),
    ("SUBACK, return code 3", 4, "90 0001 03", ProtocolError, 0x82),
    ("SUBACK, undefined reason [MQTT-3.9.3-2]", 5, "90 0001 00 03", ProtocolError, 0x82),
    ("UNSUBSCRIBE from nothing [MQTT-3.10.3-2]", 4, "a2 0001", ProtocolError, 0x82),
    ("UNSUBSCRIBE, empty filter", 4, "a2 0001 0000", MalformedPacketError, 0x81),
    ("UNSUBACK with codes, 3.1.1", 4, "b0 0001 00", MalformedPacketError, 0x81),
    ("UNSUBACK without codes", 5, "b0 0001 00", ProtocolError, 0x82),
    ("UNSUBACK, undefined reason [MQTT-3.11.3-2]", 5, "b0 0001 00 01", ProtocolError, 0x82),
    ("PINGREQ with a body", 5, "c0 00", MalformedPacketError, 0x81),
    ("PINGRESP with a body", 4, "d0 00", MalformedPacketError, 0x81),
    ("DISCONNECT with a body, 3.1.1", 4, "e0 00", MalformedPacketError, 0x81),
    ("DISCONNECT, undefined reason [MQTT-3.14.2-1]", 5, "e0 01", ProtocolError, 0x82),
    ("AUTH in 3.1.1", 4, "f0", ProtocolError, 0x82),
    ("AUTH without a method (3.15.2.2.2)", 5, "f0 18 00", ProtocolError, 0x82),
    ("AUTH, undefined reason [MQTT-3.15.2-1]", 5, "f0 01 00", ProtocolError, 0x82),
    ("AUTH of one byte", 5, "f0 18", MalformedPacketError, 0x81),
]


@pytest.mark.parametrize(
    ("version", "digits", "error_class", "reason_code"),
    [pytest.param(*case[1:], id=case[0]) for case in REFUSED],
)
def test_wrong_packets_are_refused(
    version: int, digits: str, error_class: type[PeerError], reason_code: int
) -> None:
    """Each rule that a packet can break has its error and its reason code."""
    data = bytes.fromhex(digits)
    with pytest.raises(error_class) as refusal:
        read_packet(data[0], data[1:], version)
    assert refusal.value.reason_code == reason_code


def test_errors_say_what_was_read_and_what_is_allowed() -> None:
    """A log line is enough to find the fault of a peer."""
    with pytest.raises(ProtocolError) as refusal:
        read_packet(0x10, bytes.fromhex("0006 4d5149736470 04"), 4)
    assert str(refusal.value) == (
        "unsupported protocol version (0x84): "
        "protocol 'MQIsdp' level 4; allowed: 'MQTT' level 4 or 5, 'MQIsdp' level 3"
    )


@pytest.mark.parametrize("rest", ["", "0001 75"])
def test_mqtt_3_1_may_leave_out_what_its_flags_announce(rest: str) -> None:
    """A user name or password may be missing at the end, for clients of the first MQTT 3."""
    body = bytes.fromhex(f"0006 4d5149736470 03 c2 0000 0001 61 {rest}")
    packet = read_packet(0x10, body, 4)
    assert isinstance(packet, Connect)
    assert packet.username == ("u" if rest else None)
    assert packet.password is None


@pytest.mark.parametrize(
    ("first_byte", "digits", "packet"),
    [
        (0x6A, "0001", PubRel(1)),
        (0x8A, "0001 0001 61 01", Subscribe(1, (SubscriptionRequest("a", 1),))),
        (0xAA, "0001 0001 61", Unsubscribe(1, ("a",))),
    ],
)
def test_mqtt_3_1_repeats_more_than_publish(first_byte: int, digits: str, packet: Packet) -> None:
    """Its clients set DUP where they send PUBREL, SUBSCRIBE or UNSUBSCRIBE again."""
    body = bytes.fromhex(digits)
    assert read_packet(first_byte, body, 3) == packet
    for version in (4, 5):
        with pytest.raises(MalformedPacketError):
            read_packet(first_byte, body, version)


@pytest.mark.parametrize(
    ("first_byte", "digits", "packet"),
    [
        (0x4B, "0001", PubAck(1)),
        (0x6B, "0001", PubRel(1)),
        (0x83, "0001 0001 61 01", Subscribe(1, (SubscriptionRequest("a", 1),))),
        (0xCF, "", PingReq()),
        (0xE1, "", Disconnect()),
    ],
)
def test_flags_that_mqtt_3_1_does_not_use_may_be_set(
    first_byte: int, digits: str, packet: Packet
) -> None:
    """They are reserved only since MQTT 3.1.1."""
    body = bytes.fromhex(digits)
    assert read_packet(first_byte, body, 3) == packet
    for version in (4, 5):
        with pytest.raises(MalformedPacketError):
            read_packet(first_byte, body, version)


@pytest.mark.parametrize("first_byte", [0x60, 0x64, 0x80, 0xA6, 0x36, 0x38, 0x08, 0xF1])
def test_flags_that_mqtt_3_1_uses_are_read(first_byte: int) -> None:
    """PUBREL, SUBSCRIBE and UNSUBSCRIBE have QoS 1; there is no QoS 3 and no type 0 or 15."""
    with pytest.raises(MalformedPacketError):
        read_packet(first_byte, bytes.fromhex("0001"), 3)


@pytest.mark.parametrize("first_byte", [0x10, 0x1F])
@pytest.mark.parametrize(
    ("flags", "is_clean"), [(0x01, False), (0x03, True), (0x38, False), (0x1A, True), (0x3B, True)]
)
@pytest.mark.parametrize("level", [0x03, 0x83])
def test_bits_of_connect_that_mqtt_3_1_does_not_use_mean_nothing(
    first_byte: int, flags: int, level: int, *, is_clean: bool
) -> None:
    """Bit 0, and Will QoS and Will Retain where there is no Will; later versions refuse them."""
    rest = f"{flags:02x} 0000 0001 61"
    body = bytes.fromhex(f"0006 4d5149736470 {level:02x} {rest}")
    packet = read_packet(first_byte, body, 4)
    assert isinstance(packet, Connect)
    assert packet == Connect(
        client_id="a",
        protocol_version=3,
        clean_start=is_clean,
        keep_alive=0,
        is_bridge=level == 0x83,
    )
    with pytest.raises(MalformedPacketError):
        read_packet(first_byte, bytes.fromhex(f"0004 4d515454 {level + 1:02x} {rest}"), 4)


def test_the_will_of_mqtt_3_1_is_read_beside_bits_that_it_does_not_use() -> None:
    """Its QoS and Retain count then, and there is no QoS 3."""
    rest = "0000 0001 61 0001 77 0001 78"
    packet = read_packet(0x10, bytes.fromhex(f"0006 4d5149736470 03 2d {rest}"), 4)
    assert isinstance(packet, Connect)
    assert packet.will == Will("w", b"x", 1, True)
    with pytest.raises(MalformedPacketError):
        read_packet(0x10, bytes.fromhex(f"0006 4d5149736470 03 1d {rest}"), 4)


@pytest.mark.mqtt5("2.1.3-1")
@pytest.mark.mqtt311("2.2.2-1")
def test_first_bytes_that_are_no_packet() -> None:
    """Only the types and flags of Table 2-2 are packets, out of 256 first bytes [MQTT-2.1.3-1]."""
    exist = {0x10, 0x20, 0x40, 0x50, 0x62, 0x70, 0x82, 0x90, 0xA2, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0}
    exist |= {*range(0x30, 0x36), *range(0x3A, 0x3E)}
    refused = set()
    for first_byte in range(256):
        try:
            read_packet(first_byte, bytes.fromhex("0001 61 0001 00"), 5)
        except MalformedPacketError as error:
            if "2.1.3-1" in str(error) or "PUBLISH with" in str(error) or "type" in str(error):
                refused.add(first_byte)
        except ProtocolError:
            pass
    assert refused == set(range(256)) - exist


@pytest.mark.parametrize(
    ("first_byte", "reason"),
    [
        (0x0F, "packet type: read 0; allowed: 1 to 15"),
        (0x37, "PUBLISH with QoS 3; allowed: 0, 1, 2"),
        (0x3E, "PUBLISH with QoS 3; allowed: 0, 1, 2"),
        (0x39, "PUBLISH with QoS 0 and DUP"),
        (0xC6, "PINGREQ with flags 0x6; allowed: those of Table 2-2"),
    ],
)
def test_error_of_a_first_byte_says_what_is_wrong_with_it(first_byte: int, reason: str) -> None:
    """Type, QoS, DUP and flags are told apart."""
    with pytest.raises(MalformedPacketError, match=reason):
        read_packet(first_byte, b"", 5)


def test_connect_says_its_own_version() -> None:
    """The version argument is not looked at before a CONNECT has set it."""
    for given_version in (4, 5):
        for level, properties in ((4, ""), (5, "00")):
            body = bytes.fromhex(f"0004 4d515454 {level:02x} 02 0000 {properties} 0000")
            packet = read_packet(0x10, body, given_version)
            assert isinstance(packet, Connect)
            assert packet.protocol_version == level


@pytest.mark.parametrize(
    ("digits", "version"),
    [
        ("0004 4d515454 05 03", 5),
        ("0004 4d515454 06", 5),
        ("0004 4d515454 04 03", 4),
        ("0004 4d515454 03", 4),
        ("0004 4d515454", 4),
        ("0006 4d5149736470 03", 4),
        ("0006 4d5149736470 05", 4),
        ("", 4),
    ],
)
def test_wrong_connect_is_answered_in_a_version_that_the_client_knows(
    digits: str, version: int
) -> None:
    """A client before MQTT 5.0 reads a CONNACK of two bytes [MQTT-3.1.2-2]."""
    body = bytes.fromhex(digits)
    with pytest.raises(PeerError):
        read_packet(0x10, body, 5)
    assert answer_version(body) == answer_version(memoryview(body)) == version


def test_topic_with_alias_is_checked_too() -> None:
    """A Topic Alias does not let a wildcard in [MQTT-3.3.2-2]."""
    with pytest.raises(MalformedPacketError):
        read_packet(0x30, bytes.fromhex("0001 2b 03 23 0001"), 5)


def test_acknowledgement_has_no_properties_of_another() -> None:
    """Two packets that have nothing do not share what a caller may fill."""
    one, other = (read_packet(0x40, b"\0\1", 5) for _ in range(2))
    assert isinstance(one, PubAck)
    assert isinstance(other, PubAck)
    one.properties["reason_string"] = "x"
    assert other.properties == {}


def test_reason_codes_of_errors_are_those_of_the_specification() -> None:
    """Malformed Packet is 0x81 and Protocol Error 0x82 (MQTT 5.0, 4.13)."""
    assert MalformedPacketError("").reason_code == ReasonCode.MALFORMED_PACKET
    assert ProtocolError("").reason_code == ReasonCode.PROTOCOL_ERROR


def test_codec_imports_no_io() -> None:
    """The wire layer runs where there is no loop, socket, clock or chance."""
    program = """
import pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("asyncio", "socket", "ssl", "selectors", "threading", "time", "random"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
sys.modules.pop("time", None)
import penstock.broker.mqtt
names = [module.name for module in pkgutil.iter_modules(penstock.broker.mqtt.__path__)]
for name in names:
    __import__(f"penstock.broker.mqtt.{name}")
print(len(names))
"""
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert int(result.stdout) == len(list((ROOT / "broker" / "mqtt").glob("[a-z]*.py")))
