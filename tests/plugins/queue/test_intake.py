from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.engine import AppendResult, StorageError, StorageFullError
from penstock.plugins.queue.engine_local import LocalEngine
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.intake import DROP_REASONS, Intake, PendingBudget
from penstock.plugins.queue.logical_queue import LogicalQueue
from tests.helpers.clock import Clock
from tests.helpers.effort import examples
from tests.plugins.queue.running import LOGGER, Receipts, message, queue_config, until

QUOTA = ReasonCode.QUOTA_EXCEEDED
SUCCESS = ReasonCode.SUCCESS


class HeldEngine(LocalEngine):
    """An engine whose commits end when the test says so.

    Attributes:
        appended: physical queue, messages and future of each append.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore(), clock=Clock(), commit_max_messages=1000, logger=LOGGER)
        self.appended: list[tuple[int, list[Message], asyncio.Future[AppendResult]]] = []

    def append(
        self, queue: str, physical_queue: int, messages: Sequence[Message]
    ) -> asyncio.Future[AppendResult]:
        """Note the messages."""
        del queue
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.appended.append((physical_queue, list(messages), future))
        return future

    async def commit_all(self, error: Exception | None = None, lost: Sequence[int] = ()) -> None:
        """Settle everything that was appended."""
        appended, self.appended = self.appended, []
        for _, messages, future in appended:
            if error is None:
                future.set_result(AppendResult(len(messages) - len(lost), lost))
            else:
                future.set_exception(error)
        await asyncio.sleep(0)


def make_intake(
    *, budget: PendingBudget | None = None, wait: float = 0.0, most: int = 1000, **keys: Any
) -> tuple[Intake, HeldEngine]:
    """Return an intake of the queue `q` and its engine."""
    engine = HeldEngine()
    config = queue_config(queues={"q": {"physical_queues": 1} | keys}).queues["q"]
    queue = LogicalQueue("q", config, engine, Clock())
    intake = Intake(
        queue,
        engine,
        budget or PendingBudget(1000, 10**6),
        commit_wait_seconds=wait,
        commit_max_messages=most,
        logger=LOGGER,
    )
    return intake, engine


async def test_receipt_is_settled_after_the_commit_and_not_before() -> None:
    """A publisher is answered when its message is safe."""
    intake, engine = make_intake()
    receipts = Receipts()
    intake.accept(message(), receipts)
    await until(lambda: bool(engine.appended))
    assert receipts.codes == []
    assert (intake.counts.queued, intake.counts.stored) == (1, 0)
    await engine.commit_all()
    assert receipts.codes == [SUCCESS]
    assert (intake.counts.queued, intake.counts.stored) == (0, 1)


async def test_messages_of_one_loop_iteration_go_together() -> None:
    """What comes in one chunk of a connection is one append, in order."""
    intake, engine = make_intake()
    for n in range(5):
        intake.accept(message(b"%d" % n), None)
    assert engine.appended == []
    await asyncio.sleep(0)
    ((number, messages, _),) = engine.appended
    assert (number, [one.payload for one in messages]) == (0, [b"0", b"1", b"2", b"3", b"4"])


async def test_group_waits_for_others_no_longer_than_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`commit_wait_seconds` lets the first message of a group wait for more."""
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    intake, engine = make_intake(wait=2.0)
    intake.accept(message(), None)
    clock.now += 1.5
    for _ in range(3):
        await asyncio.sleep(0)
    assert engine.appended == []
    intake.accept(message(), None)
    clock.now += 0.5
    for _ in range(3):
        await asyncio.sleep(0)
    assert [len(messages) for _, messages, _ in engine.appended] == [2]


async def test_full_group_does_not_wait() -> None:
    """`commit_max_messages` ends the wait of a group."""
    intake, engine = make_intake(wait=1.0, most=3)
    for _ in range(7):
        intake.accept(message(), None)
    assert [len(messages) for _, messages, _ in engine.appended] == [3, 3]


async def test_messages_are_spread_over_physical_queues() -> None:
    """E-Ctrl deals a group out round robin."""
    intake, engine = make_intake(physical_queues=3)
    for n in range(4):
        intake.accept(message(b"%d" % n), None)
    await asyncio.sleep(0)
    placed = {number: [one.payload for one in messages] for number, messages, _ in engine.appended}
    assert placed == {0: [b"0", b"3"], 1: [b"1"], 2: [b"2"]}


async def test_pending_messages_are_bounded() -> None:
    """Past the limit QoS 1 is refused with Quota Exceeded, and QoS 0 is dropped and counted."""
    budget = PendingBudget(2, 1000)
    intake, engine = make_intake(budget=budget)
    receipts = Receipts()
    for receipt in (receipts, receipts, receipts, None):
        intake.accept(message(), receipt)
    assert receipts.codes == []
    await asyncio.sleep(0)
    assert receipts.codes == [QUOTA]
    assert intake.counts.dropped == {"pending_full": 2}
    await engine.commit_all()
    intake.accept(message(), receipts)
    await asyncio.sleep(0)
    await engine.commit_all()
    assert receipts.codes == [QUOTA, SUCCESS, SUCCESS, SUCCESS]


async def test_pending_bytes_are_bounded_and_one_long_message_passes() -> None:
    """The byte limit bounds memory, and never shuts a message out for ever."""
    intake, engine = make_intake(budget=PendingBudget(100, 10))
    receipts = Receipts()
    intake.accept(message(bytes(11)), receipts)
    intake.accept(message(bytes(1)), receipts)
    await asyncio.sleep(0)
    assert receipts.codes == [QUOTA]
    await engine.commit_all()
    intake.accept(message(bytes(5)), receipts)
    intake.accept(message(bytes(5)), receipts)
    intake.accept(message(bytes(1)), receipts)
    await asyncio.sleep(0)
    await engine.commit_all()
    assert receipts.codes == [QUOTA, SUCCESS, QUOTA, SUCCESS, SUCCESS]


