"""Messages that sinks store once, over the ends of connections and of the broker."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.extensions import Receipt
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PubAck, PubComp, PubRec, PubRel
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.deduplication_release import RETRY_SECONDS
from tests.helpers.durable import DurableBroker
from tests.helpers.sinks import HoldingSink, StoringSink
from tests.helpers.virtual import VirtualBroker, VirtualClient

KEEP: dict[str, Any] = {
    "clean_start": False,
    "properties": {"session_expiry_interval": 0xFFFF_FFFF},
}


def again(broker: VirtualBroker, version: int = 5) -> VirtualClient:
    """Connect the publisher to its session, if there is one."""
    options = KEEP if version == 5 else {"clean_start": False}
    return broker.connect("p", version, **options)


@pytest.mark.parametrize("version", [4, 5])
def test_a_qos_2_message_is_stored_once_where_the_broker_is_killed_before_its_pubrec(
    version: int,
) -> None:
    """The sink's commit is done; the session knows nothing of the message after the restart."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    publisher = again(broker, version)
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    sink.commit(is_killed=True)
    broker = broker.crash()
    publisher = again(broker, version)
    assert publisher.connack.session_present
    publisher.publish("q/a", b"1", qos=2, packet_id=7, dup=True)
    sink.commit()
    broker.settle()
    publisher.take(PubRec)
    assert sink.stored == [b"1"]
    publisher.send(PubRel(7))
    assert publisher.inbox == []
    sink.commit()
    broker.settle()
    publisher.take(PubComp)
    assert not sink.known


def test_a_qos_2_message_is_stored_where_the_broker_is_killed_before_the_commit() -> None:
    """The repeat is the first that the sink stores."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    again(broker).publish("q/a", b"1", qos=2, packet_id=7)
    sink.waiting.clear()
    broker = broker.crash()
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=2, packet_id=7, dup=True)
    sink.commit()
    assert sink.stored == [b"1"]


def test_another_message_under_the_packet_identifier_is_stored() -> None:
    """The publisher has lost its state, and the broker was killed: without DUP it is no repeat."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    again(broker).publish("q/a", b"1", qos=2, packet_id=7)
    sink.commit(is_killed=True)
    broker = broker.crash()
    again(broker).publish("q/a", b"2", qos=2, packet_id=7)
    sink.commit()
    assert sink.stored == [b"1", b"2"]


def test_a_packet_identifier_is_free_only_when_its_message_is_forgotten() -> None:
    """A killed broker may not remember what the client may use for another message."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    sink.commit()
    broker.settle()
    publisher.take(PubRec)
    publisher.send(PubRel(7))
    assert publisher.inbox == []
    sink.waiting.clear()  # the broker is killed: neither is committed
    broker = broker.crash()
    publisher = again(broker)
    publisher.send(PubRel(7))
    assert publisher.inbox == []
    sink.commit()
    broker.settle()
    publisher.take(PubComp)
    # The first attempt of another message is lost with the connection.
    publisher.lose()
    publisher = again(broker)
    publisher.publish("q/a", b"2", qos=2, packet_id=7, dup=True)
    sink.commit()
    assert sink.stored == [b"1", b"2"]


def test_a_pubrel_that_no_session_knows_frees_nothing_that_a_sink_knows() -> None:
    """PUBREC had gone out, and the broker was killed before its own commit."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    publisher = again(broker)
    broker.commits_at_once = False
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    sink.commit()
    broker.settle()
    publisher.take(PubRec)
    broker = broker.crash()
    publisher = again(broker)
    publisher.send(PubRel(7))
    assert publisher.inbox == []
    sink.commit()
    broker.settle()
    code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    assert publisher.take(PubComp).reason_code == code
    assert not sink.known


