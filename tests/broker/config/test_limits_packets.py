"""How large a packet and how old a session may be, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.riddle import Riddle
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

MAXIMUM = 1000

TOO_LARGE = ReasonCode.PACKET_TOO_LARGE


def publish(n_bytes: int, version: int) -> bytes:
    """Return a PUBLISH packet of so many bytes, above 130."""
    around = len(write_packet(Publish("t", bytes(200), qos=1, packet_id=1), version)) - 200
    data = write_packet(Publish("t", bytes(n_bytes - around), qos=1, packet_id=1), version)
    assert len(data) == n_bytes
    return data


def connect(n_bytes: int, version: int) -> bytes:
    """Return a CONNECT packet of so many bytes, above 200, most of them a will's."""

    def with_payload(size: int) -> bytes:
        packet = Connect(client_id="c", protocol_version=version, will=will(payload=bytes(size)))
        return write_packet(packet, version)

    data = with_payload(n_bytes - (len(with_payload(200)) - 200))
    assert len(data) == n_bytes
    return data


@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_of_the_maximum_size_passes_and_no_larger_one(version: int) -> None:
    """MQTT 5 is told Packet too large, by the first bytes of the packet already."""
    broker = VirtualBroker(Limits(maximum_packet_size=MAXIMUM))
    client = broker.connect("c", version)
    client.send_bytes(publish(MAXIMUM, version))
    assert client.take(PubAck).packet_id == 1
    client.send_bytes(publish(MAXIMUM + 1, version)[:5])
    wanted = [TOO_LARGE] if version == 5 else []
    assert [packet.reason_code for packet in client.take_all(Disconnect)] == wanted
    assert client.inbox == []
    assert client.is_lost
    assert broker.core.counters.peer_errors == {TOO_LARGE: 1}


@pytest.mark.parametrize("version", [4, 5])
def test_a_connect_of_the_maximum_size_passes_and_no_larger_one(version: int) -> None:
    """CONNACK says so in MQTT 5; MQTT 3.1.1 has no return code for it."""
    broker = VirtualBroker(Limits(maximum_packet_size=MAXIMUM))
    client = VirtualClient(broker, version)
    client.send_bytes(connect(MAXIMUM, version))
    assert client.take(ConnAck).reason_code == 0
    refused = VirtualClient(broker, version)
    refused.send_bytes(connect(MAXIMUM + 1, version))
    codes = [packet.reason_code for packet in refused.take_all(ConnAck)]
    assert codes == ([TOO_LARGE] if version == 5 else [])
    assert refused.is_lost


