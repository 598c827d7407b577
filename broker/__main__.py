"""``penstock broker -c policy.yaml`` runs the broker until it is stopped."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.broker.config.checked_yaml import read_text
from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.config.policy import load_policy, parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import Worker
from penstock.broker.plugin_loader import processes_per_machine
from penstock.broker.process.program import (
    Debug,
    LogLevel,
    run_until_stopped,
    set_up_log,
    take_log,
)
from penstock.broker.process.supervised import Supervised
from penstock.broker.process.supervisor import Supervisor
from penstock.broker.server import Server

app = CommandLine()

_OF_SUPERVISOR: Final = "penstock broker gives it to the processes that it starts"


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
    worker: Annotated[str, typer.Option(hidden=True)] = "",
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
    me, copy = _worker(worker)
    set_up_log(log_level, debug=debug, worker=0 if me is None else me.number)
    logging.getLogger("transitions").setLevel(logging.WARNING)
    try:
        text = read_text(config, form="YAML") if copy is None else copy
        policy = parse_policy(text, config)
    except ConfigError as error:
        from penstock.broker.import_mosquitto.directives import (  # noqa: PLC0415 - of no other use
            mosquitto_conf_error,
        )

        if (better := mosquitto_conf_error(config)) is None:
            raise
        raise better from error
    take_log(policy.log, log_level, debug=debug)
    server = partial(Server, policy, read_policy=partial(load_policy, config, may_be_empty=False))
    if me is not None:
        supervised = _supervised()
        run_until_stopped(server(worker=me, reload_all=supervised.reload_all), supervised)
    elif (n_workers := processes_per_machine(policy)) > 1:
        levels = [*(["--log-level", log_level] if log_level else []), *(["-d"] if debug else [])]
        program = [*_program(), "broker", "-c", config, *levels]
        supervisor = Supervisor(
            n_workers,
            lambda number, copy: [*program, "--worker", f"{number}/{n_workers}/{copy}"],
            partial(server().check, is_start=True),
            config,
            text,
            logging.getLogger("penstock"),
        )
        run_until_stopped(supervisor)
    else:
        run_until_stopped(server())


def _program() -> list[str]:
    """Return the command of this program, which looks for modules where this process does."""
    looks_here = {"", str(Path.cwd())}.intersection(sys.path)
    return [sys.executable, *([] if looks_here else ["-P"]), "-m", "penstock"]


def _worker(text: str) -> tuple[Worker | None, str | None]:
    """Return which worker this process is, and its copy of the policy file.

    Args:
        text: the option that its supervisor has given it; "" for none.
    """
    if not text:
        return None, None
    try:
        number, count, copy = map(int, text.split("/"))
        with os.fdopen(copy, encoding="utf-8") as file:
            return Worker(number, count), file.read()
    except (ValueError, OSError) as error:
        raise typer.BadParameter(_OF_SUPERVISOR, param_hint="--worker") from error


def _supervised() -> Supervised:
    try:
        return Supervised(sys.stdin.fileno())
    except OSError as error:
        raise typer.BadParameter(_OF_SUPERVISOR, param_hint="--worker") from error


main = partial(exit_status, app, "penstock broker")


if __name__ == "__main__":
    sys.exit(main())
