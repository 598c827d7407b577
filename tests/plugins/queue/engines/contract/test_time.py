from __future__ import annotations

import pytest

from penstock.plugins.queue.engines.contract import GroupSpec
from tests.plugins.queue.engines.contract.harness import LEASE, OFFSETS, Running, properties_of

YEARS = 3e8
"""Seconds by which a clock without a battery steps when it is set."""


# -- delay ------------------------------------------------------------------------------------


async def test_a_delayed_message_is_received_later(running: Running) -> None:
    """By the queue's delay, or the message's own; others pass it."""
    await running.create(delay_seconds=10.0)
    await running.store(b"queue's")
    await running.store(b"own", delay=20)
    await running.store(b"none", delay=0)
    assert (running.group().waiting, running.group().leased) == (3, 0)
    assert await running.drain() == [b"none"]
    assert running.group().delayed == 2
    running.passes(10.1)
    assert await running.drain() == [b"queue's"]
    assert running.group().delayed == 1
    running.passes(10)
    assert await running.drain() == [b"own"]
    assert running.group().delayed == 0


async def test_a_delay_is_no_receive(running: Running) -> None:
    """The first receive behind it is the first."""
    await running.create()
    await running.store(b"a", delay=5)
    running.passes(6)
    (received,) = await running.receive()
    assert received.receive_count == 1


async def test_a_delay_counts_for_lease_groups(running: Running) -> None:
    """A range is read by offset, whatever its delay."""
    await running.create(groups={"g": LEASE, "r": OFFSETS})
    await running.store(b"a", delay=5)
    assert await running.held() == [b"a"]
    assert await running.payloads() == []


async def test_a_delay_survives_a_restart(durable: Running) -> None:
    """What is left of it is waited for; wall time shortens nothing."""
    await durable.create()
    await durable.store(b"a", delay=20)
    durable.passes(5)
    durable.steps(YEARS)
    await durable.kill()
    assert await durable.payloads() == []
    durable.passes(14)
    assert await durable.payloads() == []
    durable.passes(1.5)
    assert await durable.payloads() == [b"a"]


async def test_delayed_messages_are_counted_behind_a_restart(durable: Running) -> None:
    """By their own delays, as far as these are not over."""
    await durable.create()
    await durable.store(b"over", delay=5)
    await durable.store(b"own", delay=20)
    await durable.store(b"none")
    durable.passes(6)
    await durable.kill()
    group = durable.group()
    assert (group.waiting, group.delayed) == (3, 1)
    durable.passes(15)
    assert durable.group().delayed == 0
    assert sorted(await durable.payloads()) == [b"none", b"over", b"own"]


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e400", "-5", "x", "", "9" * 400])
async def test_a_publisher_s_own_delay_property_breaks_nothing(running: Running, text: str) -> None:
    """Whatever stands in a user property that the engine uses itself, others are received."""
    await running.create()
    properties = {"user_property": [("penstock-delay", text)]}
    await running.store(b"odd", properties=properties)
    await running.store(b"a")
    assert b"a" in await running.payloads()
    running.passes(1)
    await running.store(b"b")
    assert b"b" in await running.payloads()
    assert await running.engine.purge("q") == 3


@pytest.mark.parametrize(
    ("text", "asked", "delay"),
    [("15", None, 15), ("1e400", None, 366 * 86_400), ("15", 30.0, 30), ("30", 0.0, 0)],
)
async def test_a_publisher_may_delay_a_message(
    running: Running, text: str, asked: float | None, delay: float
) -> None:
    """By a user property, for a year and a day at most; what a request says goes before it."""
    await running.create()
    properties = {"user_property": [("penstock-delay", text)]}
    await running.store(b"a", properties=properties, delay=asked)
    if delay:
        running.passes(delay - 1)
        assert await running.payloads() == []
        running.passes(1.5)
    assert await running.payloads() == [b"a"]


# -- message expiry ---------------------------------------------------------------------------


async def test_message_expiry_is_counted_down(running: Running) -> None:
    """A receiver is told the seconds that are left [MQTT-3.3.2-6]."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", expiry=100, properties={"content_type": "x"})
    await running.store(b"b")
    for left in (100, 88):
        (a, b) = await running.receive()
        found = properties_of(a)
        assert found["content_type"] == "x"
        assert left - 1 <= found["message_expiry_interval"] <= left
        assert "message_expiry_interval" not in properties_of(b)
        running.passes(12)


async def test_an_expired_message_is_settled_unseen(running: Running) -> None:
    """It leaves, is counted, and holds up nobody."""
    await running.create(groups={"g": LEASE, "h": LEASE})
    await running.store(b"a", expiry=5)
    await running.store(b"b", expiry=50)
    running.steps(YEARS)
    assert await running.payloads(1, group="h") == [b"a"]
    running.passes(5.1)
    assert await running.drain() == [b"b"]
    await running.settled(1, "expired")
    assert running.group().waiting == 0


async def test_a_message_that_expires_while_it_is_leased_can_be_acknowledged(
    running: Running,
) -> None:
    """Its receiver has it: only a further receive is spared."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b", expiry=5)
    (a, _) = await running.receive()
    running.passes(6)
    await running.ack([a])
    running.passes(6)
    assert await running.payloads() == []
    await running.settled(1, "expired")
    assert running.snapshot().messages == 0


async def test_message_expiry_survives_a_restart(durable: Running) -> None:
    """What is left goes on by the engine's clock."""
    await durable.create()
    await durable.store(b"a", expiry=20)
    await durable.store(b"b", expiry=60)
    durable.passes(10)
    durable.steps(-YEARS)
    await durable.kill()
    durable.passes(11)
    (received,) = await durable.receive()
    assert received.payload == b"b"
    assert 37 <= properties_of(received)["message_expiry_interval"] <= 40


