"""What waits for one subscriber.

Theory of operation. Messages of one topic never overtake each other [MQTT-4.6.0-6]; messages
of different topics may. An outbox therefore keeps four places:

* `_ready0` and `_ready`: QoS 0, and QoS 1 and 2, that may leave now, in order of arrival.
  They are apart because a full inflight window holds only the second.
* `_large`: large messages, oldest first. Only the oldest is ever offered to the gate, so that
  withheld messages leave one at a time, with a fresh decision after each.
* `_behind`: for the topic of each message in `_large`, what came after it on that topic.

Small messages pass a waiting large one, but for each large message that could leave at most
as many payload bytes as it has itself: then the gate is asked about it first. A busy stream of
small messages so delays a large one and cannot starve it.

An outbox has no clock, sends nothing and knows no connection. Its owner asks `take` for the
next delivery while the connection has room, and at `look_again_at`.
"""

from __future__ import annotations

import math
import sys
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broker.delivery import NO_QUEUE, Delivery, by_sequence
from broker.extensions import Decision, DeliveryGate, LearningGate, SubscriberGate, Verdict
from broker.ledger import Ledger
from broker.link import Link
from broker.message import Message

if TYPE_CHECKING:
    from broker.session_journal import DeliveryJournal

MIN_LOOK_AGAIN_SECONDS: Final = 0.001
"""A gate that wants to look again at once, for a rounding error maybe, is not asked sooner."""


MIN_SWEEP_MESSAGES: Final = 64
"""While fewer messages wait, those of them that have expired are not looked for."""


