from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.extensions import DeliveryGate
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.inflight import Inflight
from penstock.broker.outbox.lane_order import LaneOrder, join_lanes
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.broker.outbox.priority_outbox import make_outbox
from tests.helpers.effort import examples
from tests.helpers.guard import NoFaults

LARGE = 100


class Gate(DeliveryGate):
    """Lets everything pass."""

    def __init__(self, *, keeps_topics: bool = True) -> None:
        self.keeps_topics = keeps_topics

    def is_first(self, topic: str) -> bool:
        """Give one topic priority."""
        return topic == "first"


class Lane:
    """One lane, with what was sent on it.

    Attributes:
        box: its outbox.
        inflight: its inflight window.
        ledger: its ledger.
        order: keeps the order with the other lane.
        sent: names of its messages, in the order in which they left.
    """

    def __init__(self, rules: OutboxLimits, later: list[Callable[[], None]]) -> None:
        self.ledger = Ledger()
        self.box: Outbox = make_outbox(Link("c"), self.ledger, rules)
        self.inflight = Inflight()
        self.order = LaneOrder(
            self.box, self.inflight, self.ledger, wake=lambda: None, later=later.append
        )
        self.sent: list[str] = []

    def take(self, now: float = 0.0) -> Delivery | None:
        """Send the next message, if any may leave."""
        delivery = self.box.take(now)
        if delivery is not None:
            if delivery.qos:
                self.inflight.start(delivery)
            self.sent.append(name(delivery))
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """Let the client acknowledge a message."""
        if delivery.qos == 2:
            self.inflight.release(delivery.packet_id)
        self.inflight.finish(delivery.packet_id, delivery.qos)


class Lanes:
    """A small and a large lane of one subscriber."""

    def __init__(
        self, *, max_messages: int = 1000, keeps_topics: bool = True, drops_oldest: bool = True
    ) -> None:
        rules = OutboxLimits(
            Gate(keeps_topics=keeps_topics),
            NoFaults(),
            max_messages=max_messages,
            drops_oldest=drops_oldest,
        )
        self.later: list[Callable[[], None]] = []
        self.small, self.large = Lane(rules, self.later), Lane(rules, self.later)

    def joined(self) -> Lanes:
        """Return it with both lanes in one order."""
        join_lanes(self.small.order, self.large.order)
        return self

    def put(self, text: str, topic: str, qos: int = 1, expires_at: float | None = None) -> Delivery:
        """Let a message come; its name begins with L where it is large."""
        is_large = text[0] == "L"
        delivery = Delivery(message(text, topic, expires_at), qos)
        (self.large if is_large else self.small).box.add(delivery)
        return delivery

    def put_on_both(self, text: str, topic: str) -> None:
        """Let a message come to which both lanes have subscribed."""
        one = message(text, topic)
        for lane in (self.small, self.large):
            lane.ledger.matched += 1
            lane.box.add(Delivery(one, 1))

    def settle(self) -> None:
        """Do what was put off."""
        while self.later:
            self.later.pop(0)()


def message(text: str, topic: str, expires_at: float | None = None) -> Message:
    """Return a message, which is large if its name begins with L."""
    is_large = text[0] == "L"
    payload = text.encode().ljust(LARGE if is_large else 1, b".")
    return Message(topic, payload, is_large=is_large, expires_at=expires_at)


def name(delivery: Delivery) -> str:
    """Return the name in a delivery's payload."""
    return delivery.message.read_payload().rstrip(b".").decode()


def drain(lane: Lane) -> list[str]:
    """Send all that may leave a lane, and return its names."""
    names = []
    while (delivery := lane.take()) is not None:
        names.append(name(delivery))
        lane.box.check_invariants()
    return names


def test_a_message_waits_for_an_earlier_one_of_its_topic_on_the_other_lane() -> None:
    """Until that is acknowledged; other topics pass."""
    lanes = Lanes().joined()
    lanes.put("L1", "cam")
    for text, topic in (("s2", "cam"), ("a", "alarm"), ("s3", "cam")):
        lanes.put(text, topic)
    assert drain(lanes.small) == ["a"]
    assert lanes.small.box.why_nothing() == "an earlier message of the topic is on the other lane"
    first = lanes.large.take()
    assert first is not None
    lanes.settle()
    assert drain(lanes.small) == []
    lanes.large.acknowledge(first)
    assert drain(lanes.small) == ["s2", "s3"]


