"""PUBLISH from a client, on a virtual clock: every QoS, sinks, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.events import Callbacks
from penstock.broker.extensions import PayloadStore, Receipt
from penstock.broker.message import OF_MQTT_3, Message
from penstock.broker.mqtt.packets import Disconnect, PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.payload import Payload
from penstock.broker.sessions.broker_state import Core
from tests.helpers.access import Access
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

PATIENT: dict[str, Any] = {
    "clean_start": False,
    "properties": {"session_expiry_interval": 60, "user_property": [("penstock-waits", "yes")]},
}


def _refusing() -> Access:
    """Refuse "not-in" to publishers, and "not-out" to the client named "blind"."""
    access = Access(subscribe=False)
    access.refused = {("publish", "not-in"), ("receive", "not-out", "blind")}
    return access


def pair(broker: VirtualBroker, qos: int, version: int = 5) -> tuple[VirtualClient, VirtualClient]:
    """Return a publisher, and a subscriber to everything."""
    subscriber = broker.connect("s", version)
    subscriber.subscribe("#", qos)
    return broker.connect("p", version), subscriber


@pytest.mark.mqtt5("3.3.4-1", "3.8.4-8")
@pytest.mark.mqtt311("3.3.4-1", "3.8.4-6")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_lower_qos_counts(published: int, granted: int, version: int) -> None:
    """[MQTT-3.8.4-8]: a delivery has the QoS of the message or the grant, whichever is less."""
    publisher, subscriber = pair(VirtualBroker(), granted, version)
    publisher.publish("t", b"x", qos=published, packet_id=5 if published else 0)
    packet = subscriber.take(Publish)
    assert (packet.qos, packet.payload) == (min(published, granted), b"x")
    answers: dict[int, list[object]] = {0: [], 1: [PubAck(5)], 2: [PubRec(5)]}
    assert publisher.inbox == answers[published]


def test_messages_pass_between_the_versions() -> None:
    """What MQTT 3.1.1 cannot carry stays behind, the message does not."""
    broker = VirtualBroker()
    old, new = broker.connect("old", 4), broker.connect("new", 5)
    for client in (old, new):
        client.subscribe("t")
    properties = {"content_type": "text/plain", "user_property": [("a", "1"), ("a", "2")]}
    new.publish("t", b"5", properties=properties)
    old.publish("t", b"4")
    for number in range(5):
        old.publish("t", b"%d" % number)
    assert [p.properties for p in new.take_all(Publish)][:2] == [properties, {}]
    assert old.payloads() == [b"5", b"4", b"0", b"1", b"2", b"3", b"4"]


def test_a_run_of_packets_arrives_whole_and_in_order() -> None:
    """Many packets in one chunk, equal in size or not, on one topic or several."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, 0, 4)
    packets = [
        Publish("a" if number % 7 < 5 else "bb", b"x" * (1 + number % 3) + b"%d" % number)
        for number in range(200)
    ]
    for _ in range(2):
        publisher.send(*packets)
        assert [(p.topic, p.payload) for p in subscriber.take_all(Publish)] == [
            (p.topic, p.payload) for p in packets
        ]
    counters = broker.core.counters
    assert (counters.publish_received, counters.publish_sent) == (400, 400)
    assert subscriber.session.settle_direct().delivered == 400
    subscriber.session.check_invariants()


def test_what_came_before_a_bad_packet_is_delivered() -> None:
    """A client's last words count, though the connection ends with its error."""
    publisher, subscriber = pair(VirtualBroker(), 0)
    for _ in range(2):  # from the second on, the topic's plan is known
        publisher.publish("t", b"x")
    good = write_packet(Publish("t", b"y"), 5)
    publisher.send_bytes(good * 3 + b"\x30\xff\xff\xff\xff\x01")
    assert subscriber.payloads() == [b"x", b"x", b"y", b"y", b"y"]
    assert publisher.is_lost


