from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupKindError,
    GroupSpec,
    Position,
    UnknownGroupError,
)
from tests.plugins.queue.engines.contract.harness import LEASE, MANY_BYTES, OFFSETS, Running, until


async def test_each_group_gets_all_messages(running: Running) -> None:
    """Groups of both kinds are independent of each other."""
    await running.create(groups={"g": LEASE, "h": LEASE, "r": OFFSETS, "s": OFFSETS})
    await running.store(b"a", b"b")
    assert await running.drain() == [b"a", b"b"]
    assert running.snapshot().messages == 2
    received = await running.receive(group="h")
    assert [message.payload for message in received] == [b"a", b"b"]
    await running.ack(received[:1], group="h")
    await running.engine.commit("q", "r", running.position(2))
    assert await running.held() == [b"a", b"b"]
    waiting = {name: group.waiting for name, group in running.snapshot().groups.items()}
    assert waiting == {"g": 0, "h": 1, "r": 0, "s": 2}


async def test_what_all_groups_are_done_with_leaves(running: Running) -> None:
    """The log is cut below the slowest group."""
    await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a", b"b", b"c")
    received = await running.receive()
    await running.ack(received[:2])
    assert running.snapshot().messages == 3
    assert await running.engine.commit("q", "r", running.position(1)) == running.position(1)
    assert running.snapshot().messages == 2
    assert running.snapshot().usage[0].earliest == 1
    assert await running.held() == [b"b", b"c"]
    await running.engine.commit("q", "r", running.position(3))
    assert await running.held() == [b"c"]
    await running.ack(received[2:])
    snapshot = running.snapshot()
    assert (snapshot.messages, snapshot.usage[0].earliest, snapshot.usage[0].next) == (0, 3, 3)


async def test_a_queue_without_groups_keeps_its_messages(running: Running) -> None:
    """Until the retention, or a group that is created later."""
    await running.create(groups={})
    await running.store(b"a")
    await running.engine.maintain()
    assert running.snapshot().messages == 1
    await running.engine.create_group("q", "g", LEASE)
    assert await running.drain() == [b"a"]
    assert running.snapshot().messages == 0


async def test_the_end_of_the_last_group_removes_nothing(running: Running) -> None:
    """Without groups the messages that are there stay."""
    await running.create()
    await running.store(b"a", b"b")
    (first,) = await running.receive(1)
    await running.ack([first])
    await running.engine.delete_group("q", "g")
    await running.engine.maintain()
    assert running.snapshot().messages >= 1
    await running.engine.create_group("q", "g", LEASE)
    assert (await running.payloads())[-1] == b"b"


async def test_a_group_begins_where_it_is_told(running: Running) -> None:
    """At the first message, behind the last, or at a time."""
    await running.create(groups={"keep": OFFSETS}, physical_queues=2)
    await running.store(b"a")
    running.passes(100)
    since = running.wall()
    await running.store(b"b")
    await running.store(b"c", number=1)
    running.passes(100)
    for name, start in (("early", "earliest"), ("late", "latest"), ("since", since)):
        made = await running.engine.create_group("q", name, GroupSpec(start=start))  # type: ignore[arg-type]
        assert made == running.group(name)
    await running.store(b"d")
    assert await running.payloads(group="early") == [b"a", b"b", b"d"]
    assert await running.payloads(group="late") == [b"d"]
    assert await running.payloads(group="since") == [b"b", b"d"]
    assert await running.payloads(group="since", number=1) == [b"c"]
    assert dict(running.group("late").position) == {0: 2, 1: 1}


async def test_a_group_that_begins_late_holds_nothing_from_before(running: Running) -> None:
    """What lies before its start leaves with the other groups."""
    await running.create(groups={"r": OFFSETS})
    await running.store(b"a")
    await running.engine.create_group("q", "late", GroupSpec(start="latest"))
    await running.engine.commit("q", "r", running.position(1))
    assert running.snapshot().messages == 0


