"""Stock clients before the sidecar while its broker is away, and comes back."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.netem.runs.broker_process import find_program, reserved_port
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import Program
from tests.helpers.sidecar import before, running_sidecar

VERSION = "5.16.0"
MQTT_JS = """
import mqtt from "mqtt";
const client = mqtt.connect(process.argv[2], { clientId: "taker", reconnectPeriod: 100 });
client.on("connect", () => client.subscribe("a", { qos: 1 }, () => console.error("subscribed")));
client.on("close", () => console.error("closed"));
client.on("error", () => {});
client.on("message", (topic, payload) => console.error(`got ${payload}`));
"""


def mosquitto_sub(port: int, _: Path) -> list[str]:
    """Return the command of mosquitto_sub."""
    line = f"exec {find_program('mosquitto_sub')} -p {port} -i taker -q 1 -t a -d -F 'got %p' >&2"
    return [find_program("stdbuf"), "-oL", "sh", "-c", line]


def mqtt_js(port: int, folder: Path) -> list[str]:
    """Install MQTT.js of the registry; return the command of a program that takes messages."""
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    command = [find_program("npm"), "install", "--no-audit", "--no-fund", f"mqtt@{VERSION}"]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "taker.mjs").write_text(MQTT_JS)
    return [find_program("node"), "taker.mjs", f"mqtt://127.0.0.1:{port}"]


@pytest.mark.parametrize("taker", [mosquitto_sub, mqtt_js])
def test_a_client_comes_back_after_a_restart_of_the_broker(taker: object, tmp_path: Path) -> None:
    """It tries again while the broker is away, as it would without the proxy."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        first = stack.enter_context(ExitStack())
        first.enter_context(running_mosquitto(tmp_path, port=port))
        proxy = stack.enter_context(running_sidecar(before(port), tmp_path))
        assert callable(taker)
        client = Program(taker(proxy.port, tmp_path), cwd=tmp_path)
        stack.callback(client.kill)
        client.wait_for_log("subscribed" if taker is mqtt_js else "SUBACK")
        first.close()
        proxy.wait_for_match(r"(?s)(ended: closed: no connection to .*){2}")
        assert client.process.poll() is None
        stack.enter_context(running_mosquitto(tmp_path, port=port))
        other = stack.enter_context(PahoClient(port, "other"))
        assert other.connect()
        while "got news" not in client.log:
            other.publish("a", b"news")
