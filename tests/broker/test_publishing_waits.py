"""PUBLISH while access control takes its time, on a virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from broker.extensions import Action, ConnectAttempt, SessionView
from broker.mqtt.packets import PubComp, PubRec, PubRel
from broker.mqtt.reason_codes import ReasonCode
from tests.helpers.virtual import VirtualBroker, VirtualClient

KEEP: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


class Later:
    """Access control that lets everybody publish, after a wait of which the test decides."""

    checks_publish = True
    checks_subscribe = False
    checks_receive = False

    def authenticate(self, attempt: ConnectAttempt) -> bool:
        """Let everybody in."""
        del attempt
        return True

    def authorize(self, session: SessionView, topic: str, action: Action) -> Awaitable[bool]:
        """Say yes after a wait."""
        del session, topic, action
        return _Yes()


class _Yes:
    def __await__(self) -> Any:
        yield "waiting"
        return True


def finish(client: VirtualClient) -> None:
    """Let access control answer, as the driver does."""
    suspended = client.connection.suspended
    assert suspended is not None
    suspended.send(None)
    with pytest.raises(StopIteration):
        suspended.send(None)
    client.connection.resume(client.broker.now)
    client.broker.settle()


@pytest.mark.parametrize("old_first", [True, False])
def test_qos2_is_delivered_once_though_the_publisher_came_back_while_it_waited(
    *, old_first: bool
) -> None:
    """[MQTT-4.3.3-10]: what waits for access control on the old connection has come, too."""
    broker = VirtualBroker(access=Later())
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 2)
    old = broker.connect("p", **KEEP)
    old.publish("t", b"x", qos=2, packet_id=7)
    new = broker.connect("p", **KEEP)
    if not old_first:
        new.publish("t", b"x", qos=2, packet_id=7, dup=True)
    finish(old)
    if old_first:
        new.publish("t", b"x", qos=2, packet_id=7, dup=True)
    assert subscriber.payloads() == [b"x"]
    assert new.take(PubRec).packet_id == 7
    new.send(PubRel(7))
    assert new.take(PubComp).reason_code == 0


def test_a_publish_whose_check_is_cancelled_is_refused_and_not_lost() -> None:
    """The client may repeat it; what it sends afterwards is answered."""
    broker = VirtualBroker(access=Later())
    publisher = broker.connect("p", **KEEP)
    publisher.publish("t", b"x", qos=2, packet_id=7)
    suspended = publisher.connection.suspended
    assert suspended is not None
    with pytest.raises(KeyboardInterrupt):
        suspended.throw(KeyboardInterrupt())
    publisher.connection.resume(broker.now)
    broker.settle()
    assert publisher.take(PubRec).reason_code == ReasonCode.UNSPECIFIED_ERROR
    assert publisher.session.incoming == {}