async def test_the_first_group_of_a_queue_ends_what_lies_before_its_start(running: Running) -> None:
    """A queue that kept its messages as it had no groups has room for new ones."""
    await running.create(groups={"keep": LEASE}, max_messages=3)
    await running.store(b"a", b"b")
    running.passes(100)
    since = running.wall()
    await running.store(b"c")
    await running.engine.delete_group("q", "keep")
    assert running.snapshot().messages == 3
    await running.engine.create_group("q", "since", GroupSpec(start=since))
    assert running.snapshot().messages == running.group("since").waiting == 1
    await running.engine.delete_group("q", "since")
    await running.change(groups={"late": GroupSpec(start="latest")})
    assert running.snapshot().messages == running.group("late").waiting == 0
    await running.store(b"d")
    assert await running.drain(group="late") == [b"d"]
    assert running.snapshot().messages == 0


async def test_a_group_is_created_once(running: Running) -> None:
    """Equal settings keep the group where it is; others are an error."""
    await running.create()
    await running.store(b"a")
    await running.drain()
    await running.engine.create_group("q", "g", LEASE)
    assert running.group().waiting == 0
    with pytest.raises(ExistsError, match="g"):
        await running.engine.create_group("q", "g", GroupSpec(visibility_timeout=1))
    with pytest.raises(ExistsError):
        await running.engine.create_group("q", "g", OFFSETS)


async def test_a_changed_group_keeps_its_place(durable: Running) -> None:
    """Other settings count for the next request; the kind cannot change."""
    await durable.create()
    await durable.store(b"a", b"b", b"c")
    (first,) = await durable.receive(1)
    await durable.ack([first])
    changed = await durable.engine.change_group(
        "q", "g", GroupSpec(visibility_timeout=5, max_leased_messages=1)
    )
    assert changed.spec.visibility_timeout == 5
    assert await durable.payloads() == [b"b"]
    durable.passes(6)
    assert await durable.payloads() == [b"b"]
    with pytest.raises(GroupKindError):
        await durable.engine.change_group("q", "g", OFFSETS)
    await durable.kill()
    assert durable.group().spec.max_leased_messages == 1
    assert await durable.payloads() == [b"b"]


async def test_groups_survive_restarts(durable: Running) -> None:
    """Positions, single acknowledgements behind them, and groups made at run time."""
    await durable.create(groups={"r": OFFSETS})
    await durable.engine.create_group("q", "g", LEASE)
    await durable.engine.create_group("q", "gone", LEASE)
    await durable.store(b"a", b"b", b"c", b"d")
    received = await durable.receive()
    await durable.ack([received[1], received[3]])
    await durable.engine.commit("q", "r", durable.position(1))
    await durable.engine.delete_group("q", "gone")
    await durable.kill()
    assert sorted(durable.snapshot().groups) == ["g", "r"]
    assert dict(durable.group("r").position) == {0: 1}
    assert (durable.group("r").waiting, durable.group("g").waiting) == (3, 2)
    assert await durable.payloads() == [b"a", b"c"]


async def test_an_acknowledged_message_never_comes_again(durable: Running) -> None:
    """Once `settle` has returned, neither a kill nor a restart brings it back."""
    await durable.create()
    await durable.store(*(b"%d" % n for n in range(10)))
    left = {b"%d" % n for n in range(10)}
    while left:
        (one, *_) = await durable.receive(1)
        await durable.ack([one])
        left.remove(one.payload)
        await durable.kill()
        assert durable.snapshot().messages == len(left)
    assert await durable.payloads() == []


async def test_a_deleted_group_holds_nothing(running: Running) -> None:
    """What only it waited for leaves the queue; its handles are refused."""
    await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a")
    received = await running.receive()
    await running.engine.commit("q", "r", running.position(1))
    assert running.snapshot().messages == 1
    await running.engine.delete_group("q", "g")
    assert running.snapshot().messages == 0
    with pytest.raises(UnknownGroupError, match="g"):
        await running.settle("ack", received)
    running.engine.give_back("q", "g", received)
    await running.engine.create_group("q", "g", LEASE)
    assert sorted(await running.settle("ack", received)) == [0]


