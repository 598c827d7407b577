"""Runs for sinks, beside sessions or alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.durable import DurableBroker
from tests.helpers.sinks import HoldingSink, RunSink
from tests.helpers.virtual import VirtualBroker, VirtualClient

N_MESSAGES = 20


def broker_with(*sinks: HoldingSink) -> VirtualBroker:
    """Return a broker with fast paths."""
    return VirtualBroker(core_class=FastCore, sinks=sinks)


def publish(client: VirtualClient, topic: str, qos: int, n_messages: int = N_MESSAGES) -> None:
    """Publish messages in one chunk."""
    client.send_bytes(
        b"".join(
            write_packet(
                Publish(topic, b"%d" % number, qos=qos, packet_id=number if qos else 0),
                client.version,
            )
            for number in range(1, n_messages + 1)
        )
    )


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("n_subscribers", [0, 1])
def test_a_sink_gets_a_chunk_as_one_run(version: int, qos: int, n_subscribers: int) -> None:
    """Subscribers get it at the same time; acknowledgements wait for the sink."""
    sink = RunSink("t")
    broker = broker_with(sink)
    subscriber, publisher = broker.connect("s", version), broker.connect("p", version)
    if n_subscribers:
        subscriber.subscribe("t", qos)
    publish(publisher, "t", qos)
    assert [len(sink.messages), sink.n_runs] == [N_MESSAGES, 1]
    assert len(subscriber.payloads()) == n_subscribers * N_MESSAGES
    assert not publisher.inbox
    sink.settle_all()
    broker.settle()
    answers: list[Any] = publisher.take_all(PubRec if qos == 2 else PubAck)
    assert [answer.packet_id for answer in answers] == [*range(1, N_MESSAGES + 1)] * bool(qos)
    if qos == 2:
        publisher.send(*(PubRel(answer.packet_id) for answer in answers))
        assert len(publisher.take_all(PubComp)) == N_MESSAGES
    publish(publisher, "t", qos, 1)  # and a packet that comes by itself
    assert sink.n_runs == 2


def test_a_sink_that_takes_no_runs_is_asked_about_each_message() -> None:
    """Then the other sinks of the topic are, too."""
    one, other = RunSink("t", name="one"), HoldingSink("t", name="other")
    broker = broker_with(one, other)
    publish(broker.connect("p"), "t", 1)
    assert [len(one.messages), one.n_runs, len(other.messages)] == [N_MESSAGES, 0, N_MESSAGES]


def test_a_run_without_room_in_one_sink_is_taken_apart() -> None:
    """What the others have reserved is given back; what there is room for is taken."""
    one, other = RunSink("t", name="one"), RunSink("t", name="other", room=5)
    broker = broker_with(one, other)
    publisher = broker.connect("p")
    publish(publisher, "t", 1)
    assert [one.n_runs, len(one.messages), len(other.messages)] == [0, 5, 5]
    assert one.room == 1000 - 5
    for sink in (one, other):
        sink.settle_all()
    broker.settle()
    codes = [answer.reason_code for answer in publisher.take_all(PubAck)]
    assert codes == [0] * 5 + [0x97] * (N_MESSAGES - 5)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_run_is_refused_message_by_message(qos: int) -> None:
    """MQTT 5 is told; the messages may come again under their Packet Identifiers."""
    sink = RunSink("t")
    broker = broker_with(sink)
    publisher = broker.connect("p")
    publish(publisher, "t", qos)
    sink.settle_all(0x97)
    broker.settle()
    answers: list[Any] = publisher.take_all(PubRec if qos == 2 else PubAck)
    assert [answer.reason_code for answer in answers] == [0x97] * N_MESSAGES
    publish(publisher, "t", qos)
    assert len(sink.messages) == 2 * N_MESSAGES


def test_mqtt_3_comes_again_with_a_refused_run_and_subscribers_do_not_get_it_twice() -> None:
    """It is not acknowledged, as no PUBACK of MQTT 3.1.1 can refuse."""
    sink = RunSink("t")
    broker = broker_with(sink)
    subscriber = broker.connect("s", 4)
    subscriber.subscribe("t", 1)
    publisher = broker.connect("p", 4, clean_start=False)
    publish(publisher, "t", 1, 3)
    sink.settle_all(0x97)
    broker.settle()
    assert publisher.is_lost
    assert not publisher.take_all(PubAck)
    again = broker.connect("p", 4, clean_start=False)
    for number in (1, 2, 3):
        again.publish("t", b"%d" % number, qos=1, packet_id=number, dup=True)
    sink.settle_all()
    broker.settle()
    assert len(again.take_all(PubAck)) == 3
    assert subscriber.payloads() == [b"1", b"2", b"3"]


def test_a_client_that_comes_back_gets_the_acknowledgements_of_its_run() -> None:
    """Its repeats are told from new messages while the sink has not answered."""
    sink = RunSink("t")
    broker = broker_with(sink)
    publisher = broker.connect("p", 4, clean_start=False)
    publish(publisher, "t", 1, 3)
    publisher.lose()
    again = broker.connect("p", 4, clean_start=False)
    for number in (1, 2, 3):
        again.publish("t", b"%d" % number, qos=1, packet_id=number, dup=True)
    assert len(sink.messages) == 3
    sink.settle_all()
    broker.settle()
    assert [answer.packet_id for answer in again.take_all(PubAck)] == [1, 2, 3]


def test_a_sink_that_raises_refuses_a_run() -> None:
    """It is counted, and the publisher is told."""
    sink = RunSink("t")
    broker = broker_with(sink)
    publisher = broker.connect("p")
    sink.error = RuntimeError("at once")
    publish(publisher, "t", 1, 3)
    assert [answer.reason_code for answer in publisher.take_all(PubAck)] == [0x97] * 3
    sink.reserve_run = lambda *_: True  # type: ignore[method-assign]
    publish(publisher, "t", 1, 3)
    assert [answer.reason_code for answer in publisher.take_all(PubAck)] == [0x80] * 3


def test_runs_of_durable_sessions_wait_for_disk_and_sink() -> None:
    """Whichever answers last."""
    sink = RunSink("t")
    broker = DurableBroker(core_class=FastCore, sinks=[sink])
    durable = {"session_expiry_interval": 600}
    broker.connect("s", clean_start=False, properties=durable).subscribe("t", 1)
    publisher = broker.connect("p")
    broker.commits_at_once = False
    publish(publisher, "t", 1)
    assert sink.n_runs == 1
    sink.settle_all()
    broker.settle()
    assert not publisher.take_all(PubAck)
    broker.commit()
    broker.settle()
    assert len(publisher.take_all(PubAck)) == N_MESSAGES
