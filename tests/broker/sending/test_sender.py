"""What leaves a connection, and when, on a virtual clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.extensions import PayloadStore
from penstock.broker.mqtt.packets import (
    Connect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.payload import JOIN_BELOW_BYTES, Payload
from penstock.broker.sending.sender import PUMP_BYTES
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.session import PUMP_MESSAGES, pump
from tests.helpers.gates import SwitchGate
from tests.helpers.samplers import NotingSampler
from tests.helpers.virtual import VirtualBroker, VirtualClient

KEEP: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


def pair(
    broker: VirtualBroker, qos: int = 1, **options: Any
) -> tuple[VirtualClient, VirtualClient]:
    """Return a publisher, and a subscriber to everything."""
    subscriber = broker.connect("s", **options)
    subscriber.subscribe("#", qos)
    return broker.connect("p"), subscriber


@pytest.mark.mqtt5("3.3.4-9", "4.9.0-1", "4.9.0-2")
def test_no_more_is_inflight_than_the_client_takes() -> None:
    """[MQTT-3.3.4-7]: Receive Maximum; the rest waits, QoS 0 does not."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, properties={"receive_maximum": 2})
    for number in range(5):
        publisher.publish("t", b"%d" % number, qos=1)
    publisher.publish("t", b"now")
    packets = subscriber.take_all(Publish)
    assert [packet.payload for packet in packets] == [b"0", b"1", b"now"]
    assert subscriber.session.outbox.why_nothing() == "inflight window full"
    subscriber.send(PubAck(packets[0].packet_id))
    assert subscriber.payloads() == [b"2"]
    subscriber.session.check_invariants()


def test_the_brokers_own_limit_of_inflight_messages_holds_too() -> None:
    """The lesser of the two counts."""
    broker = VirtualBroker(Limits(inflight_messages=1))
    publisher, subscriber = pair(broker, properties={"receive_maximum": 9})
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=1)
    assert subscriber.payloads() == [b"0"]


