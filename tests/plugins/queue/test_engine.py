"""The contract suite: every engine passes all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from penstock.plugins.queue.client import ReceivedMessage, read_batch
from penstock.plugins.queue.engine import Engine, OffsetError, RangeGoneError
from tests.helpers.clock import Clock
from tests.plugins.queue.running import (
    ENGINES,
    LostPayload,
    message,
    running_engine,
    store,
    store_messages,
)

TIMEOUT = 30.0
PLENTY = 10**9


@pytest.fixture
def clock() -> Clock:
    """The engine's clock."""
    return Clock()


@pytest.fixture(params=ENGINES)
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[Engine]:
    """An engine with a logical queue `q` of two physical queues."""
    opened = running_engine(
        store(request.param, tmp_path), {"q": 2}, clock=clock, visibility_timeout=TIMEOUT
    )
    async with opened as running:
        yield running


async def take(engine: Engine, n_max: int = 100, number: int = 0) -> list[ReceivedMessage]:
    """Receive from a physical queue of `q`."""
    return await engine.take("q", number, n_max, PLENTY)


async def read(engine: Engine, start: int, end: int, most: int = 1000) -> list[bytes]:
    """Return the payloads of a range of physical queue 0."""
    return read_batch(b"".join(await engine.read_range("q", 0, start, end, most))).payload


def handles(deliveries: Sequence[ReceivedMessage]) -> list[str]:
    """Return the receipt handles."""
    return [delivery.receipt_handle for delivery in deliveries]


async def test_stored_message_is_received_whole(engine: Engine, clock: Clock) -> None:
    """Topic, payload, QoS, publisher, arrival and properties come out as they went in."""
    properties = {"content_type": "text/plain"}
    stored = message(
        b"\x00\xff",
        "a/ü",
        qos=2,
        publisher="device",
        properties=properties,
        arrived_at=clock.now - 3600.0,
    )
    result = await engine.append("q", 1, [stored])
    assert (result.stored, list(result.unreadable)) == (1, [])
    (received,) = await take(engine, number=1)
    assert (received.topic, received.payload, received.qos) == ("a/ü", b"\x00\xff", 2)
    assert (received.publisher, received.properties) == ("device", '{"content_type": "text/plain"}')
    assert (received.physical_queue, received.offset, received.receive_count) == (1, 0, 1)
    assert received.enqueued_at == pytest.approx(time.time() - 3600.0, abs=600.0)


async def test_messages_come_in_order_each_to_one_receiver(engine: Engine) -> None:
    """Two receivers share the messages of a physical queue, the oldest first."""
    await store_messages(engine, [b"%d" % n for n in range(700)])
    taken = await asyncio.gather(*(take(engine, 50) for _ in range(15)))
    offsets = [delivery.offset for deliveries in taken for delivery in deliveries]
    assert offsets == list(range(700))
    assert engine.leased("q") == 700


async def test_answer_is_bounded_in_bytes(engine: Engine) -> None:
    """An answer holds no more bytes than asked for, unless one message alone is longer."""
    await store_messages(engine, [bytes(60), bytes(30), bytes(30)])
    assert [len(one.payload) for one in await engine.take("q", 0, 9, 50)] == [60]
    assert len(await engine.take("q", 0, 9, 59)) == 1


async def test_received_message_is_invisible_until_its_timeout(
    engine: Engine, clock: Clock
) -> None:
    """A message that is not deleted in its visibility timeout is received again (paper 004)."""
    await store_messages(engine, [b"a", b"b"])
    first = await take(engine)
    clock.now += TIMEOUT - 0.125
    assert await take(engine) == []
    clock.now += 0.125
    again = await take(engine)
    assert [(one.payload, one.receive_count) for one in again] == [(b"a", 2), (b"b", 2)]
    assert set(handles(again)).isdisjoint(handles(first))


async def test_visible_again_comes_before_what_was_never_received(
    engine: Engine, clock: Clock
) -> None:
    """Redelivery goes first and shares the answer with new messages."""
    await store_messages(engine, [b"a", b"b", b"c"])
    await take(engine, 1)
    clock.now += TIMEOUT
    assert [one.payload for one in await take(engine, 2)] == [b"a", b"b"]


