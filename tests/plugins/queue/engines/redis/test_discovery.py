"""Servers that fail and those that take over, found by sentinels and in a cluster."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from penstock.broker.message import Message
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.contract import (
    Action,
    AppendResult,
    EngineStartError,
    GroupSpec,
    NewMessage,
    QueueSpec,
    StorageError,
)
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.wire.frames import ReceivedMessage
from penstock.plugins.redis.discovery import RedisSentinels, SentinelFinder
from penstock.plugins.redis.login import Address, Login
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from tests.helpers.clock import Clock
from tests.helpers.redis_server import (
    RedisProcess,
    running_cluster,
    running_redis,
    running_sentinels,
    shared_cluster,
    shared_redis,
)
from tests.plugins.queue.engines.contract.harness import MANY_BYTES, UNTIL_SECONDS, until

LOGGER = logging.getLogger("penstock.queue")
SPEC = QueueSpec(physical_queues=2, groups={"g": GroupSpec()})
PATIENT = Patience(retry_seconds=UNTIL_SECONDS, min_replicas=1, replication_seconds=0.5)


async def answer(address: Address, *command: str) -> str:
    """Return what a server answers; "" for an error."""
    try:
        return str(await Login().ask(address, *command))
    except (RedisError, OSError):  # whoever waits asks again
        return ""


async def until_answered(address: Address, *command: str, wanted: str) -> None:
    """Wait until a server's answer has a word."""
    async with asyncio.timeout(UNTIL_SECONDS):
        while wanted not in await answer(address, *command):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def publish(engine: RedisEngine, payload: bytes) -> None:
    """Store a message; repeat it, as a publisher does, until it is acknowledged."""
    new = NewMessage(Message("t", payload), deduplication_id=payload)
    while True:
        assert engine.reserve("q", 1, len(payload))
        try:
            await engine.append("q", len(payload) % 2, [new])
        except StorageError:
            continue
        return


async def drained(engine: RedisEngine) -> Counter[bytes]:
    """Receive and acknowledge everything."""
    found: Counter[bytes] = Counter()
    for number in (0, 1):
        while received := await engine.lease("q", "g", number, 100, MANY_BYTES):
            handles = [message.receipt_handle for message in received]
            assert await engine.settle("q", "g", "ack", handles) == {}
            found.update(message.payload for message in received)
    return found


async def lost_by_a_kill(
    engine: RedisEngine, master: RedisProcess
) -> tuple[Counter[bytes], Counter[bytes]]:
    """Kill a server while messages come; return those that are lost, and those that are double."""
    payloads = [b"%d" % n for n in range(400)]
    n_acknowledged = 0

    async def publish_some(some: list[bytes]) -> None:
        nonlocal n_acknowledged
        for payload in some:
            await publish(engine, payload)
            n_acknowledged += 1

    publishers = [asyncio.create_task(publish_some(payloads[n::20])) for n in range(20)]
    await until(lambda: n_acknowledged > 100)
    master.process.kill()
    assert n_acknowledged < len(payloads)
    await asyncio.gather(*publishers)
    assert engine.failure() is None
    received = await drained(engine)
    return Counter(payloads) - received, received - Counter(payloads)


