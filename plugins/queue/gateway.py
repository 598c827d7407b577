"""The program ``penstock queue``: the queue's HTTP API without a broker.

It serves the `plugins.queue` section of a policy file. With the `sqlite` engine it is for times
when no broker has the file, to drain or fill its queues.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.command_line import CommandLine
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.process.program import (
    Debug,
    LogLevel,
    exit_status,
    run_until_stopped,
    set_up_log,
)
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.sink import QueuePlugin

app = CommandLine()


class Gateway:
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

    async def stop(self) -> None:
        """Answer waiting requests and close the engine."""
        await self._plugin.close()


@app.command()
def serve(
    config: Annotated[str, typer.Option("-c", "--config", help="The policy file.")],
    log_level: LogLevel = "info",
    *,
    debug: Debug = False,
) -> None:
    """Serve the queues of a policy file over HTTP, without a broker."""
    set_up_log(log_level, debug=debug)
    run_until_stopped(Gateway(_plugin(config)))


def _plugin(path: str) -> QueuePlugin:
    """Make the plugin that the file describes.

    Raises:
        ConfigError: the file has no queue, or no HTTP address.
    """
    policy = load_policy(path)
    if "queue" not in policy.plugins:
        problem = ConfigProblem("plugins.queue", "nothing", "the queues to serve")
        raise ConfigError(policy.file, [problem])
    config = validate_config(QueueConfig, policy.plugins["queue"], policy.file, "plugins.queue")
    if config.http is None:
        problem = ConfigProblem(
            "plugins.queue.http", "null", "HOST:PORT; the gateway is nothing else"
        )
        raise ConfigError(policy.file, [problem])
    logger = logging.getLogger("penstock.queue")
    return QueuePlugin.alone(config, logger, policy.file)


def main(argv: list[str] | None = None) -> int:
    """Run the gateway until SIGINT or SIGTERM.

    Args:
        argv: arguments after the program's name; None for those of the process.

    Returns:
        Exit status: 0, or 2 where the arguments, the file or the engine cannot be used.
    """
    return exit_status(app, argv, "penstock queue")


if __name__ == "__main__":
    sys.exit(main())
