"""What docs/how-to/cluster.md says is done, on addresses of this machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from redis import Redis
from redis.exceptions import RedisError

from penstock.lanes.paho import Client as LanesClient
from penstock.netem.runs.broker_process import RunningBroker, find_program, reserved_port
from penstock.plugins.access.password_hash import make_hash
from tests.helpers.cluster import until
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import ROOT, BrokerProcess

PAGE = (ROOT / "docs" / "how-to" / "cluster.md").read_text()
USER = ("admin", "water under the bridge")
FOLDER = "/var/lib/penstock/"
SENTINEL = """\
protected-mode no
port 26379
sentinel monitor mymaster 127.0.0.1 6379 2
sentinel down-after-milliseconds mymaster 30000
sentinel parallel-syncs mymaster 1
sentinel failover-timeout mymaster 180000
sentinel deny-scripts-reconfig yes
SENTINEL resolve-hostnames no
SENTINEL announce-hostnames no
SENTINEL master-reboot-down-after-period mymaster 0
"""
"""What Debian's package has in its file."""


def block(word: str) -> str:
    """Return the block of the page that has a word."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (text for text in blocks if word in text)
    return str(found)


class Site:
    """The three machines of the page, whose addresses are ports of this one.

    Attributes:
        brokers: that run, by machine.
        programs: the others that run, each with the name of its folder.
        port: of the load balancer.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.brokers: dict[str, BrokerProcess] = {}
        self.programs: dict[str, RunningBroker] = {}
        self._stack = stack
        self._folder = folder
        # One address for each port of each machine.
        self._ports = {
            f"10.0.0.{machine}:{port}": stack.enter_context(reserved_port())
            for machine in (1, 2, 9)
            for port in (1883, 6379, 8081, 26379)
        }
        self.port = self._ports["10.0.0.9:1883"]
        (folder / "passwords").write_text(f"{USER[0]}:{make_hash(USER[1].encode(), b's' * 12)}\n")
        (folder / "redis-password").write_text("SECRET\n")
        (folder / "topics").write_text("user admin\ntopic readwrite #\n")
        (folder / "console.tokens").write_text("me admin Vn3cQbJ0yXh7mS2kTz9wAAAA\n")
        for file in ("passwords", "redis-password", "topics", "console.tokens"):
            (folder / file).chmod(0o600)

    def _here(self, text: str, machine: int) -> str:
        """Return a file of the page as this machine can have it."""
        text = text.replace(FOLDER, f"{self._folder}/")
        text = re.sub(
            r"(10\.0\.0\.\d)(:1883 .* port )(8081)",
            lambda found: f"{found[1]}{found[2]}{self._ports[f'{found[1]}:8081']}",
            text,
        )
        for address, port in self._ports.items():
            host, _, own = address.partition(":")
            text = text.replace(f"{address}", f"127.0.0.1:{port}")
            text = text.replace(f"{host} {own}", f"127.0.0.1 {port}")
            if host == f"10.0.0.{machine}":
                text = re.sub(rf"^port {own}$", f"port {port}", text, flags=re.MULTILINE)
                text = text.replace(f"0.0.0.0:{own}", f"127.0.0.1:{port}")
                text = text.replace(f"bind :{own}", f"bind 127.0.0.1:{port}")
        return text.replace(f"bind 10.0.0.{machine}", "bind 127.0.0.1")

    def _run(self, program: str, file: Path, text: str, *arguments: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        command = [find_program(program), *arguments, str(file)]
        if program == "redis-server":
            command = [find_program(program), str(file), *arguments]
        running = self.programs[file.parent.name] = RunningBroker(program, command, file.parent)
        self._stack.callback(running.kill)

    def start_redis(self, machine: int) -> None:
        """Start the server of a machine by the page's file."""
        text = block("requirepass").replace("bind 10.0.0.1", f"bind 10.0.0.{machine}")
        if machine == 2:
            text = text.replace("# on 10.0.0.2 alone: ", "")
        folder = self._folder / f"redis{machine}"
        text = self._here(text, machine) + f"dir {folder}\nrepl-diskless-sync-delay 0\n"
        self._run("redis-server", folder / "redis.conf", text)
        port = self._ports[f"10.0.0.{machine}:6379"]
        until(lambda: _asked(port, "PING", password="SECRET"), "Redis")

    def start_sentinel(self, machine: int) -> None:
        """Start the sentinel of a machine by the page's file."""
        folder = self._folder / f"sentinel{machine}"
        (word,) = re.findall(r"in place of all lines that have `(\w+)`", PAGE)
        kept = "".join(line for line in SENTINEL.splitlines(True) if word not in line)
        text = self._here(kept + block("sentinel monitor"), machine) + f"dir {folder}\n"
        self._run("redis-server", folder / "sentinel.conf", text, "--sentinel")
        port = self._ports[f"10.0.0.{machine}:26379"]
        until(lambda: _asked(port, "PING"), "a sentinel")

    def until_complete(self) -> None:
        """Wait until the third machine's sentinel tells what the page says."""
        port = self._ports["10.0.0.9:26379"]

        def is_complete() -> bool:
            told = _asked(port, "SENTINEL MASTER", "penstock")
            counts = (told["num-slaves"], told["num-other-sentinels"]) if told else ()
            return counts == (1, 2)

        until(is_complete, "the sentinels and the replica")

    def start_broker(self, machine: int) -> None:
        """Start the broker of a machine by the page's policy, as another host."""
        folder = self._folder / f"broker{machine}"
        folder.mkdir(exist_ok=True)
        text = self._here(block("access:"), machine)
        text = text.replace("name: emea", f"name: emea\n  node: machine{machine}")
        broker = self.brokers[f"machine{machine}"] = BrokerProcess(text, folder)
        self._stack.callback(broker.end)
        assert broker.port, broker.log

    def start_balancer(self) -> None:
        """Start HAProxy by the page's file."""
        file = self._folder / "haproxy" / "haproxy.cfg"
        self._run("haproxy", file, self._here(block("defaults"), 9), "-db", "-f")


def _asked(port: int, *command: str, password: str | None = None) -> Any:
    try:
        with Redis(port=port, password=password) as server:
            return server.execute_command(*command)
    except RedisError:
        return None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """All three machines, as the page sets them up."""
    with ExitStack() as stack:
        site = Site(stack, tmp_path)
        for machine in (1, 2):
            site.start_redis(machine)
        for machine in (1, 2, 9):
            site.start_sentinel(machine)
        site.until_complete()
        for machine in (1, 2):
            site.start_broker(machine)
        site.start_balancer()
        yield site


def come(site: Site, client_id: str, **options: Any) -> PahoClient:
    """Return a client that has come through the load balancer, which may not listen yet."""
    client = PahoClient(site.port, client_id)

    def is_in() -> bool:
        try:
            return client.connect(*USER, **options)
        except OSError:
            return False

    until(is_in, "the load balancer")
    return client


def test_clients_come_through_the_load_balancer_and_go_on_when_a_broker_is_killed(
    site: Site,
) -> None:
    """They are at two brokers, and are one another's subscribers and publishers."""
    with come(site, "reader") as reader, come(site, "writer") as writer:
        assert reader.subscribe("hall/#", 1)
        writer.publish("hall/1", b"hello")
        assert reader.payloads(1) == [b"hello"]
        next(iter(site.brokers.values())).kill()
        with come(site, "another") as another:
            until(reader.paho.is_connected, "the reader")
            assert reader.subscribe("hall/#", 1)
            another.publish("hall/2", b"again")
            assert reader.payloads(1) == [b"again"]


def test_a_client_of_a_broker_that_was_just_killed_is_let_in_by_another(site: Site) -> None:
    """At once: HAProxy tries another broker before it has seen that this one is away."""
    names = [f"client-{number}" for number in range(8)]
    for name in names:  # both are up
        with come(site, name):
            pass
    site.brokers["machine1"].kill()
    for name in names:
        with come(site, name):
            pass
    assert "Server brokers/one is DOWN" not in site.programs["haproxy"].log.read_text()


def test_a_machine_that_vanishes_is_noticed_by_the_load_balancer(site: Site) -> None:
    """It looks whether its brokers' machines are there: no client need wait for its keep alive."""
    with come(site, "stays"):
        shown = subprocess.run(
            ["ss", "-Htno", "state", "established"], capture_output=True, text=True, check=True
        ).stdout
        ports = [f":{broker.port}" for broker in site.brokers.values()]
        to_brokers = [line for line in shown.splitlines() if line.split()[3].endswith(tuple(ports))]
        assert to_brokers, shown
        assert all("timer:(keepalive" in line for line in to_brokers), to_brokers


def test_both_lanes_of_a_client_come_to_one_broker(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would have one connection, and alarms would wait behind pictures."""
    caplog.set_level("INFO", "penstock.lanes")

    def has_two(client_id: str) -> bool:
        return f"{client_id}: two connections" in caplog.text

    for client_id in ("one", "two", "three"):
        with come(site, client_id):  # the load balancer listens
            pass
        client = LanesClient(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5)
        client.username_pw_set(*USER)
        client.connect("127.0.0.1", site.port)
        client.loop_start()
        until(partial(has_two, client_id), "the second one")
        client.disconnect()
        client.loop_stop()


def test_clients_find_their_sessions_wherever_the_load_balancer_sends_them(site: Site) -> None:
    """Each time that they come back, also after their broker was killed."""
    lasting = {"clean_start": False, "properties": connect_properties(SessionExpiryInterval=600)}
    for client_id in ("one", "two", "three"):
        with come(site, client_id, **lasting) as client:
            assert not client.connack[0]
    site.brokers["machine1"].kill()
    for client_id in ("two", "one", "three", "one"):
        with come(site, client_id, **lasting) as client:
            assert client.connack[0]


def test_brokers_are_reached_while_redis_is_away(site: Site) -> None:
    """They say that they are not ready; clients that are there go on, others are told by them."""
    with come(site, "stays") as stays, PahoClient(site.port, "comes") as comes:
        assert stays.subscribe("own/#", 1)
        for machine in (1, 2):
            site.programs[f"redis{machine}"].kill()
        log = site.programs["haproxy"].log
        until(lambda: "Server brokers/one is DOWN" in log.read_text(), "what /readyz says of one")
        until(lambda: "Server brokers/two is DOWN" in log.read_text(), "what /readyz says of two")
        assert "Layer7 wrong status, code: 503" in log.read_text()
        assert not comes.connect(*USER)
        assert comes.connack[1] == "Server unavailable"
        stays.paho.publish("own/1", b"x", 0)
        assert stays.payloads(1) == [b"x"]
