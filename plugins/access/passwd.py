"""``penstock passwd FILE USER`` writes a user's password into a file of the plugin `access`.

For password files it works like mosquitto_passwd; each program reads the other's files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.errors import PenstockError
from penstock.plugins.access import password_hash, scram
from penstock.plugins.access.user_file import with_user, without_user

app = CommandLine()

SALT_BYTES = 12
"""The length of a password hash's salt that mosquitto expects."""


class PasswdError(PenstockError):
    """The file cannot be changed as asked; the program ends with status 2."""


@app.command()
def passwd(
    file: Annotated[Path, typer.Argument(help="Password file; created if it does not exist.")],
    user: Annotated[str, typer.Argument(help="User name; an existing one gets the new password.")],
    *,
    delete: Annotated[bool, typer.Option("-D", "--delete", help="Remove the user.")] = False,
    is_scram: Annotated[
        bool, typer.Option("--scram", help="Write a scram_file, for SCRAM-SHA-256.")
    ] = False,
    is_argon2id: Annotated[
        bool, typer.Option("--argon2id", help="Hash by Argon2id: costlier to guess, and to log in.")
    ] = False,
    iterations: Annotated[
        int | None,
        typer.Option(
            help=f"Rounds of the hash, for each login and each guess. Default: "
            f"{password_hash.DEFAULT_ITERATIONS}, with --scram {scram.DEFAULT_ITERATIONS}."
        ),
    ] = None,
) -> None:
    """Write a user's password, asked for or read as one line from standard input."""
    text = _read(file)
    _check_text("user", user)
    if delete:
        changed = without_user(text, user)
        if changed is None:
            raise PasswdError(f"{file}: user: read {user!r}; allowed: a user of this file")
    else:
        try:
            with_user(text, user, "")  # before a password is typed
        except ValueError as error:
            raise PasswdError(f"user: read {user!r}; allowed: {error}") from None
        _check_kind(file, text, is_scram=is_scram)
        if is_argon2id and (is_scram or iterations is not None):
            raise PasswdError("--argon2id: allowed without --scram and --iterations")
        secret = _secret(_ask(), iterations, is_scram=is_scram, is_argon2id=is_argon2id)
        changed = with_user(text, user, secret)
    _write(file, changed)


def _secret(password: str, iterations: int | None, *, is_scram: bool, is_argon2id: bool) -> str:
    """Return what follows the user's colon.

    Raises:
        PasswdError: the iterations or the password cannot be used.
    """
    least = scram.DEFAULT_ITERATIONS if is_scram else 1
    if iterations is None:
        iterations = least if is_scram else password_hash.DEFAULT_ITERATIONS
    if not least <= iterations <= password_hash.MAX_ITERATIONS:
        allowed = f"{least} to {password_hash.MAX_ITERATIONS}"
        raise PasswdError(f"--iterations: read {iterations}; allowed: {allowed}")
    _check_text("password", password)
    if not password:
        raise PasswdError("password: read nothing; allowed: one character or more")
    if is_argon2id:
        salt = secrets.token_bytes(password_hash.ARGON2_SALT_BYTES)
        return str(password_hash.make_argon2id(password.encode(), salt))
    if not is_scram:
        salt = secrets.token_bytes(SALT_BYTES)
        return str(password_hash.make_hash(password.encode(), salt, iterations))
    try:
        salt = secrets.token_bytes(scram.SALT_BYTES)
        return str(scram.make_credentials(password, salt, iterations))
    except ValueError as error:
        raise PasswdError(f"password: allowed: {error}") from None


def _check_text(what: str, typed: str) -> None:
    """Check that input is UTF-8, as MQTT's user names and the files of users are.

    Raises:
        PasswdError: it is not.
    """
    try:
        typed.encode()
    except UnicodeEncodeError as error:  # Python passes undecodable bytes on as surrogates
        raise PasswdError(f"{what}: read bytes that are no UTF-8; allowed: UTF-8") from error


def _check_kind(file: Path, text: str, *, is_scram: bool) -> None:
    """Check that a file holds secrets of one kind, as the broker refuses it otherwise.

    Raises:
        PasswdError: it holds some of the other kind.
    """
    for number, line in enumerate(text.splitlines(), 1):
        _, colon, secret = line.partition(":")
        if not colon or line.startswith("#"):
            continue
        if secret.strip().startswith(scram.METHOD) != is_scram:
            stands, right = ("password_file", "without") if is_scram else ("scram_file", "with")
            raise PasswdError(
                f"{file}: line {number}: read a line of a {stands}; allowed here: {right} --scram"
            )


def _ask() -> str:
    """Return the password, from the terminal or from standard input."""
    if sys.stdin.isatty():
        password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    return sys.stdin.readline().rstrip("\r\n")


def _read(file: Path) -> str:
    try:
        # Comments may be in any encoding; no other line is changed either.
        return file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise PasswdError(f"{file}: cannot be read: {error}") from error


def _write(file: Path, text: str) -> None:
    """Replace a file atomically; a new one is accessible to its owner only."""
    target = file.resolve()
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as opened:
            opened.write(text)
            with contextlib.suppress(FileNotFoundError):
                status = target.stat()
                os.fchmod(opened.fileno(), stat.S_IMODE(status.st_mode))
                with contextlib.suppress(PermissionError):  # keeps the file readable to its owner
                    os.fchown(opened.fileno(), status.st_uid, status.st_gid)
            opened.flush()
            os.fsync(opened.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise PasswdError(f"{file}: cannot be written: {error.strerror}") from error


main = partial(exit_status, app, "penstock passwd")


if __name__ == "__main__":
    sys.exit(main())
