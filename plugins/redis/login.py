"""Connections to servers: address, user, password and TLS."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from redis import connection as blocking
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from penstock.plugins.redis.errors import EngineAwayError, EngineStartError

Address: TypeAlias = tuple[str, int]
"""Host and port."""
CONNECT_SECONDS: Final = 5.0
"""The timeout of a connection, and of each answer with which it begins."""


def named(address: Address) -> str:
    """Return an address as users write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_away(error: Exception) -> bool:
    """Say whether an error means that a server cannot be reached now, such as while it starts."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return False
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return False
    lost = exceptions.ConnectionError | exceptions.TimeoutError | OSError | EngineAwayError
    return isinstance(error, lost)


def read_password(password_file: str) -> str:
    """Return the first line of a file.

    Raises:
        EngineStartError: it cannot be read.
    """
    try:
        text = Path(password_file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EngineStartError(str(error)) from error
    return text.split("\n", 1)[0].rstrip("\r")


async def ask_directly(connection: AbstractConnection, *command: Any) -> Any:
    """Return the answer of a command on a connection that nothing else uses."""
    await connection.send_packed_command(connection.pack_command(*command))
    return await connection.read_response(disable_decoding=True, timeout=CONNECT_SECONDS)


@dataclass(frozen=True, slots=True)
class Login:
    """How a connection begins.

    Attributes:
        user: ACL user; None for `default`.
        password_file: file whose first line is the password; None for none.
        tls_ca: file of the authorities that the server's certificate is checked with; None for a
            plain connection.
        tls_certificate: file of the client's certificate; None for none.
    """

    user: str | None = None
    password_file: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def connection(
        self, address: Address, db: int = 0, seconds: float = CONNECT_SECONDS
    ) -> AbstractConnection:
        """Return a connection that is not open. The password is read anew for each one.

        Raises:
            EngineStartError: a file cannot be read.
        """
        keys = self._keys(address, db, seconds) | {"socket_timeout": None}
        return Connection(**keys) if self.tls_ca is None else SSLConnection(**keys)

    def blocking_connection(
        self, address: Address, db: int, seconds: float, read_bytes: int
    ) -> blocking.Connection:
        """Return a connection for a thread that waits for answers.

        Raises:
            EngineStartError: a file cannot be read.
        """
        keys = self._keys(address, db, seconds)
        keys |= {"socket_timeout": seconds, "socket_read_size": read_bytes}
        kind = blocking.Connection if self.tls_ca is None else blocking.SSLConnection
        return kind(**keys)

    def _keys(self, address: Address, db: int, seconds: float) -> dict[str, Any]:
        host, port = address
        keys: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": db,
            "username": self.user,
            "socket_connect_timeout": seconds,
            "protocol": 2,
        }
        if self.password_file is not None:
            try:
                keys["password"] = read_password(self.password_file)
            except EngineStartError as error:
                raise EngineStartError(f"password of {named(address)}: {error}") from error
        if self.tls_ca is not None:
            keys["ssl_ca_certs"] = self.tls_ca
            keys["ssl_certfile"] = self.tls_certificate
            keys["ssl_keyfile"] = self.tls_key
            keys["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
        return keys

    async def ask(self, address: Address, *command: str, seconds: float = CONNECT_SECONDS) -> Any:
        """Return the answer of one command on a connection of its own.

        Raises:
            EngineStartError: a file cannot be read.
            RedisError: there is no server, or it refuses.
            OSError: the same.
        """
        connection = self.connection(address, seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                await connection.connect()
                return await ask_directly(connection, *command)
        except TimeoutError as error:
            raise OSError(f"no answer for {seconds:g} s") from error
        finally:
            await connection.disconnect(nowait=True)
