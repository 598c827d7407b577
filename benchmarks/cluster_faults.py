"""What clients of a cluster see of upgrades, of a node's death, and of an engine that is away.

Three brokers are on one Redis server; clients go to the next broker when they lose theirs. Each
measurement returns a row of the table, which `benchmarks.cluster` prints.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.errors import BenchmarkError
from benchmarks.loads.fleet import Member, Sender, enter, fleet, until_back, until_in
from benchmarks.loads.paced import quantile
from benchmarks.loads.redis_server import RedisServer
from benchmarks.peers import PEERS, BrokerSetting, Peer, allow_open_files, running
from penstock.netem.runs.broker_process import RunningBroker, reserved_port

AWAY_SECONDS: Final = 3.0
SESSION_SECONDS: Final = 5.0
IN_SECONDS: Final = 30.0
CORES: Final = 1.0
WARM_UP_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is done.

    Attributes:
        upgraded: clients of the upgrade.
        reconnecting: clients that reconnect at once.
        kills: of nodes.
        homeless: clients of each of them.
        drain_seconds: in which a node's clients leave.
        engine_seconds: for which the engine is away.
        per_second: messages of each stream.
    """

    upgraded: int = 5_000
    reconnecting: int = 10_000
    kills: int = 10
    homeless: int = 200
    drain_seconds: int = 15
    engine_seconds: float = 30.0
    per_second: float = 200.0


QUICK: Final = Extent(
    upgraded=30,
    reconnecting=60,
    kills=1,
    homeless=10,
    drain_seconds=1,
    engine_seconds=1.0,
    per_second=50.0,
)

Row = list[str]
MakeNode = Callable[[str, str], Peer]
"""Returns a broker of a cluster, by its name and the address of the server."""


class Nodes:
    """Brokers of one cluster that end and are started again.

    Args:
        make: returns each.
        stack: ends them.
        folder: of their files.
        n: how many.
        fsync: when the engine's file is safe, as Redis has it.

    Attributes:
        redis: their engine, which writes its changes to a file.
        ports: of the brokers.
    """

    def __init__(self, make: MakeNode, stack: ExitStack, folder: Path, n: int, fsync: str) -> None:
        allow_open_files()
        ports = [stack.enter_context(reserved_port()) for _ in range(n + 1)]
        settings = ("--appendonly", "yes", "--appendfsync", fsync)
        self.redis = RedisServer(folder / "redis", ports.pop(), *settings)
        stack.callback(self.redis.kill)
        self.redis.start()
        self.ports = ports
        self._make = make
        self._folder = folder
        self._running: dict[int, RunningBroker] = {}
        for at in range(n):
            self.start(at)
            stack.callback(self.kill, at)

    def _directory(self, at: int) -> Path:
        return self._folder / f"node{at}"

    def start(self, at: int) -> None:
        """Start a broker, or start it again; return when it serves."""
        directory = self._directory(at)
        directory.mkdir(exist_ok=True)
        peer = self._make(f"node{at}", self.redis.address)
        command = peer.prepare(directory, BrokerSetting(self.ports[at]))
        self._running[at] = RunningBroker(f"node{at}", command, directory)
        self._running[at].wait_until_listening(self.ports[at])

    def kill(self, at: int) -> None:
        """Kill a broker."""
        self._running[at].kill()

    def processor_seconds(self) -> tuple[float, float]:
        """Return the processor time of all brokers, and that of the engine."""
        pids = [self.redis.pid, *(each.process.pid for each in self._running.values())]
        engine, *brokers = (sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
        return sum(brokers), engine

    async def drain(self, at: int, seconds: int) -> None:
        """Have the clients of a broker leave, as an operator does, and it stop.

        Raises:
            BenchmarkError: it did not.
        """
        file = str(self._directory(at) / "broker.yaml")
        words = ["cluster", "drain", f"node{at}", "-c", file, "--seconds", str(seconds), "-y"]
        command = [sys.executable, "-m", "penstock", *words]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"node{at} was not drained: {done.stderr}")
        await asyncio.to_thread(self._running[at].process.wait)


@contextmanager
def running_nodes(make: MakeNode, n: int, fsync: str = "everysec") -> Iterator[Nodes]:
    """Run a cluster for a block."""
    with ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        yield Nodes(make, stack, Path(stack.enter_context(place)), n, fsync)


@asynccontextmanager
async def sending(sender: Sender) -> AsyncIterator[None]:
    """Publish during a block; return once all that was acknowledged has come, or is lost."""
    running = asyncio.create_task(sender.run())
    yield
    sender.end()
    await running
    await sender.until_all_came()


def _verdict(target: str, *, is_met: bool) -> str:
    return f"{target}: {'met' if is_met else 'missed'}"


def _close(members: Sequence[Member]) -> None:
    for member in members:
        member.close()


async def upgrade(make: MakeNode, extent: Extent) -> Row:
    """Drain each of three nodes in turn, and start it again."""
    with running_nodes(make, 3) as nodes:
        members = fleet(nodes.ports, extent.upgraded)
        await enter(members)
        sender = Sender("sender", nodes.ports, members, extent.per_second)
        async with sending(sender):
            await asyncio.sleep(WARM_UP_SECONDS)
            for at in range(3):
                await nodes.drain(at, extent.drain_seconds)
                await asyncio.to_thread(nodes.start, at)
                await until_in(members)
        away = sorted(itertools.chain.from_iterable(one.away for one in members))
        lost, most = sender.lost(), away[-1]
        found = (
            f"{len(away):,} times a client was away, median {quantile(away, 0.5):.2f} s, at most "
            f"{most:.2f} s; of {len(sender.acknowledged):,} messages {lost} lost"
        )
        _close(members)
    is_met = most <= AWAY_SECONDS and not lost
    return [
        f"rolling upgrade of three nodes with {extent.upgraded:,} clients",
        found,
        _verdict("none away for over 3 s, 0 lost", is_met=is_met),
    ]