def test_both_lanes_take_turns_on_one_topic() -> None:
    """A large one waits for small ones before it, and a small one for the large one between."""
    lanes = Lanes().joined()
    for text in ("s1", "L2", "s3", "L4", "s5"):
        lanes.put(text, "cam", qos=2)
    lanes.put("L", "other")
    assert drain(lanes.large) == ["L"]
    for lane, text in (
        (lanes.small, "s1"),
        (lanes.large, "L2"),
        (lanes.small, "s3"),
        (lanes.large, "L4"),
        (lanes.small, "s5"),
    ):
        sent = lane.take()
        assert sent is not None
        assert name(sent) == text
        assert lanes.small.take() is None
        assert lanes.large.take() is None
        lane.inflight.release(sent.packet_id)
        assert lanes.small.take() is None
        lane.inflight.finish(sent.packet_id, 2)
    assert not lanes.small.order.pending.get("cam")
    assert not lanes.large.order.pending.get("cam")


def test_a_message_of_qos_0_is_waited_for_until_it_has_left() -> None:
    """There is no acknowledgement of it."""
    lanes = Lanes().joined()
    lanes.put("L1", "cam", qos=0)
    lanes.put("s2", "cam", qos=0)
    assert drain(lanes.small) == []
    assert drain(lanes.large) == ["L1"]
    lanes.settle()
    assert drain(lanes.small) == ["s2"]


@pytest.mark.parametrize("end", ["expired", "connection_lost", "evicted", "too_old"])
def test_what_is_dropped_is_waited_for_no_more(end: str) -> None:
    """Whatever ends it."""
    lanes = Lanes(max_messages=1).joined()
    qos = 0 if end == "connection_lost" else 1
    lanes.put("L1", "cam", qos, 1.0 if end == "expired" else None)
    lanes.put("s2", "cam")
    assert drain(lanes.small) == []
    if end == "expired":
        assert lanes.large.take(2.0) is None
    elif end == "connection_lost":
        lanes.large.box.connection_lost(0.0)
    elif end == "evicted":
        lanes.put("L3", "other")
    else:
        lanes.large.box.drop_older(1.0, 9.0)
    lanes.settle()
    assert drain(lanes.small) == ["s2"]


def test_the_oldest_parked_message_is_evicted_first() -> None:
    """A full outbox drops what has waited longest, also where all of it waits for the other."""
    lanes = Lanes(max_messages=2).joined()
    lanes.put("L1", "cam")
    for text in ("s2", "s3", "s4"):
        lanes.put(text, "cam")
    assert lanes.small.ledger.dropped == {"pushed_out": 1}
    first = lanes.large.take()
    assert first is not None
    lanes.large.acknowledge(first)
    assert drain(lanes.small) == ["s3", "s4"]


def test_without_an_order_of_topics_nothing_waits() -> None:
    """As ``ordering: none`` has it."""
    lanes = Lanes(keeps_topics=False).joined()
    lanes.put("L1", "cam")
    lanes.put("s2", "cam")
    assert drain(lanes.small) == ["s2"]


def test_what_was_restored_keeps_the_order_of_its_rows() -> None:
    """The sessions are restored one after the other."""
    lanes = Lanes()
    for row, text in enumerate(("s1", "L2", "s3"), 1):
        lanes.put(text, "cam").row_start = row
    lanes.put("s4", "alarm").row_start = 4
    lanes.joined()
    sent = [lanes.small.take(), lanes.small.take()]
    first = next(one for one in sent if one is not None and one.message.topic == "cam")
    assert name(first) == "s1"
    assert drain(lanes.small) == []
    assert drain(lanes.large) == []
    lanes.small.acknowledge(first)
    assert drain(lanes.large) == ["L2"]


