from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupSpec,
    IncarnationError,
    KeyOrderError,
    Position,
    QueueSpec,
    UnknownQueueError,
)
from tests.plugins.queue.engines.contract.harness import LEASE, MANY_BYTES, OFFSETS, Running


async def test_a_new_queue_is_empty(running: Running) -> None:
    """Its snapshot shows its settings, its physical queues and its groups."""
    made = await running.create(physical_queues=3, groups={"g": LEASE, "r": OFFSETS})
    assert made == running.snapshot()
    assert list(running.engine.queues()) == ["q"]
    assert sorted(made.usage) == [0, 1, 2]
    assert {tuple(usage) for usage in made.usage.values()} == {(0, 0, 0, 0)}
    assert (made.messages, made.payload_bytes, made.stored_bytes, made.reserved) == (0, 0, 0, 0)
    assert made.oldest_seconds is None
    assert sum(made.removed.values()) == made.set_aside == 0
    assert made.groups["r"].spec == OFFSETS
    assert dict(made.groups["g"].position) == {0: 0, 1: 0, 2: 0}


async def test_an_outline_says_what_the_snapshot_says(running: Running) -> None:
    """The outline has what requests need; a lease that is over does not count."""
    await running.create(physical_queues=2, groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a", b"b")
    await running.receive(1)
    for leased in (1, 0):
        outline, snapshot = running.engine.outline("q"), running.snapshot()
        assert outline.groups["g"].leased == leased
        assert (outline.incarnation, outline.spec) == (snapshot.incarnation, snapshot.spec)
        assert outline.messages == snapshot.messages == 2
        assert list(outline.physical_queues) == list(snapshot.usage)
        held = {name: (one.spec, one.leased) for name, one in snapshot.groups.items()}
        assert dict(outline.groups) == held
        running.passes(LEASE.visibility_timeout)
    with pytest.raises(UnknownQueueError):
        running.engine.outline("x")


async def test_a_queue_is_created_once(running: Running) -> None:
    """Equal settings keep the queue; others are an error, and change nothing."""
    made = await running.create()
    await running.store(b"a")
    again = await running.create()
    assert again.incarnation == made.incarnation
    assert again.messages == 1
    with pytest.raises(ExistsError, match="q"):
        await running.create(max_messages=7)
    assert running.snapshot().spec.max_messages is None


async def test_a_queue_of_another_kind_of_spec_is_kept(running: Running) -> None:
    """Every setting comes back as it was given."""
    spec = QueueSpec(
        physical_queues=2,
        key="topic:1",
        max_messages=10,
        max_bytes=1000,
        retention_seconds=60.0,
        delay_seconds=1.0,
        deduplication_seconds=5.0,
        keeps_last=True,
        when_full="drop_oldest",
        topics=("a/#", "b/+"),
        sizes="small",
        tags={"team": "ä"},
        groups={
            "g": GroupSpec(
                topics=("a/#",),
                group_expiry_seconds=60.0,
                visibility_timeout=3.0,
                order="key",
                max_receives=3,
                dead_letter_queue="dead",
                max_leased_messages=5,
            ),
            "r": GroupSpec(kind="offsets", start="latest"),
        },
    )
    await running.engine.create_queue("q", spec)
    assert running.snapshot().spec == spec
    if running.storage.is_durable:
        await running.reopen()
        assert running.snapshot().spec == spec
        assert running.group().spec == spec.groups["g"]
        assert running.group("r").spec == spec.groups["r"]
        assert (await running.engine.create_queue("q", spec)).spec == spec


async def test_queues_survive_restarts(durable: Running) -> None:
    """A queue keeps its incarnation, and one that was deleted stays deleted."""
    made = await durable.create()
    await durable.create("other")
    await durable.store(b"a", queue="other")
    await durable.engine.delete_queue("other")
    await durable.kill()
    assert list(durable.engine.queues()) == ["q"]
    assert durable.snapshot().incarnation == made.incarnation
    await durable.create("other")
    assert durable.snapshot("other").messages == 0


async def test_changed_settings_count_at_once_and_survive(durable: Running) -> None:
    """A change keeps messages, groups and incarnation."""
    made = await durable.create()
    await durable.store(b"a")
    changed = await durable.change(max_messages=2, tags={"a": "b"})
    assert changed.spec.max_messages == 2
    assert changed.incarnation == made.incarnation
    assert not durable.engine.reserve("q", 2, 0)
    await durable.kill()
    assert durable.snapshot().spec.tags == {"a": "b"}
    assert not durable.engine.reserve("q", 2, 0)
    assert await durable.payloads() == [b"a"]


async def test_a_change_creates_missing_groups_and_leaves_the_others(running: Running) -> None:
    """Groups that the new settings lack go on."""
    await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a")
    await running.engine.commit("q", "r", running.position(1))
    await running.change(groups={"new": LEASE})
    assert sorted(running.snapshot().groups) == ["g", "new", "r"]
    assert dict(running.group("r").position) == {0: 1}
    assert await running.payloads(group="new") == [b"a"]


async def test_more_physical_queues_begin_empty(running: Running) -> None:
    """Groups read them from their beginning."""
    await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a")
    await running.change(physical_queues=3)
    assert (await running.store(b"b", number=2)).offsets == [0]
    assert await running.payloads(number=2) == [b"b"]
    assert running.group("r").waiting == 2


async def test_surplus_physical_queues_are_read_until_they_are_empty(durable: Running) -> None:
    """Fewer physical queues lose nothing, before and behind a restart."""
    await durable.create(physical_queues=3)
    await durable.store(b"a", number=2)
    await durable.change(physical_queues=1)
    assert 2 in durable.snapshot().usage
    await durable.kill()
    assert durable.snapshot().messages == 1
    assert await durable.drain(number=2) == [b"a"]
    assert durable.snapshot().messages == 0


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("topic", {"physical_queues": 4}),
        ("topic", {"physical_queues": 1}),
        ("topic", {"key": "topic:1"}),
        (None, {"key": "topic"}),
    ],
    ids=str,
)
async def test_a_change_that_would_part_the_messages_of_a_key_is_refused(
    running: Running, before: str | None, change: dict[str, Any]
) -> None:
    """A later message would be elsewhere, and be received before an earlier one is settled."""
    await running.create(physical_queues=2, key=before)
    await running.store(b"1", number=1)
    (received,) = await running.receive(number=1)
    spec = running.snapshot().spec
    with pytest.raises(KeyOrderError, match=r"queue q: (physical_queues|key): read .*; allowed: "):
        await running.change(**change)
    assert running.snapshot().spec == spec
    await running.change(max_messages=5)
    await running.ack([received])
    if running.storage.keeps_leases:  # another program could store in the old place at this moment
        with pytest.raises(KeyOrderError, match="create another queue"):
            await running.change(**change)
    else:
        await running.change(**change)
        assert replace(spec, max_messages=5, **change) == running.snapshot().spec


