from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.extensions import DeliveryGate
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.backlog import DELIVERY_BYTES, LARGE_DELIVERY_BYTES, Backlog
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits
from tests.helpers.effort import examples
from tests.helpers.guard import NoFaults

MOST_BYTES = 5000
LARGEST_BYTES = 3000

UNIT = 10_000
"""Bytes beside which what a few messages take besides their payloads is little."""

ROOM = UNIT // 2
"""For that."""


def outboxes(
    backlog: Backlog, n_outboxes: int = 3, *, drops_oldest: bool = False
) -> list[tuple[Outbox, Ledger]]:
    """Return empty outboxes that share a backlog."""
    rules = OutboxLimits(
        DeliveryGate(), NoFaults(), max_messages=20, drops_oldest=drops_oldest, backlog=backlog
    )
    ledgers = [Ledger() for _ in range(n_outboxes)]
    return [(Outbox(Link("c"), ledger, rules), ledger) for ledger in ledgers]


def message(size: int, *, is_large: bool = False) -> Message:
    """Return a message with a payload of that size."""
    return Message("t", bytes(size), is_large=is_large)


def units(size: int, *, is_large: bool = False) -> Message:
    """Return a message with a payload of so many units."""
    return message(size * UNIT, is_large=is_large)


def backlog_of(n_messages: int, n_units: int) -> Backlog:
    """Return a backlog with room for so much, and for a few messages' own bytes."""
    return Backlog(n_messages, n_units * UNIT + ROOM)


def n_units(backlog: Backlog) -> int:
    """Return the payloads that wait, in units."""
    return backlog.n_bytes // UNIT


def test_no_limit_needs_no_backlog() -> None:
    """What is not limited is not counted: it would cost each message that waits."""
    assert Backlog.of(None, None) is None
    only_bytes, only_messages = Backlog.of(None, 5), Backlog.of(5, None)
    assert only_bytes is not None
    assert only_messages is not None
    assert only_bytes.most_bytes == only_messages.most_messages == 5
    assert min(only_bytes.most_messages, only_messages.most_bytes) > 10**12


def test_each_session_that_a_message_waits_for_takes_memory() -> None:
    """200 messages of 100 bytes for 20,000 sessions took 523 MB, of which 20 kB were payloads."""
    backlog = Backlog(1_000_000, 30_000)
    boxes = outboxes(backlog, 300)
    shared = message(100)
    taken = [box.add(Delivery(shared, 1)) for box, _ in boxes]
    assert 150 < taken.count(True) < 250
    assert not any(taken[taken.index(False) :])
    assert backlog.n_bytes <= 30_000
    assert boxes[-1][1].dropped == {"broker_full": 1}


def test_a_payload_counts_once_however_many_it_waits_for() -> None:
    """It is stored once: its bytes come with the first outbox and go with the last."""
    backlog = backlog_of(100, 100)
    boxes = outboxes(backlog)
    shared = units(80)
    assert all(box.add(Delivery(shared, 1)) for box, _ in boxes)
    assert (backlog.n_messages, n_units(backlog)) == (3, 80)
    for n_left in (2, 1, 0):
        assert n_units(backlog) == 80
        boxes[n_left][0].take(0.0)
        assert backlog.n_messages == n_left
    assert backlog.n_bytes == 0


def test_at_the_limit_of_all_the_newest_is_dropped_and_counted() -> None:
    """The reason says that it was not this subscriber's own limit."""
    backlog = backlog_of(4, 100)
    (first, _), (second, ledger), _ = outboxes(backlog)
    first.add(Delivery(units(80), 1))
    assert not second.add(Delivery(units(21), 1))
    assert second.add(Delivery(units(20), 1))
    assert ledger.dropped == {"broker_full": 1}
    first.add(Delivery(units(0), 1))
    first.add(Delivery(units(0), 1))
    assert not second.add(Delivery(units(0), 1))
    assert ledger.dropped == {"broker_full": 2}


def test_at_the_limit_of_all_a_session_pushes_out_its_own_oldest() -> None:
    """`drop_oldest` takes from nobody else."""
    backlog = backlog_of(100, 100)
    (first, of_first), (second, of_second), _ = outboxes(backlog, drops_oldest=True)
    for size in (30, 30):
        first.add(Delivery(units(size), 1))
    second.add(Delivery(units(40), 1))
    assert first.add(Delivery(units(50), 1))
    assert (of_first.dropped, of_second.dropped) == ({"pushed_out": 2}, {})
    assert n_units(backlog) == 90
    assert not second.add(Delivery(units(101), 1))
    assert of_second.dropped == {"broker_full": 1}
    assert second.n_messages == 1


