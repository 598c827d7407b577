"""How quickly does the queue's Redis engine store and delete, beside a queue of plain keys?

Rerun: ``python -m benchmarks.redis_store --figures FILE``; a look in seconds with ``--quick``. It
needs redis-server, and memcached for its rows.

Each way enqueues messages of 0.4 KB (paper 001, 2.4.3), receives and deletes them, from one process
with one connection to each node, on one, two and three nodes:

* the engine of the queue, which calls functions at the server, `DEPTH` messages under way, each in
  a call of its own;
* the same with the messages for a physical queue in one call, as they come from many publishers;
* a simple queue of keys with metadata, as paper 001 compares with (2.3.3): its metadata are read
  and written at each enqueue and each delete, one command at a time, on a Redis like that;
* the same with `DEPTH` queues side by side, whose commands leave together;
* that one on memcached.

A second table has the engine with one physical queue on one node and 1 to `DEPTH` messages under
way, beside the cost model of the store (`penstock.models.papers.fabric.store`), whose two costs are
those of the first row and of the last one.

The ways take turns on servers that stay, so that a machine that becomes slower slows all of them.
A repetition is the unit of the intervals of ratios. Client and servers share the machine: where a
processor is short, the client's share of the work is in every figure.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Final, TypeAlias

import typer
from redis import Redis

from benchmarks.errors import BenchmarkError
from benchmarks.program import JsonFile, Program, Quick, Repeats, describe_run, tell, write_json
from penstock.broker.message import Message
from penstock.models.papers.fabric.store import StoreCosts
from penstock.netem.figures.estimates import at_least, bootstrap, mean_of
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file
from penstock.netem.runs.broker_process import RunningBroker, reserved_port
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.redis.server import RedisServer

PAYLOAD: Final = bytes(400)
DEPTH: Final = 64
"""The number of messages under way at a time."""
QUEUES_EACH: Final = 4
"""The number of the engine's physical queues for each node."""
FULL_MESSAGES: Final = 10_000
QUICK_MESSAGES: Final = 500
UNPIPELINED_SHARE: Final = 0.25
"""The share of the messages that the way with one command at a time passes through."""
NODES: Final = (1, 2, 3)
DEPTHS: Final = (1, 2, 4, 8, 16, 32, DEPTH)
"""The numbers of messages under way in the rows of the cost model."""
READY_SECONDS: Final = 60.0
N_SLOTS: Final = 16_384
ANY_BYTES: Final = 1 << 40

ENGINE: Final = "engine, a message a call"
RUNS: Final = "engine, many a call"
KEYS: Final = "keys, one command at a time"
PIPELINED: Final = "keys, pipelined"
MEMCACHED: Final = "memcached, pipelined"
TARGETS: Final = {KEYS: (ENGINE, 3.8), PIPELINED: (RUNS, 1.5), MEMCACHED: (RUNS, 1.4)}
"""The least ratio of the engine's rate to that of each way. A way that sends many commands at once
is compared with the engine that does so, too."""

Command: TypeAlias = tuple[bytes, ...]
"""A command: ``get KEY``, ``set KEY VALUE`` or ``delete KEY``."""
Way: TypeAlias = Callable[[int], Awaitable[None]]
"""A function that passes a number of messages through a queue."""


# -- plain keys ------------------------------------------------------------------------------------


