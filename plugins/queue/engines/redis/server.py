"""The settings by which a program reaches its Redis servers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from logging import Logger

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from penstock.plugins.queue.engines.contract import EngineStartError
from penstock.plugins.queue.engines.redis.checks import check
from penstock.plugins.queue.engines.redis.discovery import (
    ClusterFinder,
    OneServer,
    RedisSentinels,
    SentinelFinder,
    listed,
)
from penstock.plugins.queue.engines.redis.library import load
from penstock.plugins.queue.engines.redis.login import CONNECT_SECONDS, Address, Login, named
from penstock.plugins.queue.engines.redis.pipeline import Patience
from penstock.plugins.queue.engines.redis.routes import Finder


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Where the server is, or the servers are.

    Attributes:
        host: name or address of the only server.
        port: its port.
        db: number of the database.
        prefix: begins the name of each key.
        login: how a connection begins.
        sentinels: the sentinels that know which server is the master; None for those that have
            none.
        cluster: some nodes of a cluster; () for a server that is in none.
        local_nodes: the nodes of the cluster on this machine: receives prefer what they are masters
            of.
        patience: how long is waited for what.
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

        Args:
            address: the address of the server; None for the only one.

        Raises:
            EngineStartError: a file cannot be read.
        """
        return self.login.connection(address or (self.host, self.port), self.db)

    async def connect(self, logger: Logger, address: Address | None = None) -> AbstractConnection:
        """Return a connection to a server that can be used, with the library in it.

        Raises:
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
                    min_replicas=0 if self.sentinels is None else self.patience.min_replicas,
                )
                await load(connection, named(address))
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            why = str(error) or f"no answer for {CONNECT_SECONDS:g} s"
            raise EngineStartError(f"Redis server {named(address)}: {why}") from error
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