async def test_delay_and_expiry_go_on_behind_a_reboot(durable: Running) -> None:
    """The machine's clock begins at zero: what was left before is still left."""
    await durable.create(retention_seconds=1000.0)
    await durable.store(b"delayed", delay=20)
    await durable.store(b"expiring", expiry=60)
    durable.passes(10)
    await durable.engine.maintain()
    await durable.reboot()
    await durable.engine.maintain()
    assert durable.snapshot().messages == 2
    assert await durable.payloads() == [b"expiring"]
    durable.passes(31)
    assert b"delayed" in await durable.payloads()


# -- retention --------------------------------------------------------------------------------


async def test_old_messages_leave_read_or_not(running: Running) -> None:
    """Whoever waits for them; they are counted."""
    await running.create(groups={"g": LEASE, "r": OFFSETS}, retention_seconds=60.0)
    await running.store(b"a")
    running.passes(40)
    await running.store(b"b")
    received = await running.receive(1)
    running.passes(19)
    await running.engine.maintain()
    assert running.snapshot().messages == 2
    running.passes(2)
    await running.engine.maintain()
    snapshot = running.snapshot()
    assert (snapshot.messages, snapshot.removed["retention"]) == (1, 1)
    assert snapshot.usage[0].earliest == 1
    assert (running.group().waiting, running.group("r").waiting) == (1, 1)
    assert running.group().leased == 0
    assert await running.settle("ack", received) == {0: "stale"}
    assert await running.payloads() == [b"b"]


async def test_a_clock_step_removes_nothing(running: Running) -> None:
    """NTP or a dead battery: retention is by the engine's clock."""
    await running.create(groups={"g": LEASE, "r": OFFSETS}, retention_seconds=60.0)
    await running.store(b"a")
    for n_messages, step in enumerate((YEARS, -2 * YEARS, 4 * YEARS), 1):
        running.steps(step)
        await running.engine.maintain()
        assert running.snapshot().messages == n_messages
        await running.store(b"x")
        await running.engine.maintain()
    assert await running.payloads() == [b"a", b"x", b"x", b"x"]
    running.passes(61)
    await running.engine.maintain()
    assert running.snapshot().messages == 0


async def test_a_clock_step_while_the_engine_was_down_removes_nothing(durable: Running) -> None:
    """Neither does one between two runs, nor one around a reboot."""
    await durable.create(
        retention_seconds=60.0, groups={"r": GroupSpec(kind="offsets", group_expiry_seconds=60.0)}
    )
    await durable.store(b"a", dedup=b"1", delay=30)
    for step in (YEARS, -2 * YEARS):
        durable.steps(step)
        await durable.kill()
        await durable.engine.maintain()
        assert durable.snapshot().messages == 1
        durable.steps(step)
        await durable.reboot()
        await durable.engine.maintain()
        assert durable.snapshot().messages == 1
        assert "r" in durable.snapshot().groups
        assert list((await durable.store(b"a", dedup=b"1")).duplicates) == [0]


async def test_retention_goes_on_behind_a_restart(durable: Running) -> None:
    """Time while the machine ran counts."""
    await durable.create(retention_seconds=60.0)
    await durable.store(b"a")
    durable.passes(40)
    await durable.kill()
    durable.passes(25)
    await durable.engine.maintain()
    assert durable.snapshot().messages == 0
    assert durable.snapshot().usage[0].next == 1


async def test_a_late_arrival_stays_its_time(running: Running) -> None:
    """Each message has its whole retention, in its place behind older ones."""
    await running.create(retention_seconds=60.0)
    for n in range(10):
        await running.store(b"%d" % n)
        running.passes(10 if n < 9 else 5)
    await running.engine.maintain()
    held = await running.held()
    assert held[-6:] == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert len(held) <= 7


async def test_retention_that_is_set_later_counts(running: Running) -> None:
    """A changed setting counts for what is there."""
    await running.create()
    await running.store(b"a")
    running.passes(100)
    await running.store(b"b")
    await running.change(retention_seconds=50.0)
    await running.engine.maintain()
    assert await running.payloads() == [b"b"]


# -- wall time --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [YEARS, -YEARS])
async def test_a_step_of_wall_time_does_nothing_by_itself(running: Running, step: float) -> None:
    """No message leaves, none is redelivered, none is taken for new, none is held back."""
    await running.create(
        groups={
            "g": GroupSpec(visibility_timeout=30, max_receives=2, group_expiry_seconds=100.0),
            "r": GroupSpec(kind="offsets", group_expiry_seconds=100.0),
        },
        retention_seconds=100.0,
        deduplication_seconds=100.0,
    )
    await running.store(b"leased", dedup=b"1")
    await running.store(b"delayed", delay=30)
    await running.store(b"expiring", expiry=30)
    received = await running.receive(1)
    before = running.snapshot()
    running.steps(step)
    await running.engine.maintain()
    after = running.snapshot()
    assert after.oldest_seconds == pytest.approx(before.oldest_seconds or 0, abs=0.5)
    assert after.usage == before.usage
    for name in ("g", "r"):
        assert after.groups[name] == before.groups[name]
    assert list((await running.store(b"leased", dedup=b"1")).duplicates) == [0]
    assert await running.payloads() == [b"expiring"]
    await running.ack(received)
    running.passes(31)
    assert await running.payloads() == [b"delayed"]


async def test_wall_time_is_told(running: Running) -> None:
    """A message says when it came, as the clock stood then."""
    await running.create()
    await running.store(b"a")
    running.passes(10)
    running.steps(YEARS)
    await running.store(b"b")
    batch = await running.batch(0, 2)
    assert batch.enqueued_at[1] - batch.enqueued_at[0] == pytest.approx(YEARS + 10, abs=0.1)