def test_a_sink_that_cannot_forget_is_asked_until_it_does() -> None:
    """Meanwhile the packet identifier is not free, also for the client's next connection."""
    sink = StoringSink()
    broker = VirtualBroker(sinks=[sink])
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    sink.commit()
    sink.is_failing = True
    publisher.send(PubRel(7))
    for _ in range(3):
        sink.commit()
        broker.settle()
        broker.advance(RETRY_SECONDS)
    publisher.lose()
    publisher = again(broker)
    publisher.send(PubRel(7))
    assert publisher.inbox == []
    sink.is_failing = False
    sink.commit()
    broker.settle()
    assert publisher.inbox == [PubComp(7)]


def test_a_session_that_ends_with_the_broker_loses_nothing() -> None:
    """Its client keeps its messages all the same, or not: what it repeats first is known."""
    sink = StoringSink()
    broker = VirtualBroker(sinks=[sink])
    again(broker).publish("q/a", b"1", qos=2, packet_id=1)
    sink.commit(is_killed=True)
    broker = VirtualBroker(sinks=[sink])
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=2, packet_id=1, dup=True)
    sink.commit()
    assert sink.stored == [b"1"]
    # The first attempt of this one was lost with the connection.
    sink.known.add(publisher.session.deduplication_id(2))
    publisher.lose()
    again(broker).publish("q/a", b"2", qos=2, packet_id=2, dup=True)
    sink.commit()
    assert sink.stored == [b"1", b"2"]


def test_a_refused_message_is_forgotten_where_another_sink_has_stored_it() -> None:
    """PUBREC of 0x80 frees the packet identifier as well."""
    good, bad = StoringSink(name="good"), StoringSink(name="bad")
    broker = VirtualBroker(sinks=[good, bad])
    publisher = again(broker)
    bad.is_failing = True
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    good.commit()
    bad.commit()
    bad.is_failing = False
    broker.settle()
    assert publisher.inbox == []
    good.commit()
    bad.commit()
    broker.settle()
    assert publisher.take(PubRec).reason_code == 0x80
    assert not good.known


@pytest.mark.parametrize("qos", [1, 2])
def test_a_repeat_that_is_refused_frees_its_packet_identifier(qos: int) -> None:
    """A sink may have stored it as it came first: the next message is not taken for it."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    again(broker).publish("q/a", b"1", qos=qos, packet_id=7, dup=True)
    sink.commit(is_killed=True)
    broker = broker.crash()
    publisher = again(broker)
    sink.reserve = lambda message: "queue_full"  # type: ignore[method-assign] # noqa: ARG005
    publisher.publish("q/a", b"1", qos=qos, packet_id=7, dup=True)
    assert publisher.inbox == []
    sink.commit()
    broker.settle()
    answer: PubAck | PubRec = publisher.take(PubAck) if qos == 1 else publisher.take(PubRec)
    assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert not sink.known
    del sink.reserve
    # The first attempt of another message is lost with the connection.
    publisher.lose()
    again(broker).publish("q/a", b"2", qos=qos, packet_id=7, dup=True)
    sink.commit()
    assert sink.stored == [b"1", b"2"]


class Unsure(StoringSink):
    """A sink that stores, and refuses: its replicas are missing."""

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Store a message at once."""
        super().accept(message, receipt)
        self.waiting.pop()()
        assert receipt is not None
        receipt.settle(ReasonCode.QUOTA_EXCEEDED)


def test_a_sink_that_refuses_what_it_has_stored_forgets_it() -> None:
    """Else the next message under that packet identifier would be taken for it."""
    sink = Unsure()
    broker = VirtualBroker(sinks=[sink])
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    assert publisher.inbox == []
    sink.commit()
    broker.settle()
    assert publisher.take(PubRec).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert not sink.known


