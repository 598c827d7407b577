from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import resident_bytes
from tests.helpers.sidecar import before, running_sidecar
from tests.helpers.stalled import N_MESSAGES, PAYLOAD_BYTES, growth_with_stalled_subscribers

N_SUBSCRIBERS = 15

CLIENT_BYTES = 1_300_000
"""A packet that is being received from the broker, and two pieces of one that is being sent."""


@pytest.mark.memory
async def test_stalled_subscribers_cost_the_payloads_once(tmp_path: Path) -> None:
    """A payload comes to the proxy for each of them and is kept once; nothing is lost or doubled.

    Each may have a packet under way besides, as docs/reference/edge-proxy.md says.
    """
    with (
        running_mosquitto(tmp_path) as broker,
        running_sidecar(before(broker.port), tmp_path) as proxy,
    ):
        grown = await growth_with_stalled_subscribers(
            proxy.port, N_SUBSCRIBERS, lambda: resident_bytes(proxy)
        )
        assert grown <= 1.2 * N_MESSAGES * PAYLOAD_BYTES + N_SUBSCRIBERS * CLIENT_BYTES
        assert proxy.stop() == 0
