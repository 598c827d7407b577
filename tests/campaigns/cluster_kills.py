"""Does a cluster keep its promises while its brokers, machines and engine fail?

Rerun: ``sudo python -m tests.campaigns.cluster_kills``; a look in a minute with ``--quick``.

Three brokers are on machines of their own (network namespaces), each with a Redis server (a master
and two replicas) and a sentinel. Clients publish at two of the brokers at QoS 1 and 2; others
receive at the third. These two are killed (``kill -9``) at random moments, or stand still for a
time; their machines are cut off, from the other machines alone or from the clients as well, the
master's as often as not. Each fails on its own, so both may be away at a time. Publishers go on at
the other one when they hear nothing for a while. The masters of the engine are killed, too. Then
what was received is held against what was acknowledged. A message that a publisher has published
anew, as its session was lost, may come twice, and be out of order: it was published at two brokers.

Groups of clients with sessions that outlive their connection go from one of the two brokers to the
other, one that publishes at QoS 2 and two that receive: they find their sessions, and no message of
QoS 2 comes twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.program import JsonFile, Program, Quick
from tests.campaigns.faults.case import Finding, report
from tests.helpers import forks
from tests.helpers.cluster import (
    Cluster,
    Publisher,
    Reading,
    Stream,
    Subscriber,
    lasting,
    reached,
    roam,
)
from tests.helpers.machines import Cable, Machines
from tests.helpers.redis_server import RedisProcess, running_redis, running_sentinel
from tests.helpers.wire import ADDRESSES, WireClient

Result = TypeVar("Result")

N_FAULTS: Final = {"kill": 100, "freeze": 20, "partition": 20, "master": 10}
"""Faults of a full campaign by their kinds; a quick one has a twentieth of them, one at least."""
LONGEST_LIFE_SECONDS: Final = 1.5
"""The longest time between two faults of a broker."""
LONGEST_AWAY_SECONDS: Final = 6.0
"""The longest time for which a broker is away, as a rule: others may evict it or not."""
LONGEST_SECONDS: Final = 60.0
"""The same of some faults that are no kills."""
LONG_SHARE: Final = 0.1
"""The share of these."""
HALF: Final = 0.5
CABLES: Final[tuple[Cable, ...]] = ("engine", "clients")
PATIENCE_SECONDS: Final = 4.0
"""A publisher goes on elsewhere when nothing was acknowledged for so long."""
PAUSE_SECONDS: Final = 0.002
N_STREAMS: Final = 4
"""Streams of each QoS, in turn at the two brokers."""
N_ROAMING: Final = 8
"""Groups of clients with sessions. A fault that hit one such client in some hundred kills was found
in minutes by this many."""
LOST_SESSIONS: Final = ": clients that lost theirs"
PORTS: Final = {"a": 11883, "b": 12883, "c": 13883}
REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379


class Engine:
    """A master with two replicas, and sentinels: one of each on each machine.

    Args:
        stack: ends the servers.
        folder: of their files.
        machines: where they are.
        min_replicas: how many replicas must have what is acknowledged. With fewer than both, a
            sentinel may choose the one that has it not.
    """

    def __init__(
        self, stack: ExitStack, folder: Path, machines: Machines, min_replicas: int = 2
    ) -> None:
        self._stack = stack
        self._folder = folder
        self._machines = machines
        self._servers: dict[str, RedisProcess] = {}
        self._addresses = machines.addresses
        for name in PORTS:
            self._start(name, "a")
        for name, address in self._addresses.items():
            lines = (
                "bind 0.0.0.0",
                "protected-mode no",
                f"sentinel announce-ip {address}",
                f"sentinel monitor m {self._addresses['a']} {REDIS_PORT} 2",
            )
            sentinel = running_sentinel(
                folder / name, *lines, port=SENTINEL_PORT, wrapper=machines.wrapper(name)
            )
            stack.enter_context(sentinel)
        self.section = {
            "sentinel": {
                "servers": [f"{one}:{SENTINEL_PORT}" for one in self._addresses.values()],
                "master": "m",
            },
            "min_replicas": min_replicas,
        }

    def _start(self, name: str, master: str) -> None:
        address = self._addresses[name]
        lines = ["bind 0.0.0.0", "protected-mode no", f"replica-announce-ip {address}"]
        lines += ["min-replicas-to-write 1", "repl-timeout 5"]
        if name != master:
            lines.append(f"replicaof {self._addresses[master]} {REDIS_PORT}")
        wrapper = self._machines.wrapper(name)
        server = running_redis(self._folder / name, *lines, port=REDIS_PORT, wrapper=wrapper)
        self._servers[name] = self._stack.enter_context(server)

    def _known(self, name: str) -> dict[str, Any]:
        """Return what a machine's sentinel knows of the master."""
        with Redis(self._addresses[name], SENTINEL_PORT) as sentinel:
            told: dict[str, Any] = sentinel.sentinel_master("m")
        return told

    @property
    def master(self) -> str:
        """The machine of the master, as clients hear of it."""
        address = self._known("c")["ip"]
        return next(name for name, one in self._addresses.items() if one == address)

    def _is_whole(self) -> bool:
        """Say whether all sentinels know the same master, its replicas, and one another."""
        try:
            known = [self._known(name) for name in PORTS]
            with Redis(self._addresses[self.master], REDIS_PORT) as master:
                told = master.info("replication")
        except RedisError:  # it was killed
            return False
        replicas = [one for name, one in told.items() if re.fullmatch(r"slave\d+", name)]
        n_replicas = sum(one["state"] == "online" for one in replicas)
        return n_replicas == 2 and all(
            (one["ip"], one["flags"], one["num-slaves"], one["num-other-sentinels"])
            == (known[0]["ip"], "master", 2, 2)
            for one in known
        )

    async def whole(self) -> None:
        """Wait until nothing of it is missing."""
        await reached(self._is_whole, "two replicas that all sentinels know")

    async def kill_master(self) -> None:
        """Kill it; return once another one has taken over, and it is a replica.

        Both replicas have its data before: a sentinel takes whichever, while it has not asked them.
        """
        await self.whole()
        old = self.master
        self._servers[old].process.kill()
        await reached(lambda: self.master != old, "a new master")
        await asyncio.to_thread(self._start, old, self.master)