def test_a_repeat_that_no_sink_is_to_get_any_more_frees_its_packet_identifier() -> None:
    """Its topic had a sink when it came first."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    again(broker).publish("q/a", b"1", qos=2, packet_id=7)
    sink.commit(is_killed=True)
    broker = broker.crash()
    broker.core.tree.remove_sink(sink)
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=2, packet_id=7, dup=True)
    broker.settle()
    publisher.take(PubRec)
    publisher.send(PubRel(7))
    sink.commit()
    broker.settle()
    publisher.take(PubComp)
    assert not sink.known


def test_a_message_that_a_patient_client_keeps_is_known_to_the_sink_that_has_stored_it() -> None:
    """It comes again, as it was not acknowledged: that sink stores it once."""
    good, bad = StoringSink(name="good"), StoringSink(name="bad")
    broker = DurableBroker(sinks=[good, bad])
    properties = {"user_property": [("penstock-waits", "yes")], **KEEP["properties"]}
    publisher = broker.connect("p", clean_start=False, properties=properties)
    bad.is_failing = True
    publisher.publish("q/a", b"1", qos=2, packet_id=7)
    good.commit()
    bad.commit()
    broker.settle()
    assert publisher.is_lost
    assert publisher.take_all(PubRec) == []
    bad.is_failing = False
    publisher = broker.connect("p", clean_start=False, properties=properties)
    publisher.publish("q/a", b"1", qos=2, packet_id=7, dup=True)
    good.commit()
    bad.commit()
    broker.settle()
    assert publisher.inbox == [PubRec(7)]
    assert (good.stored, bad.stored) == ([b"1"], [b"1"])


def test_a_repeat_of_qos_1_is_stored_once_more_at_most() -> None:
    """It has an identifier from its first repeat on, until its PUBACK."""
    sink = StoringSink()
    broker = DurableBroker(sinks=[sink])
    again(broker).publish("q/a", b"1", qos=1, packet_id=7)
    for _ in range(3):
        sink.commit(is_killed=True)
        broker = broker.crash()
        publisher = again(broker)
        publisher.publish("q/a", b"1", qos=1, packet_id=7, dup=True)
    sink.commit()
    assert publisher.inbox == []
    sink.commit()
    broker.settle()
    assert publisher.inbox == [PubAck(7)]
    assert sink.stored == [b"1", b"1"]
    assert not sink.known


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_qos_1_message_whose_puback_was_not_sent_is_not_routed_again(
    is_settled: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """The connection was lost while the queue stored it: its repeat waits for the same answer."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    subscriber = broker.connect("s")
    subscriber.subscribe("#", 1)
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=1, packet_id=7)
    publisher.lose()
    if is_settled:
        sink.settle()
    publisher = again(broker)
    publisher.publish("q/a", b"1", qos=1, packet_id=7, dup=True)
    if not is_settled:
        assert publisher.inbox == []
        sink.settle()
        broker.settle()
    assert publisher.inbox == [PubAck(7)]
    assert subscriber.payloads() == [b"1"]
    assert len(sink.messages) == 1
    # The identifier is free: the next message is another one.
    publisher.publish("q/a", b"2", qos=1, packet_id=7)
    assert len(sink.messages) == 2


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_a_sink_has_refused_late_does_not_reach_subscribers_again(qos: int) -> None:
    """MQTT 3.1.1 has no word for it: the connection is closed, and the client comes again."""
    sink = HoldingSink()
    broker = VirtualBroker(sinks=[sink])
    subscriber = broker.connect("s")
    subscriber.subscribe("#", 1)
    publisher = again(broker, 4)
    publisher.publish("q/a", b"1", qos=qos, packet_id=7)
    for _ in range(3):
        sink.settle(0x80)
        broker.settle()
        assert publisher.is_lost
        publisher = again(broker, 4)
        publisher.publish("q/a", b"1", qos=qos, packet_id=7, dup=True)
    sink.settle()
    broker.settle()
    assert publisher.inbox == [PubAck(7) if qos == 1 else PubRec(7)]
    assert subscriber.payloads() == [b"1"]
    assert len(sink.messages) == 4
    publisher.send(*([PubRel(7)] if qos == 2 else []))
    publisher.publish("q/a", b"2", qos=qos, packet_id=7)
    assert subscriber.payloads() == [b"2"]
