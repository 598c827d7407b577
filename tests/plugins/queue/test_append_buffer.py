from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.extensions import Receipt
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.append_buffer import (
    DROP_REASONS,
    GATHER_MESSAGES,
    GATHER_SECONDS,
    AppendBuffer,
    PendingBudget,
    Stored,
)
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    Engine,
    NewMessage,
    QueueSpec,
    Sent,
    StorageError,
    StorageFullError,
    UnknownQueueError,
)
from penstock.plugins.queue.service import queue_spec
from penstock.plugins.queue.strategies.enqueue import physical_queue_of
from tests.helpers.clock import Clock
from tests.helpers.effort import examples
from tests.plugins.queue.running import LOGGER, Receipts, message, queue_config, until

QUOTA = ReasonCode.QUOTA_EXCEEDED
SUCCESS = ReasonCode.SUCCESS


class HeldEngine:
    """What an append buffer uses of an engine; commits end when the test says so.

    Attributes:
        appended: physical queue, messages and future of each append.
        room: messages that may be reserved.
        forgotten: deduplication identifiers, and the future of each call.
        unreachable: physical queues whose server is away.
        unclaimed: deduplication identifiers whose server is away: messages with them are sent to no
            physical queue.
    """

    def __init__(self, room: int = 10**9) -> None:
        self.appended: list[tuple[int, list[NewMessage], asyncio.Future[AppendResult]]] = []
        self.room = room
        self.forgotten: list[tuple[Sequence[bytes], asyncio.Future[None]]] = []
        self.unreachable: Sequence[int] = ()
        self.unclaimed: Sequence[bytes] = ()

    def away(self, queue: str) -> Sequence[int]:
        """Return what cannot be reached."""
        del queue
        return self.unreachable

    def held_up(self, queue: str, messages: Sequence[NewMessage]) -> list[int]:
        """Return which messages wait for their identifiers."""
        del queue
        return [at for at, new in enumerate(messages) if new.deduplication_id in self.unclaimed]

    def reserve(self, queue: str, n_messages: int, n_bytes: int) -> bool:
        """Hold room."""
        del queue, n_bytes
        if self.room < n_messages:
            return False
        self.room -= n_messages
        return True

    def release(self, queue: str, n_messages: int, n_bytes: int) -> None:
        """Give room back."""
        del queue, n_bytes
        self.room += n_messages

    def append(
        self,
        queue: str,
        physical_queue: int,
        messages: Sequence[NewMessage],
        sent: Sent | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Note the messages."""
        held_up = self.held_up(queue, messages)
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.appended.append((physical_queue, list(messages), future))
        if sent is not None and not held_up:
            sent(physical_queue, future)
        return future

    def forget(self, queue: str, deduplication_ids: Sequence[bytes]) -> asyncio.Future[None]:
        """Note the identifiers."""
        del queue
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.forgotten.append((deduplication_ids, future))
        return future

    async def commit_all(
        self,
        error: Exception | None = None,
        *,
        lost: Sequence[int] = (),
        duplicates: Sequence[int] = (),
    ) -> None:
        """Settle everything that was appended."""
        appended, self.appended = self.appended, []
        for _, messages, future in appended:
            if error is None:
                offsets = [-1 if index in lost else 100 + index for index in range(len(messages))]
                refused = dict.fromkeys(lost, "unreadable")
                future.set_result(AppendResult(offsets, duplicates, refused))
            else:
                future.set_exception(error)
        await asyncio.sleep(0)


def make_intake(
    *,
    budget: PendingBudget | None = None,
    wait: float = 0.0,
    most: int = 1000,
    room: int = 10**9,
    slow: float | None = None,
    **keys: Any,
) -> tuple[AppendBuffer, HeldEngine]:
    """Return the append buffer of the queue `q` and its engine."""
    engine = HeldEngine(room)
    config = queue_config(queues={"q": {"physical_queues": 1} | keys}).queues["q"]
    buffer = AppendBuffer(
        "q",
        queue_spec(config),
        cast("Engine", engine),
        budget or PendingBudget(1000, 10**6),
        commit_wait_seconds=wait,
        commit_max_messages=most,
        slowdown_detection_time=slow,
        logger=LOGGER,
    )
    return buffer, engine


def offer(buffer: AppendBuffer, offered: Message, receipt: Receipt | None) -> str:
    """Do what the broker does with a message; return why the queue does not get it."""
    reason = buffer.reserve(offered)
    if reason:
        buffer.refuse(offered, reason)
    else:
        buffer.accept(offered, receipt)
    return reason


def payloads(messages: Sequence[NewMessage]) -> list[object]:
    """Return their payloads."""
    return [new.message.payload for new in messages]


@pytest.mark.parametrize("is_routed", [True, False])
@pytest.mark.parametrize("ways", [("refuse", "drop_newest"), ("drop_newest", "refuse")])
async def test_room_is_held_once_where_when_full_changes_before_a_message_is_routed(
    ways: tuple[str, str], *, is_routed: bool
) -> None:
    """A retained message has room while hooks decide who gets it."""
    before, after = (
        queue_spec(queue_config(queues={"q": {"max_messages": 9, "when_full": way}}).queues["q"])
        for way in ways
    )
    buffer, engine = make_intake(room=9, max_messages=9, when_full=ways[0])
    retained = message(retain=True)
    for _ in range(2):
        assert buffer.reserve(retained) == ""
    buffer.set_up(after)
    for _ in range(2):
        if is_routed:
            buffer.accept(retained, None)
        else:
            buffer.release(retained)
    await asyncio.sleep(0)
    # The engine gives back the room of what it stores.
    n_stored = sum(len(messages) for _, messages, _ in engine.appended)
    assert (engine.room + n_stored, n_stored) == (9, 2 if is_routed else 0)
    await engine.commit_all()
    buffer.set_up(before)
    assert engine.room + n_stored == 9


async def test_receipt_is_settled_after_the_commit_and_not_before() -> None:
    """A publisher is answered when its message is safe."""
    buffer, engine = make_intake()
    receipts = Receipts()
    assert offer(buffer, message(), receipts) == ""
    await until(lambda: bool(engine.appended))
    assert receipts.codes == []
    assert (buffer.counts.queued, buffer.counts.stored) == (1, 0)
    await engine.commit_all()
    assert receipts.codes == [SUCCESS]
    assert (buffer.counts.queued, buffer.counts.stored) == (0, 1)


async def test_messages_wait_while_it_changes_where_they_belong() -> None:
    """Those before it are stored by the old number, those that come meanwhile by the new one."""
    buffer, engine = make_intake(key="topic", physical_queues=1)
    after = queue_spec(queue_config(queues={"q": {"key": "topic"}}).queues["q"])
    offer(buffer, message(b"before"), None)
    has_begun = asyncio.Event()

    async def change() -> None:
        async with buffer.held():
            has_begun.set()
            await asyncio.sleep(0)
            buffer.set_up(after)

    changing = asyncio.create_task(change())
    await until(lambda: bool(engine.appended))
    offer(buffer, message(b"published"), None)
    asked = asyncio.create_task(buffer.store([NewMessage(message(b"asked"))]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not has_begun.is_set()
    ((number, messages, _),) = engine.appended
    assert (number, payloads(messages)) == (0, [b"before"])
    await engine.commit_all()
    await changing
    await until(lambda: len(engine.appended) == 2)
    belongs = physical_queue_of("plant/1", after.physical_queues)
    assert belongs
    assert {number for number, _, _ in engine.appended} == {belongs}
    await engine.commit_all()
    assert [one.reason for one in await asked] == [""]


async def test_messages_go_where_they_are_stored_in_time() -> None:
    """A physical queue that holds one up gets no others; what it has got stays there."""
    buffer, engine = make_intake(slow=0.01, physical_queues=2)
    assert buffer.slow_appends is not None
    held = asyncio.create_task(buffer.store([NewMessage(message(b"held"))]))
    await until(lambda: buffer.slow_appends is not None and buffer.slow_appends.excluded == [0])
    waiting, engine.appended = engine.appended, []
    others = asyncio.create_task(buffer.store([NewMessage(message(b"%d" % n)) for n in range(4)]))
    await until(lambda: bool(engine.appended))
    ((number, messages, _),) = engine.appended
    assert (number, payloads(messages)) == (1, [b"0", b"1", b"2", b"3"])
    await engine.commit_all()
    assert {outcome.physical_queue for outcome in await others} == {1}
    engine.appended = waiting
    await engine.commit_all()
    assert (await held)[0].physical_queue == 0
    n_exclusions = buffer.slow_appends.counts.exclusions
    assert n_exclusions
    buffer.set_up(QueueSpec(physical_queues=3))
    assert buffer.slow_appends.counts.exclusions >= n_exclusions  # it only grows
    await buffer.close()


async def test_a_physical_queue_is_timed_once_it_gets_something() -> None:
    """What comes before, and fails there, is not its affair: here, an identifier is not claimed."""
    buffer, engine = make_intake(slow=0.01, physical_queues=2)
    assert buffer.slow_appends is not None
    engine.unclaimed = [b"id"]
    held = asyncio.create_task(buffer.store([NewMessage(message(b"0"), b"id")]))
    slow = asyncio.create_task(buffer.store([NewMessage(message(b"1"))]))
    await until(lambda: buffer.slow_appends is not None and 1 in buffer.slow_appends.excluded)
    await engine.commit_all(StorageError("no claim"))
    assert [(await one)[0].reason for one in (held, slow)] == ["storage_error"] * 2
    assert buffer.slow_appends.excluded == [1]
    assert buffer.slow_appends.counts.failed == 1
    await buffer.close()


async def test_a_message_that_is_held_up_holds_up_no_other_publisher() -> None:
    """It goes by itself, and the others of its group have their answers before."""
    buffer, engine = make_intake()
    engine.unclaimed = [b"1"]
    receipts = [Receipts(b"%d" % at) for at in range(3)]
    for each in receipts:
        offer(buffer, message(each.deduplication_id), each)
    await until(lambda: bool(engine.appended))
    others, held = engine.appended
    assert [payloads(messages) for _, messages, _ in (others, held)] == [[b"0", b"2"], [b"1"]]
    engine.appended = [others]
    await engine.commit_all()
    assert [each.codes for each in receipts] == [[SUCCESS], [], [SUCCESS]]
    engine.appended = [held]
    await engine.commit_all(StorageError("no claim"))
    assert receipts[1].codes == [ReasonCode.UNSPECIFIED_ERROR]
    await buffer.close()


async def test_messages_go_where_servers_are_there() -> None:
    """No message has to be late for it."""
    buffer, engine = make_intake(slow=60.0, physical_queues=2)
    assert buffer.slow_appends is not None
    engine.unreachable = [0]
    stored = asyncio.create_task(buffer.store([NewMessage(message(b"%d" % n)) for n in range(4)]))
    await until(lambda: bool(engine.appended))
    assert [number for number, *_ in engine.appended] == [1]
    assert buffer.slow_appends.excluded == [0]
    await engine.commit_all()
    assert {outcome.physical_queue for outcome in await stored} == {1}
    await buffer.close()


async def test_messages_of_one_loop_iteration_go_together() -> None:
    """What comes in one chunk of a connection is one append, in order."""
    buffer, engine = make_intake()
    for n in range(5):
        offer(buffer, message(b"%d" % n), None)
    assert engine.appended == []
    await asyncio.sleep(0)
    ((number, messages, _),) = engine.appended
    assert (number, payloads(messages)) == (0, [b"0", b"1", b"2", b"3", b"4"])


async def test_group_waits_for_others_no_longer_than_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`commit_wait_seconds` lets the first message of a group wait for more."""
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    buffer, engine = make_intake(wait=2.0)
    offer(buffer, message(), None)
    clock.now += 1.5
    for _ in range(3):
        await asyncio.sleep(0)
    assert engine.appended == []
    offer(buffer, message(), None)
    clock.now += 0.5
    for _ in range(3):
        await asyncio.sleep(0)
    assert [len(messages) for _, messages, _ in engine.appended] == [2]


async def test_messages_of_a_flood_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows many messages that are being stored waits for others; a few do not wait."""
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    buffer, engine = make_intake()
    for _ in range(GATHER_MESSAGES):
        offer(buffer, message(), None)
    await asyncio.sleep(0)
    assert [len(messages) for _, messages, _ in engine.appended] == [GATHER_MESSAGES]
    for _ in range(2):
        offer(buffer, message(), None)
        for _ in range(3):
            await asyncio.sleep(0)
    assert len(engine.appended) == 1
    clock.now += GATHER_SECONDS
    for _ in range(3):
        await asyncio.sleep(0)
    assert [len(messages) for _, messages, _ in engine.appended] == [GATHER_MESSAGES, 2]


async def test_full_group_does_not_wait() -> None:
    """`commit_max_messages` ends the wait of a group."""
    buffer, engine = make_intake(wait=1.0, most=3)
    for _ in range(7):
        offer(buffer, message(), None)
    assert [len(messages) for _, messages, _ in engine.appended] == [3, 3]


async def test_messages_of_a_key_are_in_one_physical_queue() -> None:
    """Where the queue has a `key`, E-Ctrl goes by it, and by a message's own one before."""
    buffer, engine = make_intake(physical_queues=64, key="topic:1")
    own = {"user_property": [("penstock-key", "7")]}
    for topic, properties in (("a/7", None), ("b/8", None), ("c/7", None), ("d/9", own)):
        offer(buffer, message(topic.encode(), topic, properties=properties), None)
    await asyncio.sleep(0)
    assert sorted(payloads(messages) for _, messages, _ in engine.appended) == [
        [b"a/7", b"c/7", b"d/9"],
        [b"b/8"],
    ]


async def test_changed_settings_hold_for_what_comes_later() -> None:
    """A queue that is given more physical queues deals over them."""
    buffer, engine = make_intake(wait=1.0)
    offer(buffer, message(), None)
    config = queue_config(queues={"q": {"physical_queues": 2}}).queues["q"]
    buffer.set_up(queue_spec(config))
    for _ in range(2):
        offer(buffer, message(), None)
    await intake_is_flushed(buffer)
    assert [number for number, _, _ in engine.appended] == [0, 0, 1]


async def intake_is_flushed(buffer: AppendBuffer) -> None:
    """Have what waits for others appended."""
    closing = asyncio.create_task(buffer.close())
    await asyncio.sleep(0)
    closing.cancel()


async def test_pending_messages_are_bounded() -> None:
    """Past the limit a message is refused before anybody gets it."""
    budget = PendingBudget(2, 1000)
    buffer, engine = make_intake(budget=budget)
    receipts = Receipts()
    reasons = [offer(buffer, message(), receipts) for _ in range(3)]
    assert reasons == ["", "", "pending_full"]
    assert buffer.counts.dropped == {"pending_full": 1}
    await asyncio.sleep(0)
    await engine.commit_all()
    assert offer(buffer, message(), receipts) == ""
    await asyncio.sleep(0)
    await engine.commit_all()
    assert receipts.codes == [SUCCESS, SUCCESS, SUCCESS]


async def test_pending_bytes_are_bounded_and_one_long_message_passes() -> None:
    """The byte limit bounds memory, and never shuts out a message that is longer."""
    buffer, engine = make_intake(budget=PendingBudget(100, 10))
    assert offer(buffer, message(bytes(11)), None) == ""
    assert offer(buffer, message(bytes(1)), None) == "pending_full"
    await asyncio.sleep(0)
    await engine.commit_all()
    reasons = [offer(buffer, message(bytes(n)), None) for n in (5, 5, 1)]
    assert reasons == ["", "", "pending_full"]


async def test_full_queue_refuses_and_what_it_had_no_room_for_is_given_back() -> None:
    """A message that is not stored holds neither the queue's room nor that of what is pending."""
    budget = PendingBudget(1, 1000)
    buffer, engine = make_intake(budget=budget, room=1)
    first = message()
    assert buffer.reserve(first) == ""
    assert buffer.reserve(message()) == "queue_full"
    buffer.release(first)
    assert (engine.room, budget.n_messages, budget.n_bytes) == (1, 0, 0)
    engine.room = 2
    offer(buffer, message(), None)
    assert offer(buffer, message(), None) == "pending_full"
    assert engine.room == 1


async def test_drop_newest_acknowledges_and_counts_what_it_drops() -> None:
    """Publishers of a queue with `drop_newest` are never told that it is full."""
    buffer, engine = make_intake(room=1, max_messages=1, when_full="drop_newest")
    receipts = Receipts()
    assert [offer(buffer, message(b"%d" % n), receipts) for n in range(3)] == ["", "", ""]
    await asyncio.sleep(0)
    ((_, messages, _),) = engine.appended
    assert payloads(messages) == [b"0"]
    await engine.commit_all()
    assert receipts.codes == [SUCCESS] * 3
    assert (buffer.counts.stored, buffer.counts.dropped) == (1, {"queue_full": 2})
    outcomes = await buffer.store([NewMessage(message())])
    assert outcomes == [Stored(-1, -1, "")]
    assert (buffer.requested.stored, buffer.requested.dropped) == (0, {"queue_full": 1})


async def test_room_is_told_after_a_refusal() -> None:
    """Publishers that wait are tried again when a commit has made room."""
    buffer, engine = make_intake(budget=PendingBudget(1, 1000))
    told: list[bool] = []
    buffer.on_room = lambda: told.append(True)
    offer(buffer, message(), None)
    await asyncio.sleep(0)
    await engine.commit_all()
    assert told == []
    offer(buffer, message(), None)
    offer(buffer, message(), None)
    await asyncio.sleep(0)
    await engine.commit_all()
    assert told == [True]
    buffer.has_room_again()
    assert told == [True]


async def test_deduplication_identifier_is_stored_with_the_message() -> None:
    """What the receipt says of a repeat reaches the engine, and `forget` does."""
    buffer, engine = make_intake()
    offer(buffer, message(), Receipts(b"c1", is_repeat=True))
    await asyncio.sleep(0)
    ((_, (new,), _),) = engine.appended
    assert (new.deduplication_id, new.is_repeat) == (b"c1", True)
    told: list[bool] = []
    buffer.forget(b"c1", told.append)
    buffer.forget(b"c2", told.append)
    (first, first_done), (_, second_done) = engine.forgotten
    assert list(first) == [b"c1"]
    second_done.set_exception(StorageError("odd"))
    first_done.set_result(None)
    await asyncio.sleep(0)
    assert sorted(told) == [False, True]


async def test_a_deleted_queue_has_forgotten_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that waits for it can use its packet identifier, and is not kept waiting."""
    buffer, engine = make_intake()
    told: list[bool] = []
    gone = UnknownQueueError("queue: read q; allowed: none")
    buffer.forget(b"c1", told.append)
    buffer.forget(b"c2", told.append)
    (_, deleted), (_, cancelled) = engine.forgotten
    deleted.set_exception(gone)
    cancelled.cancel()
    await asyncio.sleep(0)
    assert told == [True, False]

    def find(*_: object) -> asyncio.Future[None]:
        raise gone

    monkeypatch.setattr(engine, "forget", find)
    buffer.forget(b"c3", told.append)
    assert told[2:] == [True]


async def test_full_disk_is_quota_exceeded_and_other_failures_are_not() -> None:
    """The reason code says whether space is what is missing."""
    buffer, engine = make_intake()
    receipts = Receipts()
    for error in (StorageFullError("full"), StorageError("odd")):
        offer(buffer, message(), receipts)
        await asyncio.sleep(0)
        await engine.commit_all(error)
    assert receipts.codes == [QUOTA, ReasonCode.UNSPECIFIED_ERROR]
    assert buffer.counts.dropped == {"storage_full": 1, "storage_error": 1}


async def test_lost_payload_refuses_its_own_message() -> None:
    """Only the message whose payload is lost is refused, not its group."""
    buffer, engine = make_intake()
    receipts = [Receipts(), Receipts(), Receipts()]
    for receipt in receipts:
        offer(buffer, message(), receipt)
    await asyncio.sleep(0)
    await engine.commit_all(lost=[1])
    assert [receipt.codes for receipt in receipts] == [[SUCCESS], [0x80], [SUCCESS]]
    assert buffer.counts.dropped == {"unreadable": 1}
    assert buffer.stored_bytes == 2 * len(message().payload)


async def test_request_is_told_the_outcome_of_each_message() -> None:
    """Stored, stored before and not stored are told apart, in the order of the request."""
    buffer, engine = make_intake(physical_queues=2, room=5)
    storing = asyncio.create_task(buffer.store([NewMessage(message())] * 6))
    await until(lambda: len(engine.appended) == 2)
    assert buffer.requested.queued == 5
    (_, _, first), (_, _, second) = engine.appended
    first.set_result(AppendResult([10, 11, -1], [1], {2: "unreadable"}))
    second.set_exception(StorageFullError("full"))
    assert await storing == [
        Stored(0, 10, ""),
        Stored(-1, -1, "storage_full"),
        Stored(0, 11, "duplicate"),
        Stored(-1, -1, "storage_full"),
        Stored(-1, -1, "unreadable"),
        Stored(-1, -1, "queue_full"),
    ]
    assert buffer.requested.dropped == {"queue_full": 1, "unreadable": 1, "storage_full": 2}
    assert (buffer.requested.matched, buffer.requested.stored, buffer.requested.queued) == (6, 2, 0)


async def test_messages_of_a_request_that_is_cancelled_are_stored_and_counted() -> None:
    """A client that leaves takes no message back, and no room with it."""
    budget = PendingBudget(10, 1000)
    buffer, engine = make_intake(budget=budget)
    storing = asyncio.create_task(buffer.store([NewMessage(message())]))
    await until(lambda: bool(engine.appended))
    storing.cancel()
    await asyncio.sleep(0)
    await engine.commit_all()
    assert (buffer.requested.stored, buffer.requested.queued, budget.n_messages) == (1, 0, 0)


async def test_closing_stores_what_was_accepted_and_refuses_the_rest() -> None:
    """A close waits for the commits under way; what comes later is told to go elsewhere."""
    buffer, engine = make_intake(wait=1.0)
    receipts = Receipts()
    offer(buffer, message(), receipts)
    reserved = message()
    assert buffer.reserve(reserved) == ""
    closing = asyncio.create_task(buffer.close())
    await asyncio.sleep(0)
    assert offer(buffer, message(), receipts) == "closing"
    buffer.accept(reserved, receipts)
    await asyncio.sleep(0)
    assert not closing.done()
    await engine.commit_all()
    await closing
    assert receipts.codes == [ReasonCode.SERVER_SHUTTING_DOWN, SUCCESS]
    assert buffer.counts.dropped == {"closing": 2}
    assert await buffer.store([NewMessage(message())]) == [Stored(-1, -1, "closing")]


async def test_receipt_that_fails_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """An error in one publisher's receipt is logged, and the others are settled."""

    class Broken(Receipts):
        def settle(self, reason_code: int) -> None:
            raise RuntimeError(f"no use for {reason_code}")

    buffer, engine = make_intake()
    receipts = Receipts()
    for receipt in (Broken(), receipts):
        offer(buffer, message(), receipt)
    await asyncio.sleep(0)
    await engine.commit_all()
    assert receipts.codes == [SUCCESS]
    assert "no use for 0" in caplog.text


async def test_refusals_are_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """The log says why messages are not stored, and is not flooded by saying so."""
    buffer, _ = make_intake(budget=PendingBudget(1, 1000))
    for _ in range(112):
        offer(buffer, message(), None)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split()[2] for text in told] == ["1", "2", "4", "8", "16", "32", "64"]
    assert told[0] == (
        "queue q: 1 messages not stored so far, because too many messages or bytes were waiting "
        "for their commit"
    )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.integers(0, 60), st.booleans()),
        st.tuples(st.just("release"), st.integers(0, 60)),
        st.tuples(st.just("commit"), st.sampled_from(["stored", "full", "error", "lost"])),
        st.tuples(st.just("turn")),
    ),
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None)
@given(ACTIONS, st.sampled_from(["refuse", "drop_newest"]))
def test_books_balance_and_every_receipt_is_settled_once(
    actions: list[tuple[Any, ...]], when_full: str
) -> None:
    """Matched = stored + queued + dropped after every step, and each message has one outcome."""

    async def act() -> None:
        budget = PendingBudget(8, 200)
        buffer, engine = make_intake(
            budget=budget, most=4, room=20, max_messages=20, when_full=when_full
        )
        counts = buffer.counts
        receipts: list[Receipts] = []
        for action in actions:
            if action[0] == "accept":
                receipt = Receipts() if action[2] else None
                if not offer(buffer, message(bytes(action[1])), receipt) and receipt:
                    receipts.append(receipt)
            elif action[0] == "release":
                held = message(bytes(action[1]))
                if not buffer.reserve(held):
                    buffer.release(held)
            elif action[0] == "turn":
                await asyncio.sleep(0)
            else:
                errors = {"full": StorageFullError("full"), "error": StorageError("odd")}
                lost = (0,) if action[1] == "lost" else ()
                await engine.commit_all(errors.get(action[1]), lost=lost)
            assert counts.matched == counts.stored + counts.queued + sum(counts.dropped.values())
            assert counts.queued == budget.n_messages <= 8
        closing = asyncio.create_task(buffer.close())
        await asyncio.sleep(0)
        await engine.commit_all()
        await closing
        await asyncio.sleep(0)
        assert counts.queued == budget.n_messages == budget.n_bytes == 0
        assert all(len(receipt.codes) == 1 for receipt in receipts)
        assert set(counts.dropped) <= set(DROP_REASONS)

    asyncio.run(act())
