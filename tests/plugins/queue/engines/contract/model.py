"""What a queue with several groups does, as plainly as it can be said.

It holds everything in dictionaries, looks at all messages for each answer, and knows no storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class ModelMessage:
    """A message that was stored.

    Attributes:
        payload: of it.
        key: None for none.
        arrived_at: seconds.
        visible_at: seconds; later than its arrival for a delayed one.
    """

    payload: bytes
    key: str | None
    arrived_at: float
    visible_at: float


@dataclass
class ModelLease:
    """A receive that was not settled.

    Attributes:
        handle: of the newest receive.
        ends_at: seconds.
        is_held: whether a receiver has it; not so while it waits behind a `nack`.
    """

    handle: str
    ends_at: float
    is_held: bool = True


@dataclass
class ModelGroup:
    """A group.

    Attributes:
        is_lease: its kind.
        is_ordered: whether the messages of a key wait for each other.
        waiting: places of messages that it is not done with.
        leases: by place.
        counts: receives by place.
        position: by physical queue, of an offsets group.
    """

    is_lease: bool
    is_ordered: bool
    waiting: set[tuple[int, int]] = field(default_factory=set)
    leases: dict[tuple[int, int], ModelLease] = field(default_factory=dict)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    position: dict[int, int] = field(default_factory=dict)


class Model:
    """One logical queue.

    Attributes:
        now: seconds.
        next: offset of the next message, by physical queue.
        messages: those that exist, by physical queue and offset.
        groups: by name.
        windows: when a deduplication identifier was stored.
    """

    def __init__(
        self, physical_queues: int, retention_seconds: float, window_seconds: float, now: float
    ) -> None:
        self.now = now
        self.retention_seconds = retention_seconds
        self.window_seconds = window_seconds
        self.next = dict.fromkeys(range(physical_queues), 0)
        self.messages: dict[tuple[int, int], ModelMessage] = {}
        self.groups: dict[str, ModelGroup] = {}
        self.windows: dict[bytes, float] = {}

    def create_group(self, name: str, *, is_lease: bool, is_ordered: bool, is_late: bool) -> None:
        """Create a group at the first message or behind the last."""
        group = self.groups[name] = ModelGroup(is_lease, is_ordered)
        self.seek(group, is_late=is_late)

    def seek(self, group: ModelGroup, *, is_late: bool) -> None:
        """Move a group to the first message or behind the last."""
        group.waiting = set() if is_late else set(self.messages)
        group.leases.clear()
        first = {
            number: min((at for n, at in self.messages if n == number), default=following)
            for number, following in self.next.items()
        }
        group.position = dict(self.next) if is_late else first
        self.cut()

    def store(self, number: int, message: ModelMessage, dedup: bytes) -> int | None:
        """Store a message; return its offset, or None for a duplicate."""
        if dedup:
            if self.now - self.windows.get(dedup, -1e9) < self.window_seconds:
                return None
            self.windows[dedup] = self.now
        place = (number, self.next[number])
        self.next[number] += 1
        self.messages[place] = message
        for group in self.groups.values():
            group.waiting.add(place)
        return place[1]

    def is_visible(self, group: ModelGroup, place: tuple[int, int]) -> bool:
        """Say whether a message is neither leased nor delayed."""
        lease = group.leases.get(place)
        is_due = self.messages[place].visible_at <= self.now
        return is_due and (lease is None or lease.ends_at <= self.now)

    def firsts(self, group: ModelGroup, number: int) -> list[tuple[int, int]]:
        """Return what a lease group can receive of a physical queue, one message of each key."""
        busy: set[str] = set()
        found: list[tuple[int, int]] = []
        for place in sorted(group.waiting):
            key = self.messages[place].key
            if place[0] != number or (group.is_ordered and key in busy):
                continue
            if key is not None:
                busy.add(key)
            if self.is_visible(group, place):
                found.append(place)
        return found

    def check_received(
        self, group: ModelGroup, number: int, n_max: int, received: list[tuple[int, int]]
    ) -> None:
        """Hold the places of one answer against what may be received.

        Raises:
            AssertionError: it holds other messages, or holds them in another order.
        """
        firsts = self.firsts(group, number)
        if not group.is_ordered:
            assert received == firsts[:n_max], (received, firsts)
            return
        # Behind the first message of a key, an answer may hold those that follow it.
        assert len(received) <= n_max
        assert len(set(received)) == len(received)
        waiting = sorted(place for place in group.waiting if place[0] == number)
        by_key: dict[str, list[tuple[int, int]]] = {}
        for place in received:
            assert self.is_visible(group, place)
            key = self.messages[place].key
            if key is not None:
                by_key.setdefault(key, []).append(place)
        for key, places in by_key.items():
            of_key = [place for place in waiting if self.messages[place].key == key]
            assert places == of_key[: len(places)], (key, places, of_key)
        if len(received) < n_max:
            assert set(firsts) <= set(received), (firsts, received)

    def current(self, group: ModelGroup, place: tuple[int, int], handle: str) -> bool:
        """Say whether a handle names the newest receive of a message that is not settled."""
        lease = group.leases.get(place)
        return place in group.waiting and lease is not None and lease.handle == handle

    def settle(self, group: ModelGroup, place: tuple[int, int]) -> None:
        """Be done with a message."""
        group.waiting.discard(place)
        group.leases.pop(place, None)
        self.cut()

    def commit(self, group: ModelGroup, number: int, offset: int) -> None:
        """Be done with everything below an offset."""
        group.position[number] = max(group.position[number], offset)
        group.waiting = {
            (n, at) for n, at in group.waiting if n != number or at >= group.position[number]
        }
        self.cut()

    def remove(self, places: set[tuple[int, int]]) -> None:
        """Let messages leave the queue, whoever waits for them."""
        for place in places:
            self.messages.pop(place, None)
            for group in self.groups.values():
                group.waiting.discard(place)
                group.leases.pop(place, None)

    def cut(self) -> None:
        """Let what every group is done with leave."""
        if self.groups:
            self.remove(
                set(self.messages).difference(*(each.waiting for each in self.groups.values()))
            )

    def passes(self, seconds: float) -> None:
        """Let time pass, and do what it asks for."""
        self.now += seconds
        self.remove(
            {
                place
                for place, message in self.messages.items()
                if self.now - message.arrived_at > self.retention_seconds
            }
        )

    def restart(self) -> None:
        """Forget all leases."""
        for group in self.groups.values():
            group.leases.clear()

    def leased(self, group: ModelGroup) -> int:
        """Return how many messages receivers have."""
        return sum(each.is_held and each.ends_at > self.now for each in group.leases.values())

    def held(self, number: int) -> Mapping[int, bytes]:
        """Return the payloads of a physical queue by offset."""
        return {at: self.messages[n, at].payload for n, at in sorted(self.messages) if n == number}