def test_a_run_may_mix_topics_and_reach_several_audiences() -> None:
    """One slice for those who get all of it, in order for everybody, also without room."""
    broker = VirtualBroker()
    everything, some, stuck = (broker.connect(name, 4) for name in ("all", "some", "stuck"))
    everything.subscribe("#")
    some.subscribe("b")
    stuck.subscribe("+")
    publisher = broker.connect("p", 4)
    topics = ["a", "b", "b", "c", "a", "a", "nobody/else"] * 5
    packets = [Publish(topic, b"%d" % n * (n % 4)) for n, topic in enumerate(topics)]
    publisher.send(*packets)
    stuck.connection.pause_sending(broker.now)
    publisher.send(*packets)
    stuck.connection.resume_sending(broker.now)
    broker.settle()
    for client, wanted in ((everything, "abcn"), (some, "b"), (stuck, "abc")):
        expected = [(p.topic, p.payload) for p in packets if p.topic[0] in wanted]
        assert [(p.topic, p.payload) for p in client.take_all(Publish)] == expected * 2
        client.session.check_invariants()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("version", [4, 5])
def test_chunks_may_end_anywhere(size: int, version: int) -> None:
    """A packet that comes in pieces is the same packet."""
    publisher, subscriber = pair(VirtualBroker(), 1, version)
    packets = [Publish("t", b"%d" % n * n, qos=n % 2, packet_id=n % 2) for n in range(12)]
    data = b"".join(write_packet(packet, version) for packet in packets)
    for start in range(0, len(data), size):
        publisher.send_bytes(data[start : start + size])
    assert subscriber.acknowledge() == [packet.payload for packet in packets]


@pytest.mark.mqtt5("3.3.1-2", "3.3.1-4", "3.3.2-2", "3.3.4-6", "4.13.1-1")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("3601000074 0001", ReasonCode.MALFORMED_PACKET),  # QoS 3
        ("38030001 74", ReasonCode.MALFORMED_PACKET),  # DUP with QoS 0 [MQTT-3.3.1-2]
        ("3003 0005 74", ReasonCode.MALFORMED_PACKET),  # topic longer than the packet
        ("3205 000174 0000", ReasonCode.PROTOCOL_ERROR),  # packet identifier 0
        ("3204 000174 00", ReasonCode.MALFORMED_PACKET),  # ends in the packet identifier
        ("3004 00012b 00", ReasonCode.MALFORMED_PACKET),  # a wildcard [MQTT-3.3.2-2]
        ("3004 0001ff 00", ReasonCode.MALFORMED_PACKET),  # not UTF-8
        ("3003 0000 00", ReasonCode.PROTOCOL_ERROR),  # empty topic, no alias
        ("3006 0000 03 230001", ReasonCode.PROTOCOL_ERROR),
        ("3007 000174 03 230041", ReasonCode.TOPIC_ALIAS_INVALID),  # above the maximum
        ("3006 000174 02 0b01", ReasonCode.PROTOCOL_ERROR),  # [MQTT-3.3.4-6]
        ("3005 000174 09 00", ReasonCode.MALFORMED_PACKET),  # properties go past the end
    ],
)
def test_a_malformed_publish_closes_that_connection_only(data: str, code: ReasonCode) -> None:
    """The reason code of the specification, and nobody else notices."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, 0)
    publisher.send_bytes(bytes.fromhex(data.replace(" ", "")) + b"\xc0\x00" * 5)
    assert publisher.take(Disconnect).reason_code == code
    assert publisher.inbox == []
    assert publisher.is_lost
    broker.connect("other").publish("t", b"fine")
    assert subscriber.payloads() == [b"fine"]
    assert broker.core.counters.peer_errors == {code: 1}


@pytest.mark.mqtt5("4.3.3-8", "4.3.3-10", "4.3.3-11", "4.3.3-12")
def test_qos2_is_delivered_once_however_often_it_comes() -> None:
    """[MQTT-4.3.3-10]: until PUBREL, the packet identifier stands for the same message."""
    publisher, subscriber = pair(VirtualBroker(), 1)
    publisher.publish("t", b"x", qos=2, packet_id=9)
    publisher.publish("t", b"x", qos=2, packet_id=9, dup=True)
    assert publisher.take_all(PubRec) == [PubRec(9), PubRec(9)]
    assert subscriber.acknowledge() == [b"x"]
    publisher.send(PubRel(9))
    assert publisher.take(PubComp) == PubComp(9)
    publisher.publish("t", b"next", qos=2, packet_id=9)
    assert subscriber.acknowledge() == [b"next"]


def test_qos2_is_delivered_once_over_two_connections() -> None:
    """The state of a QoS 2 message belongs to the session."""
    broker = VirtualBroker()
    keep: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 1)
    publisher = broker.connect("p", **keep)
    publisher.publish("t", b"x", qos=2, packet_id=3)
    publisher.lose()
    publisher = broker.connect("p", **keep)
    publisher.publish("t", b"x", qos=2, packet_id=3, dup=True)
    publisher.send(PubRel(3))
    assert [type(packet) for packet in publisher.inbox] == [PubRec, PubComp]
    assert subscriber.acknowledge() == [b"x"]


@pytest.mark.mqtt5("3.8.3-3")
def test_own_messages_come_back_unless_no_local() -> None:
    """[MQTT-3.8.3-3]."""
    client = VirtualBroker().connect()
    client.subscribe("echo")
    client.subscribe("quiet", no_local=True)
    client.publish("echo", b"1")
    client.publish("quiet", b"2")
    assert client.payloads() == [b"1"]


@pytest.mark.mqtt5("3.3.4-3", "3.3.4-4")
def test_subscription_identifiers_are_sent() -> None:
    """[MQTT-3.3.4-3], [MQTT-3.3.4-4]: of every subscription that matched."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("a/#", properties={"subscription_identifier": [7]})
    client.subscribe("a/b", properties={"subscription_identifier": [9]})
    broker.connect("p").publish("a/b", b"x")
    assert sorted(client.take(Publish).properties["subscription_identifier"]) == [7, 9]