async def test_a_failover_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The master is killed while messages come: each is there once, and calls go on."""
    with ExitStack() as stack:
        master = stack.enter_context(running_redis(tmp_path / "0"))
        for name in ("1", "2"):
            line = f"replicaof 127.0.0.1 {master.port}"
            stack.enter_context(running_redis(tmp_path / name, line))
        ports = stack.enter_context(running_sentinels(tmp_path, master.port))
        addresses = tuple(("127.0.0.1", port) for port in ports)
        await until_answered(("127.0.0.1", master.port), "WAIT", "2", "100", wanted="2")
        for address in addresses:
            await until_answered(address, "SENTINEL", "CKQUORUM", "m", wanted="OK 3")
            replicas = ("SENTINEL", "MASTER", "m")
            await until_answered(address, *replicas, wanted="b'num-slaves', b'2'")
        server = RedisServer(sentinels=RedisSentinels(addresses, "m"), patience=PATIENT)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", SPEC)
        assert await lost_by_a_kill(engine, master) == (Counter(), Counter())
        await engine.maintain()
        assert engine.snapshot("q").messages == 0
        await engine.close()


async def test_sentinels_that_cannot_tell_are_named(tmp_path: Path) -> None:
    """One that is not there, and one that knows no such master."""
    with running_sentinels(tmp_path, shared_redis(), n=1) as (port,):
        addresses = (("127.0.0.1", 1), ("127.0.0.1", port))
        server = RedisServer(sentinels=RedisSentinels(addresses, "other"))
        with pytest.raises(EngineStartError) as told:
            await RedisEngine(server, logger=LOGGER).open()
        assert "sentinels of master other: 127.0.0.1:1: " in str(told.value)
        assert f"127.0.0.1:{port}: it knows no master other" in str(told.value)
        finder = SentinelFinder(RedisSentinels(addresses, "m"))
        for _ in range(2):
            assert await finder.find() == [(0, 0, ("127.0.0.1", shared_redis()))]


async def test_sentinels_have_a_login_of_their_own(tmp_path: Path) -> None:
    """User and password of the sentinels are not those of the master."""
    acl = "user watcher on >secret +sentinel|get-master-addr-by-name"
    file = tmp_path / "password"
    file.write_text("secret")
    with running_sentinels(tmp_path, shared_redis(), acl, n=1) as (port,):
        login = Login("watcher", str(file))
        sentinels = RedisSentinels((("127.0.0.1", port),), "m", login)
        assert await SentinelFinder(sentinels).find() == [(0, 0, ("127.0.0.1", shared_redis()))]
        file.write_text("other")
        with pytest.raises(EngineStartError, match="invalid username-password"):
            await SentinelFinder(sentinels).find()


# -- clusters --------------------------------------------------------------------------------------


def address_of(process: RedisProcess) -> Address:
    """Return where a server listens."""
    return "127.0.0.1", process.port


def slot_of(engine: RedisEngine, prefix: str, number: int) -> int:
    """Return the slot of a physical queue."""
    key = f"{prefix}:{{{engine.snapshot('q').incarnation}.{number}}}"
    return int(key_slot(key.encode()))


async def test_a_failover_of_a_node_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The master of all physical queues is killed; its replica takes its slots."""
    timeout = "cluster-node-timeout 1000"
    with running_cluster(tmp_path, timeout, is_even=False) as nodes, ExitStack() as stack:
        first = address_of(nodes[0])
        identifier = await Login().ask(first, "CLUSTER", "MYID")
        everybody = [address_of(node) for node in nodes]
        for at in range(2):
            bus_port = stack.enter_context(reserved_port())
            # It takes over however long the others take to vote for it.
            always = "cluster-replica-validity-factor 0"
            lines = ("cluster-enabled yes", f"cluster-port {bus_port}", timeout, always)
            replica = stack.enter_context(running_redis(tmp_path / f"replica{at}", *lines))
            meet = ("CLUSTER", "MEET", "127.0.0.1", str(replica.port), str(bus_port))
            assert await Login().ask(first, *meet) == b"OK"
            replicate = ("CLUSTER", "REPLICATE", identifier.decode())
            await until_answered(address_of(replica), *replicate, wanted="OK")
            everybody.append(address_of(replica))
        await until_answered(first, "WAIT", "2", "100", wanted="2")
        for one in everybody:
            await until_answered(one, "CLUSTER", "INFO", wanted="known_nodes:5")
        server = RedisServer(cluster=tuple(map(address_of, nodes)), patience=PATIENT)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", SPEC)
        assert await lost_by_a_kill(engine, nodes[0]) == (Counter(), Counter())
        await engine.close()