class RedisKeys:
    """Plain keys of a Redis server, on one connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    async def ask(self, commands: Sequence[Command]) -> list[bytes | None]:
        """Send commands in one write; return their answers."""
        names = {b"get": b"GET", b"set": b"SET", b"delete": b"DEL"}
        packed: list[bytes] = []
        for name, *words in commands:
            words.insert(0, names[name])
            packed.append(b"*%d\r\n" % len(words))
            packed += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._writer.write(b"".join(packed))
        return [await self._answer() for _ in commands]

    async def _answer(self) -> bytes | None:
        line = await self._reader.readline()
        if line.startswith(b"$") and line != b"$-1\r\n":
            n_bytes = int(line[1:])
            return (await self._reader.readexactly(n_bytes + 2))[:n_bytes]
        if line[:1] not in (b"+", b":", b"$"):
            raise BenchmarkError(f"redis: read {line!r}")
        return None


class MemcachedKeys:
    """Plain keys of a memcached server, on one connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    async def ask(self, commands: Sequence[Command]) -> list[bytes | None]:
        """Send commands in one write; return their answers."""
        packed = []
        for name, key, *value in commands:
            if name == b"set":
                packed.append(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value[0]), value[0]))
            else:
                packed.append(b"%b %b\r\n" % (name, key))
        self._writer.write(b"".join(packed))
        return [await self._answer(one[0]) for one in commands]

    async def _answer(self, name: bytes) -> bytes | None:
        line = await self._reader.readline()
        if name != b"get" or line == b"END\r\n":
            if line not in (b"STORED\r\n", b"DELETED\r\n", b"NOT_FOUND\r\n", b"END\r\n"):
                raise BenchmarkError(f"memcached: read {line!r}")
            return None
        n_bytes = int(line.split()[3])
        data = await self._reader.readexactly(n_bytes + len(b"\r\nEND\r\n"))
        return data[:n_bytes]


Keys: TypeAlias = RedisKeys | MemcachedKeys