@pytest.mark.mqtt5("3.3.2-5", "3.3.2-6")
def test_message_expiry_is_counted_down() -> None:
    """[MQTT-3.3.2-6]: what is left of the interval when the message goes out."""
    broker = VirtualBroker()
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 99})
    client.subscribe("t", 1)
    client.lose()
    publisher = broker.connect("p")
    publisher.publish("t", b"short", qos=1, properties={"message_expiry_interval": 3})
    publisher.publish("t", b"long", qos=1, properties={"message_expiry_interval": 30})
    broker.advance(10)
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 99})
    packet = client.take(Publish)
    assert (packet.payload, packet.properties["message_expiry_interval"]) == (b"long", 20)
    assert client.inbox == []
    assert client.session.ledger.expired == 1


def test_clients_may_not_publish_under_sys() -> None:
    """What is said there is the broker's word; MQTT 3.1.1 cannot say no, so it says nothing."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("$SYS/#")
    client = broker.connect("p")
    client.publish("$SYS/broker/version", b"0", qos=1, retain=True)
    assert client.take(PubAck).reason_code == ReasonCode.NOT_AUTHORIZED
    old = broker.connect("old", 4)
    old.publish("$SYS/broker/version", b"0", qos=1, packet_id=2)
    assert old.take(PubAck) == PubAck(2)
    assert watcher.payloads() == []
    assert len(broker.core.retained) == 0
    assert sum(broker.core.counters.publish_refused.values()) == 2


# -- sinks


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck(4)), (2, PubRec(4))])
def test_a_publisher_is_answered_when_the_sink_has_it_safely(qos: int, answer: object) -> None:
    """Not before; subscribers need not wait for that."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher, subscriber = pair(broker, 0)
    publisher.publish("q/a", b"x", qos=qos, packet_id=4)
    assert publisher.inbox == []
    assert subscriber.payloads() == [b"x"]
    sink.settle()
    broker.settle()
    assert publisher.inbox == [answer]


@pytest.mark.parametrize("version", [4, 5])
def test_a_sink_knows_what_a_client_of_mqtt_3_1_1_has_published(version: int) -> None:
    """Its will, too: who sends it on may keep both in the order of the client's runs."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p", version, will=will("q/b"))
    publisher.publish("q/a", b"x", qos=1, packet_id=4)
    publisher.lose()
    assert [message.topic for message in sink.messages] == ["q/a", "q/b"]
    assert [message.properties is OF_MQTT_3 for message in sink.messages] == [version == 4] * 2


class ReturningSink(HoldingSink):
    """A sink whose `accept` returns False, which says nothing."""

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Keep both."""
        super().accept(message, receipt)
        return False  # type: ignore[return-value]


def test_what_a_sink_returns_is_no_refusal() -> None:
    """A sink refuses by its receipt alone, or by an exception."""
    sink = ReturningSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p")
    publisher.publish("q/a", b"x", qos=1, packet_id=4)
    assert publisher.inbox == []
    sink.settle()
    broker.settle()
    assert publisher.inbox == [PubAck(4)]


