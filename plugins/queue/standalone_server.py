"""The program ``penstock queue serve`` serves the HTTP API without a broker.

It serves the `plugins.queue` section of a policy file. With the `sqlite` engine it is for times
when no broker has the file, to drain or fill its queues.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.broker.config.changes import InForce, KeyPath, compare, flatten
from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.plugin import KEY, QueuePlugin

if TYPE_CHECKING:
    from penstock.broker.operations_contract import Reloaded

_PATH: Final[KeyPath] = ("plugins", "queue")


class StandaloneServer:
    """The queue plugin as a program of its own."""

    def __init__(self, plugin: QueuePlugin, file: str) -> None:
        """Prepare the program.

        Args:
            plugin: with the keys of the policy file.
            file: the policy file, which `reload` reads again.
        """
        self._plugin = plugin
        self._file = file
        self._in_force = InForce(file, flatten(plugin.config, _PATH), plugin.context.logger)

    async def start(self) -> None:
        """Open the engine and the HTTP API; a failed start closes what it opened."""
        try:
            await self._plugin.start()
        except BaseException:
            await self._plugin.close()
            raise

    async def reload(self) -> Reloaded:
        """Read tokens, certificates and queues again; where one cannot be used, nothing changes."""
        try:
            config = await asyncio.to_thread(read_config, self._file)
            found = await self._plugin.reload(config)
        except PenstockError as error:
            return self._in_force.refuse(error)
        live = {(*_PATH, key): True for key in found.takes}
        live |= {(*_PATH, *left): False for left in found.leaves}
        changes = compare(self._in_force.values, flatten(config, _PATH), live)
        failed: dict[str, str] = {}
        try:
            rest = found.apply()
            if rest is not None:
                await rest
        except PenstockError as error:
            failed[KEY] = str(error)
        return self._in_force.take(changes, found.read, failed)

    async def stop(self) -> None:
        """Answer waiting requests and close the engine."""
        await self._plugin.close()


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