class OpenGate:
    """The gate of a broker without withholding: no message is large, all may go."""

    def threshold_s(self, topic: str) -> int | None:  # noqa: ARG002 (a gate's signature)
        """Return None: nothing is large."""
        return None

    def decide(
        self,
        message: Message,  # noqa: ARG002
        link: Link,  # noqa: ARG002
        sojourn: float,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> Verdict:
        """Let every message go."""
        return Verdict(deliver=True, reason="no gate")

    def forget(self, link: Link) -> None:
        """Keep nothing, so forget nothing."""


class Outbox:
    """The messages that wait for one subscriber, in the order in which they may leave.

    Invariants, tested by `check_invariants`: a topic is a key of `_behind` exactly when a
    message of it is in `_large`, and at most one message of a topic is in `_large`; no topic
    in `_behind` has a message in a ready place that came after; `n_messages` and
    `n_bytes` are the sums over all places.

    Attributes:
        n_messages: messages that wait.
        n_bytes: payload bytes that wait.
        look_again_at: monotonic seconds at which the gate wants to be asked again, or None.
        last_decision: the gate's newest answer, or None before the first.
        gate_errors_total: times the gate raised.
        journal: told of each QoS 1 and 2 delivery that comes or leaves; None where nothing of
            the session is stored. Every way in and out passes `_enter` and `_remove`.
    """

    __slots__ = (
        "_ask",
        "_behind",
        "_drops_oldest",
        "_gate",
        "_large",
        "_ledger",
        "_link",
        "_max_bytes",
        "_max_messages",
        "_next_expiry",
        "_on_gate_error",
        "_passed_bytes",
        "_ready",
        "_ready0",
        "_sequence",
        "_sweep_at",
        "gate_errors_total",
        "journal",
        "last_decision",
        "look_again_at",
        "n_bytes",
        "n_messages",
    )

    def __init__(
        self,
        link: Link,
        ledger: Ledger,
        *,
        max_messages: int,
        max_bytes: int,
        drops_oldest: bool = False,
        gate: DeliveryGate,
        on_gate_error: Callable[[Exception], None],
    ) -> None:
        """Make an empty outbox.

        Args:
            link: the subscriber's path, passed to the gate.
            ledger: what expired, was dropped, withheld or released is counted in it.
            max_messages: limit of waiting messages.
            max_bytes: limit of waiting payload bytes.
            drops_oldest: at a limit, what has waited longest goes, and not what comes.
            gate: asked about large messages.
            on_gate_error: told of what a gate raised; the message is then delivered.
        """
        self._link = link
        self._ledger = ledger
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._drops_oldest = drops_oldest
        self._gate = gate
        self._on_gate_error = on_gate_error
        self._ready0: deque[Delivery] = NO_QUEUE
        self._ready: deque[Delivery] = NO_QUEUE
        self._large: list[Delivery] = []
        self._behind: dict[str, deque[Delivery]] = {}
        self._sequence = 0
        self._passed_bytes = 0
        self._next_expiry = math.inf
        self._sweep_at = 2 * MIN_SWEEP_MESSAGES
        self._ask = True
        self.n_messages = 0
        self.n_bytes = 0
        self.look_again_at: float | None = None
        self.last_decision: Decision | None = None
        self.gate_errors_total = 0
        self.journal: DeliveryJournal | None = None

    @property
    def n_withheld(self) -> int:
        """Messages held by the gate: refused at least once, or of a topic behind such a one."""
        total = 0
        for delivery in self._large:
            if delivery.withheld_since is not None:
                total += 1 + len(self._behind[delivery.message.topic])
        return total

    @property
    def is_withholding(self) -> bool:
        """Whether the large message that is next to leave has been refused by the gate."""
        return bool(self._large) and self._large[0].withheld_since is not None

    def why_nothing(self) -> str:
        """Say why `take` yields nothing: a few words for reports."""
        if not self.n_messages:
            return "empty"
        if self._ready and not self._ready0 and not self._large:
            return "inflight window full"
        if self.is_withholding:
            return f"withheld: {self.last_decision.verdict.reason if self.last_decision else ''}"
        return "waiting for room"

    def waiting(self) -> Iterator[Delivery]:
        """Yield every delivery that waits, in no promised order."""
        yield from self._ready0
        yield from self._ready
        yield from self._held()

    def add(self, delivery: Delivery) -> bool:
        """Let a message wait.

        Returns:
            False where the outbox is full: the message was dropped and counted.
        """
        message = delivery.message
        if self._is_full(message):
            self._drop_expired(message.arrived_at)
            if self._drops_oldest:
                self._push_out_for(delivery)
            if self._is_full(message):
                self._ledger.drop("queue_full")
                return False
        elif self.n_messages >= self._sweep_at:
            self._drop_expired(message.arrived_at)
            self._sweep_at = 2 * max(self.n_messages, MIN_SWEEP_MESSAGES)
        expires_at = message.expires_at
        if expires_at is not None and expires_at < self._next_expiry:
            self._next_expiry = expires_at
        behind = self._behind.get(message.topic)
        ready = self._ready if delivery.qos else self._ready0
        is_of_run = ready and ready[-1].sequence == self._sequence
        if behind is not None or message.is_large or not is_of_run:
            self._sequence += 1
        delivery.sequence = self._sequence
        self._enter(delivery)
        if behind is not None:
            behind.append(delivery)
        else:
            self._place(delivery)
        return True

    def _is_full(self, message: Message) -> bool:
        return (
            self.n_messages >= self._max_messages
            or self.n_bytes + message.size_bytes > self._max_bytes
        )

    def _push_out_for(self, delivery: Delivery) -> None:
        """Drop what has waited longest until there is room for a delivery.

        QoS 0 that waits for room goes first, and QoS 0 pushes out nothing but QoS 0. None of
        it was sent, so no packet identifier stands for it and no order is lost.
        """
        message = delivery.message
        if message.size_bytes > self._max_bytes:
            return
        while self._is_full(message):
            source = self._ready0 or self._ready
            large = self._large[0] if self._large else None
            oldest = source[0] if source else None
            if large is not None and not self._ready0:
                is_older = oldest is None or large.sequence < oldest.sequence
                oldest = large if is_older else oldest
            if oldest is None or (oldest.qos and not delivery.qos):
                return
            if oldest is large:
                self._take_large(large)
            else:
                self._remove(source.popleft())
            self._ledger.drop("pushed_out")

    def is_large(self, message: Message) -> bool:
        """Say whether a message is large for this subscriber."""
        gate = self._gate
        if not message.is_large or not isinstance(gate, SubscriberGate):
            return message.is_large
        try:
            return gate.is_large(message, self._link)
        except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
            self.gate_errors_total += 1
            self._on_gate_error(error)
            return True

    def _place(self, delivery: Delivery) -> None:
        """Put a delivery, whose topic nothing holds back, where it belongs.

        Its size class is that of the listener by which the subscriber is, or was last, connected.
        """
        message = delivery.message
        if self.is_large(message):
            self._behind[message.topic] = deque()
            insort(self._large, delivery, key=by_sequence)
        elif delivery.qos:
            if self._ready is NO_QUEUE:
                self._ready = deque()
            self._ready.append(delivery)
        else:
            if self._ready0 is NO_QUEUE:
                self._ready0 = deque()
            self._ready0.append(delivery)

    def link_changed(self) -> None:
        """Ask the gate again at the next `take`: there is a new RTT estimate."""
        self._ask = True
        if isinstance(self._gate, LearningGate):
            try:
                self._gate.observe(self._link)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
                self.gate_errors_total += 1
                self._on_gate_error(error)

    def take(self, now: float, *, has_quota: bool = True) -> Delivery | None:
        """Return the next delivery that may be sent now, or None.

        Args:
            now: monotonic seconds.
            has_quota: whether one more QoS 1 or 2 message may be inflight.

        Returns:
            A delivery that has left the outbox; the caller sends it. A large one leaves
            alone: the caller asks again once the connection has taken it.
        """
        while self.n_messages:
            source = self._next_ready(has_quota=has_quota)
            large = self._large[0] if self._large else None
            if large is not None and (has_quota or not large.qos):
                is_turn = source is None or self._passed_bytes >= large.message.payload_bytes
                if is_turn and self._may_leave(large, now):
                    self._take_large(large)
                    if self._has_expired(large, now):
                        continue
                    return large
            if source is None:
                return None
            delivery = source.popleft()
            self._remove(delivery)
            if self._has_expired(delivery, now):
                continue
            if large is not None:
                self._passed_bytes += delivery.message.payload_bytes
            return delivery
        return None

    def _next_ready(self, *, has_quota: bool) -> deque[Delivery] | None:
        """Return the ready place whose first message came first, of those that may leave."""
        ready0, ready = self._ready0, self._ready
        if not ready or not has_quota:
            return ready0 or None
        if not ready0 or ready[0].sequence < ready0[0].sequence:
            return ready
        return ready0

    def _may_leave(self, large: Delivery, now: float) -> bool:
        """Ask the gate, unless nothing has changed since it was last asked."""
        again = self.look_again_at
        if not self._ask and large.withheld_since is not None and (again is None or now < again):
            return False
        expires_at = large.message.expires_at
        if expires_at is not None and now >= expires_at:
            return True
        message, since = large.message, large.withheld_since
        sojourn = 0.0 if since is None else now - since
        verdict = self._decide(message, sojourn, now)
        self._ask = False
        self.last_decision = Decision(verdict, message.topic, message.payload_bytes, sojourn, now)
        self._passed_bytes = 0
        if verdict.deliver:
            self.look_again_at = None
            if large.withheld_since is not None:
                self._ledger.released_total += 1
            return True
        if large.withheld_since is None:
            large.withheld_since = now
            self._ledger.withheld_total += 1
        again = verdict.look_again_at
        if again is not None:
            again = max(again, now + MIN_LOOK_AGAIN_SECONDS)
        if expires_at is not None:
            again = expires_at if again is None else min(expires_at, again)
        self.look_again_at = again
        return False

    def lets(self, message: Message, now: float) -> bool:
        """Say whether the gate would let a large message go to this subscriber now."""
        return self._decide(message, 0.0, now).deliver

    def _decide(self, message: Message, sojourn: float, now: float) -> Verdict:
        try:
            return self._gate.decide(message, self._link, sojourn, now)
        except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
            self.gate_errors_total += 1
            self._on_gate_error(error)
            return Verdict(deliver=True, reason="the gate failed")

    def _take_large(self, large: Delivery) -> None:
        """Remove the oldest large message and free what waited behind it on its topic."""
        del self._large[0]
        self._remove(large)
        self.look_again_at = None
        self._passed_bytes = 0
        self._ask = True
        behind = self._behind.pop(large.message.topic)
        while behind:
            delivery = behind.popleft()
            self._place(delivery)
            if delivery.message.topic in self._behind:
                self._behind[delivery.message.topic] = behind
                return

    def _enter(self, delivery: Delivery) -> None:
        delivery.is_waiting = True
        self.n_messages += 1
        self.n_bytes += delivery.message.size_bytes
        if self.journal is not None and delivery.qos:
            self.journal.changed(delivery)

    def _remove(self, delivery: Delivery) -> None:
        delivery.is_waiting = False
        self.n_messages -= 1
        self.n_bytes -= delivery.message.size_bytes
        if self.journal is not None and delivery.qos:
            self.journal.changed(delivery)

    def _has_expired(self, delivery: Delivery, now: float) -> bool:
        if delivery.is_expired(now):
            self._ledger.expired += 1
            return True
        return False

    def take_where(
        self, is_wanted: Callable[[Delivery], bool], n_messages: int = sys.maxsize
    ) -> list[Delivery]:
        """Take out messages that are for somebody else now, the oldest first.

        Args:
            is_wanted: says of a delivery whether it goes.
            n_messages: how many at most. What stands before them is looked at each time.

        Returns:
            Deliveries that have left the outbox; the caller books them.
        """
        taken: list[Delivery] = []
        for ready in (self._ready, self._ready0):
            passed: list[Delivery] = []
            while ready and len(taken) < n_messages:
                delivery = ready.popleft()
                if is_wanted(delivery):
                    self._remove(delivery)
                    taken.append(delivery)
                else:
                    passed.append(delivery)
            if passed:
                ready.extendleft(reversed(passed))
        if self._large and len(taken) < n_messages:
            held = sorted(self._held(), key=by_sequence)
            chosen = [d for d in held if is_wanted(d)][: n_messages - len(taken)]
            if chosen:
                self._keep_of_held([d for d in held if d not in chosen])
                taken += chosen
        return sorted(taken, key=by_sequence)

    def drop_qos0(self, reason: str) -> None:
        """Drop what waits at QoS 0: the connection it was for has ended."""
        n_before = self.n_messages
        for delivery in self._ready0:
            self._remove(delivery)
        self._ready0.clear()
        if self._large:
            self._keep_of_held([d for d in self._held() if d.qos])
        self._ledger.drop(reason, n_before - self.n_messages)

    def _drop_expired(self, now: float) -> None:
        """Make room by dropping what has expired, if anything has [MQTT-3.3.2-5]."""
        if now < self._next_expiry:
            return
        n_before = self.n_messages
        for ready in (self._ready0, self._ready):
            kept = [d for d in ready if not d.is_expired(now)]
            if len(kept) < len(ready):
                for delivery in ready:
                    if delivery.is_expired(now):
                        self._remove(delivery)
                ready.clear()
                ready.extend(kept)
        if self._large:
            self._keep_of_held([d for d in self._held() if not d.is_expired(now)])
        self._ledger.expired += n_before - self.n_messages
        self._next_expiry = min(
            (d.message.expires_at for d in self.waiting() if d.message.expires_at is not None),
            default=math.inf,
        )

    def _held(self) -> Iterator[Delivery]:
        """Yield the large messages and what waits behind them, in no promised order."""
        yield from self._large
        for behind in self._behind.values():
            yield from behind

    def _keep_of_held(self, kept: list[Delivery]) -> None:
        """Place anew those of `_held` that stay; the others have left."""
        for delivery in self._held():
            self._remove(delivery)
        self._large.clear()
        self._behind.clear()
        self._ask = True
        self.look_again_at = None
        for delivery in sorted(kept, key=by_sequence):
            self._enter(delivery)
            behind = self._behind.get(delivery.message.topic)
            if behind is not None:
                behind.append(delivery)
            else:
                self._place(delivery)

    def drop_all(self, reason: str) -> None:
        """Drop everything: the session has ended."""
        self._ledger.drop(reason, self.n_messages)
        self._clear()

    def _clear(self) -> None:
        self._ready0.clear()
        self._ready.clear()
        self._large.clear()
        self._behind.clear()
        self.n_messages = 0
        self.n_bytes = 0
        self.look_again_at = None
        self._passed_bytes = 0
        self._next_expiry = math.inf
        self._ask = True

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        waiting = list(self.waiting())
        assert len(waiting) == self.n_messages, "n_messages"  # noqa: S101 (this is the check)
        n_bytes = sum(d.message.size_bytes for d in waiting)
        assert n_bytes == self.n_bytes, "n_bytes"  # noqa: S101
        large_topics = [d.message.topic for d in self._large]
        assert sorted(large_topics) == sorted(self._behind), "_behind"  # noqa: S101
        assert len(set(large_topics)) == len(large_topics), "_large"  # noqa: S101
        sequences = [d.sequence for d in self._large]
        assert sequences == sorted(sequences), "oldest first"  # noqa: S101
        held = {d.message.topic: d.sequence for d in self._large}
        for delivery in (*self._ready0, *self._ready):
            first = held.get(delivery.message.topic)
            assert first is None or delivery.sequence < first, "order"  # noqa: S101
