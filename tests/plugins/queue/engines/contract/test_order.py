from __future__ import annotations

from typing import Any

import pytest

from penstock.plugins.queue.engines.contract import GroupSpec
from penstock.plugins.queue.wire.frames import ReceivedMessage
from tests.plugins.queue.engines.contract.harness import LEASE, Running

IN_ORDER = GroupSpec(order="key", visibility_timeout=10)


async def ordered(running: Running, *, key: str = "topic", **group: Any) -> None:
    """Create a queue whose group gets the messages of a key in order."""
    spec = GroupSpec(order="key", visibility_timeout=10, **group)
    await running.create(key=key, groups={"g": spec, "any": LEASE})


async def store_pairs(running: Running, *texts: str) -> None:
    """Store messages such as `a1`, whose topic is their first letter."""
    for text in texts:
        await running.store(text.encode(), topic=text[0])


async def one_of_each(running: Running) -> list[ReceivedMessage]:
    """Receive one message after the other: none of a key whose earlier one is with a receiver."""
    received: list[ReceivedMessage] = []
    while further := await running.receive(1):
        received += further
    return received


async def test_a_message_waits_for_the_earlier_ones_of_its_key(running: Running) -> None:
    """Other keys go on; the next comes when the earlier one is settled."""
    await ordered(running)
    await store_pairs(running, "a1", "a2", "b1", "a3", "b2")
    received = await one_of_each(running)
    assert [each.payload for each in received] == [b"a1", b"b1"]
    assert await running.payloads() == []
    await running.ack([received[1]])
    assert await running.payloads() == [b"b2"]
    await running.ack([received[0]])
    assert await running.payloads(1) == [b"a2"]


async def test_one_call_keeps_the_order_of_a_key(running: Running) -> None:
    """Several messages of a key may come in one answer, the earlier ones first."""
    await ordered(running)
    await running.store(*(b"%d" % n for n in range(50)), topic="a")
    await store_pairs(running, "b1")
    assert await running.drain() in (
        [*(b"%d" % n for n in range(50)), b"b1"],  # all at once
        [b"0", b"b1", *(b"%d" % n for n in range(1, 50))],  # one by one
    )


async def test_no_other_call_gets_a_key_that_is_in_part_with_a_receiver(running: Running) -> None:
    """Neither behind an acknowledgement of some of an answer."""
    await ordered(running)
    await store_pairs(running, "a1", "a2", "a3", "a4", "a5")
    received = await running.receive(3)
    assert await running.payloads() == []
    await running.ack(received[:-1])
    assert await running.payloads() == []
    await running.ack(received[-1:])
    rest = await running.drain()
    assert [each.payload for each in received] + rest == [b"a1", b"a2", b"a3", b"a4", b"a5"]


async def test_a_rejected_message_holds_its_key(running: Running) -> None:
    """Until its delay is over and it is settled."""
    await ordered(running)
    await store_pairs(running, "a1", "a2", "b1")
    received = await one_of_each(running)
    await running.settle("nack", received[:1], 20)
    await running.ack(received[1:])
    assert await running.payloads() == []
    running.passes(21)
    again = await one_of_each(running)
    assert [(each.payload, each.receive_count) for each in again] == [(b"a1", 2)]
    await running.ack(again)
    assert await running.payloads() == [b"a2"]


async def test_an_expired_lease_keeps_the_order(running: Running) -> None:
    """The message comes again before the later ones of its key."""
    await ordered(running)
    await store_pairs(running, "a1", "a2")
    late = await one_of_each(running)
    running.passes(11)
    again = await one_of_each(running)
    assert [each.payload for each in again] == [b"a1"]
    assert await running.settle("ack", late) == {0: "stale"}
    await running.ack(again)
    assert await running.payloads() == [b"a2"]


async def test_an_answer_that_expires_comes_again_in_order(running: Running) -> None:
    """With what came behind it."""
    await ordered(running)
    await store_pairs(running, "a1", "a2", "a3")
    await running.receive()
    await store_pairs(running, "a4")
    running.passes(11)
    assert await running.drain() == [b"a1", b"a2", b"a3", b"a4"]


async def test_a_late_acknowledgement_frees_the_key(running: Running) -> None:
    """One that comes behind the lease and before the next receive."""
    await ordered(running)
    await store_pairs(running, "a1", "a2")
    late = await one_of_each(running)
    running.passes(11)
    await running.ack(late)
    assert await running.payloads() == [b"a2"]


async def test_what_is_given_back_keeps_the_order(running: Running) -> None:
    """It is received again before the later ones."""
    await ordered(running)
    await store_pairs(running, "a1", "a2", "b1")
    for _ in range(3):
        running.engine.give_back("q", "g", await running.receive())
    again = await one_of_each(running)
    assert [(each.payload, each.receive_count) for each in again] == [(b"a1", 1), (b"b1", 1)]


