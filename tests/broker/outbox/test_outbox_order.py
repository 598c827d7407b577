"""What passes what in an outbox, and for how long a large message may be held."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits
from tests.helpers.effort import examples
from tests.helpers.guard import NoFaults

LARGE = 100
MAX_WITHHOLD = 20.0
STRICTLY_AFTER = 0.001


class Gate(DeliveryGate):
    """Withholds while the path is bad, and for `MAX_WITHHOLD` at the most."""

    def __init__(self, *, keeps_topics: bool = True, supersedes: bool = False) -> None:
        self.keeps_topics = keeps_topics
        self.supersedes = supersedes
        self.is_good = True
        self.asked: list[tuple[str, float]] = []

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer by the path and the wait."""
        del link
        self.asked.append((message.topic, sojourn))
        if self.is_good or sojourn > MAX_WITHHOLD:
            return Verdict(deliver=True)
        return Verdict(deliver=False, look_again_at=now + MAX_WITHHOLD - sojourn + STRICTLY_AFTER)


def outbox(gate: Gate) -> tuple[Outbox, Ledger]:
    """Return an outbox of ten messages and its ledger."""
    ledger = Ledger()
    rules = OutboxLimits(gate, NoFaults(), max_messages=10, max_bytes=3000)
    return Outbox(Link("c"), ledger, rules), ledger


def put(box: Outbox, name: str, topic: str, *, qos: int = 1, size: int = 1) -> bool:
    """Let a message wait; its name begins the payload."""
    message = Message(topic, name.encode().ljust(size, b"."), is_large=size >= LARGE)
    return box.add(Delivery(message, qos))


def put_large(box: Outbox, name: str, topic: str, *, qos: int = 1) -> bool:
    """Let a large message wait."""
    return put(box, name, topic, qos=qos, size=LARGE)


def drain(box: Outbox, now: float = 0.0) -> list[str]:
    """Take all that may leave."""
    names = []
    while (taken := box.take(now)) is not None:
        names.append(taken.message.read_payload().rstrip(b".").decode())
        box.check_invariants()
    return names


def bad_path(**order: bool) -> tuple[Gate, Outbox, Ledger]:
    """Return a gate that withholds, an outbox behind it and its ledger."""
    gate = Gate(**order)
    gate.is_good = False
    return gate, *outbox(gate)


@pytest.mark.parametrize("qos", [0, 1])
def test_large_message_passes_nothing_that_came_before_it_on_its_topic(qos: int) -> None:
    """[MQTT-4.6.0-6]: not even when enough of what came before has left to make it its turn."""
    gate = Gate()
    box, _ = outbox(gate)
    for n in range(4):
        put(box, f"s{n}", "cam", qos=qos, size=LARGE - 10)
    put_large(box, "L", "cam", qos=qos)
    put(box, "after", "cam", qos=qos)
    assert drain(box) == ["s0", "s1", "s2", "s3", "L", "after"]


def test_large_message_passes_nothing_that_another_one_held_back() -> None:
    """What goes on after a large message of its topic is before the next large one."""
    gate, box, _ = bad_path()
    for name, topic in (("L1", "cam"), ("s1", "cam"), ("L2", "cam")):
        put(box, name, topic, size=LARGE if name[0] == "L" else 1)
    assert drain(box) == []
    for n in range(3):
        put(box, f"x{n}", "x", size=LARGE - 10)
    gate.is_good = True
    box.link_changed()
    assert drain(box) == ["x0", "x1", "L1", "x2", "s1", "L2"]


def test_place_of_a_large_message_survives_what_is_taken_from_before_it() -> None:
    """The last small message before it goes elsewhere; those before that are still before it."""
    box, _ = outbox(Gate())
    for n in range(4):
        put(box, f"s{n}", "cam", size=LARGE - 10)
    put_large(box, "L", "cam")
    for n in range(3):
        put(box, f"x{n}", "x", size=LARGE - 10)
    taken = box.take_where(lambda d: d.message.payload.startswith(b"s3"))  # type: ignore[union-attr]
    assert len(taken) == 1
    assert drain(box) == ["s0", "s1", "s2", "L", "x0", "x1", "x2"]


