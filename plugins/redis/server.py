"""The settings by which a program reaches its Redis servers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from logging import Logger

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from penstock.broker.config.listener_config import Tls
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.network.tls import make_client_context
from penstock.plugins.redis.checks import check
from penstock.plugins.redis.config import RedisConfig, RedisSentinel, RedisTls
from penstock.plugins.redis.discovery import (
    ClusterFinder,
    OneServer,
    RedisSentinels,
    SentinelFinder,
    listed,
)
from penstock.plugins.redis.errors import EngineAwayError, EngineStartError
from penstock.plugins.redis.library import Library
from penstock.plugins.redis.login import (
    CONNECT_SECONDS,
    Address,
    Login,
    is_away,
    named,
    read_password,
)
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.routes import Finder
from penstock.plugins.web.bind import split_bind


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Where the server is, or the servers are.

    Attributes:
        host: name or address of the only server.
        login: how a connection begins.
        sentinels: the sentinels that know which server is the master; None for those that have
            none.
        cluster: some nodes of a cluster; () for a server that is in none.
        local_nodes: the nodes of the cluster on this machine: receives prefer what they are masters
            of.
    """

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    prefix: str = "penstock"
    login: Login = field(default_factory=Login)
    sentinels: RedisSentinels | None = None
    cluster: tuple[Address, ...] = ()
    local_nodes: tuple[Address, ...] = ()
    patience: Patience = field(default_factory=Patience)

    def __str__(self) -> str:
        if self.sentinels is not None:
            return f"{self.sentinels.master} of sentinels {listed(self.sentinels.addresses)}"
        if self.cluster:
            return f"cluster of {listed(self.cluster)}"
        return named((self.host, self.port))

    def connection(self, address: Address | None = None) -> AbstractConnection:
        """Return a connection that is not open.

        Raises:
            EngineStartError: a file cannot be read.
        """
        return self.login.connection(address or (self.host, self.port), self.db)

    async def connect(
        self, logger: Logger, address: Address | None = None, library: Library | None = None
    ) -> AbstractConnection:
        """Return a connection to a server that can be used.

        Args:
            logger: gets what is told of its settings.
            address: the address of the server; None for the only one.
            library: the functions that are loaded into it where they are missing; None for none.

        Raises:
            EngineAwayError: it cannot be reached.
            EngineStartError: says why it cannot be used.
        """
        address = address or (self.host, self.port)
        connection = self.connection(address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()
                await check(
                    connection,
                    named(address),
                    logger,
                    is_cluster=bool(self.cluster),
                    is_watched=bool(self.cluster) or self.sentinels is not None,
                    min_replicas=0 if self.sentinels is None else self.patience.min_replicas,
                )
                if library is not None:
                    await library.load(connection, named(address))
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            why = str(error) or f"no answer for {CONNECT_SECONDS:g} s"
            kind = EngineAwayError if is_away(error) else EngineStartError
            raise kind(f"Redis server {named(address)}: {why}") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    def finder(self) -> Finder:
        """Return what finds the servers."""
        if self.sentinels is not None:
            return SentinelFinder(self.sentinels)
        if self.cluster:
            return ClusterFinder(self.cluster, self.login)
        return OneServer((self.host, self.port))


def check_files(config: RedisConfig, policy_file: str, key: str) -> None:
    """See that passwords and certificates can be read; `key` is that of the section.

    Raises:
        ConfigError: one cannot.
    """
    for path, one in ((key, config), (f"{key}.sentinel", config.sentinel)):
        if one is None:
            continue
        try:
            if one.password_file is not None:
                read_password(one.password_file)
            if one.tls is not None:
                tls = one.tls
                make_client_context(Tls(tls.certificate or "", tls.key or "", cafile=tls.ca))
        except PenstockError as error:
            problem = ConfigProblem(path, str(error), "files that can be read")
            raise ConfigError(policy_file, [problem]) from error


def redis_server(config: RedisConfig) -> RedisServer:
    """Return where the server is."""
    host, port = address_of(config.server or "127.0.0.1:6379")
    login = _login(config.user, config.password_file, config.tls)
    return RedisServer(
        host,
        port,
        db=config.db,
        prefix=config.prefix,
        login=login,
        sentinels=None if config.sentinel is None else _sentinels(config.sentinel),
        cluster=tuple(map(address_of, config.cluster)),
        patience=Patience(
            timeout_seconds=config.timeout_seconds,
            retry_seconds=config.retry_seconds,
            min_replicas=config.min_replicas,
            replication_seconds=config.replication_seconds,
        ),
    )


def _sentinels(config: RedisSentinel) -> RedisSentinels:
    login = _login(config.user, config.password_file, config.tls)
    return RedisSentinels(tuple(map(address_of, config.servers)), config.master, login)


def address_of(server: str) -> Address:
    """Return the address in a checked ``HOST:PORT``."""
    host, port = split_bind(server)
    return host or "127.0.0.1", port


def _login(user: str | None, password_file: str | None, tls: RedisTls | None) -> Login:
    if tls is None:
        return Login(user, password_file)
    return Login(user, password_file, tls.ca, tls.certificate, tls.key)
