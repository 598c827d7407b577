from __future__ import annotations

import pytest

from penstock.broker.errors import ProtocolError
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.inflight import Inflight


def delivery(qos: int = 1) -> Delivery:
    """Return a delivery of a message of its own."""
    return Delivery(Message("t", b""), qos)


@pytest.mark.mqtt5("2.2.1-4", "4.3.2-1", "4.3.3-1")
@pytest.mark.mqtt311("2.3.1-4")
def test_packet_ids_are_not_reused_while_inflight() -> None:
    """[MQTT-2.2.1-4]: a packet identifier in use is skipped when the numbers come round."""
    inflight = Inflight()
    first = inflight.start(delivery())
    assert first == 1
    for _ in range(MAX_PACKET_ID - 1):
        inflight.finish(inflight.start(delivery()), 1)
    assert inflight.start(delivery()) == 2
    assert len(inflight) == 2


def test_an_acknowledgement_of_nothing_finishes_nothing() -> None:
    """It may be late: its message was acknowledged before, or was of a session that has ended."""
    inflight = Inflight()
    one = inflight.start(delivery(1))
    assert inflight.finish(99, 1) is None
    assert inflight.finish(99, 2) is None
    assert inflight.release(99) is None
    assert inflight.finish(one, 1) is not None
    assert inflight.finish(one, 1) is None
    inflight.check_invariants()


def test_pubrec_moves_a_qos2_delivery_on() -> None:
    """[MQTT-4.3.3-4]: after PUBREC only PUBREL is sent, and a second PUBREC is answered too."""
    inflight = Inflight()
    packet_id = inflight.start(delivery(2))
    assert not inflight.is_released(packet_id)
    assert inflight.release(packet_id) is not None
    assert inflight.release(packet_id) is not None
    assert inflight.is_released(packet_id)
    assert inflight.finish(packet_id, 2) is not None
    assert not inflight.is_released(packet_id)


def test_an_acknowledgement_that_is_not_owed_is_an_error() -> None:
    """It says what was read and what is owed, and the delivery stays."""
    inflight = Inflight()
    one, two = inflight.start(delivery(1)), inflight.start(delivery(2))
    not_owed(inflight, one, two)


def not_owed(inflight: Inflight, one: int, two: int) -> None:
    """Acknowledge a QoS 1 and a QoS 2 message, of packet identifiers 1 and 2, as is not owed."""
    with pytest.raises(ProtocolError, match=r"PUBREC of packet id 1; allowed: PUBACK, .* QoS 1"):
        inflight.release(one)
    with pytest.raises(ProtocolError, match=r"PUBCOMP of packet id 1; allowed: PUBACK, .* QoS 1"):
        inflight.finish(one, 2)
    with pytest.raises(ProtocolError, match=r"PUBACK of packet id 2; allowed: PUBREC, .* QoS 2"):
        inflight.finish(two, 1)
    with pytest.raises(ProtocolError, match=r"PUBCOMP of packet id 2; allowed: PUBREC, .* QoS 2"):
        inflight.finish(two, 2)
    inflight.release(two)
    with pytest.raises(ProtocolError, match=r"PUBACK of packet id 2; allowed: PUBCOMP, .* QoS 2"):
        inflight.finish(two, 1)
    assert len(inflight) == 2
    inflight.check_invariants()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_could_not_be_sent_owes_nothing(qos: int) -> None:
    """Its packet identifier is free."""
    inflight = Inflight()
    sent = delivery(qos)
    inflight.start(sent)
    inflight.drop(sent)
    assert not inflight.holds(sent)
    inflight.check_invariants()


def test_what_is_inflight_comes_oldest_first() -> None:
    """[MQTT-4.6.0-1]: what is sent again goes in the order in which it was sent."""
    inflight = Inflight()
    sent = [delivery() for _ in range(5)]
    for one in sent:
        inflight.start(one)
    inflight.finish(sent[1].packet_id, 1)
    assert list(inflight) == [sent[0], *sent[2:]]
    assert inflight.clear() == 4
    assert len(inflight) == 0


def test_a_delivery_is_held_until_it_is_acknowledged() -> None:
    """Nor is it held once another has its packet identifier."""
    inflight = Inflight()
    sent = delivery()
    packet_id = inflight.start(sent)
    assert inflight.holds(sent)
    inflight.finish(packet_id, 1)
    assert not inflight.holds(sent)
