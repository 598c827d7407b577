from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from penstock.plugins.queue.engines.contract import (
    Action,
    GroupSpec,
    OffsetError,
    QueueSpec,
    UnknownQueueError,
)
from penstock.plugins.queue.strategies.enqueue import physical_queue_of
from penstock.plugins.queue.wire.frames import ReceivedMessage
from tests.plugins.queue.engines.contract.harness import (
    LEASE,
    MANY_BYTES,
    Running,
    properties_of,
    user_properties,
)

ACTIONS: tuple[Action, ...] = ("ack", "nack", "extend", "dead")


# -- visibility -------------------------------------------------------------------------------


async def test_a_received_message_is_invisible_until_its_timeout(running: Running) -> None:
    """Others get the next ones; then it comes again, and its receive count grows."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b")
    assert await running.payloads(1) == [b"a"]
    assert (running.group().leased, running.group().waiting) == (1, 2)
    assert await running.payloads() == [b"b"]
    assert await running.payloads() == []
    running.passes(9.9)
    assert await running.payloads() == []
    running.passes(0.2)
    received = await running.receive()
    assert [(each.payload, each.receive_count) for each in received] == [(b"a", 2), (b"b", 2)]
    assert running.group().received == 4


async def test_a_receive_has_a_timeout_of_its_own(running: Running) -> None:
    """Shorter or longer than the group's, for each message of the receive."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b")
    await running.receive(1, visibility_timeout=100)
    await running.receive(1, visibility_timeout=1)
    running.passes(2)
    assert await running.payloads() == [b"b"]
    running.passes(90)
    assert await running.payloads() == [b"b"]
    running.passes(9)
    assert await running.payloads() == [b"a"]


async def test_wall_time_ends_no_lease(running: Running) -> None:
    """A step in either direction redelivers nothing and holds nothing back."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a")
    for step in (1e8, -2e8):
        await running.receive()
        running.steps(step)
        assert await running.payloads() == []
        running.passes(10.1)
    assert await running.payloads() == [b"a"]


async def test_a_receive_takes_the_oldest_up_to_its_limits(running: Running) -> None:
    """Limits of messages and bytes; one message always fits."""
    await running.create()
    await running.store(b"12345", b"67890", b"1", b"2")
    assert await running.payloads(max_bytes=1) == [b"12345"]
    assert await running.payloads(max_bytes=6) == [b"67890", b"1"]
    assert await running.payloads(0) == []
    assert await running.payloads(1) == [b"2"]


async def test_what_is_visible_again_comes_before_newer_messages(running: Running) -> None:
    """The oldest first, whoever had it before."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b", b"c", b"d")
    received = await running.receive(3)
    await running.settle("nack", [received[2], received[0]])
    assert await running.payloads() == [b"a", b"c", b"d"]


async def test_many_messages_are_received_once_each(running: Running) -> None:
    """Over many segments, in receives of odd sizes, in their order."""
    await running.create()
    n_messages = 3000
    for start in range(0, n_messages, 700):
        await running.store(*(b"%d" % n for n in range(start, min(start + 700, n_messages))))
    got: list[bytes] = []
    for n_max in range(1, 200):
        received = await running.receive(n_max)
        await running.ack(received[::2])
        await running.ack(received[1::2])
        got += [message.payload for message in received]
    assert got == [b"%d" % n for n in range(n_messages)]
    assert running.snapshot().messages == 0


async def test_receiving_from_no_physical_queue_is_an_error(running: Running) -> None:
    """Its number is named."""
    await running.create()
    with pytest.raises(OffsetError, match="7"):
        await running.engine.lease("q", "g", 7, 1, MANY_BYTES)


# -- settling ---------------------------------------------------------------------------------


async def test_an_acknowledged_message_leaves(running: Running) -> None:
    """It is settled once; its handle is stale from then on, for every action."""
    await running.create()
    await running.store(b"a")
    received = await running.receive()
    await running.ack(received)
    assert running.group().settled["ack"] == 1
    assert (running.group().leased, running.group().waiting) == (0, 0)
    for action in ACTIONS:
        assert await running.settle(action, received) == {0: "stale"}
    assert running.snapshot().messages == 0


