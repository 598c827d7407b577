"""Does a cluster keep its promises while its brokers and the engine's masters are killed?

Rerun: ``python -m tests.campaigns.cluster_kills``; a look in a minute with ``--quick``.

Three brokers are on a Redis server with two replicas and three sentinels. Clients publish at two of
the brokers at QoS 1 and 2; others receive at the third. The two brokers are killed (``kill -9``) at
random moments, or stand still for a time, and come back; publishers go on at the other one. So are
the masters of the engine. Then what was received is held against what was acknowledged. A message
that a publisher has published anew, as its session was lost, may come twice, and be out of order:
it was published at two brokers.

Clients with sessions that outlive their connection go from one of the two brokers to the other, one
that publishes at QoS 2 and two that receive: they find their sessions, and no message of QoS 2
comes twice.
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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.program import JsonFile, Program, Quick
from penstock.netem.runs.broker_process import reserved_port
from tests.campaigns.faults.case import Finding, report
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
from tests.helpers.redis_server import RedisProcess, running_redis, running_sentinels

FULL_KILLS: Final = 100
FULL_MASTERS: Final = 10
QUICK_KILLS: Final = 4
QUICK_MASTERS: Final = 1
LONGEST_LIFE_SECONDS: Final = 3.0
"""The longest time between two faults."""
LONGEST_AWAY_SECONDS: Final = 6.0
"""The longest time for which a broker is away: others may evict it or not."""
PAUSE_SECONDS: Final = 0.002
FROZEN_SHARE: Final = 0.3
"""The share of the faults of a broker in which it stands still instead of being killed."""
N_STREAMS: Final = 4
"""Streams of each QoS, in turn at the two brokers."""


class Engine:
    """A master with two replicas, and sentinels.

    Args:
        stack: ends the servers.
        folder: of their files.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._servers: dict[int, RedisProcess] = {}
        ports = [stack.enter_context(reserved_port()) for _ in range(3)]
        self._start(ports[0])
        for port in ports[1:]:
            self._start(port, f"replicaof 127.0.0.1 {ports[0]}")
        self._sentinels = stack.enter_context(running_sentinels(folder / "s", ports[0]))
        self.section = {
            "sentinel": {
                "servers": [f"127.0.0.1:{port}" for port in self._sentinels],
                "master": "m",
            },
            "min_replicas": 1,
        }

    def _start(self, port: int, *lines: str) -> None:
        lines = ("min-replicas-to-write 1", *lines)
        server = running_redis(self._folder / str(port), *lines, port=port)
        self._servers[port] = self._stack.enter_context(server)

    def _known(self, port: int) -> dict[str, Any]:
        """Return what a sentinel knows of the master."""
        with Redis(port=port) as sentinel:
            told: dict[str, Any] = sentinel.sentinel_master("m")
        return told

    def _master(self) -> int:
        return int(self._known(self._sentinels[0])["port"])

    def _is_whole(self) -> bool:
        """Say whether all sentinels know the same master, its replicas, and one another."""
        known = [self._known(port) for port in self._sentinels]
        try:
            with Redis(port=self._master()) as master:
                told = master.info("replication")
        except RedisError:  # it was killed
            return False
        replicas = [one for name, one in told.items() if re.fullmatch(r"slave\d+", name)]
        n_replicas = sum(one["state"] == "online" for one in replicas)
        return n_replicas == 2 and all(
            (one["port"], one["flags"], one["num-slaves"], one["num-other-sentinels"])
            == (known[0]["port"], "master", 2, 2)
            for one in known
        )

    async def kill_master(self) -> None:
        """Kill it; return once another one has taken over, and all know it.

        Both replicas have its data before: a sentinel takes whichever, while it has not asked them.
        """
        await reached(self._is_whole, "two replicas that all sentinels know")
        old = self._master()
        self._servers[old].process.kill()
        await reached(lambda: self._master() != old, "a new master")
        await asyncio.to_thread(self._start, old, f"replicaof 127.0.0.1 {self._master()}")
        await reached(self._is_whole, "two replicas that all sentinels know")


async def fault(cluster: Cluster, name: str, rng: random.Random) -> None:
    """Kill a broker, or let it stand still; return once it serves again."""
    away_seconds = rng.uniform(0.0, LONGEST_AWAY_SECONDS)
    if rng.random() < FROZEN_SHARE:
        cluster[name].process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(away_seconds)
        cluster[name].process.send_signal(signal.SIGCONT)
        return
    cluster[name].kill()
    await asyncio.sleep(away_seconds)
    await asyncio.to_thread(cluster.start, name)