@pytest.mark.parametrize(
    ("body", "answer"), [(b"\0\4MQTT\5", [TOO_LARGE]), (b"\0\4MQTT\4", []), (b"\0\4MQ", [])]
)
@pytest.mark.parametrize(
    ("limits", "maximum"),
    [
        (Limits(), 128 * 1024),
        (Limits(connect_bytes=70_000), 70_000),
        (Limits(connect_bytes=200_000), 200_000),
        (Limits(control_bytes=20_000), 20_000),
    ],
)
def test_a_stranger_has_less_room(
    limits: Limits, maximum: int, body: bytes, answer: list[int]
) -> None:
    """Whatever the maximum for clients, and before the bytes have come."""
    length = maximum - 4 + 1
    header = bytes([0x10, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
    client = VirtualClient(VirtualBroker(limits))
    client.send_bytes(header + body)
    assert [packet.reason_code for packet in client.take_all(ConnAck)] == answer
    assert client.is_lost


@pytest.mark.parametrize("version", [4, 5])
def test_the_longest_will_and_a_long_password_fit_into_a_connect(version: int) -> None:
    """By default; a will's payload may have 65,535 bytes."""
    client = VirtualBroker().connect(
        "c" * 1000,
        version,
        username="u" * 1000,
        password=bytes(16_000),
        will=will("w" * 1000, bytes(65_535)),
    )
    assert client.connack.reason_code == 0


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_authenticates_a_stranger_has_no_more_room(*, is_whole: bool) -> None:
    """AUTH before CONNACK."""
    broker = VirtualBroker(Limits(connect_bytes=500), authenticators=[Riddle()])
    client = VirtualClient(broker)
    method = {"authentication_method": "RIDDLE"}
    client.send(Connect(client_id="c", properties=method))
    assert isinstance(client.inbox.pop(), Auth)
    data = write_packet(Auth(0x18, {**method, "authentication_data": bytes(500)}), 5)
    client.send_bytes(data if is_whole else data[:10])
    assert [packet.reason_code for packet in client.take_all(ConnAck)] == [TOO_LARGE]
    assert client.is_lost


@pytest.mark.parametrize("version", [4, 5])
def test_no_session_outlives_its_bound(version: int) -> None:
    """`session_expiry_interval` holds for MQTT 3.1.1 too, whose sessions last for ever else."""
    keep = {"session_expiry_interval": 0xFFFFFFFF} if version == 5 else {}
    for limit, away, is_there in ((60.0, 59, True), (60.0, 61, False), (None, 10**9, True)):
        broker = VirtualBroker(session_expiry_limit=limit)
        client = broker.connect("c", version, clean_start=False, properties=keep)
        client.lose()
        broker.advance(away)
        assert len(broker.core.sessions) == is_there
        again = broker.connect("c", version, clean_start=False, properties=keep)
        assert again.connack.session_present == is_there


def test_other_packets_than_publish_have_a_limit_of_their_own() -> None:
    """Many small filters take much more memory than their bytes; a payload does not."""
    broker = VirtualBroker(Limits(control_bytes=500))
    for n_filters, is_allowed in ((98, True), (99, False)):
        for is_whole in (True, False):
            client = broker.connect("c")
            packet = Subscribe(1, (SubscriptionRequest("ab"),) * n_filters)
            data = write_packet(packet, 5)
            assert (len(data) <= 500) == is_allowed
            client.send_bytes(data if is_whole else data[:100])
            if is_allowed:
                assert not client.is_lost
            else:
                assert client.take(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
            client.lose()
    client = broker.connect("c")
    client.publish("t", bytes(100_000), qos=1)
    assert client.take(PubAck).packet_id == 1


def user_properties(n_bytes: int) -> dict[str, Any]:
    """Return user properties of so many bytes, a multiple of five."""
    return {"user_property": [("", "")] * (n_bytes // 5)}


@pytest.mark.parametrize(
    "kind", [Publish, Subscribe, Unsubscribe, PubAck, PubRec, PubRel, PubComp, Disconnect]
)
@pytest.mark.parametrize("n_packets", [1, 3])
def test_more_user_properties_than_are_allowed_end_the_connection(
    kind: Callable[..., Packet], n_packets: int
) -> None:
    """Each becomes objects: a packet within all limits of bytes could have 200,000 of them."""
    broker = VirtualBroker(Limits(properties=3))
    fields: dict[Callable[..., Packet], tuple[Any, ...]] = {
        Publish: ("t", b"x", 1, False, False, 1),
        Subscribe: (1, (SubscriptionRequest("a"),)),
        Unsubscribe: (1, ("a",)),
        Disconnect: (0,),
    }
    for n_properties, is_allowed in ((3, True), (4, False)):
        client = broker.connect("c")
        packet = kind(*fields.get(kind, (1, 0)), user_properties(5 * n_properties))
        client.send(*[packet] * n_packets)
        told = [each.reason_code for each in client.take_all(Disconnect)]
        assert told == ([] if is_allowed else [ReasonCode.QUOTA_EXCEEDED])
        client.lose()


@pytest.mark.parametrize("is_of_will", [False, True])
def test_a_connect_with_more_user_properties_than_are_allowed_is_refused(
    *, is_of_will: bool
) -> None:
    """Nobody knows yet who it is."""
    broker = VirtualBroker(Limits(properties=3))
    for n_properties, is_allowed in ((3, True), (4, False)):
        properties = user_properties(5 * n_properties)
        told: dict[str, Any] = (
            {"will": will(properties=properties)} if is_of_will else {"properties": properties}
        )
        client = broker.connect("c", **told)
        assert client.connack.reason_code == (0 if is_allowed else ReasonCode.QUOTA_EXCEEDED)


@pytest.mark.parametrize(("n_bytes", "code"), [(256, 0x82), (258, 0x97)])
def test_subscription_identifiers_of_a_client_are_bounded_by_their_bytes(
    n_bytes: int, code: int
) -> None:
    """A client may send none with a PUBLISH [MQTT-3.3.4-6]; they are read to be told apart."""
    limits = Limits(properties=3, properties_bytes=256)
    client = VirtualBroker(limits).connect("c")
    client.publish("t", b"x", properties={"subscription_identifier": [1] * (n_bytes // 2)})
    assert client.take(Disconnect).reason_code == code


def test_the_properties_of_a_publish_have_a_limit_of_their_own() -> None:
    """Whatever its payload has: each reader gets a copy of them."""
    broker = VirtualBroker(Limits(properties_bytes=500))
    for n_bytes, is_allowed in ((500, True), (505, False)):
        client = broker.connect("c")
        client.publish("t", bytes(1000), properties=user_properties(n_bytes))
        assert client.is_lost == (not is_allowed)
    assert client.take(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED


def test_large_properties_count_towards_what_a_session_may_have_waiting() -> None:
    """Messages without payload must not fill the memory past `queued_bytes`."""
    limits = Limits(queued_bytes=100_000, queue_full="drop_newest", properties=1_000)
    broker = VirtualBroker(limits)
    away = broker.connect("away", clean_start=False, properties={"session_expiry_interval": 60})
    away.subscribe("#", 1)
    away.lose()
    publisher = broker.connect("p")
    for n_bytes, n_waiting in ((1000, 50), (5000, 1)):
        for _ in range(50):
            publisher.publish("t", qos=1, properties=user_properties(n_bytes))
        session = broker.session("away")
        session.check_invariants()
        assert session.outbox.n_messages == n_waiting
        session.outbox.drop_all("session_ended")
    assert session.ledger.dropped["queue_full"] == 49


LARGE_PAYLOAD = "packet too large (0x95)"


@pytest.mark.mqtt5("3.4.2-1", "3.5.2-1")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_a_payload_beyond_the_limit_is_acknowledged_and_goes_nowhere(
    version: int, *, retain: bool
) -> None:
    """MQTT 5 says 0x97, as PUBACK knows no 0x95; a 3.1.1 client must not send it for ever."""
    broker = VirtualBroker(Limits(payload_bytes=100))
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t", 2)
    client = broker.connect("p", version)
    code = ReasonCode.QUOTA_EXCEEDED if version == 5 else ReasonCode.SUCCESS
    for n_bytes in (100, 101):
        for qos in (0, 1, 2):
            client.publish("t", bytes(n_bytes), qos=qos, packet_id=qos, retain=retain)
            answer = 0 if n_bytes == 100 else code
            if qos == 1:
                assert client.take(PubAck).reason_code == answer
            elif qos == 2:
                assert client.take(PubRec).reason_code == answer
                if answer < 0x80:
                    client.send(PubRel(2))
                    assert client.take(PubComp).reason_code == 0
        assert subscriber.payloads() == ([bytes(100)] * 3 if n_bytes == 100 else [])
    assert not client.is_lost
    assert broker.core.counters.publish_refused == {LARGE_PAYLOAD: 3}
    late = broker.connect("late", version)
    late.subscribe("t")
    assert late.payloads() == [bytes(100)] * retain


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_beyond_the_limit_is_refused_among_others_like_it(qos: int, version: int) -> None:
    """The ways by which many small packets are taken at once measure payloads too."""
    broker = VirtualBroker(Limits(payload_bytes=100))
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t", qos)
    client = broker.connect("p", version)
    sizes = [50, 50, 100, 100, 101, 101, 101, 50]
    packets = [
        write_packet(Publish("t", bytes(size), qos=qos, packet_id=qos and number), version)
        for number, size in enumerate(sizes, 1)
    ]
    client.send_bytes(b"".join(packets))
    for packet in packets[4:]:
        client.send_bytes(packet)
    passed = [size for size in sizes if size <= 100] + [50] * (qos < 2)
    assert [len(payload) for payload in subscriber.payloads()] == passed
    n_refused = 6 if qos < 2 or version == 5 else 3  # the same QoS 2 packets, repeated
    assert broker.core.counters.publish_refused == {LARGE_PAYLOAD: n_refused}


def test_the_size_of_a_payload_that_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Lines about one client become rarer and rarer."""
    broker = VirtualBroker(Limits(payload_bytes=100))
    client = broker.connect("p")
    with caplog.at_level("INFO"):
        for _ in range(1000):
            client.publish("t", bytes(101))
    told = [record.message for record in caplog.records if "refused" in record.message]
    assert told[0] == f"client p: publish to t refused: {LARGE_PAYLOAD}; 1 so far"
    assert len(told) == 10


@pytest.mark.parametrize(
    ("version", "code"), [(4, ReasonCode.NOT_AUTHORIZED), (5, ReasonCode.PACKET_TOO_LARGE)]
)
def test_a_will_beyond_the_limit_of_payloads_is_refused(version: int, code: ReasonCode) -> None:
    """With the CONNECT that brings it."""
    broker = VirtualBroker(Limits(payload_bytes=100))
    broker.connect("c", version, will=will(payload=bytes(100)))
    client = VirtualClient(broker, version)
    client.send(Connect(client_id="d", protocol_version=version, will=will(payload=bytes(101))))
    assert client.take(ConnAck).reason_code == code
    assert client.is_lost
