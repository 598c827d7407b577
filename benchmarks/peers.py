"""The brokers that are measured: their configuration, their start and their end.

All are untuned except that queue limits are lifted. All listen on loopback on a free port, and each
is started anew for each measurement, so that none carries memory or state from one to the next.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shlex
import sys
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from benchmarks.errors import BenchmarkError
from benchmarks.loads.access import ACL, USERS, Access, argon2_lines, password_lines
from penstock.netem.errors import RunError
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    RunningBroker,
    amqtt_command,
    find_program,
    mosquitto_command,
    penstock_command,
    reserved_port,
    version_of,
)

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE_POLICY: Final = ROOT / "policy.example.yaml"
USER_FILE: Final = "passwords"
AMQTT_SYS: Final = "amqtt.plugins.sys.broker.BrokerSysPlugin"
AMQTT_USER_FILE: Final = "amqtt-passwords"
ACL_FILE: Final = "acl"
STOP_SECONDS: Final = 60.0
SPILL_LIMIT: Final = "32 MB"
"""The memory limit of the peer `penstock-spill`, for which its targets in the memory rows hold."""
NAME_FORM: Final = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a TLS listener and its clients.

    Attributes:
        authority_file: the file of the authority that signed it, which clients trust.
    """

    certificate_file: Path
    key_file: Path
    authority_file: Path


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator sets, and a row needs, in each broker alike.

    Attributes:
        is_tls: whether the broker listens with TLS 1.3.
        has_acl: whether clients log in, and may do what the ACL file of `loads/access.py` says.
        is_durable: whether clients' sessions outlive their connections, and the broker's files keep
            them.
        is_in_memory: whether the broker's files keep nothing, as mosquitto's do by default.
        is_websocket: whether the broker's listener is one for WebSocket.
        has_metrics: whether metrics are served over HTTP, where a broker can.
        inflight_messages: the limit of unacknowledged messages towards a client, where a peer's
            default is below the row's window; None for the default.
    """

    is_tls: bool = False
    has_acl: bool = False
    is_durable: bool = False
    is_in_memory: bool = False
    is_websocket: bool = False
    has_metrics: bool = False
    inflight_messages: int | None = None

    @property
    def is_production(self) -> bool:
        """Whether only a broker can be measured whose configuration is written here."""
        return self.has_acl or self.is_durable or self.is_websocket


DEFAULT_OPTIONS: Final = Options()


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """The settings that a row needs in a broker's configuration.

    Attributes:
        metrics_port: the TCP port on loopback for metrics over HTTP.
        certificate: the certificate of a listener with TLS 1.3; None without TLS.
    """

    port: int
    metrics_port: int = 0
    certificate: Certificate | None = None
    options: Options = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that can be measured.

    Attributes:
        prepare: a function that writes the configuration into a directory and returns the command.
        is_ceiling: whether it is the relay that shows the load's own limit instead of a broker.
        has_v5: whether it speaks MQTT 5.
        has_production: whether it can have users, an ACL file and durable sessions.
        is_store: whether it is a broker that is measured already, with another payload store.
    """

    name: str
    about: str
    prepare: Callable[[Path, BrokerSetting], list[str]]
    version: Callable[[], str]
    is_ceiling: bool = False
    has_v5: bool = True
    has_tls: bool = True
    has_production: bool = False
    is_store: bool = False


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A started broker.

    Attributes:
        process: the root of its processes.
        access: the same port, and how clients come in.
        metrics_port: the TCP port of its metrics, where it has such.
    """

    name: str
    port: int
    process: psutil.Process
    access: Access
    metrics_port: int = 0

    def rss_bytes(self) -> int:
        """Return the resident set of the broker and the processes it started."""
        return sum(process.memory_info().rss for process in self._family())

    def cpu_seconds(self) -> float:
        """Return the processor time they have used, in user and kernel mode."""
        times = [process.cpu_times() for process in self._family()]
        return float(sum(each.user + each.system for each in times))

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


def _listeners(setting: BrokerSetting) -> dict[str, Any]:
    kind = "ws" if setting.options.is_websocket else "tcp"
    listener: dict[str, Any] = {"type": kind, "bind": f"127.0.0.1:{setting.port}"}
    if (certificate := setting.certificate) is not None:
        listener |= {
            "ssl": True,
            "certfile": str(certificate.certificate_file),
            "keyfile": str(certificate.key_file),
        }
    return {"default": listener}


def stock_amqtt_policy(setting: BrokerSetting) -> dict[str, Any]:
    """Return the policy that aMQTT ships, with one listener."""
    distribution = importlib.metadata.distribution("amqtt")
    file = Path(str(distribution.locate_file("amqtt/scripts/default_broker.yaml")))
    policy: dict[str, Any] = yaml.safe_load(file.read_text())
    return policy | {"listeners": _listeners(setting)}


def without_queue_limits(policy: dict[str, Any]) -> dict[str, Any]:
    """Return a policy for Penstock under which no session's queue is ever full."""
    limits = (policy.get("limits") or {}) | {"queued_messages": 1 << 30, "queued_bytes": 1 << 40}
    return policy | {"limits": limits}


