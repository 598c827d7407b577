"""The program ``penstock queue``: the queue's HTTP API alone, without a broker.

It serves the `plugins.queue` section of a policy file. With the `sqlite` engine it is for the
time when no broker has the file, to drain or fill its queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from broker.config import load_policy, validate_config
from broker.errors import ConfigError, ConfigProblem, PenstockError
from broker.log_lines import log_to_stderr
from plugins.queue.config import QueueConfig
from plugins.queue.sink import QueuePlugin

application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main(argv: list[str] | None = None) -> int:
    """Run the gateway until it is told to stop by SIGINT or SIGTERM.

    Args:
        argv: arguments after the program's name; None for those of the process.

    Returns:
        Exit status: 0, or 2 where the arguments, the file or the engine cannot be used.
    """
    try:
        application(argv, prog_name="penstock queue")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


@application.command(help="Serve the queues of a policy file over HTTP, without a broker.")
def serve(
    config: Annotated[Path, typer.Option("-c", "--config", help="The policy file.")],
) -> None:
    """Serve the queues of `config`."""
    log_to_stderr("INFO")
    loop_factory = None
    with contextlib.suppress(ImportError):  # there is none for Windows
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    try:
        plugin = _plugin(config)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(plugin))
    except PenstockError as error:
        sys.stderr.write(f"penstock queue: {error}\n")
        raise typer.Exit(2) from error


def _plugin(path: Path) -> QueuePlugin:
    """Make the plugin that the file describes.

    Raises:
        ConfigError: the file has no queue, or one without an HTTP address.
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


async def _serve(plugin: QueuePlugin) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await plugin.start()
        await stop.wait()
    finally:
        await plugin.close()


if __name__ == "__main__":
    sys.exit(main())