async def test_budget_is_shared_by_all_queues() -> None:
    """The limit of what is pending holds over all queues."""
    budget = PendingBudget(1, 1000)
    (first, _), (second, _) = make_intake(budget=budget), make_intake(budget=budget)
    first.accept(message(), None)
    second.accept(message(), None)
    assert second.counts.dropped == {"pending_full": 1}


async def test_full_disk_is_quota_exceeded_and_other_failures_are_not() -> None:
    """The reason code says whether space is what is missing."""
    intake, engine = make_intake()
    receipts = Receipts()
    for error in (StorageFullError("full"), StorageError("odd")):
        intake.accept(message(), receipts)
        await asyncio.sleep(0)
        await engine.commit_all(error)
    assert receipts.codes == [QUOTA, ReasonCode.UNSPECIFIED_ERROR]
    assert intake.counts.dropped == {"storage_full": 1, "storage_error": 1}


async def test_lost_payload_refuses_its_own_message() -> None:
    """Of a group only the message whose payload is lost is refused."""
    intake, engine = make_intake()
    receipts = [Receipts(), Receipts(), Receipts()]
    for receipt in receipts:
        intake.accept(message(), receipt)
    await asyncio.sleep(0)
    await engine.commit_all(lost=[1])
    assert [receipt.codes for receipt in receipts] == [[SUCCESS], [0x80], [SUCCESS]]
    assert intake.counts.dropped == {"unreadable": 1}


async def test_closing_stores_what_was_accepted_and_refuses_the_rest() -> None:
    """A close waits for the commits under way; what comes later is told to go elsewhere."""
    intake, engine = make_intake(wait=1.0)
    receipts = Receipts()
    intake.accept(message(), receipts)
    closing = asyncio.create_task(intake.close())
    await asyncio.sleep(0)
    intake.accept(message(), receipts)
    await asyncio.sleep(0)
    assert not closing.done()
    await engine.commit_all()
    await closing
    assert receipts.codes == [ReasonCode.SERVER_SHUTTING_DOWN, SUCCESS]
    assert intake.counts.dropped == {"closing": 1}


async def test_receipt_that_fails_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error in one publisher's receipt is logged, and the others are settled."""

    class Broken(Receipts):
        def settle(self, reason_code: int) -> None:
            raise RuntimeError(f"no use for {reason_code}")

    intake, engine = make_intake()
    receipts = Receipts()
    for receipt in (Broken(), receipts):
        intake.accept(message(), receipt)
    await asyncio.sleep(0)
    await engine.commit_all()
    assert receipts.codes == [SUCCESS]
    assert "no use for 0" in caplog.text


async def test_refusals_are_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """The log says why messages are not stored, and is not flooded by saying so."""
    intake, _ = make_intake(budget=PendingBudget(1, 1000))
    for _ in range(112):
        intake.accept(message(), None)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split()[2] for text in told] == ["1", "10", "100"]
    assert told[0] == (
        "queue q: 1 messages not stored so far, because too many messages or bytes were waiting "
        "for their commit"
    )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.integers(0, 60), st.booleans()),
        st.tuples(st.just("commit"), st.sampled_from(["stored", "full", "error", "lost"])),
        st.tuples(st.just("turn")),
    ),
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None)
@given(ACTIONS)
def test_books_balance_and_every_receipt_is_settled_once(actions: list[tuple[Any, ...]]) -> None:
    """Matched = stored + queued + dropped after every step, and nobody is left without answer."""

    async def act() -> None:
        budget = PendingBudget(8, 200)
        intake, engine = make_intake(budget=budget, most=4)
        counts = intake.counts
        receipts: list[Receipts] = []
        n_settled = 0
        for action in actions:
            if action[0] == "accept":
                receipt = Receipts() if action[2] else None
                receipts += [receipt] if receipt else []
                intake.accept(message(bytes(action[1])), receipt)
            elif action[0] == "turn":
                await asyncio.sleep(0)
            else:
                errors = {"full": StorageFullError("full"), "error": StorageError("odd")}
                await engine.commit_all(errors.get(action[1]), (0,) if action[1] == "lost" else ())
            assert counts.matched == counts.stored + counts.queued + sum(counts.dropped.values())
            assert counts.queued == budget.n_messages == intake._queue.pending_messages <= 8
            assert budget.n_bytes == intake._queue.pending_bytes
            n_settled = sum(len(receipt.codes) for receipt in receipts)
        closing = asyncio.create_task(intake.close())
        await asyncio.sleep(0)
        await engine.commit_all()
        await closing
        assert counts.queued == budget.n_messages == budget.n_bytes == 0
        assert n_settled <= len(receipts)
        assert all(len(receipt.codes) == 1 for receipt in receipts)
        assert set(counts.dropped) <= set(DROP_REASONS)

    asyncio.run(act())


async def test_queue_holds_no_more_messages_than_allowed() -> None:
    """`max_messages` counts what is stored and what is under way."""
    intake, engine = make_intake(max_messages=2)
    await engine.open({"q": intake._queue.layout})
    receipts = Receipts()
    for _ in range(3):
        intake.accept(message(), receipts)
    await asyncio.sleep(0)
    assert receipts.codes == [QUOTA]
    assert intake.counts.dropped == {"queue_full": 1}
    await engine.close()
