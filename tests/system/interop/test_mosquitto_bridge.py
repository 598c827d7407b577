from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cluster import Service
from tests.helpers.mosquitto import Mosquitto, running_mosquitto
from tests.helpers.paho_client import MQTT_3_1_1, PahoClient
from tests.system.interop.cases import fresh, until

VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])


@contextlib.contextmanager
def bridged(
    broker: Service, folder: Path, name: str, version: str, topics: str
) -> Iterator[Mosquitto]:
    """Run a mosquitto that is connected to the broker by a bridge.

    Args:
        broker: the remote broker of the bridge.
        folder: where mosquitto's file is written.
        name: of the bridge.
        version: of MQTT on the bridge.
        topics: lines of the bridge's topics.
    """
    settings = (
        f"connection {name}\naddress 127.0.0.1:{broker.port}\nremote_clientid {name}\n"
        f"bridge_protocol_version {version}\nrestart_timeout 1\n"
        f"topic ready/{name} in 1\n{topics}\n"
    )
    with PahoClient(broker.port) as client:
        assert client.connect()
        client.publish(f"ready/{name}", b"ready", retain=True)
    with running_mosquitto(folder, settings) as local:
        with PahoClient(local.port) as client:
            assert client.connect()
            assert client.subscribe(f"ready/{name}", 1)
            assert client.payloads(1) == [b"ready"]
        yield local


@contextlib.contextmanager
def subscribed(port: int, topic_filter: str) -> Iterator[PahoClient]:
    """Connect a client that has subscribed at QoS 2."""
    with PahoClient(port) as client:
        assert client.connect()
        assert client.subscribe(topic_filter, 2)
        yield client


@VERSIONS
def test_messages_pass_both_ways_once(broker: Service, tmp_path: Path, version: str) -> None:
    """Each message is on both sides once, at its QoS; the bridge gets none of its own back."""
    name = fresh(f"bridge-{version}")
    with (
        bridged(broker, tmp_path, name, version, f"topic {name}/# both 2") as local,
        subscribed(local.port, f"{name}/#") as here,
        subscribed(broker.port, f"{name}/#") as there,
    ):
        for publisher in (here, there):
            for qos in range(3):
                publisher.publish(f"{name}/{qos}", b"%d" % qos, qos)
            publisher.publish(f"{name}/end", b"end", 2)
            for client in (here, there):
                came = sorted((m.topic, m.payload, m.qos) for m in until(client, b"end"))
                assert came == [(f"{name}/{qos}", b"%d" % qos, qos) for qos in range(3)]


@VERSIONS
def test_retained_messages_are_retained_on_both_sides(
    broker: Service, tmp_path: Path, version: str
) -> None:
    """A bridge is sent RETAIN as published: what is retained here is retained there."""
    name = fresh(f"retaining-{version}")
    with (
        bridged(broker, tmp_path, name, version, f"topic {name}/# both 1") as local,
        subscribed(local.port, f"{name}/#") as here,
        subscribed(broker.port, f"{name}/#") as there,
    ):
        here.publish(f"{name}/here", b"1", retain=True)
        there.publish(f"{name}/there", b"2", retain=True)
        for client in (here, there):
            assert sorted(client.payloads(2)) == [b"1", b"2"]
        for port in (local.port, broker.port):
            with subscribed(port, f"{name}/#") as late:
                messages = [late.message() for _ in range(2)]
                assert sorted((m.payload, m.retain) for m in messages) == [
                    (b"1", True),
                    (b"2", True),
                ]


def test_bridge_that_was_away_gets_what_it_missed(broker: Service, tmp_path: Path) -> None:
    """Its session stays while mosquitto is down; topics get the prefix of their side."""
    name = fresh("away")
    topics = (
        f"topic # in 1 local/ {name}/\n"
        "user root\n"  # who writes to the test's folder, where the test runs as root
        f"persistence true\npersistence_location {tmp_path}/"
    )
    with (
        bridged(broker, tmp_path, name, "mqttv311", topics) as local,
        PahoClient(local.port, name, MQTT_3_1_1, clean_session=False) as here,
    ):
        assert here.connect()
        assert here.subscribe("local/#", 1)
    with PahoClient(broker.port) as publisher:
        assert publisher.connect()
        for number in range(3):
            publisher.publish(f"{name}/{number}", b"%d" % number)
    with (
        bridged(broker, tmp_path, name, "mqttv311", topics) as local,
        PahoClient(local.port, name, MQTT_3_1_1, clean_session=False) as here,
    ):
        assert here.connect()
        came = sorted((m.topic, m.payload) for m in (here.message() for _ in range(3)))
        assert came == [(f"local/{number}", b"%d" % number) for number in range(3)]


@pytest.mark.parametrize(
    "broker", ["one"], indirect=True
)  # what is below $SYS is each broker's own
@VERSIONS
def test_state_of_a_bridge_is_seen(broker: Service, tmp_path: Path, version: str) -> None:
    """A bridge announces itself below $SYS; its will says when mosquitto was killed."""
    name = fresh(f"state-{version}")
    with (
        subscribed(broker.port, f"$SYS/broker/connection/{name}/state") as watcher,
        bridged(broker, tmp_path, name, version, "") as local,
    ):
        assert watcher.payloads(1) == [b"1"]
        local.process.kill()
        assert watcher.payloads(1) == [b"0"]
