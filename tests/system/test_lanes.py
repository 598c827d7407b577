"""docs/reference/lanes.md: its examples with stock clients, and its other words about two lanes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from paho.mqtt.packettypes import PacketTypes

from penstock.plugins.console.commands.asking import Console
from penstock.plugins.console.report_text import describe
from tests.helpers.paho_client import MQTT_3_1_1, PahoClient, connect_properties, properties
from tests.helpers.process import ROOT, SECONDS, BrokerProcess, Program, running_broker

PAGE = (ROOT / "docs" / "reference" / "lanes.md").read_text()
WANTED = ("small: 4 bytes on alarms/door", "large: 20000 bytes on cam/1")


def block(title: str, language: str) -> str:
    """Return the fenced block of a language below a title."""
    return PAGE.partition(f"## {title}\n")[2].partition(f"```{language}\n")[2].partition("```")[0]


@contextmanager
def running(*commands: list[str]) -> Iterator[list[Program]]:
    """Run programs for a block; what they print is their log."""
    with ExitStack() as stack:
        programs = []
        for command in commands:
            program = Program(["sh", "-c", 'exec "$0" "$@" >&2', *command])
            stack.callback(program.kill)
            programs.append(program)
        yield programs


def publish(port: int, topic: str, payload: bytes, *options: str) -> None:
    """Publish one message that is retained, so that it may come before its subscribers."""
    command = ["mosquitto_pub", "-p", str(port), "-t", topic, "-q", "1", "-r", "-s", *options]
    subprocess.run(command, input=payload, check=True, timeout=SECONDS)


@contextmanager
def with_messages(tmp_path: Path, **policy: Any) -> Iterator[BrokerProcess]:
    """Run a broker that has an alarm and a picture."""
    policy.setdefault("listeners", {"default": {"bind": "127.0.0.1:0"}})
    with running_broker(policy, tmp_path) as broker:
        publish(broker.port, "alarms/door", b"open")
        publish(broker.port, "cam/1", bytes(20_000))
        yield broker


def check_lanes(broker: BrokerProcess, programs: list[Program]) -> None:
    """Each message comes on its lane alone, from one program with both or from two in order."""
    for line, program in zip(WANTED, (programs[0], programs[-1]), strict=True):
        program.wait_for_log(line)
    publish(broker.port, "end", b"end")
    publish(broker.port, "end", bytes(30_000))
    wanted = (*WANTED, "small: 3 bytes on end", "large: 30000 bytes on end")
    for line, program in zip(wanted[2:], (programs[0], programs[-1]), strict=True):
        program.wait_for_log(line)
    printed = "".join(program.log for program in programs)
    # Two threads of a client may print at once, and their newlines come after both lines.
    for line in wanted:
        assert printed.count(line) == 1
        printed = printed.replace(line, "")
    assert not printed.strip()


def test_mosquitto_sub_takes_two_lanes(tmp_path: Path) -> None:
    """Both commands; and penstock why says which is which."""
    policy = {"plugins": {"console": {"http": "127.0.0.1:0"}}}
    with with_messages(tmp_path, **policy) as broker:
        lines = block("By hand", "sh").replace("1883", str(broker.port)).splitlines()
        with running(*map(shlex.split, lines)) as programs:
            check_lanes(broker, programs)
            told = describe(Console(broker.console_url).client("dash-small"))
    assert "subscriptions: 1, 1 to small messages alone" in told


def test_a_class_that_is_unknown_is_named(tmp_path: Path) -> None:
    """mosquitto_sub says that its subscription was refused."""
    with with_messages(tmp_path) as broker:
        command = block("By hand", "sh").splitlines()[0]
        command = command.replace("1883", str(broker.port)).replace("size small", "size tiny")
        done = subprocess.run(
            [*shlex.split(command), "-d"],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert "Subscribed (mid: 1): 131" in done.stdout
    assert "All subscription requests were denied" in done.stdout + done.stderr


def test_clients_of_mqtt_3_1_1_take_lanes_by_listener_or_client_id(tmp_path: Path) -> None:
    """The policy of the page."""
    policy = yaml.safe_load(block("By hand", "yaml"))
    for listener in policy["listeners"].values():
        listener["bind"] = "127.0.0.1:0"
    with (
        with_messages(tmp_path, **policy) as broker,
        PahoClient(broker.ports["small"], "sensor", MQTT_3_1_1) as by_listener,
        PahoClient(broker.port, "dash-large", MQTT_3_1_1) as by_id,
        PahoClient(broker.ports["small"], "lab-1", MQTT_3_1_1) as both,
    ):
        for client in (by_listener, by_id, both):
            assert client.connect()
            assert client.subscribe("#", 1)
        publish(broker.port, "alarms/door", b"shut")
        publish(broker.port, "cam/1", bytes(30_000))
        wanted = {by_listener: [4, 4], by_id: [20_000, 30_000], both: [4, 4, 20_000, 30_000]}
        for client, sizes in wanted.items():
            assert sorted(map(len, client.payloads(len(sizes)))) == sizes


def test_the_size_of_a_session_that_lasts_outlives_the_broker(tmp_path: Path) -> None:
    """Killed, and started again on its database."""
    policy: dict[str, Any] = {
        "listeners": {"default": {"bind": "127.0.0.1:0"}},
        "persistence": {"path": str(tmp_path / "sessions.db"), "durability": "normal"},
    }
    lasting: dict[str, Any] = {
        "clean_start": False,
        "properties": connect_properties(SessionExpiryInterval=600),
    }
    large = properties(PacketTypes.SUBSCRIBE, UserProperty=("penstock-size", "large"))
    with running_broker(policy, tmp_path) as broker, PahoClient(broker.port, "dash") as client:
        assert client.connect(**lasting)
        assert client.subscribe("#", 1, properties=large)
        client.paho.loop_stop()
        broker.kill()
    with running_broker(policy, tmp_path) as broker, PahoClient(broker.port, "dash") as client:
        publish(broker.port, "alarms/door", b"shut")
        publish(broker.port, "cam/1", bytes(30_000))
        publish(broker.port, "alarms/door", b"open")
        publish(broker.port, "cam/2", bytes(40_000))
        assert client.connect(**lasting)
        assert client.connack[0]
        assert list(map(len, client.payloads(2))) == [30_000, 40_000]
