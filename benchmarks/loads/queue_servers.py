"""The servers that `queue_peers` compares: Penstock, RabbitMQ and moto, each started anew.

All listen on loopback alone, on free ports, and keep their files in a folder that goes with them.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.errors import BenchmarkError
from benchmarks.loads.queue_publisher import TOPICS
from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import (
    RunningBroker,
    listens,
    log_tail,
    penstock_command,
    reserved_port,
    version_of,
)

QUEUE: Final = "bench"
STOP_SECONDS: Final = 10.0
START_SECONDS: Final = 120.0
"""The time that a server has to start: a node of RabbitMQ takes some ten seconds of processor
time."""
LOOK_SECONDS: Final = 0.05
RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The programs of RabbitMQ, without Debian's wrapper, which would become the user rabbitmq and use
that user's files."""


@dataclass(frozen=True, slots=True)
class QueueServer:
    """A server that runs.

    Attributes:
        mqtt_port: the TCP port for publishers; 0 for none.
        consuming: the protocol and the address for `queue_drain`.
        sqs_url: the URL of its Amazon SQS API; "" for none.
        pid: the process id of Penstock; 0 for another server.
    """

    mqtt_port: int = 0
    consuming: tuple[str, str] = ("", "")
    sqs_url: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class QueuePeer:
    """A server that can be measured.

    Attributes:
        missing: a function that names what has to be installed; "" where nothing is missing.
        run: a function that starts it in an empty folder.
        has_sqs: whether it takes part in the table of Amazon SQS.
    """

    name: str
    about: str
    version: Callable[[], str]
    missing: Callable[[], str]
    run: Callable[[Path], Any]
    has_mqtt: bool = False
    has_sqs: bool = False


@contextmanager
def _ended(broker: RunningBroker) -> Iterator[RunningBroker]:
    """End a server and what it started."""
    try:
        yield broker
    finally:
        family = []
        with suppress(psutil.NoSuchProcess):  # one that has ended tells why itself
            family = psutil.Process(broker.process.pid).children(recursive=True)
        with suppress(RunError):
            broker.stop(STOP_SECONDS)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _wait(broker: RunningBroker, port: int) -> None:
    """Wait until something that it started listens.

    Raises:
        BenchmarkError: it does not in time.
        RunError: it has ended.
    """
    until = time.monotonic() + START_SECONDS
    while not listens(broker.process.pid, port):
        broker.check()
        if time.monotonic() > until:
            raise BenchmarkError(
                f"no listener on port {port} after {START_SECONDS:g} s: {log_tail(broker.log)}"
            )
        time.sleep(LOOK_SECONDS)


# -- Penstock ------------------------------------------------------------------------------------


def _penstock(protocol: str) -> Callable[[Path], Any]:
    """Return what runs the broker with one queue in SQLite, durable before each PUBACK."""

    @contextmanager
    def run(folder: Path) -> Iterator[QueueServer]:
        with ExitStack() as stack:
            mqtt, http, sqs = (stack.enter_context(reserved_port()) for _ in range(3))
            group = {"visibility_timeout": 600.0}
            policy = {
                "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{mqtt}"}},
                "plugins": {
                    "queue": {
                        "engine": "sqlite",
                        "durability": "full",
                        "http": f"127.0.0.1:{http}",
                        "sqs": f"127.0.0.1:{sqs}",
                        "queues": {
                            QUEUE: {"topics": [f"{TOPICS}/#"], "groups": {"default": group}}
                        },
                    }
                },
            }
            broker = RunningBroker("penstock", penstock_command(folder, policy), folder)
            stack.enter_context(_ended(broker))
            for port in (mqtt, http, sqs):
                _wait(broker, port)
            addresses = {"http": f"http://127.0.0.1:{http}", "mqtt": str(mqtt)}
            consuming = (protocol, addresses[protocol])
            yield QueueServer(mqtt, consuming, f"http://127.0.0.1:{sqs}", broker.process.pid)

    return run


# -- RabbitMQ ------------------------------------------------------------------------------------


