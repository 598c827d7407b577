from __future__ import annotations

import pytest

from penstock.plugins.queue.engines.contract import (
    IncarnationError,
    OffsetError,
    Position,
    RangeGoneError,
    ReaderError,
)
from penstock.plugins.queue.wire.frames import read_batch
from tests.plugins.queue.engines.contract.harness import LEASE, OFFSETS, Running


async def with_messages(running: Running, n_messages: int = 10, n_physical: int = 1) -> None:
    """Create a queue with an offsets group and numbered messages in each physical queue."""
    await running.create(groups={"r": OFFSETS}, physical_queues=n_physical)
    for number in range(n_physical):
        await running.store(*(b"%d" % n for n in range(n_messages)), number=number)


# -- read -------------------------------------------------------------------------------------


async def test_a_range_holds_the_same_until_it_is_committed(durable: Running) -> None:
    """Read twice, in pieces, and behind a restart."""
    await with_messages(durable)
    whole = await durable.batch(2, 7)
    assert whole.payload == [b"%d" % n for n in range(2, 7)]
    assert whole.offset == [2, 3, 4, 5, 6]
    assert await durable.batch(2, 7) == whole
    await durable.engine.commit("q", "r", durable.position(2))
    await durable.store(b"more")
    assert await durable.batch(2, 7) == whole
    await durable.kill()
    assert await durable.batch(2, 7) == whole


async def test_a_range_is_cut_to_a_number_of_messages(running: Running) -> None:
    """The first ones; none for a limit of 0 or an empty range."""
    await with_messages(running)
    frames = await running.engine.read("q", 0, 3, 10, 2)
    assert read_batch(b"".join(frames)).offset == [3, 4]
    assert await running.engine.read("q", 0, 4, 4, 10) == []
    assert await running.engine.read("q", 0, 10, 10, 10) == []


async def test_a_large_range_comes_in_parts(running: Running) -> None:
    """Each answer is some MiB at most and never empty; together they are the range."""
    await running.create(groups={"r": OFFSETS})
    payload = bytes(300_000)
    for n in range(60):
        await running.store(b"%02d" % n + payload)
    frames = await running.engine.read("q", 0, 0, 60, 60)
    first = read_batch(b"".join(frames))
    assert 0 < len(first.offset) < 60
    batch = await running.batch(0, 60)
    assert [each[:2] for each in batch.payload] == [b"%02d" % n for n in range(60)]


async def test_a_range_has_the_holes_that_settled_messages_leave(running: Running) -> None:
    """What all groups are done with is not read again; what one waits for is."""
    await running.create()
    await running.store(*(b"%d" % n for n in range(5)))
    received = await running.receive()
    await running.ack([received[1], received[3]])
    batch = await running.batch(0, 5)
    assert set(batch.offset) >= {0, 2, 4}
    assert running.snapshot().messages == 3


async def test_a_range_below_the_earliest_is_gone(running: Running) -> None:
    """The error says where to go on; it is another one than that of a wrong offset."""
    await with_messages(running)
    await running.engine.commit("q", "r", running.position(4))
    with pytest.raises(RangeGoneError) as error:
        await running.engine.read("q", 0, 2, 6, 10)
    assert error.value.earliest == 4
    assert (await running.batch(4, 6)).payload == [b"4", b"5"]


@pytest.mark.parametrize(
    ("number", "start", "end"), [(7, 0, 1), (0, 0, 11), (0, 5, 4), (0, -1, 4), (-1, 0, 1)]
)
async def test_a_range_that_does_not_exist_is_an_error(
    running: Running, number: int, start: int, end: int
) -> None:
    """No such physical queue, an end behind the newest message, an end before the start."""
    await with_messages(running)
    with pytest.raises(OffsetError):
        await running.engine.read("q", number, start, end, 10)


# -- commit -----------------------------------------------------------------------------------


async def test_a_commit_moves_a_group_forward_only(durable: Running) -> None:
    """A lower one does nothing; it survives a kill."""
    await durable.create(groups={"r": OFFSETS, "s": OFFSETS}, physical_queues=2)
    for number in (0, 1):
        await durable.store(*(b"%d" % n for n in range(5)), number=number)
    incarnation = durable.snapshot().incarnation
    await durable.engine.commit("q", "r", Position(incarnation, {0: 3}))
    await durable.engine.commit("q", "r", Position(incarnation, {0: 1, 1: 2}))
    assert dict(durable.group("r").position) == {0: 3, 1: 2}
    assert durable.group("r").waiting == 5
    await durable.kill()
    assert dict(durable.group("r").position) == {0: 3, 1: 2}
    assert dict(durable.group("s").position) == {0: 0, 1: 0}
    assert durable.snapshot().messages == 10


