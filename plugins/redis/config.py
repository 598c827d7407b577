"""The keys of a section ``redis``, by which a plugin of a policy file reaches its servers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Name, Seconds
from penstock.plugins.web.bind import split_bind


def _checked_server(server: str) -> str:
    if split_bind(server)[1] == 0:
        raise ValueError("HOST:PORT, with a port of 1 to 65535")
    return server


Server = Annotated[str, AfterValidator(_checked_server)]
"""``HOST:PORT`` of a server."""
_Path = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class RedisTls:
    """TLS to the Redis server; the keys under `plugins.NAME.redis.tls`.

    Attributes:
        ca: PEM file of the authorities that the server's certificate is checked with.
        certificate: PEM file of this program's certificate.
        key: PEM file of its private key, without a passphrase.
    """

    ca: _Path
    certificate: _Path | None = None
    key: _Path | None = None

    def __post_init__(self) -> None:
        """Refuse a half of a certificate."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key, or neither")


@dataclass(frozen=True, slots=True, config=STRICT)
class RedisSentinel:
    """Sentinels, which know the master; the keys under `plugins.NAME.redis.sentinel`.

    Attributes:
        servers: ``HOST:PORT`` of each sentinel.
        master: name of the master in their files.
        user: ACL user of the sentinels; None for `default`.
        password_file: file whose first line is the password of the sentinels.
        tls: certificates for the sentinels; None for a plain connection.
    """

    servers: Annotated[tuple[Server, ...], Field(min_length=1)]
    master: Annotated[str, Field(min_length=1)]
    user: Annotated[str, Field(min_length=1)] | None = None
    password_file: _Path | None = None
    tls: RedisTls | None = None

    def __post_init__(self) -> None:
        """Refuse a user that cannot log in."""
        _require_password(self.user, self.password_file)


@dataclass(frozen=True, slots=True, config=STRICT)
class RedisConfig:
    """The servers that keep something for a plugin; the keys under `plugins.NAME.redis`.

    Attributes:
        server: ``HOST:PORT`` of a standalone server; None for those of `sentinel` or `cluster`, or
            ``127.0.0.1:6379``.
        sentinel: the sentinels of a master.
        cluster: ``HOST:PORT`` of some nodes of a cluster; empty for none.
        db: number of the database.
        prefix: begins each key's name, so that installations can share a server.
        user: ACL user.
        password_file: file whose first line is the password.
        tls: certificates.
        min_replicas: replicas that must have what is stored before it is acknowledged.
        replication_seconds: how long replicas are waited for, before it is refused.
        timeout_seconds: how long an answer is waited for, before the server counts as lost.
        retry_seconds: how long a call waits for a server, such as the next master, before it fails.
    """

    server: Server | None = None
    sentinel: RedisSentinel | None = None
    cluster: tuple[Server, ...] = ()
    db: Annotated[int, Field(ge=0)] = 0
    prefix: Name = "penstock"
    user: Annotated[str, Field(min_length=1)] | None = None
    password_file: _Path | None = None
    tls: RedisTls | None = None
    min_replicas: Annotated[int, Field(ge=0)] = 0
    replication_seconds: Seconds = 1.0
    timeout_seconds: Seconds = 5.0
    retry_seconds: Seconds = 15.0

    def __post_init__(self) -> None:
        """Refuse a user that cannot log in, and two places for one server."""
        _require_password(self.user, self.password_file)
        if sum((self.server is not None, self.sentinel is not None, bool(self.cluster))) > 1:
            raise ValueError("one of server, sentinel and cluster")
        if self.cluster and self.db:
            raise ValueError(
                f"read db: {self.db} beside cluster; allowed: 0, a cluster has no other"
            )


def _require_password(user: str | None, password_file: str | None) -> None:
    if user is not None and password_file is None:
        raise ValueError("password_file beside user")
