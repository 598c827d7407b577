"""Whatever a client sends, what the broker sends is of the specification."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, PingReq
from tests.broker.mqtt.vectors import LONGER_FORMS, VECTORS
from tests.conformance.clients import IN_EACH_VERSION
from tests.helpers.effort import examples
from tests.helpers.virtual import VirtualBroker, VirtualClient

FRAMES = [vector.frame for vector in VECTORS + LONGER_FORMS]
"""Packets of both versions and both directions."""

DAMAGE = st.lists(st.tuples(st.integers(2, 20), st.integers(0, 255)), max_size=2)
"""Bytes behind the fixed header, and what to put there."""


class Client(VirtualClient):
    """Reads in the version that the broker has taken a CONNECT for."""

    def serve(self, now: float) -> None:
        """Read what came."""
        self.version = self.connection.client.version
        super().serve(now)


def damaged(frame: bytes, damage: list[tuple[int, int]]) -> bytes:
    """Return a packet with other bytes in it; its length stays right."""
    changed = bytearray(frame)
    for place, value in damage:
        if place < len(changed):
            changed[place] = value
    return bytes(changed)


@pytest.mark.mqtt5("3.2.0-1", "3.2.0-2", "3.2.2-8", "3.14.0-1", "3.14.2-1", "3.14.4-1")
@pytest.mark.mqtt311("3.2.0-1", "3.9.3-2")
@IN_EACH_VERSION
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    frames=st.lists(st.builds(damaged, st.sampled_from(FRAMES), DAMAGE), max_size=4),
    connects_first=st.booleans(),
)
def test_what_the_broker_sends_is_valid(
    version: int, frames: list[bytes], *, connects_first: bool
) -> None:
    """Each packet can be read, CONNACK is the first and only one, DISCONNECT the last.

    The virtual client reads as strictly as the broker: another code than those of a packet's
    table would raise.
    """
    client = Client(VirtualBroker(), version)
    if connects_first:
        client.send(Connect(client_id="c", protocol_version=version))
    for frame in frames:
        client.send_bytes(frame)
    client.send(PingReq())
    kinds = [type(packet) for packet in client.inbox]
    assert kinds[:1] in ([], [ConnAck])
    assert kinds.count(ConnAck) <= 1
    assert Disconnect not in kinds[:-1]
    if kinds[-1:] == [Disconnect]:
        assert client.is_lost
