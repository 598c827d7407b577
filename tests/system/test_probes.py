"""Probes to a real client behind a real slow connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paho.mqtt.client import MQTTMessage

from tests.helpers.paho_client import MQTT_3_1_1, PahoClient
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.slow_link import Ledger, link_to

LARGE = bytes(200_000)

PLUGINS: Mapping[str, Any] = {
    "probing": {"sources": ["probe"], "probe_period": 0.1, "max_age_seconds": 4.0},
    "withholding": {
        "policy": "conservative",
        "threshold_s": 9_000,
        "threshold_l": 0.3,
        "max_withhold": 60.0,
    },
}
"""Nothing but probes tells of the path, and a probe is longer than threshold_s."""


def of_topic(client: PahoClient, topic: str) -> MQTTMessage:
    """Return the next message of a topic."""
    while (message := client.message()).topic != topic:
        pass
    return message


def test_probes_alone_tell_when_a_large_message_must_wait(tmp_path: Path) -> None:
    """Answered late on a bad link, answered soon on a good one, overdue on a dead one."""
    with (
        running_broker(anonymous_policy(PLUGINS, sys_interval=0.1), tmp_path) as broker,
        link_to(broker) as link,
        PahoClient(link.port, "far", MQTT_3_1_1) as far,
        PahoClient(broker.port, "publisher") as publisher,
        PahoClient(broker.port, "watcher") as watcher,
    ):
        assert far.connect(keepalive=600)
        assert publisher.connect()
        ledger = Ledger(watcher)
        assert far.subscribe("latency", 1)
        assert far.subscribe("picture", 0)
        probe = of_topic(far, "latency")
        assert (len(probe.payload), probe.qos, probe.retain) == (10_000, 1, False)
        link.switch("bad")
        for _ in range(3):  # the second of them at least has crossed the bad link
            of_topic(far, "latency")
        publisher.publish("picture", LARGE)
        ledger.wait_until(lambda of: of("withholding/withheld_total") == 1)
        link.switch("good")
        assert of_topic(far, "picture").payload == LARGE
        link.stall()
        assert publisher.subscribe("$SYS/broker/penstock/clients/far/link")
        while (json.loads(publisher.message().payload)["outstanding_age_seconds"] or 0.0) <= 4.0:
            pass
        publisher.publish("picture", LARGE)
        ledger.wait_until(lambda of: of("withholding/withheld_total") == 2)
        link.go_on()
        assert of_topic(far, "picture").payload == LARGE
        ledger.wait_until(lambda of: of("withholding/released_total") == 2)
        assert broker.stop() == 0
        assert "ERROR" not in broker.log


def test_a_broker_whose_probes_nobody_wants_says_so_once(tmp_path: Path) -> None:
    """And a wrong topic ends the start with status 2."""
    with (
        running_broker(anonymous_policy(PLUGINS), tmp_path) as broker,
        PahoClient(broker.port, "reader") as reader,
    ):
        assert reader.connect()
        assert reader.subscribe("#", 1)
        broker.wait_for_log("no client has subscribed to 'latency' by this name")
    plugins = {"probing": {"sources": ["probe"], "probe_topic": "rtt/#"}}
    wrong = BrokerProcess(anonymous_policy(plugins), tmp_path)
    assert wrong.wait() == 2
    assert "plugins.probing.probe_topic: read 'rtt/#'" in wrong.log