async def test_an_acknowledgement_counts_until_the_message_is_received_again(
    running: Running,
) -> None:
    """A late one settles it; one that comes behind the next receive is stale."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b")
    late = await running.receive(1)
    running.passes(11)
    await running.ack(late)
    (old,) = await running.receive()
    running.passes(11)
    (new,) = await running.receive()
    assert new.payload == old.payload == b"b"
    assert new.receipt_handle != old.receipt_handle
    for action in ACTIONS:
        assert await running.settle(action, [old]) == {0: "stale"}
    assert running.group().leased == 1
    await running.ack([new])


async def test_an_extended_lease_ends_later_or_sooner(running: Running) -> None:
    """The time counts from the call, as often as it is called."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a")
    received = await running.receive()
    for _ in range(3):
        running.passes(9)
        assert await running.settle("extend", received, 10) == {}
    assert await running.payloads() == []
    assert await running.settle("extend", received, 3) == {}
    running.passes(3.1)
    assert await running.settle("extend", received, 10) == {0: "stale"}
    again = await running.receive()
    assert again[0].receive_count == 2


async def test_a_lease_extended_by_nothing_is_over(running: Running) -> None:
    """As with a visibility timeout of 0 in SQS, the message is visible at once."""
    await running.create()
    await running.store(b"a")
    received = await running.receive()
    assert await running.settle("extend", received, 0) == {}
    assert await running.payloads() == [b"a"]


async def test_a_rejected_message_comes_again_at_once_or_later(running: Running) -> None:
    """`nack` makes it visible after some seconds; the receive counts."""
    await running.create()
    await running.store(b"a", b"b")
    (a, b) = await running.receive()
    assert await running.settle("nack", [a]) == {}
    assert await running.settle("nack", [b], 20) == {}
    (again,) = await running.receive()
    assert (again.payload, again.receive_count) == (b"a", 2)
    running.passes(19.9)
    assert await running.payloads() == []
    running.passes(0.2)
    assert await running.payloads() == [b"b"]


async def test_a_rejected_message_is_not_the_old_receiver_s(running: Running) -> None:
    """Behind its `nack` a handle settles nothing that another has received."""
    await running.create()
    await running.store(b"a")
    old = await running.receive()
    await running.settle("nack", old)
    new = await running.receive()
    assert await running.settle("ack", old) == {0: "stale"}
    await running.ack(new)


async def test_one_call_settles_some_and_names_the_others(running: Running) -> None:
    """The answer is by index; repeated handles settle once."""
    await running.create()
    await running.store(b"a", b"b")
    (a, b) = await running.receive()
    handles = [a.receipt_handle, "no handle", b.receipt_handle, a.receipt_handle]
    assert await running.engine.settle("q", "g", "ack", handles) == {1: "unknown", 3: "stale"}
    assert running.group().settled["ack"] == 2
    assert running.snapshot().messages == 0


