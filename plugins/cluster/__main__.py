"""``penstock cluster`` shows the nodes of a cluster, drains one, and forgets one that is gone.

It asks the engine that the policy file names; no broker has to run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.command_line import CommandLine, Yes, confirm, exit_status
from penstock.broker.config.policy import load_policy
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.plugins.cluster.config import ClusterConfig
from penstock.plugins.cluster.engine import ALIVE_SECONDS, ClusterEngine
from penstock.plugins.cluster.notes import DRAIN
from penstock.plugins.cluster.plugin import KEY
from penstock.plugins.cluster.policy_digests import differences
from penstock.plugins.redis.calls import plain
from penstock.plugins.redis.errors import StorageError
from penstock.plugins.redis.server import redis_server
from penstock.plugins.web.terminal_escape import printable
from penstock.plugins.web.text_table import UNKNOWN, Column, count, lines, size

T = TypeVar("T")

app = CommandLine()

ConfigFile: TypeAlias = Annotated[
    str, typer.Option("-c", "--config", metavar="FILE", help="Policy file of one of the nodes.")
]


def _time(seconds: float | None) -> str:
    when = time.localtime(seconds)
    return UNKNOWN if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", when)


_COLUMNS: Final = (
    *(Column("node", "node"), Column("state", "state"), Column("version", "version")),
    *(Column("since", "since", _time), Column("host", "host"), Column("clients", "clients", count)),
    *(Column("filters", "filters", count), Column("inbox", "inbox_bytes", size)),
    Column("console", "console"),
)


_LOOK_SECONDS: Final = 0.1


class ClusterError(PenstockError):
    """A node that cannot be drained or forgotten; status 2."""


@app.command()
def status(
    *,
    config: ConfigFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the nodes: which of them live, and what each has."""
    rows = _asked(config, _status)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for line in _table(rows):
        typer.echo(line)


@app.command()
def drain(
    node: Annotated[
        str, typer.Argument(help="Name of the node; of a machine, for all workers there.")
    ],
    *,
    config: ConfigFile,
    seconds: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Until all its clients are gone, at most.")
    ] = 30,
    yes: Yes = False,
) -> None:
    """Have all clients of a node go elsewhere, and the node stop; wait until it has left.

    It takes no new clients meanwhile. There is no way back.
    """
    confirm(f"Send all clients of node {node} elsewhere, and stop it?", yes=yes)
    typer.echo(_asked(config, partial(_drain, node, seconds)))


@app.command()
def forget(
    node: Annotated[str, typer.Argument(help="Name of the node.")],
    *,
    config: ConfigFile,
    yes: Yes = False,
) -> None:
    """End the membership of a node that is gone for good, with all that waits for it.

    A node that dies is evicted by the others: this is for one that no other has been there to see.
    """
    confirm(f"Drop what waits for node {node}?", yes=yes)
    typer.echo(_asked(config, partial(_forget, node)))


def _asked(config: str, ask: Callable[[ClusterEngine], Awaitable[T]]) -> T:
    """Return what is answered by the engine of a policy file.

    Raises:
        ConfigError: the file cannot be used, or has no cluster.
        EngineStartError: the engine cannot be used.
    """
    policy = load_policy(config)
    if KEY not in policy.sections:
        problem = ConfigProblem(KEY, "nothing", "the cluster to show")
        raise ConfigError(policy.file, [problem])
    keys = validate_config(ClusterConfig, policy.plugins[KEY], policy.file, KEY)

    async def answer() -> T:
        logger = logging.getLogger("penstock.cluster.command")
        logger.setLevel(logging.CRITICAL)  # what is wrong is raised
        engine = ClusterEngine(redis_server(keys.redis), keys.name, "", logger)
        try:
            await engine.open()
            return await ask(engine)
        finally:
            await engine.close()

    return asyncio.run(answer())


async def _status(engine: ClusterEngine) -> list[dict[str, Any]]:
    rows = []
    all_figures = await engine.figures()
    for node, (epoch, info) in sorted((await engine.members()).items()):
        told: dict[str, Any] = json.loads(info) if info else {}
        told |= json.loads(all_figures.get(node, "{}"))
        told.pop("sys", None)
        state = "drains" if told.get("is_draining") else "lives" if info else "joins"
        if not await engine.is_alive(node):
            state = "silent"
        n_routes, n_bytes = await engine.sizes_of(node, epoch)
        try:
            await plain(engine.put(node, epoch, b""))
            await engine.look()
        except StorageError as error:
            told["failure"] = str(error)
        told |= {"node": node, "state": state, "epoch": epoch}
        rows.append(told | {"filters": n_routes, "inbox_bytes": n_bytes})
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    unknown: dict[str, Any] = dict.fromkeys(column.key for column in _COLUMNS)
    yield from lines(_COLUMNS, [unknown | row for row in rows])
    for row in rows:
        if row.get("failure"):
            yield printable(
                f"What is of node {row['node']}, or for it, is not stored: {row['failure']}"
            )
    policies = [row["policy"] for row in rows if "policy" in row]
    if any(differences(policies[0], policy) for policy in policies):
        yield "The policy files of the nodes differ; their logs say in what."
    files = [row["files"] for row in rows if "files" in row]
    if any(differences(files[0], file) for file in files):
        yield "Nodes differ in the files of users and topics; their logs say in which."


async def _drain(node: str, seconds: int, engine: ClusterEngine) -> str:
    members = await engine.members()
    alive = [name for name in sorted(members) if await engine.is_alive(name)]
    meant = [name for name in alive if node in (name, _machine(members[name][1]))]
    if not meant:
        names = ", ".join(alive) or "none"
        raise ClusterError(f"node: read {node!r}; allowed: one that lives: {names}")
    note = json.dumps([DRAIN, seconds]).encode()
    told: dict[str, int] = {}
    loop = asyncio.get_running_loop()
    seen_at = loop.time()
    while left := [name for name in meant if name in members]:
        for name in left:
            epoch, _ = members[name]
            # It may have died meanwhile, and have been started again.
            if told.get(name) != epoch and await plain(engine.tell(name, epoch, note)):
                told[name] = epoch
        if any([await engine.is_alive(name) for name in members]):
            seen_at = loop.time()
        elif loop.time() - seen_at > ALIVE_SECONDS:
            raise ClusterError(
                f"node {printable(left[0])}: it has died before it had left, and no node is there "
                "to evict it; penstock cluster forget does so"
            )
        await asyncio.sleep(_LOOK_SECONDS)
        members = await engine.members()
    return f"{printable(node)} has left the cluster"


def _machine(info: str) -> object:
    """Return what the workers of a machine have in common, of what a node tells of itself."""
    return json.loads(info).get("machine") if info else None


async def _forget(node: str, engine: ClusterEngine) -> str:
    members = await engine.members()
    if node in members and await engine.is_alive(node):
        raise ClusterError(
            f"node {printable(node)}: it lives; allowed: one that is silent. A node that is "
            "stopped leaves by itself"
        )
    ended = {(ended, epoch) for ended, epoch, by in await engine.all_duties() if by == node}
    if node in members:
        epoch, _ = members[node]
        if await engine.evict(node, epoch):
            ended.add((node, epoch))
    if not ended:
        names = ", ".join(sorted(members)) or "none"
        raise ClusterError(f"node: read {node!r}; allowed: a member: {names}")
    for one, epoch in ended:
        await engine.sweep_owners(one, epoch)
        await engine.drop(one, epoch)
        await engine.done(one, epoch)
    return f"{printable(node)} is forgotten"


main = partial(exit_status, app, "penstock cluster")

if __name__ == "__main__":
    sys.exit(main())
