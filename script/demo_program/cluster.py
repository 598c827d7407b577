"""``script/demo --cluster``: three brokers are one, and one of them is killed under load.

Publishers send at QoS 1; subscribers have sessions that outlive their connections. Whoever loses a
broker goes on at the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
import yaml
from paho.mqtt.enums import MQTTProtocolVersion
from rich.console import Console

from penstock.netem.errors import NetemError
from penstock.netem.runs.broker_process import find_program
from script.demo_program.books import compare
from script.demo_program.clients import TELEMETRY, Client, Publisher, Subscriber
from script.demo_program.errors import DemoError
from script.demo_program.policy import free_ports
from script.demo_program.programs import Program, Programs
from script.demo_program.run import START_SECONDS, STUCK_SECONDS, empty

REDIS_PORT: Final = 18860
NODES: Final = {"one": 18861, "two": 18862, "three": 18863}
"""The preferred ports; others where these are taken."""
KILLED_AFTER: Final = 1 / 3
"""The part of the time after which the first one is killed."""
PAUSE_SECONDS: Final = 0.01
"""Between two messages of a publisher."""
RETRY_SECONDS: Final = 0.2


class Wanderer(Client):
    """A client that goes to the next of some ports whenever it loses its connection."""

    _others: cycle[int]

    def _prepare(self, client: mqtt.Client) -> None:
        super()._prepare(client)
        client.reconnect_delay_set(RETRY_SECONDS, RETRY_SECONDS)  # type: ignore[arg-type]
        client.on_connect_fail = lambda *_: self._go_on()

    def _on_disconnect(self, *args: Any) -> None:
        super()._on_disconnect(*args)
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_closing:
            self._client.connect_async("127.0.0.1", next(self._others))


class Source(Wanderer, Publisher):
    """A publisher of small messages."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        self._others = cycle(ports)
        super().__init__(name, next(self._others))


class Session(Wanderer, Subscriber):
    """A subscriber whose session outlives its connection, in the words of MQTT 3.1.1."""

    def __init__(self, name: str, ports: Sequence[int]) -> None:
        self._others = cycle(ports)
        make: Any = partial(mqtt.Client, clean_session=False)
        super().__init__(name, next(self._others), version=MQTTProtocolVersion.MQTTv311, make=make)

    def longest_gap(self) -> float:
        """Return the longest time in which nothing came, seconds."""
        return max((b - a for a, b in pairwise(at for _, at in self.small)), default=0.0)


def run_cluster(folder: Path, seconds: float, console: Console) -> list[str]:
    """Run the demo of a cluster; return what was lost, each as a sentence, which it prints too.

    Raises:
        DemoError: it could not be run to its end.
    """
    empty(folder)
    with ExitStack() as stack:
        programs = stack.enter_context(Programs(folder))
        redis_port, *ports = free_ports([REDIS_PORT, *NODES.values()])
        console.print("starting Redis and three brokers, which are one to their clients")
        _start_redis(programs, folder, redis_port)
        brokers = [
            _start_node(programs, folder, name, port, redis_port)
            for name, port in zip(NODES, ports, strict=True)
        ]
        turned = [[*ports[at:], *ports[:at]] for at in range(len(ports))]
        readers = [Session(f"reader-{at}", turned[at]) for at in range(len(ports))]
        sources = [Source(f"source-{at}", turned[at]) for at in range(len(ports))]
        for client in (*readers, *sources):
            stack.callback(client.close)
        console.print(
            f"{len(sources)} publishers of QoS 1 and {len(readers)} subscribers with sessions, one "
            f"of each at each broker, for {seconds:.0f} s",
            soft_wrap=True,
        )
        began_at, number, is_killed = time.monotonic(), 0, False
        while (elapsed := time.monotonic() - began_at) < seconds:
            if not is_killed and elapsed > seconds * KILLED_AFTER:
                brokers[0].kill()
                is_killed = True
                console.print(f"kill -9: broker {brokers[0].name}, after {elapsed:.0f} s")
            for source in sources:
                source.publish_small(number, f"{TELEMETRY}/{source.name}", _payload(number))
                number += 1
            time.sleep(PAUSE_SECONDS)
        return _judge(sources, readers, number, console)


def _start_redis(programs: Programs, folder: Path, port: int) -> None:
    try:
        words = [find_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    except NetemError as error:
        raise DemoError(f"--cluster: {error}", 2) from error
    words += ["--dir", str(folder.resolve()), "--appendonly", "yes"]
    programs.start_command("redis", *words).wait_for("Ready to accept connections", START_SECONDS)


def _start_node(programs: Programs, folder: Path, name: str, port: int, redis_port: int) -> Program:
    cluster = {"name": "demo", "node": name, "redis": {"server": f"127.0.0.1:{redis_port}"}}
    anonymous = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listeners = {"default": {"bind": f"127.0.0.1:{port}"}}
    file = folder / f"{name}.yaml"
    policy = {"listeners": listeners, "cluster": cluster, "plugins": anonymous}
    file.write_text(yaml.safe_dump(policy))
    broker = programs.start(name, "broker", "-c", str(file))
    broker.wait_for("listening on", START_SECONDS)
    return broker


def _payload(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


def _judge(
    sources: Sequence[Source], readers: Sequence[Session], n_sent: int, console: Console
) -> list[str]:
    """Wait for what is on its way, show the counts, and return what was lost."""
    before, changed_at = -1, time.monotonic()
    while time.monotonic() - changed_at < STUCK_SECONDS:
        named = (name for source in sources for name in source.acknowledged())
        acknowledged = {name for name in named if isinstance(name, int)}
        found = [compare(acknowledged, [n for n, _ in reader.small]) for reader in readers]
        if len(acknowledged) == n_sent and not any(one.missing for one in found):
            break
        n_now = len(acknowledged) + sum(one.found for one in found)
        if n_now != before:
            before, changed_at = n_now, time.monotonic()
        time.sleep(RETRY_SECONDS)
    console.print(f"sent {n_sent:,}, acknowledged {len(acknowledged):,}")
    problems = []
    for reader, one in zip(readers, found, strict=True):
        console.print(
            f"{reader.name}: received {one.found:,}, lost {len(one.missing)}, twice "
            f"{len(one.repeated)}; nothing came for {reader.longest_gap():.1f} s at most",
            highlight=False,
        )
        problems += one.problems(reader.name, "messages", once=False)
    for problem in problems:
        console.print(f"LOST: {problem}", style="bold red", highlight=False, soft_wrap=True)
    if not problems:
        console.print("Nothing that was acknowledged was lost.", style="bold green")
    return problems
