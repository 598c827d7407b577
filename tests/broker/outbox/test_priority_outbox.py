from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.broker.outbox.priority_outbox import PASSED_BYTES, PriorityOutbox, make_outbox
from tests.helpers.effort import examples
from tests.helpers.guard import NoFaults

LARGE = 1000


class Gate(DeliveryGate):
    """A gate that the test opens and closes; topics that begin with `!` go first."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.asked: list[str] = []

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer as the test has set."""
        del link, sojourn, now
        self.asked.append(message.topic)
        return Verdict(self.is_open)

    def is_first(self, topic: str) -> bool:
        """Go by the first character."""
        return topic.startswith("!")


def box(gate: Gate | None = None, **rules: Any) -> tuple[PriorityOutbox, Ledger]:
    """Return an outbox and its ledger."""
    ledger = Ledger()
    made = make_outbox(Link("c"), ledger, OutboxLimits(gate or Gate(), NoFaults(), **rules))
    assert isinstance(made, PriorityOutbox)
    return made, ledger


def put(outbox: PriorityOutbox, name: str, topic: str, *, qos: int = 1, size: int = 10) -> bool:
    """Let a message wait that is large from `LARGE` bytes on."""
    payload = name.encode().ljust(size, b".")
    return outbox.add(Delivery(Message(topic, payload, is_large=size >= LARGE), qos))


def name(taken: Delivery | None) -> str:
    """Return the name in a payload."""
    return "" if taken is None else taken.message.read_payload().rstrip(b".").decode()


def drain(outbox: PriorityOutbox, *, has_quota: bool = True) -> list[str]:
    """Take all that may leave."""
    taken = []
    while one := name(outbox.take(0.0, has_quota=has_quota)):
        taken.append(one)
        outbox.check_invariants()
    return taken


def test_only_who_asks_for_it_has_first_places() -> None:
    """Others have the plain outbox, which knows nothing of them."""
    plain = make_outbox(Link("c"), Ledger(), OutboxLimits(DeliveryGate(), NoFaults()))
    assert not isinstance(plain, PriorityOutbox)


def test_first_topics_leave_before_others_whatever_their_size() -> None:
    """Priority stands above the size class: large ones go too, and the gate is not asked."""
    gate = Gate(is_open=False)
    outbox, ledger = box(gate)
    put(outbox, "small", "a")
    put(outbox, "picture", "b", size=LARGE)
    put(outbox, "alarm", "!x")
    put(outbox, "video", "!y", size=LARGE)
    put(outbox, "alarm 2", "!x", qos=0)
    assert drain(outbox) == ["alarm", "video", "alarm 2", "small"]
    assert gate.asked == ["b"]
    assert ledger.withheld_total == 1
    assert outbox.n_messages == 1


def test_large_messages_of_first_topics_are_large_when_they_leave() -> None:
    """They occupy the connection as others do: each leaves alone, and the gate hears of it."""
    first, _ = box()
    assert isinstance(first, PriorityOutbox)
    put(first, "picture", "!1", size=LARGE)
    put(first, "alarm", "!1")
    picture, alarm = first.take(7.0), first.take(8.0)
    assert picture is not None
    assert alarm is not None
    assert (picture.after is not None, alarm.after) == (True, None)


def test_without_quota_first_topics_of_qos0_leave_and_then_others_of_qos0() -> None:
    """A full inflight window holds QoS 1 and 2 back, of every class, and nothing else."""
    outbox, _ = box()
    put(outbox, "other 0", "a", qos=0)
    put(outbox, "first 1", "!a", qos=1)
    put(outbox, "first 0", "!b", qos=0)
    assert drain(outbox, has_quota=False) == ["first 0", "other 0"]
    assert drain(outbox) == ["first 1"]


