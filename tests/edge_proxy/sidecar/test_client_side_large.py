from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import PubAck, PubComp, PubRec
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.proxied_clients import VirtualClient, publish


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck), (2, PubRec)])
def test_a_large_message_leaves_when_the_one_before_is_acknowledged(
    qos: int, answer: type[PubAck | PubRec]
) -> None:
    """The gate hears of what leaves and of what the client answers; PUBCOMP says nothing more."""
    gate = WithholdingGate(WithholdingConfig(threshold_s=100))
    proxied = VirtualClient.connected(gate=gate)
    proxied.broker_sends(*(publish(f"big{n}", 200, packet_id=n, qos=qos) for n in (1, 2, 3)))
    assert proxied.topics() == ["big1"]
    proxied.broker_sends(publish("small", packet_id=4, qos=qos))
    assert proxied.topics() == ["small"]
    proxied.client_sends(answer(4))
    assert proxied.topics() == []
    proxied.client_sends(answer(1))
    # It took no time: all that are there would be acknowledged within the exposure.
    assert proxied.topics() == ["big2", "big3"]
    figures = gate.passage(proxied.proxied.client.outbox._link, proxied.now)
    assert figures is not None
    assert figures.on_way_bytes == 400
    if qos == 2:
        proxied.client_sends(PubComp(1))
    proxied.client_sends(answer(2, 0x80))
    figures = gate.passage(proxied.proxied.client.outbox._link, proxied.now)
    assert figures is not None
    assert figures.on_way_bytes == 200
    proxied.proxied.client.check_invariants()
