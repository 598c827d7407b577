from __future__ import annotations

import pytest

from broker.inflight import Inflight
from broker.message import Message
from broker.mqtt.enums import MAX_PACKET_ID
from broker.outbox import Delivery


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


def test_an_acknowledgement_of_another_qos_finishes_nothing() -> None:
    """A PUBACK does not end a QoS 2 delivery, nor a PUBCOMP one of QoS 1."""
    inflight = Inflight()
    one, two = inflight.start(delivery(1)), inflight.start(delivery(2))
    assert inflight.finish(two, 1) is None
    assert inflight.finish(one, 2) is None
    assert inflight.finish(99, 1) is None
    assert len(inflight) == 2
    assert inflight.finish(one, 1) is not None
    assert inflight.finish(one, 1) is None


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


def test_pubrec_for_qos1_or_nothing_is_refused() -> None:
    """There is nothing to release at QoS 1."""
    inflight = Inflight()
    assert inflight.release(inflight.start(delivery(1))) is None
    assert inflight.release(7) is None


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
