"""The brokers that are compared: how each is configured.

All listen on port 1883 of every address of their host, accept anonymous clients, and queue any
number of messages for a subscriber. All other settings are defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.netem.clients.connection import PORT
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    amqtt_command,
    find_program,
    mosquitto_command,
    penstock_command,
    version_of,
)
from penstock.netem.runs.scenario import Broker

CONSOLE: Final = "127.0.0.1:8081"
"""Address of Penstock's plugin `console` unless a scenario gives another."""


def penstock_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy for Penstock.

    Args:
        settings: of the scenario, laid over the runner's own key by key.
    """
    policy: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": f"0.0.0.0:{PORT}"}},
        "limits": {"queued_messages": 1 << 30, "queued_bytes": 1 << 40},
        "plugins": {
            ANONYMOUS: {"allow_anonymous": True},
            "probing": {},
            "withholding": {},
            "console": {"http": CONSOLE},
        },
    }
    return laid_over(policy, settings)


def amqtt_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration for aMQTT, likewise."""
    policy: dict[str, Any] = {
        "listeners": {"default": {"type": "tcp", "bind": f"0.0.0.0:{PORT}"}},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}},
    }
    return laid_over(policy, settings)


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
    """Return the address of the broker's console, which shows withheld messages; None if none."""
    if broker.kind != "penstock":
        return None
    plugins = penstock_policy(broker.settings)["plugins"]
    http = None
    # A list, as aMQTT has it, holds names, and mappings of a name to its keys.
    for each in plugins if isinstance(plugins, list) else [plugins]:
        console = each.get("console") if isinstance(each, Mapping) else None
        http = console.get("http") if isinstance(console, Mapping) else http
    return http if isinstance(http, str) else None


def _penstock(broker: Broker, directory: Path) -> list[str]:
    return penstock_command(directory, penstock_policy(broker.settings))


def _amqtt(broker: Broker, directory: Path) -> list[str]:
    return amqtt_command(directory, amqtt_policy(broker.settings))


def _mosquitto(broker: Broker, directory: Path) -> list[str]:
    lines = [
        f"listener {PORT} 0.0.0.0",
        "allow_anonymous true",
        "max_queued_messages 0",
        "max_queued_bytes 0",
        *broker.lines,
    ]
    return mosquitto_command(directory, lines)


def _command(broker: Broker, directory: Path) -> list[str]:
    program, *arguments = (word.replace("{directory}", str(directory)) for word in broker.command)
    return [program if "/" in program else find_program(program), *arguments]


_PREPARE: Final[dict[str, Callable[[Broker, Path], list[str]]]] = {
    "penstock": _penstock,
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
    return _PREPARE[broker.kind](broker, directory)


def version(broker: Broker) -> str:
    """Return a broker's program and version.

    Raises:
        NetemError: its program is not installed.
    """
    if broker.kind != "command":
        return f"{broker.kind} {version_of(broker.kind)}"
    return " ".join(broker.command)
