from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.broker.extensions import Decision, DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.backlog import Backlog
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.broker.outbox.priority_outbox import make_outbox
from tests.helpers.effort import examples
from tests.helpers.guard import Faults


class Gate(DeliveryGate):
    """A gate that the test opens and closes."""

    def __init__(self) -> None:
        self.is_open = True
        self.look_again_at: float | None = None
        self.asked: list[tuple[str, float]] = []
        self.error: Exception | None = None

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer as the test has set."""
        del link, now
        if self.error is not None:
            raise self.error
        self.asked.append((message.topic, sojourn))
        return Verdict(self.is_open, self.look_again_at, "as the test says")


def outbox(
    gate: DeliveryGate | None = None,
    *,
    drops_oldest: bool = False,
    backlog: Backlog | None = None,
    **limits: int,
) -> tuple[Outbox, Ledger, list[Exception]]:
    """Return an outbox, its ledger and the errors of its gate."""
    ledger = Ledger()
    guard = Faults()
    rules = OutboxLimits(
        gate or Gate(),
        guard,
        max_messages=limits.get("max_messages", 1000),
        max_bytes=limits.get("max_bytes", 10**9),
        drops_oldest=drops_oldest,
        backlog=backlog,
    )
    made = make_outbox(Link("c"), ledger, rules)
    return made, ledger, guard.errors


def delivery(name: str, topic: str = "t", qos: int = 1, size: int = 1, **options: Any) -> Delivery:
    """Return a delivery whose payload says its name and is large from 100 bytes on."""
    payload = name.encode().ljust(size, b".")
    return Delivery(Message(topic, payload, is_large=size >= 100, **options), qos)


def name(taken: Delivery | None) -> str | None:
    """Return the name in a delivery's payload."""
    return taken.message.read_payload().rstrip(b".").decode() if taken is not None else None


def drain(box: Outbox, now: float = 0.0, **options: bool) -> list[str | None]:
    """Take all that may leave."""
    names = []
    while (taken := box.take(now, **options)) is not None:
        names.append(name(taken))
        box.check_invariants()
    return names


def test_small_messages_leave_in_order_of_arrival() -> None:
    """Across topics and QoS, first come, first served."""
    box, _, _ = outbox()
    for number, qos in enumerate([1, 0, 2, 0, 1]):
        box.add(delivery(str(number), topic=f"t{number % 2}", qos=qos))
    assert drain(box) == ["0", "1", "2", "3", "4"]
    assert (box.n_messages, box.n_bytes) == (0, 0)


def test_without_quota_only_qos0_leaves() -> None:
    """A full inflight window holds QoS 1 and 2 back, and nothing else."""
    box, _, _ = outbox()
    for number, qos in enumerate([1, 0, 2, 0]):
        box.add(delivery(str(number), qos=qos))
    assert drain(box, has_quota=False) == ["1", "3"]
    assert box.why_nothing() == "inflight window full"
    assert drain(box) == ["0", "2"]
    assert box.why_nothing() == "empty"


class ListenerGate(Gate):
    """A gate by which messages of 100 to 199 bytes are large for others than this subscriber."""

    def is_large(self, message: Message, link: Link) -> bool:
        """Answer by the payload, or fail as the test has set."""
        del link
        if self.error is not None:
            raise self.error
        return message.payload_bytes >= 200


