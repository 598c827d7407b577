"""What a client with one connection is told of its small messages, on real links."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from penstock.netem.links.network import Host, Network
from penstock.netem.links.profiles import Direction, Profile
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, SECONDS, anonymous_policy, running_broker
from tests.helpers.slow_link import link_to

N_SMALL: Final = 12

TOLD: Final = (
    rf"INFO .*client far: {N_SMALL} small messages waited (\d+\.\d) s on average behind "
    r"large ones; with two lanes they would not: docs/how-to/lanes.md\n"
)

SLOW = Profile("slow", Direction(0.02), Direction(0.02, 50_000))

POLICY: Final[dict[str, Any]] = {
    "withholding": {"policy": "none", "threshold_s": 10_000},
    "console": {"http": "127.0.0.1:0"},
}


def why(url: str, run: Callable[[list[str]], str] | None = None) -> str:
    """Return what ``penstock why`` prints about the client."""
    command = [sys.executable, "-m", "penstock", "why", "far", "--url", url]
    if run is not None:
        return run(["env", f"PYTHONPATH={ROOT}", *command])
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=SECONDS
    ).stdout


def publish(publisher: PahoClient, large_bytes: int) -> None:
    """Publish a large message, and small ones when the broker has it."""
    publisher.publish("picture", bytes(large_bytes), 2)
    for _ in range(N_SMALL):
        publisher.publish("alarm", b"alarm")


def take_all(far: PahoClient) -> None:
    """Receive what was published; paho hands a message of QoS 2 on when it is released."""
    topics = [far.message().topic for _ in range(1 + N_SMALL)]
    assert sorted(topics) == ["alarm"] * N_SMALL + ["picture"]


@pytest.mark.parametrize(("large_qos", "small_qos"), [(1, 1), (1, 0), (2, 1), (0, 1)])
def test_behind_a_relay_a_client_is_told_what_two_lanes_would_gain(
    large_qos: int, small_qos: int, tmp_path: Path
) -> None:
    """PUBACK alone tells there when a large message has arrived: the kernel sees the relay."""
    with (
        running_broker(anonymous_policy(POLICY), tmp_path) as broker,
        link_to(broker) as link,
        PahoClient(link.port, "far") as far,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert far.connect()
        assert far.subscribe("picture", large_qos)
        assert far.subscribe("alarm", small_qos)
        assert publisher.connect()
        link.switch("bad")
        publish(publisher, 400_000)
        take_all(far)
        found = broker.wait_for_match(TOLD)
        assert float(found[1]) > 2  # three seconds of picture, and the way there
        words = f"{N_SMALL} small messages waited {found[1]} s on average behind large ones in the"
        assert words in why(broker.console_url)


@pytest.mark.parametrize("qos", [0, 1])
def test_on_a_good_link_nothing_is_told(qos: int, tmp_path: Path) -> None:
    """A picture that is there in milliseconds delays nothing that anybody notices."""
    with (
        running_broker(anonymous_policy(POLICY), tmp_path) as broker,
        PahoClient(broker.port, "far") as far,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert far.connect()
        assert far.subscribe("#", qos)
        assert publisher.connect()
        for _ in range(5):
            publish(publisher, 20_000)
            take_all(far)
        assert "waited" not in why(broker.console_url)
        assert broker.stop() == 0
        assert "waited" not in broker.log


SUBSCRIBER = """
import sys
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
client = paho.Client(CallbackAPIVersion.VERSION2, client_id="far")
client.on_connect = lambda c, *_: c.subscribe("#", int(sys.argv[2]))
client.on_subscribe = lambda *_: print("subscribed", flush=True)
client.on_message = lambda c, u, m: print(m.topic, flush=True)
client.connect(sys.argv[1], 1883)
client.loop_forever()
"""

PUBLISHER = """
import sys
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
client = paho.Client(CallbackAPIVersion.VERSION2, client_id="publisher")
client.connect("127.0.0.1", 1883)
client.loop_start()
n_bytes, n_small = map(int, sys.argv[1:])
client.publish("picture", bytes(n_bytes), 1).wait_for_publish(30)
for _ in range(n_small):
    client.publish("alarm", b"alarm", 1).wait_for_publish(30)
"""


@NEEDS_ROOT
@pytest.mark.parametrize("qos", [0, 1])
def test_on_a_direct_connection_a_client_is_told_too(qos: int, tmp_path: Path) -> None:
    """At QoS 0 what the kernel has not taken yet tells that the picture is on its way."""
    policy = anonymous_policy(POLICY)
    policy["listeners"] = {"default": {"bind": "0.0.0.0:1883"}}
    policy["plugins"]["console"] = {"http": "127.0.0.1:8081"}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    with Network(seed=1) as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        link = network.link(cloud, edge, SLOW)

        def start(host: Host, *words: str, **options: Any) -> subprocess.Popen[bytes]:
            command = ["env", f"PYTHONPATH={ROOT}", sys.executable, *words]
            return host.popen(command, cwd=tmp_path, **options)

        broker = start(cloud, "-m", "penstock.broker", "-c", "policy.yaml", stderr=subprocess.PIPE)
        assert broker.stderr is not None
        lines = iter(broker.stderr.readline, b"")
        assert any(b"listening" in line for line in lines)
        far = start(edge, "-c", SUBSCRIBER, link.server_address, str(qos), stdout=subprocess.PIPE)
        assert far.stdout is not None
        assert far.stdout.readline() == b"subscribed\n"
        start(cloud, "-c", PUBLISHER, "300000", str(N_SMALL))
        topics = [far.stdout.readline() for _ in range(1 + N_SMALL)]
        assert topics == [b"picture\n"] + [b"alarm\n"] * N_SMALL
        told = next(line for line in lines if b"waited" in line)
        assert f"client far: {N_SMALL} small messages waited".encode() in told
        text = why("http://127.0.0.1:8081", cloud.run)
        assert f"{N_SMALL} small messages waited" in text
