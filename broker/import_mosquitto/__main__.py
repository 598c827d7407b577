"""``penstock import-mosquitto mosquitto.conf`` writes a policy file with the same effect."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.config.policy import Policy, parse_policy
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.import_mosquitto.conf_file import read_conf
from penstock.broker.import_mosquitto.translate import Note, translate
from penstock.broker.network.listeners import ListenError
from penstock.broker.network.tls import TlsFilesError, make_context, revocation_lists
from penstock.broker.plugin_loader import load_plugins

app = CommandLine()

REFUSED_HERE = 1
"""Exit status where the file was written but the broker would refuse it on this machine."""


class OutputError(PenstockError):
    """The policy file cannot be written; the program ends with status 2."""


@app.command()
def import_mosquitto(
    conf: Annotated[
        Path, typer.Argument(metavar="MOSQUITTO.CONF", help="mosquitto's configuration file.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="New file to write; standard output by default."),
    ] = None,
) -> None:
    """Write a policy file with the same listeners, users, topics, limits and bridges."""
    policy, notes, passwords = translate(read_conf(conf), socket.gethostname())
    files: dict[Path, str] = {}
    for name, line in passwords.items():
        keys = policy["plugins"]["uplink"]["uplinks"][name]
        if output is None:
            why = f"write the password into a file {keys['password_file']}, as its first line"
            notes.append(Note(line, why))
        else:
            file = output.parent.resolve() / keys["password_file"]
            keys["password_file"] = str(file)
            files[file] = f"{line.value}\n"
    text = _as_text(conf, policy, notes)
    if output is None:
        sys.stdout.write(text)
    else:
        _write({output: text, **files}, secret=files)
    for note in notes:
        sys.stderr.write(f"{note.line.file}: {note}\n")
    try:
        asyncio.run(_check(parse_policy(text, str(output or "policy"))))
    except PenstockError as error:
        sys.stderr.write(f"the broker would refuse this file on this machine:\n{error}\n")
        raise typer.Exit(REFUSED_HERE) from error


def _write(files: dict[Path, str], *, secret: Container[Path]) -> None:
    """Write new files, all or none.

    Raises:
        OutputError: one of them is there, or cannot be written.
    """
    written: list[Path] = []
    try:
        for file, text in files.items():
            opener = _open_secret if file in secret else None
            with open(file, "x", encoding="utf-8", opener=opener) as opened:
                written.append(file)
                opened.write(text)
    except OSError as error:
        for other in written:
            other.unlink()
        raise OutputError(f"{file}: cannot be written: {error.strerror}") from error


def _open_secret(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def _check(policy: Policy) -> None:
    """Check what the broker would read at its start.

    Raises:
        PenstockError: the broker would refuse it.
    """
    plugins = load_plugins(policy, listeners=policy.listeners)
    try:
        await plugins.start()
    finally:
        for plugin in plugins.plugins:
            await plugin.close()
    for name, listener in policy.listeners.items():
        if listener.tls is not None:
            try:
                make_context(listener.tls, ())
                revocation_lists(listener.tls)
            except TlsFilesError as error:
                raise ListenError(f"listener {name}: {error}") from error
    folder = Path(policy.persistence.path).parent if policy.persistence is not None else Path()
    if not folder.is_dir():
        problem = ConfigProblem("persistence.path", f"no folder {folder}", "an existing folder")
        raise ConfigError(policy.file, [problem])


def _as_text(conf: Path, policy: dict[str, Any], notes: list[Note]) -> str:
    """Return the policy file, with its notes as comments at the top."""
    comments = [f"# Made from {conf} by penstock import-mosquitto."]
    if notes:
        comments += ["#", "# These lines of mosquitto's have no effect here, or another one:"]
        comments += [
            f"# {line}" if note.line.file == str(conf) else f"# {note.line.file}, {line}"
            for note in notes
            for line in [str(note)]
        ]
    body = yaml.safe_dump(policy, sort_keys=False, allow_unicode=True)
    return "\n".join(comments) + "\n\n" + body


main = partial(exit_status, app, "penstock import-mosquitto")


if __name__ == "__main__":
    sys.exit(main())