class CountingGate(ListenerGate):
    """Notes the payload bytes of each message that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def is_large(self, message: Message, link: Link) -> bool:
        """Answer as its base does."""
        self.sizes.append(message.payload_bytes)
        return super().is_large(message, link)


def test_message_that_is_large_for_others_alone_waits_for_nothing() -> None:
    """It passes a withheld message of another topic, though it may be large for somebody."""
    gate = ListenerGate()
    gate.is_open = False
    box, ledger, _ = outbox(gate)
    for topic, size in (("cam", 200), ("map", 100), ("cam", 100), ("map", 1), ("cam", 1)):
        box.add(delivery(f"{topic}{size}", topic, size=size))
        box.check_invariants()
    assert drain(box) == ["map100", "map1"]
    assert (box.n_messages, box.n_withheld, ledger.withheld_total) == (3, 3, 1)
    gate.is_open = True
    box.link_changed()
    assert drain(box) == ["cam200", "cam100", "cam1"]
    assert gate.asked == [("cam", 0.0), ("cam", 0.0)]


def test_the_gate_is_asked_once_whether_a_message_is_large_for_a_subscriber() -> None:
    """Its answer holds until the message leaves, wherever it stands and whoever comes before it."""
    gate = CountingGate()
    box, _, _ = outbox(gate)
    for topic, size in (("cam", 200), ("cam", 201), ("cam", 100), ("map", 202), ("map", 4)):
        box.add(delivery(f"{topic}{size}", topic, size=size))
    taken = [box.take(0.0) for _ in range(5)]
    assert sorted(gate.sizes) == [100, 200, 201, 202]
    are_large = {d.message.payload_bytes: d.after is not None for d in taken if d is not None}
    assert are_large == {200: True, 201: True, 100: False, 202: True, 4: False}


def test_gate_that_fails_over_a_size_is_asked_whether_it_may_go() -> None:
    """Its fault is counted once for each question; the message goes alone and in its order."""
    gate = ListenerGate()
    gate.error = RuntimeError("size")
    box, _, errors = outbox(gate)
    for n in range(2):
        box.add(delivery(str(n), size=100))
    assert drain(box) == ["0", "1"]
    assert len(errors) == 4


def test_small_messages_of_other_topics_pass_a_withheld_large_one() -> None:
    """The withheld message waits, what comes after it on its topic waits, the rest goes."""
    gate = Gate()
    gate.is_open = False
    box, ledger, _ = outbox(gate)
    box.add(delivery("picture", "cam", size=100))
    box.add(delivery("caption", "cam"))
    box.add(delivery("alarm", "alarms"))
    assert drain(box) == ["alarm"]
    assert box.n_withheld == 2
    assert "withheld" in box.why_nothing()
    assert "as the test says" in box.why_nothing()
    gate.is_open = True
    box.link_changed()
    assert drain(box) == ["picture", "caption"]
    assert (ledger.withheld_total, ledger.released_total) == (1, 1)


@pytest.mark.parametrize("outstanding_since", [None, 9.0])
def test_the_first_large_message_makes_the_path_worth_timing(
    outstanding_since: float | None,
) -> None:
    """At once, but for what is being timed; small ones and later large ones change nothing."""
    box, _, _ = outbox()
    link = box._link
    link.quiet_until, link.outstanding_since = 11.0, outstanding_since
    box.add(delivery("small"))
    assert (link.had_large, link.quiet_until) == (False, 11.0)
    box.add(delivery("large", size=100))
    assert (link.had_large, link.quiet_until) == (True, 11.0 if outstanding_since else 0.0)
    link.quiet_until = 12.0
    box.add(delivery("large", size=100))
    assert link.quiet_until == 12.0


def test_the_last_decision_tells_of_which_message_it_was() -> None:
    """What a report says later: verdict, topic, size, how long it had been withheld, and when."""
    gate = Gate()
    gate.is_open = False
    box, _, _ = outbox(gate)
    box.add(delivery("small"))
    assert drain(box) == ["small"]
    assert box.last_decision is None
    box.add(delivery("picture", "cam", size=100))
    for now, is_open in ((1.0, False), (3.5, True)):
        assert box.is_withholding is is_open
        gate.is_open = is_open
        box.link_changed()
        box.take(now)
        verdict = Verdict(is_open, None, "as the test says")
        assert box.last_decision == Decision(verdict, "cam", 100, now - 1.0, now)
    assert not box.is_withholding


def test_the_gate_is_asked_again_only_for_news_or_at_its_time() -> None:
    """A busy stream of small messages does not ask the gate for each."""
    gate = Gate()
    gate.is_open = False
    gate.look_again_at = 5.0
    box, _, _ = outbox(gate)
    box.add(delivery("L", "cam", size=100))
    for _ in range(3):
        assert box.take(1.0) is None
    assert len(gate.asked) == 1
    assert box.look_again_at == 5.0
    box.link_changed()
    assert box.take(2.0) is None
    assert len(gate.asked) == 2
    gate.is_open = True
    assert box.take(4.9) is None
    assert name(box.take(5.0)) == "L"
    assert gate.asked[-1] == ("cam", 4.0)
    assert not box.look_again_at


def test_a_gate_that_wants_to_look_again_at_once_is_not_asked_in_a_circle() -> None:
    """A time that is not in the future is a millisecond away."""
    gate = Gate()
    gate.is_open = False
    gate.look_again_at = 1.0
    box, _, _ = outbox(gate)
    box.add(delivery("L", "cam", size=100))
    assert box.take(2.0) is None
    assert box.look_again_at == 2.001


def test_a_stream_of_small_messages_does_not_starve_a_large_one() -> None:
    """As many small bytes, of topics and payloads, pass as it has, then it is its turn."""
    box, _, _ = outbox()
    box.add(delivery("L", "cam", size=100))
    for number in range(50):
        box.add(delivery(f"s{number}", "small", size=5))
    taken = [name(box.take(0.0)) for _ in range(12)]
    assert taken.index("L") == 10


def test_a_large_message_waits_for_quota_and_lets_small_qos0_pass() -> None:
    """A large QoS 1 message needs a place in the inflight window; QoS 0 needs none."""
    box, _, _ = outbox()
    box.add(delivery("L", "cam", qos=1, size=100))
    box.add(delivery("s", "small", qos=0))
    assert drain(box, has_quota=False) == ["s"]
    assert drain(box) == ["L"]


def test_a_full_outbox_drops_the_newest_and_counts_it() -> None:
    """Both limits hold, and the ledger has the reason."""
    box, ledger, _ = outbox(max_messages=2, max_bytes=50)
    assert box.add(delivery("0", size=10))
    assert not box.add(delivery("1", size=41))
    assert box.add(delivery("2", size=40))
    assert not box.add(delivery("3"))
    assert ledger.dropped == {"queue_full": 2}
    assert drain(box) == ["0", "2"]


def test_a_full_outbox_may_drop_the_oldest() -> None:
    """As many as it takes, by messages and by bytes, QoS 0 before the rest."""
    box, ledger, _ = outbox(max_messages=4, max_bytes=50, drops_oldest=True)
    box.add(delivery("0", size=10))
    box.add(delivery("1", qos=2, size=10))
    box.add(delivery("2", qos=0, size=10))
    box.add(delivery("3", size=20))
    assert box.add(delivery("4", size=10))
    assert ledger.dropped == {"pushed_out": 1}
    assert box.add(delivery("5", size=20))
    assert ledger.dropped == {"pushed_out": 3}
    box.check_invariants()
    assert drain(box) == ["3", "4", "5"]


def test_an_outbox_may_have_limits_of_its_own() -> None:
    """What is over half full is found by them; those of all others stay."""
    box, ledger, _ = outbox(max_messages=10)
    common = box.rules
    box.rules = common.of_one(max_messages=2, max_bytes=100, drops_oldest=True)
    for number in range(4):
        box.add(delivery(str(number)))
        box.check_invariants()
    assert box in common.over_half
    assert ledger.dropped == {"pushed_out": 2}
    assert drain(box) == ["2", "3"]
    assert (common.max_messages, common.drops_oldest) == (10, False)


def test_what_has_waited_for_too_long_is_dropped_and_counted() -> None:
    """Large messages too; nothing is searched while the oldest are young enough."""
    box, ledger, _ = outbox()
    for at in (1.0, 2.0):
        box.add(delivery(f"small {at}", arrived_at=at))
        box.add(delivery(f"large {at}", f"of {at}", size=200, arrived_at=at))
    box.drop_older(1.0, 9.0)
    assert ledger.dropped == {}
    box.drop_older(2.0, 9.0)
    box.check_invariants()
    assert ledger.dropped == {"too_old": 2}
    assert sorted(str(one) for one in drain(box)) == ["large 2.0", "small 2.0"]


def test_what_could_never_fit_pushes_nothing_out() -> None:
    """A message larger than all the room is dropped itself, and so is QoS 0 among QoS 1."""
    box, ledger, _ = outbox(max_messages=2, max_bytes=50, drops_oldest=True)
    box.add(delivery("0"))
    box.add(delivery("1"))
    assert not box.add(delivery("2", size=51))
    assert not box.add(delivery("3", qos=0))
    assert ledger.dropped == {"queue_full": 2}
    assert drain(box) == ["0", "1"]


def test_a_withheld_message_pushed_out_frees_what_waits_behind_it() -> None:
    """It was the oldest: the rest of its topic goes on in order."""
    gate = Gate()
    gate.is_open = False
    box, ledger, _ = outbox(gate, max_messages=3, drops_oldest=True)
    box.add(delivery("L", "cam", size=100))
    box.add(delivery("a", "cam"))
    assert drain(box) == []
    box.add(delivery("b", "cam"))
    assert box.add(delivery("c", "cam"))
    box.check_invariants()
    assert drain(box) == ["a", "b", "c"]
    assert ledger.dropped == {"pushed_out": 1}


def test_expired_messages_never_leave() -> None:
    """[MQTT-3.3.2-5]: a message that has expired while it waited is counted and gone."""
    gate = Gate()
    gate.is_open = False
    box, ledger, _ = outbox(gate)
    box.add(delivery("L", "cam", size=100, expires_at=5.0))
    box.add(delivery("after", "cam"))
    box.add(delivery("short", expires_at=1.0))
    box.add(delivery("long"))
    assert drain(box, now=1.0) == ["long"]
    assert box.look_again_at == 5.0
    assert drain(box, now=5.0) == ["after"]
    assert ledger.expired == 2
    assert box.n_messages == 0


def test_an_expired_withheld_message_leaves_no_deadline_behind() -> None:
    """What is gone is not looked at again: a deadline in the past would come for ever."""
    gate = Gate()
    gate.is_open = False
    gate.look_again_at = 3.0
    box, ledger, _ = outbox(gate)
    box.add(delivery("L", size=100, expires_at=5.0))
    assert box.take(0.0) is None
    assert box.look_again_at == 3.0
    assert box.take(6.0) is None
    assert ledger.expired == 1
    assert not box.look_again_at


def test_expired_messages_make_room_for_new_ones() -> None:
    """What nobody will get any more must not cost a message that somebody would."""
    gate = Gate()
    gate.is_open = False
    box, ledger, _ = outbox(gate, max_messages=4)
    box.add(delivery("L", "cam", size=100, expires_at=5.0))
    box.add(delivery("behind", "cam"))
    box.add(delivery("short", qos=0, expires_at=6.0))
    box.add(delivery("long", expires_at=60.0))
    assert not box.add(delivery("too early", arrived_at=4.0))
    assert box.add(delivery("in time", arrived_at=6.0))
    box.check_invariants()
    assert (ledger.expired, ledger.dropped) == (2, {"queue_full": 1})
    assert drain(box, now=6.0) == ["long", "behind", "in time"]


def test_a_full_outbox_is_not_searched_for_each_message_that_comes() -> None:
    """Some expire all the time: to look at all that wait whenever one has would be quadratic."""
    n_looks = 0

    class Watched(Message):
        def is_expired(self, now: float) -> bool:
            nonlocal n_looks
            n_looks += 1
            return super().is_expired(now)

    box, ledger, _ = outbox(max_messages=1000)
    for n in range(3000):
        at = n * 0.001
        box.add(Delivery(Watched("t", b"", arrived_at=at, expires_at=at + 1.0), 1))
    box.check_invariants()
    assert n_looks < 100 * 3000
    assert ledger.expired > 1700
    assert box.n_messages + ledger.expired + ledger.dropped.get("queue_full", 0) == 3000


def test_a_gate_that_raises_delivers_and_is_told() -> None:
    """E3: a plugin's fault costs the withholding, not the message."""
    gate = Gate()
    gate.error = ZeroDivisionError()
    box, _, errors = outbox(gate)
    box.add(delivery("L", "cam", size=100))
    assert drain(box) == ["L"]
    assert errors == [gate.error]