def example_policy(setting: BrokerSetting) -> dict[str, Any]:
    """Return the repository's example policy, its plugins included, on free ports."""
    policy: dict[str, Any] = yaml.safe_load(EXAMPLE_POLICY.read_text())
    policy["plugins"]["queue"]["http"] = "127.0.0.1:0"
    if setting.options.has_acl:
        del policy["plugins"][ANONYMOUS]
        policy["plugins"]["access"] = {"password_file": USER_FILE, "acl_file": ACL_FILE}
    if setting.options.is_in_memory:
        policy["persistence"]["durability"] = "memory"
    if setting.options.has_metrics:
        policy["plugins"]["console"] = {"http": f"127.0.0.1:{setting.metrics_port}"}
    return policy | {"listeners": _listeners(setting)}


def penstock_peer(
    name: str, about: str, change: Callable[[dict[str, Any], Path], None] | None = None, **keys: Any
) -> Peer:
    """Return Penstock with the example policy and some changes.

    Args:
        name: the name of the peer.
        about: a few words about the difference.
        change: a function that changes the given policy; it also gets the directory of the broker.
        keys: further attributes of `Peer`.
    """

    def prepare(directory: Path, setting: BrokerSetting) -> list[str]:
        policy = without_queue_limits(example_policy(setting))
        if change is not None:
            change(policy, directory)
        return penstock_command(directory, policy)

    return Peer(name, about, prepare, partial(version_of, "penstock"), **keys)


def _spill(policy: dict[str, Any], directory: Path) -> None:
    memory = {"store": "spill", "memory_limit": SPILL_LIMIT, "directory": str(directory)}
    policy["plugins"]["memory"] = memory


def _copy(policy: dict[str, Any], _directory: Path) -> None:
    policy["plugins"]["memory"] = {"store": "copy"}


def _penstock_stock(directory: Path, setting: BrokerSetting) -> list[str]:
    return penstock_command(directory, without_queue_limits(stock_amqtt_policy(setting)))


def _mosquitto(directory: Path, setting: BrokerSetting) -> list[str]:
    lines = [
        f"listener {setting.port} 127.0.0.1",
        "max_queued_messages 0",
        "max_queued_bytes 0",
        "user root",  # started by root, it would leave the right to read its files
    ]
    if setting.options.has_acl:
        lines += [f"password_file {directory / USER_FILE}", f"acl_file {directory / ACL_FILE}"]
    else:
        lines.append("allow_anonymous true")
    if setting.options.is_durable:
        lines += ["persistence true", f"persistence_location {directory}/"]
    if (messages := setting.options.inflight_messages) is not None:
        lines.append(f"max_inflight_messages {messages}")
    if (certificate := setting.certificate) is not None:
        lines += [
            f"certfile {certificate.certificate_file}",
            f"keyfile {certificate.key_file}",
            "tls_version tlsv1.3",
        ]
    if setting.options.is_websocket:  # it does not start without another listener
        lines += ["protocol websockets", f"listener {setting.metrics_port} 127.0.0.1"]
    return mosquitto_command(directory, lines)


def _amqtt(directory: Path, setting: BrokerSetting) -> list[str]:
    policy = stock_amqtt_policy(setting)
    if setting.options.has_acl:
        # Its sessions last in memory alone, and its ACL has no patterns. $SYS is off, as each
        # client that connects gets the retained messages of all subscriptions.
        for plugin in ANONYMOUS, AMQTT_SYS:
            del policy["plugins"][plugin]
        (directory / AMQTT_USER_FILE).write_text(argon2_lines())
        topics = {user: ["bench/#", "$SYS/#"] for user in USERS}
        policy["plugins"] |= {
            "amqtt.plugins.authentication.FileAuthPlugin": {
                "password_file": str(directory / AMQTT_USER_FILE)
            },
            "amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {
                "publish_acl": topics,
                "acl": topics,
            },
        }
    return amqtt_command(directory, policy)


def _relay(_directory: Path, setting: BrokerSetting) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.loads.relay", str(setting.port)]
    if (certificate := setting.certificate) is not None:
        command += [str(certificate.certificate_file), str(certificate.key_file)]
    return command


def make_certificate(directory: Path) -> Certificate:
    """Write a certificate for localhost, and who signed it, into a directory.

    Raises:
        BenchmarkError: the library that makes them is not installed.
    """
    try:
        import trustme  # noqa: PLC0415 - of the development tools; no other row needs it
    except ImportError as error:
        raise BenchmarkError("TLS needs the package trustme: pip install -e '.[dev]'") from error
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files = [directory / name for name in ("certificate.pem", "key.pem", "authority.pem")]
    issued.cert_chain_pems[0].write_to_path(files[0])
    issued.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(files[2])
    return Certificate(*files)