async def test_redelivery_is_bounded_in_bytes(engine: Engine, clock: Clock) -> None:
    """What is visible again is given out in answers of bounded size, and all of it in the end."""
    await store_messages(engine, [bytes(40), bytes(40), bytes(40)])
    await take(engine)
    clock.now += TIMEOUT
    assert len(await engine.take("q", 0, 9, 50)) == 2
    assert len(await engine.take("q", 0, 9, 50)) == 1


async def test_deleted_messages_never_come_back(engine: Engine, clock: Clock) -> None:
    """A delete is for good and gives the room back."""
    await store_messages(engine, [b"a", b"b", b"c"])
    taken = await take(engine)
    assert await engine.delete("q", handles(taken[:2])) == []
    clock.now += TIMEOUT
    assert [one.payload for one in await take(engine)] == [b"c"]
    usage = engine.usage("q")[0]
    assert (usage.messages, usage.next) == (1, 3)


async def test_handles_that_name_nothing_are_told(engine: Engine, clock: Clock) -> None:
    """A delete names the handles that are dead, and does the others."""
    await store_messages(engine, [b"a", b"b"])
    (old, _) = await take(engine)
    clock.now += TIMEOUT
    (new, other) = await take(engine)
    await engine.delete("q", [other.receipt_handle])
    dead = [old.receipt_handle, other.receipt_handle, "", "1.2", "x.y.z", "7.0.1", "0.99.1"]
    assert await engine.delete("q", [*dead, new.receipt_handle]) == dead
    assert engine.usage("q")[0].messages == 0


async def test_delete_twice_in_one_call_counts_once(engine: Engine) -> None:
    """The same handle twice deletes one message."""
    await store_messages(engine, [b"a", b"b"])
    (first, _) = await take(engine)
    twice = [first.receipt_handle] * 2
    assert await engine.delete("q", twice) == twice[:1]
    assert engine.usage("q")[0].messages == 1


async def test_messages_given_back_are_visible_at_once(engine: Engine) -> None:
    """A receive whose client went away costs neither time nor a receive count."""
    await store_messages(engine, [b"a", b"b"])
    engine.give_back("q", await take(engine))
    assert [(one.payload, one.receive_count) for one in await take(engine)] == [
        (b"a", 1),
        (b"b", 1),
    ]


async def test_range_can_be_read_again_until_it_is_committed(engine: Engine) -> None:
    """Reading changes nothing; a commit removes what is below."""
    await store_messages(engine, [b"%d" % n for n in range(6)])
    for _ in range(2):
        assert await read(engine, 1, 5) == [b"1", b"2", b"3", b"4"]
    assert await engine.commit("q", {0: 3}) == 3
    assert await read(engine, 3, 6) == [b"3", b"4", b"5"]
    assert engine.usage("q")[0].earliest == 3
    with pytest.raises(RangeGoneError, match="start: read 2; allowed: 3 or more") as raised:
        await read(engine, 2, 6)
    assert raised.value.earliest == 3


async def test_range_over_many_segments_is_read_in_parts(engine: Engine) -> None:
    """Asked on from behind its last offset, a long range comes whole and in order."""
    for start in range(0, 900, 300):
        await store_messages(engine, [b"%d" % n for n in range(start, start + 300)])
    assert await read(engine, 250, 310) == [b"%d" % n for n in range(250, 310)]
    assert await read(engine, 250, 900, 7) == [b"%d" % n for n in range(250, 257)]
    assert await read(engine, 0, 900) == [b"%d" % n for n in range(900)]


async def test_long_range_is_cut_to_a_bounded_answer(engine: Engine) -> None:
    """An answer is cut to some MiB, and never empty."""
    for _ in range(6):
        await store_messages(engine, [bytes(1_000_000)])
    assert 1 <= len(await read(engine, 0, 6)) < 6
    assert len(await read(engine, 5, 6)) == 1


