from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage

from tests.helpers.paho_client import MQTT_3_1_1, PahoClient
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.slow_link import Ledger, link_to

LARGE_BYTES = 200_000


def plugins(policy: str) -> Mapping[str, Any]:
    """Return plugins with a policy that holds a large message for some ten seconds at least.

    The round trip of a bad link is above threshold_l, that of a good one below. A large message
    takes twenty times as long as a small one: longer than anybody would send on a bad link.
    """
    return {
        "probing": {"sources": ["tcp_info", "puback"], "probe_period": 0.1, "max_age_seconds": 20},
        "withholding": {
            "policy": policy,
            "threshold_s": 10_000,
            "threshold_l": 0.3,
            "max_withhold": 60.0,
            "congestion_rate": 1.0,
            "profile": {10_000: 1.0, 1_000_000: 100.0},
        },
    }


def by_topic(messages: list[MQTTMessage]) -> dict[str, list[int]]:
    """Return the numbers that payloads begin with, for each topic in order of arrival."""
    numbers: dict[str, list[int]] = {}
    for message in messages:
        numbers.setdefault(message.topic, []).append(int(bytes(message.payload[:3])))
    return numbers


@pytest.mark.parametrize("policy", ["conservative", "probabilistic", "historic", "adaptive"])
def test_large_messages_wait_for_the_link_and_small_ones_do_not(
    policy: str, tmp_path: Path
) -> None:
    """On a bad link a small message passes large ones; all come, each topic in its order."""
    n_large, n_small = 3, 10
    with (
        running_broker(anonymous_policy(plugins(policy), sys_interval=0.1), tmp_path) as broker,
        link_to(broker) as link,
        PahoClient(link.port, "far", MQTT_3_1_1) as far,
        PahoClient(broker.port, "publisher") as publisher,
        PahoClient(broker.port, "watcher") as watcher,
    ):
        assert far.connect()
        assert publisher.connect()
        ledger = Ledger(watcher)
        assert far.subscribe("picture/#", 1)
        assert far.subscribe("alarm/#", 1)
        # On the good link a large message goes as it comes.
        publisher.publish("picture/1", b"000" + bytes(LARGE_BYTES))
        first = far.message()
        assert first.topic == "picture/1"
        latency = "withholding/latency_seconds/large/acknowledged/calm/count"
        ledger.wait_until(lambda of: of(latency) > 0)
        link.switch("bad")
        publisher.publish("alarm/probe", b"000")
        publisher.publish("alarm/probe", b"001")
        assert [far.message().topic for _ in range(2)] == ["alarm/probe"] * 2
        for number in range(1, n_large + 1):
            publisher.publish("picture/1", b"%03d" % number + bytes(LARGE_BYTES))
        # Behind a large one of its topic a small one waits too: nothing overtakes.
        publisher.publish("picture/1", b"%03d" % (n_large + 1))
        ledger.wait_until(lambda of: of("ledger/withheld") == n_large + 1)
        for number in range(n_small):
            publisher.publish(f"alarm/{number % 2}", b"%03d" % number)
        small = [far.message() for _ in range(n_small)]
        assert {message.topic for message in small} == {"alarm/0", "alarm/1"}
        # The round trip of the good link is to be measured: nothing else may be on its way.
        ledger.wait_until(lambda of: not of("ledger/inflight"))
        assert ledger.of("ledger/withheld") == n_large + 1
        link.switch("good")
        publisher.publish("alarm/probe", b"002")
        assert far.message().topic == "alarm/probe"
        rest = [far.message() for _ in range(n_large + 1)]
        assert by_topic(small) == {"alarm/0": [0, 2, 4, 6, 8], "alarm/1": [1, 3, 5, 7, 9]}
        assert by_topic(rest) == {"picture/1": list(range(1, n_large + 2))}
        assert [len(message.payload) for message in rest] == [LARGE_BYTES + 3] * n_large + [3]
        ledger.wait_for_balance()
        assert broker.stop() == 0
        assert "ERROR" not in broker.log


def test_withheld_messages_survive_the_end_of_their_connection(tmp_path: Path) -> None:
    """A persistent session that loses its bad link gets what was withheld on the next one."""
    with (
        running_broker(
            anonymous_policy(plugins("conservative"), sys_interval=0.1), tmp_path
        ) as broker,
        link_to(broker) as link,
        PahoClient(broker.port, "publisher") as publisher,
        PahoClient(broker.port, "watcher") as watcher,
    ):
        assert publisher.connect()
        ledger = Ledger(watcher)
        with PahoClient(link.port, "far", MQTT_3_1_1, clean_session=False) as far:
            assert far.connect()
            assert far.subscribe("#", 1)
            link.switch("bad")
            publisher.publish("alarm", b"000")
            publisher.publish("alarm", b"001")
            assert by_topic([far.message(), far.message()]) == {"alarm": [0, 1]}
            for number in range(3):
                publisher.publish(f"picture/{number}", b"%03d" % number + bytes(LARGE_BYTES))
            ledger.wait_until(lambda of: of("ledger/withheld") > 0)
        with PahoClient(broker.port, "far", MQTT_3_1_1, clean_session=False) as near:
            assert near.connect()
            assert near.connack[0]
            came: dict[str, list[int]] = {}
            while len(came) < 3:
                message = near.message()
                if message.topic == "alarm":  # sent before, and its PUBACK lost [MQTT-4.4.0-1]
                    assert message.dup
                    continue
                came.setdefault(message.topic, []).append(int(bytes(message.payload[:3])))
            assert came == {f"picture/{number}": [number] for number in range(3)}
            ledger.wait_for_balance()