PEERS: Final = {
    peer.name: peer
    for peer in (
        penstock_peer("penstock", "the example policy", has_production=True),
        Peer(
            "penstock-stock",
            "Penstock with the policy that aMQTT ships",
            _penstock_stock,
            partial(version_of, "penstock"),
        ),
        penstock_peer(
            "penstock-spill",
            f"the example policy, with payloads beyond {SPILL_LIMIT} in files",
            _spill,
            is_store=True,
        ),
        penstock_peer(
            "penstock-copy",
            "the example policy, with a payload for each subscriber",
            _copy,
            is_store=True,
        ),
        Peer(
            "mosquitto",
            "no limit of queued messages",
            _mosquitto,
            partial(version_of, "mosquitto"),
            has_production=True,
        ),
        Peer(
            "amqtt",
            "the policy it ships",
            _amqtt,
            partial(version_of, "amqtt"),
            has_v5=False,
            has_production=True,
        ),
        Peer(
            "ceiling",
            "no broker: packets copied, the load's own limit",
            _relay,
            lambda: "-",
            has_production=True,
            is_ceiling=True,
        ),
    )
}
"""The peers by name, in the order in which one repetition visits them."""


COMMAND_FORM: Final = "NAME=PROGRAM ARGUMENTS with {port}, {policy} or {mosquitto}"

CONFIGURATIONS: Final = {
    "{policy}": ("penstock", "broker.yaml"),
    "{mosquitto}": ("mosquitto", "mosquitto.conf"),
}
"""The places in a command for a configuration file: the peer that it configures, and its name."""


def commanded_peer(text: str, taken: Container[str]) -> Peer:
    """Return a further broker, which a command starts in an empty directory.

    Args:
        text: ``NAME=COMMAND`` or ``NAME@VERSION=COMMAND``. In the command, which no shell reads,
            ``{policy}`` stands for the file that the peer `penstock` has, and ``{mosquitto}`` for
            that of mosquitto. A broker of another kind has ``{port}`` for the port of its listener
            on loopback, and ``{certificate}`` and ``{key}`` for files in PEM, without which it is
            not asked for TLS.
        taken: the names of other peers.

    Raises:
        BenchmarkError: the text is none, the name is taken, or there is no such program.
    """
    head, _, command = text.partition("=")
    name, _, version = head.partition("@")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BenchmarkError(f"command {text!r}: {error}; allowed: {COMMAND_FORM}") from error
    if not NAME_FORM.fullmatch(name) or not words:
        raise BenchmarkError(f"command {text!r}: allowed: {COMMAND_FORM}")
    if name in taken:
        raise BenchmarkError(f"command {text!r}: there is a peer {name!r}; give it another name")
    configurations = [place for place in CONFIGURATIONS if place in command]
    if not configurations and "{port}" not in command:
        raise BenchmarkError(f"command {text!r}: nothing says {{port}}; allowed: {COMMAND_FORM}")
    program = os.path.abspath(find_program(words[0]))  # noqa: PTH100 - keeps a link's name

    def prepare(directory: Path, setting: BrokerSetting) -> list[str]:
        known = {"{port}": str(setting.port)}
        if (certificate := setting.certificate) is not None:
            known["{certificate}"] = str(certificate.certificate_file)
            known["{key}"] = str(certificate.key_file)
        for place in configurations:
            peer, file = CONFIGURATIONS[place]
            PEERS[peer].prepare(directory, setting)
            known[place] = str(directory / file)
        filled = []
        for word in words[1:]:
            for place, value in known.items():
                word = word.replace(place, value)  # noqa: PLW2901 - one after the other
            filled.append(word)
        return [program, *filled]

    return Peer(
        name,
        command,
        prepare,
        lambda: version or "of unknown version",
        has_tls=bool(configurations) or ("{certificate}" in command and "{key}" in command),
        has_production=bool(configurations),
    )


def allow_open_files() -> None:
    """Raise this process's limit of open files, and that of the brokers it starts, to the most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def running(peer: Peer, options: Options = DEFAULT_OPTIONS) -> Iterator[RunningPeer]:
    """Start a broker in an empty directory of its own and end it afterwards.

    Raises:
        NetemError: it is not installed or does not start; the text holds its last words.
    """
    allow_open_files()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        reserved_port() as port,
        reserved_port() as metrics_port,
    ):
        directory = Path(name)
        certificate = make_certificate(directory) if options.is_tls else None
        for file, text in ((USER_FILE, password_lines()), (ACL_FILE, ACL)):
            (directory / file).write_text(text)
            (directory / file).chmod(0o600)
        command = peer.prepare(directory, BrokerSetting(port, metrics_port, certificate, options))
        broker = RunningBroker(peer.name, command, directory)
        access = Access(
            port,
            "" if certificate is None else str(certificate.authority_file),
            has_users=options.has_acl,
            is_durable=options.is_durable,
            is_websocket=options.is_websocket,
        )
        try:
            broker.wait_until_listening(port)
            process = psutil.Process(broker.process.pid)
            yield RunningPeer(peer.name, port, process, access, metrics_port)
        finally:
            # A peer that has not ended by then is killed: the measurement is over.
            with suppress(RunError):
                broker.stop(STOP_SECONDS)
