"""docs/how-to/lanes-mqttjs.md: its lines, with the real MQTT.js on Node."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.netem.runs.broker_process import find_program
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, Program, anonymous_policy, running_broker
from tests.helpers.slow_link import relay_to
from tests.helpers.two_lanes import is_connected, wait_for

VERSION = "5.16.0"
LINES = re.findall(
    r"```js\n(.*?)```", (ROOT / "docs" / "how-to" / "lanes-mqttjs.md").read_text(), re.DOTALL
)
PICTURE = 400_000

PROGRAM = """
import { createInterface } from "node:readline";
import { Store } from "mqtt";
import { connect } from "./two_lanes.mjs";
const outgoingStore = new Store();
outgoingStore.put = (packet, done) => {
  console.error(`stored ${packet.topic}`);
  return Store.prototype.put.call(outgoingStore, packet, done);
};
const will = { topic: "will", payload: "gone", qos: 1 };
const options = { clientId: "dashboard", reconnectPeriod: 100, will, outgoingStore };
const client = connect(process.argv[2], options);
client.on("message", (topic, payload) => console.error(`${payload.length} bytes on ${topic}`));
client.on("error", (error) => console.error(`error ${error.message}`));
await client.subscribeAsync("in/#", { qos: 1 });
console.error("subscribed");
for await (const line of createInterface(process.stdin)) {
  const [topic, bytes] = line.split(" ");
  const payload = +bytes % 2 ? Buffer.alloc(+bytes) : "é".repeat(+bytes / 2);
  client.publish(topic, payload, { qos: 1 }, () => console.error(`sent ${line}`));
}
await client.endAsync();
console.error("ended");
process.exit(0);
"""
"""It notes what comes, and publishes what standard input says: an even number of bytes as a string
of half as many characters."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with MQTT.js of the registry, the lines of the page, and the program."""
    place = tmp_path_factory.mktemp("mqttjs")
    (place / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    command = [find_program("npm"), "install", "--no-audit", "--no-fund", f"mqtt@{VERSION}"]
    subprocess.run(command, cwd=place, check=True)
    (place / "two_lanes.mjs").write_text(LINES[0])
    (place / "program.mjs").write_text(PROGRAM)
    return place


class Page(Program):
    """The program on Node."""

    def __init__(self, url: str, folder: Path) -> None:
        """Start it, and wait until it has subscribed."""
        command = [find_program("node"), "program.mjs", url]
        super().__init__(command, cwd=folder, stdin=subprocess.PIPE)
        self.wait_for_log("subscribed")

    def publish(self, *messages: tuple[str, int]) -> None:
        """Publish messages: (topic, bytes)."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{topic} {n_bytes}\n" for topic, n_bytes in messages))
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it leave."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait_for_log("ended")
        assert self.wait() == 0


@contextmanager
def running(url: str, folder: Path) -> Iterator[Page]:
    """Run the program for a block."""
    page = Page(url, folder)
    try:
        yield page
    finally:
        page.kill()


@pytest.mark.parametrize("kind", ["mqtt", "ws"])
def test_an_alarm_passes_a_picture_in_both_directions(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    """On a bad link, over TCP and WebSocket; and each topic keeps its order."""
    listeners = {name: {"bind": "127.0.0.1:0"} for name in ("default", "ws")}
    listeners["ws"]["type"] = "ws"
    # The picture has fewer characters than that.
    withholding = {"policy": "none", "threshold_s": PICTURE * 3 // 4}
    policy = anonymous_policy({"withholding": withholding}, listeners=listeners)
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(policy, tmp_path))
        broker.wait_for_log("listener ws: listening")
        link = stack.enter_context(relay_to(broker.ports["ws" if kind == "ws" else "default"]))
        page = stack.enter_context(running(f"{kind}://127.0.0.1:{link.port}", folder))
        client = stack.enter_context(PahoClient(broker.port, "other"))
        assert client.connect()
        assert client.subscribe("out/#", 1)
        link.switch("bad")
        for topic, n_bytes in (("in/cam", PICTURE), ("in/cam", 2), ("in/alarm", 4)):
            client.publish(topic, bytes(n_bytes))
        page.wait_for_log("2 bytes on in/cam")
        lines = [line for line in page.log.splitlines() if "bytes on" in line]
        assert lines == ["4 bytes on in/alarm", f"{PICTURE} bytes on in/cam", "2 bytes on in/cam"]
        page.publish(("out/cam", PICTURE), ("out/cam", 3), ("out/alarm", 5))
        got = [client.message() for _ in range(3)]
        assert [(m.topic, len(m.payload)) for m in got] == [
            ("out/alarm", 5),
            ("out/cam", PICTURE),
            ("out/cam", 3),
        ]
        assert re.findall("stored (.*)", page.log) == ["out/alarm"]
        page.publish(("out/last", PICTURE))
        page.end()
        assert f"sent out/last {PICTURE}" in page.log


def test_the_will_is_that_of_the_first_connection(folder: Path, tmp_path: Path) -> None:
    """None comes where the large one is lost alone, and one where the program is killed."""
    plugins = {"console": {"http": "127.0.0.1:0"}}
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(anonymous_policy(plugins), tmp_path))
        watcher = stack.enter_context(PahoClient(broker.port, "watcher"))
        assert watcher.connect()
        assert watcher.subscribe("will", 1)
        page = stack.enter_context(running(f"mqtt://127.0.0.1:{broker.port}", folder))
        wait_for(lambda: is_connected(broker, "dashboard.large-lane"))
        with PahoClient(broker.port, "dashboard.large-lane") as intruder:
            assert intruder.connect()
        watcher.publish("will", b"of none")
        assert watcher.payloads(1) == [b"of none"]
        wait_for(lambda: is_connected(broker, "dashboard.large-lane"))
        page.kill()
        for client_id in ("dashboard", "dashboard.large-lane"):
            wait_for(lambda client_id=client_id: not is_connected(broker, client_id))  # type: ignore[misc]
        watcher.publish("will", b"of one")
        assert watcher.payloads(2) == [b"gone", b"of one"]


def test_with_another_broker_it_has_one_connection(folder: Path, tmp_path: Path) -> None:
    """The picture comes first, as it was published first; each message comes once."""
    with ExitStack() as stack:
        mosquitto = stack.enter_context(running_mosquitto(tmp_path))
        page = stack.enter_context(running(f"mqtt://127.0.0.1:{mosquitto.port}", folder))
        page.publish(("in/cam", PICTURE), ("in/alarm", 4))
        page.wait_for_log("4 bytes on in/alarm")
        lines = [line for line in page.log.splitlines() if "bytes on" in line]
        assert lines == [f"{PICTURE} bytes on in/cam", "4 bytes on in/alarm"]
        page.end()


def test_a_refused_lane_leaves_one_connection(folder: Path, tmp_path: Path) -> None:
    """By a limit on sessions: a warning, and all messages on the first one."""
    policy = anonymous_policy(limits={"sessions_per_address": 2})
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(policy, tmp_path))
        client = stack.enter_context(PahoClient(broker.port, "other"))
        assert client.connect()
        page = stack.enter_context(running(f"mqtt://127.0.0.1:{broker.port}", folder))
        page.wait_for_log("one connection for all messages")
        client.publish("in/cam", bytes(PICTURE))
        page.wait_for_log(f"{PICTURE} bytes on in/cam")
        page.publish(("in/cam", PICTURE + 1))
        page.wait_for_log(f"{PICTURE + 1} bytes on in/cam")
        page.end()
