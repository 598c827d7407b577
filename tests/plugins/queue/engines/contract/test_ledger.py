"""Every stored message is waiting, settled or removed, for each group and at every moment."""

from __future__ import annotations

import random
from typing import Final

import pytest

from penstock.plugins.queue.engines.contract import GroupSpec
from tests.plugins.queue.engines.contract.harness import OFFSETS, Running

ENDS: Final = ("ack", "dead", "expired", "filtered", "commit")
"""What of `GroupSnapshot.settled` ends a message for its group."""


def check(running: Running, group: str, n_stored: int) -> None:
    """Hold one group's sums against what was stored since it began."""
    snapshot = running.snapshot()
    found = snapshot.groups[group]
    n_settled = sum(found.settled.get(end, 0) for end in ENDS)
    n_removed = sum(snapshot.removed.values())
    assert n_stored == found.waiting + n_settled + n_removed, (found, snapshot.removed)
    assert 0 <= found.leased + found.delayed <= found.waiting


async def test_one_group_accounts_for_every_message(running: Running) -> None:
    """Settled in every way: acknowledged, dead, expired, filtered; removed by time and by hand."""
    await running.create("dead")
    group = GroupSpec(
        max_receives=2, dead_letter_queue="dead", topics=("a/#",), visibility_timeout=10
    )
    await running.create(groups={"g": group}, retention_seconds=100.0, physical_queues=2)
    rng = random.Random(1)  # noqa: S311 - choices of a test
    n_stored = 0
    for _ in range(60):
        for number in (0, 1):
            topic = rng.choice(["a/1", "b/1"])
            await running.store(
                b"x",
                number=number,
                topic=topic,
                expiry=rng.choice([None, 5]),
                delay=rng.choice([None, None, 20]),
            )
            n_stored += 1
            received = await running.receive(rng.randrange(4), number=number)
            check(running, "g", n_stored)
            for each in received:
                action = rng.choice(["ack", "nack", "dead", "extend", None])
                if action is not None:
                    await running.settle(action, [each], 3)  # type: ignore[arg-type]
            check(running, "g", n_stored)
        running.passes(rng.choice([1, 3, 12]))
        await running.engine.maintain()
        check(running, "g", n_stored)
    await running.engine.purge("q")
    check(running, "g", n_stored)
    settled = running.group().settled
    assert min(settled[end] for end in ("ack", "dead", "expired", "filtered")) > 0
    assert running.snapshot("dead").messages == settled["dead"]


async def test_an_offsets_group_accounts_for_every_message(running: Running) -> None:
    """Committed or waiting."""
    await running.create(groups={"r": OFFSETS})
    for n in range(1, 6):
        await running.store(*(b"x" for _ in range(10)))
        await running.engine.commit("q", "r", running.position(7 * n))
        found = running.group("r")
        assert found.waiting == 10 * n - 7 * n
        assert dict(found.position) == {0: 7 * n}


async def test_removed_messages_are_counted_once_for_all_groups(running: Running) -> None:
    """A message that one group had settled and another had not left unread."""
    await running.create(groups={"r": OFFSETS, "s": OFFSETS})
    await running.store(b"a", b"b", b"c")
    await running.engine.commit("q", "r", running.position(2))
    await running.engine.purge("q")
    assert running.snapshot().removed["purge"] == 3
    assert running.snapshot().messages == 0


@pytest.mark.parametrize("way", ["reopen", "kill"])
async def test_sums_hold_behind_a_restart(durable: Running, way: str) -> None:
    """What the storage holds and what groups wait for agree."""
    await durable.create(groups={"g": GroupSpec(), "r": OFFSETS}, physical_queues=2)
    for number in (0, 1):
        await durable.store(*(b"x" for _ in range(20)), number=number)
        received = await durable.receive(number=number)
        await durable.ack(received[3:9])
        await durable.engine.commit("q", "r", durable.position(5 + number, number=number))
    before = durable.snapshot()
    await (durable.kill() if way == "kill" else durable.reopen())
    after = durable.snapshot()
    assert (after.usage, after.messages, after.payload_bytes) == (
        before.usage,
        before.messages,
        before.payload_bytes,
    )
    assert [after.groups[name].waiting for name in "gr"] == [28, 29]
    assert after.groups["g"].leased == 0
