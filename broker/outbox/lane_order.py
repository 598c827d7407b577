"""Two sessions as lanes of one subscriber: the order of a topic holds across both.

Theory of operation. A subscriber with two connections gets a topic's small messages on one and its
large ones on the other. Each connection keeps its own order, so a message that was published later
could come earlier on the other one. With a `LaneOrder` at each of the two outboxes, a message does
not leave while an earlier one of its topic waits in the other lane, or is unacknowledged there. A
message of QoS 0 counts until it has left.

Deliveries of both lanes are numbered in one sequence. `pending` has those of each topic, oldest
first, and what has left its front is removed when it is looked at. So a message has to wait if the
first pending one of its topic in the other lane has a smaller number. The outbox *parks* it then,
with what comes after it on its topic, as it does behind a large message; other topics pass. When a
delivery has left or is acknowledged, the outbox of the other lane is asked to unpark its topic.

Both lanes together are one subscriber: a message to which both have subscribed comes on one of
them, the first to which it is given. So a client can move a subscription from one lane to the
other: it subscribes on both before it unsubscribes on one, and gets every message once.

A lane may *take the large messages* of the other one, whose subscriptions then serve both: what is
large goes from `Outbox.add` of that one to the outbox of this one. When such a lane is no more, it
gives back what it has.

A lane that is away may be taken over: what waits in it moves to the other lane, in its place among
the messages of its topic. What is unacknowledged stays with its session, and later messages of its
topics wait for it, until the order is given up.
"""

from __future__ import annotations

import itertools
import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from penstock.broker.link import Link
from penstock.broker.message import ARRIVAL_SECONDS, Message
from penstock.broker.outbox.delivery import Delivery, DeliveryWatcher, by_sequence
from penstock.broker.outbox.inflight import Inflight
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox

SLICE_MESSAGES: Final = 1000
"""Messages that move to another lane in one turn."""

FOLLOW_SECONDS: Final = 60.0
"""For so long after a large message of QoS 0, those of its topic and QoS go on the same lane: there
is no acknowledgement that tells when it has arrived. Longer, a topic that was large once would be
without the other lane; shorter, a slow link would bring them out of order."""

_LEAST_CLEANED: Final = 64
"""A shorter queue of pending messages is not searched for those that have left its middle."""


def _is_own(delivery: Delivery) -> bool:
    """Say whether a delivery comes by a subscription of the lane alone, of no share or queue."""
    return not (delivery.share or delivery.is_leased)


