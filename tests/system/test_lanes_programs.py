"""Programs with one import changed: what they are for, on a bad link, and any broker."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.netem.runs.broker_process import find_program, reserved_port
from penstock.netem.runs.brokers import HAPROXY
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, BrokerProcess, Program
from tests.helpers.slow_link import Link, relay_to

PAGE = (ROOT / "docs" / "how-to" / "lanes.md").read_text()
PROGRAMS = dict(
    zip(("paho", "aiomqtt"), re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), strict=True)
)
"""The programs of the page, by the client that they use."""

PICTURE = bytes(400_000)
LINES = (f"{len(PICTURE)} bytes on cam/1", "4 bytes on alarms/door")

PUBLISHER = """
import sys, time
import penstock.lanes.paho as mqtt  # in place of: import paho.mqtt.client as mqtt
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "camera")
client.connect("127.0.0.1", 1883)
client.loop_start()
sent = [client.publish("cam/1", bytes(400_000), 1), client.publish("alarms/door", "open", 1)]
for each in sent:
    each.wait_for_publish()
print("published", flush=True)
client.disconnect()
client.loop_stop()
"""
"""It publishes a picture, then an alarm."""


def stock(program: str) -> str:
    """Return a program with its import as it was."""
    return re.sub(r"import penstock\.lanes\.\w+ as (\w+)  # in place of: (.*)", r"\2", program)


def with_log(program: str) -> str:
    """Return a program that shows its log."""
    return f"import logging; logging.basicConfig(level='INFO')\n{program}"


@contextmanager
def running(program: str, port: int, folder: Path) -> Iterator[Program]:
    """Run a program of Python for a block; what it prints is its log."""
    script = folder / "program.py"
    script.write_text(program.replace("1883", str(port)))
    started = Program(["sh", "-c", 'exec "$0" "$1" >&2', sys.executable, str(script)], cwd=ROOT)
    try:
        yield started
    finally:
        started.kill()


@contextmanager
def balanced(port: int, folder: Path) -> Iterator[int]:
    """Run HAProxy before a broker for a block; yield its port."""
    with reserved_port() as own:
        (folder / "haproxy.cfg").write_text(HAPROXY.format(port=own, broker_port=port))
        balancer = Program([find_program("haproxy"), "-f", str(folder / "haproxy.cfg"), "-db"])
        try:
            yield own
        finally:
            balancer.kill()


def wait_for_subscription(client: PahoClient, program: Program) -> None:
    """Wait until the program's subscription is there: what is retained comes with it."""
    client.publish("ready", b"r", retain=True)
    program.wait_for_log("1 bytes on ready")


def order_of_arrival(
    program: Program, port: int, link: Link | None = None, *, is_logged: bool = False
) -> list[str]:
    """Publish a picture and then an alarm; return the lines that the program prints of them.

    Args:
        program: of the page.
        port: of the broker.
        link: of the program; it is bad from when the program has subscribed.
        is_logged: and from when its log says that it has two connections.
    """
    with PahoClient(port, "publisher") as client:
        assert client.connect()
        wait_for_subscription(client, program)
        if link is not None:
            if is_logged:
                program.wait_for_log("dashboard: two connections")
            link.switch("bad")
        client.publish("cam/1", PICTURE)
        client.publish("alarms/door", b"open")
        for line in LINES:
            program.wait_for_log(line)
    return [line for line in program.log.splitlines() if line in LINES]


@pytest.mark.parametrize("is_balanced", [False, True], ids=["direct", "behind HAProxy"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_alarm_arrives_while_a_picture_is_on_its_way(
    name: str, *, is_balanced: bool, broker: BrokerProcess, tmp_path: Path
) -> None:
    """By the program of the page; with its import as it was, the picture comes first."""
    with ExitStack() as stack:
        port = stack.enter_context(balanced(broker.port, tmp_path)) if is_balanced else broker.port
        link = stack.enter_context(relay_to(port))
        program = PROGRAMS[name]
        with running(with_log(program), link.port, tmp_path) as started:
            order = order_of_arrival(started, broker.port, link, is_logged=True)
        assert order == list(LINES[::-1])
        link.switch("good")
        with running(stock(program), link.port, tmp_path) as started:
            assert order_of_arrival(started, broker.port, link) == list(LINES)


@pytest.mark.parametrize("is_balanced", [False, True], ids=["direct", "behind HAProxy"])
def test_an_alarm_leaves_while_a_picture_is_on_its_way(
    *, is_balanced: bool, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Published behind it by a program that has just connected."""
    with ExitStack() as stack:
        port = stack.enter_context(balanced(broker.port, tmp_path)) if is_balanced else broker.port
        link = stack.enter_context(relay_to(port))
        client = stack.enter_context(PahoClient(broker.port, "subscriber"))
        assert client.connect()
        assert client.subscribe("cam/#", 1)
        assert client.subscribe("alarms/#", 1)
        link.switch("bad")
        for program, topics in (
            (PUBLISHER, ["alarms/door", "cam/1"]),
            (stock(PUBLISHER), ["cam/1", "alarms/door"]),
        ):
            with running(program, link.port, tmp_path) as started:
                started.wait_for_log("published")
                assert [client.message().topic for _ in topics] == topics


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_another_broker_a_program_has_one_connection(name: str, tmp_path: Path) -> None:
    """As it has with its import as it was: the picture comes first, and once."""
    with (
        running_mosquitto(tmp_path) as mosquitto,
        running(with_log(PROGRAMS[name]), mosquitto.port, tmp_path) as started,
    ):
        assert order_of_arrival(started, mosquitto.port) == list(LINES)
        started.wait_for_log("the broker has no lanes")
