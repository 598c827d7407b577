"""What a start would find of the machine: addresses that are free, databases that can be written.

Nothing is created or changed. An address that a running program of Penstock has is no problem: the
file of a broker is checked while it runs.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.broker.config.listener_config import Listener
from penstock.broker.errors import PenstockError
from penstock.broker.network.port_holder import port_holder, shown_holder
from penstock.broker.network.tls import make_context, problem_of_certificate, revocation_lists

if TYPE_CHECKING:
    from penstock.broker.extensions import Claim, Plugin

_OURS: Final = "penstock"
"""The command, or the beginning of a module's name, in the command line of each of our programs."""


class TakenError(PenstockError):
    """Something outside of the program cannot be used; the message says why."""


@dataclass(slots=True)
class StartCheck:
    """The account of a check.

    Attributes:
        problems: key to why a start would fail there.
        databases: the name of a file in a backup to the database that it is a copy of.
        is_start: a start follows: an address that a running program of Penstock has is a problem.
    """

    good: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=dict)
    is_start: bool = False

    def fail(self, problems: Mapping[str, str]) -> None:
        """Take note of problems by their keys."""
        self.problems |= problems

    def look(
        self,
        plugins: Mapping[str, Plugin],
        failed: Mapping[str, str],
        listeners: Iterable[Listener],
    ) -> None:
        """Look at all that plugins and listeners take."""
        self.fail(failed)
        for name, plugin in plugins.items():
            place = plugin.key_of(name)
            if not any(f"{key}.".startswith(f"{place}.") for key in failed):
                self.good[place] = "its keys and files are good"
        for listener in listeners:
            check_listener(self, listener)
        for name, plugin in plugins.items():
            for claim in plugin.claims():
                self.claim(claim._replace(key=f"{plugin.key_of(name)}.{claim.key}"))

    def tell(self, program: str, file: str, *, as_json: bool = False) -> int:
        """Print the account, and return the exit status."""
        if as_json:
            found = {"file": file, "is_good": not self.problems} | {
                "good": self.good,
                "problems": self.problems,
            }
            sys.stdout.write(f"{json.dumps(found)}\n")
        else:
            for key, told in self.good.items():
                sys.stdout.write(f"good: {key}: {told}\n")
            for key, why in self.problems.items():
                sys.stderr.write(f"{program}: {file}: {key}: {why}\n")
        return 2 if self.problems else 0

    def claim(self, claim: Claim) -> None:
        """Look at something that a start takes; `key` is its whole key."""
        try:
            if claim.kind == "address":
                host, _, port = claim.name.rpartition(":")
                host = host.strip("[]")
                self.good[claim.key] = check_address(host, int(port), is_start=self.is_start)
            else:
                self.databases[claim.copy] = claim.name
                self.good[claim.key] = check_database(claim.name)
        except TakenError as error:
            self.problems[claim.key] = str(error)


def check_listener(found: StartCheck, listener: Listener) -> None:
    """Look at the files of a listener's TLS and at its address."""
    path = f"listeners.{listener.name}"
    if listener.tls is not None:
        try:
            context = make_context(listener.tls, ())
            revocation_lists(listener.tls)
        except (PenstockError, OSError) as error:
            found.problems[path] = str(error)
            return
        problem = problem_of_certificate(context, listener.tls)
        certificate = f"certfile {listener.tls.certfile}"
        found.good[f"{path}.certfile"] = (
            "the TLS context is good"
            if problem is None
            else f"{certificate}: {problem}: clients will refuse it"
        )
    key = f"{path}.bind"
    try:
        if listener.socket_path is not None:
            found.good[key] = _check_socket(listener.socket_path)
        elif listener.is_loopback:
            found.good[key] = check_address("localhost", listener.port, is_start=found.is_start)
        else:
            found.good[key] = check_address(listener.host, listener.port, is_start=found.is_start)
    except TakenError as error:
        found.problems[key] = str(error)


def _check_socket(path: str) -> str:
    """Say whether a Unix socket can be bound.

    Raises:
        TakenError: it cannot.
    """
    folder = Path(path).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TakenError(f"unix:{path}: this user may not create a file in {folder}")
    if Path(path).exists() and not Path(path).is_socket():
        raise TakenError(f"unix:{path}: there is a file that is no socket")
    return f"unix:{path} can be bound"


def check_address(host: str | None, port: int, *, is_start: bool = False) -> str:
    """Say whether a TCP address can be listened on.

    Args:
        host: address or name; None for all interfaces.
        port: 0 for any free one.
        is_start: a program of Penstock that has it is a problem, too.

    Raises:
        TakenError: it cannot, or another program has it.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
                sock.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _holder(port, is_start=is_start)
        raise TakenError(f"cannot bind {host or '*'}:{port}: {error.strerror or error}") from error
    return f"{host or '*'}:{port} is free"


def _holder(port: int, *, is_start: bool) -> str:
    """Return which program of Penstock listens on a port.

    Raises:
        TakenError: it is another program, or nothing can be found out, or a start follows.
    """
    holder = port_holder(port)
    if (
        not is_start
        and holder is not None
        and any(Path(word).name == _OURS or word.startswith(f"{_OURS}.") for word in holder.command)
    ):
        return (
            f"port {port} is held by a running program of Penstock, process {holder.pid}, which "
            "has to end before a start"
        )
    raise TakenError(f"port {port} is in use{shown_holder(holder)}")


def check_database(path: str) -> str:
    """Say whether an SQLite file can be written, or created.

    Raises:
        TakenError: it cannot.
    """
    file = Path(path)
    if not file.exists():
        folder = file.absolute().parent
        if not folder.is_dir():
            raise TakenError(f"{folder}: no such directory")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise TakenError(f"{folder}: this user may not create a file there")
        return f"{path} would be created"
    try:
        uri = f"{file.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise TakenError(f"{path}: {error}") from error
    return f"{path} can be written"
