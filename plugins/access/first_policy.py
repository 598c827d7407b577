"""``penstock init [DIR]`` writes a first policy file, with a user and a password of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.errors import PenstockError
from penstock.broker.process.program import NO_OTHERS
from penstock.plugins.access.passwd import SALT_BYTES
from penstock.plugins.access.password_hash import make_hash
from penstock.plugins.access.user_file import with_user

app = CommandLine()

USER: Final = "admin"
PASSWORD_BYTES: Final = 15
"""Random bytes of the password: 20 characters, which nobody can guess."""

POLICY: Final = """\
# Penstock's policy file; docs/reference/keys.md has every key. A reload reads it again:
# systemctl reload, SIGHUP, or penstock reload. penstock check policy.yaml looks at it before.
listeners:
  default:
{mqtt}
  #tls:
  #  bind: 0.0.0.0:8883
  #  ssl: true
  #  certfile: server.crt       # and the certificates between it and its root
  #  keyfile: server.key
limits:
  queued_messages: 100000       # that may wait for one session
  queue_full: reject            # tell the publisher; or drop_newest, drop_oldest, disconnect
persistence:                    # sessions, queued and retained messages outlive the process
  path: penstock-sessions.db
  durability: full              # survives a power cut; normal: the end of the process
log:
  level: info                   # debug, info, warning or error
plugins:
  access:
    password_file: passwords    # penstock passwd passwords USER
    acl_file: topics            # who may publish and read what
  probing:                      # measure the round trip to each subscriber
  withholding:                  # hold large messages back while it is long
    threshold_s: 10 kB          # payload above which a message is large
  console:                      # page, metrics and API
{console}
    admins: [admin]             # users who may act on the page
    token_file: console.tokens  # of commands: penstock reload --token-file operator.token,
                                # and of Prometheus, which shows prometheus.token
"""

LOCAL: Final = {
    "mqtt": """\
    bind: 127.0.0.1:1883        # this machine; 0.0.0.0:1883 serves every network, where others
                                # can read passwords and messages. TLS prevents it:""",
    "console": """\
    http: 127.0.0.1:8081""",
    "told": "127.0.0.1:1883, this machine alone; policy.yaml says how to serve others",
}
PUBLISHED: Final = {
    "mqtt": """\
    bind: 0.0.0.0:1883          # of the container; on networks that its port is published to,
                                # others can read passwords and messages. TLS prevents it:""",
    "console": """\
    http: 0.0.0.0:8081          # of the container: publish it to this machine alone, or
    without_tls: true           # http_tls: {certificate: FILE, key: FILE}""",
    "told": "port 1883 of the container",
}
"""In place of `LOCAL` in a container, whose loopback is out of reach."""

TOPICS: Final = """\
# The administrator, on the page and over MQTT:
user admin
topic readwrite #
topic read $SYS/#

# Each user has the topics below its own name:
pattern readwrite %u/#
"""


class InitError(PenstockError):
    """Nothing can be written there; the program ends with status 2."""


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Directory, created if it does not exist.")
    ] = Path(),
    *,
    container: Annotated[
        bool, typer.Option("--container", help="Clients and page come by published ports.")
    ] = False,
) -> None:
    """Write a first policy file, with a user and a password of its own.

    The broker then serves clients of this machine that log in, keeps what waits over restarts,
    holds large messages back on slow links, and has a page for its administrator.
    """
    place = PUBLISHED if container else LOCAL
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    hashed = make_hash(password.encode(), secrets.token_bytes(SALT_BYTES))
    token, metrics_token = secrets.token_urlsafe(), secrets.token_urlsafe()
    files = {
        "policy.yaml": POLICY.format_map(place),
        "topics": TOPICS,
        "passwords": with_user("", USER, str(hashed)),
        "console.tokens": f"operator admin {token}\nprometheus viewer {metrics_token}\n",
        "operator.token": token,
        "prometheus.token": metrics_token,
    }
    _write(folder, files)
    command = "penstock broker -c policy.yaml"
    if folder != Path():
        command = f"cd {shlex.quote(str(folder))} && {command}"
    typer.echo(
        f"{', '.join(str(folder / name) for name in files)} are written.\n\n"
        f"User      {USER}\n"
        f"Password  {password}\n"
        f"It is shown once; penstock passwd {folder / 'passwords'} {USER} sets another one.\n\n"
        f"Start     {command}\n"
        f"MQTT      {place['told']}\n"
        f"Page      http://127.0.0.1:8081\n"
        f"Commands  penstock reload --token-file {folder / 'operator.token'}"
    )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write new files that their owner alone can read.

    Raises:
        InitError: one of them is there, or cannot be written; then none is.
    """
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise InitError(f"{folder}: read {', '.join(there)}; allowed: a directory without them")
    os.umask(os.umask(NO_OTHERS) | NO_OTHERS)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
        # Prometheus is another user: whoever may enter the directory by its group may read this.
        (folder / "prometheus.token").chmod(0o640)
    except OSError as error:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise InitError(f"{error.filename or folder}: {error.strerror or error}") from error


main = partial(exit_status, app, "penstock init")


if __name__ == "__main__":
    sys.exit(main())