async def test_a_slot_that_moves_is_followed(tmp_path: Path) -> None:
    """To a new master, which gets the library; no message is lost, doubled or out of order."""
    with running_cluster(tmp_path) as nodes, ExitStack() as stack:
        bus_port = stack.enter_context(reserved_port())
        lines = ("cluster-enabled yes", f"cluster-port {bus_port}")
        new = stack.enter_context(running_redis(tmp_path / "new", *lines))
        taker = address_of(new)
        meet = ("CLUSTER", "MEET", "127.0.0.1", str(new.port), str(bus_port))
        assert await Login().ask(address_of(nodes[0]), *meet) == b"OK"
        await until_answered(taker, "CLUSTER", "INFO", wanted="cluster_state:ok")
        server = RedisServer(cluster=(address_of(nodes[0]),), local_nodes=(taker,))
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", SPEC)
        is_local = engine.locality("q")
        assert is_local is not None
        assert not is_local(0)
        slot = slot_of(engine, "penstock", 0)
        giver = address_of(nodes[slot * 3 // 16_384])
        identifiers = {
            one: (await Login().ask(one, "CLUSTER", "MYID")).decode() for one in (giver, taker)
        }
        # The taker has met another node; this one hears of it from that.
        await until_answered(giver, "CLUSTER", "NODES", wanted=identifiers[taker])
        calls = [append(engine, 0, b"%d" % n) for n in range(10)]
        setslot = ("CLUSTER", "SETSLOT", str(slot))
        await Login().ask(taker, *setslot, "IMPORTING", identifiers[giver])
        await Login().ask(giver, *setslot, "MIGRATING", identifiers[taker])
        await asyncio.gather(*calls)
        calls = [append(engine, 0, b"%d" % n) for n in range(10, 20)]
        await append(engine, 1, b"another slot goes on")
        assert not any(call.done() for call in calls)
        keys = await Login().ask(giver, "CLUSTER", "GETKEYSINSLOT", str(slot), "100")
        names = [key.decode() for key in keys]
        move = ("MIGRATE", "127.0.0.1", str(new.port), "", "0", "5000", "KEYS")
        assert await Login().ask(giver, *move, *names) == b"OK"
        for one in (taker, giver):
            await Login().ask(one, *setslot, "NODE", identifiers[taker])
        await asyncio.gather(*calls)
        received = await engine.lease("q", "g", 0, 100, MANY_BYTES)
        assert [one.payload for one in received] == [b"%d" % n for n in range(20)]
        assert [one.offset for one in received] == list(range(20))
        assert (is_local(0), is_local(1)) == (True, False)
        assert engine.failure() is None
        await engine.close()


def append(engine: RedisEngine, number: int, payload: bytes) -> asyncio.Future[AppendResult]:
    """Store a message."""
    assert engine.reserve("q", 1, len(payload))
    return engine.append("q", number, [NewMessage(Message("t", payload))])


async def test_a_repeat_is_found_in_whichever_physical_queue_it_comes() -> None:
    """Also by another program, and not when it was forgotten; a known new one is stored."""
    server = RedisServer(cluster=shared_cluster(), prefix=f"test-{uuid.uuid4().hex}")
    one, other = RedisEngine(server, logger=LOGGER), RedisEngine(server, logger=LOGGER)
    await one.open()
    await one.create_queue("q", SPEC)
    await other.open()

    async def store(engine: RedisEngine, number: int, *, is_repeat: bool = True) -> list[int]:
        new = NewMessage(Message("t", b"a"), b"id", is_repeat=is_repeat)
        assert engine.reserve("q", 1, 1)
        return list((await engine.append("q", number, [new])).duplicates)

    assert await store(one, 0) == []
    assert await store(one, 1) == [0]
    assert await store(other, 1) == [0]
    assert await store(other, 0) == [0]
    assert await store(other, 1, is_repeat=False) == []
    await one.forget("q", [b"id"])
    assert await store(one, 0) == []
    assert await store(other, 1) == [0]
    await one.maintain()
    assert {at: each.messages for at, each in one.snapshot("q").usage.items()} == {0: 2, 1: 1}
    await one.close()
    await other.close()


@pytest.mark.parametrize("shift", [600.0, -600.0])
async def test_clocks_of_nodes_may_be_minutes_apart(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is lost, none comes twice, nothing ends early, whichever the engine goes by."""
    nodes = shared_cluster()
    server = RedisServer(cluster=nodes, prefix=f"test-{uuid.uuid4().hex}")
    engine = RedisEngine(server, logger=LOGGER)
    functions, call = engine._functions, engine._functions.call
    ahead = dict(zip(nodes, (0.0, 600.0, -600.0), strict=True))

    def call_by_its_clock(function: str, keys: list[str], *args: Any) -> asyncio.Future[Any]:
        own = repr(time.time() + ahead[engine._routes.address_of(keys[0])])
        return call(function, keys, *(own if one == "clock" else one for one in args))

    functions._shift = time.time() + shift - time.monotonic()
    monkeypatch.setattr(functions, "given", lambda: "clock")
    monkeypatch.setattr(functions, "call", call_by_its_clock)
    await engine.open()
    group = GroupSpec(visibility_timeout=300.0, group_expiry_seconds=300.0)
    spec = QueueSpec(physical_queues=12, groups={"g": group}, retention_seconds=300.0)
    await engine.create_queue("q", spec)
    parts = engine._catalogue.find("q").physical.values()
    assert len({engine._routes.address_of(part.base) for part in parts}) == 3
    new = NewMessage(Message("t", b"m", arrived_at=time.monotonic()))
    for number in range(12):
        assert engine.reserve("q", 1, 1)
        await engine.append("q", number, [new])
    for receive_count in (1, 2):
        await engine.maintain()
        assert dict(engine.visible("q", "g")) == dict.fromkeys(range(12), 1)
        found = [one for at in range(12) for one in await engine.lease("q", "g", at, 9, MANY_BYTES)]
        assert [one.receive_count for one in found] == [receive_count] * 12
        assert dict(engine.visible("q", "g")) == {}
        assert [one for at in range(12) for one in await engine.lease("q", "g", at, 9, 1)] == []
        handles = [one.receipt_handle for one in found]
        assert await engine.settle("q", "g", "extend", handles, 300.0) == {}
        action: Action = "nack" if receive_count == 1 else "ack"
        assert await engine.settle("q", "g", action, handles) == {}
    for number, duplicates in ((0, []), (11, [0])):
        new = NewMessage(Message("t", b"i", arrived_at=time.monotonic()), b"i")
        assert engine.reserve("q", 1, 1)
        assert list((await engine.append("q", number, [new])).duplicates) == duplicates
    await engine.maintain()
    assert engine.snapshot("q").messages == 1
    await engine.close()


async def test_a_cluster_half_up_is_refused(tmp_path: Path) -> None:
    """With slots that no node has; so is a server of the other kind."""
    with (
        reserved_port() as bus_port,
        running_redis(tmp_path, "cluster-enabled yes", f"cluster-port {bus_port}") as node,
    ):
        told = "read 1 slots that have a master; allowed: 16384"
        await Login().ask(address_of(node), "CLUSTER", "ADDSLOTS", "0")
        for server, why in (
            (RedisServer(cluster=(address_of(node),)), told),
            (RedisServer(port=node.port), "read cluster_enabled: 1; allowed: a server that is in"),
            (RedisServer(cluster=(("127.0.0.1", 1),)), "Redis cluster: 127.0.0.1:1: "),
            (RedisServer(cluster=(("127.0.0.1", shared_redis()),)), "cluster support disabled"),
        ):
            with pytest.raises(EngineStartError, match=why):
                await RedisEngine(server, logger=LOGGER).open()


async def test_a_node_that_fails_holds_its_own_physical_queues_alone(tmp_path: Path) -> None:
    """The others go on; calls to it fail by name in time, and go on when it is back."""
    with running_cluster(tmp_path, "cluster-require-full-coverage no") as nodes:
        patience = Patience(timeout_seconds=0.5, retry_seconds=1.0)
        server = RedisServer(cluster=tuple(map(address_of, nodes)), patience=patience)
        clock = Clock()
        engine = RedisEngine(server, server_clock=clock, logger=LOGGER)
        await engine.open()
        spec = replace(SPEC, physical_queues=12, retention_seconds=60.0)
        await engine.create_queue("q", spec)
        slots = {number: slot_of(engine, "penstock", number) for number in range(12)}
        frozen = nodes[slots[0] * 3 // 16_384]
        others = [at for at in slots if nodes[slots[at] * 3 // 16_384] is not frozen]
        await append(engine, 0, b"first")
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            waiting = append(engine, 0, b"a")
            await asyncio.gather(*(append(engine, at, b"b") for at in others))
            with pytest.raises(StorageError, match=f"127.0.0.1:{frozen.port}.*unknown"):
                await waiting
            assert f"127.0.0.1:{frozen.port}" in (engine.failure() or "")
            # A receive is not to wait for what cannot be had.
            assert list(engine.visible("q", "g")) == others
            # Nor is upkeep of the other nodes, even if it is the one that has the catalogue.
            clock.sleep(61.0)
            with suppress(StorageError):
                await engine.maintain()
            assert {at for at, held in engine.snapshot("q").usage.items() if held.messages} == {0}
            seen = await engine.wait_for_arrival("q", "g", -1, 0)
            returned = asyncio.create_task(engine.wait_for_arrival("q", "g", seen, UNTIL_SECONDS))
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        await until(lambda: engine.failure() is None)
        assert await returned != seen
        assert 0 in engine.visible("q", "g")
        await append(engine, 0, b"c")
        payloads = [one.payload for one in await engine.lease("q", "g", 0, 9, MANY_BYTES)]
        assert payloads in ([b"first", b"a", b"c"], [b"first", b"c"])
        await engine.close()


async def leased(engine: RedisEngine, number: int) -> list[ReceivedMessage]:
    """Return what can be received of a physical queue, as soon as there is anything."""
    seen = -1
    while not (found := await engine.lease("q", "g", number, 12, MANY_BYTES)):
        seen = await engine.wait_for_arrival("q", "g", seen, UNTIL_SECONDS)
    return found


async def test_a_frozen_node_holds_up_no_receive(tmp_path: Path) -> None:
    """What it leases at last goes back unseen: as often as that happens, it is received first."""
    settings = ("cluster-require-full-coverage no", "cluster-node-timeout 600000")
    with running_cluster(tmp_path, *settings) as nodes:
        patience = Patience(300.0, 600.0, slowdown_detection_time=0.1)
        server = RedisServer(cluster=tuple(map(address_of, nodes)), patience=patience)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        group = GroupSpec(max_receives=2, max_leased_messages=12)
        await engine.create_queue("q", replace(SPEC, physical_queues=12, groups={"g": group}))
        slots = {number: slot_of(engine, "penstock", number) for number in range(12)}
        frozen = nodes[slots[0] * 3 // 16_384]
        others = [at for at in slots if nodes[slots[at] * 3 // 16_384] is not frozen]
        await asyncio.gather(*(append(engine, number, b"m") for number in slots))
        async with asyncio.timeout(UNTIL_SECONDS):
            for _ in range(3):
                frozen.process.send_signal(signal.SIGSTOP)
                try:
                    assert await engine.lease("q", "g", 0, 12, MANY_BYTES) == []
                    await until(lambda: 0 not in engine.visible("q", "g"))
                    away = engine.away("q")
                    assert set(away) == set(slots) - set(others)
                    assert engine.away("q") is away  # it is asked for with each message
                    engine.give_back("q", "g", await leased(engine, others[0]))
                    seen = await engine.wait_for_arrival("q", "g", -1, 0)
                    # No further receive is sent to it.
                    assert await engine.lease("q", "g", 0, 12, MANY_BYTES) == []
                finally:
                    frozen.process.send_signal(signal.SIGCONT)
                while 0 not in engine.visible("q", "g"):
                    seen = await engine.wait_for_arrival("q", "g", seen, UNTIL_SECONDS)
            found = await leased(engine, 0)
            assert engine.away("q") == ()
        assert [(one.payload, one.receive_count) for one in found] == [(b"m", 1)]
        await engine.close()


async def test_a_frozen_node_that_is_replaced_is_not_waited_for(tmp_path: Path) -> None:
    """What is under way to it goes to the replica that has its slots before it is given up."""
    settings = ("cluster-require-full-coverage no", "cluster-node-timeout 5000")
    with running_cluster(tmp_path, *settings, is_even=False) as nodes, ExitStack() as stack:
        first = address_of(nodes[0])
        bus_port = stack.enter_context(reserved_port())
        lines = ("cluster-enabled yes", f"cluster-port {bus_port}", *settings)
        replica = address_of(stack.enter_context(running_redis(tmp_path / "replica", *lines)))
        meet = ("CLUSTER", "MEET", *map(str, replica), str(bus_port))
        assert await Login().ask(first, *meet) == b"OK"
        for one in (*map(address_of, nodes), replica):
            await until_answered(one, "CLUSTER", "INFO", wanted="known_nodes:4")
        identifier = await Login().ask(first, "CLUSTER", "MYID")
        await until_answered(replica, "CLUSTER", "REPLICATE", identifier.decode(), wanted="OK")
        patience = Patience(UNTIL_SECONDS, UNTIL_SECONDS, slowdown_detection_time=0.1)
        server = RedisServer(cluster=tuple(map(address_of, nodes)), patience=patience)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", SPEC)
        n_keys = await answer(first, "DBSIZE")
        await until_answered(replica, "DBSIZE", wanted=n_keys)
        nodes[0].process.send_signal(signal.SIGSTOP)
        try:
            waiting = append(engine, 0, b"m")
            await answer(replica, "CLUSTER", "FAILOVER", "TAKEOVER")  # if it has not done so itself
            async with asyncio.timeout(UNTIL_SECONDS / 2):
                await waiting
        finally:
            nodes[0].process.send_signal(signal.SIGCONT)
        await engine.close()


async def test_a_receive_that_was_given_up_goes_back_however_late_the_answer_is(
    tmp_path: Path,
) -> None:
    """Other calls fail by then."""
    settings = ("cluster-require-full-coverage no", "cluster-node-timeout 600000")
    with running_cluster(tmp_path, *settings) as nodes:
        patience = Patience(0.5, 1.0, slowdown_detection_time=0.1)
        server = RedisServer(cluster=tuple(map(address_of, nodes)), patience=patience)
        engine = RedisEngine(server, logger=LOGGER)
        await engine.open()
        await engine.create_queue("q", replace(SPEC, physical_queues=12))
        frozen = nodes[slot_of(engine, "penstock", 0) * 3 // 16_384]
        await append(engine, 0, b"m")
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(UNTIL_SECONDS):
                assert await engine.lease("q", "g", 0, 9, MANY_BYTES) == []
            with pytest.raises(StorageError):
                await append(engine, 0, b"later")
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(UNTIL_SECONDS):
            found: dict[bytes, int] = {}
            while b"m" not in found:
                found |= {one.payload: one.receive_count for one in await leased(engine, 0)}
        assert found[b"m"] == 1
        await engine.close()
