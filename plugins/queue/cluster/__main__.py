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
from penstock.broker.process.program import exit_status, run_until_stopped
from penstock.plugins.queue.cluster.creating import create as create_cluster
from penstock.plugins.queue.cluster.node_files import POLICY, SCRIPT, all_files, write_files
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, read_nodes_file
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.cluster.trial import Trial, trial_config

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
    return exit_status(app, argv, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
