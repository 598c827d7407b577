"""``penstock broker -c policy.yaml`` runs the broker until it is stopped."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Annotated

import typer

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError
from penstock.broker.process.program import (
    Debug,
    LogLevel,
    run_until_stopped,
    set_up_log,
    take_log,
)
from penstock.broker.server import Server

app = CommandLine()


def _show_example(wanted: bool) -> None:  # noqa: FBT001 - typer's form of a callback
    if wanted:
        from importlib.resources import files  # noqa: PLC0415 - of no other use

        typer.echo(files("penstock").joinpath("policy.example.yaml").read_text(), nl=False)
        raise typer.Exit


@app.command()
def broker(
    config: Annotated[
        str,
        typer.Option(
            "-c",
            "--config",
            help="Policy file, or aMQTT's YAML file; 'penstock init' writes a first one.",
        ),
    ],
    log_level: LogLevel = None,
    *,
    debug: Debug = False,
    _example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="Print a policy file to begin with.",
            callback=_show_example,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Run the MQTT broker with a policy file."""
    set_up_log(log_level, debug=debug)
    logging.getLogger("transitions").setLevel(logging.WARNING)
    try:
        policy = load_policy(config)
    except ConfigError as error:
        from penstock.broker.import_mosquitto.directives import (  # noqa: PLC0415 - of no other use
            mosquitto_conf_error,
        )

        if (better := mosquitto_conf_error(config)) is None:
            raise
        raise better from error
    take_log(policy.log, log_level, debug=debug)
    run_until_stopped(Server(policy, read_policy=partial(load_policy, config, may_be_empty=False)))


main = partial(exit_status, app, "penstock broker")


if __name__ == "__main__":
    sys.exit(main())