def test_copies_of_one_message_push_out_copies_of_another() -> None:
    """Each session gives up its copy of the oldest for one of the newest: none need be free yet."""
    backlog = backlog_of(100, 100)
    boxes = outboxes(backlog, drops_oldest=True)
    old, new, newest = units(60), units(50), units(40)
    for one in (old, new, newest):
        for box, _ in boxes:
            assert box.add(Delivery(one, 1))
            assert n_units(backlog) <= 100 + 60
    assert n_units(backlog) == 90
    assert all(ledger.dropped == {"pushed_out": 1} for _, ledger in boxes)


def test_nothing_is_pushed_out_in_vain() -> None:
    """Where another session's copy keeps the bytes, giving up one's own frees nothing."""
    backlog = backlog_of(100, 100)
    (first, of_first), (second, of_second), (third, _) = outboxes(backlog, drops_oldest=True)
    shared = units(60)
    for box in (first, second, third):
        box.add(Delivery(shared, 1))
    first.add(Delivery(units(60), 1))  # in exchange for its copy, above the limit by one message
    assert n_units(backlog) == 120
    assert not second.add(Delivery(units(10), 1))
    assert (of_first.dropped, of_second.dropped) == ({"pushed_out": 1}, {"broker_full": 1})
    assert second.n_messages == 1
    assert n_units(backlog) == 120


def test_the_end_of_a_session_gives_back_what_it_took() -> None:
    """Large messages and what waits behind them, too."""
    backlog = backlog_of(100, 1000)
    ((box, _),) = outboxes(backlog, 1)
    for one in (units(50), units(200, is_large=True), units(10)):
        box.add(Delivery(one, 0))
    assert (backlog.n_messages, n_units(backlog)) == (3, 260)
    box.drop_all("session_ended")
    assert (backlog.n_messages, backlog.n_bytes) == (0, 0)


class BacklogMachine(RuleBasedStateMachine):
    """Whatever three sessions do with messages of their own and shared ones, the sums are right."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(15, MOST_BYTES)
        self.boxes = [
            box
            for drops_oldest in (False, True)
            for box, _ in outboxes(self.backlog, 2, drops_oldest=drops_oldest)
        ]
        self.messages: list[Message] = []

    @rule(size=st.integers(0, LARGEST_BYTES), is_large=st.booleans())
    def publish(self, size: int, *, is_large: bool) -> None:
        """A message is there for whoever takes it."""
        self.messages.append(message(size, is_large=is_large))

    @rule(
        which=st.sets(st.integers(0, 3), min_size=1),
        newest=st.integers(1, 3),
        qos=st.sampled_from([0, 1]),
    )
    def deliver(self, which: set[int], newest: int, qos: int) -> None:
        """Some sessions get one of the newest messages."""
        if len(self.messages) >= newest:
            for number in which:
                self.boxes[number].add(Delivery(self.messages[-newest], qos))

    @rule(number=st.integers(0, 3))
    def take(self, number: int) -> None:
        """A session has room."""
        self.boxes[number].take(0.0)

    @rule(number=st.integers(0, 3), end=st.booleans())
    def lose(self, number: int, *, end: bool) -> None:
        """A session loses its connection or ends."""
        if end:
            self.boxes[number].drop_all("session_ended")
        else:
            self.boxes[number].connection_lost(0.0)

    @invariant()
    def counts_what_waits(self) -> None:
        """Each delivery once, each message once, and the limits hold but for one message."""
        waiting = Counter(d.message for box in self.boxes for d in box.waiting())
        assert self.backlog.n_messages == waiting.total()
        of_messages = sum(one.memory_bytes for one in waiting)
        of_deliveries = sum(
            n * (LARGE_DELIVERY_BYTES if one.is_large else DELIVERY_BYTES)
            for one, n in waiting.items()
        )
        assert self.backlog.n_bytes == of_messages + of_deliveries
        assert self.backlog.n_messages <= self.backlog.most_messages
        largest = message(LARGEST_BYTES).memory_bytes + LARGE_DELIVERY_BYTES
        assert self.backlog.n_bytes <= MOST_BYTES + largest
        for box in self.boxes:
            box.check_invariants()


TestBacklogMachine = BacklogMachine.TestCase
TestBacklogMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
