"""``penstock fabric``: a Redis cluster on counter-rotating rings, for the queue."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.process.program import exit_status, run_until_stopped
from penstock.plugins.queue.client import QueueError
from penstock.plugins.queue.cluster.changing import Change
from penstock.plugins.queue.cluster.creating import create as create_cluster
from penstock.plugins.queue.cluster.node_files import POLICY, SCRIPT, all_files, write_files
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, read_nodes_file
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.cluster.status import read_parts, status_lines
from penstock.plugins.queue.cluster.trial import Trial, trial_config
from penstock.plugins.queue.cluster.view import View, faults_of, look
from penstock.plugins.queue.commands import Place, at_a_place, url_of
from penstock.plugins.queue.standalone_server import read_config

T = TypeVar("T")

PROGRAM = "penstock fabric"

app = CommandLine()

NodesFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="NODES.yaml", help="The machines in the order of the circle.")
]


@app.callback()
def fabric() -> None:
    """Plan, make, watch and change a Redis cluster on rings, which keeps the queue's messages."""


def with_servers(config: FabricConfig, work: Callable[[Servers], Awaitable[T]]) -> T:
    """Run `work` with connections to servers; a server that refuses ends the command."""

    async def run() -> T:
        servers = Servers(config.login())
        try:
            return await work(servers)
        finally:
            await servers.close()

    try:
        return asyncio.run(run())
    except FabricError as error:
        typer.echo(f"{PROGRAM}: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def plan(
    nodes: NodesFile,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Write the files there, a folder a machine.")
    ],
) -> None:
    """Write the files of each machine: servers, units of systemd, and the policy's part."""
    config = read_nodes_file(nodes)
    write_files(all_files(config, nodes), out)
    n_servers = len(config.servers())
    typer.echo(
        f"{n_servers} servers on {len(config.nodes)} machines, in {out}.\n"
        f"1. Copy each folder to its machine and run {SCRIPT} there as root.\n"
        f"2. Make the cluster, from a machine that reaches all: penstock fabric create {nodes}\n"
        f"3. Take {out / POLICY} into the policy files of brokers and gateways."
    )


@app.command()
def create(nodes: NodesFile) -> None:
    """Make the cluster of servers that run and are empty: masters, slots, replicas by the rings."""
    config = read_nodes_file(nodes)
    with_servers(config, lambda servers: create_cluster(servers, config.servers(), typer.echo))


@app.command()
@at_a_place
def status(place: Place, nodes: NodesFile) -> None:
    """Show the rings: masters, replicas and how far they are behind, and what is not in its place.

    With -c, also the physical queues of each master; with -c or --url, those that the gateway there
    leaves out as slow. The status is 1 where something is not as the rings want it.
    """
    config = read_nodes_file(nodes)
    policy = None if place.config is None else read_config(place.config)
    if policy is not None and not policy.redis.cluster:
        problem = ConfigProblem("plugins.queue.redis.cluster", "nothing", "nodes of the fabric")
        raise ConfigError(str(place.config), [problem])

    async def work(servers: Servers) -> tuple[View, dict[str, dict[int, int]]]:
        parts = {} if policy is None else await read_parts(policy.redis)
        return await look(servers, config), parts

    view, parts = with_servers(config, work)
    url = place.url or (policy and url_of(policy))
    excluded: dict[str, list[int]] = {}
    if url:
        try:
            queues = place.client(url).queues()
        except QueueError as error:
            typer.echo(f"{PROGRAM}: {url}: {error}", err=True)
        else:
            excluded = {one["name"]: one["enqueued"]["excluded"] for one in queues}
    typer.echo("\n".join(status_lines(view, config, parts, excluded)))
    if faults_of(view, config):
        raise typer.Exit(1)


Node: TypeAlias = Annotated[str, typer.Argument(metavar="NODE", help="A machine of the file.")]


def _check_node(config: FabricConfig, nodes: str, node: str) -> None:
    if node not in config.nodes:
        allowed = f"one of {', '.join(config.nodes)}"
        raise ConfigError(nodes, [ConfigProblem("nodes", f"none called {node}", allowed)])


@app.command()
def add(nodes: NodesFile, node: Node) -> None:
    """Bring a machine into its place on the rings while traffic goes on.

    It is new, stands in the file where it is to be, and its servers run; or it was away, and gets
    its masters back.
    """
    config = read_nodes_file(nodes)
    _check_node(config, nodes, node)
    with_servers(
        config, lambda servers: Change(servers, config, config.rings, typer.echo).add(node)
    )


@app.command()
def drain(nodes: NodesFile, node: Node) -> None:
    """Take masters, slots and replicas off a machine while traffic goes on; it may be dead.

    Then its servers are in no cluster any more, and it can be taken out of the file.
    """
    config = read_nodes_file(nodes)
    _check_node(config, nodes, node)
    try:
        rings = config.rings.without_node(node)
    except ValueError as error:
        allowed = f"{config.replicas + 2} or more, one of which is drained"
        problem = ConfigProblem("nodes", f"{len(config.nodes)}", allowed)
        raise ConfigError(nodes, [problem]) from error
    with_servers(config, lambda servers: Change(servers, config, rings, typer.echo).drain(node))


@app.command()
def up(
    nodes: Annotated[
        str | None,
        typer.Argument(metavar="[NODES.yaml]", help="All its machines are played by this one."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="For the files and the data of the servers.")
    ] = Path("penstock-fabric"),
    machines: Annotated[
        int, typer.Option(min=2, max=100, help="How many, where no file is given.")
    ] = 5,
    replicas: Annotated[
        int, typer.Option(min=1, help="Of each master, where no file is given.")
    ] = 2,
    port: Annotated[
        int, typer.Option(min=1, help="Of the first server, where no file is given.")
    ] = 7000,
) -> None:
    """Start a fabric on this machine, for trials, until Ctrl-C: real servers and their cluster.

    What an earlier trial has left in the folder is used on.
    """
    config = trial_config(machines, replicas, port) if nodes is None else read_nodes_file(nodes)
    tell = partial(typer.echo, err=True)
    run_until_stopped(Trial(config, nodes or f"{PROGRAM} up", folder, tell))


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: arguments after the program's name; None for those of the process.

    Returns:
        Exit status: 0; 1 where the cluster is not as it should be; 2 where the arguments, the file
        or the servers cannot be used.
    """
    return exit_status(app, PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(main())