async def test_one_call_settles_messages_of_several_receives(running: Running) -> None:
    """Whatever their order; those that were extended or received again since, by themselves."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    for start in (0, 300):  # more than one segment
        await running.store(*(b"%d" % number for number in range(start, start + 300)))
    old = await running.receive(40)
    running.passes(11)
    again, newer = await running.receive(20), await running.receive(300)
    assert [one.offset for one in again + newer] == list(range(320))
    assert await running.settle("extend", newer[5:7], seconds=20) == {}
    handles = [one.receipt_handle for one in [*newer[::-1], *old, *again]]
    answer = await running.engine.settle("q", "g", "ack", handles)
    assert answer == dict.fromkeys(range(len(newer), len(newer) + len(old)), "stale")
    assert (running.group().leased, running.group().waiting) == (0, 280)
    assert len(await running.held()) == 280


async def test_settling_nothing_is_no_error(running: Running) -> None:
    """An empty call has an empty answer."""
    await running.create()
    assert await running.engine.settle("q", "g", "ack", []) == {}


# -- handles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_handle_is_of_one_group_and_one_queue(running: Running, action: Action) -> None:
    """Another group's or queue's settles nothing, though offsets are the same."""
    await running.create(groups={"g": LEASE, "h": LEASE})
    await running.create("other")
    for queue in ("q", "other"):
        await running.store(b"a", queue=queue)
    of_g = await running.receive()
    of_h = await running.receive(group="h")
    of_other = await running.receive(queue="other")
    assert await running.settle(action, of_h) == {0: "unknown"}
    assert await running.settle(action, of_other) == {0: "unknown"}
    assert await running.settle(action, of_g, group="h") == {0: "unknown"}
    assert running.group().leased == running.group("h").leased == 1
    await running.ack(of_g)
    await running.ack(of_h, group="h")
    await running.ack(of_other, queue="other")


FORGED = ("", " ", "x", "0.0.0", "ä", "\ud800", "9" * 5000, "0." * 50, "\x00", "-1.-1.-1", "a b\n")


@pytest.mark.parametrize("action", ACTIONS)
async def test_what_is_no_handle_settles_nothing(running: Running, action: Action) -> None:
    """Any text is answered as unknown, and raises nothing."""
    await running.create()
    await running.store(b"a")
    (received,) = await running.receive()
    handle = received.receipt_handle
    near = [handle + "0", handle[:-1], handle[1:], handle.swapcase() + "=", handle[::-1]]
    forged = [*FORGED, *(text for text in near if text != handle)]
    answer = await running.engine.settle("q", "g", action, forged)
    assert answer == dict.fromkeys(range(len(forged)), "unknown")
    running.engine.give_back("q", "g", [received._replace(receipt_handle=text) for text in forged])
    assert running.group().leased == 1
    await running.ack([received])


async def test_a_handle_with_one_letter_changed_settles_nothing(running: Running) -> None:
    """Whichever letter: what names the receive is checked as a whole."""
    await running.create()
    await running.store(b"a", b"b")
    (a, _) = await running.receive()
    handle = a.receipt_handle
    forged = [
        handle[:n] + other + handle[n + 1 :]
        for n in range(len(handle))
        for other in "0aZ"
        if handle[n] != other
    ]
    answer = await running.engine.settle("q", "g", "ack", forged)
    assert sorted(answer) == list(range(len(forged)))
    assert running.group().leased == 2


async def test_handles_do_not_tell_the_next_one(running: Running) -> None:
    """Handles of neighbours and of repeated receives have nothing to count on in common.

    Of 64 bits of chance, two handles share no more than what names their message: the texts that
    differ between two receives of one message are long.
    """
    await running.create(groups={"g": GroupSpec(visibility_timeout=1)})
    await running.store(b"a")
    handles: list[str] = []
    for _ in range(50):
        handles += [message.receipt_handle for message in await running.receive()]
        running.passes(1.1)
    assert len(set(handles)) == 50
    differing = [
        sum(a != b for a, b in zip(one, other, strict=False)) for one, other in pairwise(handles)
    ]
    # 8 random bytes are 11 letters of base64 or 16 of hex; a counter changes one or two.
    assert min(differing) >= 5


async def test_a_handle_from_before_a_restart_is_never_another_receive_s(durable: Running) -> None:
    """Not even where wall time and the clock began again at the same moment."""
    await durable.create()
    await durable.store(b"a")
    wall = durable.wall.now
    handles: list[ReceivedMessage] = []
    for number in range(4):
        (received,) = await durable.receive()
        for old in handles:
            assert sorted(await durable.settle("ack", [old])) == [0]
        assert received.receipt_handle not in {old.receipt_handle for old in handles}
        handles.append(received)
        await (durable.kill() if number % 2 else durable.reboot(clock=1.0))
        durable.wall.now = wall
    assert durable.snapshot().messages == 1


# -- restarts ---------------------------------------------------------------------------------


async def test_unacknowledged_messages_are_visible_after_a_restart(durable: Running) -> None:
    """Leases need not survive; messages do, in their order."""
    await durable.create()
    await durable.store(b"a", b"b", b"c")
    received = await durable.receive()
    await durable.ack([received[1]])
    await durable.kill()
    durable.passes(31)
    assert await durable.payloads() == [b"a", b"c"]


async def test_the_receive_count_survives_a_restart(durable: Running) -> None:
    """A message that ends its receiver is counted, whatever else was restarted meanwhile."""
    await durable.create()
    await durable.store(b"a", b"b")
    for number in range(1, 5):
        received = await durable.receive(1)
        assert [(each.payload, each.receive_count) for each in received] == [(b"a", number)]
        await durable.reopen()
        durable.passes(31)
    received = await durable.receive()
    assert [each.receive_count for each in received] == [5, 1]


async def test_max_receives_counts_over_restarts(durable: Running) -> None:
    """A message that is never acknowledged becomes a dead letter in the end."""
    await durable.create("dead")
    await durable.create(groups={"g": GroupSpec(max_receives=2, dead_letter_queue="dead")})
    await durable.store(b"poison", b"good")
    for _ in range(2):
        assert await durable.payloads(1) == [b"poison"]
        await durable.reopen()
        durable.passes(31)
    assert await durable.payloads() == [b"good"]
    await durable.settled(1, "dead")
    assert await durable.payloads(queue="dead") == [b"poison"]


# -- given back -------------------------------------------------------------------------------


async def test_a_receive_that_is_given_back_does_not_count(running: Running) -> None:
    """The messages are visible at once, in their place."""
    await running.create(groups={"g": GroupSpec(max_receives=1)})
    await running.store(b"a", b"b", b"c")
    for _ in range(3):
        received = await running.receive(2)
        assert [(each.payload, each.receive_count) for each in received] == [(b"a", 1), (b"b", 1)]
        running.engine.give_back("q", "g", received)
        assert running.group().leased == 0
    assert await running.payloads() == [b"a", b"b", b"c"]


async def test_the_handle_of_a_receive_that_was_given_back_is_no_other_s(running: Running) -> None:
    """Had its receiver got it after all, it would settle another's message."""
    await running.create()
    await running.store(b"a")
    (old,) = await running.receive()
    running.engine.give_back("q", "g", [old])
    (new,) = await running.receive()
    assert new.receipt_handle != old.receipt_handle
    for action in ACTIONS:
        assert await running.settle(action, [old]) == {0: "stale"}
    await running.ack([new])