async def pass_keys(stores: Sequence[Keys], n_messages: int, *, depth: int) -> None:
    """Enqueue, receive and delete messages of queues of plain keys.

    A queue has one key with its metadata, which are the numbers of its first message and of its
    next one, and a key for each message.

    Args:
        stores: the servers, over which the queues are spread.
        n_messages: the number of messages.
        depth: the number of queues whose commands leave together; with 1, each command leaves by
            itself.
    """
    n_stores, n_queues = len(stores), max(depth, len(stores))
    shares = [range(at, n_queues, n_stores) for at in range(n_stores)]
    n_each = -(-n_messages // n_queues)
    await asyncio.gather(
        *(
            _pass_keys_of(store, share, n_each, is_pipelined=depth > 1)
            for store, share in zip(stores, shares, strict=True)
        )
    )


async def _pass_keys_of(
    store: Keys, queues: Sequence[int], n_each: int, *, is_pipelined: bool
) -> None:
    async def ask(commands: list[Command]) -> list[bytes | None]:
        if is_pipelined:
            return await store.ask(commands)
        return [(await store.ask([one]))[0] for one in commands]

    heads = [b"meta:%d" % queue for queue in queues]
    await ask([(b"set", head, b"0 0") for head in heads])
    for _ in range(n_each):
        told = [_numbers(one) for one in await ask([(b"get", head) for head in heads])]
        commands: list[Command] = []
        for queue, head, (first, behind) in zip(queues, heads, told, strict=True):
            commands.append((b"set", b"%d:%d" % (queue, behind), PAYLOAD))
            commands.append((b"set", head, b"%d %d" % (first, behind + 1)))
        await ask(commands)
    for _ in range(n_each):
        told = [_numbers(one) for one in await ask([(b"get", head) for head in heads])]
        commands = []
        for queue, head, (first, behind) in zip(queues, heads, told, strict=True):
            key = b"%d:%d" % (queue, first)
            commands += [(b"get", key), (b"delete", key)]
            commands.append((b"set", head, b"%d %d" % (first + 1, behind)))
        answers = await ask(commands)
        if any(payload != PAYLOAD for payload in answers[::3]):
            raise BenchmarkError("a queue of keys has lost a message")


def _numbers(metadata: bytes | None) -> tuple[int, int]:
    if metadata is None:
        raise BenchmarkError("a queue of keys has lost its metadata")
    first, behind = metadata.split()
    return int(first), int(behind)


# -- the engine ------------------------------------------------------------------------------------


async def pass_engine(engine: RedisEngine, n_messages: int, *, in_runs: bool) -> None:
    """Enqueue, receive and delete messages by the queue's engine.

    Args:
        engine: the engine, on one server or several.
        n_messages: the number of messages.
        in_runs: whether messages for one physical queue are appended together.
    """
    numbers = list(engine.outline("q").physical_queues)
    n_rounds = -(-n_messages // DEPTH)
    for _ in range(n_rounds):
        engine.reserve("q", DEPTH, DEPTH * len(PAYLOAD))
        new = [NewMessage(Message("t", PAYLOAD)) for _ in range(DEPTH)]
        n_calls = len(numbers) if in_runs else DEPTH
        await asyncio.gather(
            *(
                engine.append("q", numbers[at % len(numbers)], new[at::n_calls])
                for at in range(n_calls)
            )
        )
    left = n_rounds * DEPTH
    while left:
        found = await asyncio.gather(*(_delete(engine, number) for number in numbers))
        if not any(found):
            raise BenchmarkError(f"the engine has lost {left} messages")
        left -= sum(found)


async def _delete(engine: RedisEngine, number: int, most: int = DEPTH) -> int:
    received = await engine.lease("q", "g", number, most, ANY_BYTES)
    handles = [message.receipt_handle for message in received]
    if handles and await engine.settle("q", "g", "ack", handles):
        raise BenchmarkError("a message of the engine was received twice")
    return len(received)


async def pass_pipelined(engine: RedisEngine, n_messages: int, *, depth: int) -> None:
    """Enqueue, receive and delete messages of one physical queue.

    Args:
        engine: the engine, with one physical queue.
        n_messages: the number of messages, a multiple of `depth`.
        depth: the number of messages under way, each enqueued by a call of its own and all received
            by one.
    """
    (number,) = engine.outline("q").physical_queues
    n_rounds = -(-n_messages // depth)
    for _ in range(n_rounds):
        engine.reserve("q", depth, depth * len(PAYLOAD))
        new = [[NewMessage(Message("t", PAYLOAD))] for _ in range(depth)]
        await asyncio.gather(*(engine.append("q", number, one) for one in new))
    for _ in range(n_rounds):
        found = await _delete(engine, number, depth)
        if found != depth:
            raise BenchmarkError(f"the engine has lost {depth - found} messages")


# -- servers ---------------------------------------------------------------------------------------


@contextmanager
def running_redis(n_nodes: int, folder: Path) -> Iterator[list[int]]:
    """Yield the ports of servers without disk and replicas; those of several are a cluster."""
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(2 * n_nodes)]
        own, buses = ports[:n_nodes], ports[n_nodes:]
        for port, bus in zip(own, buses, strict=True):
            place = folder / str(port)
            place.mkdir()
            lines = [f"port {port}", "bind 127.0.0.1", f"dir {place}", 'save ""', "appendonly no"]
            if n_nodes > 1:
                lines += ["cluster-enabled yes", f"cluster-port {bus}"]
            (place / "redis.conf").write_text("\n".join([*lines, ""]))
            server = RunningBroker("redis", ["redis-server", "redis.conf"], place)
            stack.callback(server.kill)
            server.wait_until_listening(port)
        if n_nodes > 1:
            _join(own, buses)
        yield own


def _join(ports: Sequence[int], buses: Sequence[int]) -> None:
    n = len(ports)
    with ExitStack() as stack:
        clients = [stack.enter_context(Redis(port=port)) for port in ports]
        for at, client in enumerate(clients):
            first, last = N_SLOTS * at // n, N_SLOTS * (at + 1) // n - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for port, bus in zip(ports[1:], buses[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        give_up_at = time.monotonic() + READY_SECONDS
        size = b"cluster_size:%d\r" % n
        while True:
            told = [client.execute_command("CLUSTER", "INFO") for client in clients]
            if all(b"cluster_state:ok" in one and size in one for one in told):
                return
            if time.monotonic() > give_up_at:
                raise BenchmarkError("the nodes of Redis do not meet")
            time.sleep(0.02)


@contextmanager
def running_memcached(n_nodes: int, folder: Path) -> Iterator[list[int]]:
    """Yield the ports of servers; none where the program is missing."""
    with ExitStack() as stack:
        if shutil.which("memcached") is None:
            yield []
            return
        ports = [stack.enter_context(reserved_port()) for _ in range(n_nodes)]
        for port in ports:
            place = folder / f"memcached-{port}"
            place.mkdir()
            words = ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-m", "256"]
            server = RunningBroker("memcached", words, place)
            stack.callback(server.kill)
            server.wait_until_listening(port)
        yield ports


@asynccontextmanager
async def opened_engine(ports: Sequence[int], physical_queues: int) -> AsyncIterator[RedisEngine]:
    """Yield an engine with a queue, on one server or on those of a cluster."""
    cluster = tuple(("127.0.0.1", port) for port in ports) if len(ports) > 1 else ()
    server = RedisServer(port=ports[0], cluster=cluster)
    engine = RedisEngine(server, logger=logging.getLogger("penstock.queue"))
    await engine.open()
    try:
        group = GroupSpec(max_leased_messages=1_000_000)
        spec = QueueSpec(physical_queues=physical_queues, groups={"g": group})
        await engine.create_queue("q", spec)
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def opened_ways(n_nodes: int, folder: Path) -> AsyncIterator[dict[str, Way]]:
    """Yield the ways by name, each with servers of its own."""
    async with AsyncExitStack() as stack:
        for name in ("engine", "keys"):
            (folder / name).mkdir()
        own = stack.enter_context(running_redis(n_nodes, folder / "engine"))
        engine = await stack.enter_async_context(opened_engine(own, QUEUES_EACH * n_nodes))
        # Servers of a cluster take keys of their own slots alone; a plain client has them alone.
        plain = [
            port
            for at in range(n_nodes)
            for port in stack.enter_context(running_redis(1, _made(folder / "keys" / str(at))))
        ]
        redis = [RedisKeys(port) for port in plain]
        ports = stack.enter_context(running_memcached(n_nodes, folder))
        memcached = [MemcachedKeys(port) for port in ports]
        stores: list[Keys] = [*redis, *memcached]
        for store in stores:
            await store.open()
            stack.callback(store.close)
        ways: dict[str, Way] = {
            ENGINE: lambda n: pass_engine(engine, n, in_runs=False),
            RUNS: lambda n: pass_engine(engine, n, in_runs=True),
            KEYS: lambda n: pass_keys(redis, int(n * UNPIPELINED_SHARE), depth=1),
            PIPELINED: lambda n: pass_keys(redis, n, depth=DEPTH),
        }
        if memcached:
            ways[MEMCACHED] = lambda n: pass_keys(memcached, n, depth=DEPTH)
        yield ways


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def measure(n_nodes: int, n_messages: int, repeats: int) -> dict[str, list[float]]:
    """Return messages each second of each way, by repetition."""
    with tempfile.TemporaryDirectory(prefix="penstock-store-") as folder:
        async with opened_ways(n_nodes, Path(folder)) as ways:
            found: dict[str, list[float]] = {name: [] for name in ways}
            for repetition in range(repeats + 1):
                names = list(ways) if repetition % 2 else list(ways)[::-1]
                for name in names:
                    n = int(n_messages * (UNPIPELINED_SHARE if name == KEYS else 1.0))
                    began_at = time.perf_counter()
                    await ways[name](n_messages)
                    seconds = time.perf_counter() - began_at
                    if repetition:  # the first one warms up
                        found[name].append(n / seconds)
            return found


async def measure_depths(n_messages: int, repeats: int) -> dict[int, list[float]]:
    """Return messages each second by how many are under way, by repetition."""
    found: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-store-") as folder,
        running_redis(1, Path(folder)) as ports,
    ):
        async with opened_engine(ports, 1) as engine:
            for repetition in range(repeats + 1):
                for depth in DEPTHS if repetition % 2 else DEPTHS[::-1]:
                    n = -(-int(n_messages * UNPIPELINED_SHARE) // depth) * depth
                    began_at = time.perf_counter()
                    await pass_pipelined(engine, n, depth=depth)
                    if repetition:  # the first one warms up
                        found[depth].append(n / (time.perf_counter() - began_at))
    return found


# -- the report ------------------------------------------------------------------------------------


def to_table(results: dict[int, dict[str, list[float]]]) -> Table:
    """Return rates, and the engine's ratio to each way."""
    rows = []
    for n_nodes, ways in results.items():
        for name, rates in ways.items():
            ratio, target, standing = "", "", ""
            if name in TARGETS:
                own_name, least = TARGETS[name]
                pairs = [own / other for own, other in zip(ways[own_name], rates, strict=True)]
                found = bootstrap(len(pairs), mean_of(pairs))
                ratio = f"{found.show(lambda value: f'{value:.2f}')} of {own_name}"
                target, standing = f"at least {least:g}", str(at_least(found, least))
            rows.append((str(n_nodes), name, _spread(rates), ratio, target, standing))
    columns = "Nodes", "Way", "Messages/s, median (least to most)", "Engine's ratio (95 %)"
    return Table((*columns, "Target", ""), rows)


def _spread(rates: Sequence[float]) -> str:
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def costs_of(found: dict[int, list[float]]) -> StoreCosts:
    """Return the costs that the first and the last rate give."""
    first, *_, last = found
    return StoreCosts.of_rates(median(found[first]), last, median(found[last]))


def to_depths(found: dict[int, list[float]]) -> Table:
    """Return the cost model beside the rates that were measured."""
    costs = costs_of(found)
    rows = []
    for depth, rates in found.items():
        measured, model = median(rates), costs.rate(depth)
        rows.append((str(depth), _spread(rates), f"{model:,.0f}", f"{model / measured - 1:+.0%}"))
    columns = "Under way", "Messages/s, median (least to most)"
    model_column = (
        f"Cost model: {costs.round_seconds * 1e6:,.0f} µs a round, "
        f"{costs.message_seconds * 1e6:,.0f} µs a message"
    )
    return Table((*columns, model_column, "Deviation"), rows)


def bench(
    repeats: Repeats = 7,
    quick: Quick = False,  # noqa: FBT002 (an option)
    json: JsonFile = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write the tables into this file, for a page.")
    ] = None,
    is_shared: Annotated[  # noqa: FBT002 (an option)
        bool, typer.Option("--shared-machine", help="Note that others used the machine.")
    ] = False,
) -> None:
    """Compare the queue's engine on Redis with queues of plain keys."""
    n_messages = QUICK_MESSAGES if quick else FULL_MESSAGES
    run = describe_run()
    origin = begin(run["command"])
    if is_shared:
        origin = replace(origin, doubts=("other programs ran on this machine",))
    if figures is not None:
        check_writable(figures)
    results = {n: asyncio.run(measure(n, n_messages, repeats)) for n in NODES}
    by_depth = asyncio.run(measure_depths(n_messages, repeats))
    tables = {"rates": to_table(results), "depths": to_depths(by_depth)}
    tell(["\n\n".join(map(str, tables.values()))], run)
    rates = {str(n_nodes): ways for n_nodes, ways in results.items()}
    write_json(json, {"run": run, "messages_per_second": rates, "by_depth": by_depth})
    if figures is not None:
        write_figure_file(figures, origin, tables)


main = Program(bench, "python -m benchmarks.redis_store")

if __name__ == "__main__":
    sys.exit(main())