class Learner(Gate, DeliveryGate):
    """A gate that wants to know of estimates when nothing waits, too."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Link] = []

    def observe(self, link: Link) -> None:
        """Remember it, or fail as the test has set."""
        self.told.append(link)
        if self.error is not None:
            raise self.error


def test_a_gate_that_learns_is_told_of_each_change_of_the_link() -> None:
    """Also while the outbox is empty; other gates are not."""
    gate = Learner()
    box, _, _ = outbox(gate)
    box.link_changed()
    box.link_changed()
    assert [link.client_id for link in gate.told] == ["c", "c"]
    outbox(Gate())[0].link_changed()


def test_a_gate_that_fails_to_learn_is_counted() -> None:
    """Its fault is told and nothing stops."""
    gate = Learner()
    gate.error = RuntimeError("no history")
    box, _, errors = outbox(gate)
    box.link_changed()
    assert errors == [gate.error]


def test_a_lost_connection_drops_qos0_and_keeps_the_rest_in_order() -> None:
    """What waits at QoS 0 was for the connection; QoS 1 and 2 are the session's."""
    gate = Gate()
    gate.is_open = False
    box, ledger, _ = outbox(gate)
    box.add(delivery("L0", "cam", qos=1, size=100))
    box.add(delivery("q0", "cam", qos=0))
    box.add(delivery("q1", "cam", qos=1))
    box.add(delivery("L1", "cam", qos=0, size=100))
    box.add(delivery("x0", "x", qos=0))
    box.add(delivery("x1", "x", qos=2))
    box.drop_qos0("connection_lost")
    box.check_invariants()
    assert ledger.dropped == {"connection_lost": 3}
    assert box.n_messages == 3
    gate.is_open = True
    assert drain(box) == ["x1", "L0", "q1"]


