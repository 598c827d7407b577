from __future__ import annotations

from broker.access import NobodyConnects
from broker.mqtt.packets import ConnAck, Connect
from broker.mqtt.reason_codes import ReasonCode
from tests.helpers.virtual import VirtualBroker, VirtualClient


def test_without_an_authentication_plugin_nobody_connects() -> None:
    """As in aMQTT: no answer is a refusal."""
    client = VirtualClient(VirtualBroker(access=NobodyConnects()))
    client.send(Connect(client_id="c", username="admin", password=b"admin"))
    assert client.take(ConnAck).reason_code == ReasonCode.NOT_AUTHORIZED
    assert client.is_lost
    assert not NobodyConnects().authorize(None, "t", None)  # type: ignore[arg-type]