async def test_handles_of_several_receives_in_any_order_are_settled_once_each(
    running: Running,
) -> None:
    """Those of one receive need not follow each other, and one may come twice."""
    await running.create()
    for n in range(3):
        await running.store(*(b"%d" % (n * 20 + one) for one in range(20)))
    first = await running.receive(25)
    second = await running.receive(25)
    mixed = [*first[20:], *second[3:5], first[2], first[4], first[3], first[2], *second[:2]]
    mixed += [second[4], first[0], first[24], *reversed(second[40 - 25 :])]
    twice = [index for index, one in enumerate(mixed) if one in mixed[:index]]
    assert await running.settle("ack", mixed) == dict.fromkeys(twice, "stale")
    done = {one.offset for one in mixed}
    assert running.snapshot().messages == 60 - len(done)
    assert running.snapshot().payload_bytes == sum(
        len(b"%d" % offset) for offset in range(60) if offset not in done
    )
    left = [one for one in (*first, *second) if one.offset not in done]
    assert running.group().leased == len(left)
    await running.ack(left)
    assert await running.drain() == [b"%d" % offset for offset in range(50, 60)]
    assert (running.snapshot().messages, running.snapshot().payload_bytes) == (0, 0)


async def test_a_stale_receive_gives_nothing_back(running: Running) -> None:
    """What was settled or received again stays with its receiver."""
    await running.create(groups={"g": GroupSpec(visibility_timeout=10)})
    await running.store(b"a", b"b")
    old = await running.receive()
    await running.ack([old[0]])
    running.passes(11)
    new = await running.receive()
    assert [each.receive_count for each in new] == [2]
    running.engine.give_back("q", "g", old)
    assert running.group().leased == 1
    assert await running.payloads() == []
    await running.ack(new)


async def test_giving_back_to_an_unknown_group_does_nothing(running: Running) -> None:
    """Neither to an unknown queue."""
    await running.create()
    await running.store(b"a")
    received = await running.receive()
    running.engine.give_back("q", "nobody", received)
    running.engine.give_back("nowhere", "g", received)
    assert running.group().leased == 1


async def test_a_count_that_was_given_back_survives_a_restart(durable: Running) -> None:
    """A receive that did not count does not count later either."""
    await durable.create()
    await durable.store(b"a")
    received = await durable.receive()
    durable.engine.give_back("q", "g", received)
    await durable.reopen()
    assert [each.receive_count for each in await durable.receive()] == [1]


# -- the limit of leases ----------------------------------------------------------------------


async def test_no_more_than_the_limit_are_leased(running: Running) -> None:
    """Each settled message makes room for one more, over all physical queues."""
    await running.create(groups={"g": GroupSpec(max_leased_messages=2)}, physical_queues=2)
    await running.store(b"a", b"b", b"c")
    await running.store(b"d", number=1)
    received = await running.receive()
    assert [each.payload for each in received] == [b"a", b"b"]
    assert await running.payloads(number=1) == []
    await running.ack(received[:1])
    assert await running.payloads(number=1) == [b"d"]
    assert await running.payloads() == []


async def test_calls_at_once_lease_no_more_than_the_limit(durable: Running) -> None:
    """The storage is read meanwhile, for each physical queue by itself."""
    await durable.create(groups={"g": GroupSpec(max_leased_messages=3)}, physical_queues=2)
    for number in (0, 1):
        await durable.store(b"a", b"b", number=number)
    await durable.reopen()  # nothing is in memory
    received = await asyncio.gather(*(durable.receive(number=number) for number in (0, 1)))
    assert sum(map(len, received)) == durable.group().leased == 3
    await durable.ack(received[0])
    assert len([*await durable.receive(), *await durable.receive(number=1)]) == 1


