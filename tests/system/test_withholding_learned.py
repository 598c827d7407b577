"""`profile: learned` in the whole program, on sockets of this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paho_client import PahoClient
from tests.helpers.process import anonymous_policy, running_broker

PLUGINS: dict[str, Any] = {
    "probing": {"sources": ["puback"]},
    # A path of this machine is calm, and its large messages take hardly longer than small ones.
    "withholding": {"policy": "conservative", "profile": "learned", "threshold_l": 60.0},
}

LARGE_BYTES = 200_000


def size_ratio(watcher: PahoClient) -> float | None:
    """Return how much longer than a small message the last large one was expected to take.

    None before a decision has gone by an RTT.
    """
    decision = json.loads(watcher.message().payload)["last_decision"]
    found = re.search(r"size x([0-9.]+)", decision["reason"] if decision else "")
    return float(found[1]) if found else None


def test_sizes_are_learned_from_a_real_client(tmp_path: Path) -> None:
    """First the table holds, by which 200 KB take four times as long; then what was seen."""
    with (
        running_broker(anonymous_policy(PLUGINS, sys_interval=0.1), tmp_path) as broker,
        PahoClient(broker.port, "publisher") as publisher,
        PahoClient(broker.port, "far") as far,
        PahoClient(broker.port, "watcher") as watcher,
    ):
        assert publisher.connect()
        assert far.connect()
        assert far.subscribe("#", 1)
        assert watcher.connect()
        assert watcher.subscribe("$SYS/broker/penstock/clients/far/withholding")
        ratios: list[float] = []
        while not ratios or ratios[-1] > 2.0:
            for topic, size in (("reading", 10), ("picture", LARGE_BYTES)):
                publisher.publish(topic, bytes(size))
                message = far.message()
                assert (message.topic, len(message.payload)) == (topic, size)
            ratio = size_ratio(watcher)
            ratios += [ratio] if ratio is not None else []
        assert ratios[0] == pytest.approx(20**0.5, rel=0.01)
        assert ratios[-1] >= 1.0
        assert broker.stop() == 0
        assert "ERROR" not in broker.log
