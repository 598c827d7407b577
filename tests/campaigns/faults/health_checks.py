"""Fault: a load balancer opens connections all day to check that the broker is up."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from paho.mqtt.enums import MQTTProtocolVersion

from benchmarks.errors import BenchmarkError
from benchmarks.peers import make_certificate
from penstock.netem.runs.broker_process import RunningBroker, find_program, reserved_port
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.flows import V5, V311, Publisher, Subscriber, read_sys
from tests.campaigns.faults.subject import Subject

DEFAULTS: Final = """\
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
"""
CHECKED: Final = """\
listen {name}
    bind 127.0.0.1:{front}
    option tcp-check
    # Without `linger`, HAProxy resets the connection before the broker learns of it.
    tcp-check connect linger {header}
    server broker 127.0.0.1:{port} check inter 20ms {options}
"""
"""The part of HAProxy's configuration for one listener. It checks as often as a hundred HAProxies
would at their 2 s."""

PAUSE_SECONDS: Final = 0.01
"""The time between two messages of a publisher."""

SETTLE_SECONDS: Final = 30.0
PLAIN: Final = "default"
HEADED: Final = "headed"
"""The listeners with clients: TCP, and TCP with the header of the PROXY protocol."""

CONNECTIONS: Final = "connections/total"
ERRORS: Final = tuple(
    f"penstock/{each}/" for each in ("connections_refused", "peer_errors", "faults")
)
"""The beginnings of the topics in `$SYS` that would count a check as an error."""


def _start_balancer(stack: ExitStack, folder: Path, behind: Mapping[str, int]) -> dict[str, int]:
    """Start HAProxy before listeners; return where it listens itself, by their names.

    Args:
        stack: the exit stack that ends it.
        folder: the folder for its files.
        behind: the ports of the listeners, by their names.
    """
    fronts = {name: stack.enter_context(reserved_port()) for name in behind}
    config = DEFAULTS
    for name, port in behind.items():
        header, options = ("send-proxy", "send-proxy-v2") if name == HEADED else ("", "")
        config += CHECKED.format(
            name=name, front=fronts[name], port=port, header=header, options=options
        )
    folder.mkdir()
    (folder / "haproxy.cfg").write_text(config)
    command = [find_program("haproxy"), "-db", "-f", "haproxy.cfg"]
    balancer = RunningBroker("haproxy", command, folder)
    stack.callback(balancer.kill)
    for port in fronts.values():
        balancer.wait_until_listening(port)
    return fronts


def _start_pair(
    stack: ExitStack, port: int, version: MQTTProtocolVersion
) -> tuple[Publisher, Subscriber]:
    """Connect clients, one of which publishes to the other until the stack ends."""
    name = f"load{port}"
    subscriber = stack.enter_context(Subscriber(port, f"s-{name}", version, f"{name}/#"))
    if not subscriber.wait(lambda: subscriber.is_subscribed, SETTLE_SECONDS):
        raise BenchmarkError("no SUBACK")
    publisher = stack.enter_context(
        Publisher(port, f"p-{name}", version, name, pause_seconds=PAUSE_SECONDS)
    )
    if not publisher.wait(lambda: publisher.acknowledged, SETTLE_SECONDS):
        raise BenchmarkError("no PUBACK")
    return publisher, subscriber


def _configure(stack: ExitStack, broker: Subject) -> dict[str, int]:
    """Let the broker have a listener of each kind; return their ports by their names."""
    ports = {PLAIN: broker.port}
    if broker.is_ours:
        certificate = make_certificate(broker.folder)
        files = {"certfile": certificate.certificate_file, "keyfile": certificate.key_file}
        kinds: dict[str, dict[str, Any]] = {
            HEADED: {"proxy_protocol": True},
            "secure": {"ssl": True, **{key: str(file) for key, file in files.items()}},
            "web": {"type": "ws"},
        }
        ports |= {name: stack.enter_context(reserved_port()) for name in kinds}
        listeners = {n: {"bind": f"127.0.0.1:{ports[n]}", **kind} for n, kind in kinds.items()}
        broker.configure({"listeners": listeners, "sys_interval": 1})
    else:
        broker.configure()
    return ports


def inflict(broker: Subject, _rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Put HAProxy before each listener, and clients behind it; count what the checks cause."""
    with ExitStack() as stack:
        ports = _configure(stack, broker)
        broker.start()
        fronts = _start_balancer(stack, broker.folder / "haproxy", ports)
        pairs = [
            _start_pair(stack, fronts[name], version)
            for name, version in ((PLAIN, V311), (HEADED, V5))
            if name in fronts
        ]
        n_lines = broker.log.count("\n")
        time.sleep(effort.seconds)
        n_lines = broker.log.count("\n") - n_lines
        n_lost = n_acknowledged = n_disconnects = 0
        for publisher, subscriber in pairs:
            publisher.end(SETTLE_SECONDS)
            subscriber.wait_for(publisher.acknowledged, SETTLE_SECONDS)
            n_acknowledged += len(publisher.acknowledged)
            n_lost += len(publisher.acknowledged - subscriber.got.keys())
            n_disconnects += publisher.n_connects + subscriber.n_connects - 2
        findings = [
            Finding("lines in the log meanwhile", n_lines, most=0),
            Finding("connections of clients lost", n_disconnects, most=0),
            Finding("messages acknowledged to them", n_acknowledged, least=1),
            Finding("acknowledged messages lost", n_lost, most=0),
        ]
        if broker.is_ours:
            n_clients = 2 * len(pairs)
            told = read_sys(
                broker.port,
                "",
                lambda told: int(told.get(CONNECTIONS, 0)) > n_clients,
                SETTLE_SECONDS,
            )
            n_errors = sum(int(n) for name, n in told.items() if name.startswith(ERRORS))
            n_checks = int(told.get(CONNECTIONS, 0)) - n_clients
            findings += [
                Finding("checks by TCP and PROXY protocol that it saw", n_checks, least=1),
                Finding("checks counted as an error", n_errors, most=0),
            ]
    return findings


HEALTH_CHECKS: Final = Fault(
    "health_checks",
    "HAProxy opens a connection to each listener (TCP, PROXY protocol, TLS, WebSocket) every 20 ms "
    "and closes it, with clients behind it",
    inflict,
)
