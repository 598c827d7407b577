"""The server: how it is reached, and what it must be so that no message is lost."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from logging import Logger
from pathlib import Path
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import RedisError, ResponseError

from penstock.plugins.queue.engines.contract import EngineStartError
from penstock.plugins.queue.engines.redis.library import FAMILY, LIBRARY, source
from penstock.plugins.queue.engines.redis.pipeline import CONNECT_SECONDS

OLDEST_REDIS: Final = (7, 0)
OLDEST_VALKEY: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Where the server is.

    Attributes:
        host: name or address.
        port: its port.
        db: number of the database.
        prefix: begins the name of each key.
        user: ACL user; None for `default`.
        password_file: file whose first line is the password; None for none.
        tls_ca: file of the authorities that the server's certificate is checked with; None for a
            plain connection.
        tls_certificate: file of the client's certificate; None for none.
        tls_key: file of its key.
    """

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    prefix: str = "penstock"
    user: str | None = None
    password_file: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def connection(self) -> AbstractConnection:
        """Return a connection that is not open. The password is read anew for each one.

        Raises:
            EngineStartError: a file cannot be read.
        """
        keys: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "db": self.db,
            "username": self.user,
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT_SECONDS,
            "protocol": 2,
        }
        if self.password_file is not None:
            try:
                text = Path(self.password_file).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise EngineStartError(f"password of {self}: {error}") from error
            keys["password"] = text.split("\n", 1)[0].rstrip("\r")
        if self.tls_ca is None:
            return Connection(**keys)
        return SSLConnection(
            ssl_ca_certs=self.tls_ca,
            ssl_certfile=self.tls_certificate,
            ssl_keyfile=self.tls_key,
            ssl_min_version=ssl.TLSVersion.TLSv1_2,
            **keys,
        )

    async def connect(self, logger: Logger) -> AbstractConnection:
        """Return a connection to a server that can be used, with the library in it.

        Raises:
            EngineStartError: says why it cannot be used.
        """
        connection = self.connection()
        try:
            await connection.connect()
            await self._check(connection, logger)
            await self._load(connection)
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise EngineStartError(f"Redis server {self}: {error}") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _check(self, connection: AbstractConnection, logger: Logger) -> None:
        found = _fields(await ask_directly(connection, "INFO"))
        name, oldest = "Redis", OLDEST_REDIS
        read = found.get("redis_version", "")
        if "valkey_version" in found:
            name, oldest, read = "Valkey", OLDEST_VALKEY, found["valkey_version"]
        if _version(read) < oldest:
            raise EngineStartError(
                f"version of server {self}: read {name} {read}; allowed: Redis "
                f"{OLDEST_REDIS[0]} or newer, Valkey {OLDEST_VALKEY[0]} or newer"
            )
        if found.get("cluster_enabled") == "1":
            raise EngineStartError(
                f"server {self}: read cluster_enabled: 1; allowed: a standalone server"
            )
        if found.get("role", "master") != "master":
            raise EngineStartError(
                f"server {self}: read role: {found['role']}; allowed: master. A replica takes no "
                "messages"
            )
        policy = found.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise EngineStartError(
                f"maxmemory-policy of server {self}: read {policy}; allowed: noeviction. Any other "
                "lets the server delete messages where its memory is full"
            )
        await self._log_persistence(connection, f"{name} {read}", found, logger)

    async def _log_persistence(
        self, connection: AbstractConnection, name: str, found: Mapping[str, str], logger: Logger
    ) -> None:
        """Log what survives the end of the server."""
        settings: dict[str, str] = {}
        for setting in ("appendfsync", "save"):
            try:
                answer = await ask_directly(connection, "CONFIG", "GET", setting)
            except ResponseError:  # this user may not ask
                settings[setting] = "unknown"
            else:
                settings[setting] = answer[1].decode() if answer else "unknown"
        aof = f"yes, appendfsync {settings['appendfsync']}"
        if found.get("aof_enabled") != "1":
            aof = "no"
        logger.info(
            "queue: %s %s keeps the messages; appendonly %s; save %r; maxmemory %s",
            name,
            self,
            aof,
            settings["save"],
            found.get("maxmemory_human", "unknown"),
        )
        if found.get("aof_enabled") != "1":
            logger.warning(
                "queue: server %s has appendonly no: when it ends, messages are lost that came "
                "after its newest snapshot (save %r)",
                self,
                settings["save"],
            )

    async def _load(self, connection: AbstractConnection) -> None:
        """Load the library where it is missing.

        Raises:
            EngineStartError: there is one of another version, or one with other code.
        """
        code = source()
        listed = await ask_directly(
            connection, "FUNCTION", "LIST", "LIBRARYNAME", f"{FAMILY}*", "WITHCODE"
        )
        there = {}
        for one in listed:
            fields = dict(zip(one[::2], one[1::2], strict=True))
            there[fields[b"library_name"].decode()] = fields[b"library_code"].decode()
        others = sorted(set(there) - {LIBRARY})
        if others:
            raise EngineStartError(
                f"function library of server {self}: read {', '.join(others)}; allowed: {LIBRARY}. "
                "Another version of Penstock uses this server"
            )
        if LIBRARY not in there:
            try:
                await ask_directly(connection, "FUNCTION", "LOAD", code)
            except ResponseError as error:  # another program may have been faster
                if "already exists" not in str(error):
                    raise
        elif there[LIBRARY] != code:
            raise EngineStartError(
                f"function library of server {self}: read {LIBRARY} with other code; allowed: that "
                f"of this version. FUNCTION DELETE {LIBRARY} removes it where no other program "
                "uses it"
            )


async def ask_directly(connection: AbstractConnection, *command: Any) -> Any:
    """Return the answer of a command on a connection that nothing else uses."""
    await connection.send_packed_command(connection.pack_command(*command))
    return await connection.read_response(disable_decoding=True, timeout=CONNECT_SECONDS)


def _fields(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
