from __future__ import annotations

import stat
from pathlib import Path

import pytest

from penstock.plugins.queue.engines.contract import GroupSpec, IncarnationError, StorageError
from tests.plugins.queue.engines.contract.harness import LEASE, OFFSETS, Running

# -- purge ------------------------------------------------------------------------------------


async def test_a_purge_removes_all_messages(durable: Running) -> None:
    """For every group, leased and delayed ones too; offsets go on."""
    await durable.create(groups={"g": LEASE, "r": OFFSETS}, physical_queues=2)
    await durable.store(b"a", b"b", b"c")
    await durable.store(b"d", number=1, delay=60)
    received = await durable.receive(2)
    assert await durable.engine.purge("q") == 4
    snapshot = durable.snapshot()
    assert (snapshot.messages, snapshot.payload_bytes, snapshot.removed["purge"]) == (0, 0, 4)
    for group in snapshot.groups.values():
        assert (group.waiting, group.leased, group.delayed) == (0, 0, 0)
        assert dict(group.position) == {0: 3, 1: 1}
    assert await durable.settle("ack", received) == {0: "stale", 1: "stale"}
    assert (await durable.store(b"e")).offsets == [3]
    await durable.kill()
    assert await durable.payloads() == [b"e"]
    assert await durable.engine.purge("q") == 1
    assert await durable.engine.purge("q") == 0


async def test_a_purged_queue_has_its_room_back(running: Running) -> None:
    """All of it."""
    await running.create(max_messages=2)
    await running.store(b"a", b"b")
    await running.engine.purge("q")
    assert running.engine.reserve("q", 2, 2)


# -- the newest of each key -------------------------------------------------------------------


async def test_the_newest_message_of_each_key_is_kept(durable: Running) -> None:
    """The older ones leave unread and are counted."""
    await durable.create(key="topic", keeps_last=True, groups={"g": LEASE, "r": OFFSETS})
    for n in range(5):
        for topic in ("a", "b"):
            await durable.store(b"%s%d" % (topic.encode(), n), topic=topic)
    await durable.engine.maintain()
    snapshot = durable.snapshot()
    assert (snapshot.messages, snapshot.removed["keeps_last"]) == (2, 8)
    assert snapshot.groups["r"].waiting == 2
    await durable.kill()
    await durable.engine.maintain()
    assert await durable.held() == [b"a4", b"b4"]
    await durable.store(b"a5", topic="a")
    await durable.engine.maintain()
    assert await durable.drain() == [b"b4", b"a5"]


async def test_the_newest_counts_within_one_append(running: Running) -> None:
    """The last message of each key stays, of those that come together."""
    await running.create(key="topic", keeps_last=True)
    await running.append([running.new(b"%d" % n, topic="ab"[n % 2]) for n in range(10)])
    await running.engine.maintain()
    assert await running.drain() == [b"8", b"9"]


async def test_messages_without_a_key_are_all_kept(running: Running) -> None:
    """Where the property is missing, no message replaces another."""
    await running.create(key="property:line", keeps_last=True)
    await running.store(b"a", b"b")
    await running.store(b"c", b"d", key="x")
    await running.engine.maintain()
    assert await running.drain() == [b"a", b"b", b"d"]


async def test_a_new_group_gets_the_newest_of_each_key(running: Running) -> None:
    """What a reader that comes late wants: the present state, once for each key."""
    await running.create(key="topic", keeps_last=True, groups={"hold": OFFSETS})
    for n in range(3):
        for topic in "abc":
            await running.store(b"%s%d" % (topic.encode(), n), topic=topic)
    await running.engine.maintain()
    await running.engine.create_group("q", "g", LEASE)
    assert await running.drain() == [b"a2", b"b2", b"c2"]


# -- space ------------------------------------------------------------------------------------


async def test_compaction_loses_nothing(durable: Running) -> None:
    """Whatever was removed before, what is there stays, behind a kill too."""
    await durable.create(groups={"g": LEASE, "r": OFFSETS})
    for _ in range(20):
        await durable.store(*(bytes(10_000) for _ in range(10)))
    await durable.engine.commit("q", "r", durable.position(190))
    received = await durable.receive(1000)
    await durable.ack(received[:185])
    before = durable.snapshot()
    freed = await durable.engine.compact()
    assert freed > 500_000 or not durable.storage.has_file
    after = durable.snapshot()
    assert (after.messages, after.usage[0].next) == (before.messages, 200)
    await durable.ack(received[185:190])
    await durable.kill()
    assert len(await durable.receive(1000)) == 10
    assert (await durable.store(b"more")).offsets == [200]


