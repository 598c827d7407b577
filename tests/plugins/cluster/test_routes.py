"""What nodes know of each other's subscriptions, whichever way it comes to them."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product

import pytest

from penstock.plugins.cluster.routes import OtherRoutes, OwnRoutes


class Engine:
    """The engine's state and its stream of changes, after so many steps of a history.

    Attributes:
        epochs: of the members.
        routes: of each member.
    """

    def __init__(self, history: list[tuple[str, str, int, tuple[tuple[str, int], ...]]]) -> None:
        self.epochs: dict[str, int] = {}
        self.routes: dict[str, dict[str, int]] = {}
        for kind, node, epoch, ops in history:
            if kind == "join":
                self.epochs[node] = epoch
                self.routes[node] = {}
            elif kind == "leave":
                del self.epochs[node], self.routes[node]
            else:
                for topic_filter, n in ops:
                    if n:
                        self.routes[node][topic_filter] = n
                    else:
                        self.routes[node].pop(topic_filter, None)


class Reader:
    """Another node, which takes what the engine has and its changes."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, int]] = {}
        self.routes = OtherRoutes(self._told)

    def _told(self, node: str, topic_filter: str, n: int) -> None:
        assert self.seen.setdefault(node, {}).get(topic_filter, 0) != n
        self.seen[node][topic_filter] = n

    def take(self, change: tuple[str, str, int, tuple[tuple[str, int], ...]]) -> None:
        """Take one change of the stream."""
        kind, node, epoch, ops = change
        if kind == "join":
            self.join(node, epoch)
        elif kind == "leave":
            self.leave(node, epoch)
        else:
            self.routes.changed(node, epoch, ops)

    def join(self, node: str, epoch: int) -> None:
        """Take the beginning of an epoch, which ends the one before."""
        there = self.routes.members.get(node)
        if there is not None and there.epoch < epoch:
            self.leave(node, there.epoch)
        self.routes.joined(node, epoch)

    def leave(self, node: str, epoch: int) -> None:
        """Take the end of an epoch."""
        if self.routes.left(node, epoch):
            self.seen.pop(node, None)

    def replace(self, node: str, epoch: int, routes: dict[str, int]) -> None:
        """Take what the engine has of a node."""
        self.join(node, epoch)
        self.routes.replaced(node, epoch, routes)

    def check(self, engine: Engine) -> None:
        """See that it has what the engine has, and was told of exactly that."""
        members = self.routes.members
        assert {node: there.epoch for node, there in members.items()} == engine.epochs
        assert {node: there.routes for node, there in members.items()} == engine.routes
        told = {
            node: {topic_filter: n for topic_filter, n in filters.items() if n}
            for node, filters in self.seen.items()
        }
        assert {node: one for node, one in told.items() if one} == {
            node: one for node, one in engine.routes.items() if one
        }


A: list[tuple[str, str, int, tuple[tuple[str, int], ...]]] = [
    ("join", "a", 1, ()),
    ("routes", "a", 1, (("x", 1), ("$share/g/y", 2))),
    ("routes", "a", 1, (("x", 0),)),
    ("leave", "a", 1, ()),
    ("join", "a", 3, ()),
    ("routes", "a", 3, (("x", 1), ("z", 1))),
    ("routes", "a", 3, (("$share/g/y", 1), ("z", 0))),
]
B: list[tuple[str, str, int, tuple[tuple[str, int], ...]]] = [
    ("join", "b", 2, ()),
    ("routes", "b", 2, (("x", 1),)),
    ("leave", "b", 2, ()),
]


def histories() -> list[list[tuple[str, str, int, tuple[tuple[str, int], ...]]]]:
    """Return every way in which the steps of two nodes may come one after the other."""
    found = []
    for places in {tuple(sorted(some)) for some in permutations(range(len(A) + len(B)), len(B))}:
        others, own = iter(A), iter(B)
        found.append([next(own if at in places else others) for at in range(len(A) + len(B))])
    return found


def test_every_reader_has_what_the_engine_has_whenever_it_has_read() -> None:
    """The stream from a place, the members later, each one's routes later still; then the rest.

    A stream that is read again from any place before changes nothing.
    """
    for history in histories():
        states = [Engine(history[:at]) for at in range(len(history) + 1)]
        end = len(history)
        for after in range(0, end + 1, 2):
            for at_members, at_a, at_b in product(range(after, end + 1), repeat=3):
                if at_a < at_members or at_b < at_members:
                    continue
                reader = Reader()
                for node, epoch in states[at_members].epochs.items():
                    routes = states[at_a if node == "a" else at_b].routes.get(node, {})
                    reader.replace(node, epoch, routes)
                for change in history[after:]:
                    reader.take(change)
                reader.check(states[end])
                for change in history[after:]:
                    reader.take(change)
                reader.check(states[end])


def test_a_reader_that_has_missed_changes_takes_the_state_in_place_of_its_own() -> None:
    """Whatever it had before."""
    for history in histories()[::7]:
        for known, after in product(range(len(history) + 1), repeat=2):
            reader = Reader()
            for change in history[:known]:
                reader.take(change)
            now = Engine(history[: max(known, after)])
            for node, there in list(reader.routes.members.items()):
                if node not in now.epochs:
                    reader.leave(node, there.epoch)
            for node, epoch in now.epochs.items():
                reader.replace(node, epoch, now.routes[node])
            reader.check(now)
            for change in history[max(known, after) :]:
                reader.take(change)
            reader.check(Engine(history))


@pytest.mark.parametrize("most", [1, 2, 100])
def test_what_is_told_is_what_sessions_have(most: int) -> None:
    """A filter once, however many have it; a shared one with its members, at each change."""
    own = OwnRoutes()
    told: Counter[str] = Counter()
    steps = [("a", 1), ("a", 1), ("$share/g/a", 1), ("a", -1), ("$share/g/a", 1), ("a", -1)]
    n_told = []
    for topic_filter, step in steps:
        (own.subscribed if step > 0 else own.unsubscribed)(topic_filter)
        ops: list[tuple[str, int]] = []
        while some := own.take(most):
            ops += [(name, int(n)) for name, n in some]
        told.update(dict.fromkeys(told, 0))
        for name, n in ops:
            told[name] = n
        n_told.append(len(ops))
    assert n_told == [1, 0, 1, 0, 1, 1]
    assert told == {"a": 0, "$share/g/a": 2}
    own.tell_all()
    assert own.take(9) == [("$share/g/a", 2)]