def test_a_message_for_which_both_lanes_have_subscribed_comes_once() -> None:
    """On one of them; what comes by a share comes as well."""
    lanes = Lanes().joined()
    lanes.put_on_both("s1", "cam")
    lanes.put_on_both("L2", "cam")
    lanes.small.box.add(Delivery(message("share", "job"), 1, share="$share/g/job"))
    lanes.settle()
    assert [lane.box.n_messages for lane in (lanes.small, lanes.large)] == [3, 0]
    lanes.put_on_both("s3", "cam")
    assert [lane.ledger.moved for lane in (lanes.small, lanes.large)] == [0, 3]


def test_what_waited_on_both_lanes_before_they_were_lanes_comes_once() -> None:
    """As after a restart: until a lane connects, nothing says that they are one subscriber."""
    lanes = Lanes()
    for row, text in enumerate(("s1", "L2", "s3"), 1):
        one = message(text, "cam")
        for lane in (lanes.small, lanes.large):
            delivery = Delivery(one, 1)
            lane.box.add(delivery)
            delivery.row_start = 2 * row
    first = lanes.large.take()
    assert first is not None
    lanes.joined()
    assert drain(lanes.small) == []
    lanes.large.acknowledge(first)
    assert drain(lanes.small) + drain(lanes.large) == ["L2", "s3"]


@pytest.mark.parametrize("drops_oldest", [True, False])
def test_what_comes_for_a_lane_that_is_taken_over_has_the_limits_of_the_other_one(
    *, drops_oldest: bool
) -> None:
    """Which may not send: nothing grows without bound."""
    lanes = Lanes(max_messages=3, drops_oldest=drops_oldest).joined()
    lanes.large.order.take_over(is_away=True)
    for number in range(5):
        lanes.put(f"L{number}", "cam")
        lanes.settle()
    assert lanes.small.box.n_messages == 3
    expected = ["L2", "L3", "L4"] if drops_oldest else ["L0", "L1", "L2"]
    assert drain(lanes.small) == expected


def test_a_lane_that_is_taken_over_gives_what_waits_and_what_comes() -> None:
    """What is unacknowledged stays with it, and later messages of its topic wait for that."""
    lanes = Lanes().joined()
    for text, topic in (("L1", "cam"), ("L2", "cam"), ("L3", "other"), ("s4", "other")):
        lanes.put(text, topic)
    inflight = lanes.large.take()
    assert inflight is not None
    lanes.large.order.take_over(is_away=True)
    lanes.settle()
    assert drain(lanes.small) == ["L3", "s4"]
    lanes.put("L5", "other")
    lanes.settle()
    assert drain(lanes.small) == ["L5"]
    lanes.large.order.take_over(is_away=False)
    lanes.large.acknowledge(inflight)
    assert drain(lanes.small) == ["L2"]
    lanes.put("L6", "third")
    lanes.put("L7", "cam")
    assert drain(lanes.large) == ["L6"]
    assert lanes.large.ledger.moved == 3
    assert lanes.small.ledger.matched == 3


def test_what_moves_keeps_its_row() -> None:
    """So the order of the rows is that of the messages after a restart, too."""
    lanes = Lanes().joined()
    for row, text in enumerate(("L1", "s2", "L3"), 1):
        lanes.put(text, "cam").row_start = row
    lanes.large.order.take_over(is_away=True)
    lanes.settle()
    assert sorted(each.row for each in lanes.small.box.waiting()) == [1, 2, 3]
    lanes.large.order.take_over(is_away=False)
    assert lanes.large.order.first_pending("cam") is None
    lanes.put("L4", "cam")
    assert drain(lanes.large) == []
    assert drain(lanes.small) == ["L1", "s2", "L3"]


def test_what_moves_keeps_its_place_among_the_messages_of_its_topic() -> None:
    """Large ones pass to the lane on which small ones, before and after them, wait."""
    lanes = Lanes().joined()
    names = ["L1", "s2", "L3", "s4", "L5", "s6"]
    for text in names:
        lanes.put(text, "cam")
    lanes.large.order.take_over(is_away=True)
    lanes.settle()
    assert drain(lanes.small) == names


