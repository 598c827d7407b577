"""A Redis cluster of machines on two rings, as docs/how-to/fabric.md makes it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from redis import Redis
from redis.crc import key_slot

from benchmarks.errors import BenchmarkError
from benchmarks.fabric.machines import Machines
from penstock.netem.runs.broker_process import RunningBroker

NODE_TIMEOUT_SECONDS: Final = 2.0
"""The servers' `cluster-node-timeout`. A takeover begins up to half of it and a second later."""
PREFIX: Final = "penstock"
"""The prefix of the queue's keys, which is the default of a policy file."""
PASSWORD: Final = "of-this-run-alone"  # noqa: S105 (of a network that ends with the run)
PORT: Final = 6379
"""The port of the first server of each machine."""
N_RINGS: Final = 2
MEMORY_BYTES: Final = 256 * 1024 * 1024
FULL_RATIO: Final = 0.95
"""The ratio of a full server's `maxmemory` to its used memory: it stays full when some messages
have left."""
RINGS_SCRIPT: Final = Path(__file__).parents[2] / "docs" / "how-to" / "rings.sh"
RINGS_SECONDS: Final = 120.0

_SETTINGS: Final = f"""\
requirepass {PASSWORD}
masterauth {PASSWORD}
cluster-enabled yes
cluster-node-timeout {round(1000 * NODE_TIMEOUT_SECONDS)}
cluster-require-full-coverage no
cluster-allow-replica-migration no
appendonly yes
save ""
maxmemory {MEMORY_BYTES}
maxmemory-policy noeviction
repl-backlog-size 16mb
repl-diskless-sync-delay 0
"""


class Node(NamedTuple):
    """A server of the cluster."""

    machine: str
    port: int
    process: RunningBroker


class Cluster:
    """A cluster, whose servers run within its ``with`` block."""

    def __init__(
        self, machines: Machines, names: Sequence[str], n_replicas: int, folder: Path, view: str
    ) -> None:
        self.names = tuple(names)
        self.nodes: list[Node] = []
        self._n_replicas = n_replicas
        self._machines = machines
        self._folder = folder
        self._view = view
        self._stack = ExitStack()

    @property
    def n_masters(self) -> int:
        """The number of masters."""
        return N_RINGS * len(self.names)

    def policy_keys(self) -> dict[str, object]:
        """Return the keys under `plugins.queue.redis` of a policy file that uses this cluster."""
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD)
        return {
            "cluster": [f"{self._machines.address(name)}:{PORT}" for name in self.names],
            "min_replicas": 1,
            "password_file": str(password_file),
        }

    def __enter__(self) -> Self:
        """Start the servers; return when each master has its replicas.

        Raises:
            BenchmarkError: the cluster cannot be made.
        """
        try:
            for name in self.names:
                for port in range(PORT, PORT + N_RINGS * (1 + self._n_replicas)):
                    self._start(name, port)
            for node in self.nodes:
                node.process.wait_until_listening(node.port)
            self._put_on_rings()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the servers, frozen ones among them."""
        self._stack.close()

    def _start(self, machine: str, port: int) -> None:
        name = f"{machine}-{port}"
        folder = self._folder / name
        folder.mkdir()
        address = self._machines.address(machine)
        file = folder / "redis.conf"
        file.write_text(f"{_SETTINGS}port {port}\nbind {address}\ndir {folder}\n")
        command = self._machines.command(machine, ["redis-server", str(file)])
        process = RunningBroker(f"redis {name}", command, folder)
        self._stack.callback(process.kill)
        self.nodes.append(Node(machine, port, process))

    def _put_on_rings(self) -> None:
        addresses = [self._machines.address(name) for name in self.names]
        settings = [f"REDISCLI_AUTH={PASSWORD}", f"REPLICAS={self._n_replicas}"]
        script = ["env", *settings, "bash", str(RINGS_SCRIPT), *addresses]
        try:
            done = subprocess.run(
                self._machines.command(self._view, script),
                capture_output=True,
                text=True,
                timeout=RINGS_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{RINGS_SCRIPT.name} takes {RINGS_SECONDS:g} s") from error
        if done.returncode:
            raise BenchmarkError(f"{RINGS_SCRIPT.name}: {done.stdout}{done.stderr}")

    def machine_of(self, key: str) -> str:
        """Return the machine that has the master of a key, before anything fails."""
        slot = int(key_slot(key.encode()))
        with Redis(self._machines.address(self.names[0]), PORT, password=PASSWORD) as client:
            ranges = self._machines.call(
                self._view, lambda: client.execute_command("CLUSTER", "SLOTS")
            )
        host = next(one[2][0] for one in ranges if one[0] <= slot <= one[1])
        return next(name for name in self.names if self._machines.address(name) == host.decode())

    # -- faults ------------------------------------------------------------------------------------

    def on(self, machine: str) -> list[Node]:
        """Return the servers of a machine."""
        return [node for node in self.nodes if node.machine == machine]

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
                if node.port < PORT + N_RINGS:
                    host = self._machines.address(machine)
                    with Redis(host, node.port, password=PASSWORD, socket_timeout=5.0) as client:
                        used = client.info("memory")["used_memory"]
                        client.config_set("maxmemory", limit(used))

        self._machines.call(self._view, set_all)
