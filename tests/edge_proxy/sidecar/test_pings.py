from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import Disconnect, PingReq, PingResp, PubAck
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.edge_proxy.sidecar.pings import LOOK_SECONDS
from tests.helpers.proxied_clients import DOWN, UP, VirtualClient, publish

PATIENCE_SECONDS = 30.0
"""Half of the Keep Alive of these clients."""


def frozen(**options: Any) -> VirtualClient:
    """Return a client whose broker has not answered a PINGREQ for half of the Keep Alive."""
    proxied = VirtualClient.connected(**options)
    proxied.client_sends(PingReq())
    proxied.advance(PATIENCE_SECONDS)
    return proxied


def test_a_silent_broker_s_pingreq_are_answered_and_its_late_answers_discarded() -> None:
    """Each PINGREQ is passed on, and has one PINGRESP, whoever sends it."""
    proxied = VirtualClient.connected()
    proxied.client_sends(PingReq(), PingReq())
    proxied.advance(PATIENCE_SECONDS - 0.1)
    assert (proxied.to_client(), proxied.proxied.is_broker_silent) == ([], False)
    proxied.advance(0.1)
    assert (proxied.to_client(), proxied.proxied.is_broker_silent) == ([PingResp()] * 2, True)
    proxied.client_sends(PingReq())
    assert proxied.to_client() == [PingResp()]
    assert proxied.to_broker() == [PingReq()] * 3
    proxied.broker_sends(PingResp(), PingResp(), PubAck(1), PingResp())
    assert (proxied.to_client(), proxied.proxied.is_broker_silent) == ([PubAck(1)], False)
    proxied.client_sends(PingReq())
    assert proxied.to_client() == []
    proxied.broker_sends(PingResp())
    assert proxied.to_client() == [PingResp()]
    assert proxied.proxied.next_deadline() is None


def test_a_broker_that_sends_anything_is_not_silent() -> None:
    """Its PINGRESP may stand behind a large message on a slow link."""
    proxied = VirtualClient.connected()
    proxied.client_sends(PingReq())
    for _ in range(4):
        proxied.advance(PATIENCE_SECONDS - 1.0)
        proxied.broker_sends(publish("t"))
    proxied.to_client()
    proxied.advance(PATIENCE_SECONDS)
    assert proxied.to_client() == [PingResp()]
    proxied.broker_sends(publish("t"))
    assert not proxied.proxied.is_broker_silent


def test_what_is_not_read_is_no_silence() -> None:
    """A client that takes nothing keeps the proxy from reading: its broker may have answered."""
    proxied = VirtualClient.connected(queued_messages=3)
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(*(publish(f"t{n}") for n in range(4)))
    proxied.client_sends(PingReq())
    proxied.advance(10 * PATIENCE_SECONDS)
    assert not proxied.proxied.is_broker_silent


def test_the_broker_s_own_keep_alive_counts() -> None:
    """Server Keep Alive takes the place of the client's [MQTT-3.1.2-21]."""
    proxied = VirtualClient.connected(connack={"server_keep_alive": 10})
    proxied.client_sends(PingReq())
    proxied.advance(5.0)
    assert proxied.to_client() == [PingResp()]


@pytest.mark.parametrize("version", [4, 5])
def test_the_proxy_answers_for_a_silent_broker_for_a_limited_time(version: int) -> None:
    """Clients may know of other servers, which they try when this one is gone."""
    proxied = frozen(version=version, broker_silence_seconds=60.0)
    assert proxied.to_client() == [PingResp()]
    proxied.advance(60.0 - PATIENCE_SECONDS - LOOK_SECONDS)
    assert not proxied.proxied.is_closing
    proxied.advance(LOOK_SECONDS)
    assert proxied.proxied.is_closing
    assert proxied.to_client() == ([Disconnect(ReasonCode.SERVER_BUSY)] if version == 5 else [])


def test_without_a_time_the_client_s_keep_alive_decides() -> None:
    """Nothing is answered in the broker's place, and the connections stay."""
    proxied = frozen(broker_silence_seconds=None)
    proxied.client_sends(PingReq())
    proxied.advance(100 * PATIENCE_SECONDS)
    assert proxied.to_client() == []
    assert proxied.proxied.is_broker_silent
    assert not proxied.proxied.is_closing
    proxied.proxied.connection_lost(UP, proxied.now)
    assert proxied.proxied.is_closing
