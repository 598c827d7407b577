"""A real redis-server as a process of a test."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from redis import Redis

from penstock.netem.runs.broker_process import START_SECONDS, RunningBroker, reserved_port


class RedisProcess:
    """A running server.

    Attributes:
        port: the TCP port that it listens on, on loopback.
        process: its process, which a test may kill.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process


@contextlib.contextmanager
def running_redis(
    folder: Path,
    *settings: str,
    port: int | None = None,
    is_tls: bool = False,
    wrapper: Sequence[str] = (),
) -> Iterator[RedisProcess]:
    """Start a server that writes nothing to the disk; end it afterwards.

    Args:
        folder: the folder of its files.
        settings: further lines of its file, which precede the others.
        port: a reserved port; None for a free one.
        is_tls: whether it accepts TLS alone.
        wrapper: a command that is to run the server in its own place.
    """
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(reserved_port()) if port is None else port
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "redis.conf"
        ports = ["port 0", f"tls-port {own}"] if is_tls else [f"port {own}"]
        lines = [*ports, "bind 127.0.0.1", f"dir {folder}", 'save ""', "appendonly no"]
        lines.append("repl-diskless-sync-delay 0")
        file.write_text("\n".join([*lines, *settings, ""]), encoding="utf-8")
        broker = RunningBroker("redis-server", [*wrapper, "redis-server", str(file)], folder)
        stack.callback(broker.stop)
        broker.wait_until_listening(own)
        yield RedisProcess(own, broker.process)


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    *settings: str,
    n: int = 3,
    is_even: bool = True,
    own: Sequence[Sequence[str]] = (),
) -> Iterator[list[RedisProcess]]:
    """Start servers that share all slots; yield them when each knows of all.

    Args:
        folder: the folder of their files.
        settings: further lines of each file.
        n: the number of servers.
        is_even: whether slots are spread evenly; False gives the first server all slots but one for
            each other server.
        own: further lines of each server's own file.
    """
    with contextlib.ExitStack() as stack:
        bus_ports = [stack.enter_context(reserved_port()) for _ in range(n)]
        nodes = [
            stack.enter_context(
                running_redis(
                    folder / f"node{at}",
                    "cluster-enabled yes",
                    f"cluster-port {bus_port}",
                    *settings,
                    *(own[at] if own else ()),
                )
            )
            for at, bus_port in enumerate(bus_ports)
        ]
        clients = [stack.enter_context(Redis(port=node.port)) for node in nodes]
        for at, client in enumerate(clients):
            first, last = 16_384 * at // n, 16_384 * (at + 1) // n - 1
            if not is_even:
                first, last = (0, 16_384 - n) if at == 0 else (16_384 - at, 16_384 - at)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node, bus_port in zip(nodes[1:], bus_ports[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus_port)
        give_up_at = time.monotonic() + START_SECONDS
        while not all(_knows_all(client, n) for client in clients):
            assert time.monotonic() < give_up_at, "the nodes do not meet"
            time.sleep(0.02)
        yield nodes


def _knows_all(client: Redis, n: int) -> bool:
    told = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and b"cluster_size:%d\r" % n in told


@cache
def shared_cluster() -> tuple[tuple[str, int], ...]:
    """Return the addresses of a cluster that tests of this process share."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-redis-"))
    nodes = stack.enter_context(running_cluster(Path(folder)))
    return tuple(("127.0.0.1", node.port) for node in nodes)


@cache
def shared_redis() -> int:
    """Return the port of a server that tests of this process share, each with keys of its own."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-redis-"))
    return stack.enter_context(running_redis(Path(folder))).port


@contextlib.contextmanager
def running_sentinel(
    folder: Path, *settings: str, port: int, is_tls: bool = False, wrapper: Sequence[str] = ()
) -> Iterator[None]:
    """Run a sentinel for a block.

    Args:
        folder: the folder of its files.
        settings: further lines of its file; the last one names the master, which is called `m`.
        port: a reserved port.
        is_tls: whether it accepts TLS alone.
        wrapper: a command that is to run it in its own place.
    """
    with contextlib.ExitStack() as stack:
        own = folder / f"sentinel{port}"
        own.mkdir(parents=True)
        lines = [
            *(("port 0", f"tls-port {port}") if is_tls else (f"port {port}",)),
            "bind 127.0.0.1",
            f"dir {own}",
            *settings,
            "sentinel down-after-milliseconds m 500",
            "sentinel failover-timeout m 3000",
        ]
        file = own / "sentinel.conf"
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")
        command = [*wrapper, "redis-server", str(file), "--sentinel"]
        broker = RunningBroker(f"sentinel {port}", command, own)
        stack.callback(broker.stop)
        broker.wait_until_listening(port)
        yield


@contextlib.contextmanager
def running_sentinels(
    folder: Path, master: int, *settings: str, n: int = 3, is_tls: bool = False
) -> Iterator[list[int]]:
    """Start sentinels of a master that is called `m`; yield their ports.

    Args:
        folder: the folder of their files.
        master: the port of the master.
        settings: further lines of each file.
        n: the number of sentinels, most of which must agree that the master is gone.
        is_tls: whether they accept TLS alone.
    """
    monitor = f"sentinel monitor m 127.0.0.1 {master} {n // 2 + 1}"
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(n)]
        for port in ports:
            stack.enter_context(
                running_sentinel(folder, *settings, monitor, port=port, is_tls=is_tls)
            )
        yield ports
