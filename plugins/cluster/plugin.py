"""The plugin `cluster`: several brokers are one broker, by way of Redis or Valkey servers.

Theory of operation. `penstock.plugins.cluster.node` puts the parts together. Other nodes are route
targets of this broker's topic tree (`node_sink`); what they send comes from the own inbox
(`inbox`). Who is there, who subscribes to what, and what is retained stands in the engine
(`members`, `routes`, `retained`), as does which node has which client (`owners`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.broker.config.key_types import NAME_ALLOWED, NAME_FORM
from penstock.broker.counters import Metric
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import Plugin, PluginContext, Reload
from penstock.plugins.cluster.config import ClusterConfig
from penstock.plugins.cluster.figures import figures

if TYPE_CHECKING:
    from penstock.plugins.cluster.node import Node

KEY: Final = "cluster"
"""The key of the plugin in the policy file."""
_OPEN_FILES: Final = 16


class ClusterPlugin(Plugin):
    """`cluster` in a policy file.

    Attributes:
        node: this broker as a node; None where a policy file is only checked.
        nodes: what the console asks of the others; None there as well.
    """

    Config = ClusterConfig
    is_section = True
    has_other_brokers = True
    config: ClusterConfig

    def __init__(self, config: ClusterConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self.node = node = _node(config, context)
        self.nodes = None if node is None else node.asks
        self.has_local_clients = True
        self.open_files = _OPEN_FILES
        if node is not None:
            self.sinks = [node.retained, node.mail.sink]
            self.session_owner = node.owners
            self.session_store = node.mail.sessions
            self.callbacks = node.callbacks

    @classmethod
    def processes_per_machine(cls, config: ClusterConfig) -> int:
        """Return how many workers there are."""
        return config.workers

    async def start(self) -> None:
        """Join the cluster.

        Raises:
            EngineStartError: the servers cannot be used, or another broker has this node's name.
            ConfigError: a file that `redis` names cannot be read.
        """
        try:
            self._check_files(self.config)
            await self._started.start()
        except BaseException:
            await self.close()
            raise

    @property
    def _started(self) -> Node:
        assert self.node is not None  # noqa: S101 (only a broker starts its plugins)
        return self.node

    async def restored(self) -> None:
        """Take what the others have, before any client comes."""
        await self._started.serve()

    async def problem(self) -> str:
        """Return why this node lets in no client that is new to it; "" where it does."""
        return self._started.problem()

    def _check_files(self, config: ClusterConfig) -> None:
        from penstock.plugins.redis.server import check_files  # noqa: PLC0415 (of an extra)

        check_files(config.redis, self.context.policy_file, f"{KEY}.redis")

    async def reload(self, config: ClusterConfig) -> Reload:
        """Tell the other nodes what the policy file says; see `Plugin`. Keys need a restart."""
        self._check_files(config)
        return Reload() if self.node is None else Reload(apply=self.node.reloaded)

    def figures(self) -> Iterator[Metric]:
        """Yield figures of the cluster as this node has it; see `Plugin`."""
        return figures(self._started)

    def sys_topics(self, own: Mapping[str, str]) -> Mapping[str, str]:
        """Return what all nodes have together; see `Plugin`."""
        return own if self.node is None else self.node.told.sys_topics(own)

    async def close(self) -> None:
        """Leave the cluster; may be called again."""
        if self.node is not None:
            await self.node.close()


def _node(config: ClusterConfig, context: PluginContext) -> Node | None:
    """Return this broker as a node; None where there is no broker.

    Raises:
        ConfigError: it has no name that can be one, or the package for Redis is not installed.
    """
    machine = config.node or socket.gethostname()
    worker = context.worker
    name = f"{machine}-{worker.number}" if worker.total > 1 else machine
    if not NAME_FORM.fullmatch(name):
        read = machine if config.node else f"none, and the host name {machine!r}"
        raise _wrong(context, f"{KEY}.node", read, NAME_ALLOWED)
    try:
        from penstock.plugins.cluster.node import Node  # noqa: PLC0415 (of an extra)
    except ModuleNotFoundError as error:
        read = f"a cluster, and the package {error.name} is not installed"
        raise _wrong(context, KEY, read, "pip install 'penstock-mqtt[redis]' brings it") from error
    if context.sink_routes is None or context.local_clients is None:
        return None
    return Node(config, machine, name, context, context.sink_routes, context.local_clients)


def _wrong(context: PluginContext, key: str, read: str, allowed: str) -> ConfigError:
    return ConfigError(context.policy_file, [ConfigProblem(key, read, allowed)])