def rabbitmq_settings(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """Write the configuration of a node of its own into a folder; return its environment.

    Args:
        folder: the folder for its files, its database and its log.
        ports: `amqp`, `mqtt`, `distribution` and `epmd`.
    """
    lines = [
        f"listeners.tcp.local = 127.0.0.1:{ports['amqp']}",
        f"mqtt.listeners.tcp.local = 127.0.0.1:{ports['mqtt']}",
        "log.file.level = warning",
    ]
    (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
    cookie = folder / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(10))
    cookie.chmod(0o400)
    loopback = "{127,0,0,1}"
    return {
        # The script then becomes the node, which ends orderly at SIGTERM.
        "RUNNING_UNDER_SYSTEMD": "true",
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(ports["epmd"]),
        "RABBITMQ_NODENAME": f"penstock-bench-{ports['amqp']}@localhost",
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {loopback}",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }


def _declare(port: int, kind: str) -> None:
    """Create the durable queue, bound to what MQTT clients publish.

    Raises:
        BenchmarkError: the node does not accept it in time.
    """
    import pika  # noqa: PLC0415 - the extra `peers` has it
    from pika.exceptions import AMQPError  # noqa: PLC0415 - the same

    until = time.monotonic() + START_SECONDS
    while True:
        try:
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            break
        except AMQPError as error:
            if time.monotonic() > until:
                raise BenchmarkError(f"RabbitMQ accepts no connection: {error!r}") from error
            time.sleep(LOOK_SECONDS)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": kind})
    channel.queue_bind(QUEUE, "amq.topic", f"{TOPICS}.#")
    connection.close()


@contextmanager
def _epmd(settings: Mapping[str, str]) -> Iterator[None]:
    """Run the name service of Erlang nodes; a node would start one that outlives it."""
    environment = os.environ | settings
    with subprocess.Popen(
        ["epmd"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.kill()


def _rabbitmq(kind: str) -> Callable[[Path], Any]:
    @contextmanager
    def run(folder: Path) -> Iterator[QueueServer]:
        with ExitStack() as stack:
            names = ("amqp", "mqtt", "distribution")
            ports = {name: stack.enter_context(reserved_port()) for name in names}
            with reserved_port() as epmd:  # which sets no SO_REUSEADDR
                ports["epmd"] = epmd
            settings = rabbitmq_settings(folder, ports)
            stack.enter_context(_epmd(settings))
            pairs = [f"{name}={value}" for name, value in settings.items()]
            broker = RunningBroker("rabbitmq", ["env", *pairs, str(RABBITMQ)], folder)
            stack.enter_context(_ended(broker))
            for name in ("amqp", "mqtt"):
                _wait(broker, ports[name])
            _declare(ports["amqp"], kind)
            yield QueueServer(ports["mqtt"], ("amqp", str(ports["amqp"])))

    return run


def _debian_version(package: str) -> str:
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout or "of unknown version"


def missing_module(module: str) -> str:
    """Say what has to be installed for a module; "" where it is there."""
    if importlib.util.find_spec(module) is not None:
        return ""
    return f"the Python package {module}: pip install -e '.[peers]'"


def missing_rabbitmq() -> str:
    """Say what has to be installed for RabbitMQ; "" where nothing is missing."""
    if not RABBITMQ.exists():
        return "RabbitMQ: apt-get install rabbitmq-server"
    return missing_module("pika")


# -- moto ----------------------------------------------------------------------------------------


@contextmanager
def _moto(folder: Path) -> Iterator[QueueServer]:
    """Run moto's server, whose queues are in memory."""
    with reserved_port() as reserved:
        port = reserved  # it sets no SO_REUSEADDR: free again here
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    broker = RunningBroker("moto", command, folder)
    with _ended(broker):
        _wait(broker, port)
        yield QueueServer(sqs_url=f"http://127.0.0.1:{port}")


def _moto_version() -> str:
    import moto  # noqa: PLC0415 - the extra `peers` has it

    return moto.__version__


QUEUE_PEERS: Final = {
    peer.name: peer
    for peer in (
        QueuePeer(
            "penstock",
            "SQLite, durability full",
            lambda: version_of("penstock"),
            lambda: "",
            _penstock("http"),
            has_mqtt=True,
            has_sqs=True,
        ),
        QueuePeer(
            "penstock-mqtt",
            "the same, with consumers that subscribe to $queue/NAME",
            lambda: version_of("penstock"),
            lambda: "",
            _penstock("mqtt"),
            has_mqtt=True,
        ),
        QueuePeer(
            "rabbitmq-classic",
            "a durable classic queue, one node",
            lambda: _debian_version("rabbitmq-server"),
            missing_rabbitmq,
            _rabbitmq("classic"),
            has_mqtt=True,
        ),
        QueuePeer(
            "rabbitmq-quorum",
            "a quorum queue, one node",
            lambda: _debian_version("rabbitmq-server"),
            missing_rabbitmq,
            _rabbitmq("quorum"),
            has_mqtt=True,
        ),
        QueuePeer(
            "moto",
            "in memory",
            _moto_version,
            lambda: missing_module("moto") or missing_module("boto3"),
            _moto,
            has_sqs=True,
        ),
    )
}
"""The servers by name, in the order in which a repetition visits them."""


@contextmanager
def running_queue(peer: QueuePeer, folder: Path) -> Iterator[QueueServer]:
    """Start a server in an empty folder of its own and end it afterwards.

    Raises:
        BenchmarkError: it does not start.
        RunError: it ends.
    """
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="penstock-bench-") as own,
        peer.run(Path(own)) as server,
    ):
        yield server
