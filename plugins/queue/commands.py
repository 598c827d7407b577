"""The commands of ``penstock queue`` show and change queues, groups and messages.

They talk to the HTTP API of a running broker or gateway. Where none runs, ``-c`` names the policy
file, and a command opens the database itself: it serves the API on a port of loopback, with a token
that is made for this one command, so that there is one way to do each thing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer
import yaml

from penstock.broker.config.command_line import CommandLine, Yes, confirm, with_options
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.process.program import NO_OTHERS
from penstock.plugins.queue.client import NoAnswerError, QueueClient, UnknownNameError, read_token
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.engines import sqlite_copies
from penstock.plugins.queue.plugin import QueuePlugin
from penstock.plugins.queue.report import peek_lines, stats_lines
from penstock.plugins.queue.standalone_server import StandaloneServer, read_config
from penstock.plugins.web.bind import split_bind
from penstock.plugins.web.contexts import ApiOptions, Context, chosen_context

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TOKEN_BYTES: Final = 32

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing is bound here)
"""Addresses that mean every interface, and the address at which this machine reaches such a
server."""

app = CommandLine()


class CommandError(PenstockError):
    """Arguments that do not fit together, or an answer that is not of a queue; status 2."""


ConfigFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--config",
        help="Policy file with the server's address; its database is used if no server runs.",
    ),
]


@dataclass(frozen=True, slots=True)
class ServerOptions(ApiOptions):
    """Where the queues are: an address, a context (its console serves them) or a policy file."""

    config: ConfigFile = None

    def tell(self, words: str, **answer: object) -> None:
        """Print what was done, in words or as JSON."""
        typer.echo(json.dumps(answer) if self.as_json else words)

    def show(self, answer: object, text_lines: Callable[[], list[str]]) -> None:
        """Print an answer.

        Raises:
            CommandError: it is not what a queue answers.
        """
        if self.as_json:
            typer.echo(json.dumps(answer, indent=1))
            return
        try:
            text = "\n".join(text_lines())
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            told = "something else answers there; allowed: Penstock's queue API"
            raise CommandError(told) from error
        typer.echo(text)

    def ask(self, work: Callable[[QueueClient], T]) -> T:
        """Run `work` with a client of the queues.

        Raises:
            QueueError: the server refused something, or did not answer.
            PenstockError: the server cannot be used.
        """
        if self.config is None:
            context = chosen_context(self.context, self.url)
            if context is None:
                return work(_client(self.over(Context(DEFAULT_URL))))
            return work(_client(self.over(replace(context, url=f"{context.url.rstrip('/')}/api"))))
        if self.url is not None or self.context is not None:
            other = "--context" if self.url is None else "--url"
            raise CommandError(f"{other}: read {other} and -c; allowed: one of them")
        config = read_config(self.config)
        url = url_of(config)
        if url is not None:
            try:
                return work(_client(self.over(Context(url))))
            except NoAnswerError as error:
                if not isinstance(error.__cause__, ConnectionRefusedError):
                    raise
        if config.engine == "memory":
            problem = ConfigProblem(
                "plugins.queue.engine", "memory, and no server runs", "sqlite, which has a file"
            )
            raise ConfigError(self.config, [problem])
        os.umask(os.umask(NO_OTHERS) | NO_OTHERS)
        return asyncio.run(_with_file(config, self.config, work))


def _client(found: Context) -> QueueClient:
    """Return a client of the queues.

    Raises:
        CommandError: the server cannot be used.
    """
    file = found.token_file
    try:
        token = None if file is None else read_token(file).rpartition(" ")[2]
    except (OSError, ValueError) as error:
        raise CommandError(f"--token-file: {error}") from error
    try:
        return QueueClient(found.url, token=token, ca_file=found.ca_file)
    except ValueError as error:
        raise CommandError(f"--url: {error}") from error
    except OSError as error:  # of ssl, which does not name the file
        raise CommandError(f"--ca-file: {found.ca_file} cannot be used: {error}") from error


def url_of(config: QueueConfig) -> str | None:
    """Return where the server of a policy file answers; None where that is not known."""
    if config.http is None:
        return None
    host, port = split_bind(config.http)
    if not port:
        return None
    host = _ANY_ADDRESS.get(host, host)
    scheme = "http" if config.http_tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


async def _with_file(config: QueueConfig, policy_file: str, work: Callable[[QueueClient], T]) -> T:
    """Open the database that nobody has open, and run `work` with a client of its queues."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    tokens = [
        {
            "name": "operator",
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
            "roles": {"*": ["read", "write", "admin"]},
        }
    ]
    with tempfile.TemporaryDirectory(prefix="penstock-queue-") as folder:
        file = Path(folder) / "tokens.yaml"
        file.write_text(yaml.safe_dump({"tokens": tokens}))
        own = replace(config, http="127.0.0.1:0", http_tls=None, sqs=None, tokens=str(file))
        plugin = QueuePlugin.alone(own, logging.getLogger("penstock.queue"), policy_file)
        gateway = StandaloneServer.of(plugin)
        await gateway.start()
        try:
            client = QueueClient(str(plugin.http_url), token=token)
            return await asyncio.to_thread(_closing, client, work)
        finally:
            await gateway.stop()


