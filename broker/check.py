"""``penstock check FILE`` says what a start with a policy file would find, and changes nothing.

``penstock restore DIR`` puts a backup where such a start would look for it.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.broker.config.changes import failures
from penstock.broker.config.command_line import CommandLine, Yes, confirm, exit_status
from penstock.broker.config.policy import load_policy
from penstock.broker.durable.restore import restore as put_copies
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.import_mosquitto.directives import mosquitto_conf_error
from penstock.broker.process.program import set_up_log
from penstock.broker.process.start_check import StartCheck
from penstock.broker.server import Server

app, restore = CommandLine(), CommandLine()


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


@restore.command(name="restore")
def put_back(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What penstock backup has written.")
    ],
    config: Annotated[str, typer.Option("-c", "--config", help="Policy file of the broker.")],
    *,
    yes: Yes = False,
) -> None:
    """Put the files of a backup where the policy file has its databases; the broker must not run.

    The backup stays. What the databases held is lost.
    """
    set_up_log("error", debug=False)
    found = asyncio.run(check_file(config))
    copies = sorted(folder.glob("*.db"))
    unknown = [copy.name for copy in copies if copy.name not in found.databases]
    if found.problems and not found.databases:  # such as for a wrong key
        raise typer.Exit(found.tell("penstock restore", config))
    if unknown or not copies:
        known = ", ".join(sorted(found.databases)) or "none, as this policy file has no database"
        raise PenstockError(f"{folder}: read {', '.join(unknown) or 'no backup'}; allowed: {known}")
    places = {copy: found.databases[copy.name] for copy in copies}
    used = [place for place in places.values() if Path(place).exists()]
    if used:
        confirm(f"Replace {', '.join(used)}? What they hold is lost.", yes=yes)
    put_copies(places)
    for copy, place in places.items():
        typer.echo(f"{place} is that of {copy}")


restore_main = partial(exit_status, restore, "penstock restore")
main = partial(exit_status, app, "penstock check")


if __name__ == "__main__":
    sys.exit(main())