async def test_expired_leases_do_not_count_toward_the_limit(running: Running) -> None:
    """A receiver that died blocks nobody beyond the visibility timeout."""
    limited = GroupSpec(max_leased_messages=2, visibility_timeout=10)
    await running.create(groups={"g": limited}, physical_queues=2)
    await running.store(b"a", b"b", number=0)
    await running.store(b"c", b"d", number=1)
    assert await running.payloads() == [b"a", b"b"]
    assert await running.payloads(number=1) == []
    running.passes(10.1)
    assert running.group().leased == 0
    assert await running.payloads(number=1) == [b"c", b"d"]
    running.passes(10.1)
    assert await running.payloads() == [b"a", b"b"]


async def test_rejected_messages_do_not_count_toward_the_limit(running: Running) -> None:
    """A message that waits behind its `nack` is with no receiver."""
    await running.create(groups={"g": GroupSpec(max_leased_messages=1)})
    await running.store(b"a", b"b")
    received = await running.receive()
    await running.settle("nack", received, 20)
    assert await running.payloads() == [b"b"]


# -- dead letters -----------------------------------------------------------------------------


async def test_a_message_dies_behind_its_last_receive(running: Running) -> None:
    """It moves to the dead letter queue with where and why it died."""
    await running.create("dead")
    limited = GroupSpec(max_receives=2, dead_letter_queue="dead", visibility_timeout=10)
    await running.create(groups={"g": limited, "h": LEASE})
    properties = {"content_type": "text/plain", "user_property": [("unit", "K")]}
    await running.store(b"poison", topic="a/b", qos=1, publisher="dev", properties=properties)
    await running.store(b"good")
    assert await running.payloads(1) == [b"poison"]
    running.passes(11)
    (second,) = await running.receive(1)
    await running.settle("nack", [second])
    assert await running.payloads() == [b"good"]
    await running.settled(1, "dead")
    (dead,) = await running.receive(queue="dead")
    assert (dead.payload, dead.topic, dead.qos, dead.publisher) == (b"poison", "a/b", 1, "dev")
    assert json.loads(dead.properties) == {
        "content_type": "text/plain",
        "user_property": [["unit", "K"]],
        "dead_letter": {
            "queue": "q",
            "physical_queue": 0,
            "group": "g",
            "reason": "max_receives",
            "receives": 2,
        },
    }
    assert await running.drain(group="h") == [b"poison", b"good"]


async def test_a_receiver_declares_a_message_dead(running: Running) -> None:
    """`dead` moves it at once, also where receives are not limited."""
    await running.create("dead")
    await running.create(groups={"g": GroupSpec(dead_letter_queue="dead")})
    await running.store(b"a", b"b")
    (a, b) = await running.receive()
    assert await running.settle("dead", [a]) == {}
    assert running.group().settled["dead"] == 1
    assert await running.settle("ack", [a]) == {0: "stale"}
    assert await running.payloads(queue="dead") == [b"a"]
    await running.ack([b])
    assert running.snapshot().messages == 0


async def test_dead_letters_without_a_queue_are_dropped_and_counted(running: Running) -> None:
    """None is to drop."""
    await running.create(groups={"g": GroupSpec(max_receives=1, visibility_timeout=10)})
    await running.store(b"a", b"b")
    (a, _) = await running.receive()
    await running.settle("dead", [a])
    running.passes(11)
    assert await running.payloads() == []
    await running.settled(2, "dead")
    assert running.snapshot().messages == 0


@pytest.mark.parametrize("way", ["missing", "full"])
async def test_a_dead_letter_that_cannot_move_is_not_lost(running: Running, way: str) -> None:
    """Where its queue is missing or full, it is there, in one of the two."""
    limited = GroupSpec(max_receives=1, dead_letter_queue="dead", visibility_timeout=10)
    await running.create(groups={"g": limited})
    if way == "full":
        await running.create("dead", max_messages=1)
        await running.store(b"old", queue="dead")
    await running.store(b"a", b"b")
    await running.receive()
    running.passes(11)
    await running.payloads()
    if way == "missing":
        assert running.snapshot().messages == 2
        await running.create("dead")
        await running.payloads()
    n_dead = running.snapshot("dead").messages - (way == "full")
    assert running.snapshot().messages + n_dead == 2