def _closing(client: QueueClient, work: Callable[[QueueClient], T]) -> T:
    try:
        return work(client)
    finally:
        client.close()


Queue: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help="The logical queue.")]
GroupName: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="A group of the queue.")
]
MaxMessages: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Most messages to move; all by default.")
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of the policy file and its value in YAML; may be repeated.",
    ),
]


@app.command()
@with_options(ServerOptions)
def stats(
    server: ServerOptions,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="One logical queue; all by default.")
    ] = None,
) -> None:
    """Show the messages of queues, and the positions of their groups."""

    def work(client: QueueClient) -> list[dict[str, Any]]:
        return client.queues() if queue is None else [client.queue(queue)]

    found = server.ask(work)
    server.show(found, lambda: stats_lines(found))


@app.command()
@with_options(ServerOptions)
def peek(
    server: ServerOptions,
    queue: Queue,
    group: Annotated[
        str | None, typer.Option(help="Show messages that wait for this group; otherwise all.")
    ] = None,
    max_messages: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most messages to show.")
    ] = 10,
) -> None:
    """Show waiting messages without receiving them."""
    found = server.ask(lambda client: client.peek(queue, group=group, max_messages=max_messages))
    server.show(found, lambda: peek_lines(found))


@app.command()
@with_options(ServerOptions)
def purge(server: ServerOptions, queue: Queue, *, yes: Yes = False) -> None:
    """Remove all messages of a queue, for all groups."""
    confirm(f"Remove all messages of queue {queue}, for all groups?", yes=yes)
    removed = server.ask(lambda client: client.purge(queue))
    server.tell(f"{removed:,} messages removed", removed=removed)


@app.command()
@with_options(ServerOptions)
def redrive(
    server: ServerOptions,
    queue: Queue,
    target: Annotated[
        str | None,
        typer.Option(help="Queue for all of them; otherwise the one in which each died."),
    ] = None,
    max_messages: MaxMessages = None,
) -> None:
    """Move dead letters back to the queues they came from."""
    moved = server.ask(
        lambda client: client.redrive(queue, target=target, max_messages=max_messages)
    )
    server.tell(f"{moved:,} messages moved", moved=moved)


@app.command()
@with_options(ServerOptions)
def compact(server: ServerOptions) -> None:
    """Give unused space of the database back to the disk."""
    freed = server.ask(QueueClient.compact)
    server.tell(f"{freed:,} bytes given back", freed_bytes=freed)


@app.command()
@with_options(ServerOptions)
def backup(
    server: ServerOptions,
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="A new file, on the machine of the server.")
    ],
) -> None:
    """Write a consistent copy of the database while queues go on."""
    written = server.ask(lambda client: client.backup(path))
    server.tell(f"{written:,} bytes written to {path}", path=path, bytes=written)


@app.command()
def restore(
    path: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A copy of the database; none with engine: redis."),
    ] = None,
    *,
    config: Annotated[str, typer.Option("-c", "--config", help="Policy file with the queues.")],
) -> None:
    """Put a copy in the place of the database, while no server runs.

    With engine: redis, tell the queues that their server's data was restored. Readers of offsets
    are told in both cases that positions of before mean nothing.
    """
    read = read_config(config)
    if (read.engine == "sqlite") != (path is not None):
        wanted = "a copy of the database" if read.engine == "sqlite" else "no FILE"
        raise CommandError(f"FILE: read {path or 'none'}; allowed with {read.engine}: {wanted}")
    if path is not None:
        os.umask(os.umask(NO_OTHERS) | NO_OTHERS)
        n_queues = sqlite_copies.restore(path, read.path)
        typer.echo(f"{n_queues} queues restored to {read.path}")
    else:
        n_queues = asyncio.run(_renew(read, config))
        typer.echo(f"{n_queues} queues have another incarnation")


