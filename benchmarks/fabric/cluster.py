"""A Redis cluster on machines: the fabric that `penstock fabric plan` writes, on two rings."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from redis import Redis
from redis.crc import key_slot

from benchmarks.errors import BenchmarkError
from benchmarks.fabric.machines import Machines
from penstock.netem.runs.broker_process import RunningBroker
from penstock.plugins.queue.cluster.creating import create
from penstock.plugins.queue.cluster.node_files import server_file
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, NodeConfig, Server
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.engines.redis.routes import N_SLOTS

NODE_TIMEOUT_SECONDS: Final = 2.0
"""`cluster-node-timeout`. A takeover begins up to half of it and a second later."""
PASSWORD: Final = "of-this-run-alone"  # noqa: S105 (of a network that ends with the run)
MEMORY_BYTES: Final = 256 * 1024 * 1024
FULL_RATIO: Final = 0.95
"""`maxmemory` as a share of what a server uses, so low that it is reached even after some messages
have left."""


class Node(NamedTuple):
    """A server of the cluster.

    Attributes:
        server: where it is, and whose copy it has.
        process: of the server.
    """

    server: Server
    process: RunningBroker


class Cluster:
    """The servers; they run for a block.

    Args:
        machines: all of them.
        names: machines of the servers, in the order of the circle, more than `n_replicas`.
        n_replicas: of each master, of which a machine has two.
        folder: of their files.
        view: machine from which they are asked.

    Attributes:
        names: as the argument.
        nodes: the servers.
        config: as of a file for `penstock fabric`.
    """

    def __init__(
        self, machines: Machines, names: Sequence[str], n_replicas: int, folder: Path, view: str
    ) -> None:
        password_file = folder / "password"
        password_file.write_text(PASSWORD)
        self.names = tuple(names)
        self.nodes: list[Node] = []
        self.config = FabricConfig(
            {name: NodeConfig(machines.address(name)) for name in names},
            maxmemory=MEMORY_BYTES,
            replicas=n_replicas,
            cluster_node_timeout=NODE_TIMEOUT_SECONDS,
            admin_password_file=str(password_file),
        )
        self._machines = machines
        self._folder = folder
        self._view = view
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start them; return when each master has its replicas.

        Raises:
            BenchmarkError: they do not find each other in time.
        """
        try:
            for server in self.config.servers():
                self._start(server)
            for node in self.nodes:
                node.process.wait_until_listening(node.server.address[1])
            self._machines.call(self._view, lambda: asyncio.run(self._create()))
        except BaseException as error:
            self._stack.close()
            if isinstance(error, FabricError):
                raise BenchmarkError(str(error)) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End them, frozen ones among them."""
        self._stack.close()

    def _start(self, server: Server) -> None:
        name = f"{server.node}-{server.address[1]}"
        folder = self._folder / name
        folder.mkdir()
        file = folder / "redis.conf"
        file.write_text(server_file(self.config, server, str(folder), "the benchmark"))
        command = self._machines.command(server.node, ["redis-server", str(file)])
        process = RunningBroker(f"redis {name}", command, folder)
        self._stack.callback(process.kill)
        self.nodes.append(Node(server, process))

    async def _create(self) -> None:
        servers = Servers(self.config.login())
        try:
            await create(servers, self.config.servers(), lambda _: None)
        finally:
            await servers.close()

    def machine_of(self, key: str) -> str:
        """Return the machine that has the master of a key at the beginning."""
        slot = int(key_slot(key.encode()))
        homes = [server for server in self.config.servers() if server.is_home]
        ends = [N_SLOTS * (at + 1) // len(homes) for at in range(len(homes))]
        return next(home.node for home, end in zip(homes, ends, strict=True) if slot < end)

    # -- faults ------------------------------------------------------------------------------------

    def on(self, machine: str) -> list[Node]:
        """Return the servers of a machine."""
        return [node for node in self.nodes if node.server.node == machine]

    def kill(self, machine: str) -> None:
        """Kill the servers of a machine."""
        for node in self.on(machine):
            node.process.kill()

    def freeze(self, machine: str) -> None:
        """Stop them, without a word to anybody."""
        for node in self.on(machine):
            node.process.process.send_signal(signal.SIGSTOP)

    def thaw(self, machine: str) -> None:
        """Let them go on."""
        for node in self.on(machine):
            node.process.process.send_signal(signal.SIGCONT)

    def fill(self, machine: str) -> None:
        """Leave the masters of a machine no memory."""
        self._set_memory(machine, lambda used: int(FULL_RATIO * used))

    def empty(self, machine: str) -> None:
        """Give it memory again."""
        self._set_memory(machine, lambda _used: MEMORY_BYTES)

    def _set_memory(self, machine: str, limit: Callable[[int], int]) -> None:
        def set_all() -> None:
            for node in self.on(machine):
                if node.server.is_home:
                    host, port = node.server.address
                    with Redis(host, port, password=PASSWORD, socket_timeout=5.0) as client:
                        used = client.info("memory")["used_memory"]
                        client.config_set("maxmemory", limit(used))

        self._machines.call(self._view, set_all)
