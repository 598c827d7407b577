"""The demo's policy files: the example with other paths and ports, so that nothing collides."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "policy.example.yaml"

SYS_INTERVAL_SECONDS: Final = 1
"""The demo's `sys_interval`, short enough to show the broker's counts while they change."""


@dataclass(frozen=True, slots=True)
class Places:
    """The files and ports of one broker of the demo.

    Attributes:
        http_port: the TCP port of the queue's HTTP API.
        queue_file: the file of its queues; the stage of its batches is beside it.
    """

    policy_file: Path
    mqtt_port: int
    http_port: int
    queue_file: Path
    sessions_file: Path

    @property
    def queue_url(self) -> str:
        """The URL of the HTTP API."""
        return f"http://127.0.0.1:{self.http_port}"


def free_ports(wanted: list[int]) -> list[int]:
    """Return the wanted ports of loopback, another free one for each that is taken."""
    taken: list[socket.socket] = []
    try:
        for port in wanted:
            try:
                taken.append(socket.create_server(("127.0.0.1", port)))
            except OSError:
                taken.append(socket.create_server(("127.0.0.1", 0)))
        return [server.getsockname()[1] for server in taken]
    finally:
        for server in taken:
            server.close()


def default_policy(example: str) -> str:
    """Return the name of the example's policy of withholding."""
    return str(yaml.safe_load(example)["plugins"]["withholding"]["policy"])


def derive(
    example: str,
    places: Places,
    *,
    policy: str | None = None,
    congestion_control: str | None = None,
) -> str:
    """Return the text of a demo's policy file.

    Raises:
        KeyError: the example does not have what is to be replaced.
    """
    keys = yaml.safe_load(example)
    listener, plugins = keys["listeners"]["default"], keys["plugins"]
    listener["bind"] = f"127.0.0.1:{places.mqtt_port}"
    keys["persistence"]["path"] = str(places.sessions_file)
    keys["sys_interval"] = SYS_INTERVAL_SECONDS
    plugins["queue"] |= {"http": f"127.0.0.1:{places.http_port}", "path": str(places.queue_file)}
    publishing_file = places.queue_file.with_suffix(".publishing.db")
    plugins["queue"]["publishing"]["path"] = str(publishing_file)
    if policy is not None:
        plugins["withholding"]["policy"] = policy
    if congestion_control is not None:
        listener["congestion_control"] = congestion_control
    text: str = yaml.safe_dump(keys, sort_keys=False)
    return text