async def test_a_dead_letter_frees_its_key(running: Running) -> None:
    """A poison message holds up its key until it is dead, and no longer."""
    await ordered(running, max_receives=1)
    await store_pairs(running, "a1", "a2", "a3")
    await running.settle("dead", await one_of_each(running))
    assert [each.payload for each in await one_of_each(running)] == [b"a2"]
    running.passes(11)
    assert await running.drain() == [b"a3"]
    await running.settled(2, "dead")
    assert running.group().waiting == 0


async def test_an_expired_message_frees_its_key(running: Running) -> None:
    """Message expiry settles it."""
    await ordered(running)
    await running.store(b"a1", topic="a", expiry=5)
    await running.store(b"a2", topic="a")
    running.passes(6)
    assert await running.drain() == [b"a2"]


async def test_a_delayed_message_holds_its_key(running: Running) -> None:
    """A later one does not overtake it."""
    await ordered(running)
    await running.store(b"a1", topic="a", delay=20)
    await store_pairs(running, "a2", "b1")
    assert await running.drain() == [b"b1"]
    running.passes(21)
    assert await running.drain() == [b"a1", b"a2"]


async def test_a_purge_frees_all_keys(running: Running) -> None:
    """What is gone holds up nothing."""
    await ordered(running)
    await store_pairs(running, "a1", "a2")
    await running.receive()
    await running.engine.purge("q")
    await store_pairs(running, "a3")
    assert await running.drain() == [b"a3"]


async def test_order_goes_on_behind_a_restart(durable: Running) -> None:
    """Unsettled messages come again, each before the later ones of its key."""
    await ordered(durable)
    await store_pairs(durable, "a1", "a2", "b1", "a3")
    received = await one_of_each(durable)
    await durable.ack(received[1:])
    await durable.kill()
    await store_pairs(durable, "a4")
    durable.passes(11)
    assert await durable.drain() == [b"a1", b"a2", b"a3", b"a4"]


@pytest.mark.parametrize(
    ("key", "messages"),
    [
        ("topic:1", [{"topic": "x/a"}, {"topic": "y/a/z"}, {"topic": "x/b"}]),
        ("publisher", [{"publisher": "a"}, {"publisher": "a"}, {"publisher": "b"}]),
        (
            "property:line",
            [
                {"properties": {"user_property": [("line", "a")]}},
                {"properties": {"user_property": [("x", "y"), ("line", "a")]}},
                {"properties": {"user_property": [("line", "b")]}},
            ],
        ),
        ("publisher", [{"key": "a", "publisher": "x"}, {"key": "a"}, {"key": "b"}]),
    ],
    ids=["level", "publisher", "property", "own"],
)
async def test_what_the_key_is(running: Running, key: str, messages: list[dict[str, Any]]) -> None:
    """A topic level, the publisher or a user property; `penstock-key` comes before them."""
    await ordered(running, key=key)
    for number, more in enumerate(messages):
        await running.store(b"%d" % number, **more)
    received = await one_of_each(running)
    assert [each.payload for each in received] == [b"0", b"2"]
    await running.ack(received)
    assert await running.payloads() == [b"1"]


async def test_the_key_survives_a_restart(durable: Running) -> None:
    """Keys of stored messages are as they were when they came."""
    await ordered(durable, key="property:line")
    for number, line in enumerate("aab"):
        await durable.store(b"%d" % number, properties={"user_property": [("line", line)]})
    await durable.kill()
    assert [each.payload for each in await one_of_each(durable)] == [b"0", b"2"]


async def test_messages_without_a_key_do_not_wait(running: Running) -> None:
    """In a queue without keys, and where the property is missing."""
    await running.create("plain", groups={"g": IN_ORDER})
    await running.store(b"a", b"b", queue="plain")
    assert await running.payloads(queue="plain") == [b"a", b"b"]
    await ordered(running, key="property:line")
    await running.store(b"a", b"b")
    assert await running.payloads() == [b"a", b"b"]


async def test_one_busy_key_hides_no_other(running: Running) -> None:
    """Behind a thousand waiting messages of one key, the next key is found."""
    await ordered(running)
    await running.store(*(b"%d" % n for n in range(2500)), topic="busy")
    assert await running.payloads(1) == [b"0"]
    await running.store(b"other", topic="other")
    assert await running.payloads(1) == [b"other"]


async def test_a_group_in_any_order_does_not_wait(running: Running) -> None:
    """Order is the group's affair."""
    await ordered(running)
    await store_pairs(running, "a1", "a2")
    assert await running.payloads(group="any") == [b"a1", b"a2"]
