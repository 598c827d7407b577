from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.message import Message
from penstock.plugins.queue.cluster import slots as moving
from penstock.plugins.queue.cluster.creating import id_of
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.cluster.slots import Master, SlotMove, SlotMover, share_out
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.engines.redis.login import Login
from penstock.plugins.queue.engines.redis.server import RedisServer
from tests.helpers.redis_server import running_cluster
from tests.plugins.queue.engines.contract.harness import MANY_BYTES

N_PARTS = 4


@given(
    owned=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    n_wanted=st.integers(1, 8),
)
def test_slots_are_shared_out_evenly_and_few_move(owned: list[int], n_wanted: int) -> None:
    """Each slot is given once by its owner; shares differ by one; nobody gives and gets."""
    first, slots = 0, {}
    for at, n_slots in enumerate(owned):
        slots[f"m{at}"] = list(range(first, first + n_slots))
        first += n_slots
    wanted = list(slots)[:n_wanted]
    moves = share_out(slots, wanted)
    after = {name: set(some) for name, some in slots.items()}
    for (giver, taker), some in moves.items():
        assert after[giver] >= set(some)
        after[giver] -= set(some)
        after[taker] |= set(some)
    assert sum(map(len, after.values())) == first
    shares = {len(after[name]) for name in wanted}
    assert max(shares) - min(shares) <= 1
    assert all(not some for name, some in after.items() if name not in wanted)
    assert not {giver for giver, _ in moves} & {taker for _, taker in moves}
    leaving = sum(len(some) for name, some in slots.items() if name not in wanted)
    surplus = sum(max(0, len(slots[name]) - max(shares)) for name in wanted)
    lacking = sum(max(0, max(shares) - len(slots[name])) for name in wanted)
    assert sum(map(len, moves.values())) <= max(leaving + surplus, lacking)


async def store(engine: RedisEngine, payload: bytes) -> None:
    """Store a message in each physical queue."""
    for number in range(N_PARTS):
        assert engine.reserve("q", 1, len(payload))
        await engine.append("q", number, [NewMessage(Message("t", payload), payload)])


async def test_a_move_that_breaks_off_changes_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots go to the other node; attempts fail before, as keys are too large, and midway."""
    with running_cluster(tmp_path, "cluster-allow-replica-migration no", n=2) as nodes:
        first, other = (("127.0.0.1", node.port) for node in nodes)
        servers = Servers(Login())
        giver = Master(first, await id_of(servers, first), 0)
        taker = Master(other, await id_of(servers, other), 0)
        move = SlotMove(tuple(range(8_192)), giver, taker)
        engine = RedisEngine(RedisServer(cluster=(other,)), logger=logging.getLogger("test"))
        await engine.open()
        spec = QueueSpec(physical_queues=N_PARTS, groups={"g": GroupSpec()})
        await engine.create_queue("q", spec)
        while not await servers.ask(first, "DBSIZE"):  # hash tags are random
            await engine.delete_queue("q")
            await engine.create_queue("q", spec)
        await store(engine, b"before")

        monkeypatch.setattr(moving, "MOST_KEY_BYTES", 1)
        with pytest.raises(FabricError, match=r"key penstock:.*: read .*; allowed: 1 B, as its"):
            await SlotMover(servers, Login(), print).check([move])

        def fail(_: str) -> None:
            raise FabricError("broken off")

        with pytest.raises(FabricError, match="broken off"):
            await SlotMover(servers, Login(), fail).move(move)
        await store(engine, b"between")
        told: list[str] = []
        await SlotMover(servers, Login(), told.append).move(
            move._replace(slots=tuple(await of_node(servers, giver)))
        )
        assert told
        assert await of_node(servers, giver) == []
        assert await servers.ask(first, "DBSIZE") == 0
        await store(engine, b"after")
        received: Counter[bytes] = Counter()
        for number in range(N_PARTS):
            leased = await engine.lease("q", "g", number, 100, MANY_BYTES)
            received.update(message.payload for message in leased)
        # Each payload is its deduplication identifier: it is stored once in the queue.
        assert received == Counter([b"before", b"between", b"after"])
        await engine.close()
        await servers.close()


async def of_node(servers: Servers, master: Master) -> list[int]:
    """Return the slots that a node says it has."""
    told = await servers.ask(master.address, "CLUSTER", "SLOTS")
    return [
        slot
        for first, last, node, *_ in told
        if node[1] == master.address[1]
        for slot in range(first, last + 1)
    ]
