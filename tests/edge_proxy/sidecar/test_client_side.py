from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.broker.mqtt.packets import (
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
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.outbox.outbox import MIN_SWEEP_MESSAGES
from penstock.edge_proxy.sidecar.client_side import MAX_URGENT_BYTES
from tests.helpers.effort import examples
from tests.helpers.gates import SwitchGate
from tests.helpers.proxied_clients import DOWN, UP, VirtualClient, publish, withholding
from tests.helpers.samplers import NotingSampler

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@VERSIONS
def test_what_need_not_wait_passes_byte_for_byte(version: int) -> None:
    """Small messages of every QoS and all other packets are the broker's very bytes."""
    proxied = VirtualClient.connected(version, gate=SwitchGate())
    properties = {"user_property": [("b", "2"), ("a", "1")]} if version == 5 else {}
    data = b"".join(
        write_packet(packet, version)
        for packet in (
            publish("a", properties=properties),
            PingResp(),
            publish("b", packet_id=5, dup=True, retain=True),
            SubAck(9, (1,)),
            publish("c", packet_id=6, qos=2),
            PubRel(3),
        )
    )
    for size in (len(data), 1, 7):
        proxied.proxied.client.acks = type(proxied.proxied.client.acks)()
        for begin in range(0, len(data), size):
            proxied.broker_sends_bytes(data[begin : begin + size])
        assert proxied.client_got == data
        proxied.client_got = b""


@VERSIONS
def test_small_messages_and_all_other_packets_pass_a_withheld_one(version: int) -> None:
    """Nothing but its own topic waits for a withheld message."""
    proxied, gate = withholding(version)
    proxied.broker_sends(
        publish("small"),
        publish("big", 1, packet_id=2),
        PingResp(),
        PubAck(1),
        publish("small", packet_id=3),
    )
    passed = [type(p).__name__ + getattr(p, "topic", "") for p in proxied.to_client()]
    assert sorted(passed) == ["PingResp", "PubAck", "Publishsmall", "Publishsmall"]
    gate.is_open = True
    proxied.advance(1.0)
    assert proxied.topics() == ["big", "big"]


class OrderedGate(SwitchGate):
    """Lets topic `first` pass all, small messages their topic, and wants newest pictures alone."""

    keeps_topics = False
    supersedes = True

    def is_first(self, topic: str) -> bool:
        """Say so of one topic."""
        return topic == "first"


def test_what_passes_what_is_as_the_gate_says() -> None:
    """Priority, `ordering: none` and `supersede` are the proxy's as well."""
    proxied, gate = withholding(gate=OrderedGate())
    proxied.broker_sends(
        publish("first", 300, packet_id=2),
        publish("big", 1, packet_id=3),
        publish("picture", 201),
        publish("picture", 202),
    )
    assert proxied.topics() == ["first", "big"]
    gate.is_open = True
    proxied.advance(1.0)
    released = [packet for packet in proxied.to_client() if isinstance(packet, Publish)]
    assert [(packet.topic, len(packet.payload)) for packet in released] == [
        ("big", 200),
        ("picture", 202),
    ]
    assert proxied.proxied.client.ledger.dropped == {"superseded": 1}


def test_a_released_message_is_the_one_that_was_withheld() -> None:
    """Topic, payload, QoS, flags, packet id and properties survive the wait."""
    proxied, gate = withholding()
    properties = {
        "content_type": "image/png",
        "correlation_data": b"\0\1",
        "payload_format_indicator": 1,
        "response_topic": "answers",
        "subscription_identifier": [3, 70_000],
        "user_property": [("b", "2"), ("a", "1"), ("b", "3")],
    }
    sent = publish("other", 5000, packet_id=8, dup=True, retain=True, properties=properties)
    proxied.broker_sends(sent)
    gate.is_open = True
    proxied.advance(1.0)
    assert proxied.to_client() == [publish("big", 200, packet_id=1), sent]


def test_the_broker_sees_an_acknowledgement_only_after_the_client_gave_it() -> None:
    """While a message is withheld, and until the client answers, nothing goes upstream."""
    proxied, gate = withholding()
    ledger = proxied.proxied.client.ledger
    gate.is_open = True
    proxied.advance(1.0)
    assert proxied.to_broker() == []
    assert (ledger.matched, ledger.delivered) == (1, 0)
    proxied.client_sends(PubAck(1))
    assert proxied.to_broker() == [PubAck(1)]
    assert ledger.delivered == 1


def test_an_acknowledgement_of_a_withheld_message_is_not_passed_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client cannot have it: its answer is for something else, and the log says so."""
    proxied, gate = withholding()
    proxied.client_sends(PubAck(1), publish("up"))
    assert proxied.to_broker() == [publish("up")]
    assert "PUBACK for packet id 1, which was not sent yet" in caplog.text
    gate.is_open = True
    proxied.advance(1.0)
    proxied.client_sends(PubAck(1))
    assert proxied.to_broker() == [PubAck(1)]


def test_a_qos_2_delivery_is_booked_at_pubcomp() -> None:
    """The whole exchange passes both ways; the ledger has it delivered at its end."""
    proxied = VirtualClient.connected(gate=SwitchGate(is_open=True))
    proxied.broker_sends(publish("big", 200, packet_id=1, qos=2))
    proxied.client_sends(PubRec(1))
    proxied.broker_sends(PubRel(1))
    assert proxied.proxied.client.ledger.delivered == 0
    proxied.client_sends(PubComp(1))
    assert proxied.proxied.client.ledger.delivered == 1
    assert proxied.to_broker() == [PubRec(1), PubComp(1)]
    assert proxied.to_client() == [publish("big", 200, packet_id=1, qos=2), PubRel(1)]


def test_a_refusal_by_the_client_is_booked_as_dropped() -> None:
    """A reason code of 0x80 or above is no delivery."""
    proxied = VirtualClient.connected()
    proxied.broker_sends(publish("a", packet_id=1))
    proxied.client_sends(PubAck(1, ReasonCode.QUOTA_EXCEEDED))
    assert proxied.proxied.client.ledger.dropped == {"refused": 1}
    assert proxied.to_broker() == [PubAck(1, ReasonCode.QUOTA_EXCEEDED)]


def test_a_repeat_of_what_is_on_its_way_is_sent_once() -> None:
    """A broker that repeats on a timer does not double what waits here."""
    proxied, gate = withholding()
    proxied.broker_sends(publish("big", 200, packet_id=1, dup=True))
    gate.is_open = True
    proxied.advance(1.0)
    proxied.broker_sends(publish("big", 200, packet_id=1, dup=True))
    assert proxied.topics() == ["big"]
    assert proxied.proxied.client.ledger.matched == 1


@pytest.mark.parametrize(("seconds", "left"), [(20.0, 40), (20.6, 40), (59.9, 1)])
def test_the_expiry_interval_is_counted_down_while_a_message_waits(
    seconds: float, left: int
) -> None:
    """[MQTT-3.3.2-6]: the client gets what is left of it, in whole seconds as from the broker."""
    proxied = VirtualClient.connected(gate=(gate := SwitchGate()))
    gate.look_again_after = 100.0
    properties = {"message_expiry_interval": 60}
    proxied.broker_sends(publish("big", 200, packet_id=1, properties=properties))
    proxied.advance(seconds)
    gate.is_open = True
    proxied.proxied.client.link_changed()
    proxied.settle()
    (sent,) = proxied.to_client()
    assert isinstance(sent, Publish)
    assert sent.properties == {"message_expiry_interval": left}


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck), (2, PubRec)])
def test_what_expires_here_is_refused_to_the_broker(
    qos: int, answer: type[PubAck | PubRec]
) -> None:
    """Its place in the broker's inflight window is free again, and no delivery is claimed."""
    proxied = VirtualClient.connected(gate=SwitchGate())
    properties = {"message_expiry_interval": 5}
    proxied.broker_sends(publish("big", 200, packet_id=1, qos=qos, properties=properties))
    proxied.advance(4.9)
    assert proxied.to_broker() == []
    proxied.advance(0.2)
    assert proxied.to_broker() == [answer(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]
    assert proxied.to_client() == []
    client = proxied.proxied.client
    assert (client.ledger.expired, client.ledger.outstanding(), len(client.acks)) == (1, 0, 0)
    assert proxied.proxied.next_deadline() is None
    proxied.broker_sends(publish("small", packet_id=1))
    assert proxied.topics() == ["small"]


def test_what_expires_behind_a_withheld_message_is_refused_to_the_broker() -> None:
    """Nobody takes it out of its place before it is swept up: the broker is told all the same."""
    proxied, _ = withholding()
    proxied.broker_sends(publish("big", 1, packet_id=2, properties={"message_expiry_interval": 5}))
    proxied.advance(6.0)
    proxied.broker_sends(*(publish("big", 1) for _ in range(2 * MIN_SWEEP_MESSAGES)))
    assert proxied.to_broker() == [PubAck(2, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]
    client = proxied.proxied.client
    assert (client.ledger.expired, len(client.acks)) == (1, 1)
    client.check_invariants()


def test_a_refusal_waits_for_the_end_of_the_clients_packet() -> None:
    """The proxy's own packet never splits one that the client is sending."""
    proxied = VirtualClient.connected(gate=SwitchGate())
    properties = {"message_expiry_interval": 5}
    proxied.broker_sends(publish("big", 200, packet_id=1, properties=properties))
    frame = write_packet(publish("up", 5000), 5)
    proxied.client_sends_bytes(frame[:100])
    proxied.advance(6.0)
    proxied.client_sends_bytes(frame[100:])
    assert proxied.to_broker() == [publish("up", 5000), PubAck(1, 0x83)]


@VERSIONS
def test_reading_goes_on_whatever_is_withheld_at_qos_1_and_2(version: int) -> None:
    """The window bounds it, not `queued_messages` and `queued_bytes`: PINGRESP gets through."""
    proxied, gate = withholding(version, queued_messages=3, queued_bytes=1000)
    proxied.broker_sends(
        *(publish("big", 200, packet_id=n, qos=1 + n % 2) for n in range(2, 40)), PingResp()
    )
    assert proxied.to_client() == [PingResp()]
    assert proxied.proxied.wants_reading(DOWN)
    gate.is_open = True
    proxied.advance(1.0)
    assert proxied.topics() == ["big"] * 39
    assert proxied.proxied.client.ledger.dropped == {}


@VERSIONS
def test_at_the_window_reading_stops_and_nothing_of_qos_1_is_dropped(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that sends more than it was asked for is named; all of it arrives in the end."""
    proxied, gate = withholding(version, upstream_receive_maximum=3)
    proxied.broker_sends(*(publish("big", 1, packet_id=n) for n in range(2, 20)))
    client = proxied.proxied.client
    assert client.outbox.n_messages == 3
    assert not proxied.proxied.wants_reading(DOWN)
    proxied.broker_sends(PingResp(), *(publish("big", 1, packet_id=n) for n in range(20, 30)))
    assert client.outbox.n_messages == 3
    gate.is_open = True
    proxied.advance(1.0)
    arrived = [getattr(packet, "packet_id", None) for packet in proxied.to_client()]
    assert arrived == [*range(1, 20), None, *range(20, 30)]
    assert proxied.proxied.wants_reading(DOWN)
    assert client.ledger.dropped == {}
    told = "client c: the broker sends more than 3 unacknowledged messages"
    assert caplog.text.count(told) == (version == 5)


def test_the_clients_own_window_is_kept() -> None:
    """Receive Maximum 2: the third waits here for an acknowledgement, QoS 0 does not."""
    proxied = VirtualClient.connected(connect={"receive_maximum": 2})
    proxied.broker_sends(*(publish(f"t{n}", packet_id=n, qos=1 + n % 2) for n in range(1, 5)))
    assert proxied.topics() == ["t1", "t2"]
    proxied.broker_sends(publish("qos0"))
    assert proxied.topics() == ["qos0"]
    assert proxied.proxied.client.outbox.why_nothing() == "inflight window full"
    proxied.client_sends(PubRec(1))
    assert proxied.topics() == []
    proxied.client_sends(PubComp(1), PubAck(2, ReasonCode.QUOTA_EXCEEDED))
    assert proxied.topics() == ["t3", "t4"]
    proxied.proxied.client.check_invariants()


def test_withheld_messages_take_no_place_in_the_clients_window() -> None:
    """With a window of 1, small messages pass a withheld large one."""
    proxied, _ = withholding(connect={"receive_maximum": 1})
    for packet_id in (2, 3):
        proxied.broker_sends(publish("small", packet_id=packet_id))
        assert proxied.topics() == ["small"]
        proxied.client_sends(PubAck(packet_id))


def test_qos_0_bytes_are_limited_and_one_message_always_fits() -> None:
    """A message longer than the limit alone is taken: it could never pass otherwise."""
    proxied = VirtualClient.connected(queued_bytes=1000)
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(publish("big", 5000), publish("other", 200))
    assert proxied.proxied.client.outbox.n_messages == 1
    assert not proxied.proxied.wants_reading(DOWN)
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == ["big", "other"]


def test_qos_0_is_dropped_only_where_something_is_withheld() -> None:
    """Then reading goes on, so that PINGRESP gets through; the drop is counted."""
    proxied, gate = withholding(queued_messages=3)
    proxied.broker_sends(*(publish("big", 1) for _ in range(5)), PingResp())
    assert proxied.proxied.wants_reading(DOWN)
    assert proxied.to_client() == [PingResp()]
    assert proxied.proxied.client.ledger.dropped == {"queue_full": 2}
    gate.is_open = True
    proxied.advance(1.0)
    assert proxied.topics() == ["big", "big", "big", "big"]


def test_a_slow_client_stops_the_broker_and_loses_nothing() -> None:
    """Where nothing is withheld, QoS 0 waits as it would without a proxy."""
    proxied = VirtualClient.connected(queued_messages=3)
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(*(publish(f"t{n}") for n in range(10)))
    assert not proxied.proxied.wants_reading(DOWN)
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == [f"t{n}" for n in range(10)]
    assert proxied.proxied.client.ledger.delivered == 10


@VERSIONS
def test_what_a_slow_client_has_to_wait_for_is_the_brokers_very_bytes(version: int) -> None:
    """Small messages of QoS 0 wait as they came, and before all that came after them."""
    gate = SwitchGate(200, is_open=True)
    proxied = VirtualClient.connected(
        version, gate=gate, queued_messages=50, write_high_bytes=64, write_low_bytes=16
    )
    proxied.broker_sends(publish("a"), publish("b"))
    assert proxied.topics() == ["a", "b"]
    packets = [publish("ab"[n // 10 % 2], 10 + n % 20 // 15) for n in range(40)]
    data = b"".join(write_packet(packet, version) for packet in packets)
    client = proxied.proxied.client
    proxied.proxied.pause_sending(DOWN)
    for begin in range(0, len(data), 50):
        proxied.broker_sends_bytes(data[begin : begin + 50])
        client.check_invariants()
    assert not proxied.client_got
    assert client.qos0_backlog.n_messages == client.n_waiting == 40
    assert client.qos0_backlog.n_bytes == sum(len(packet.payload) for packet in packets)
    proxied.broker_sends(publish("a", 300), publish("a"), PingResp())
    assert proxied.to_client() == [PingResp()]
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.client_got.startswith(data)
    assert proxied.topics() == [packet.topic for packet in packets] + ["a", "a"]
    client.check_invariants()
    assert client.ledger.delivered == 44


def test_what_waits_as_bytes_is_bounded_and_dropped_when_the_client_goes() -> None:
    """By messages and by payload bytes, then the broker is not read from."""
    for limit, size, n_waiting in (("queued_messages", 5, 5), ("queued_bytes", 35, 4)):
        limits: dict[str, Any] = {limit: size}
        proxied = VirtualClient.connected(**limits)
        proxied.broker_sends(publish("a", 10))
        proxied.proxied.pause_sending(DOWN)
        proxied.broker_sends(*(publish("a", 10) for _ in range(9)))
        client = proxied.proxied.client
        assert client.qos0_backlog.n_messages == client.n_waiting == n_waiting
        assert not proxied.proxied.wants_reading(DOWN)
        assert not proxied.proxied.is_drained
        proxied.proxied.connection_lost(UP, proxied.now)
        assert client.ledger.dropped == {"connection_lost": n_waiting}
        client.check_invariants()


def test_a_priority_message_does_not_wait_behind_a_slow_clients_others() -> None:
    """Where there are priority topics, nothing waits as bytes."""
    proxied = VirtualClient.connected(gate=OrderedGate())
    proxied.broker_sends(publish("first"), publish("a"))
    assert proxied.topics() == ["first", "a"]
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(publish("a"), publish("a"), publish("first"))
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == ["first", "a", "a"]


def test_a_client_that_reads_no_acknowledgements_stops_the_broker() -> None:
    """Urgent packets go past a full connection, but not without end."""
    proxied = VirtualClient.connected()
    proxied.proxied.pause_sending(DOWN)
    pings = write_packet(PingResp(), 5) * (MAX_URGENT_BYTES // 2)
    proxied.broker_sends_bytes(pings)
    assert proxied.proxied.wants_reading(DOWN)
    proxied.broker_sends(PingResp())
    assert not proxied.proxied.wants_reading(DOWN)
    proxied.proxied.resume_sending(DOWN)
    assert proxied.proxied.wants_reading(DOWN)


def stopped(**options: Any) -> VirtualClient:
    """Return a proxied client that does not read from its broker: the client is slow."""
    proxied = VirtualClient.connected(queued_messages=3, **options)
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(*(publish(f"t{n}") for n in range(4)))
    assert not proxied.proxied.wants_reading(DOWN)
    return proxied


def test_while_reading_is_stopped_the_proxy_answers_pingreq() -> None:
    """Keep Alive holds on both sides; each PINGREQ has one PINGRESP, whoever sends it."""
    proxied = stopped()
    for _ in range(2):
        proxied.client_sends(PingReq())
        assert proxied.to_broker() == [PingReq()]
        assert proxied.to_client() == [PingResp()]
    proxied.broker_sends(PingResp(), publish("last"), PingResp())
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == ["t0", "t1", "t2", "t3", "last"]
    proxied.client_sends(PingReq())
    assert proxied.to_client() == []
    proxied.broker_sends(PingResp())
    assert proxied.to_client() == [PingResp()]


def test_a_pingreq_from_before_the_stop_is_answered_at_the_stop() -> None:
    """The broker's answer is behind what is not read."""
    proxied = VirtualClient.connected(queued_messages=3)
    proxied.client_sends(PingReq())
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(*(publish(f"t{n}") for n in range(4)), PingResp())
    assert proxied.to_client() == [PingResp()]
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == ["t0", "t1", "t2", "t3"]


def test_a_client_that_reads_no_answers_gets_no_more_of_them() -> None:
    """What is written past a full connection is bounded, whoever writes it."""
    proxied = stopped()
    proxied.client_sends_bytes(write_packet(PingReq(), 5) * MAX_URGENT_BYTES)
    n_bytes = len(proxied.client_got)
    proxied.client_sends(PingReq())
    assert len(proxied.client_got) == n_bytes


def test_large_messages_leave_one_at_a_time() -> None:
    """After each the transport may say that it is full; the rest then stays."""
    proxied = VirtualClient.connected(gate=SwitchGate(is_open=True))
    data = b"".join(write_packet(publish(f"big{n}", 200), 5) for n in range(3))
    proxied.proxied.receive_data(DOWN, data, proxied.now)
    proxied.proxied.pump(0, proxied.now)
    assert b"".join(proxied.proxied.data_to_send(DOWN)).count(b"big") == 1
    proxied.proxied.pause_sending(DOWN)
    proxied.settle()
    assert proxied.client_got == b""
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.topics() == ["big1", "big2"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x30\x01\x00", "PUBLISH ends within its variable header"),
        (b"\x32\x04\x00\x02ab", "PUBLISH ends within its variable header"),
        (b"\x30\x06\x00\x01a\x09\x09\x00\x06", "PUBLISH ends within its properties"),
        (b"\x30\x07\x00\x01a\x03\x23\x00\x00", "topic_alias: read 0"),
        (b"\x30\x07\x00\x01a\x03\x23\x00\x01", "PUBLISH with a Topic Alias"),
        (b"\x30\x06\x00\x00\x03\x23\x00\x01", "PUBLISH with an empty topic"),
        (b"\x30\x04\x00\x01#\x00", "#"),
        (b"\x32\x06\x00\x01a\x00\x00\x00", "packet id: read 0"),
        (b"\x82\x00", "SUBSCRIBE from the broker"),
        (b"\xd0\xff\xff\xff\xff", "remaining length"),
        (b"\x30\xe8\x07", "packet of 1003 bytes; allowed: at most 1000"),
        (b"\x30\xe8\x07" + bytes(1000), "packet of 1003 bytes; allowed: at most 1000"),
    ],
)
def test_what_breaks_the_format_ends_the_pair(
    data: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that sends nonsense is named in the log; what came before it has passed."""
    proxied = VirtualClient.connected(maximum_packet_size=1000)
    good = write_packet(publish("good"), 5)
    proxied.broker_sends_bytes(good + data + bytes(40))
    assert proxied.proxied.is_closing
    assert proxied.to_client() == [publish("good"), Disconnect(ReasonCode.UNSPECIFIED_ERROR)]
    assert "ended: the broker sent: " in caplog.text
    assert text in caplog.text


def test_a_fault_behind_a_full_outbox_is_found_when_there_is_room() -> None:
    """What was left unread is read later, by the same rules."""
    proxied = stopped()
    proxied.broker_sends_bytes(b"\x36\x00")
    assert not proxied.proxied.is_closing
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.proxied.is_closing


def test_samplers_follow_every_qos_1_and_2_delivery() -> None:
    """Sent when it is handed over, not when it comes; acknowledged by PUBACK or PUBREC."""
    sampler = NotingSampler(1.0, has_news=True)
    gate = SwitchGate()
    proxied = VirtualClient.connected(gate=gate, samplers=[sampler])
    assert sampler.told == [("connected", "c")]
    proxied.broker_sends(publish("big", 200, packet_id=1), publish("small", 3, packet_id=2, qos=2))
    proxied.broker_sends(publish("none"))
    assert sampler.told[1:] == [("sent", "c", 2, 3)]
    proxied.client_sends(PubRec(2), PubComp(2), PubAck(77))
    assert sampler.told[2:] == [("acknowledged", "c", 2)]
    gate.is_open = True
    proxied.proxied.fileno = 12
    proxied.advance(1.0)
    assert sampler.told[3:] == [("sample", "c", 12, 0), ("sent", "c", 1, 200)]


def test_a_new_estimate_asks_the_gate_again() -> None:
    """A withheld message leaves on the news of an acknowledgement, before its deadline."""
    gate = SwitchGate()
    gate.look_again_after = 1000.0
    proxied = VirtualClient.connected(gate=gate, samplers=[NotingSampler(1.0, has_news=True)])
    proxied.broker_sends(publish("big", 200, packet_id=1), publish("small", packet_id=2))
    assert proxied.topics() == ["small"]
    gate.is_open = True
    proxied.client_sends(PubAck(2))
    assert proxied.topics() == ["big"]


def test_what_waits_when_the_client_goes() -> None:
    """QoS 0 is dropped and counted; QoS 1 and 2 are left to the broker, unacknowledged."""
    sampler, gate = NotingSampler(1.0, has_news=True), SwitchGate()
    proxied = VirtualClient.connected(gate=gate, samplers=[sampler])
    proxied.broker_sends(
        publish("big", 200, packet_id=1), publish("big"), publish("small", packet_id=2)
    )
    proxied.proxied.connection_lost(UP, proxied.now)
    proxied.settle()
    ledger = proxied.shared.ended
    assert ledger.dropped == {"connection_lost": 1}
    assert (ledger.matched, ledger.delivered, ledger.moved) == (3, 0, 2)
    assert proxied.to_broker() == []
    assert gate.forgotten == [proxied.proxied.link]
    assert sampler.told[-1] == ("forget", "c")


LIKE = st.builds(
    publish,
    st.sampled_from(["a", "bb"]),
    st.sampled_from([0, 1, 120, 300]),
    st.integers(0, 40),
    st.sampled_from([1, 2]),
    retain=st.booleans(),
    properties=st.sampled_from([{}, {"content_type": "x"}, {"message_expiry_interval": 5}]),
)


@settings(max_examples=examples(40), deadline=None)
@given(
    version=st.sampled_from([4, 5]),
    packets=st.lists(st.tuples(LIKE, st.integers(1, 6)), max_size=8),
    receive_maximum=st.integers(1, 30),
    is_open=st.booleans(),
)
def test_a_run_of_like_packets_is_what_each_of_them_is(
    version: int, packets: list[tuple[Publish, int]], receive_maximum: int, *, is_open: bool
) -> None:
    """Bytes, account, window and what samplers are told, whether in one chunk or in pieces.

    Where large messages wait for the end of a chunk, others may take the window's last places.
    """
    if any(len(packet.payload) > 200 for packet, _ in packets):
        receive_maximum = 60
    frames: list[bytes] = []
    for packet, times in packets:
        for _ in range(times):
            packet_id = len(frames) + 1 if packet.packet_id else 0
            properties = packet.properties if version == 5 else {}
            each = dataclasses.replace(packet, packet_id=packet_id, properties=properties)
            frames.append(write_packet(each, version))
    seen = []
    for is_whole in (True, False):
        sampler = NotingSampler()
        proxied = VirtualClient.connected(
            version,
            connect={"receive_maximum": receive_maximum} if version == 5 else {},
            gate=SwitchGate(200, is_open=is_open),
            samplers=[sampler],
        )
        for data in [b"".join(frames)] if is_whole else frames:
            for piece in [data] if is_whole else (data[:3], data[3:]):
                proxied.broker_sends_bytes(piece)
        got = proxied.to_client()
        answered = [
            write_packet(PubAck(packet.packet_id), version)
            for packet in got
            if isinstance(packet, Publish) and packet.qos == 1
        ]
        for data in [b"".join(answered)] if is_whole else answered:
            proxied.client_sends_bytes(data)
        client = proxied.proxied.client
        client.check_invariants()
        ledger = client.ledger
        account = ledger.matched, ledger.delivered, ledger.dropped, client.acks.n_inflight
        got += proxied.to_client()
        seen.append((sorted(map(repr, got)), account, sorted(map(repr, sampler.told))))
    assert seen[0] == seen[1]


class Conservation(RuleBasedStateMachine):
    """Whatever comes and goes, every message is in one place, and a topic keeps its order."""

    @initialize(version=st.sampled_from([4, 5]), limit=st.integers(1, 6), window=st.integers(1, 4))
    def connect(self, version: int, limit: int, window: int) -> None:
        """Begin with a small outbox and small windows."""
        self.gate = SwitchGate()
        self.proxied = VirtualClient.connected(
            version,
            connect={"receive_maximum": window} if version == 5 else {},
            gate=self.gate,
            queued_messages=limit,
            upstream_receive_maximum=2 * limit,
        )
        self.client = self.proxied.proxied.client
        self.next_id = 1
        self.number = 0
        self.owed: list[Publish] = []
        self.newest: dict[str, int] = {}
        self.unfinished: set[int] = set()

    @rule(
        topic=st.sampled_from("ab"),
        size=st.sampled_from([8, 200]),
        qos=st.integers(0, 2),
        expiry=st.sampled_from([None, 1, 5]),
    )
    def broker_sends(self, topic: str, size: int, qos: int, expiry: int | None) -> None:
        """A message that says its number."""
        self.number += 1
        packet_id = 0
        if qos:
            packet_id = self.next_id
            self.next_id += 1
        has_expiry = expiry is not None and self.proxied.version == 5
        properties = {"message_expiry_interval": expiry} if has_expiry else {}
        payload = b"%d" % self.number
        self.proxied.broker_sends(
            Publish(topic, payload.ljust(size), qos, False, False, packet_id, properties)
        )

    @rule(is_open=st.booleans())
    def switch(self, is_open: bool) -> None:  # noqa: FBT001 (drawn)
        """Open or close the gate."""
        self.gate.is_open = is_open

    @rule(is_full=st.booleans())
    def transport(self, is_full: bool) -> None:  # noqa: FBT001 (drawn)
        """The client's connection fills up or has room again."""
        if is_full:
            self.proxied.proxied.pause_sending(DOWN)
        else:
            self.proxied.proxied.resume_sending(DOWN)
        self.proxied.settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.proxied.advance(seconds)

    @rule()
    def answer(self) -> None:
        """The client answers the oldest message that it has, to the end."""
        if not self.owed:
            return
        packet = self.owed.pop(0)
        answers: list[Packet] = [PubAck(packet.packet_id)]
        if packet.qos == 2:
            answers = [PubRec(packet.packet_id), PubComp(packet.packet_id)]
        self.proxied.client_sends(*answers)

    @invariant()
    def nothing_is_lost_or_out_of_order(self) -> None:
        """The ledger balances; what arrives of a topic is newer than what arrived before."""
        for packet in self.proxied.to_client():
            assert isinstance(packet, Publish)
            number = int(packet.payload)
            assert number > self.newest.get(packet.topic, 0)
            self.newest[packet.topic] = number
            if packet.qos:
                self.owed.append(packet)
        self.client.check_invariants()
        assert set(self.client.ledger.dropped) <= {"queue_full"}
        assert not self.proxied.proxied.is_closing


TestConservation = Conservation.TestCase
TestConservation.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)


@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from([4, 5]))
def test_nothing_but_a_peers_error_leaves(chunks: list[bytes], version: int) -> None:
    """Bytes without any order in them end the proxied client or pass; they never raise."""
    proxied = VirtualClient.connected(version, gate=SwitchGate())
    for chunk in chunks:
        proxied.broker_sends_bytes(chunk)


def test_nothing_is_due_while_a_full_window_keeps_a_withheld_message() -> None:
    """The gate is asked again once the client has acknowledged something."""
    proxied, gate = withholding(connect={"receive_maximum": 1})
    proxied.broker_sends(publish("small", packet_id=2))
    assert proxied.topics() == ["small"]
    gate.is_open = True
    proxied.now += 3600.0
    proxied.proxied.handle_timeout(proxied.now)
    proxied.settle()
    assert proxied.proxied.next_deadline() is None
    proxied.client_sends(PubAck(2))
    assert proxied.topics() == ["big"]