async def test_compaction_of_an_empty_engine_frees_nothing(running: Running) -> None:
    """It can be called at any time."""
    assert await running.engine.compact() >= 0


async def test_maintenance_may_be_called_at_any_time(running: Running) -> None:
    """Without queues, with many, and while messages are stored."""
    await running.engine.maintain()
    await running.create(retention_seconds=60.0)
    storing = running.append([running.new(b"%d" % n) for n in range(50)])
    await running.engine.maintain()
    await storing
    assert len(await running.drain()) == 50


async def test_a_backup_opens_and_holds_the_same(filed: Running, tmp_path: Path) -> None:
    """Queues, groups, positions, settled messages and deduplication windows, as of one moment."""
    await filed.create(groups={"g": GroupSpec(visibility_timeout=5), "r": OFFSETS})
    await filed.create("other")
    await filed.store(*(b"%d" % n for n in range(10)))
    await filed.store(b"last", dedup=b"1")
    received = await filed.receive()
    await filed.ack(received[::2])
    await filed.engine.commit("q", "r", filed.position(3))
    path = tmp_path / "backup"
    n_bytes = await filed.engine.backup(str(path))
    assert n_bytes == path.stat().st_size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    at_backup = filed.snapshot()
    await filed.store(b"later")
    copy = Running(filed.storage.of_backup(path), filed.clock)
    await copy.open()
    try:
        snapshot = copy.snapshot()
        assert sorted(copy.engine.queues()) == ["other", "q"]
        assert snapshot.usage == at_backup.usage
        assert dict(copy.group("r").position) == {0: 3}
        assert copy.group().waiting == at_backup.groups["g"].waiting
        assert list((await copy.store(b"last", dedup=b"1")).duplicates) == [0]
        assert await copy.payloads() == [b"1", b"3", b"5", b"7", b"9"]
    finally:
        await copy.close()


async def test_a_backup_that_is_opened_is_another_queue(filed: Running, tmp_path: Path) -> None:
    """Offsets that it gives were others' in the life of before: their readers are told."""
    await filed.create(groups={"g": LEASE, "r": OFFSETS})
    await filed.store(*(b"%d" % n for n in range(10)))
    path = tmp_path / "backup"
    await filed.engine.backup(str(path))
    (received,) = await filed.receive(1)
    await filed.store(*(b"old%d" % n for n in range(10)))
    seen = filed.position(20)
    before = filed.snapshot().incarnation
    copy = Running(filed.storage.of_backup(path), filed.clock)
    await copy.open()
    await copy.store(*(b"new%d" % n for n in range(10)))
    for _ in range(2):
        incarnation = copy.snapshot().incarnation
        assert incarnation != before
        with pytest.raises(IncarnationError, match=before):
            await copy.engine.plan("q", seen, 100, None)
        with pytest.raises(IncarnationError, match=before):
            await copy.engine.commit("q", "r", seen)
        assert await copy.settle("ack", [received]) == {0: "unknown"}
        assert len(await copy.held()) == 20
        await copy.reopen()
        assert copy.snapshot().incarnation == incarnation
    await copy.close()
    await filed.reopen()
    assert filed.snapshot().incarnation == before


async def test_a_backup_replaces_no_file(filed: Running, tmp_path: Path) -> None:
    """An existing file and a missing folder are errors; the engine goes on."""
    await filed.create()
    path = tmp_path / "there"
    path.write_bytes(b"precious")
    for target in (path, tmp_path / "missing" / "backup"):
        with pytest.raises(StorageError, match=target.name):
            await filed.engine.backup(str(target))
    assert path.read_bytes() == b"precious"
    await filed.store(b"a")
    assert filed.engine.failure() is None


async def test_figures_are_names_and_numbers(running: Running) -> None:
    """For operators: they can be told as JSON."""
    await running.create()
    await running.store(b"a")
    assert all(isinstance(name, str) for name in running.engine.figures())


async def test_compacting_frees_what_left_segments_of_others(filed: Running) -> None:
    """One message that is left of a segment does not keep the space of the rest."""
    await filed.create(groups={}, key="topic", keeps_last=True)
    large = [filed.new(b"x" * 20_000, f"plant/{n}") for n in range(10)]
    await filed.append(large)
    await filed.append([filed.new(b"y", f"plant/{n}") for n in range(9)])
    assert await filed.engine.compact() > 100_000
    assert await filed.held() == [b"x" * 20_000, *[b"y"] * 9]