@pytest.mark.parametrize("size", [JOIN_BELOW_BYTES, JOIN_BELOW_BYTES + 1, 1_000_000])
@pytest.mark.parametrize("qos", [0, 1])
def test_payloads_of_any_size_arrive_unchanged(size: int, qos: int) -> None:
    """Joined to their header or not."""
    publisher, subscriber = pair(VirtualBroker())
    payload = bytes(range(256)) * (size // 256 + 1)
    publisher.publish("t", payload[:size], qos=qos)
    assert subscriber.payloads() == [payload[:size]]


def test_a_large_payload_is_written_by_reference_to_every_subscriber() -> None:
    """One object, however many connections it goes to."""
    broker = VirtualBroker(core_class=Core)
    clients = [broker.connect(f"s{n}") for n in range(3)]
    for client in clients:
        client.subscribe("t", 1)
    broker.core.turn.take_touched()
    publisher = broker.connect("p")
    publisher.connection.receive_data(b"\x30\xa4\x9c\x01\x00\x01t\x00" + b"x" * 20_000, broker.now)
    payloads = [client.connection.outgoing.data_to_send()[-1] for client in clients]
    assert len(payloads[0]) == 20_000
    assert all(payload is payloads[0] for payload in payloads)


def test_a_paused_connection_gets_nothing_until_it_has_room() -> None:
    """What comes meanwhile waits in the outbox, in order."""
    publisher, subscriber = pair(VirtualBroker(), 0)
    subscriber.connection.pause_sending(subscriber.broker.now)
    for number in range(3):
        publisher.publish("t", b"%d" % number)
    assert subscriber.inbox == []
    assert subscriber.session.outbox.n_messages == 3
    subscriber.connection.resume_sending(subscriber.broker.now)
    subscriber.broker.settle()
    publisher.publish("t", b"3")
    assert subscriber.payloads() == [b"0", b"1", b"2", b"3"]
    subscriber.session.check_invariants()


def test_a_pump_leaves_the_rest_for_the_next_turn() -> None:
    """One subscriber's backlog is not written in one go while others wait."""
    publisher, subscriber = pair(VirtualBroker(), 0)
    subscriber.stall()
    for _ in range(100):
        publisher.publish("t", b"x" * 4000)
    subscriber.connection.outgoing.is_paused = False
    subscriber.connection.outgoing.want_pump()
    pump(subscriber.connection.client, 0, 0.0)
    assert PUMP_BYTES <= subscriber.connection.outgoing.out_bytes < PUMP_BYTES + 5000
    assert subscriber.connection.outgoing.wants_more


def test_withheld_messages_wait_and_small_ones_pass() -> None:
    """The gate decides on large messages only, and is asked again in time."""
    gate = SwitchGate()
    broker = VirtualBroker(gate=gate)
    publisher, subscriber = pair(broker)
    for _ in range(2):
        publisher.publish("cam", b"L" * 101, qos=1)
        publisher.publish("alarm", b"small", qos=1)
        publisher.publish("never", b"F" * 101)
        assert subscriber.acknowledge() == [b"small", b"F" * 101]
    assert subscriber.session.outbox.n_withheld == 2
    subscriber.unsent_bytes = 77
    gate.is_open = True
    broker.advance(0.9)
    assert subscriber.acknowledge() == []
    broker.advance(0.2)
    assert subscriber.acknowledge() == [b"L" * 101] * 2
    assert gate.unsent[-1] == 77
    subscriber.session.check_invariants()


def test_the_gates_next_look_is_one_deadline_however_often_it_is_asked() -> None:
    """A stream of small messages does not leave timers behind."""
    gate = SwitchGate()
    gate.look_again_after = 5.0
    broker = VirtualBroker(gate=gate)
    publisher, subscriber = pair(broker)
    publisher.publish("cam", b"L" * 101)
    for _ in range(50):
        broker.advance(0.01)
        publisher.publish("alarm", b"small")
    assert len(gate.unsent) == 1
    assert len(broker.core.timers._heap) < 10
    assert len(subscriber.payloads()) == 50


def test_a_withheld_message_whose_time_comes_while_the_window_is_full_sets_no_timer() -> None:
    """It cannot leave before an acknowledgement: a timer would come at once, for ever."""
    gate = SwitchGate()
    broker = VirtualBroker(Limits(inflight_messages=2), gate=gate)
    publisher, subscriber = pair(broker)
    publisher.publish("cam", b"L" * 101, qos=1)
    for _ in range(3):
        publisher.publish("alarm", b"small", qos=1)
    broker.advance(1.0)
    gate.is_open = True
    for _ in range(3):
        deadline = broker.core.timers.next_deadline()
        assert deadline is None or deadline > broker.now
        broker.advance(1.0)
    assert subscriber.acknowledge() == [b"small"] * 2
    assert sorted(subscriber.acknowledge()) == [b"L" * 101, b"small"]


def test_samplers_see_what_is_sent_and_acknowledged() -> None:
    """QoS 1 by its PUBACK, QoS 2 by its PUBREC; news lets the gate decide anew."""
    gate, sampler = SwitchGate(), NotingSampler()
    gate.look_again_after = 1e9
    broker = VirtualBroker(gate=gate, samplers=[sampler])
    publisher, subscriber = pair(broker, 2)
    publisher.publish("t", b"12345", qos=1)
    publisher.publish("t", b"1234567", qos=2)
    publisher.publish("cam", b"L" * 101, qos=0)
    first, second = subscriber.take_all(Publish)
    subscriber.send(PubAck(first.packet_id))
    gate.is_open = True
    sampler.has_news = True
    subscriber.send(PubRec(second.packet_id))
    assert subscriber.take_all(Publish)[0].topic == "cam"
    subscriber.send(PubComp(second.packet_id))
    subscriber.lose()
    assert [entry for entry in sampler.told if entry[1] == "s"] == [
        ("connected", "s"),
        ("sent", "s", first.packet_id, 5),
        ("sent", "s", second.packet_id, 7),
        ("acknowledged", "s", first.packet_id),
        ("acknowledged", "s", second.packet_id),
        ("forget", "s"),
    ]


@pytest.mark.mqtt5("3.3.1-1", "4.3.3-6", "4.4.0-1", "4.6.0-1")
@pytest.mark.mqtt311("2.3.1-4", "3.3.1-1", "4.4.0-1", "4.6.0-1")
@pytest.mark.parametrize("version", [4, 5])
def test_what_was_inflight_is_sent_again_after_a_reconnect(version: int) -> None:
    """[MQTT-4.4.0-1]: with DUP, the same packet identifiers, in order, PUBREL where due."""
    broker = VirtualBroker()
    keep = KEEP if version == 5 else {"clean_start": False}
    publisher, subscriber = pair(broker, 2, version=version, **keep)
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2, packet_id=2)
    publisher.publish("t", b"3", qos=2, packet_id=3)
    first, second, third = subscriber.take_all(Publish)
    subscriber.send(PubRec(second.packet_id))
    subscriber.lose()
    publisher.publish("t", b"4", qos=1, packet_id=4)
    again = broker.connect("s", version, **keep)
    resent = again.inbox
    assert resent[:3] == [
        Publish("t", b"1", 1, dup=True, packet_id=first.packet_id),
        PubRel(second.packet_id),
        Publish("t", b"3", 2, dup=True, packet_id=third.packet_id),
    ]
    new = resent[3]
    assert isinstance(new, Publish)
    assert (new.payload, new.dup) == (b"4", False)
    assert again.session.ledger.matched == 4
    again.session.check_invariants()


