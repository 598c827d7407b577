"""A fabric on one machine, for trials: its servers as children of this program."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.broker.config.checked_yaml import validate_config
from penstock.plugins.queue.cluster.creating import create, until_agreed
from penstock.plugins.queue.cluster.node_files import POLICY, policy_part, server_file, write_files
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, Server
from penstock.plugins.queue.cluster.servers import FabricError, Servers, until
from penstock.plugins.queue.engines.redis.login import named

STOP_SECONDS: Final = 20.0
"""For the servers to write what they have and to end."""
_LOOK_SECONDS: Final = 0.5
_TAIL_BYTES: Final = 2_000


def trial_config(n_machines: int, replicas: int, port: int) -> FabricConfig:
    """Return the file of a fabric on 127.0.0.1.

    Args:
        n_machines: that it plays; called a, b, c and so on.
        replicas: of each master.
        port: of the first server; each next one has the next port.

    Raises:
        ConfigError: there is no such fabric.
    """
    n_servers = 2 * (replicas + 1)
    nodes = {
        _letter(at): {"address": "127.0.0.1", "port": port + at * n_servers}
        for at in range(n_machines)
    }
    keys = {
        "nodes": nodes,
        "maxmemory": 256 * 1024 * 1024,
        "replicas": replicas,
        "min_replicas": min(1, replicas),
        "cluster_node_timeout": 2.0,
    }
    return validate_config(FabricConfig, keys, "penstock fabric up", "")


def _letter(at: int) -> str:
    return chr(ord("a") + at % 26) + (str(at // 26) if at >= 26 else "")


class Trial:
    """The servers of all machines of a fabric.

    Args:
        config: of the fabric.
        file: its name, for errors.
        folder: for the files and the data of the servers. What a trial has left there is used on.
        tell: gets a line for each step.
    """

    def __init__(
        self, config: FabricConfig, file: str, folder: Path, tell: Callable[[str], None]
    ) -> None:
        self._config = config
        self._file = file
        self._folder = folder.resolve()
        self._tell = tell
        self._children: dict[Server, subprocess.Popen[bytes]] = {}
        self._watching: asyncio.Task[None] | None = None

    def place(self, server: Server) -> Path:
        """Return the folder of a server."""
        return self._folder / server.node / str(server.address[1])

    async def start(self) -> None:
        """Start all servers and make the cluster, where it is not made yet.

        Raises:
            FabricError: a server does not start, or is not what the file says.
            ConfigError: the folder cannot be used.
        """
        servers = Servers(self._config.login())
        try:
            await self._start(servers)
        except BaseException:
            await self.stop()
            raise
        finally:
            await servers.close()
        self._watching = asyncio.create_task(self._watch(), name="penstock-fabric children")

    async def _start(self, servers: Servers) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise FabricError("redis-server: not found; allowed: a redis-server on PATH")
        fabric = self._config.servers()
        write_files(self._files(fabric), self._folder)
        for server in fabric:
            self._launch(program, server)
        for server in fabric:
            await self._until_ready(servers, server)
        addresses = [server.address for server in fabric]
        infos = [await servers.cluster_info(address) for address in addresses]
        if all(info.get("cluster_known_nodes") == "1" for info in infos):
            await create(servers, fabric, self._tell)
        else:
            await until_agreed(servers, addresses)
            self._tell(f"the cluster of before in {self._folder} goes on")
        self._tell(
            f"{len(fabric)} servers of {len(self._config.nodes)} machines; "
            f"policy: {self._folder / POLICY}"
        )

    def _files(self, fabric: Sequence[Server]) -> dict[Path, str]:
        files = {Path(POLICY): policy_part(self._config)}
        for server in fabric:
            place = self.place(server)
            own = place.relative_to(self._folder) / "redis.conf"
            files[own] = server_file(self._config, server, str(place), self._file)
        return files

    def _launch(self, program: str, server: Server) -> None:
        place = self.place(server)
        with (place / "redis.log").open("ab") as log:
            # Ctrl-C is this program's, which ends the servers when they have answered.
            self._children[server] = subprocess.Popen(  # noqa: S603 (its arguments are ours)
                [program, "redis.conf"],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _until_ready(self, servers: Servers, server: Server) -> None:
        child = self._children[server]

        async def answers() -> bool:
            if child.poll() is None:
                return bool(await servers.ask(server.address, "PING"))
            return True

        await until(answers, f"server {server} answers")
        if child.poll() is not None:
            log = (self.place(server) / "redis.log").read_bytes()[-_TAIL_BYTES:].decode()
            raise FabricError(f"server {server} has ended with status {child.returncode}:\n{log}")
        info = await servers.info(server.address, "server")
        if info.get("process_id") != str(child.pid):
            raise FabricError(
                f"server {named(server.address)}: read one of another program; allowed: a free port"
            )

    async def _watch(self) -> None:
        """Tell of servers that end; a trial may be about that."""
        told: set[Server] = set()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for server, child in self._children.items():
                if server not in told and child.poll() is not None:
                    told.add(server)
                    self._tell(f"server {server} has ended with status {child.returncode}")

    async def stop(self) -> None:
        """End all servers."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.send_signal(signal.SIGCONT)  # a trial may have frozen it
        waits = (asyncio.to_thread(_end, child) for child in self._children.values())
        await asyncio.gather(*waits)
        self._children.clear()


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