def test_bound_of_the_wait_holds_for_each_large_message() -> None:
    """D is each message's own: those that wait behind the first do not begin when it has gone."""
    _, box, ledger = bad_path()
    put_large(box, "L0", "cam0")
    put_large(box, "L1", "cam1")
    assert drain(box, 0.0) == []
    put_large(box, "L2", "cam0")  # behind L0 on its topic
    assert drain(box, 5.0) == []
    put_large(box, "L3", "cam3")
    assert drain(box, 6.0) == []
    assert ledger.withheld_total == 4
    assert drain(box, 20.0) == []
    assert drain(box, 20.1) == ["L0", "L1"]
    assert drain(box, 25.0) == []
    assert drain(box, 25.1) == ["L2"]
    assert box.look_again_at is not None
    assert drain(box, box.look_again_at) == ["L3"]
    assert ledger.released_total == 4


def test_each_released_message_had_a_decision_of_its_own() -> None:
    """One leaves, then the gate is asked about the next: the path may have turned bad again."""
    gate, box, _ = bad_path()
    for n in range(3):
        put_large(box, f"L{n}", f"cam{n}")
    assert drain(box, 0.0) == []
    gate.is_good = True
    box.link_changed()
    assert box.take(3.0) is not None
    gate.is_good = False
    assert box.take(3.0) is None
    assert gate.asked == [("cam0", 0.0), ("cam0", 3.0), ("cam1", 3.0)]
    assert box.n_withheld == 2


def test_time_without_a_connection_is_no_wait() -> None:
    """A backlog must not burst over a bad path because its client was away for an hour."""
    _, box, ledger = bad_path()
    put_large(box, "L", "cam")
    assert drain(box, 0.0) == []
    box.connection_lost(15.0)
    box.connection_lost(16.0)
    put_large(box, "later", "cam2")
    box.link_changed()
    assert drain(box, 3600.0) == []
    assert drain(box, 3604.0) == []
    assert drain(box, 3605.1) == ["L"]
    assert drain(box, 3619.0) == []
    assert drain(box, 3620.1) == ["later"]
    assert ledger.withheld_total == ledger.released_total == 2


def test_small_messages_pass_a_large_one_of_their_topic_where_nobody_wants_order() -> None:
    """`ordering: none`; large ones still leave oldest first."""
    gate, box, _ = bad_path(keeps_topics=False)
    put_large(box, "L0", "cam")
    put(box, "s0", "cam")
    put_large(box, "L1", "cam")
    put(box, "s1", "cam", qos=0)
    assert drain(box) == ["s0", "s1"]
    assert box.n_withheld == 2
    gate.is_good = True
    box.link_changed()
    assert drain(box) == ["L0", "L1"]


@pytest.mark.parametrize("keeps_topics", [True, False])
def test_newer_large_message_of_qos0_takes_the_place_of_the_older(*, keeps_topics: bool) -> None:
    """`supersede: true`: its place, its wait and its account, so that it is not starved."""
    _, box, ledger = bad_path(supersedes=True, keeps_topics=keeps_topics)
    put_large(box, "old", "cam", qos=0)
    put_large(box, "other", "cam2", qos=0)
    assert drain(box, 0.0) == []
    for n in range(3):
        assert put_large(box, f"new{n}", "cam", qos=0)
        assert drain(box, 5.0 * n) == []
        box.check_invariants()
    assert ledger.dropped == {"superseded": 3}
    assert (box.n_messages, box.n_bytes) == (2, 2 * LARGE)
    assert drain(box, 20.1) == ["new2", "other"]
    assert ledger.withheld_total == ledger.released_total == 2


def test_only_large_messages_of_qos0_are_superseded_and_only_where_it_is_wanted() -> None:
    """QoS 1 and 2 promise delivery; a small message costs nothing to deliver."""
    _, box, ledger = bad_path(supersedes=True)
    put_large(box, "q1", "cam", qos=1)
    put_large(box, "q0", "cam", qos=0)
    put(box, "small", "cam", qos=0)
    put_large(box, "behind small", "cam", qos=0)
    put_large(box, "q1 again", "cam", qos=1)
    assert not ledger.dropped
    assert box.n_messages == 5
    _, plain, of_plain = bad_path()
    for n in range(2):
        put_large(plain, f"{n}", "cam", qos=0)
    assert plain.n_messages == 2
    assert not of_plain.dropped


def test_newer_message_that_finds_no_room_supersedes_nothing() -> None:
    """Both would be lost: the older one stays."""
    gate, box, ledger = bad_path(supersedes=True)
    put_large(box, "old", "cam", qos=0)
    assert not put(box, "huge", "cam", qos=0, size=3001)
    assert ledger.dropped == {"queue_full": 1}
    for n in range(9):
        put(box, f"{n}", "x")
    assert not put_large(box, "new", "cam2", qos=0)
    gate.is_good = True
    box.link_changed()
    assert drain(box)[-1] == "old"


