from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from penstock.plugins.queue.append_buffer import AppendBuffer, PendingBudget
from penstock.plugins.queue.engines.contract import (
    DROP_REASONS,
    GroupSpec,
    OffsetError,
    RangeGoneError,
    StorageError,
    UnknownQueueError,
)
from tests.plugins.queue.engines.contract.harness import LEASE, OFFSETS, Running, until
from tests.plugins.queue.running import LOGGER, LostPayload

LOST: Any = LostPayload()


# -- offsets and outcomes ---------------------------------------------------------------------


async def test_offsets_grow_by_one_in_each_physical_queue(running: Running) -> None:
    """Each physical queue counts for itself, without gaps, in the order of the calls."""
    await running.create(physical_queues=2)
    assert (await running.store(b"a", b"b")).offsets == [0, 1]
    assert (await running.store(b"c", number=1)).offsets == [0]
    assert (await running.store(b"d")).offsets == [2]
    usage = running.snapshot().usage
    assert [(usage[n].earliest, usage[n].next, usage[n].messages) for n in (0, 1)] == [
        (0, 3, 3),
        (0, 1, 1),
    ]
    assert (await running.batch(0, 3)).payload == [b"a", b"b", b"d"]


async def test_a_message_is_read_as_it_was_published(running: Running) -> None:
    """Topic, payload, QoS, publisher, properties and the wall time of its arrival are kept."""
    await running.create()
    properties = {
        "content_type": "text/plain",
        "correlation_data": b"\x00\xff",
        "user_property": [("unit", "°C"), ("unit", "K")],
    }
    await running.store(b"\x00\xff", topic="plant/ä", qos=2, publisher="dev", properties=properties)
    (received,) = await running.receive()
    assert (received.topic, received.payload, received.qos, received.publisher) == (
        "plant/ä",
        b"\x00\xff",
        2,
        "dev",
    )
    assert received.enqueued_at == pytest.approx(running.wall(), abs=0.01)
    assert (received.physical_queue, received.offset, received.receive_count) == (0, 0, 1)
    batch = await running.batch(0, 1)
    assert batch.properties == [received.properties]
    assert '"unit"' in received.properties
    assert "AP8=" in received.properties


async def test_an_append_of_no_messages_stores_none(running: Running) -> None:
    """An empty call has an empty outcome."""
    await running.create()
    result = await running.append([])
    assert (list(result.offsets), list(result.duplicates), dict(result.refused)) == ([], [], {})


async def test_appends_at_once_keep_the_order_of_their_calls(running: Running) -> None:
    """Calls that share a commit do not mix their messages."""
    await running.create()
    futures = [
        running.append([running.new(b"%d.%d" % (call, n)) for n in range(3)]) for call in range(50)
    ]
    results = [await future for future in futures]
    assert [offset for result in results for offset in result.offsets] == list(range(150))
    expected = [b"%d.%d" % (call, n) for call in range(50) for n in range(3)]
    assert await running.held() == expected


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"payload": LOST}, "unreadable"),
        ({"properties": {"user_property": [("a", "\ud800")]}}, "unreadable"),
    ],
    ids=["payload", "surrogate"],
)
async def test_an_unreadable_message_fails_alone(
    running: Running, broken: dict[str, Any], why: str
) -> None:
    """Neither the messages of its call nor those of others in the same commit fail with it."""
    await running.create()
    bad = running.new(**broken)
    before = running.append([running.new(b"before")])
    mixed = running.append([running.new(b"a"), bad, running.new(b"b")])
    behind = running.append([running.new(b"behind")])
    assert (await before).offsets == [0]
    result = await mixed
    assert result.refused == {1: why}
    assert why in DROP_REASONS
    assert result.offsets == [1, -1, 2]
    assert (await behind).offsets == [3]
    assert await running.held() == [b"before", b"a", b"b", b"behind"]
    assert running.snapshot().reserved == 0


