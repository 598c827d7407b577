"""The configuration of the brokers that are compared, with their sidecars and edge brokers.

All brokers listen on port 1883 of every address of their host. Behind a sidecar, a broker listens
on another port of the loopback interface. Brokers accept anonymous clients, and queue any number of
messages for a subscriber. All other settings are defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.netem.clients.connection import BALANCER_PORT, PORT
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    amqtt_command,
    find_program,
    mosquitto_command,
    penstock_command,
    proxy_command,
    version_of,
)
from penstock.netem.runs.scenario import UPLINK, Broker, Edges

CONSOLE: Final = "127.0.0.1:8081"
"""The address of Penstock's plugin `console`, unless a scenario gives another."""

Bind: TypeAlias = tuple[str, int]
"""The address and the TCP port that a broker listens on."""

FOR_CLIENTS: Final[Bind] = ("0.0.0.0", PORT)  # noqa: S104 - of a namespace of its own
BEHIND_SIDECAR: Final[Bind] = ("127.0.0.1", PORT + 1)

HAPROXY: Final = """\
defaults
    mode tcp
    timeout connect 5s
    # Longer than any Keep Alive.
    timeout client 1h
    timeout server 1h
listen mqtt
    bind :{port}
    server broker 127.0.0.1:{broker_port}
"""
"""The configuration of HAProxy as Debian ships it, with the time limits that MQTT needs: buffers,
sockets and the number of connections are its defaults."""


def penstock_policy(settings: Mapping[str, Any], bind: Bind = FOR_CLIENTS) -> dict[str, Any]:
    """Return a policy for Penstock."""
    policy: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": _written(bind)}},
        "limits": {"queued_messages": 1 << 30, "queued_bytes": 1 << 40},
        "plugins": {
            ANONYMOUS: {"allow_anonymous": True},
            "probing": {},
            "withholding": {},
            "console": {"http": CONSOLE},
        },
    }
    return laid_over(policy, settings)


def oracle_policy(settings: Mapping[str, Any], bind: Bind = FOR_CLIENTS) -> dict[str, Any]:
    """Return a policy for Penstock with the gate of `penstock.netem.oracle`, likewise."""
    policy = penstock_policy({"plugins": {"oracle": {}}}, bind)
    # A broker has one gate.
    del policy["plugins"]["withholding"]
    return laid_over(policy, settings)


def amqtt_policy(settings: Mapping[str, Any], bind: Bind = FOR_CLIENTS) -> dict[str, Any]:
    """Return a configuration for aMQTT, likewise."""
    policy: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": _written(bind)}},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}},
    }
    return laid_over(policy, settings)