async def test_a_group_expires_that_nobody_uses(running: Running) -> None:
    """It no longer holds messages; time by the engine's clock decides."""
    expiring = GroupSpec(kind="offsets", group_expiry_seconds=60.0)
    await running.create(groups={"g": LEASE, "r": expiring})
    await running.store(b"a")
    await running.drain()
    running.steps(1e6)
    await running.engine.maintain()
    assert "r" in running.snapshot().groups
    running.passes(59)
    assert running.group("r").idle_seconds == pytest.approx(59, abs=0.5)
    await running.engine.maintain()
    assert "r" in running.snapshot().groups
    running.passes(2)
    await running.engine.maintain()
    assert list(running.snapshot().groups) == ["g"]
    assert running.snapshot().messages == 0
    with pytest.raises(UnknownGroupError, match="r"):
        await running.engine.commit("q", "r", running.position(1))


async def test_a_group_in_use_does_not_expire(running: Running) -> None:
    """Each request of the group counts as use, an empty receive as well."""
    await running.create(
        groups={
            "g": GroupSpec(group_expiry_seconds=60.0),
            "r": GroupSpec(kind="offsets", group_expiry_seconds=60.0),
        }
    )
    for _ in range(5):
        running.passes(40)
        assert await running.receive() == []
        await running.engine.commit("q", "r", running.position(0))
        assert running.group().idle_seconds == pytest.approx(0, abs=0.5)
        await running.engine.maintain()
    assert sorted(running.snapshot().groups) == ["g", "r"]


async def test_a_held_request_keeps_its_group(running: Running) -> None:
    """A group for which a request waits is in use, for as long as it waits."""
    await running.create(groups={"g": GroupSpec(group_expiry_seconds=60.0)})
    engine = running.engine
    seen = await engine.wait_for_arrival("q", "g", -1, 0.0)
    held = asyncio.create_task(engine.wait_for_arrival("q", "g", seen, 1000.0))
    await asyncio.sleep(0)
    running.passes(61)
    await engine.maintain()
    assert running.group().idle_seconds == 0
    held.cancel()
    await asyncio.wait([held])
    running.passes(59)
    await engine.maintain()
    assert "g" in running.snapshot().groups
    running.passes(2)
    await engine.maintain()
    assert "g" not in running.snapshot().groups


async def test_a_poll_of_lengths_is_a_use_of_its_group(running: Running) -> None:
    """A receive that waits by polls (pms) keeps its group."""
    await running.create(groups={"g": GroupSpec(group_expiry_seconds=60.0)})
    running.passes(61)
    assert running.engine.visible("q", "g") == {}
    await running.engine.maintain()
    assert "g" in running.snapshot().groups


async def test_a_restart_knows_the_last_request_of_a_group(durable: Running) -> None:
    """It is stored with what time asks for, and at a stop."""
    await durable.create()
    durable.passes(100)
    await durable.receive()
    durable.passes(10)
    await durable.engine.maintain()
    await durable.kill()
    assert durable.group().idle_seconds == pytest.approx(10, abs=1)
    await durable.receive()
    durable.passes(10)
    await durable.engine.seek("q", "g", "latest")
    durable.passes(10)
    await durable.reopen()
    assert durable.group().idle_seconds == pytest.approx(10, abs=1)


async def test_a_group_with_leased_messages_does_not_expire(running: Running) -> None:
    """Whoever works on a message for long is there; the time counts from the end of the lease."""
    await running.create(
        groups={"g": GroupSpec(visibility_timeout=100.0, group_expiry_seconds=60.0)}
    )
    await running.store(b"a")
    assert await running.payloads() == [b"a"]
    for _ in range(14):
        running.passes(10)
        await running.engine.maintain()
    assert "g" in running.snapshot().groups
    assert running.group().idle_seconds == pytest.approx(50, abs=1)
    running.passes(20)
    await running.engine.maintain()
    assert "g" not in running.snapshot().groups


async def test_time_without_a_program_expires_no_group(durable: Running) -> None:
    """Nobody could ask then: a group has what was left of its time, over any number of restarts."""
    await durable.create(groups={"r": GroupSpec(kind="offsets", group_expiry_seconds=60.0)})
    await durable.store(b"a")
    for _ in range(3):
        durable.passes(15)
        await durable.engine.maintain()
        await durable.kill(down_seconds=1000)
        await durable.engine.maintain()
        assert "r" in durable.snapshot().groups
    assert await durable.held() == [b"a"]
    assert durable.group("r").idle_seconds == pytest.approx(45, abs=1)
    await durable.engine.maintain()
    durable.passes(16)
    await durable.engine.maintain()
    assert "r" not in durable.snapshot().groups