async def test_a_surrogate_in_any_text_fails_alone(running: Running) -> None:
    """A topic or publisher that is no text refuses its own message only."""
    await running.create()
    bad = running.new(publisher="\udcff")
    futures = [running.append([running.new(b"%d" % n)]) for n in range(3)]
    futures.insert(1, running.append([bad]))
    refused = [dict((await future).refused) for future in futures]
    assert refused == [{}, {0: "unreadable"}, {}, {}]
    assert await running.held() == [b"0", b"1", b"2"]


async def test_storing_nowhere_is_an_error(running: Running) -> None:
    """An unknown queue or physical queue is named."""
    await running.create()
    with pytest.raises(UnknownQueueError, match="nowhere"):
        running.engine.reserve("nowhere", 1, 1)
    with pytest.raises(UnknownQueueError, match="nowhere"):
        await running.engine.append("nowhere", 0, [running.new()])
    assert running.engine.reserve("q", 1, 4)
    with pytest.raises(OffsetError, match="7"):
        await running.engine.append("q", 7, [running.new()])
    assert running.snapshot().reserved == 0


async def test_a_closed_engine_stores_nothing(running: Running) -> None:
    """What comes behind the close is refused and not forgotten."""
    await running.create()
    assert running.engine.reserve("q", 1, 4)
    await running.engine.close()
    await running.engine.close()
    with pytest.raises(StorageError, match="closed"):
        await running.engine.append("q", 0, [running.new()])


async def test_closing_stores_what_was_appended(durable: Running) -> None:
    """A close waits for what runs."""
    await durable.create()
    future = durable.append([durable.new(b"%d" % n) for n in range(100)])
    await durable.engine.close()
    assert (await future).offsets == list(range(100))
    await durable.open()
    assert len(await durable.held()) == 100


async def test_offsets_go_on_behind_a_restart(durable: Running) -> None:
    """No offset is used twice, not even where everything has left the queue."""
    await durable.create()
    await durable.store(b"a", b"b")
    assert await durable.drain() == [b"a", b"b"]
    await durable.reopen()
    assert (await durable.store(b"c")).offsets == [2]
    await durable.kill()
    assert (await durable.store(b"d")).offsets == [3]
    assert await durable.held() == [b"c", b"d"]


async def test_what_is_stored_survives_a_kill(durable: Running) -> None:
    """Once the future of an append is done, the messages are there behind any end."""
    await durable.create()
    for n in range(5):
        await durable.store(b"%d" % n)
        await durable.kill()
    assert await durable.held() == [b"0", b"1", b"2", b"3", b"4"]


# -- room -------------------------------------------------------------------------------------


async def test_reserved_room_counts_toward_the_limit_of_messages(running: Running) -> None:
    """What is reserved is taken until it is stored or released; what is stored stays taken."""
    await running.create(max_messages=3)
    reserve, release = running.engine.reserve, running.engine.release
    assert reserve("q", 2, 8)
    assert running.snapshot().reserved == 2
    assert not reserve("q", 2, 8)
    assert reserve("q", 1, 4)
    assert not reserve("q", 1, 0)
    release("q", 1, 4)
    await running.engine.append("q", 0, [running.new(), running.new()])
    assert running.snapshot().reserved == 0
    assert not reserve("q", 2, 8)
    await running.store(b"last")
    assert not reserve("q", 1, 4)
    assert running.snapshot().messages == 3


async def test_reserved_room_counts_toward_the_limit_of_bytes(running: Running) -> None:
    """Payload bytes are limited over all physical queues."""
    await running.create(max_bytes=10, physical_queues=2)
    await running.store(b"12345", number=1)
    assert running.snapshot().payload_bytes == 5
    assert not running.engine.reserve("q", 1, 6)
    assert running.engine.reserve("q", 1, 5)
    assert not running.engine.reserve("q", 1, 1)
    running.engine.release("q", 1, 5)
    assert running.engine.reserve("q", 1, 5)


async def test_a_queue_without_limits_takes_any_number(running: Running) -> None:
    """None is no limit."""
    await running.create()
    assert running.engine.reserve("q", 10**9, 10**12)
    running.engine.release("q", 10**9, 10**12)
    assert running.snapshot().reserved == 0