class Spread(Cluster):
    """Brokers on machines of their own."""

    machines: Machines

    def wrapper(self, name: str) -> list[str]:
        """Return the command that runs another one on a broker's machine."""
        return self.machines.wrapper(name)

    def policy(self, name: str) -> dict[str, Any]:
        """Return the policy of a broker, which listens where clients of the hub find it."""
        bind = f"{self.machines.doors[name]}:{PORTS[name]}"
        return super().policy(name) | {"listeners": {"default": {"bind": bind}}}


class Faults:
    """What befalls the brokers `a` and `b`, their machines and the engine.

    Attributes:
        done: how often each has.
    """

    def __init__(self, cluster: Spread, engine: Engine, planned: list[str], seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._engine = engine
        self._planned = planned
        self._rng = random.Random(seed)  # noqa: S311 (no secret)
        self._of_engine = asyncio.Lock()

    async def befall(self, name: str, is_over: Callable[[], bool]) -> None:
        """Let one after the other happen to a broker, beside those of the other broker."""
        while self._planned and not is_over():
            await asyncio.sleep(self._rng.uniform(0.0, LONGEST_LIFE_SECONDS))
            if self._planned:
                what = self._planned.pop()
                await getattr(self, f"_{what}")(name)
                self.done[what] += 1

    def _seconds(self) -> float:
        is_long = self._rng.random() < LONG_SHARE
        return self._rng.uniform(0.0, LONGEST_SECONDS if is_long else LONGEST_AWAY_SECONDS)

    async def _kill(self, name: str) -> None:
        self._cluster[name].kill()
        await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0.0, LONGEST_AWAY_SECONDS)]))
        await asyncio.to_thread(self._cluster.start, name)

    async def _freeze(self, name: str) -> None:
        self._cluster[name].process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._seconds())
        self._cluster[name].process.send_signal(signal.SIGCONT)

    async def _partition(self, name: str) -> None:
        """Cut a machine off: that of the broker, or that of the master if it is one of the two."""
        async with self._of_engine:
            await self._engine.whole()
            if self._rng.random() < HALF and self._engine.master in "ab":
                name = self._engine.master
                self.done["partition with the master"] += 1
            cables = CABLES[: self._rng.randint(1, 2)]
            self._cluster.machines.cut(name, *cables)
            await asyncio.sleep(self._seconds())
            self._cluster.machines.join(name, *cables)

    async def _master(self, _name: str) -> None:
        async with self._of_engine:
            await self._engine.kill_master()


