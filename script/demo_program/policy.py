"""The demo's policy files: the example with other paths and ports, so that nothing collides."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "policy.example.yaml"

POLICY: Final = re.compile(r"^    policy: (?P<name>\w+)$", re.MULTILINE)
"""The line of the example that says when large messages are held back."""

SYS_INTERVAL_SECONDS: Final = 1
"""The demo shows the broker's books while they change."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where one broker of the demo is.

    Attributes:
        policy_file: what it is started with.
        mqtt_port: TCP port of its listener on loopback.
        http_port: TCP port of the queue's HTTP API.
        queue_file: where its queues are; what it publishes in batches is beside them.
        sessions_file: where its sessions are.
    """

    policy_file: Path
    mqtt_port: int
    http_port: int
    queue_file: Path
    sessions_file: Path

    @property
    def queue_url(self) -> str:
        """Where the HTTP API answers."""
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
    """Return the name of the policy in the example.

    Raises:
        ValueError: the example does not have one.
    """
    found: list[str] = POLICY.findall(example)
    if len(found) != 1:
        raise ValueError(f"{EXAMPLE.name}: `policy: NAME` stands in it {len(found)} times, not 1")
    return found[0]


def derive(
    example: str,
    places: Places,
    *,
    policy: str | None = None,
    congestion_control: str | None = None,
) -> str:
    """Return the text of a demo's policy file.

    Args:
        example: text of the example.
        places: to replace those of the example by.
        policy: of withholding; None for the example's.
        congestion_control: of the broker's connections; None for the machine's.

    Raises:
        ValueError: the example does not have what is to be replaced exactly once.
    """
    replaced = {
        "bind: 127.0.0.1:1883": f"bind: 127.0.0.1:{places.mqtt_port}",
        "http: 127.0.0.1:8080": f"http: 127.0.0.1:{places.http_port}",
        "path: penstock-queue.db": f"path: {places.queue_file}",
        "path: penstock-publishing.db": f"path: {places.queue_file.with_suffix('.publishing.db')}",
        "path: penstock-sessions.db": f"path: {places.sessions_file}",
        "sys_interval: 10 ": f"sys_interval: {SYS_INTERVAL_SECONDS} ",
    }
    if policy is not None:
        replaced[f"    policy: {default_policy(example)}\n"] = f"    policy: {policy}\n"
    if congestion_control is not None:
        replaced["#congestion_control: null "] = f"congestion_control: {congestion_control} "
    text = example
    for old, new in replaced.items():
        if text.count(old) != 1:
            raise ValueError(f"{EXAMPLE.name}: {old!r} stands in it {text.count(old)} times, not 1")
        text = text.replace(old, new)
    return text