async def test_settled_messages_give_their_room_back(running: Running) -> None:
    """A full queue takes messages again once all groups are done with some."""
    await running.create(max_messages=2)
    await running.store(b"a", b"b")
    assert not running.engine.reserve("q", 1, 1)
    (first,) = await running.receive(1)
    await running.ack([first])
    assert running.snapshot().messages == 1
    assert running.snapshot().payload_bytes == 1
    assert running.engine.reserve("q", 1, 1)
    assert not running.engine.reserve("q", 1, 1)


async def test_what_is_not_stored_gives_its_room_back(running: Running) -> None:
    """Duplicates and unreadable messages take no room."""
    await running.create(max_messages=3)
    await running.store(b"a", dedup=b"1")
    assert not running.engine.reserve("q", 3, 0)
    assert running.engine.reserve("q", 2, 5)
    result = await running.engine.append(
        "q", 0, [running.new(b"a", dedup=b"1"), running.new(payload=LOST)]
    )
    assert (list(result.duplicates), dict(result.refused)) == ([0], {1: "unreadable"})
    snapshot = running.snapshot()
    assert (snapshot.messages, snapshot.reserved, snapshot.payload_bytes) == (1, 0, 1)
    assert running.engine.reserve("q", 2, 0)


async def test_what_was_reserved_is_stored_although_the_limit_is_lowered(running: Running) -> None:
    """A reserved message is never refused for a limit."""
    await running.create(max_messages=2)
    assert running.engine.reserve("q", 2, 2)
    await running.change(max_messages=1)
    result = await running.engine.append("q", 0, [running.new(b"a"), running.new(b"b")])
    assert (result.offsets, dict(result.refused)) == ([0, 1], {})
    assert not running.engine.reserve("q", 1, 1)


async def test_drop_oldest_always_has_room(running: Running) -> None:
    """The oldest messages leave, read or not, and are counted."""
    await running.create(max_messages=2, when_full="drop_oldest")
    for payload in (b"a", b"b", b"c"):
        await running.store(payload)
    await running.engine.maintain()
    snapshot = running.snapshot()
    assert snapshot.messages <= 2
    assert snapshot.removed["drop_oldest"] == 3 - snapshot.messages
    assert (await running.drain())[-1] == b"c"


async def test_drop_oldest_keeps_what_the_limit_allows(running: Running) -> None:
    """No more messages leave than the new ones need."""
    await running.create(max_messages=10, when_full="drop_oldest")
    for n in range(12):
        await running.store(b"%d" % n)
    assert await running.drain() == [b"%d" % n for n in range(2, 12)]
    assert running.snapshot().removed["drop_oldest"] == 2


async def test_drop_oldest_drops_none_of_those_that_come_at_once(running: Running) -> None:
    """The oldest of another physical queue leave for them."""
    await running.create(max_messages=10, when_full="drop_oldest", physical_queues=2)
    for n in range(10):
        await running.store(b"%d" % n, number=1)
    running.clock.sleep(1.0)
    await asyncio.gather(*(running.store(b"new") for _ in range(5)))
    await until(lambda: running.snapshot().messages == 10)
    usage = running.snapshot().usage
    assert {number: one.messages for number, one in usage.items()} == {0: 5, 1: 5}


