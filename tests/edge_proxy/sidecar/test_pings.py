from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import Disconnect, PingReq, PingResp, PubAck
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.edge_proxy.sidecar.pings import LOOK_SECONDS
from tests.helpers.pairs import DOWN, UP, VirtualPair, publish

PATIENCE_SECONDS = 30.0
"""Half of the Keep Alive of these clients."""


def frozen(**options: Any) -> VirtualPair:
    """Return a pair whose broker has not answered a PINGREQ for half of the Keep Alive."""
    pair = VirtualPair.connected(**options)
    pair.client_sends(PingReq())
    pair.advance(PATIENCE_SECONDS)
    return pair


def test_a_silent_broker_s_pingreq_are_answered_and_its_late_answers_discarded() -> None:
    """Each PINGREQ is passed on, and has one PINGRESP, whoever sends it."""
    pair = VirtualPair.connected()
    pair.client_sends(PingReq(), PingReq())
    pair.advance(PATIENCE_SECONDS - 0.1)
    assert (pair.to_client(), pair.pair.is_broker_silent) == ([], False)
    pair.advance(0.1)
    assert (pair.to_client(), pair.pair.is_broker_silent) == ([PingResp()] * 2, True)
    pair.client_sends(PingReq())
    assert pair.to_client() == [PingResp()]
    assert pair.to_broker() == [PingReq()] * 3
    pair.broker_sends(PingResp(), PingResp(), PubAck(1), PingResp())
    assert (pair.to_client(), pair.pair.is_broker_silent) == ([PubAck(1)], False)
    pair.client_sends(PingReq())
    assert pair.to_client() == []
    pair.broker_sends(PingResp())
    assert pair.to_client() == [PingResp()]
    assert pair.pair.next_deadline() is None


def test_a_broker_that_sends_anything_is_not_silent() -> None:
    """Its PINGRESP may stand behind a large message on a slow link."""
    pair = VirtualPair.connected()
    pair.client_sends(PingReq())
    for _ in range(4):
        pair.advance(PATIENCE_SECONDS - 1.0)
        pair.broker_sends(publish("t"))
    pair.to_client()
    pair.advance(PATIENCE_SECONDS)
    assert pair.to_client() == [PingResp()]
    pair.broker_sends(publish("t"))
    assert not pair.pair.is_broker_silent


def test_what_is_not_read_is_no_silence() -> None:
    """A client that takes nothing keeps the proxy from reading: its broker may have answered."""
    pair = VirtualPair.connected(queued_messages=3)
    pair.pair.pause_sending(DOWN)
    pair.broker_sends(*(publish(f"t{n}") for n in range(4)))
    pair.client_sends(PingReq())
    pair.advance(10 * PATIENCE_SECONDS)
    assert not pair.pair.is_broker_silent


def test_the_broker_s_own_keep_alive_counts() -> None:
    """Server Keep Alive takes the place of the client's [MQTT-3.1.2-21]."""
    pair = VirtualPair.connected(connack={"server_keep_alive": 10})
    pair.client_sends(PingReq())
    pair.advance(5.0)
    assert pair.to_client() == [PingResp()]


@pytest.mark.parametrize("version", [4, 5])
def test_the_proxy_answers_for_a_silent_broker_for_a_limited_time(version: int) -> None:
    """Clients may know of other servers, which they try when this one is gone."""
    pair = frozen(version=version, broker_silence_seconds=60.0)
    assert pair.to_client() == [PingResp()]
    pair.advance(60.0 - PATIENCE_SECONDS - LOOK_SECONDS)
    assert not pair.pair.is_closing
    pair.advance(LOOK_SECONDS)
    assert pair.pair.is_closing
    assert pair.to_client() == ([Disconnect(ReasonCode.SERVER_BUSY)] if version == 5 else [])


def test_without_a_time_the_client_s_keep_alive_decides() -> None:
    """Nothing is answered in the broker's place, and the connections stay."""
    pair = frozen(broker_silence_seconds=None)
    pair.client_sends(PingReq())
    pair.advance(100 * PATIENCE_SECONDS)
    assert pair.to_client() == []
    assert pair.pair.is_broker_silent
    assert not pair.pair.is_closing
    pair.pair.connection_lost(UP, pair.now)
    assert pair.pair.is_closing
