"""A Redis cluster on machines: a master on each, with replicas on the next two of the ring."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from benchmarks.errors import BenchmarkError
from benchmarks.fabric.machines import Machines
from penstock.netem.runs.broker_process import RunningBroker

MASTER_PORT: Final = 6379
N_REPLICAS: Final = 2
NODE_TIMEOUT_SECONDS: Final = 2.0
"""`cluster-node-timeout`; a takeover begins up to half of it and a second later."""
N_SLOTS: Final = 16_384
READY_SECONDS: Final = 60.0
LEAST_MEMORY_BYTES: Final = 1
"""A `maxmemory` that is reached at once."""


class Node(NamedTuple):
    """A server of the cluster.

    Attributes:
        machine: where it runs.
        port: where it listens.
        of: machine whose master it is, or whose master's replica.
        process: of the server.
    """

    machine: str
    port: int
    of: str
    process: RunningBroker


class Cluster:
    """The servers; they run for a block.

    Args:
        machines: all of them.
        names: machines of the servers, in the order of the ring; three at least.
        folder: of their files.
        view: machine from which they are asked.
    """

    def __init__(self, machines: Machines, names: Sequence[str], folder: Path, view: str) -> None:
        self.names = tuple(names)
        self.nodes: list[Node] = []
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
            for at, name in enumerate(self.names):
                for back in range(N_REPLICAS + 1):
                    self._start(name, MASTER_PORT + back, self.names[at - back])
            for node in self.nodes:
                node.process.wait_until_listening(node.port)
            self._machines.call(self._view, self._join)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End them, frozen ones among them."""
        self._stack.close()

    def _start(self, machine: str, port: int, of: str) -> None:
        folder = self._folder / f"{machine}-{port}"
        folder.mkdir()
        lines = [
            f"port {port}",
            "protected-mode no",
            f"dir {folder}",
            'save ""',
            "appendonly yes",
            "maxmemory-policy noeviction",
            "repl-diskless-sync-delay 0",
            "cluster-enabled yes",
            "cluster-require-full-coverage no",
            "cluster-allow-replica-migration no",
            f"cluster-node-timeout {int(1000 * NODE_TIMEOUT_SECONDS)}",
        ]
        file = folder / "redis.conf"
        file.write_text("\n".join([*lines, ""]))
        command = self._machines.command(machine, ["redis-server", str(file)])
        process = RunningBroker(f"redis {machine}:{port}", command, folder)
        self._stack.callback(process.kill)
        self.nodes.append(Node(machine, port, of, process))

    def _client(self, node: Node) -> Redis:
        return Redis(self._machines.address(node.machine), node.port, socket_timeout=5.0)

    def _ask(self, node: Node, *words: Any) -> Any:
        with self._client(node) as client:
            return client.execute_command(*words)

    def _join(self) -> None:
        masters = {node.of: node for node in self.nodes if node.port == MASTER_PORT}
        n = len(masters)
        for at, master in enumerate(masters.values()):
            first, last = N_SLOTS * at // n, N_SLOTS * (at + 1) // n - 1
            self._ask(master, "CLUSTER", "ADDSLOTSRANGE", first, last)
            self._ask(master, "CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in self.nodes[1:]:
            address = self._machines.address(node.machine)
            self._ask(self.nodes[0], "CLUSTER", "MEET", address, node.port)
        told = f"cluster_known_nodes:{len(self.nodes)}\r".encode()
        for node in self.nodes:
            self._until(node, told, "CLUSTER", "INFO")
        for node in self.nodes:
            if node.port != MASTER_PORT:
                identifier = self._ask(masters[node.of], "CLUSTER", "MYID")
                self._until(node, b"OK", "CLUSTER", "REPLICATE", identifier)
        replicas = b"'connected_slaves': %d," % N_REPLICAS
        for master in masters.values():
            self._until(master, replicas, "INFO", "replication")
        for node in self.nodes:
            self._until(node, b"cluster_state:ok", "CLUSTER", "INFO")

    def _until(self, node: Node, wanted: bytes, *words: Any) -> None:
        """Ask until an answer has something."""
        give_up_at = time.monotonic() + READY_SECONDS
        answer: Any = None
        while time.monotonic() < give_up_at:
            with suppress(RedisError):
                answer = self._ask(node, *words)
                text = answer if isinstance(answer, bytes) else str(answer).encode()
                if wanted in text:
                    return
            time.sleep(0.02)
        raise BenchmarkError(f"redis {node.machine}:{node.port}: {words}: read {answer!r}")

    def addresses(self) -> list[str]:
        """Return ``HOST:PORT`` of the masters, at the beginning."""
        return [f"{self._machines.address(name)}:{MASTER_PORT}" for name in self.names]

    def machine_of(self, key: str) -> str:
        """Return the machine that has the master of a key at the beginning."""
        slot, n = int(key_slot(key.encode())), len(self.names)
        return next(name for at, name in enumerate(self.names) if slot < N_SLOTS * (at + 1) // n)

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
        """Leave the master of a machine no memory."""
        self._set_memory(machine, LEAST_MEMORY_BYTES)

    def empty(self, machine: str) -> None:
        """Give it memory again."""
        self._set_memory(machine, 0)

    def _set_memory(self, machine: str, n_bytes: int) -> None:
        master = next(node for node in self.on(machine) if node.port == MASTER_PORT)
        words = ("CONFIG", "SET", "maxmemory", n_bytes)
        self._machines.call(self._view, lambda: self._ask(master, *words))
