"""The program ``penstock queue serve`` serves the HTTP API without a broker.

It serves the `plugins.queue` section of a policy file, and the console with its users where the
file has them. With the `sqlite` engine it is for times when no broker has the file, to drain or
fill its queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from logging import Logger
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.config.changes import InForce, compare
from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.plugin_guard import Guard
from penstock.broker.plugin_loader import LoadedPlugins, load_plugins
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.plugin import QueuePlugin

if TYPE_CHECKING:
    from penstock.broker.operations_contract import Reloaded

SERVED: Final = ("queue", "console", "access")
"""The plugins of a policy file that serve without a broker."""


class StandaloneServer:
    """The queue plugin, and those beside it, as a program of their own."""

    def __init__(self, plugins: LoadedPlugins, file: str, logger: Logger) -> None:
        self._plugins = plugins
        self._file = file
        self._guard = Guard(logger, {})
        self._in_force = InForce(file, plugins.values(), logger)

    @classmethod
    def of(cls, plugin: QueuePlugin) -> StandaloneServer:
        """Return the server of the queue plugin alone."""
        context = plugin.context
        return cls(LoadedPlugins((plugin,), ("queue",)), context.policy_file, context.logger)

    async def start(self) -> None:
        """Open the engine and the HTTP APIs; a failed start closes what it opened."""
        try:
            await self._plugins.start()
            await self._plugins.restored()
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> Reloaded:
        """Read tokens, certificates and queues again; where one cannot be used, nothing changes."""
        try:
            policy = await asyncio.to_thread(_read_policy, self._file)
        except PenstockError as error:
            return self._in_force.refuse(error)
        found = await self._plugins.reload(policy, policy.listeners)
        if found.failed:
            self._plugins.give_up(found)
            return self._in_force.refuse(found.failed)
        changes = compare(self._in_force.values, found.values, found.live)
        await found.apply(self._guard)
        return self._in_force.take(changes, found.read, found.failed)

    async def stop(self) -> None:
        """Answer waiting requests and close the engine."""
        await self._plugins.close(self._guard)


class _Policy(NamedTuple):
    """What a policy file says of plugins that serve without a broker."""

    file: str
    plugins: Mapping[str, Mapping[str, Any]]
    listeners: Collection[str]
    sections: Collection[str] = ()


def _read_policy(path: str) -> _Policy:
    policy = load_policy(path)
    served = {name: keys for name, keys in policy.plugins.items() if name in SERVED}
    return _Policy(policy.file, served, policy.listeners)


def load_server(path: str, logger: Logger) -> StandaloneServer:
    """Return the server of a policy file; it is not started.

    Raises:
        ConfigError: the file cannot be used, or has no queues.
        PluginLoadError: a plugin cannot be made.
    """
    policy = _read_policy(path)
    plugins = load_plugins(policy, listeners=policy.listeners)
    return StandaloneServer(plugins, policy.file, logger)


def read_config(path: str) -> QueueConfig:
    """Return the `plugins.queue` section of a policy file.

    Raises:
        ConfigError: the file cannot be used, or has no such section.
    """
    policy = load_policy(path)
    if "queue" not in policy.plugins:
        problem = ConfigProblem("plugins.queue", "nothing", "the queues to serve")
        raise ConfigError(policy.file, [problem])
    return validate_config(QueueConfig, policy.plugins["queue"], policy.file, "plugins.queue")