async def test_a_group_without_expiry_stays(running: Running) -> None:
    """None is never."""
    await running.create()
    running.passes(1e8)
    await running.engine.maintain()
    assert "g" in running.snapshot().groups


async def test_a_restart_is_no_use_that_expires_a_group(durable: Running) -> None:
    """After a restart a group has its whole time, or what was left of it, but never less."""
    await durable.create(groups={"r": GroupSpec(kind="offsets", group_expiry_seconds=60.0)})
    durable.passes(30)
    await durable.kill()
    durable.passes(20)
    await durable.engine.maintain()
    assert "r" in durable.snapshot().groups
    durable.passes(61)
    await durable.engine.maintain()
    assert "r" not in durable.snapshot().groups


async def test_a_group_gets_the_topics_of_its_filters(running: Running) -> None:
    """What matches none is settled unseen, and holds no message."""
    await running.create(
        groups={
            "g": GroupSpec(topics=("plant/+/temperature", "alarm/#")),
            "h": GroupSpec(topics=("plant/#",)),
        }
    )
    for topic in ("plant/1/temperature", "plant/1/image", "alarm", "alarm/2", "$SYS/x", "other"):
        await running.store(topic.encode(), topic=topic)
    wanted = [b"plant/1/temperature", b"alarm", b"alarm/2"]
    assert await running.drain() == wanted
    await running.settled(3, "filtered")
    assert running.group().waiting == 0
    assert await running.drain(group="h") == [b"plant/1/temperature", b"plant/1/image"]
    await running.settled(4, "filtered", group="h")
    assert running.snapshot().messages == 0


async def test_an_unmatched_message_holds_up_nobody(durable: Running) -> None:
    """A group whose filters match nothing receives nothing, also behind a restart."""
    await durable.create(groups={"g": GroupSpec(topics=("none/#",))})
    await durable.store(*(b"%d" % n for n in range(600)))
    assert await durable.receive() == []
    await durable.kill()
    assert await durable.receive() == []
    await durable.store(b"wanted", topic="none/1")
    assert await durable.drain() == [b"wanted"]
    await until(lambda: durable.group().waiting == 0)
    assert durable.snapshot().messages == 0


# -- errors -----------------------------------------------------------------------------------

UNKNOWN: dict[str, Callable[[Running, str], Coroutine[Any, Any, Any]]] = {
    "change_group": lambda r, g: r.engine.change_group("q", g, LEASE),
    "delete_group": lambda r, g: r.engine.delete_group("q", g),
    "lease": lambda r, g: r.engine.lease("q", g, 0, 1, MANY_BYTES),
    "settle": lambda r, g: r.engine.settle("q", g, "ack", ["x"]),
    "commit": lambda r, g: r.engine.commit("q", g, Position(r.snapshot().incarnation, {})),
    "seek": lambda r, g: r.engine.seek("q", g, "earliest"),
    "wait": lambda r, g: r.engine.wait_for_arrival("q", g, -1, 0),
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_an_unknown_group_is_an_error(running: Running, name: str) -> None:
    """Each method that names a group says that there is none."""
    await running.create()
    with pytest.raises(UnknownGroupError, match="nobody"):
        await UNKNOWN[name](running, "nobody")


@pytest.mark.parametrize("name", ["lease", "settle", "commit"])
async def test_a_group_of_the_other_kind_is_an_error(running: Running, name: str) -> None:
    """Lease groups commit nothing; offsets groups lease and settle nothing."""
    await running.create(groups={"lease": LEASE, "offsets": OFFSETS})
    with pytest.raises(GroupKindError, match="lease" if name == "commit" else "offsets"):
        await UNKNOWN[name](running, "lease" if name == "commit" else "offsets")


async def test_one_group_does_not_hinder_another(running: Running) -> None:
    """A group whose leases are at their limit leaves the others alone."""
    await running.create(groups={"g": GroupSpec(max_leased_messages=1), "h": LEASE})
    await running.store(b"a", b"b")
    assert await running.payloads() == [b"a"]
    assert await running.payloads() == []
    assert await running.payloads(group="h") == [b"a", b"b"]