def test_what_was_sent_and_not_taken_passes_to_the_other_lane_in_its_place() -> None:
    """With what waits behind it, and what comes."""
    lanes = Lanes().joined()
    names = ["L1", "s2", "L3", "s4"]
    for text in names:
        lanes.put(text, "cam", qos=2)
    sent = lanes.large.take()
    assert sent is not None
    lanes.large.order.hand_over(sent)
    assert not lanes.large.inflight.n_messages
    lanes.put("L5", "cam")
    lanes.settle()
    assert drain(lanes.large) == []
    assert drain(lanes.small) == [*names, "L5"]
    assert lanes.large.ledger.moved == lanes.small.ledger.matched == 3


class Order(RuleBasedStateMachine):
    """Messages of some topics on two lanes, which come, leave, are acknowledged, and move."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes(max_messages=30).joined()
        self.both = (self.lanes.small, self.lanes.large)
        self.n_put = 0
        self.unacknowledged: list[tuple[Lane, Delivery]] = []
        self.left: dict[str, int] = {}

    @rule(
        topic=st.sampled_from(["a", "b", "first"]),
        is_large=st.booleans(),
        qos=st.sampled_from([1, 2]),
    )
    def put(self, topic: str, *, is_large: bool, qos: int) -> None:
        """Let a message come."""
        self.n_put += 1
        self.lanes.put(("L" if is_large else "s") + str(self.n_put), topic, qos)

    @rule(is_large=st.booleans())
    def take(self, *, is_large: bool) -> None:
        """Let a message leave: none of its topic that came later has, nor is on the other lane."""
        lane = self.both[is_large]
        delivery = lane.take()
        if delivery is None:
            return
        topic = delivery.message.topic
        number = int(name(delivery)[1:])
        assert number > self.left.get(topic, 0)
        self.left[topic] = number
        for other, one in self.unacknowledged:
            assert other is lane or one.message.topic != topic
        self.unacknowledged.append((lane, delivery))

    @rule(n=st.integers(0, 5))
    def acknowledge(self, n: int) -> None:
        """Acknowledge a message, not always the oldest."""
        if n < len(self.unacknowledged):
            lane, delivery = self.unacknowledged.pop(n)
            lane.acknowledge(delivery)

    @rule(is_large=st.booleans(), is_away=st.booleans())
    def take_over(self, *, is_large: bool, is_away: bool) -> None:
        """Let a lane be away, or come back."""
        self.both[is_large].order.take_over(is_away=is_away)
        self.both[not is_large].order.take_over(is_away=False)

    @rule(is_large=st.booleans())
    def hand_over(self, *, is_large: bool) -> None:
        """Let the other lane have what is unacknowledged on one."""
        lane = self.both[is_large]
        self.both[not is_large].order.take_over(is_away=False)
        mine = [delivery for on, delivery in self.unacknowledged if on is lane]
        for delivery in mine:
            lane.order.hand_over(delivery)
            topic, number = delivery.message.topic, int(name(delivery)[1:])
            self.left[topic] = min(self.left[topic], number - 1)
        self.unacknowledged = [each for each in self.unacknowledged if each[0] is not lane]

    @rule()
    def settle(self) -> None:
        """Do what was put off."""
        self.lanes.settle()

    @invariant()
    def all_leave_in_the_end(self) -> None:
        """The outboxes are whole, and nothing waits for what has left."""
        for lane in self.both:
            lane.box.check_invariants()

    def teardown(self) -> None:
        """Let all leave."""
        for lane in self.both:
            lane.order.take_over(is_away=False)
        while True:
            self.settle()
            while self.unacknowledged:
                self.acknowledge(0)
            n_before = sum(lane.box.n_messages for lane in self.both)
            for is_large in (False, True):
                self.take(is_large=is_large)
            if n_before == sum(lane.box.n_messages for lane in self.both):
                break
        assert n_before == 0
        assert all(lane.order.first_pending(t) is None for lane in self.both for t in self.left)


TestOrder = Order.TestCase
TestOrder.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
