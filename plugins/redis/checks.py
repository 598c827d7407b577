"""Checks of a server's settings: with wrong ones it could lose messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from logging import Logger
from typing import Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from penstock.plugins.redis.errors import EngineAwayError, EngineStartError
from penstock.plugins.redis.login import ask_directly

OLDEST_REDIS: Final = (7, 0)
OLDEST_VALKEY: Final = (8, 0)
_SKEW_SECONDS: Final = 10.0


async def check(
    connection: AbstractConnection,
    server: str,
    logger: Logger,
    *,
    is_cluster: bool,
    is_watched: bool = False,
    min_replicas: int = 0,
) -> None:
    """See that a server loses nothing; log what survives its end.

    Raises:
        EngineAwayError: sentinels, or a cluster, have named a replica as the master: another server
            has become it since, and they will name that one.
        EngineStartError: it cannot be used.
    """
    found = fields_of(await ask_directly(connection, "INFO"))
    name, oldest = "Redis", OLDEST_REDIS
    read = found.get("redis_version", "")
    if "valkey_version" in found:
        name, oldest, read = "Valkey", OLDEST_VALKEY, found["valkey_version"]
    if _version(read) < oldest:
        raise EngineStartError(
            f"version of server {server}: read {name} {read}; allowed: Redis "
            f"{OLDEST_REDIS[0]} or newer, Valkey {OLDEST_VALKEY[0]} or newer"
        )
    if (found.get("cluster_enabled") == "1") != is_cluster:
        allowed = "a node of a cluster" if is_cluster else "a server that is in no cluster"
        raise EngineStartError(
            f"server {server}: read cluster_enabled: {int(not is_cluster)}; allowed: {allowed}"
        )
    role = found.get("role") or found.get("redis_mode")  # a sentinel has no role
    if role in ("slave", "sentinel"):
        kind = EngineAwayError if is_watched and role == "slave" else EngineStartError
        raise kind(f"server {server}: read role: {role}; allowed: master. No other takes messages")
    ahead = float(found.get("server_time_usec", "nan")) / 1_000_000 - time.time()
    if abs(ahead) > _SKEW_SECONDS:
        logger.warning(
            "clock of server %s: %.0f s %s this machine's; a failover between servers "
            "whose clocks differ ends leases and delays early or late by as much",
            server,
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
        )
    problem = check_eviction(server, found)
    if problem is not None:
        raise EngineStartError(problem)
    await _log_persistence(connection, server, f"{name} {read}", found, logger)
    if min_replicas:
        least = await _setting(connection, "min-replicas-to-write")
        if least.isdecimal() and int(least) < min_replicas:
            logger.warning(
                "server %s has min-replicas-to-write %s, less than min_replicas: while a failover "
                "replaces it, it takes and gives away what is then taken or given away again",
                server,
                least,
            )
        n_replicas = int(found.get("connected_slaves", "0"))
        if n_replicas > min_replicas:
            logger.warning(
                "server %s has %d replicas, and min_replicas is %d: where it is lost, the "
                "sentinels may choose one that has not all that was acknowledged",
                server,
                n_replicas,
                min_replicas,
            )


def check_eviction(server: str, found: Mapping[str, str]) -> str | None:
    """Say why a server may delete messages by itself, by its ``INFO``; None where it does not."""
    policy = found.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return None
    return (
        f"maxmemory-policy of server {server}: read {policy}; allowed: noeviction. Any other "
        "lets the server delete messages where its memory is full"
    )


async def _log_persistence(
    connection: AbstractConnection,
    server: str,
    name: str,
    found: Mapping[str, str],
    logger: Logger,
) -> None:
    """Log what survives the end of the server."""
    settings = {one: await _setting(connection, one) for one in ("appendfsync", "save")}
    aof = f"yes, appendfsync {settings['appendfsync']}"
    if found.get("aof_enabled") != "1":
        aof = "no"
    logger.info(
        "%s %s keeps the data; appendonly %s; save %r; maxmemory %s",
        name,
        server,
        aof,
        settings["save"],
        found.get("maxmemory_human", "unknown"),
    )
    if found.get("aof_enabled") != "1":
        logger.warning(
            "server %s has appendonly no: when it ends, it loses what came after its newest "
            "snapshot (save %r)",
            server,
            settings["save"],
        )


async def _setting(connection: AbstractConnection, name: str) -> str:
    """Return a setting; "unknown" where this user may not ask."""
    try:
        answer = await ask_directly(connection, "CONFIG", "GET", name)
    except ResponseError:
        return "unknown"
    return answer[1].decode() if answer else "unknown"


def fields_of(info: bytes) -> dict[str, str]:
    """Return the fields of an answer to ``INFO``, or to ``CLUSTER INFO``."""
    lines = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