def sidecar_config(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file of a sidecar."""
    config: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": _written(FOR_CLIENTS)}},
        "upstream": {"address": _written(BEHIND_SIDECAR)},
        "plugins": {"probing": {}, "withholding": {}, "console": {"http": CONSOLE}},
    }
    return laid_over(config, keys)


def edge_policy(settings: Mapping[str, Any], host: str, broker_address: str) -> dict[str, Any]:
    """Return the policy of Penstock as an edge broker."""
    uplink = {
        "upstream": {"address": f"{broker_address}:{PORT}"},
        "up": [{"filter": "#"}],
        "down": [{"filter": "#"}],
        "lanes": None,
    }
    policy = penstock_policy({"plugins": {"uplink": {"site": host, "uplinks": {UPLINK: uplink}}}})
    filled: dict[str, Any] = _fill(settings, host, broker_address)
    return laid_over(policy, filled)


def _fill(value: Any, host: str, broker_address: str) -> Any:
    """Return a value with the marks of `Edges` replaced in its texts; keys stay as they are."""
    match value:
        case str():
            return value.replace("{host}", host).replace("{broker}", broker_address)
        case Mapping():
            return {key: _fill(each, host, broker_address) for key, each in value.items()}
        case list():
            return [_fill(each, host, broker_address) for each in value]
        case _:
            return value


def _written(bind: Bind) -> str:
    return f"{bind[0]}:{bind[1]}"


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with another laid over it: mappings key by key, all else in its place."""
    laid = dict(below)
    for key, value in above.items():
        under = laid.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            laid[key] = laid_over(under, value)
        else:
            laid[key] = value
    return laid


def console_address(broker: Broker) -> str | None:
    """Return the address of the console that shows withheld messages; None if there is none.

    It is the sidecar's where there is one, otherwise the broker's.
    """
    if not broker.withholds:
        return None
    if broker.sidecar is not None:
        plugins = sidecar_config(broker.sidecar)["plugins"]
    else:
        plugins = penstock_policy(broker.settings)["plugins"]
    http = None
    # A list, as aMQTT has it, holds names, and mappings of a name to its keys.
    for each in plugins if isinstance(plugins, list) else [plugins]:
        console = each.get("console") if isinstance(each, Mapping) else None
        http = console.get("http") if isinstance(console, Mapping) else http
    return http if isinstance(http, str) else None


def _penstock(broker: Broker, bind: Bind, directory: Path) -> list[str]:
    return penstock_command(directory, penstock_policy(broker.settings, bind))


def _oracle(broker: Broker, bind: Bind, directory: Path) -> list[str]:
    """Offer the plugin as an installed distribution does: the working directory is searched."""
    offered = directory / "netem_oracle-1.dist-info"
    offered.mkdir()
    (offered / "METADATA").write_text("Metadata-Version: 2.1\nName: netem-oracle\nVersion: 1\n")
    (offered / "entry_points.txt").write_text(
        "[penstock.plugins]\noracle = penstock.netem.oracle:OraclePlugin\n"
    )
    return penstock_command(directory, oracle_policy(broker.settings, bind))


def _amqtt(broker: Broker, bind: Bind, directory: Path) -> list[str]:
    return amqtt_command(directory, amqtt_policy(broker.settings, bind))


def _mosquitto(broker: Broker, bind: Bind, directory: Path) -> list[str]:
    return mosquitto_command(directory, [*_mosquitto_lines(bind), *broker.lines])


def _mosquitto_lines(bind: Bind) -> list[str]:
    address, port = bind
    return [
        f"listener {port} {address}",
        "allow_anonymous true",
        "max_queued_messages 0",
        "max_queued_bytes 0",
    ]


def _command(broker: Broker, _bind: Bind, directory: Path) -> list[str]:
    program, *arguments = (word.replace("{directory}", str(directory)) for word in broker.command)
    return [program if "/" in program else find_program(program), *arguments]


_PREPARE: Final[dict[str, Callable[[Broker, Bind, Path], list[str]]]] = {
    "penstock": _penstock,
    "oracle": _oracle,
    "mosquitto": _mosquitto,
    "amqtt": _amqtt,
    "command": _command,
}


def prepare(broker: Broker, directory: Path) -> list[str]:
    """Write a broker's configuration into an empty directory.

    Returns:
        The command that starts it.

    Raises:
        NetemError: its program is not installed.
    """
    bind = FOR_CLIENTS if broker.sidecar is None else BEHIND_SIDECAR
    return _PREPARE[broker.kind](broker, bind, directory)


def prepare_sidecar(keys: Mapping[str, Any], directory: Path) -> list[str]:
    """Write a sidecar's file into an empty directory; return the command that starts it."""
    return proxy_command(directory, sidecar_config(keys))


def prepare_balancer(directory: Path) -> list[str]:
    """Write HAProxy's file into an empty directory; return the command that starts it.

    Raises:
        NetemError: it is not installed.
    """
    file = directory / "haproxy.cfg"
    file.write_text(HAPROXY.format(port=BALANCER_PORT, broker_port=PORT))
    return [find_program("haproxy"), "-db", "-f", str(file)]


def prepare_edge(edges: Edges, host: str, broker_address: str, directory: Path) -> list[str]:
    """Write an edge broker's configuration into an empty directory.

    Returns:
        The command that starts it.

    Raises:
        NetemError: its program is not installed.
    """
    if edges.kind == "penstock":
        policy = edge_policy(edges.settings, host, broker_address)
        return proxy_command(directory, policy, "--mode", "edge")
    lines = [
        *_mosquitto_lines(FOR_CLIENTS),
        f"connection {UPLINK}",
        f"address {broker_address}:{PORT}",
        f"remote_clientid {host}",
        "cleansession false",
        *_fill(edges.lines, host, broker_address),
    ]
    return mosquitto_command(directory, lines)


def version(broker: Broker) -> str:
    """Return the program and the version of a broker, its sidecar and its edge brokers.

    Raises:
        NetemError: a program is not installed.
    """
    if broker.kind == "command":
        words = " ".join(broker.command)
    else:
        program = "penstock" if broker.is_penstock else broker.kind
        words = f"{program} {version_of(program)}"
        if broker.kind == "oracle":
            words += " with a gate that is told what links carry"
    if broker.sidecar is not None:
        words += f" behind a sidecar, penstock {version_of('penstock')}"
    if broker.edges is not None:
        kind = broker.edges.kind
        words += f", with edge brokers, {kind} {version_of(kind)}"
    return words