async def _renew(config: QueueConfig, policy_file: str) -> int:
    """Give all queues of a server other incarnations; return how many there are."""
    engine = QueuePlugin.alone(config, logging.getLogger("penstock.queue"), policy_file).engine
    renew: Callable[[], Awaitable[None]] | None = getattr(engine, "renew", None)
    if renew is None:
        raise CommandError(f"plugins.queue.engine: read {config.engine}; allowed: sqlite or redis")
    await engine.open()
    try:
        await renew()
        return len(engine.queues())
    finally:
        await engine.close()


@app.command()
@with_options(ServerOptions)
def seek(
    server: ServerOptions,
    queue: Queue,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="A group of the queue.")],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="earliest, latest, a time such as 2026-11-23T04:00:00Z, or seconds since 1970.",
        ),
    ],
    *,
    yes: Yes = False,
) -> None:
    """Move a group back to repeat messages, or forward to skip some."""
    start = _read_start(to)
    if start != "earliest":
        confirm(f"Move group {group} of {queue} to {to}? It misses what it skips.", yes=yes)
    position = server.ask(lambda client: client.seek(queue, group, start))
    offsets = ", ".join(f"{number}: {offset:,}" for number, offset in position.offsets.items())
    server.tell(f"group {group} is at offset {offsets}", position=position.offsets)


@app.command()
@with_options(ServerOptions)
def create(
    server: ServerOptions, queue: Queue, group: GroupName = None, settings: Settings = None
) -> None:
    """Create a queue, or a group of one, while the server runs."""
    given = _read_settings(settings)

    def work(client: QueueClient) -> None:
        with suppress(UnknownNameError):
            if group is None:
                client.queue(queue)
            else:
                client.group(queue, group)
            raise CommandError(
                f"{_named(queue, group)}: read one that exists; allowed: a new name, or "
                "`penstock queue change`"
            )
        _put(client, queue, group, given)

    server.ask(work)
    server.tell(f"{_named(queue, group)} created", queue=queue, group=group)


@app.command()
@with_options(ServerOptions)
def change(
    server: ServerOptions, queue: Queue, group: GroupName = None, settings: Settings = None
) -> None:
    """Change settings of a queue or a group; the others stay.

    One that stands in the policy file gets the file's settings again at the next start.
    """
    given = _read_settings(settings)
    if not given:
        raise CommandError("--set: read none; allowed: one or more KEY=VALUE")

    server.ask(
        lambda client: (
            client.change_queue(queue, given)
            if group is None
            else client.change_group(queue, group, given)
        )
    )
    server.tell(f"{_named(queue, group)} changed", queue=queue, group=group)


@app.command()
@with_options(ServerOptions)
def delete(
    server: ServerOptions, queue: Queue, group: GroupName = None, *, yes: Yes = False
) -> None:
    """Delete a queue with its messages, or a group of one."""
    what = " with all its messages and groups" if group is None else ""
    confirm(f"Delete {_named(queue, group)}{what}?", yes=yes)

    def work(client: QueueClient) -> None:
        if group is None:
            client.delete_queue(queue)
        else:
            client.delete_group(queue, group)

    server.ask(work)
    server.tell(f"{_named(queue, group)} deleted", queue=queue, group=group)


def _put(client: QueueClient, queue: str, group: str | None, settings: Mapping[str, Any]) -> None:
    if group is None:
        client.put_queue(queue, settings)
    else:
        client.put_group(queue, group, settings)


def _named(queue: str, group: str | None) -> str:
    return f"queue {queue}" if group is None else f"group {group} of queue {queue}"


def _read_settings(texts: list[str] | None) -> dict[str, Any]:
    """Return ``KEY=VALUE`` texts as settings, each value read as YAML.

    Raises:
        CommandError: one has another form.
    """
    settings: dict[str, Any] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError:
            equals, read = "", None
        if not (key and equals):
            raise CommandError(f"--set: read {text!r}; allowed: KEY=VALUE with a value in YAML")
        settings[key.strip()] = read
    return settings


def _read_start(text: str) -> str | float:
    """Return a place to seek to, times as seconds since the Unix epoch.

    Raises:
        CommandError: it is none.
    """
    if text in ("earliest", "latest"):
        return text
    try:
        return float(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"TO: read {text!r}; allowed: earliest, latest, a time such as 2026-11-23T04:00:00Z, "
            "or seconds since 1970"
        ) from None
    return time.timestamp()