@pytest.mark.mqtt5("4.6.0-2")
def test_acknowledgements_keep_the_order_of_the_publishes() -> None:
    """[MQTT-4.6.0-2]: one that is ready waits for those before it."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p")
    for packet_id, topic in enumerate(["q/a", "t", "q/b", "t"], 1):
        publisher.publish(topic, b"x", qos=1, packet_id=packet_id)
    assert publisher.inbox == []
    second = sink.receipts.pop(1)
    assert second is not None
    second.settle(0)
    broker.settle()
    assert publisher.inbox == []
    sink.settle()
    broker.settle()
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [1, 2, 3, 4]


def test_qos0_to_a_sink_asks_for_no_receipt() -> None:
    """Nobody waits for it, and the fast path does not pass the sink by."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher, subscriber = pair(broker, 0, 4)
    for number in range(3):
        publisher.publish("q/a", b"%d" % number)
    assert sink.receipts == [None, None, None]
    assert [message.payload for message in sink.messages] == [b"0", b"1", b"2"]
    assert subscriber.payloads() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt5_is_told_why_a_sink_refuses(qos: int) -> None:
    """A reason code of 0x80 or above; the packet identifier is free again."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p")
    publisher.publish("q/a", b"x", qos=qos, packet_id=4)
    sink.settle(ReasonCode.QUOTA_EXCEEDED)
    broker.settle()
    answer = (PubAck if qos == 1 else PubRec)(4, ReasonCode.QUOTA_EXCEEDED)
    assert publisher.inbox == [answer]
    publisher.publish("q/a", b"again", qos=qos, packet_id=4)
    assert len(sink.receipts) == 1
    assert not publisher.is_lost


def test_mqtt_3_1_1_is_not_acknowledged_what_a_sink_refuses() -> None:
    """There is no word for it: the connection closes, and the client comes again with it."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p", 4)
    publisher.publish("q/a", b"x", qos=1)
    publisher.publish("q/b", b"y", qos=1, packet_id=2)
    sink.settle(ReasonCode.QUOTA_EXCEEDED)
    sink.settle(0)
    broker.settle()
    assert publisher.inbox == []
    assert publisher.is_lost


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    "code",
    [ReasonCode.QUOTA_EXCEEDED, ReasonCode.UNSPECIFIED_ERROR, ReasonCode.SERVER_SHUTTING_DOWN],
)
def test_what_a_patient_client_forwards_is_not_refused_as_a_sink_has_failed(
    qos: int, code: ReasonCode
) -> None:
    """It would be lost: the connection closes, and subscribers get it once when it comes again."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    subscriber = broker.connect("s")
    subscriber.subscribe("q/#", 0)
    publisher = broker.connect("p", **PATIENT)
    publisher.publish("q/a", b"x", qos=qos, packet_id=4)
    publisher.publish("q/b", b"y", qos=qos, packet_id=5)
    sink.settle(code)
    sink.settle()
    broker.settle()
    assert [packet.reason_code for packet in publisher.take_all(Disconnect)] == [code]
    assert publisher.inbox == []
    assert publisher.is_lost
    publisher = broker.connect("p", **PATIENT)
    publisher.publish("q/a", b"x", qos=qos, packet_id=4, dup=True)
    publisher.publish("q/b", b"y", qos=qos, packet_id=5, dup=True)
    while sink.receipts:
        sink.settle()
    broker.settle()
    kind = PubAck if qos == 1 else PubRec
    # Of QoS 2, the second is known: it is answered at once.
    assert publisher.inbox == [kind(packet_id) for packet_id in ((4, 5) if qos == 1 else (5, 4))]
    assert [message.payload for message in sink.messages] == [b"x", b"y", b"x"]
    assert subscriber.payloads() == [b"x", b"y"]


def test_what_a_sink_will_never_take_is_refused_to_a_patient_client_too() -> None:
    """It would come again for good, and hold up what is behind it."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = broker.connect("p", **PATIENT)
    publisher.publish("q/a", b"x", qos=1, packet_id=4)
    sink.settle(ReasonCode.PAYLOAD_FORMAT_INVALID)
    broker.settle()
    assert publisher.inbox == [PubAck(4, ReasonCode.PAYLOAD_FORMAT_INVALID)]