async def test_dead_letters_survive_a_kill(durable: Running) -> None:
    """A message is in one of the two queues, never in none."""
    await durable.create("dead")
    await durable.create(groups={"g": GroupSpec(dead_letter_queue="dead")})
    await durable.store(*(b"%d" % n for n in range(5)))
    for n in range(5):
        (received,) = await durable.receive(1)
        assert await durable.settle("dead", [received]) == {}
        await durable.kill()
        assert durable.snapshot("dead").messages == n + 1
        assert durable.snapshot().messages == 4 - n
        durable.passes(31)


# -- redrive ----------------------------------------------------------------------------------


async def died(running: Running) -> None:
    """Let messages of two queues die into one."""
    await running.create("dead")
    group = GroupSpec(dead_letter_queue="dead")
    for queue in ("q", "other"):
        await running.engine.create_queue(queue, QueueSpec(physical_queues=1, groups={"g": group}))
    for payload, queue in ((b"a", "q"), (b"b", "other"), (b"c", "q")):
        await running.store(payload, queue=queue, properties={"user_property": [("unit", "K")]})
        await running.settle("dead", await running.receive(queue=queue), queue=queue)
    assert running.snapshot("dead").messages == 3


async def test_dead_letters_go_back_to_where_they_died(running: Running) -> None:
    """As new messages, without the marks of their death."""
    await died(running)
    assert await running.engine.redrive("dead", None, None) == 3
    assert running.snapshot("dead").messages == 0
    received = await running.receive()
    assert [(each.payload, each.receive_count) for each in received] == [(b"a", 1), (b"c", 1)]
    assert user_properties(received[0]) == {"unit": "K"}
    assert await running.payloads(queue="other") == [b"b"]


async def test_some_dead_letters_go_to_another_queue(running: Running) -> None:
    """The oldest first; the others stay."""
    await died(running)
    await running.create("target")
    assert await running.engine.redrive("dead", "target", 2) == 2
    assert await running.payloads(queue="target") == [b"a", b"b"]
    assert await running.drain(queue="dead") == [b"c"]
    assert await running.engine.redrive("dead", "target", None) == 0


async def test_a_dead_letter_is_where_its_key_belongs(running: Running) -> None:
    """Whatever physical queue it was in: its key's other messages there are in order with it."""
    await running.create("dead", physical_queues=5, key="topic")
    await running.create("target", physical_queues=7, key="topic")
    await running.create(groups={"g": GroupSpec(dead_letter_queue="dead")})
    topics = [f"t/{number}" for number in range(20)]
    for topic in topics:
        await running.store(topic.encode(), topic=topic)
    await running.settle("dead", await running.receive())

    async def where(queue: str) -> dict[str, int]:
        usage = running.snapshot(queue).usage
        return {
            topic: number
            for number, held in usage.items()
            for topic in (await running.batch(0, held.next, queue=queue, number=number)).topic
        }

    assert await where("dead") == {topic: physical_queue_of(topic, 5) for topic in topics}
    assert await running.engine.redrive("dead", "target", None) == 20
    assert await where("target") == {topic: physical_queue_of(topic, 7) for topic in topics}


async def test_dead_letters_survive_a_redrive_and_a_kill(durable: Running) -> None:
    """What was moved is in one queue, once."""
    await died(durable)
    assert await durable.engine.redrive("dead", None, 2) == 2
    await durable.kill()
    assert (durable.snapshot("dead").messages, durable.snapshot().messages) == (1, 1)
    assert await durable.payloads(queue="dead") == [b"c"]


async def test_a_redriven_message_can_die_again(running: Running) -> None:
    """Its marks are those of its newest death."""
    await died(running)
    await running.engine.redrive("dead", None, None)
    await running.settle("dead", await running.receive())
    (first, _) = await running.receive(queue="dead")
    names = [name for name, _ in properties_of(first)["user_property"]]
    assert len(names) == len(set(names))


async def test_a_redrive_to_an_unknown_queue_is_an_error(running: Running) -> None:
    """The messages stay where they are."""
    await died(running)
    await running.engine.delete_queue("other")
    with pytest.raises(UnknownQueueError, match="other"):
        await running.engine.redrive("dead", None, None)
    assert running.snapshot("dead").messages >= 1
    assert b"b" in await running.held(queue="dead")
    with pytest.raises(UnknownQueueError, match="nowhere"):
        await running.engine.redrive("dead", "nowhere", None)
