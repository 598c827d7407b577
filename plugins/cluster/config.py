"""The keys under `plugins.cluster` of a policy file."""

from __future__ import annotations

from dataclasses import field

from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Name
from penstock.plugins.redis.config import RedisConfig


@dataclass(frozen=True, slots=True, config=STRICT)
class ClusterConfig:
    """Brokers that are one broker to their clients; the keys under `plugins.cluster`.

    Attributes:
        name: of the cluster. Brokers with the same name and servers belong together.
        node: name of this broker, which no other one of the cluster has; None for the host name.
        redis: the servers by which the brokers reach each other.
    """

    name: Name
    node: Name | None = None
    redis: RedisConfig = field(default_factory=RedisConfig)