def test_newer_message_supersedes_in_a_full_outbox_too() -> None:
    """It needs no room: were it dropped, the older one would be what the subscriber sees."""
    gate, box, ledger = bad_path(supersedes=True)
    put_large(box, "old", "cam", qos=0)
    for n in range(9):
        put(box, f"{n}", "x")
    assert put_large(box, "new", "cam", qos=0)
    box.check_invariants()
    assert ledger.dropped == {"superseded": 1}
    gate.is_good = True
    box.link_changed()
    assert drain(box)[-1] == "new"


class OrderMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order: what was promised of order and wait holds."""

    @initialize(keeps_topics=st.booleans(), supersedes=st.booleans())
    def make(self, *, keeps_topics: bool, supersedes: bool) -> None:
        """An outbox of one of four kinds."""
        self.gate = Gate(keeps_topics=keeps_topics, supersedes=supersedes)
        self.box, self.ledger = outbox(self.gate)
        self.now = 0.0
        self.connected_seconds = 0.0
        self.is_away = False
        self.number = 0
        self.left: dict[tuple[str, bool, bool], list[int]] = {}
        self.ready_since: dict[int, float] = {}

    @rule(
        topic=st.sampled_from("abc"),
        qos=st.sampled_from([0, 1, 2]),
        size=st.sampled_from([5, 60, LARGE, 3 * LARGE]),
    )
    def add(self, topic: str, qos: int, size: int) -> None:
        """A message arrives; at QoS 0 only for a client that is there."""
        if self.is_away and not qos:
            return
        self.number += 1
        self.ledger.matched += 1
        put(self.box, f"{self.number}", topic, qos=qos, size=size)

    @rule()
    def pump(self) -> None:
        """The connection has room for all that may leave."""
        if self.is_away:
            return
        passed = 0
        large_before = [d for d in self.box.waiting() if d.message.is_large]
        while (taken := self.box.take(self.now)) is not None:
            self.ledger.delivered += 1
            number = int(taken.message.read_payload().rstrip(b"."))
            topic, is_large = taken.message.topic, taken.message.is_large
            kind = is_large if not self.gate.keeps_topics else False
            self.left.setdefault((topic, taken.qos > 0, kind), []).append(number)
            if is_large:
                passed = 0
                if self.gate.is_good:
                    large_before = [d for d in large_before if d is not taken]
            else:
                passed += taken.message.payload_bytes
                if self.gate.is_good and large_before:
                    before = sum(d.message.payload_bytes for d in large_before)
                    assert passed <= before + 60 + 10 * 60
        for delivery in self.box.waiting():
            if delivery.message.is_large:
                number = int(delivery.message.read_payload().rstrip(b"."))
                since = self.ready_since.setdefault(number, self.connected_seconds)
                assert self.connected_seconds - since <= MAX_WITHHOLD + 1e-6

    @rule(is_good=st.booleans(), seconds=st.floats(0, 8))
    def news(self, *, is_good: bool, seconds: float) -> None:
        """Time passes, then the path turns good or bad."""
        self.now += seconds
        if not self.is_away:
            self.connected_seconds += seconds
        self.gate.is_good = is_good
        self.box.link_changed()

    @rule()
    def lose_or_come_back(self) -> None:
        """The client goes away or comes back."""
        self.is_away = not self.is_away
        if self.is_away:
            self.box.connection_lost(self.now)
        else:
            self.box.link_changed()

    @rule(topic=st.sampled_from("abc"), n_messages=st.integers(1, 4))
    def move(self, topic: str, n_messages: int) -> None:
        """Messages of a topic are for somebody else, and leave oldest first."""
        taken = self.box.take_where(lambda d: d.message.topic == topic, n_messages)
        sequences = [d.sequence for d in taken]
        assert sequences == sorted(sequences)
        self.ledger.moved += len(taken)

    @invariant()
    def is_sound(self) -> None:
        """The invariants, the ledger and the order hold after every step."""
        self.box.check_invariants()
        assert self.ledger.outstanding() == self.box.n_messages
        for numbers in self.left.values():
            assert numbers == sorted(numbers)


TestOrderMachine = OrderMachine.TestCase
TestOrderMachine.settings = settings(
    max_examples=examples(100), stateful_step_count=50, deadline=None
)