class Lost:
    """A payload that cannot be read back."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self) -> bytes:
        """Fail."""
        raise OSError(5, "input/output error")

    def read_piece(self, start: int) -> bytes:  # noqa: ARG002 (nothing is there)
        """Fail."""
        raise OSError(5, "input/output error")


class LosingStore(PayloadStore):
    """Loses every payload."""

    def keep(self, data: bytes) -> Payload:
        """Lose."""
        return Lost(len(data))


def test_a_payload_that_cannot_be_read_back_is_counted_and_the_rest_goes_on() -> None:
    """Nothing leaves silently, and one bad file does not stop a subscriber."""
    broker = VirtualBroker(payload_store=LosingStore())
    publisher, subscriber = pair(broker, 1)
    publisher.publish("t", b"x" * 5000, qos=1)
    publisher.publish("t", b"x" * 500_000, qos=1)
    publisher.publish("t", b"x" * 500_000, qos=0)
    publisher.publish("t", b"fine", qos=1)
    assert subscriber.acknowledge() == [b"fine"]
    assert subscriber.session.ledger.dropped == {"payload_lost": 3}
    subscriber.session.check_invariants()


@pytest.mark.mqtt5("3.3.4-9")
def test_what_is_sent_again_keeps_to_the_new_connections_receive_maximum() -> None:
    """A reconnect with a smaller Receive Maximum is sent no more than that [MQTT-3.3.4-9]."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, **KEEP)
    for number in range(1, 8):
        publisher.publish(f"t{number}", b"%d" % number, qos=1, packet_id=number)
    subscriber.lose()
    properties = {"session_expiry_interval": 600, "receive_maximum": 2}
    again = broker.connect("s", clean_start=False, properties=properties)
    publisher.publish("new", b"8", qos=1, packet_id=8)
    received = []
    while any(isinstance(packet, Publish) for packet in again.inbox):
        assert len([p for p in again.inbox if isinstance(p, Publish) and p.qos]) <= 2
        received += again.acknowledge()
        again.session.check_invariants()
    assert received == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]