async def test_a_group_belongs_to_the_first_reader_that_commits_until_a_seek(
    durable: Running,
) -> None:
    """Others move nothing, named or not; it survives a kill and other settings of the group."""
    await durable.create(groups={"r": OFFSETS, "s": OFFSETS})
    await durable.store(*(b"%d" % n for n in range(5)), number=0)
    incarnation = durable.snapshot().incarnation
    commit = durable.engine.commit
    assert durable.group("r").reader == ""
    await commit("q", "r", Position(incarnation, {0: 1}))
    with pytest.raises(IncarnationError):
        await commit("q", "r", Position("other", {}), "one")
    await commit("q", "r", Position(incarnation, {}), "one")
    assert (durable.group("r").reader, dict(durable.group("r").position)[0]) == ("one", 1)
    await commit("q", "r", Position(incarnation, {0: 2}), "one")
    await durable.engine.change_group("q", "r", OFFSETS)
    for reader in ("two", ""):
        with pytest.raises(ReaderError, match="allowed: one, to which the group belongs"):
            await durable.engine.commit("q", "r", Position(incarnation, {0: 5}), reader)
    await durable.engine.commit("q", "s", Position(incarnation, {0: 5}), "two")
    await durable.kill()
    assert (durable.group("r").reader, durable.group("s").reader) == ("one", "two")
    assert dict(durable.group("r").position)[0] == 2
    with pytest.raises(ReaderError):
        await durable.engine.commit("q", "r", Position(incarnation, {0: 5}), "two")
    await durable.engine.seek("q", "r", "earliest")
    assert durable.group("r").reader == ""
    await durable.engine.commit("q", "r", Position(incarnation, {}), "two")
    await durable.kill()
    assert durable.group("r").reader == "two"


@pytest.mark.parametrize("offsets", [{0: 11}, {7: 0}, {0: 3, 7: 0}, {0: -1}])
async def test_a_commit_of_what_does_not_exist_changes_nothing(
    running: Running, offsets: dict[int, int]
) -> None:
    """Not even in the physical queues that it names rightly."""
    await with_messages(running)
    with pytest.raises(OffsetError):
        await running.engine.commit("q", "r", Position(running.snapshot().incarnation, offsets))
    assert dict(running.group("r").position) == {0: 0}
    assert running.snapshot().messages == 10


async def test_the_slowest_group_holds_the_log(running: Running) -> None:
    """Messages leave when the last group has passed them."""
    await running.create(groups={"g": LEASE, "r": OFFSETS, "s": OFFSETS})
    await running.store(*(b"%d" % n for n in range(10)))
    await running.engine.commit("q", "r", running.position(10))
    await running.drain()
    await running.engine.commit("q", "s", running.position(4))
    assert (running.snapshot().usage[0].earliest, running.snapshot().messages) == (4, 6)
    await running.engine.delete_group("q", "s")
    assert (running.snapshot().usage[0].earliest, running.snapshot().messages) == (10, 0)


# -- plan -------------------------------------------------------------------------------------


async def test_a_plan_ends_behind_the_newest_message(running: Running) -> None:
    """Without limits, from the earliest on or from a position on."""
    await with_messages(running, 10, 2)
    incarnation = running.snapshot().incarnation
    empty = Position(incarnation, {})
    end = Position(incarnation, {0: 10, 1: 10})
    assert await running.engine.plan("q", empty, None, None) == end
    assert await running.engine.plan("q", Position(incarnation, {0: 4}), None, None) == end
    assert await running.engine.plan("q", end, 5, None) == end


async def test_a_plan_shares_its_limit_among_physical_queues(running: Running) -> None:
    """In proportion to what waits in each."""
    await running.create(groups={"r": OFFSETS}, physical_queues=3)
    for number, n_messages in enumerate((2, 100, 100)):
        await running.store(*(b"x" for _ in range(n_messages)), number=number)
    start = await running.engine.locate("q", "earliest")
    end = await running.engine.plan("q", start, 42, None)
    assert dict(end.offsets) == {0: 0, 1: 21, 2: 21}
    rest = await running.engine.plan("q", end, None, None)
    assert dict(rest.offsets) == {0: 2, 1: 100, 2: 100}


async def test_a_plan_ends_where_it_is_to_end(running: Running) -> None:
    """At offsets that its reader noted before."""
    await with_messages(running, 10, 2)
    start = await running.engine.locate("q", "earliest")
    end = await running.engine.plan("q", start, None, None, {0: 4, 1: 6})
    assert dict(end.offsets) == {0: 4, 1: 6}
    with pytest.raises(OffsetError):
        await running.engine.plan("q", start, None, None, {0: 11})


async def test_a_small_limit_still_moves_on(running: Running) -> None:
    """Fewer messages than physical queues: every message comes in the end."""
    await with_messages(running, 3, 4)
    position = await running.engine.locate("q", "earliest")
    total = 0
    while True:
        end = await running.engine.plan("q", position, 1, None)
        n_messages = sum(end.offsets[n] - position.offsets[n] for n in end.offsets)
        if not n_messages:
            break
        assert n_messages == 1
        total += n_messages
        position = end
    assert total == 12