async def test_a_queue_without_key_may_have_any_number(running: Running) -> None:
    """Also one that gives its key up."""
    await running.create(physical_queues=2, key="topic")
    await running.store(b"1", number=1)
    await running.change(physical_queues=4, key=None)
    await running.change(physical_queues=3)
    assert await running.payloads(number=1) == [b"1"]


async def test_a_change_behind_a_message_on_its_way_is_refused(running: Running) -> None:
    """What was appended before counts, though it is not stored yet."""
    await running.create(physical_queues=2, key="topic")
    stored = running.append([running.new(b"1")], number=1)
    with pytest.raises(KeyOrderError):
        await running.change(physical_queues=4)
    await stored


async def test_a_deleted_queue_is_gone(running: Running) -> None:
    """With its messages and groups; other queues are untouched."""
    await running.create()
    await running.create("other")
    await running.store(b"a")
    await running.store(b"b", queue="other")
    await running.engine.delete_queue("q")
    assert list(running.engine.queues()) == ["other"]
    assert await running.payloads(queue="other") == [b"b"]
    with pytest.raises(UnknownQueueError, match="q"):
        running.snapshot()
    await running.create()
    assert running.snapshot().messages == 0
    assert running.group().waiting == 0


async def test_a_recreated_queue_is_another_one(running: Running) -> None:
    """Positions and handles of the old one are refused, never taken for the new one's."""
    old = await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a", b"b")
    received = await running.receive()
    position = running.position(1)
    await running.engine.delete_queue("q")
    new = await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"c", b"d")
    assert new.incarnation != old.incarnation
    with pytest.raises(IncarnationError) as error:
        await running.engine.plan("q", position, 10, None)
    assert error.value.incarnation == new.incarnation
    with pytest.raises(IncarnationError):
        await running.engine.commit("q", "r", position)
    assert running.group("r").waiting == 2
    assert await running.payloads() == [b"c", b"d"]
    for action in ("ack", "nack", "extend", "dead"):
        refused = await running.settle(action, received)
        assert sorted(refused) == [0, 1]
    running.engine.give_back("q", "g", received)
    assert running.group().leased == 2
    assert running.snapshot().messages == 2


