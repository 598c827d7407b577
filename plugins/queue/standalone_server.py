"""The program ``penstock queue serve`` serves the HTTP API without a broker.

It serves the `plugins.queue` section of a policy file. With the `sqlite` engine it is for times
when no broker has the file, to drain or fill its queues.
"""

from __future__ import annotations

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.plugin import QueuePlugin


class StandaloneServer:
    """The queue plugin as a program of its own."""

    def __init__(self, plugin: QueuePlugin) -> None:
        self._plugin = plugin

    async def start(self) -> None:
        """Open the engine and the HTTP API; a failed start closes what it opened."""
        try:
            await self._plugin.start()
        except BaseException:
            await self._plugin.close()
            raise

    async def reload(self) -> None:
        """Read tokens and certificates again; of what cannot be used, the old stays in force."""
        logger = self._plugin.context.logger
        try:
            read = await self._plugin.reload()
        except PenstockError as error:
            logger.error("not reloaded: %s", error)  # noqa: TRY400 (a user's mistake)
        else:
            logger.info("reloaded: %s", ", ".join(read) or "nothing")

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