def test_a_sink_that_raises_refuses_and_is_counted() -> None:
    """E3: its fault is named, the publisher is told, the others go on."""
    sink = HoldingSink()
    sink.error = ZeroDivisionError()
    broker = VirtualBroker(sinks=[sink])
    publisher, subscriber = pair(broker, 0)
    publisher.publish("q/a", b"x", qos=1)
    assert publisher.take(PubAck).reason_code == ReasonCode.UNSPECIFIED_ERROR
    assert subscriber.payloads() == [b"x"]
    assert broker.core.counters.extension_errors == {"sink": 1}


def test_a_sink_may_settle_after_the_publisher_has_gone() -> None:
    """QoS 2 is then known to be received when the client comes back."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    keep: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    publisher = broker.connect("p", **keep)
    publisher.publish("q/a", b"1", qos=1)
    publisher.publish("q/a", b"2", qos=2, packet_id=2)
    publisher.publish("q/a", b"3", qos=2, packet_id=3)
    publisher.lose()
    sink.settle()
    sink.settle()
    publisher = broker.connect("p", **keep)
    publisher.publish("q/a", b"2", qos=2, packet_id=2, dup=True)
    publisher.publish("q/a", b"3", qos=2, packet_id=3, dup=True)
    assert publisher.inbox == [PubRec(2)]
    sink.settle()
    broker.settle()
    assert publisher.inbox == [PubRec(2), PubRec(3)]
    assert len(sink.messages) == 3


@pytest.mark.mqtt5("3.3.4-7")
def test_receive_maximum_binds_mqtt5_and_slows_mqtt_3_1_1() -> None:
    """[MQTT-3.3.4-9]: 0x93 for the one, no reading for the other, until sinks have settled."""
    sink = HoldingSink()
    broker = VirtualBroker(Limits(receive_maximum=2), sinks=[sink])
    new = broker.connect("new")
    old = broker.connect("old", 4)
    for packet_id in (1, 2):
        new.publish("q/a", b"x", qos=1, packet_id=packet_id)
        old.publish("q/a", b"x", qos=1, packet_id=packet_id)
    assert not new.is_lost
    assert not old.is_reading
    new.publish("q/a", b"x", qos=2, packet_id=3)
    assert new.take(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    for _ in range(4):
        sink.settle()
    broker.settle()
    assert old.is_reading
    assert [packet.packet_id for packet in old.take_all(PubAck)] == [1, 2]


# -- payload stores, access control, callbacks


LONG = bytes(5000)
"""A payload that a store is asked to keep."""


class FullStore(PayloadStore):
    """A payload store whose disk is full."""

    def keep(self, data: bytes) -> Payload:
        """Refuse."""
        raise OSError(28, f"no space for {len(data)} bytes")


@pytest.mark.mqtt311("4.8.0-2")
def test_a_payload_that_cannot_be_kept_is_refused() -> None:
    """Nothing is acknowledged, and nobody gets half a message."""
    broker = VirtualBroker(payload_store=FullStore(), core_class=Core)
    publisher, subscriber = pair(broker, 1)
    publisher.publish("t", LONG)
    publisher.publish("t", LONG, qos=1)
    assert publisher.take(PubAck).reason_code == ReasonCode.QUOTA_EXCEEDED
    old = broker.connect("old", 4)
    old.publish("t", LONG, qos=1)
    assert old.is_lost
    assert old.inbox == []
    assert subscriber.payloads() == []
    assert sum(broker.core.counters.publish_refused.values()) == 3


def test_access_control_decides_what_goes_in_and_out() -> None:
    """Refused publishes are told in MQTT 5; refused deliveries reach nobody they should not."""
    broker = VirtualBroker(access=_refusing())
    blind, subscriber = broker.connect("blind"), broker.connect("s")
    for client in (blind, subscriber):
        client.subscribe("#", 1)
    publisher = broker.connect("p")
    publisher.publish("not-in", b"1", qos=1)
    assert publisher.take(PubAck).reason_code == ReasonCode.NOT_AUTHORIZED
    publisher.publish("not-out", b"2", qos=1)
    publisher.publish("open", b"3")
    assert subscriber.acknowledge() == [b"2", b"3"]
    assert blind.acknowledge() == [b"3"]


def test_callbacks_see_every_message_and_packet() -> None:
    """Received, routed if allowed, and every packet with its true size, both ways."""
    told: list[Any] = []
    callbacks = Callbacks(message_received=(told.append,), message_routed=(told.append,))
    sizes: list[tuple[str, int, int]] = []

    def note(event: Any) -> None:
        joined = b"".join(event.chunks)
        assert len(joined) == event.size_bytes
        sizes.append((type(event).__name__, event.first_byte >> 4, len(joined)))

    callbacks.packet_received = (note,)
    callbacks.packet_sent = (note,)
    broker = VirtualBroker(access=_refusing(), callbacks=callbacks)
    client = broker.connect("p", 4)
    client.subscribe("#")
    for topic in ("not-in", "open", "open"):
        client.publish(topic, b"x" * 5000)
    assert [type(event).__name__ for event in told] == [
        "MessageReceived",
        "MessageReceived",
        "MessageRouted",
        "MessageReceived",
        "MessageRouted",
    ]
    assert [entry[:2] for entry in sizes] == [
        ("PacketReceived", 1),
        ("PacketSent", 2),
        ("PacketReceived", 8),
        ("PacketSent", 9),
        ("PacketReceived", 3),
        ("PacketReceived", 3),
        ("PacketSent", 3),
        ("PacketReceived", 3),
        ("PacketSent", 3),
    ]
    assert sizes[-1][2] == len(write_packet(Publish("open", b"x" * 5000), 4))


def test_a_callback_that_raises_harms_nobody() -> None:
    """E3: it is counted, and the message goes its way."""

    def fail(_event: object) -> None:
        raise ZeroDivisionError

    broker = VirtualBroker(callbacks=Callbacks(message_received=(fail,)))
    publisher, subscriber = pair(broker, 0)
    publisher.publish("t", b"x")
    assert subscriber.payloads() == [b"x"]
    assert sum(broker.core.counters.extension_errors.values()) == 1


KEEP: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


def test_what_exceeds_receive_maximum_can_be_sent_again() -> None:
    """It was not taken: after a reconnect it is as new, and nothing waits for it for ever."""
    sink = HoldingSink()
    broker = VirtualBroker(Limits(receive_maximum=2), sinks=[sink])
    publisher = broker.connect("p", **KEEP)
    for packet_id in (1, 2, 3):
        publisher.publish("q/a", b"%d" % packet_id, qos=2, packet_id=packet_id)
    assert publisher.take(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    for _ in range(2):
        sink.settle()
    publisher = broker.connect("p", **KEEP)
    publisher.send(PubRel(1), PubRel(2))
    publisher.take_all(PubComp)
    publisher.publish("q/a", b"3", qos=2, packet_id=3, dup=True)
    sink.settle()
    broker.settle()
    assert publisher.take(PubRec).packet_id == 3
    assert [message.payload for message in sink.messages] == [b"1", b"2", b"3"]


def test_refused_publishes_count_towards_receive_maximum() -> None:
    """What is refused waits for its turn to be answered, and so must be bounded, too."""
    sink = HoldingSink()
    broker = VirtualBroker(Limits(receive_maximum=2), sinks=[sink])
    publisher = broker.connect("p")
    publisher.publish("q/a", b"x", qos=1, packet_id=1)
    publisher.publish("$SYS/a", b"x", qos=1, packet_id=2)
    assert publisher.inbox == []
    publisher.publish("$SYS/a", b"x", qos=1, packet_id=3)
    assert publisher.take(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


class FillingStore(PayloadStore):
    """A payload store with room for one payload."""

    def __init__(self) -> None:
        self.n_kept = 0

    def keep(self, data: bytes) -> Payload:
        """Keep the first."""
        self.n_kept += 1
        if self.n_kept > 1:
            raise OSError(28, "no space")
        return data


@pytest.mark.mqtt5("4.3.3-10")
def test_a_repeat_is_answered_though_there_is_no_room_for_another_message() -> None:
    """[MQTT-4.3.3-10]: a refusal of what was delivered would make its publisher send it anew."""
    broker = VirtualBroker(payload_store=FillingStore())
    publisher, subscriber = pair(broker, 0)
    publisher.publish("t", LONG, qos=2, packet_id=1)
    publisher.publish("t", LONG, qos=2, packet_id=1, dup=True)
    assert [packet.reason_code for packet in publisher.take_all(PubRec)] == [0, 0]
    assert subscriber.payloads() == [LONG]