class Roaming:
    """Clients with sessions, which go from broker to broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writer = Publisher("roaming/x")
        self._readers = {1: Subscriber(), 2: Subscriber()}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Make their sessions, and let them go."""
        for qos, reader in self._readers.items():
            name = f"roams-{qos}"
            async with await self._cluster.connected("c", name, **lasting()) as client:
                assert await client.subscribe("roaming/#", qos) == qos
            self._tasks.append(asyncio.create_task(roam(self._cluster, "ab", name, reader.run)))
        async with await self._cluster.connected("c", "roams", **lasting()):
            pass
        going = roam(self._cluster, "ba", "roams", self._writer.run)
        self._tasks.append(asyncio.create_task(going))

    async def end(self) -> list[Finding]:
        """Wait until all that was begun has come; return the findings."""
        writer = self._writer
        writer.is_ending = True
        wanted = set(range(writer.n_begun))
        with contextlib.suppress(AssertionError):  # the findings tell
            await reached(lambda: writer.n_done == writer.n_begun, "all acknowledgements")
            for reader in self._readers.values():
                await reached(lambda r=reader: wanted <= {*r.came}, "all messages")  # type: ignore[misc]
        n_lost_sessions = sum(task.done() for task in self._tasks)
        for task in self._tasks:
            task.cancel()
        findings = [
            Finding("sessions: acknowledged", writer.n_done, least=1),
            Finding("sessions: clients that lost theirs", n_lost_sessions, most=0),
        ]
        for qos, reader in self._readers.items():
            first = list(dict.fromkeys(reader.came))
            n_twice = len(reader.came) - len(first)
            n_displaced = sum(b < a for a, b in itertools.pairwise(first))
            findings += [
                Finding(f"sessions, QoS {qos}: lost", len(wanted.difference(first)), most=0),
                Finding(f"sessions, QoS {qos}: twice", n_twice, most=0 if qos == 2 else None),
                Finding(f"sessions, QoS {qos}: out of order", n_displaced, most=0),
            ]
        return findings


async def play(
    cluster: Cluster, engine: Engine, n_kills: int, n_masters: int, seed: int
) -> list[Finding]:
    """Publish while brokers and masters are killed; return the findings."""
    rng = random.Random(seed)  # noqa: S311 (no secret)
    faults = ["node"] * n_kills + ["master"] * n_masters
    rng.shuffle(faults)
    streams = [
        Stream(f"kills/{qos}/{at}", qos=qos, pause_seconds=PAUSE_SECONDS)
        for qos in (1, 2)
        for at in range(N_STREAMS)
    ]
    ports = [lambda: cluster["a"].port, lambda: cluster["b"].port]
    reading, roaming = Reading(), Roaming(cluster)
    await roaming.begin()
    async with await cluster.connected("c", "reads") as reader:
        assert await reader.subscribe("kills/#", 2) == 2
        taking = asyncio.create_task(reading.run(reader))
        publishing = [
            asyncio.create_task(stream.run(*ports[at % 2 :], *ports[: at % 2]))
            for at, stream in enumerate(streams)
        ]
        for what in faults:
            await asyncio.sleep(rng.uniform(0.0, LONGEST_LIFE_SECONDS))
            if taking.done():
                break
            if what == "master":
                await engine.kill_master()
            else:
                await fault(cluster, rng.choice("ab"), rng)
        for stream in streams:
            stream.end()
        await asyncio.gather(*publishing)
        roamed = await roaming.end()
        n_before = -1
        while n_before != (n_before := sum(map(len, reading.came.values()))):
            if not any(map(reading.lost, streams)):
                break
            await asyncio.sleep(LONGEST_AWAY_SECONDS)
        has_stayed = not taking.done()
        if not has_stayed:
            typer.echo(cluster["c"].log, err=True)
        taking.cancel()
    return judge(streams, reading, has_stayed=has_stayed) + roamed


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


def run(n_kills: int, n_masters: int, seed: int) -> list[Finding]:
    """Run one campaign in a folder of its own."""
    with ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="penstock-cluster-")
        folder = Path(stack.enter_context(place))
        engine = Engine(stack, folder / "engine")
        cluster = Cluster(folder, engine.section)
        stack.callback(cluster.end)
        cluster.start("a", "b", "c")
        return asyncio.run(play(cluster, engine, n_kills, n_masters, seed))


def kill(
    seed: Annotated[int, typer.Option(help="Of moments and victims.")] = 1,
    kills: Annotated[int, typer.Option(min=0, help="Of brokers.")] = FULL_KILLS,
    masters: Annotated[int, typer.Option(min=0, help="Of the engine's masters.")] = FULL_MASTERS,
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Kill brokers of a cluster and masters of its engine at random moments.

    Ends with status 1 where a promise is broken.
    """
    n_kills, n_masters = (QUICK_KILLS, QUICK_MASTERS) if quick else (kills, masters)
    report({"brokers and masters": run(n_kills, n_masters, seed)}, json_file)


main: Final = Program(kill, "python -m tests.campaigns.cluster_kills")


if __name__ == "__main__":
    sys.exit(main())