def test_a_flood_on_a_first_topic_does_not_starve_others() -> None:
    """After so many bytes of it one of the others has its turn."""
    outbox, _ = box()
    put(outbox, "other 1", "a")
    put(outbox, "other 2", "a")
    for n in range(5):
        put(outbox, f"first {n}", "!a", size=PASSED_BYTES // 2)
    order = ["first 0", "first 1", "other 1", "first 2", "first 3", "other 2", "first 4"]
    assert drain(outbox) == order


def test_messages_without_a_payload_starve_nobody() -> None:
    """They take of the link, too."""
    outbox, _ = box()
    put(outbox, "other", "a")
    for _ in range(PASSED_BYTES):
        outbox.add(Delivery(Message("!a", b""), 1))
    for _ in range(PASSED_BYTES // 2):
        outbox.take(0.0)
    taken = outbox.take(0.0)
    assert taken is not None
    assert taken.message.topic == "a"


def test_a_large_message_is_passed_by_four_times_the_bytes_that_it_has() -> None:
    """One of a megabyte must not come after each 64 KiB of alarms."""
    gate = Gate()
    outbox, _ = box(gate)
    put(outbox, "large", "a", size=PASSED_BYTES)
    for n in range(5):
        put(outbox, f"{n}", "!a", size=PASSED_BYTES)
    assert drain(outbox) == ["0", "1", "2", "3", "large", "4"]


def test_others_that_may_not_leave_do_not_hold_up_first_topics() -> None:
    """It is the turn of a withheld message, and the gate says no."""
    outbox, _ = box(Gate(is_open=False))
    put(outbox, "large", "a", size=LARGE)
    for n in range(4):
        put(outbox, f"{n}", "!a", size=PASSED_BYTES)
    assert drain(outbox) == ["0", "1", "2", "3"]
    assert outbox.is_withholding


def test_first_topics_are_pushed_out_last() -> None:
    """And only for their own kind: QoS 0 still pushes out nothing but QoS 0."""
    outbox, ledger = box(max_messages=2, drops_oldest=True)
    put(outbox, "other", "a")
    put(outbox, "first", "!a")
    assert put(outbox, "first 2", "!a")
    assert not put(outbox, "other 2", "a")
    assert not put(outbox, "first 3", "!a", qos=0)
    assert put(outbox, "first 4", "!a")
    assert ledger.dropped == {"pushed_out": 2, "queue_full": 2}
    assert drain(outbox) == ["first 2", "first 4"]


def test_lost_connection_expiry_and_end_reach_first_places() -> None:
    """What waits there is dropped and counted as everywhere."""
    outbox, ledger = box()
    for qos in (0, 1):
        put(outbox, f"{qos}", "!a", qos=qos)
    outbox.connection_lost(0.0)
    outbox.check_invariants()
    assert ledger.dropped == {"connection_lost": 1}
    outbox.add(Delivery(Message("!a", b"short", expires_at=1.0), 1))
    assert [name(outbox.take(2.0)), name(outbox.take(2.0))] == ["1", ""]
    assert ledger.expired == 1
    put(outbox, "last", "!a")
    outbox.drop_all("session_ended")
    outbox.check_invariants()
    assert ledger.dropped["session_ended"] == 1


def test_the_gate_has_no_say_in_what_goes_first() -> None:
    """A large message of such a topic could go now, when others could not."""
    outbox, _ = box(Gate(is_open=False))
    assert outbox.lets(Message("!a", bytes(LARGE), is_large=True), 0.0)
    assert outbox.lets(Message("b", b"small"), 0.0)
    assert not outbox.lets(Message("b", bytes(LARGE), is_large=True), 0.0)


class PriorityMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order: topics keep theirs, the books balance, nobody starves."""

    @initialize(drops_oldest=st.booleans())
    def make(self, *, drops_oldest: bool) -> None:
        """An outbox of either kind."""
        self.gate = Gate()
        self.box, self.ledger = box(
            self.gate, max_messages=20, max_bytes=40_000, drops_oldest=drops_oldest
        )
        self.left: dict[tuple[str, bool], list[int]] = {}
        self.number = 0

    @rule(
        topic=st.sampled_from(["a", "b", "!a", "!b"]),
        qos=st.sampled_from([0, 1, 2]),
        size=st.sampled_from([5, 500, LARGE, 5 * LARGE]),
    )
    def add(self, topic: str, qos: int, size: int) -> None:
        """A message arrives."""
        self.number += 1
        self.ledger.matched += 1
        put(self.box, f"{self.number}", topic, qos=qos, size=size)

    @rule(has_quota=st.booleans())
    def take(self, *, has_quota: bool) -> None:
        """The connection has room: nothing of a plain topic passes one of its own that is first."""
        may_leave = [d for d in self.box.waiting() if has_quota or not d.qos]
        has_first = any(d.message.topic.startswith("!") for d in may_leave)
        taken = self.box.take(0.0, has_quota=has_quota)
        if taken is None:
            assert not has_first
            return
        assert has_quota or not taken.qos
        self.ledger.delivered += 1
        place = (taken.message.topic, taken.qos > 0)
        self.left.setdefault(place, []).append(int(name(taken)))

    @rule(is_open=st.booleans())
    def news(self, *, is_open: bool) -> None:
        """The gate opens or closes."""
        self.gate.is_open = is_open
        self.box.link_changed()

    @rule()
    def lose(self) -> None:
        """The connection is lost."""
        self.box.connection_lost(0.0)

    @rule(topic=st.sampled_from(["a", "!a"]))
    def move(self, topic: str) -> None:
        """Messages of a topic are for somebody else."""
        self.ledger.moved += len(self.box.take_where(lambda d: d.message.topic == topic, 2))

    @invariant()
    def is_sound(self) -> None:
        """The invariants, the ledger and the order of each topic hold after every step."""
        self.box.check_invariants()
        assert self.ledger.outstanding() == self.box.n_messages
        for numbers in self.left.values():
            assert numbers == sorted(numbers)


TestPriorityMachine = PriorityMachine.TestCase
TestPriorityMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