class Roaming:
    """Three clients with sessions, which go from broker to broker; one publishes to the others.

    Args:
        cluster: of the brokers.
        name: the Client Identifier of the one, and the beginning of the others'.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._writer = Publisher(f"roaming/{name}", PATIENCE_SECONDS)
        self._readers = {1: Subscriber(), 2: Subscriber()}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Make their sessions, and let them go."""
        for qos, reader in self._readers.items():
            name = f"{self._name}-{qos}"
            async with await self._cluster.connected("c", name, **lasting()) as client:
                assert await client.subscribe(f"roaming/{self._name}", qos) == qos
            self._go("ab", name, reader.run)
        async with await self._cluster.connected("c", self._name, **lasting()):
            pass
        self._go("ba", self._name, self._writer.run)

    def _go(self, names: str, client_id: str, run: Callable[[WireClient], Awaitable[None]]) -> None:
        going = roam(self._cluster, names, client_id, run, 3 * PATIENCE_SECONDS)
        self._tasks.append(asyncio.create_task(going))

    async def end(self) -> Counter[str]:
        """Wait until all that was begun has come; return the counts of `roamed`."""
        writer = self._writer
        writer.is_ending = True
        with contextlib.suppress(AssertionError):  # the findings tell
            await reached(lambda: writer.n_done == writer.n_begun, "all acknowledgements")
        wanted = set(range(writer.n_begun)) - writer.refused  # the last of them until now
        with contextlib.suppress(AssertionError):
            for reader in self._readers.values():
                await reached(lambda r=reader: wanted <= {*r.came}, "all messages")  # type: ignore[misc]
        found = Counter({f": PUBREC {why}": n for why, n in writer.told.items()})
        found[": acknowledged"] = writer.n_done - len(writer.refused)
        found[": refused"] = len(writer.refused)
        found[LOST_SESSIONS] = sum(task.done() for task in self._tasks)
        for task in self._tasks:
            task.cancel()
        for qos, reader in self._readers.items():
            first = list(dict.fromkeys(reader.came))
            found[f", QoS {qos}: lost"] = len(wanted.difference(first))
            found[f", QoS {qos}: twice"] = len(reader.came) - len(first)
            found[f", QoS {qos}: out of order"] = sum(b < a for a, b in itertools.pairwise(first))
        return found


def roamed(groups: Iterable[Counter[str]]) -> list[Finding]:
    """Return the findings about all groups of clients with sessions."""
    found = Counter[str]()
    for group in groups:
        found.update(group)  # a sum would leave out what is 0
    findings = [
        Finding("sessions: acknowledged", found.pop(": acknowledged"), least=1),
        Finding(f"sessions{LOST_SESSIONS}", found.pop(LOST_SESSIONS), most=0),
    ]
    for name, n in sorted(found.items()):
        is_broken = name.startswith(", ") and name != ", QoS 1: twice"
        findings.append(Finding(f"sessions{name}", n, most=0 if is_broken else None))
    return findings


async def play(
    cluster: Spread, engine: Engine, n_faults: Mapping[str, int], seed: int
) -> list[Finding]:
    """Publish while brokers, machines and masters fail; return the findings."""
    planned = [what for what, n in n_faults.items() for _ in range(n)]
    random.Random(seed).shuffle(planned)  # noqa: S311 (no secret)
    faults = Faults(cluster, engine, planned, seed)
    streams = [
        Stream(f"kills/{qos}/{at}", qos=qos, pause_seconds=PAUSE_SECONDS, patience=PATIENCE_SECONDS)
        for qos in (1, 2)
        for at in range(N_STREAMS)
    ]
    ports = [lambda: cluster["a"].port, lambda: cluster["b"].port]
    reading, roaming = Reading(), [Roaming(cluster, f"roams-{at}") for at in range(N_ROAMING)]
    began = time.monotonic()
    for group in roaming:
        await group.begin()
    async with await cluster.connected("c", "reads") as reader:
        assert await reader.subscribe("kills/#", 2) == 2
        taking = asyncio.create_task(reading.run(reader))
        publishing = [
            asyncio.create_task(stream.run(*ports[at % 2 :], *ports[: at % 2]))
            for at, stream in enumerate(streams)
        ]
        await asyncio.gather(*(faults.befall(name, taking.done) for name in "ab"))
        seconds = time.monotonic() - began
        for stream in streams:
            stream.end()
        await asyncio.gather(*publishing)
        n_before = -1
        while n_before != (n_before := sum(map(len, reading.came.values()))):
            if not any(map(reading.lost, streams)):
                break
            await asyncio.sleep(LONGEST_AWAY_SECONDS)
        has_stayed = not taking.done()
        if not has_stayed:
            typer.echo(cluster["c"].log, err=True)
        taking.cancel()
        ended = await asyncio.gather(*(group.end() for group in roaming))
    done = [Finding(f"faults: {what}", n) for what, n in sorted(faults.done.items())]
    done.append(Finding("time", seconds, "s"))
    return done + judge(streams, reading, has_stayed=has_stayed) + roamed(ended)


