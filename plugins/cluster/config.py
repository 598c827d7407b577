"""The keys under `cluster` of a policy file."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Name
from penstock.plugins.redis.config import RedisConfig

MOST_WORKERS: Final = 256


@dataclass(frozen=True, slots=True, config=STRICT)
class ClusterConfig:
    """Brokers that are one broker to their clients; the keys under `cluster`.

    Attributes:
        name: brokers with the same name and servers are one cluster.
        node: name of this broker, unique in the cluster; None for the host name.
        redis: the servers by which the brokers reach each other.
        workers: processes of this machine, for its cores, on the same ports. Each is a broker of
            the cluster, ``NODE-1``, ``NODE-2`` of several.
    """

    name: Name
    node: Name | None = None
    redis: RedisConfig = field(default_factory=RedisConfig)
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1