async def test_incarnations_differ_over_restarts(durable: Running) -> None:
    """A queue that was created again while a reader was away is recognized."""
    incarnations = set()
    for _ in range(3):
        incarnations.add((await durable.create()).incarnation)
        await durable.engine.delete_queue("q")
        await durable.kill()
    assert len(incarnations) == 3


async def test_names_are_any_text(running: Running) -> None:
    """A name is no file name and no statement."""
    names = ["a/b", "../x", "ä ü", "q'; DROP TABLE queue", "Q", "q", "x" * 200]
    for name in names:
        await running.create(name, groups={name: LEASE})
        await running.store(name.encode(), queue=name)
    assert sorted(running.engine.queues()) == sorted(names)
    for name in names:
        assert await running.drain(queue=name, group=name) == [name.encode()]


async def test_a_delete_during_requests_fails_them_or_lets_them_end(running: Running) -> None:
    """No request hangs, and none brings the queue back."""
    await running.create()
    future = running.append([running.new(b"a")])
    await running.engine.delete_queue("q")
    with suppress(UnknownQueueError):
        await future
    assert list(running.engine.queues()) == []
    await running.create()
    assert running.snapshot().messages == 0


UNKNOWN: dict[str, Callable[[Running], Coroutine[Any, Any, Any]]] = {
    "change": lambda r: r.engine.change_queue("nowhere", QueueSpec()),
    "delete": lambda r: r.engine.delete_queue("nowhere"),
    "create_group": lambda r: r.engine.create_group("nowhere", "g", LEASE),
    "change_group": lambda r: r.engine.change_group("nowhere", "g", LEASE),
    "delete_group": lambda r: r.engine.delete_group("nowhere", "g"),
    "lease": lambda r: r.engine.lease("nowhere", "g", 0, 1, MANY_BYTES),
    "settle": lambda r: r.engine.settle("nowhere", "g", "ack", ["x"]),
    "read": lambda r: r.engine.read("nowhere", 0, 0, 0, 1),
    "plan": lambda r: r.engine.plan("nowhere", Position("", {}), 1, None),
    "locate": lambda r: r.engine.locate("nowhere", "earliest"),
    "commit": lambda r: r.engine.commit("nowhere", "g", Position("", {})),
    "seek": lambda r: r.engine.seek("nowhere", "g", "earliest"),
    "wait": lambda r: r.engine.wait_for_arrival("nowhere", "g", -1, 0),
    "purge": lambda r: r.engine.purge("nowhere"),
    "redrive": lambda r: r.engine.redrive("nowhere", None, None),
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_an_unknown_queue_is_an_error(running: Running, name: str) -> None:
    """Each method that names a queue says that there is none."""
    with pytest.raises(UnknownQueueError, match="nowhere"):
        await UNKNOWN[name](running)


async def test_give_back_and_release_to_a_queue_that_is_gone_do_nothing(running: Running) -> None:
    """Who cleans up need not know what happened meanwhile."""
    await running.create()
    await running.store(b"a")
    received = await running.receive()
    await running.engine.delete_queue("q")
    running.engine.give_back("q", "g", received)


async def test_a_snapshot_is_not_changed_by_what_comes_behind_it(running: Running) -> None:
    """It is a picture, which its holder may keep."""
    await running.create()
    before = running.snapshot()
    kept = replace(before, groups=dict(before.groups), usage=dict(before.usage))
    await running.store(b"a")
    assert before == kept
    assert before != running.snapshot()


async def test_oldest_seconds_is_the_age_of_the_oldest_message(running: Running) -> None:
    """It is by the engine's clock, whatever wall time does."""
    await running.create(physical_queues=2)
    await running.store(b"a", number=1)
    running.passes(10)
    await running.store(b"b")
    running.passes(5)
    running.steps(1e6)
    oldest = running.snapshot().oldest_seconds
    assert oldest == pytest.approx(15, abs=0.5)
    await running.drain(number=1)
    assert running.snapshot().oldest_seconds == pytest.approx(5, abs=0.5)