async def test_a_plan_is_bounded_in_bytes(running: Running) -> None:
    """By segments; one message at least fits."""
    await running.create(groups={"r": OFFSETS})
    for _ in range(10):
        await running.store(bytes(100_000))
    start = await running.engine.locate("q", "earliest")
    end = await running.engine.plan("q", start, None, 350_000)
    assert 1 <= end.offsets[0] <= 4
    assert (await running.engine.plan("q", start, None, 1)).offsets[0] == 1


async def test_a_plan_from_below_the_earliest_begins_there(running: Running) -> None:
    """A reader that comes late skips what has left."""
    await with_messages(running)
    await running.engine.commit("q", "r", running.position(6))
    end = await running.engine.plan("q", running.position(2), 3, None)
    assert dict(end.offsets) == {0: 9}


async def test_a_plan_from_behind_the_end_is_an_error(running: Running) -> None:
    """Such an offset was never given to the reader."""
    await with_messages(running)
    with pytest.raises(OffsetError):
        await running.engine.plan("q", running.position(11), 3, None)


async def test_an_empty_queue_plans_nothing(running: Running) -> None:
    """Start and end are the same."""
    await running.create(physical_queues=2)
    start = await running.engine.locate("q", "earliest")
    assert dict(start.offsets) == {0: 0, 1: 0}
    assert await running.engine.plan("q", start, 5, None) == start


# -- locate and seek --------------------------------------------------------------------------


async def test_a_time_is_a_position(running: Running) -> None:
    """The first message that arrived at or after it, in each physical queue."""
    await running.create(groups={"r": OFFSETS}, physical_queues=2)
    times: list[float] = []
    for n in range(10):
        running.passes(10)
        times.append(running.wall())
        await running.store(b"%d" % n, number=n % 2)
    incarnation = running.snapshot().incarnation
    locate = running.engine.locate
    assert await locate("q", times[4] - 5) == Position(incarnation, {0: 2, 1: 2})
    assert await locate("q", times[5] - 5) == Position(incarnation, {0: 3, 1: 2})
    assert await locate("q", 0.0) == Position(incarnation, {0: 0, 1: 0})
    assert await locate("q", times[9] + 5) == Position(incarnation, {0: 5, 1: 5})
    assert await locate("q", "latest") == Position(incarnation, {0: 5, 1: 5})
    assert await locate("q", "earliest") == Position(incarnation, {0: 0, 1: 0})


async def test_a_time_within_one_append_is_found(running: Running) -> None:
    """Messages of one segment have times of their own."""
    await running.create(groups={"r": OFFSETS})
    now = running.clock.now
    await running.append([running.new(arrived_at=now - 90 + 10 * n) for n in range(10)])
    position = await running.engine.locate("q", running.wall() - 45)
    assert dict(position.offsets) == {0: 5}


async def test_a_group_is_moved_back_and_reads_again(durable: Running) -> None:
    """As far as messages exist; the move survives a kill."""
    await durable.create(groups={"r": OFFSETS, "hold": OFFSETS})
    await durable.store(*(b"%d" % n for n in range(10)))
    await durable.engine.commit("q", "r", durable.position(10))
    await durable.engine.commit("q", "hold", durable.position(3))
    moved = await durable.engine.seek("q", "r", "earliest")
    assert moved == durable.position(3)
    assert durable.group("r").waiting == 7
    await durable.kill()
    assert dict(durable.group("r").position) == {0: 3}
    assert durable.group("r").waiting == 7


async def test_a_group_is_moved_forward(running: Running) -> None:
    """What it skips it no longer holds."""
    await with_messages(running)
    await running.engine.seek("q", "r", "latest")
    assert running.snapshot().messages == 0
    assert running.group("r").waiting == 0


async def test_a_lease_group_replays_from_a_time(running: Running) -> None:
    """Its leases end, their handles are stale, and what it had settled comes again."""
    await running.create(groups={"g": LEASE, "hold": OFFSETS})
    await running.store(b"a")
    running.passes(10)
    since = running.wall()
    await running.store(b"b", b"c")
    running.passes(10)
    assert await running.drain() == [b"a", b"b", b"c"]
    await running.store(b"d")
    leased = await running.receive()
    moved = await running.engine.seek("q", "g", since - 5)
    assert dict(moved.offsets) == {0: 1}
    assert (running.group().leased, running.group().waiting) == (0, 3)
    assert await running.settle("ack", leased) == {0: "stale"}
    assert await running.drain() == [b"b", b"c", b"d"]
    await running.engine.seek("q", "g", "latest")
    assert await running.payloads() == []


async def test_a_seek_survives_a_kill(durable: Running) -> None:
    """Acknowledgements from before the seek are forgotten with it."""
    await durable.create(groups={"g": LEASE, "hold": OFFSETS})
    await durable.store(b"a", b"b", b"c")
    received = await durable.receive()
    await durable.ack([received[1]])
    await durable.engine.seek("q", "g", "earliest")
    await durable.kill()
    assert await durable.payloads() == [b"a", b"b", b"c"]