async def _reconnect(ports: Sequence[int], n: int) -> Callable[[], Coroutine[None, None, float]]:
    """Connect clients; return what has them reconnect, and returns how many seconds that took."""
    members = fleet(ports, n)
    await enter(members)

    async def again() -> float:
        began_at = time.monotonic()
        for member in members:
            member.cut()
        n_new = await until_back(members)
        seconds = time.monotonic() - began_at
        _close(members)
        if n_new:
            raise BenchmarkError(f"{n_new} clients have lost their sessions")
        return seconds

    return again


async def reconnect(make: MakeNode, extent: Extent) -> Row:
    """Cut all connections at once; clients go to another broker than before."""
    n = extent.reconnecting
    with running_nodes(make, 3) as nodes:
        again = await _reconnect(nodes.ports, n)
        before = nodes.processor_seconds()
        seconds = await again()
        brokers, engine = (b - a for a, b in zip(before, nodes.processor_seconds(), strict=True))
        cores = engine / seconds
    with running(PEERS["mosquitto"]) as peer:
        others = await (await _reconnect([peer.port], n))()
    found = (
        f"all in after {seconds:.1f} s, engine {cores:.2f} of a core, brokers "
        f"{brokers * 1e6 / n:.0f} µs of processor time each; at one mosquitto {others:.1f} s"
    )
    is_met = seconds <= IN_SECONDS and cores <= CORES
    return [
        f"{n:,} clients with sessions reconnect at once, each to another node",
        found,
        _verdict("all in within 30 s, engine at most 1 core", is_met=is_met),
    ]


async def killed(make: MakeNode, extent: Extent) -> Row:
    """Kill a node, time and again; its clients go elsewhere at once."""
    waits: list[float] = []
    with running_nodes(make, 3) as nodes:
        for number in range(extent.kills):
            at = number % 3
            ports = nodes.ports[at:] + nodes.ports[:at]
            members = [
                Member(f"kill-{number}-{n}", [ports[0], ports[1 + n % 2]])
                for n in range(extent.homeless)
            ]
            await enter(members)
            await asyncio.sleep(1.0)  # what they are is stored
            nodes.kill(at)
            n_new = await until_back(members)
            waits += (member.away[0] for member in members)
            _close(members)
            if n_new:
                raise BenchmarkError(f"{n_new} clients have lost their sessions")
            await asyncio.to_thread(nodes.start, at)
    waits.sort()
    p99 = quantile(waits, 0.99)
    found = (
        f"elsewhere after {quantile(waits, 0.5):.2f} s in the median, p99 {p99:.2f} s, at most "
        f"{waits[-1]:.2f} s"
    )
    return [
        f"{extent.kills} kills of a node with {extent.homeless} sessions",
        found,
        _verdict("p99 at most 5 s", is_met=p99 <= SESSION_SECONDS),
    ]


async def engine_away(make: MakeNode, extent: Extent) -> Row:
    """Kill the engine; start it again after a time with what it had written."""
    with running_nodes(make, 2, "always") as nodes:
        here, there = nodes.ports
        members = {
            "local": Member("local", [here], is_clean=True),
            "remote": Member("remote", [there], is_clean=True),
            "kept": Member("kept", [there]),
        }
        await enter(list(members.values()))
        senders = {
            name: Sender(f"to-{name}", [here], [member], extent.per_second)
            for name, member in members.items()
        }
        running = [asyncio.create_task(sender.run()) for sender in senders.values()]
        await asyncio.sleep(WARM_UP_SECONDS)
        nodes.redis.kill()
        began_at = time.monotonic()
        await asyncio.sleep(extent.engine_seconds)
        ended_at = time.monotonic()
        n_waiting = {
            name: sender.n_sent - len(sender.acknowledged) for name, sender in senders.items()
        }
        await asyncio.to_thread(nodes.redis.start)
        await asyncio.sleep(WARM_UP_SECONDS)
        for sender in senders.values():
            sender.end()
        await asyncio.gather(*running)
        for sender in senders.values():
            await sender.until_all_came()
        came = [at for at in members["local"].came.values() if began_at <= at <= ended_at]
        gap = max((b - a for a, b in itertools.pairwise([began_at, *came, ended_at])), default=0.0)
        again = [
            min((at for at in members[name].came.values() if at > ended_at), default=ended_at)
            for name in ("remote", "kept")
        ]
        lost = sum(sender.lost() for sender in senders.values())
        n_acknowledged = sum(len(sender.acknowledged) for sender in senders.values())
        _close(list(members.values()))
    share = len(came) / (extent.per_second * extent.engine_seconds)
    found = (
        f"on one node {share:.0%} of the messages, the longest gap {gap:.2f} s; to other nodes and "
        f"to sessions {n_waiting['remote']} and {n_waiting['kept']} wait, all again "
        f"{max(again) - ended_at:.1f} s after its start; of {n_acknowledged:,} {lost} lost"
    )
    is_met = share >= 0.95 and not lost and bool(n_waiting["remote"] and n_waiting["kept"])
    target = "clean sessions of one node go on, others wait, 0 lost"
    return [
        f"engine away for {extent.engine_seconds:g} s",
        found,
        _verdict(target, is_met=is_met),
    ]


ROWS: Final = {
    "upgrade": upgrade,
    "reconnect": reconnect,
    "killed": killed,
    "engine_away": engine_away,
}