def test_the_end_of_a_session_drops_everything() -> None:
    """Nothing is left, and all of it is counted."""
    box, ledger, _ = outbox()
    for number in range(3):
        box.add(delivery(str(number), "cam", size=100))
    box.drop_all("session_ended")
    box.check_invariants()
    assert ledger.dropped == {"session_ended": 3}
    assert box.take(0.0) is None


def test_the_open_gate_holds_nothing_back() -> None:
    """Without withholding no message is large, and one that is goes at once."""
    gate = DeliveryGate()
    assert gate.threshold_s("any") is None
    assert gate.decide(Message("t", b""), Link("c"), 0.0, 0.0).deliver
    gate.forget(Link("c"))


class OutboxMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order: topics keep theirs, and the books balance."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.now = 0.0
        self.left: dict[tuple[str, bool], list[int]] = {}
        self.number = 0

    @initialize(drops_oldest=st.booleans())
    def make(self, *, drops_oldest: bool) -> None:
        """An outbox of either kind."""
        self.box, self.ledger, _ = outbox(
            self.gate, max_messages=20, max_bytes=3000, drops_oldest=drops_oldest
        )

    @rule(
        topic=st.sampled_from("abc"),
        qos=st.sampled_from([0, 1, 2]),
        size=st.sampled_from([5, 60, 100]),
        lifetime=st.none() | st.floats(0.5, 5),
    )
    def add(self, topic: str, qos: int, size: int, lifetime: float | None) -> None:
        """A message arrives."""
        self.number += 1
        expires_at = None if lifetime is None else self.now + lifetime
        self.ledger.matched += 1
        one = delivery(str(self.number), topic, qos, size, expires_at=expires_at)
        is_kept = self.box.add(one)
        assert is_kept == any(waiting is one for waiting in self.box.waiting())

    @rule(has_quota=st.booleans())
    def take(self, *, has_quota: bool) -> None:
        """The connection has room."""
        taken = self.box.take(self.now, has_quota=has_quota)
        if taken is not None:
            assert has_quota or not taken.qos
            self.ledger.delivered += 1
            place = (taken.message.topic, taken.qos > 0)
            self.left.setdefault(place, []).append(int(name(taken) or 0))

    @rule(is_open=st.booleans(), seconds=st.floats(0, 3))
    def news(self, *, is_open: bool, seconds: float) -> None:
        """The gate opens or closes, and time passes."""
        self.gate.is_open = is_open
        self.now += seconds
        self.box.link_changed()

    @rule()
    def lose(self) -> None:
        """The connection is lost."""
        self.box.drop_qos0("connection_lost")

    @rule(topic=st.sampled_from("abc"), n_messages=st.integers(1, 4))
    def move(self, topic: str, n_messages: int) -> None:
        """The oldest messages of a topic are taken out for somebody else."""
        waiting = [d for d in self.box.waiting() if d.message.topic == topic]
        taken = self.box.take_where(lambda d: d.message.topic == topic, n_messages)
        assert len(taken) == min(n_messages, len(waiting))
        assert all(one in waiting for one in taken)
        assert not any(one in self.box.waiting() for one in taken)
        self.ledger.moved += len(taken)

    @invariant()
    def is_sound(self) -> None:
        """The outbox's own invariants and the ledger hold after every step."""
        self.box.check_invariants()
        assert self.ledger.outstanding() == self.box.n_messages

    @invariant()
    def keeps_the_order_of_each_topic_and_qos_class(self) -> None:
        """[MQTT-4.6.0-6] for what needs the inflight window and what does not."""
        for sequences in self.left.values():
            assert sequences == sorted(sequences)


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