@pytest.mark.parametrize("limits", [{"max_messages": 10}, {"max_bytes": 10}], ids=str)
async def test_drop_oldest_drops_none_of_those_that_came_last(
    running: Running, limits: dict[str, Any]
) -> None:
    """Though one physical queue gets all new messages, while another one has all the oldest."""
    await running.create(when_full="drop_oldest", physical_queues=2, **limits)
    for n in range(10):
        await running.store(b"%d" % n, number=1)
    running.clock.sleep(10.0)
    for _ in range(5):
        await running.store(b"n")
        await until(lambda: running.snapshot().messages == 10)
    assert await running.drain() == [b"n"] * 5
    assert await running.drain(number=1) == [b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("n_at_once", [1, 4, 24])
@pytest.mark.parametrize("groups", [{"r": OFFSETS}, {"g": LEASE}, {}], ids=["r", "g", "none"])
async def test_a_range_that_drop_oldest_has_cut_is_gone(
    running: Running, groups: dict[str, GroupSpec], n_at_once: int
) -> None:
    """As one that retention has cut: a reader is told, and goes on at the earliest offset."""
    await running.create(max_messages=10, when_full="drop_oldest", groups=groups)
    for n in range(0, 24, n_at_once):
        for m in range(n, n + n_at_once):
            assert running.engine.reserve("q", 1, 2), m
        new = [running.new(b"%d" % m) for m in range(n, n + n_at_once)]
        await running.engine.append("q", 0, new)
    assert running.snapshot().usage[0].earliest == 14
    assert (await running.engine.locate("q", "earliest")).offsets == {0: 14}
    with pytest.raises(RangeGoneError) as error:
        await running.engine.read("q", 0, 0, 24, 24)
    assert error.value.earliest == 14
    assert await running.held() == [b"%d" % n for n in range(14, 24)]
    for group in running.snapshot().groups.values():
        assert (group.waiting, dict(group.position)) == (10, {0: 14})


async def test_what_drop_oldest_has_cut_stays_gone_after_a_restart(durable: Running) -> None:
    """A reader that commits an offset below it goes on at the earliest one."""
    await durable.create(max_messages=2, when_full="drop_oldest", groups={"r": OFFSETS})
    for payload in (b"a", b"b", b"c", b"d"):
        await durable.store(payload)
    await durable.engine.commit("q", "r", durable.position(1))
    await durable.kill()
    assert (durable.snapshot().usage[0].earliest, durable.group("r").position) == (2, {0: 2})
    assert (durable.group("r").waiting, await durable.held()) == (2, [b"c", b"d"])


async def test_drop_oldest_drops_leased_messages_too(running: Running) -> None:
    """A receiver of a message that was dropped is told so when it settles."""
    await running.create(max_messages=1, when_full="drop_oldest")
    await running.store(b"a")
    (old,) = await running.receive()
    await running.store(b"b")
    assert await running.settle("ack", [old]) == {0: "stale"}
    assert await running.payloads() == [b"b"]


async def test_room_is_known_after_a_restart(durable: Running) -> None:
    """Limits count what the storage holds."""
    await durable.create(max_messages=2, max_bytes=8)
    await durable.store(b"abcd")
    await durable.kill()
    assert durable.snapshot().payload_bytes == 4
    assert not durable.engine.reserve("q", 1, 5)
    assert not durable.engine.reserve("q", 2, 2)
    assert durable.engine.reserve("q", 1, 4)


def n_lines(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs."""
    n = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal n
        n += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return n


async def test_room_costs_the_same_however_many_physical_queues_there_are(running: Running) -> None:
    """It is asked for with each message that is published."""
    costs: list[int] = []
    for n_physical in (1, 256):
        name = f"of {n_physical}"
        await running.create(name, physical_queues=n_physical, max_messages=10, max_bytes=1000)
        costs.append(n_lines(partial(running.engine.reserve, name, 1, 1)))
        costs.append(n_lines(partial(running.engine.release, name, 1, 1)))
    assert costs[:2] == costs[2:]


async def test_a_slow_group_holds_the_room(running: Running) -> None:
    """A message is there until the last group is done with it."""
    await running.create(groups={"g": OFFSETS, "h": OFFSETS}, max_messages=1)
    await running.store(b"a")
    await running.engine.commit("q", "g", running.position(1))
    assert not running.engine.reserve("q", 1, 1)
    await running.engine.commit("q", "h", running.position(1))
    assert running.engine.reserve("q", 1, 1)


# -- deduplication ----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "topic"])
async def test_of_two_messages_with_one_identifier_in_a_request_the_first_is_stored(
    running: Running, key: str | None
) -> None:
    """Whatever physical queues they go to, and however many there are of each."""
    await running.create(physical_queues=3, key=key)
    buffer = AppendBuffer(
        "q",
        running.snapshot().spec,
        running.engine,
        PendingBudget(1000, 10**6),
        commit_wait_seconds=0.0,
        commit_max_messages=1000,
        logger=LOGGER,
    )
    identifiers = [b"", b"1", b"1", b"2", b"", b"2", b"1", b"2", b"3", b"", b"1"]
    news = [
        running.new(b"%d" % index, f"t/{index}", dedup=one) for index, one in enumerate(identifiers)
    ]
    outcomes = await buffer.store(news)
    duplicates = [index for index, one in enumerate(outcomes) if one.reason == "duplicate"]
    assert duplicates == [2, 5, 6, 7, 10]
    stored = [index for index in range(len(news)) if index not in duplicates]
    found: list[bytes] = []
    for number, usage in running.snapshot().usage.items():
        if usage.next:
            found += (await running.batch(0, usage.next, number=number)).payload
    assert sorted(map(int, found)) == stored
    assert [outcomes[index].reason for index in stored] == [""] * len(stored)


async def test_a_deduplication_identifier_is_stored_once(running: Running) -> None:
    """The repeat gets the offset of the message that was stored before."""
    await running.create()
    await running.store(b"a", dedup=b"1")
    again = await running.store(b"a", dedup=b"1")
    assert list(again.duplicates) == [0]
    assert again.offsets[0] in (0, -1)
    assert dict(again.refused) == {}
    assert (await running.store(b"b", dedup=b"2")).offsets == [1]
    assert (await running.store(b"c")).offsets == [2]
    assert (await running.store(b"c")).offsets == [3]
    assert await running.held() == [b"a", b"b", b"c", b"c"]


async def test_an_identifier_counts_once_within_one_call_and_one_commit(running: Running) -> None:
    """Repeats that come before the first is stored are duplicates as well."""
    await running.create(physical_queues=2)
    first = running.append([running.new(b"a", dedup=b"1"), running.new(b"a", dedup=b"1")])
    second = running.append([running.new(b"a", dedup=b"1")], number=1)
    assert list((await first).duplicates) == [1]
    assert list((await second).duplicates) == [0]
    assert await running.held() == [b"a"]
    assert running.snapshot().usage[1].next == 0


async def test_an_identifier_counts_in_its_own_queue_only(running: Running) -> None:
    """Each logical queue has its window."""
    await running.create()
    await running.create("other")
    await running.store(b"a", dedup=b"1")
    assert list((await running.store(b"a", dedup=b"1", queue="other")).duplicates) == []


async def test_the_window_ends_by_time(running: Running) -> None:
    """Behind `deduplication_seconds` the message is stored again."""
    await running.create(deduplication_seconds=60.0)
    await running.store(b"a", dedup=b"1")
    running.passes(59)
    await running.engine.maintain()
    assert list((await running.store(b"a", dedup=b"1")).duplicates) == [0]
    running.passes(62)
    await running.engine.maintain()
    assert list((await running.store(b"a", dedup=b"1")).duplicates) == []


async def test_the_window_outlives_its_message(running: Running) -> None:
    """A message that was received and settled is not stored again."""
    await running.create()
    await running.store(b"a", dedup=b"1")
    assert await running.drain() == [b"a"]
    assert list((await running.store(b"a", dedup=b"1")).duplicates) == [0]
    assert await running.drain() == []


async def test_the_window_survives_restarts(durable: Running) -> None:
    """What a publisher repeats after a crash is no second message."""
    await durable.create(deduplication_seconds=60.0)
    await durable.store(b"a", dedup=b"1")
    await durable.kill()
    assert list((await durable.store(b"a", dedup=b"1")).duplicates) == [0]
    await durable.reopen()
    assert list((await durable.store(b"a", dedup=b"1")).duplicates) == [0]
    durable.passes(61)
    await durable.engine.maintain()
    assert list((await durable.store(b"a", dedup=b"1")).duplicates) == []


async def test_time_without_a_program_ends_no_window(durable: Running) -> None:
    """A publisher whose answer was lost could not repeat its message while nothing ran."""
    await durable.create(deduplication_seconds=60.0)
    await durable.store(b"a", dedup=b"1")
    for _ in range(2):
        durable.passes(20)
        await durable.engine.maintain()
        await durable.kill(down_seconds=1000)
        await durable.engine.maintain()
        assert list((await durable.store(b"a", dedup=b"1")).duplicates) == [0]
    durable.passes(21)
    assert list((await durable.store(b"a", dedup=b"1")).duplicates) == []


async def test_a_forgotten_identifier_is_stored_again(running: Running) -> None:
    """The window ends when the publisher has its acknowledgement; unknown ones do nothing."""
    await running.create()
    await running.store(b"a", dedup=b"1")
    await running.store(b"b", dedup=b"2")
    await running.engine.forget("q", [b"1", b"never"])
    result = await running.append([running.new(b"new", dedup=b"1"), running.new(b"b", dedup=b"2")])
    assert list(result.duplicates) == [1]
    assert await running.held() == [b"a", b"b", b"new"]


async def test_a_forgotten_identifier_stays_forgotten(durable: Running) -> None:
    """A crash does not bring an ended window back."""
    await durable.create()
    await durable.store(b"a", dedup=b"1")
    await durable.engine.forget("q", [b"1"])
    await durable.kill()
    assert list((await durable.store(b"b", dedup=b"1")).duplicates) == []
    assert await durable.held() == [b"a", b"b"]


async def test_an_identifier_forgotten_in_the_commit_of_its_message_stays_forgotten(
    durable: Running,
) -> None:
    """None of the calls is awaited before the next; a crash brings nothing back."""
    await durable.create()
    stored = durable.append([durable.new(b"a", dedup=b"1")])
    forgotten = durable.engine.forget("q", [b"1"])
    await stored
    await forgotten
    await durable.kill()
    assert list((await durable.store(b"b", dedup=b"1")).duplicates) == []
    assert await durable.held() == [b"a", b"b"]


async def test_forgetting_right_after_storing_keeps_the_order(running: Running) -> None:
    """Append, forget and append of one identifier, none awaited: two messages."""
    await running.create()
    first = running.append([running.new(b"a", dedup=b"1")])
    forgotten = running.engine.forget("q", [b"1"])
    second = running.append([running.new(b"b", dedup=b"1")])
    await forgotten
    assert list((await first).duplicates) == []
    assert list((await second).duplicates) == []
    assert await running.held() == [b"a", b"b"]


async def test_what_is_no_repeat_is_stored_and_takes_the_identifier_over(durable: Running) -> None:
    """A publisher that uses an identifier anew loses nothing, and its repeat is a duplicate."""
    await durable.create()
    await durable.store(b"old", dedup=b"1")
    result = await durable.store(b"new", dedup=b"1", is_repeat=False)
    assert (list(result.duplicates), result.offsets) == ([], [1])
    await durable.kill()
    again = await durable.store(b"new", dedup=b"1")
    assert list(again.duplicates) == [0]
    assert again.offsets[0] in (1, -1)
    assert await durable.held() == [b"old", b"new"]


async def test_what_is_no_repeat_counts_within_one_commit(running: Running) -> None:
    """First, repeat and a new message under one identifier, none awaited."""
    await running.create()
    futures = [
        running.append([running.new(payload, dedup=b"1", is_repeat=is_repeat)])
        for payload, is_repeat in ((b"a", False), (b"a", True), (b"b", False), (b"b", True))
    ]
    duplicates = [list((await future).duplicates) for future in futures]
    assert duplicates == [[], [0], [], [0]]
    assert await running.held() == [b"a", b"b"]


async def test_forgetting_in_an_unknown_queue_is_an_error(running: Running) -> None:
    """The queue is named."""
    with pytest.raises(UnknownQueueError, match="nowhere"):
        await running.engine.forget("nowhere", [b"1"])


async def test_a_purge_leaves_the_window(running: Running) -> None:
    """A repeat of what was purged does not bring it back."""
    await running.create()
    await running.store(b"a", dedup=b"1")
    await running.engine.purge("q")
    assert list((await running.store(b"a", dedup=b"1")).duplicates) == [0]