def judge(streams: Sequence[Stream], reading: Reading, *, has_stayed: bool) -> list[Finding]:
    """Compare what has come with what was acknowledged.

    Args:
        streams: what was published.
        reading: what has come.
        has_stayed: whether the subscriber has been connected all the time.
    """
    findings = [Finding("subscribers disconnected", not has_stayed, most=0)]
    for qos in (1, 2):
        own = [stream for stream in streams if stream.qos == qos]
        n_acknowledged = sum(len(stream.acknowledged) for stream in own)
        n_lost = sum(len(reading.lost(stream)) for stream in own)
        n_twice = sum(
            len(set(reading.twice.get(stream.topic, ())) - stream.repeated) for stream in own
        )
        n_displaced = sum(len(reading.displaced(stream.topic) - stream.repeated) for stream in own)
        n_moved = sum(len(reading.displaced(stream.topic) & stream.repeated) for stream in own)
        findings += [
            Finding(f"QoS {qos}: acknowledged", n_acknowledged, least=1),
            Finding(f"QoS {qos}: of these lost", n_lost, most=0),
            Finding(f"QoS {qos}: received twice", n_twice, most=0 if qos == 2 else None),
            Finding(f"QoS {qos}: out of order", n_displaced, most=0),
            Finding(f"QoS {qos}: the same, published again at another broker", n_moved),
        ]
    return findings


def on_machines(
    play: Callable[[Spread, Engine], Coroutine[Any, Any, Result]], min_replicas: int = 2
) -> Result:
    """Return what comes of three brokers and an engine on machines of their own."""

    def begin() -> Result:
        with ExitStack() as stack:
            place = tempfile.TemporaryDirectory(prefix="penstock-cluster-")
            folder = Path(stack.enter_context(place))
            machines = Machines("c", "a", "b")
            stack.enter_context(machines.running())
            engine = Engine(stack, folder / "engine", machines, min_replicas)
            cluster = Spread(folder, engine.section)
            cluster.machines = machines
            ADDRESSES.update({port: machines.doors[name] for name, port in PORTS.items()})
            stack.callback(ADDRESSES.clear)
            stack.callback(cluster.end)
            cluster.start("a", "b", "c")
            return asyncio.run(play(cluster, engine))

    forks.prepare()
    with ThreadPoolExecutor(1) as pool:  # a thread that goes to another machine stays there
        return pool.submit(begin).result()


def run(n_faults: Mapping[str, int], seed: int, min_replicas: int = 2) -> list[Finding]:
    """Run one campaign in a folder and on machines of its own."""
    return on_machines(partial(play, n_faults=n_faults, seed=seed), min_replicas)


def kill(
    seed: Annotated[int, typer.Option(help="Of moments and victims.")] = 1,
    kills: Annotated[int, typer.Option(min=0, help="Of brokers.")] = N_FAULTS["kill"],
    freezes: Annotated[int, typer.Option(min=0, help="Of brokers.")] = N_FAULTS["freeze"],
    partitions: Annotated[int, typer.Option(min=0, help="Of machines.")] = N_FAULTS["partition"],
    masters: Annotated[int, typer.Option(min=0, help="Kills of them.")] = N_FAULTS["master"],
    min_replicas: Annotated[int, typer.Option(min=0, max=2, help="Of the two.")] = 2,
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Let brokers of a cluster, their machines and its engine fail at random moments; needs root.

    Ends with status 1 where a promise is broken.
    """
    n_faults = dict(zip(N_FAULTS, (kills, freezes, partitions, masters), strict=True))
    if quick:
        n_faults = {what: max(1, n // 20) for what, n in N_FAULTS.items()}
    report({"brokers, machines and masters": run(n_faults, seed, min_replicas)}, json_file)


main: Final = Program(kill, "python -m tests.campaigns.cluster_kills")


if __name__ == "__main__":
    sys.exit(main())
