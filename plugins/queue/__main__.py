"""The program ``penstock queue`` inspects and changes queues, and serves them without a broker."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from penstock.broker.config.command_line import exit_status
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.process.program import Debug, LogLevel, run_until_stopped, set_up_log, take_log
from penstock.plugins.queue.client import QueueError
from penstock.plugins.queue.commands import app
from penstock.plugins.queue.standalone_server import load_server, read_config
from penstock.plugins.queue.wire.refusals import NoAnswerError
from penstock.plugins.web.terminal_escape import printable

PROGRAM = "penstock queue"


@app.callback()
def queue() -> None:
    """Inspect and change queues, with or without a server, or serve them without a broker."""


@app.command()
def serve(
    config: Annotated[
        str,
        typer.Option(
            "-c",
            "--config",
            help="Policy file with the plugin queue; 'penstock init' writes one to begin with.",
        ),
    ],
    log_level: LogLevel = None,
    *,
    debug: Debug = False,
) -> None:
    """Serve queues over HTTP and Amazon SQS, without a broker.

    The name of the command may be left out: `penstock queue -c FILE`.
    """
    set_up_log(log_level, debug=debug)
    read = read_config(config)
    take_log(load_policy(config).log, log_level, debug=debug)
    if read.http is None and read.sqs is None:
        problem = ConfigProblem(
            "plugins.queue.http", "null", "HOST:PORT, or one of sqs; the gateway is nothing else"
        )
        raise ConfigError(config, [problem])
    run_until_stopped(load_server(config, logging.getLogger("penstock.queue")))


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        Exit status: 0; 1 where the server refuses something or does not answer; 2 where the
        arguments, the file or the engine cannot be used.
    """
    given = sys.argv[1:] if argv is None else argv
    if given and given[0].startswith("-") and given[0] not in ("-h", "--help"):
        given = ["serve", *given]
    try:
        return exit_status(app, PROGRAM, given)
    except QueueError as error:
        told = str(error)
        if isinstance(error, NoAnswerError):
            told += "; allowed: a program with the plugin queue, at this address"
        typer.echo(f"{PROGRAM}: {printable(told)}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