async def test_empty_range_is_empty(engine: Engine) -> None:
    """A range without offsets may be read anywhere up to the next offset."""
    assert await read(engine, 0, 0) == []
    await store_messages(engine, [b"a"])
    await engine.commit("q", {0: 1})
    assert await read(engine, 1, 1) == []
    assert await read(engine, 0, 0) == []


@pytest.mark.parametrize(
    ("start", "end", "named"),
    [
        (0, 3, "read 3; allowed: 0 to 2"),
        (2, 1, "start: read 2; allowed: 0 to the range's end, 1"),
        (-1, 1, "start: read -1"),
        (0, -1, "read -1"),
    ],
)
async def test_wrong_ranges_are_refused(engine: Engine, start: int, end: int, named: str) -> None:
    """A range lies between 0 and the next offset."""
    await store_messages(engine, [b"a", b"b"])
    with pytest.raises(OffsetError, match=named):
        await read(engine, start, end)


async def test_wrong_physical_queue_is_refused(engine: Engine) -> None:
    """A physical queue that does not exist is named beside those that do."""
    with pytest.raises(OffsetError, match="read 2; allowed: 0, 1"):
        await engine.read_range("q", 2, 0, 0, 1)
    with pytest.raises(OffsetError, match="read 9; allowed: 0, 1"):
        await engine.commit("q", {9: 0})


async def test_commit_beyond_the_end_changes_nothing(engine: Engine) -> None:
    """A wrong offset is refused before any physical queue is committed."""
    await store_messages(engine, [b"a", b"b"])
    with pytest.raises(OffsetError, match="read 1; allowed: 0 to 0"):
        await engine.commit("q", {0: 2, 1: 1})
    assert engine.usage("q")[0].messages == 2


async def test_commit_may_be_repeated(engine: Engine) -> None:
    """A commit of what is committed, or of less, does nothing."""
    await store_messages(engine, [b"a", b"b"])
    assert await engine.commit("q", {0: 2}) == 2
    assert await engine.commit("q", {0: 2}) == 0
    assert await engine.commit("q", {0: 1}) == 0
    assert engine.usage("q")[0].earliest == 2


async def test_offsets_are_never_given_again(engine: Engine) -> None:
    """Offsets go on after everything was deleted."""
    await store_messages(engine, [b"a", b"b"])
    await engine.delete("q", handles(await take(engine)))
    await store_messages(engine, [b"c"])
    assert [one.offset for one in await take(engine)] == [2]


async def test_old_messages_expire(engine: Engine, clock: Clock) -> None:
    """Messages older than a time are removed, received ones too, and counted."""
    await store_messages(engine, [b"a", b"b"], arrived_at=clock.now - 3600.0)
    received = await take(engine, 1)
    await store_messages(engine, [b"new"], arrived_at=clock.now)
    young = read_batch(b"".join(await engine.read_range("q", 0, 2, 3, 1))).enqueued_at[0]
    assert await engine.expire("q", young) == 2
    assert engine.leased("q") == 0
    clock.now += TIMEOUT
    assert [one.payload for one in await take(engine)] == [b"new"]
    assert await engine.delete("q", handles(received)) == handles(received)


async def test_message_with_a_lost_payload_is_named_and_the_others_stored(engine: Engine) -> None:
    """A payload that cannot be read back costs its own message only."""
    messages = [message(b"a"), message(LostPayload()), message(b"c")]  # type: ignore[arg-type]
    result = await engine.append("q", 0, messages)
    assert (result.stored, list(result.unreadable)) == (2, [1])
    assert [one.payload for one in await take(engine)] == [b"a", b"c"]


async def test_healthy_engine_has_no_failure(engine: Engine) -> None:
    """An engine that writes reports no failure."""
    await store_messages(engine, [b"a"])
    assert engine.failure() is None


async def test_closed_engine_has_stored_everything(engine: Engine) -> None:
    """What was submitted before the close is settled by it, and a second close does nothing."""
    futures = [engine.append("q", 0, [message()]) for _ in range(50)]
    await engine.close()
    assert all(future.done() and future.result().stored == 1 for future in futures)
    await engine.close()