class LaneOrder(DeliveryWatcher):
    """One of two lanes; it watches the inflight window in place of the session's journal.

    Attributes:
        pending: topic to its messages in this lane, oldest first; some may have left.
        entered: messages that were given to this lane in this turn.
        is_taken_over: what waits here, or comes, moves to the other lane.
        is_given_up: what is unacknowledged here holds back nothing on the other lane.
        is_away: this lane has no connection.
        gives_large: the other lane takes the large messages of this one.
        awaits: large messages wait for the other lane, which has no session yet.
        on_left: called when messages have left, once for all that leave together; or None.
    """

    def __init__(
        self,
        outbox: Outbox,
        inflight: Inflight,
        ledger: Ledger,
        *,
        wake: Callable[[], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """Prepare; `join` sets it to work."""
        self.outbox = outbox
        self.inflight = inflight
        self.ledger = ledger
        self.pending: dict[str, deque[Delivery]] = {}
        self.other: LaneOrder
        self.is_taken_over = False
        self.is_given_up = False
        self.is_away = False
        self.gives_large = False
        self.awaits = False
        self.on_left: Callable[[], None] | None = None
        self._wake = wake
        self._later = later
        self._journal: DeliveryWatcher | None = None
        self._numbers = itertools.count(1)
        self._left: dict[str, None] = {}
        self.entered: set[Message] = set()
        self._is_moving = False
        self._large0: dict[str, float] = {}

    # -- asked by the outbox -------------------------------------------------------------------

    def next_sequence(self) -> int:
        """Return the number of the next delivery of both lanes."""
        return next(self._numbers)

    def has_other(self, delivery: Delivery) -> bool:
        """Say whether the other lane was given the same message right before."""
        return delivery.message in self.other.entered and _is_own(delivery)

    def gives(self, delivery: Delivery) -> bool:
        """Say whether a message that comes to this lane goes to the other one.

        One of QoS 0 does not wait for a lane that is away.
        """
        other = self.other
        return (
            self.gives_large
            and not other.is_taken_over
            and (delivery.qos > 0 or not other.is_away)
            and _is_own(delivery)
            and (self._is_large(delivery) or self._follows(delivery))
        )

    def _is_large(self, delivery: Delivery) -> bool:
        return self.outbox.takes("large", delivery.message)

    def _follows(self, delivery: Delivery) -> bool:
        """Say whether a small message of QoS 0 follows a large one, which nobody acknowledges."""
        message = delivery.message
        large_at = None if delivery.qos else self._large0.get(message.topic)
        return large_at is not None and message.arrived_at < large_at + FOLLOW_SECONDS

    def give(self, delivery: Delivery, *, is_restored: bool) -> bool:
        """Let the other lane have a message that has come to this one; as `Outbox.add`."""
        other, message = self.other, delivery.message
        if not delivery.qos and self._is_large(delivery):
            large0 = self._large0
            large0.pop(message.topic, None)  # the topics are in the order of their messages
            large0[message.topic] = message.arrived_at
            while next(iter(large0.values())) < message.arrived_at - FOLLOW_SECONDS:
                del large0[next(iter(large0))]
        self.ledger.moved += 1
        other.ledger.matched += 1
        is_added = other.outbox.add(delivery, is_restored=is_restored)
        other._wake()  # noqa: SLF001 (of its kind)
        return is_added

    def enter(self, delivery: Delivery) -> None:
        """Take note of a delivery that waits in the outbox now; its `sequence` is set."""
        topic = delivery.message.topic
        if _is_own(delivery):
            if not self.entered:
                self._later(self.entered.clear)  # by then the message is with all subscribers
            self.entered.add(delivery.message)
        queue = self.pending.get(topic)
        if queue is None:
            queue = self.pending[topic] = deque()
        elif len(queue) >= _LEAST_CLEANED and not len(queue) & (len(queue) - 1):
            queue = self._forget_left(topic)
        if queue and queue[-1].sequence > delivery.sequence:
            insort(queue, delivery, key=by_sequence)
        else:
            queue.append(delivery)
        if self.is_taken_over:
            self._move_soon()

    def holds(self, delivery: Delivery) -> bool:
        """Say whether a delivery has to wait for the other lane.

        It does for an earlier one of its topic there, and a large one for a lane that is to come.
        """
        if self.awaits and self._is_large(delivery):
            return True
        if not self.outbox.rules.keeps_topics:
            return False
        first = self.other.first_pending(delivery.message.topic)
        return first is not None and first.sequence < delivery.sequence

    def left(self, delivery: Delivery) -> None:
        """Take note of a delivery that has left the outbox: it is sent next, or was dropped."""
        if not self._left:
            self._later(self._settle)
        self._left[delivery.message.topic] = None

    # -- told by the inflight window -----------------------------------------------------------

    def changed(self, delivery: Delivery) -> None:
        """Note that a delivery was sent, received or taken back."""
        if self._journal is not None:
            self._journal.changed(delivery)

    def finished(self, delivery: Delivery) -> None:
        """Note that a delivery was acknowledged."""
        if self._journal is not None:
            self._journal.finished(delivery)
        if self.outbox.order is self:
            self._look(delivery.message.topic)

    def ended(self, *, has_expired: bool) -> None:
        """Note that the session ends."""
        if self._journal is not None:
            self._journal.ended(has_expired=has_expired)

    def unstored(self) -> Collection[Delivery]:
        """Return what has come to any session since the last commit, in that order."""
        return () if self._journal is None else self._journal.unstored()

    # -- within --------------------------------------------------------------------------------

    def first_pending(self, topic: str) -> Delivery | None:
        """Return the oldest message of a topic that is in this lane; None for none."""
        queue = self.pending.get(topic)
        if queue is None:
            return None
        while queue:
            if self._is_pending(queue[0]):
                return queue[0]
            queue.popleft()
        del self.pending[topic]
        return None

    def _forget_left(self, topic: str) -> deque[Delivery]:
        """Forget the messages of a topic that are in this lane no more; return the others."""
        found = deque(filter(self._is_pending, self.pending.get(topic, ())))
        self.pending[topic] = found
        return found

    def _is_pending(self, delivery: Delivery) -> bool:
        return delivery.is_waiting or (
            delivery.qos > 0 and not self.is_given_up and self.inflight.holds(delivery)
        )

    def _settle(self) -> None:
        """Look at the topics of what has left the outbox."""
        if self.outbox.order is not self:
            return
        if self.on_left is not None:
            self.on_left()
        left, self._left = self._left, {}
        for topic in left:
            self._look(topic)

    def _look(self, topic: str) -> None:
        """Let go what has waited for messages of a topic that are in this lane no more."""
        self.first_pending(topic)
        if self.other.outbox.unpark(topic):
            self.other._wake()  # noqa: SLF001 (of its kind)

    def join(self, other: LaneOrder, numbers: itertools.count[int]) -> None:
        """Set one of two lanes to work; to be called for both, then `place_all`."""
        self.other = other
        self._numbers = numbers
        self.inflight.unfold()
        self._journal, self.inflight.journal = self.inflight.journal, self

    def await_other(self) -> None:
        """Let large messages wait, until `leave`, for the other lane, which has no session yet."""
        ledger = Ledger()
        nobody = LaneOrder(
            Outbox(Link(""), ledger, self.outbox.rules),
            Inflight(),
            ledger,
            wake=lambda: None,
            later=self._later,
        )
        join_lanes(self, nobody)
        self.awaits = True
        self._sort(self._is_large, lambda _: False)

    def leave(self) -> None:
        """Keep the order no more: one of the two sessions ends, or is no lane any more."""
        self.awaits = False
        for lane in (self, self.other):
            lane.inflight.journal = lane._journal  # noqa: SLF001 (of its kind)
            lane.outbox.order = None
            lane.pending.clear()
            lane.outbox.unpark_all()
            lane._wake()  # noqa: SLF001 (of its kind)

    # -- takeover ------------------------------------------------------------------------------

    def take_over(self, *, is_away: bool) -> None:
        """Let the other lane have what waits here and what comes; or let this lane have it again.

        Args:
            is_away: whether this lane has no connection. What has moved does not come back.
        """
        self.is_taken_over = is_away
        self.is_given_up = False
        if is_away and self.outbox.n_messages:
            self._move_soon()

    def give_up(self) -> None:
        """Let what is unacknowledged here hold back nothing more, until this lane is back."""
        self.is_given_up = True
        for topic in list(self.pending):
            self._look(topic)

    def hand_over(self, delivery: Delivery) -> None:
        """Let the other lane have a message that was sent here, and has not been taken.

        What waits here, and what comes, goes there as well: it stays behind this message.
        """
        self.take_over(is_away=True)
        self.inflight.take_back(delivery)
        topic = delivery.message.topic
        behind = self.outbox.take_where(lambda each: _is_own(each) and each.message.topic == topic)
        self._hand_over([delivery, *behind])

    def give_large(self, *, gives: bool) -> None:
        """Let the other lane have the large messages that wait here and that come, or no more."""
        is_new = gives and not self.gives_large
        self.gives_large = gives
        if is_new and self.outbox.n_messages:
            self._sort(self.gives, self.gives)

    def _sort(
        self, is_wanted: Callable[[Delivery], bool], is_for_other: Callable[[Delivery], bool]
    ) -> None:
        """Hand over waiting messages, or park them; those behind them on their topics wait."""
        topics = {each.message.topic for each in self.outbox.waiting() if is_wanted(each)}
        taken = self.outbox.take_where(lambda each: each.message.topic in topics)
        self._hand_over(taken, is_for_other)

    def give_back(self) -> None:
        """Let the other lane have all that this one has taken of it, before this one is no more.

        A message of QoS 2 that the client has received is complete.
        """
        inflight = self.inflight
        sent = [
            delivery
            for delivery in inflight
            if _is_own(delivery) and not inflight.is_released(delivery.packet_id)
        ]
        for delivery in sent:
            inflight.take_back(delivery)
        self._hand_over(sent + self.outbox.take_where(_is_own))

    def _move_soon(self) -> None:
        if not self._is_moving:
            self._is_moving = True
            self._later(self._move)

    def _move(self) -> None:
        """Move some messages, the oldest first."""
        self._is_moving = False
        if not self.is_taken_over or self.outbox.order is not self:
            return
        taken = self.outbox.take_where(_is_own, SLICE_MESSAGES)
        self._hand_over(taken)
        if taken and self.outbox.n_messages:
            self._move_soon()

    def _hand_over(
        self, taken: Sequence[Delivery], is_for_other: Callable[[Delivery], bool] = _is_own
    ) -> None:
        """Let the other lane have messages that have left this one, each in its place.

        Args:
            taken: of each topic all that waited here, or all that is for the other lane.
            is_for_other: says which; the others come back to this lane.
        """
        topics = dict.fromkeys(delivery.message.topic for delivery in taken)
        for topic in topics:
            self._forget_left(topic)
        for delivery in taken:  # the same object: it keeps its row, and with it its place
            lane = self
            if is_for_other(delivery):
                lane = self.other
                self.ledger.moved += 1
                lane.ledger.matched += 1
                delivery.withheld_since = None
            lane.outbox.take_up(delivery, delivery.sequence)
        for lane in (self, self.other):
            for topic in topics:
                lane.outbox.unpark(topic)
            lane._wake()  # noqa: SLF001 (of its kind)


def join_lanes(one: LaneOrder, other: LaneOrder) -> None:
    """Keep the order of each topic across two lanes, from what is in them on.

    What is in them was restored from the disk, in the order of its rows, or has come since. A
    message that waits in both stays in one.
    """
    numbers = itertools.count(1)
    one.join(other, numbers)
    other.join(one, numbers)
    unstored = {
        delivery: place for place, delivery in enumerate(one.unstored() or other.unstored())
    }

    def came(delivery: Delivery) -> tuple[float, float, float, int]:
        """Return what sorts by coming: what has no row yet is later than what has one.

        A large message has a time of its own, and a small one after it may have an earlier time.
        """
        return (
            delivery.row or math.inf,
            unstored.get(delivery, math.inf),
            delivery.message.arrived_at // ARRIVAL_SECONDS,
            delivery.sequence,
        )

    found: list[tuple[LaneOrder, Delivery]] = []
    topics: list[set[str]] = []
    for lane in (one, other):
        mine = [*lane.inflight, *lane.outbox.waiting()]
        topics.append({delivery.message.topic for delivery in mine})
        found += [(lane, delivery) for delivery in mine]
    common = topics[0] & topics[1]
    waiting = set[Delivery]()
    for lane in (one, other):
        waiting.update(lane.outbox.take_where(lambda delivery: delivery.message.topic in common))
        lane.outbox.order = lane
    found.sort(key=lambda each: came(each[1]))
    kept = {each.message for _, each in found if each not in waiting and _is_own(each)}
    for lane, delivery in found:
        number = lane.next_sequence()
        if delivery in waiting:
            if _is_own(delivery):
                if delivery.message in kept:
                    lane.ledger.moved += 1
                    continue
                kept.add(delivery.message)
            lane.outbox.take_up(delivery, number)
        else:
            delivery.sequence = number
            lane.enter(delivery)
    for topic in common:
        one.outbox.unpark(topic)
        other.outbox.unpark(topic)
