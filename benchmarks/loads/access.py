"""How a load's clients come in to a broker: as whom, with TLS or without, and for how long.

The users, their passwords and what they may do stand here once, in mosquitto's formats, which
Penstock reads too. Publishers are `north` and `south` in turn, and subscribers `office` and
`south`. A topic of a load is allowed by a line of the user's own, or by the pattern with the
Client Identifier in it.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.websocket import WebSocket

PUBLISHERS: Final = ("north", "south")
SUBSCRIBERS: Final = ("office", "south")
USERS: Final = ("north", "south", "office")

ACL: Final = """\
user north
topic write bench/throughput/#
topic write bench/windowed/#
topic write bench/day/#
topic deny bench/windowed/secret

user south
topic readwrite bench/throughput/#
topic readwrite bench/windowed/#
topic readwrite bench/day/#
topic write bench/+/command
topic read bench/#
topic deny bench/throughput/secret/#

user office
topic read bench/#
topic read $SYS/#
topic deny bench/secret/#

pattern readwrite bench/%c/#
pattern readwrite bench/users/%u/#
"""
"""The content of the ACL file of all brokers."""

ITERATIONS: Final = 101
"""The cost of a hash, as mosquitto_passwd has it."""


def password_of(user: str) -> str:
    """Return the password of a user."""
    return f"password of {user}"


def password_lines() -> str:
    """Return the content of the password file, as mosquitto_passwd writes it."""
    lines = []
    for user in USERS:
        salt = hashlib.sha256(user.encode()).digest()[:12]
        digest = hashlib.pbkdf2_hmac("sha512", password_of(user).encode(), salt, ITERATIONS, 64)
        encoded = [base64.b64encode(each).decode() for each in (salt, digest)]
        lines.append(f"{user}:$7${ITERATIONS}${'$'.join(encoded)}\n")
    return "".join(lines)


def argon2_lines() -> str:
    """Return the same as aMQTT reads it, at the least cost."""
    from argon2 import PasswordHasher  # noqa: PLC0415 - aMQTT brings it

    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    return "".join(f"{user}:{hasher.hash(password_of(user))}\n" for user in USERS)


@dataclass(frozen=True)
class Access:
    """How clients come in to a broker on loopback. JSON can hold its fields.

    Attributes:
        authority_file: the file of who signed the broker's certificate; "" without TLS.
        has_users: whether clients log in.
        is_durable: whether their sessions outlive their connections.
        subscriber_port: the port that subscribers connect to, of another broker of a cluster; 0 for
            the same one.
    """

    port: int
    authority_file: str = ""
    has_users: bool = False
    is_durable: bool = False
    is_websocket: bool = False
    subscriber_port: int = 0

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of all clients; None without TLS."""
        if not self.authority_file:
            return None
        return ssl.create_default_context(cafile=Path(self.authority_file))

    def open_publisher(
        self, number: int, *, version: int = 4
    ) -> tuple[socket.socket, wire.Accepted]:
        """Return a blocking connection of a publisher, and the CONNACK that accepted it."""
        user = PUBLISHERS[number % len(PUBLISHERS)]
        return self.open(publisher_id(number), user, version=version)

    def open_subscriber(
        self, number: int, *, version: int = 4, session: str | None = None
    ) -> tuple[socket.socket, wire.Accepted]:
        """Return the same for a subscriber; with the Client Identifier of a session, that one."""
        user = SUBSCRIBERS[number % len(SUBSCRIBERS)]
        client_id = f"bench-subscriber-{number}" if session is None else session
        there = replace(self, port=self.subscriber_port or self.port)
        return there.open(client_id, user, version=version, is_durable=session is not None)

    def open(
        self, client_id: str, user: str, *, version: int = 4, is_durable: bool = False
    ) -> tuple[socket.socket, wire.Accepted]:
        """Return the same for any client."""
        packet = wire.connect_packet(
            client_id,
            version=version,
            is_clean=not (self.is_durable or is_durable),
            login=(user, password_of(user)) if self.has_users else None,
        )
        sock = wire.open_connection(self.port, context=self.context)
        try:
            if self.is_websocket:
                sock = WebSocket(sock)
            sock.sendall(packet)
            return sock, wire.read_connack(sock, version=version)
        except BaseException:
            sock.close()
            raise


def publisher_id(number: int) -> str:
    """Return the Client Identifier of a publisher, which a topic may have as its second level."""
    return f"bench-publisher-{number}"
