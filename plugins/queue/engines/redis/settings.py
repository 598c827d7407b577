"""What the policy file says of the server."""

from __future__ import annotations

from penstock.plugins.queue.config import RedisConfig, RedisSentinel, RedisTls
from penstock.plugins.queue.engines.redis.discovery import RedisSentinels
from penstock.plugins.queue.engines.redis.login import Address, Login
from penstock.plugins.queue.engines.redis.pipeline import Patience
from penstock.plugins.queue.engines.redis.server import RedisServer
from penstock.plugins.web.bind import split_bind


def redis_server(config: RedisConfig) -> RedisServer:
    """Return where the server is."""
    host, port = _address(config.server or "127.0.0.1:6379")
    login = _login(config.user, config.password_file, config.tls)
    return RedisServer(
        host,
        port,
        db=config.db,
        prefix=config.prefix,
        login=login,
        sentinels=None if config.sentinel is None else _sentinels(config.sentinel),
        cluster=tuple(map(_address, config.cluster)),
        local_nodes=tuple(map(_address, config.local_nodes)),
        patience=Patience(
            timeout_seconds=config.timeout_seconds,
            retry_seconds=config.retry_seconds,
            min_replicas=config.min_replicas,
            replication_seconds=config.replication_seconds,
            slowdown_detection_time=config.slowdown_detection_time,
        ),
    )


def _sentinels(config: RedisSentinel) -> RedisSentinels:
    login = _login(config.user, config.password_file, config.tls)
    return RedisSentinels(tuple(map(_address, config.servers)), config.master, login)


def _address(server: str) -> Address:
    host, port = split_bind(server)
    return host or "127.0.0.1", port


def _login(user: str | None, password_file: str | None, tls: RedisTls | None) -> Login:
    if tls is None:
        return Login(user, password_file)
    return Login(user, password_file, tls.ca, tls.certificate, tls.key)