def test_what_was_not_sent_again_is_so_once_after_the_next_reconnect() -> None:
    """However often a connection breaks while it repeats, each message is repeated once."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, **KEEP)
    for number in range(1, 4):
        publisher.publish("t", b"%d" % number, qos=1, packet_id=number)
    subscriber.lose()
    for _ in range(3):
        broken = broker.connect("s", clean_start=False, properties=KEEP["properties"])
        broken.lose()
        stuck = VirtualClient(broker)
        stuck.connection.pause_sending(stuck.broker.now)
        stuck.send(Connect(client_id="s", protocol_version=5, keep_alive=0, **KEEP))
        stuck.lose()
    again = broker.connect("s", **KEEP)
    assert again.acknowledge() == [b"1", b"2", b"3"]


def test_what_is_acknowledged_before_it_is_sent_again_is_not() -> None:
    """A PUBACK on the new connection for what came on the old one ends the delivery."""
    broker = VirtualBroker()
    publisher, subscriber = pair(broker, **KEEP)
    for number in range(1, 4):
        publisher.publish("t", b"%d" % number, qos=1, packet_id=number)
    ids = [packet.packet_id for packet in subscriber.take_all(Publish)]
    subscriber.lose()
    again = VirtualClient(broker)
    again.connection.pause_sending(again.broker.now)
    again.send(Connect(client_id="s", protocol_version=5, keep_alive=0, **KEEP))
    again.send(PubAck(ids[1]))
    again.connection.resume_sending(again.broker.now)
    broker.settle()
    assert again.acknowledge() == [b"1", b"3"]
    again.session.check_invariants()


def test_a_few_bytes_cannot_ask_for_more_than_one_turn_may_write() -> None:
    """Many subscriptions to many retained messages: what has no room yet does not even wait."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    for number in range(100):
        publisher.publish(f"r/{number}", bytes(4000), retain=True)
    client = broker.connect("c")
    filters = ("#", "r/#", "+/+", "r/+")
    frame = write_packet(Subscribe(1, tuple(SubscriptionRequest(name) for name in filters)), 5)
    client.connection.receive_data(frame * 5, broker.now)
    assert client.connection.outgoing.out_bytes < 2 * PUMP_BYTES
    assert not client.session.outbox.n_messages
    client.session.check_invariants()
    broker.settle()
    received = Counter(packet.topic for packet in client.take_all(Publish))
    assert len(received) == 100
    assert min(received.values()) == len(filters)


@pytest.mark.parametrize(
    ("packet", "n_packets"),
    [(PingReq(), 20_000), (Publish("t", qos=1, packet_id=1), 20_000), (PubRel(1), 20_000)],
)
@pytest.mark.parametrize("version", [4, 5])
def test_client_that_only_sends_is_not_read_from(
    packet: Packet, n_packets: int, version: int
) -> None:
    """Answers that nobody reads do not fill the memory; who reads them is heard again."""
    broker = VirtualBroker()
    client = broker.connect("c", version)
    client.connection.pause_sending(broker.now)
    client.send(*[packet] * 1000)
    assert client.is_reading
    client.send(*[packet] * n_packets)
    assert not client.is_reading
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert client.is_reading
    assert len(client.inbox) == 1000 + n_packets


def test_a_pump_that_took_all_that_waited_leaves_its_session_direct() -> None:
    """As many messages as one pump takes do not make those behind them wait as well."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    publisher = broker.connect("p")
    subscriber.connection.pause_sending(broker.now)
    for _ in range(PUMP_MESSAGES):
        publisher.publish("t")
    subscriber.connection.resume_sending(broker.now)
    broker.core.turn.take_touched()
    pump(subscriber.connection.client, 0, broker.now)
    assert subscriber.session.is_direct
    assert not subscriber.connection.outgoing.wants_more


def test_a_packet_that_a_client_does_not_take_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With its type, the client and the size that is allowed, and nothing is sent."""
    client = VirtualBroker().connect("c", properties={"maximum_packet_size": 60})
    requests = tuple(SubscriptionRequest(f"t/{number}", 0) for number in range(60))
    client.send(Subscribe(1, requests))
    assert client.inbox == []
    assert caplog.messages == [
        "client c: SUBACK not sent, it is longer than the client's Maximum Packet Size of 60 bytes"
    ]
