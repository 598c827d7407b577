"""``penstock check FILE`` says what a start with a policy file would find, and changes nothing."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Annotated

import typer

from penstock.broker.config.changes import failures
from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError
from penstock.broker.import_mosquitto.directives import mosquitto_conf_error
from penstock.broker.process.program import set_up_log
from penstock.broker.process.start_check import StartCheck
from penstock.broker.server import Server

app = CommandLine()


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Policy file.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON.")] = False,
) -> None:
    """Say what a start with a policy file would find; nothing is created or changed.

    A proxy's own file is checked by penstock proxy --check -c FILE.

    Checked are keys, plugins with their files, TLS contexts, addresses and databases. The exit
    status is 2 where a start would fail.
    """
    set_up_log("error", debug=False)
    found = asyncio.run(check_file(file))
    raise typer.Exit(found.tell("penstock check", file, as_json=as_json))


async def check_file(file: str) -> StartCheck:
    """Return the account of a policy file."""
    found = StartCheck()
    try:
        policy = load_policy(file)
    except ConfigError as error:
        found.fail(failures(mosquitto_conf_error(file) or error, file, file))
        return found
    return await Server(policy).check()


main = partial(exit_status, app, "penstock check")


if __name__ == "__main__":
    sys.exit(main())
