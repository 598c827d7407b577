"""The large messages of one outbox, and the messages that wait behind them on their topics.

Theory of operation. For each topic with a large message, its messages form a *chain*, the oldest
large one first; with `ordering: none` the chain has only the large ones. The first messages of all
chains, sorted by arrival, may be offered to the gate.

A chain may be *parked*: its first message, large or small, waits for the other lane
(`penstock.broker.outbox.lane_order`), and the gate is not asked about it.

Each large message has a sojourn of its own, from the first time that the gate refused it or another
one before it. So the bound of a policy applies to each, however many wait. The sojourn stops while
the subscriber is away.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from penstock.broker.message import Message
from penstock.broker.outbox.delivery import NO_QUEUE, NOTHING_BEFORE, Delivery, by_sequence


class LargeMessages:
    """The large messages of one outbox.

    Invariants, tested by `check_invariants`: `firsts` and `parked` are the first messages of all
    chains, each in order of arrival; so is each chain, and it has messages of its topic alone.

    Attributes:
        firsts: the oldest large message of each topic that is not parked, in order of arrival.
        parked: the first message of each chain that is.
        chains: topic to its waiting messages: the one that is in `firsts` or `parked`, and those
            after it.
        away_since: monotonic seconds since which the subscriber is away; None while it is
            connected.
    """

    __slots__ = ("_unmarked", "away_since", "chains", "firsts", "parked")

    def __init__(self) -> None:
        self.firsts: list[Delivery] = []
        self.parked: list[Delivery] = []
        self.chains: dict[str, deque[Delivery]] = {}
        self.away_since: float | None = None
        self._unmarked: deque[Delivery] = NO_QUEUE

    @property
    def n_withheld(self) -> int:
        """Messages that wait for the gate."""
        return sum(
            len(self.chains[large.message.topic])
            for large in self.firsts
            if large.withheld_since is not None
        )

    def waiting(self) -> Iterator[Delivery]:
        """Yield every message, in order of arrival."""
        return heapq.merge(*self.chains.values(), key=by_sequence)

    def put_first(self, large: Delivery, chain: deque[Delivery]) -> None:
        """Add a chain with its first message."""
        self.chains[large.message.topic] = chain
        insort(self.firsts, large, key=by_sequence)

    def park(self, chain: deque[Delivery]) -> None:
        """Add a chain whose first message waits for the other lane."""
        self.chains[chain[0].message.topic] = chain
        insort(self.parked, chain[0], key=by_sequence)

    def parked_of(self, topic: str) -> Delivery | None:
        """Return the first message of a topic, if its chain is parked."""
        chain = self.chains.get(topic)
        if not chain or not self.parked:
            return None
        at = bisect_left(self.parked, chain[0].sequence, key=by_sequence)
        is_parked = at < len(self.parked) and self.parked[at] is chain[0]
        return chain[0] if is_parked else None

    def unpark(self, first: Delivery) -> deque[Delivery]:
        """Remove and return a parked chain by its first message."""
        self._forget_first(first)
        return self.chains.pop(first.message.topic)

    def insert(self, delivery: Delivery) -> None:
        """Put a message into the chain of its topic, by its number.

        Where it becomes the first, the chain is parked.
        """
        chain = self.chains[delivery.message.topic]
        first = chain[0]
        insort(chain, delivery, key=by_sequence)
        if chain[0] is delivery:
            self._forget_first(first)
            insort(self.parked, delivery, key=by_sequence)
        if delivery.after is not None:
            self.await_mark(delivery)

    def _forget_first(self, first: Delivery) -> None:
        for heads in (self.firsts, self.parked):
            at = bisect_left(heads, first.sequence, key=by_sequence)
            if at < len(heads) and heads[at] is first:
                del heads[at]
                return

    def await_mark(self, large: Delivery) -> None:
        """Note a large message that has just come: its sojourn has not begun."""
        if self._unmarked is NO_QUEUE:
            self._unmarked = deque()
        self._unmarked.append(large)

    def mark(self, refused: Delivery, now: float) -> list[Message]:
        """Begin the sojourn of each message without one: the gate holds the first of them.

        Args:
            refused: that first one.
            now: monotonic seconds.

        Returns:
            The messages whose sojourn began, without that first one.
        """
        unmarked = self._unmarked
        behind: list[Message] = []
        while unmarked or refused.withheld_since is None:
            large = unmarked.popleft() if unmarked else refused
            if large.is_waiting and large.withheld_since is None:
                large.withheld_since = now
                if large is not refused:
                    behind.append(large.message)
        return behind

    def count_absence(self, now: float) -> None:
        """Subtract the time for which the subscriber was away from each sojourn."""
        if self.away_since is None:
            return
        for chain in self.chains.values():
            for delivery in chain:
                if delivery.withheld_since is not None:
                    delivery.withheld_since += now - self.away_since
        self.away_since = None

    def release(self, large: Delivery) -> deque[Delivery]:
        """Remove one of `firsts` or `parked`; return the messages behind it."""
        self._forget_first(large)
        unmarked = self._unmarked  # in order of arrival, which is also the order of leaving
        while unmarked and not unmarked[0].is_waiting:
            unmarked.popleft()
        if large.after is not None:
            large.after = NOTHING_BEFORE
        chain = self.chains.pop(large.message.topic)
        chain.popleft()
        return chain

    def take_where(
        self, is_wanted: Callable[[Delivery], bool], n_messages: int
    ) -> tuple[list[Delivery], list[deque[Delivery]]]:
        """Take out messages wherever they are, the oldest first where `n_messages` limits them.

        Without that limit, they are visited topic by topic, beginning with the oldest large
        message.

        Args:
            is_wanted: says whether a message is to be taken.
            n_messages: how many at most.

        Returns:
            (the taken messages, the rests of chains whose first message is gone).
        """
        may_all_go = n_messages >= sum(map(len, self.chains.values()))
        # A client with thousands of chains that reconnects must not cost 30 ms each time.
        heads = itertools.chain(self.firsts, self.parked)
        oldest_first = (self.chains[first.message.topic] for first in heads)
        held = itertools.chain.from_iterable(oldest_first) if may_all_go else self.waiting()
        taken = list(itertools.islice(filter(is_wanted, held), n_messages))
        gone = set(taken)
        rests: list[deque[Delivery]] = []
        for topic, n_gone in Counter(delivery.message.topic for delivery in taken).items():
            chain = self.chains[topic]
            first = chain[0]
            passed: list[Delivery] = []
            n_left = n_gone
            while n_left:
                delivery = chain.popleft()
                if delivery in gone:
                    n_left -= 1
                else:
                    passed.append(delivery)
            chain.extendleft(reversed(passed))
            if first in gone:
                del self.chains[topic]
                rests.append(chain)
        if rests:
            self.firsts = [large for large in self.firsts if large not in gone]
            self.parked = [first for first in self.parked if first not in gone]
        if taken and self._unmarked:
            self._unmarked = deque(large for large in self._unmarked if large not in gone)
        return taken, rests

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        firsts = sorted((chain[0] for chain in self.chains.values()), key=by_sequence)
        heads = list(heapq.merge(self.firsts, self.parked, key=by_sequence))
        assert firsts == heads, "oldest first, one of a topic"  # noqa: S101 (the check)
        for topic, chain in self.chains.items():
            assert {d.message.topic for d in chain} == {topic}, "chains"  # noqa: S101
            sequences = [d.sequence for d in chain]
            assert sequences == sorted(sequences), "order of a topic"  # noqa: S101

    def check_order(self, ready: Iterable[Delivery]) -> None:
        """Raise AssertionError where a ready message came after a held one of its topic."""
        heads = itertools.chain(self.firsts, self.parked)
        since = {first.message.topic: first.sequence for first in heads}
        for delivery in ready:
            first = since.get(delivery.message.topic)
            assert first is None or delivery.sequence < first, "order"  # noqa: S101
