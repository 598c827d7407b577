"""The outbox: what waits for one subscriber.

Theory of operation. Messages of one topic never overtake each other [MQTT-4.6.0-6]; messages of
different topics may. An outbox therefore has three places:

* `_ready0` and `_ready`: messages of QoS 0, and of QoS 1 and 2, that may leave now, in order of
  arrival. They are separate because a full inflight window holds only the second.
* `_held`: large messages, oldest first, with later messages on their topics. Only the oldest is
  ever offered to the gate, so that withheld messages leave one at a time, with a new decision after
  each. It is created with the first large message. Messages that wait for another lane
  (`penstock.broker.outbox.lane_order`) are parked there.

Small messages pass a waiting large one. But a large message that could leave is passed by at most
as many bytes as its payload has; then the gate is asked about it first. So a busy stream of small
messages delays a large one but cannot starve it. A large message in turn passes no message of its
own QoS that was ready before it came (`Delivery.after`), as that may be of its topic.

An outbox has no clock, sends nothing and knows no connection. Its owner asks `take` for the next
delivery while the connection has room, and at `look_again_at`.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import Decision, Verdict
from penstock.broker.link import Link
from penstock.broker.message import MESSAGE_BYTES, Message, SizeClass
from penstock.broker.outbox.delivery import (
    NO_QUEUE,
    NOTHING_BEFORE,
    Delivery,
    DeliveryWatcher,
    by_sequence,
    first_of,
    take_ready,
)
from penstock.broker.outbox.large_messages import LargeMessages
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox_limits import SWEEP_SECONDS, OutboxLimits

if TYPE_CHECKING:
    from penstock.broker.outbox.lane_order import LaneOrder

_RELEASED: Final = Verdict(deliver=True, reason="released by an operator", cause="operator")
_GATE_FAILED: Final = Verdict(deliver=True, reason="the gate failed", cause="gate_failed")

MIN_LOOK_AGAIN_SECONDS: Final = 0.001
"""Least time until the gate is asked again, even if it wants to be asked at once, for example
because of a rounding error."""

KEPT_DECISIONS: Final = 5
"""Holds and releases of one subscriber that its report tells of."""

MIN_SWEEP_MESSAGES: Final = 64
"""While fewer messages wait, there is no search for expired ones."""


class Outbox:
    """The messages that wait for one subscriber, in the order in which they may leave.

    Invariants, tested by `check_invariants`: those of `LargeMessages`; no topic that is held has
    a message in a ready place that came after its large one (where topics are kept); `n_messages`
    and `n_bytes` are the sums over all places; it is in `OutboxLimits.over_half` by these sums.

    Attributes:
        n_bytes: payload bytes that wait.
        look_again_at: monotonic seconds at which the gate wants to be asked again, or None.
        last_decision: the gate's newest answer, or None before the first.
        recent: the decisions by which the last messages began to be held, or were released, oldest
            first; `KEPT_DECISIONS` at most.
        journal: notified of each QoS 1 and 2 delivery that comes or leaves; None where nothing of
            the session is stored. Every path in and out passes `_enter` and `_remove`.
        order: keeps the order of each topic across this and another outbox; None where there is no
            other one.
    """

    __slots__ = (
        "_ask",
        "_held",
        "_ledger",
        "_let_go",
        "_link",
        "_next_expiry",
        "_next_sweep",
        "_passed_bytes",
        "_ready",
        "_ready0",
        "_rules",
        "_sequence",
        "_sweep_at",
        "journal",
        "last_decision",
        "look_again_at",
        "n_bytes",
        "n_messages",
        "order",
        "recent",
    )

    def __init__(self, link: Link, ledger: Ledger, rules: OutboxLimits) -> None:
        """Make an empty outbox."""
        self._link = link
        self._ledger = ledger
        self._rules = rules
        self._ready0: deque[Delivery] = NO_QUEUE
        self._ready: deque[Delivery] = NO_QUEUE
        self._held: LargeMessages | None = None
        self._sequence = 0
        self._let_go = -1
        self._passed_bytes = 0
        self._next_expiry = math.inf
        self._next_sweep = 0.0
        self._sweep_at = 2 * MIN_SWEEP_MESSAGES
        self._ask = True
        self.n_messages = 0
        self.n_bytes = 0
        self.look_again_at: float | None = None
        self.last_decision: Decision | None = None
        self.recent: tuple[Decision, ...] = ()
        self.journal: DeliveryWatcher | None = None
        self.order: LaneOrder | None = None

    @property
    def rules(self) -> OutboxLimits:
        """What it has in common with others, and its limits."""
        return self._rules

    @rules.setter
    def rules(self, rules: OutboxLimits) -> None:
        self._rules.over_half.discard(self)
        self._rules = rules
        if rules.is_over_half(self):
            rules.over_half.add(self)

    @property
    def place(self) -> Outbox:
        """The outbox in which what comes will wait: after a takeover, that of the other lane."""
        order = self.order
        return self if order is None or not order.is_taken_over else order.other.outbox

    def place_of(self, message: Message) -> Outbox:
        """Return the outbox in which a message of QoS 1 or 2 will wait, if it comes now."""
        order = self.order
        if order is not None and order.gives(Delivery(message, 1)):
            return order.other.outbox
        return self.place

    @property
    def n_withheld(self) -> int:
        """Messages held by the gate: large ones that wait for it, and those behind them."""
        return 0 if self._held is None else self._held.n_withheld

    @property
    def is_withholding(self) -> bool:
        """Whether the next large message waits because of the gate."""
        large = self._next_large()
        return large is not None and large.withheld_since is not None

    def _next_large(self) -> Delivery | None:
        held = self._held
        return held.firsts[0] if held is not None and held.firsts else None

    def _next_parked(self) -> Delivery | None:
        held = self._held
        return held.parked[0] if held is not None and held.parked else None

    def why_nothing(self) -> str:
        """Say why `take` yields nothing: a few words for reports."""
        if not self.n_messages:
            return "empty"
        if self._ready and not self._ready0 and self._next_large() is None:
            return "inflight window full"
        if self.is_withholding:
            return f"withheld: {self.last_decision.verdict.reason if self.last_decision else ''}"
        if self._next_parked() is not None:
            return "an earlier message of the topic is on the other lane"
        return "waiting for room"

    def waiting(self) -> Iterator[Delivery]:
        """Yield every waiting delivery, in any order."""
        held = () if self._held is None else self._held.chains.values()
        return chain(self.ready(), *held)

    def ready(self) -> Iterator[Delivery]:
        """Yield the deliveries that wait only for the connection, in any order."""
        return chain(*self._lanes())

    def _lanes(self) -> tuple[deque[Delivery], ...]:
        """Return the ready places."""
        return self._ready, self._ready0

    def add(self, delivery: Delivery, *, is_restored: bool = False) -> bool:
        """Let a message wait; return False where the outbox is full: it was dropped and counted.

        What the other lane was given right before does not wait here, too.

        With `is_restored` there is no limit: the message waited before a restart, and its publisher
        has its acknowledgement.
        """
        message = delivery.message
        order = self.order
        if order is not None:
            if order.has_other(delivery):
                self._ledger.moved += 1
                return True
            if order.gives(delivery):
                return order.give(delivery, is_restored=is_restored)
        is_large = (message.is_large or self._rules.is_of_one) and self.is_large(message)
        if is_large or delivery.after is not None:  # it may have been large for another subscriber
            delivery.after = NOTHING_BEFORE if is_large else None
        if is_large:
            self._ledger.large += 1
            if not self._link.had_large:
                self._had_large()
            if self._rules.supersedes and self._supersede(delivery):
                return True
        place = self if order is None or not order.is_taken_over else order.other.outbox  # in line
        if not is_restored and place.why_full(message):
            reason = place.make_room_for(delivery)
            if reason:
                self._rules.drop(self._link, self._ledger, reason, message.arrived_at)
                return False
        elif self.n_messages >= self._sweep_at:
            self.drop_expired(message.arrived_at)
            self._sweep_at = 2 * max(self.n_messages, MIN_SWEEP_MESSAGES)
        held = self._held
        behind = held.chains.get(message.topic) if held is not None else None
        ready = self._ready if delivery.qos else self._ready0
        is_of_run = ready and ready[-1].sequence == self._sequence
        if order is not None:
            self._sequence = order.next_sequence()
        elif behind is not None or is_large or not is_of_run:
            self._sequence += 1
        delivery.sequence = self._sequence
        self._enter(delivery)
        if order is not None:
            order.enter(delivery)
        if behind is None or not (is_large or self._rules.keeps_topics):
            if order is not None and order.holds(delivery):
                self._park(delivery)
            else:
                self._place(delivery)
            return True
        behind.append(delivery)
        if held is not None and is_large:
            held.await_mark(delivery)
        return True

    def take_up(self, delivery: Delivery, sequence: int) -> None:
        """Let a message wait in its place among those of its topic, which may not be the last one.

        There is no limit: it has waited in this or the other lane before. It is parked until
        `unpark`, to be called when all that move at a time are here.
        """
        order = self.order
        assert order is not None  # noqa: S101 (there are lanes)
        message = delivery.message
        is_large = self.is_large(message)
        delivery.after = NOTHING_BEFORE if is_large else None
        delivery.sequence = sequence
        self._enter(delivery)
        order.enter(delivery)
        if not (is_large or self._rules.keeps_topics):
            self._place(delivery)
            return
        if self._held is None or message.topic not in self._held.chains:
            self._park(delivery)
        else:
            self._held.insert(delivery)

    def sort_anew(self) -> None:
        """Decide again which messages are large, as the rules are others; there is no other lane.

        What is large now waits behind all that is small.
        """
        topics = {
            delivery.message.topic
            for delivery in self.waiting()
            if self.is_large(delivery.message) != (delivery.after is not None)
        }
        for delivery in self.take_where(lambda delivery: delivery.message.topic in topics):
            is_large = self.is_large(delivery.message)
            delivery.after = NOTHING_BEFORE if is_large else None
            self._sequence += 1
            delivery.sequence = self._sequence
            self._enter(delivery)
            behind = self._held.chains.get(delivery.message.topic) if self._held else None
            if behind is None or not (is_large or self._rules.keeps_topics):
                self._place(delivery)
                continue
            behind.append(delivery)
            if self._held is not None and is_large:
                self._held.await_mark(delivery)

    def _park(self, delivery: Delivery) -> None:
        """Let a message wait until the other lane has none of its topic that is earlier."""
        self._held = self._held or LargeMessages()
        self._held.park(deque((delivery,)))
        if delivery.after is not None:
            self._held.await_mark(delivery)

    def unpark(self, topic: str) -> bool:
        """Release what need not wait for the other lane any more; return whether there was any."""
        held, order = self._held, self.order
        first = None if held is None else held.parked_of(topic)
        if held is None or first is None or (order is not None and order.holds(first)):
            return False
        self._free(held, (held.unpark(first),))
        return True

    def unpark_all(self) -> None:
        """Release all that waits for the other lane: there is none any more."""
        held = self._held
        for first in list(held.parked) if held is not None else ():
            self.unpark(first.message.topic)

    def why_full(self, message: Message) -> str:
        """Return why there is no room for a message; "" where there is room."""
        rules = self._rules
        if (
            self.n_messages >= rules.max_messages
            or self.n_bytes + message.size_bytes > rules.max_bytes
        ):
            return "queue_full"
        backlog = rules.backlog
        return "broker_full" if backlog is not None and backlog.is_full_for(message) else ""

    def make_room_for(self, delivery: Delivery) -> str:
        """Drop what need not be kept; return why there is still no room, "" where there is.

        If the rules say so, the messages that have waited longest are evicted: QoS 0 that waits for
        room first, and QoS 0 evicts only QoS 0. None of them was sent, so no packet identifier
        refers to them and no order is lost.
        """
        message = delivery.message
        rules = self._rules
        backlog = rules.backlog
        self.drop_expired(message.arrived_at)
        reason = self.why_full(message)
        is_too_small = backlog is not None and backlog.is_too_small_for(message)
        if not rules.drops_oldest or is_too_small or message.size_bytes > rules.max_bytes:
            return reason
        n_bytes = 0
        while reason:
            backlog = rules.backlog if reason == "broker_full" else None
            if backlog is not None and backlog.takes_in_exchange(message, n_bytes):
                return ""
            oldest, source = self._oldest_for(delivery)
            if oldest is None or (backlog and backlog.frees_nothing(oldest.message, message)):
                return reason
            self._evict(oldest, source)
            n_bytes += oldest.message.memory_bytes
            rules.drop(self._link, self._ledger, "pushed_out", message.arrived_at)
            reason = self.why_full(message)
        return ""

    def _evict(self, oldest: Delivery, source: deque[Delivery] | None) -> None:
        """Take out what `_oldest_for` has returned."""
        if source is None:
            self._leave_large(oldest)
        else:
            self._remove(source.popleft())

    def _oldest_for(self, delivery: Delivery) -> tuple[Delivery | None, deque[Delivery] | None]:
        """Return the message to evict for a delivery, with its ready place; None without one."""
        source: deque[Delivery] | None = self._ready0 or self._ready or None
        oldest = source[0] if source is not None else None
        large = min(
            (one for one in (self._next_large(), self._next_parked()) if one is not None),
            key=by_sequence,
            default=None,
        )
        if (
            large is not None
            and not self._ready0
            and (oldest is None or large.sequence < oldest.sequence)
        ):
            oldest, source = large, None
        if oldest is None or (oldest.qos and not delivery.qos):
            return None, None
        return oldest, source

    def _supersede(self, delivery: Delivery) -> bool:
        """Let a large message replace the last one held of its topic, if it may.

        It may where both are of QoS 0 and the rules say so. It takes over the sojourn, too: if the
        newest one waited from its own arrival, a topic with a message every few seconds would never
        be released. A full outbox needs no room for it.

        Returns:
            False where it must wait behind the others of its topic.
        """
        message = delivery.message
        behind = self._held.chains.get(message.topic) if self._held is not None else None
        if behind is None or delivery.qos or behind[-1].qos:
            return False
        last = behind[-1]
        if last.after is None:
            return False
        self._remove(last)
        if self.why_full(message):
            self._enter(last)
            return False
        last.message = message
        last.retain, last.subscription_ids = delivery.retain, delivery.subscription_ids
        last.share = delivery.share
        self._enter(last)
        self._ledger.drop("superseded")
        self._ask = True
        return True

    def is_large(self, message: Message) -> bool:
        """Say whether a message is large for this subscriber, before it is in the outbox.

        For a delivery the answer is in `Delivery.after`: its size class is that of the listener of
        the subscriber's newest connection when it came.
        """
        return self._rules.is_large_for(message, self._link)

    def takes(self, size_class: SizeClass | None, message: Message) -> bool:
        """Say whether a subscription of this subscriber takes a message, by its size class."""
        return size_class is None or self._rules.is_of(size_class, message, self._link)

    def _had_large(self) -> None:
        """The first large message has come: from now on it matters how the path is."""
        link = self._link
        link.had_large = True
        if link.outstanding_since is None:
            link.quiet_until = 0.0

    def _place(self, delivery: Delivery) -> None:
        """Put a delivery, whose topic is not held, where it belongs."""
        if delivery.after is not None:
            if self._held is None:
                self._held = LargeMessages()
            self._hold(self._held, delivery, deque((delivery,)))
            self._held.await_mark(delivery)
        elif delivery.qos:
            if self._ready is NO_QUEUE:
                self._ready = deque()
            self._ready.append(delivery)
        else:
            if self._ready0 is NO_QUEUE:
                self._ready0 = deque()
            self._ready0.append(delivery)

    def _hold(self, held: LargeMessages, large: Delivery, behind: deque[Delivery]) -> None:
        """Let a large message wait, with the messages behind it on its topic."""
        ready = self._ready if large.qos else self._ready0
        large.after = ready[-1] if ready else NOTHING_BEFORE
        held.put_first(large, behind)

    def link_changed(self) -> None:
        """Ask the gate again at the next `take`: there is a new RTT estimate."""
        self._ask = True
        observe = self._rules.observe
        if observe is not None:
            observe(self._link)

    def take(self, now: float, *, has_quota: bool = True) -> Delivery | None:
        """Return the next delivery that may be sent now, or None.

        Returns:
            A delivery that has left the outbox; the caller sends it. A large one leaves
            alone: the caller asks again once the connection has taken it.
        """
        while self.n_messages:
            source = first_of(self._ready0, self._ready, has_quota=has_quota)
            held = self._held
            large = held.firsts[0] if held is not None and held.firsts else None
            if held is not None and large is not None and (has_quota or not large.qos):
                is_turn = source is None or self._passed_bytes >= large.message.payload_bytes
                if is_turn and self._is_next(large) and self._may_leave(held, large, now):
                    self._leave_large(large)
                    if self._has_expired(large, now):
                        if large.withheld_since is not None:
                            self._rules.record.count("gone", "expired")
                        continue
                    self._rules.note_leaving(self._link, large, now)
                    return large
            if source is None:
                return None
            delivery = source.popleft()
            self._remove(delivery)
            if self._has_expired(delivery, now):
                continue
            if large is not None:
                self._passed_bytes += delivery.link_bytes
            return delivery
        return None

    def large_sent(self, large: Delivery, now: float) -> None:
        """Tell the gate of a large message of QoS 1 or 2 that was handed to the connection."""
        tell = self._rules.large_sent
        if tell is not None:
            tell(self._link, large.message.payload_bytes, now)

    def large_acknowledged(self, now: float) -> None:
        """Tell the gate of the PUBACK or PUBREC of a large message."""
        tell = self._rules.large_acknowledged
        if tell is not None and tell(self._link, now):
            self._ask = True

    def _is_next(self, large: Delivery) -> bool:
        """Say whether all messages of its QoS that were ready before a large one have left."""
        if large.after is not None and not large.after.is_waiting:
            large.after = NOTHING_BEFORE
        return large.after is NOTHING_BEFORE

    def _may_leave(self, held: LargeMessages, large: Delivery, now: float) -> bool:
        """Ask the gate, unless nothing has changed since it was last asked."""
        held.count_absence(now)
        again, record = self.look_again_at, self._rules.record
        if not self._ask and large.withheld_since is not None and (again is None or now < again):
            behind = held.mark(large, now)
            self._ledger.withheld_total += len(behind)
            record.held_behind(self._link, large.message, behind, now)
            return False
        message, since = large.message, large.withheld_since
        if message.is_expired(now):
            return True
        sojourn = 0.0 if since is None else now - since
        is_let_go = large.sequence <= self._let_go
        verdict = _RELEASED if is_let_go else self._decide(message, sojourn, now)
        self._ask = False
        decision = Decision(verdict, message.topic, message.payload_bytes, sojourn, now)
        self.last_decision = decision
        self._passed_bytes = 0
        if verdict.deliver:
            self.look_again_at = None
            if since is None:
                record.count("at_once", verdict.cause)
            else:
                self._ledger.released_total += 1
                self._remember(decision)
                record.released(self._link, decision)
            return True
        behind = held.mark(large, now)
        self._ledger.withheld_total += len(behind) + (since is None)
        if since is None:
            self._remember(decision)
            record.held(self._link, decision)
        record.held_behind(self._link, message, behind, now)
        again = verdict.look_again_at
        if again is not None:
            again = max(again, now + MIN_LOOK_AGAIN_SECONDS)
        if message.expires_at is not None:
            again = message.expires_at if again is None else min(message.expires_at, again)
        self.look_again_at = again
        return False

    def _remember(self, decision: Decision) -> None:
        self.recent = (*self.recent[1 - KEPT_DECISIONS :], decision)

    def connection_lost(self, now: float) -> None:
        """The subscriber is away: QoS 0 messages are dropped, and sojourns stop."""
        self.drop_qos0("connection_lost")
        held = self._held
        if held is not None and held.away_since is None:
            held.away_since = now

    def lets(self, message: Message, now: float) -> bool:
        """Say whether a message could be sent to this subscriber now, large or small."""
        return not self.is_large(message) or self.releases(message, now)

    def releases(self, message: Message, now: float) -> bool:
        """Say whether the gate would now deliver a message that is large for this subscriber."""
        return self._decide(message, 0.0, now).deliver

    def _decide(self, message: Message, sojourn: float, now: float) -> Verdict:
        gate = self._rules.gate
        return self._rules.guard.call(
            gate, gate.decide, message, self._link, sojourn, now, otherwise=_GATE_FAILED
        )

    def _leave_large(self, large: Delivery) -> None:
        """Remove the oldest large message and release those behind it on its topic."""
        held = self._held
        assert held is not None  # noqa: S101 (it holds this one)
        self._remove(large)
        self._free(held, (held.release(large),))

    def _free(self, held: LargeMessages, rests: Iterable[deque[Delivery]]) -> None:
        """Release the messages behind large ones that are gone, up to the next large ones."""
        self.look_again_at = None
        self._passed_bytes = 0
        self._ask = True
        for behind in rests:
            while behind:
                delivery = behind[0]
                if self.order is not None and self.order.holds(delivery):
                    held.park(behind)
                    break
                if delivery.after is not None:
                    self._hold(held, delivery, behind)
                    break
                self._place(behind.popleft())

    def _enter(self, delivery: Delivery) -> None:
        expires_at = delivery.message.expires_at
        if expires_at is not None and expires_at < self._next_expiry:
            self._next_expiry = expires_at
        delivery.is_waiting = True
        self.n_messages += 1
        self.n_bytes += delivery.message.size_bytes
        rules = self._rules
        if self.n_messages > rules.half_messages or self.n_bytes > rules.half_bytes:
            rules.over_half.add(self)
        if rules.backlog is not None:
            rules.backlog.enter(delivery.message)
        if self.journal is not None and delivery.qos:
            self.journal.changed(delivery)

    def _remove(self, delivery: Delivery) -> None:
        delivery.is_waiting = False
        self.n_messages -= 1
        self.n_bytes -= delivery.message.size_bytes
        rules = self._rules
        if rules.over_half:
            rules.left(self)
        if rules.backlog is not None:
            rules.backlog.leave(delivery.message)
        if self.journal is not None and delivery.qos:
            self.journal.changed(delivery)
        if self.order is not None:
            self.order.left(delivery)

    def _has_expired(self, delivery: Delivery, now: float) -> bool:
        has_expired = delivery.message.is_expired(now)
        self._ledger.expired += has_expired
        return has_expired

    def take_where(
        self, is_wanted: Callable[[Delivery], bool], n_messages: int = sys.maxsize
    ) -> list[Delivery]:
        """Take out messages that are to go to another subscriber, the oldest first.

        Args:
            is_wanted: says whether a delivery is to be taken.
            n_messages: how many at most. Those before them are visited in each call.

        Returns:
            Deliveries that have left the outbox; the caller counts them.
        """
        taken: list[Delivery] = []
        for ready in self._lanes():
            taken += self._take_ready(ready, is_wanted, n_messages - len(taken))
        if self._held is not None and len(taken) < n_messages:
            taken += self._take_held(self._held, is_wanted, n_messages - len(taken))
        return sorted(taken, key=by_sequence)

    def _take_ready(
        self, ready: deque[Delivery], is_wanted: Callable[[Delivery], bool], n_messages: int
    ) -> list[Delivery]:
        """Take messages out of a ready place, wherever they are in it."""
        stand_ins = take_ready(ready, is_wanted, n_messages)
        for delivery in stand_ins:
            self._remove(delivery)
        if stand_ins and self._held is not None:
            for large in self._held.firsts:
                if large.after in stand_ins:
                    large.after = stand_ins[large.after] or NOTHING_BEFORE
        return list(stand_ins)

    def _take_held(
        self,
        held: LargeMessages,
        is_wanted: Callable[[Delivery], bool],
        n_messages: int = sys.maxsize,
    ) -> list[Delivery]:
        """Take out large messages, and those behind them."""
        taken, rests = held.take_where(is_wanted, n_messages)
        for delivery in taken:
            self._remove(delivery)
        if rests:
            self._free(held, rests)
        return taken

    def drop_qos0(self, reason: str) -> None:
        """Drop waiting messages of QoS 0: their connection has ended."""
        n_before = self.n_messages
        if not n_before:
            return
        for ready in self._lanes():
            if ready and not ready[0].qos:  # the others are not, either
                # No work for each of 100,000 messages. No remaining `Delivery.after` refers to one
                # of these: large messages of QoS 0 are dropped, too.
                self._leave_backlog(ready)
                if self.order is not None:
                    for delivery in ready:
                        delivery.is_waiting = False
                        self.order.left(delivery)
                self.n_messages -= len(ready)
                if self.n_messages:
                    self.n_bytes -= sum(delivery.message.size_bytes for delivery in ready)
                else:
                    self.n_bytes = 0
                ready.clear()
        self._rules.left(self)
        if self._held is not None:
            self._take_held(self._held, lambda delivery: not delivery.qos)
        self._ledger.drop(reason, n_before - self.n_messages)

    def release_held(self) -> int:
        """Let what the gate holds now leave without it, one after the other; return how many.

        The owner then asks `take`.
        """
        n_held = self.n_withheld
        if n_held:
            self._let_go, self._ask, self.look_again_at = self._sequence, True, None
        return n_held

    def drop_held(self) -> int:
        """Drop what the gate holds, with what waits behind it, as ``operator``; return how many."""
        held = self._held
        topics = set() if held is None else held.withheld_topics()
        if held is None or not topics:
            return 0
        dropped = self._take_held(held, lambda delivery: delivery.message.topic in topics)
        self._ledger.drop("operator", self._rules.record.gone("operator", dropped))
        return len(dropped)

    def drop_expired(self, now: float) -> None:
        """Make room by dropping expired messages [MQTT-3.3.2-5]."""
        if now < self._next_expiry or now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_SECONDS * self.n_messages
        expired = self.take_where(lambda d: d.message.is_expired(now))
        self._ledger.expired += self._rules.record.gone("expired", expired)
        self._next_expiry = min(
            (d.message.expires_at for d in self.waiting() if d.message.expires_at is not None),
            default=math.inf,
        )

    def oldest_at(self) -> float | None:
        """Return when the oldest message that waits has arrived, monotonic seconds; or None."""
        heads = [lane[0] for lane in self._lanes() if lane]
        heads += [one for one in (self._next_large(), self._next_parked()) if one is not None]
        return min((head.message.arrived_at for head in heads), default=None)

    def drop_older(self, arrived_before: float, now: float) -> None:
        """Drop what has waited too long, where anything has."""
        oldest_at = self.oldest_at()
        if oldest_at is not None and oldest_at < arrived_before:
            old = self.take_where(lambda d: d.message.arrived_at < arrived_before)
            self._rules.drop(self._link, self._ledger, "too_old", now, len(old))

    def drop_unstored(self, unstored: Container[Delivery]) -> None:
        """Drop those of some deliveries that wait here: the disk has not taken them."""
        for delivery in self.take_where(lambda d: d in unstored):
            self.refuse(delivery.message, "not_stored")

    def make_room_on_disk(self, delivery: Delivery, n_bytes: int) -> None:
        """Drop what has waited longest, if the rules say so: half of what waits at most."""
        n_left = (self.n_messages + 1) // 2
        while self._rules.drops_oldest and n_bytes > 0 and self.n_messages > n_left:
            oldest, source = self._oldest_for(delivery)
            if oldest is None:
                return
            self._evict(oldest, source)
            self.refuse(oldest.message, "not_stored")
            n_bytes -= oldest.message.size_bytes + MESSAGE_BYTES

    def refuse(self, message: Message, reason: str) -> None:
        """Count a message that does not wait here any more, or never did."""
        self._rules.drop(self._link, self._ledger, reason, message.arrived_at)

    def drop_all(self, reason: str) -> None:
        """Drop everything: the session has ended, or is gone; "" counts it as moved."""
        if not self.n_messages:
            return
        if reason:
            self._ledger.drop(reason, self.n_messages)
        else:
            self._ledger.moved += self.n_messages
        self._leave_backlog(self.waiting())
        for lane in self._lanes():
            lane.clear()
        self._held = None
        self.n_messages = 0
        self.n_bytes = 0
        self._rules.left(self)
        self.look_again_at = None
        self._passed_bytes = 0
        self._next_expiry = math.inf
        self._ask = True

    def _leave_backlog(self, deliveries: Iterable[Delivery]) -> None:
        """Subtract dropped messages from the backlog."""
        backlog = self._rules.backlog
        if backlog is not None:
            for delivery in deliveries:
                backlog.leave(delivery.message)

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        waiting = list(self.waiting())
        assert len(waiting) == self.n_messages, "n_messages"  # noqa: S101 (this is the check)
        assert all(d.is_waiting for d in waiting), "is_waiting"  # noqa: S101
        assert sum(d.message.size_bytes for d in waiting) == self.n_bytes  # noqa: S101
        assert (self in self._rules.over_half) == self._rules.is_over_half(self)  # noqa: S101
        if self._held is not None:
            self._held.check_invariants()
            if self._rules.keeps_topics:
                self._held.check_order(self.ready())
