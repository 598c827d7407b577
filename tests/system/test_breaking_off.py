"""A stock client behind a real link that turns bad in the middle of a large message."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from penstock.netem.links.network import Host, Network
from penstock.netem.links.profiles import LOSSY_DOWNSTREAM, Direction, Profile
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import ROOT, SECONDS, anonymous_policy

pytestmark = NEEDS_ROOT

PORT = 1883
LARGE_BYTES = 1_000_000

GOOD = Profile("good", Direction(0.02, 250_000), Direction(0.02, 250_000))
"""A megabyte takes four seconds: time enough to turn it bad in the middle."""

SLOW = Profile("slow", Direction(0.02, 8_000), Direction(0.5, 8_000, queue_bytes=64_000))

SUBSCRIBER = """
import sys, time
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
client = paho.Client(CallbackAPIVersion.VERSION2, client_id="far", clean_session=False)
client.reconnect_delay_set(1, 1)
client.on_connect = lambda c, u, flags, code, p: (
    print("connected", flags.session_present, flush=True), c.subscribe("#", int(sys.argv[2])))
client.on_subscribe = lambda *_: print("subscribed", flush=True)
client.on_message = lambda c, u, m: print(
    "message", m.topic, len(m.payload), bytes(m.payload[:3]).decode(), flush=True)
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
for line in sys.stdin:
    topic, name, n_bytes = line.split()
    client.publish(topic, name.encode().ljust(int(n_bytes), b"."), 2).wait_for_publish(30)
    print("published", topic, name, flush=True)
"""


class Lines:
    """What a process prints, line by line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            with self._changed:
                self._lines.append(line.decode().rstrip())
                self._changed.notify_all()

    def wait_for(self, text: str, n_lines: int = 1) -> list[str]:
        """Wait for so many lines with a text; return all lines."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: sum(text in line for line in self._lines) >= n_lines, 2 * SECONDS
            )
            assert found, f"{text!r} is not there {n_lines} times: {self._lines}"
            return list(self._lines)


class Field:
    """A broker with a publisher beside it, and a subscriber behind a link."""

    def __init__(self, network: Network, folder: Path, qos: int) -> None:
        cloud, edge = network.host("cloud"), network.host("edge")
        self.link = network.link(cloud, edge, GOOD)
        self._folder = folder
        plugins: dict[str, Any] = {
            "probing": {"probe_period": 0.5},
            "withholding": {
                "policy": "conservative",
                "threshold_l": 0.15,
                "max_withhold": 20.0,
                "break_off_after": 2.0,
            },
        }
        policy = anonymous_policy(plugins)
        policy["listeners"] = {"default": {"type": "tcp", "bind": f"0.0.0.0:{PORT}"}}
        (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
        broker = self._start(cloud, "-m", "penstock.broker", "-c", "policy.yaml")
        assert broker.stderr is not None
        self.log = Lines(broker.stderr)
        self.log.wait_for("listener default: listening")
        address = self.link.server_address
        subscriber = self._start(edge, "-c", SUBSCRIBER, address, str(qos))
        assert subscriber.stdout is not None
        self.subscriber = Lines(subscriber.stdout)
        publisher = self._start(cloud, "-c", PUBLISHER)
        assert publisher.stdout is not None
        assert publisher.stdin is not None
        self._published = Lines(publisher.stdout)
        self._to_publish = publisher.stdin

    def _start(self, host: Host, *words: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = ["env", f"PYTHONPATH={ROOT}", sys.executable, *words]
        return host.popen(command, cwd=self._folder, stdin=pipe, stdout=pipe, stderr=pipe)

    def publish(self, topic: str, name: str, n_bytes: int = 3) -> None:
        """Publish at QoS 2, and wait until the broker has it."""
        self._to_publish.write(f"{topic} {name} {n_bytes}\n".encode())
        self._to_publish.flush()
        self._published.wait_for(f"published {topic} {name}")


@pytest.fixture
def network() -> Iterator[Network]:
    """A network without hosts."""
    with Network(seed=1) as made:
        yield made


@pytest.mark.parametrize(
    ("qos", "bad"), [(2, SLOW), (1, LOSSY_DOWNSTREAM)], ids=["8 kB a second", "20 % lost"]
)
def test_small_message_passes_a_large_one_that_was_half_sent(
    bad: Profile, qos: int, network: Network, tmp_path: Path
) -> None:
    """The client comes back by itself and has it while the link is bad; nothing is lost."""
    field = Field(network, tmp_path, qos)
    field.subscriber.wait_for("subscribed")
    for name in ("000", "001"):
        field.publish("alarm", name)
    field.subscriber.wait_for("message alarm 3 001")
    field.publish("picture", "100", LARGE_BYTES)
    field.publish("picture", "101")
    field.link.switch(bad)
    field.publish("alarm", "002")
    lines = field.subscriber.wait_for("message alarm 3 002")
    assert "connected True" in lines
    assert not any("picture" in line for line in lines)
    field.log.wait_for("client far: connection closed with ")
    field.link.switch(GOOD)
    lines = field.subscriber.wait_for("message picture 3 101")
    messages = [line for line in lines if line.startswith("message")]
    assert messages.count(f"message picture {LARGE_BYTES} 100") == 1
    in_order = [line for line in dict.fromkeys(messages) if " alarm " in line]
    assert in_order == [f"message alarm 3 00{n}" for n in range(3)]
    in_order = [line for line in dict.fromkeys(messages) if " picture " in line]
    assert in_order == [f"message picture {LARGE_BYTES} 100", "message picture 3 101"]
    if qos == 2:
        assert len(messages) == len(set(messages))
