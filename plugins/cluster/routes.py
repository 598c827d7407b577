"""Who subscribes to what, on this node and on the others; pure.

Theory of operation. Each node tells the others its topic filters: one that any session has, once;
and each shared subscription with its number of members. The engine keeps them, and a stream of
changes. A node takes the engine's state as it is while others change it, and then every change
since before that began. A change says what is there after it, so that one which the state had
already does no harm, and after the last change every node has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from penstock.broker.mqtt.topics import SHARE_PREFIX, parse_share

Op: TypeAlias = tuple[str, int | str]
"""A topic filter, and how many members it has from now on: 1 for a plain one, 0 for none. Or what
`penstock.plugins.cluster.mail_routes` tells of a session, as texts."""

UNROUTED: Final = ("$SYS/", "$queue/")
"""What begins so is each node's own."""


def is_routed(topic_filter: str) -> bool:
    """Say whether other nodes have messages for a filter."""
    if topic_filter.startswith(SHARE_PREFIX):
        topic_filter = parse_share(topic_filter).topic_filter
    return not topic_filter.startswith(UNROUTED)


class OwnRoutes:
    """Counts the subscriptions of this node's sessions.

    Attributes:
        counts: sessions that have each topic filter, without those that are kept.
        kept: returns the subscriptions of kept sessions that this node has, by names as in
            `mail_routes`, with origins.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.kept: Callable[[], Iterable[Op]] = tuple
        self._changed: dict[str, None] = {}
        self._values: dict[str, str] = {}  # of changes of kept sessions

    def subscribed(self, topic_filter: str) -> None:
        """Count one session more."""
        n = self.counts[topic_filter] = self.counts.get(topic_filter, 0) + 1
        if n == 1 or topic_filter.startswith(SHARE_PREFIX):
            self._changed[topic_filter] = None

    def unsubscribed(self, topic_filter: str) -> None:
        """Count one session less."""
        self.counts[topic_filter] -= 1
        if not self.counts[topic_filter]:
            del self.counts[topic_filter]
        if topic_filter not in self.counts or topic_filter.startswith(SHARE_PREFIX):
            self._changed[topic_filter] = None

    def take(self, most: int) -> list[Op]:
        """Return at most so many changes that others have not been told, which they then are."""
        some = list(islice(self._changed, most))
        for topic_filter in some:
            del self._changed[topic_filter]
        return [(one, self._value(one)) for one in some]

    def _value(self, topic_filter: str) -> int | str:
        if topic_filter in self._values:
            return self._values.pop(topic_filter)
        n = self.counts.get(topic_filter, 0)
        return n if topic_filter.startswith(SHARE_PREFIX) else min(n, 1)

    @property
    def n_untold(self) -> int:
        """Return how many changes others have not been told."""
        return len(self._changed)

    def tell(self, topic_filters: Iterable[str]) -> None:
        """Have some filters told once more."""
        self._changed.update(dict.fromkeys(topic_filters))

    def change_kept(self, name: str, value: str) -> None:
        """Take note of a change of a kept session."""
        self._values[name] = value
        self._changed[name] = None

    def tell_again(self, ops: Iterable[Op]) -> None:
        """Have changes told once more, as they are now."""
        for name, value in ops:
            if isinstance(value, str):
                self._values.setdefault(name, value)
            self._changed[name] = None

    def tell_all(self) -> None:
        """Have everything told once more: the others have forgotten this node."""
        self.tell(self.counts)
        self.tell_again(self.kept())


class Member:
    """Another node.

    Attributes:
        epoch: of the node.
        routes: its topic filters, to their members.
    """

    __slots__ = ("epoch", "routes")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.routes: dict[str, int] = {}


class OtherRoutes:
    """Holds the routes of all other nodes.

    Args:
        on_route: is told of each change: node, topic filter, members; not of the end of a node.

    Attributes:
        members: the other nodes.
    """

    def __init__(self, on_route: Callable[[str, str, int], None]) -> None:
        self.members: dict[str, Member] = {}
        self._on_route = on_route

    def joined(self, node: str, epoch: int) -> bool:
        """Take note of a node, an earlier epoch of which has `left`; return whether it is new."""
        there = self.members.get(node)
        if there is not None and there.epoch >= epoch:
            return False
        self.members[node] = Member(epoch)
        return True

    def left(self, node: str, epoch: int) -> bool:
        """Forget a node and its routes, untold; return whether it was there, by this epoch."""
        there = self.members.get(node)
        if there is None or there.epoch > epoch:
            return False
        del self.members[node]
        return True

    def changed(self, node: str, epoch: int, ops: Sequence[tuple[str, int]]) -> None:
        """Take a change of a node; one of another epoch than the node's counts for nothing."""
        there = self.members.get(node)
        if there is None or there.epoch != epoch:
            return
        for topic_filter, n in ops:
            if there.routes.get(topic_filter, 0) != n:
                if n:
                    there.routes[topic_filter] = n
                else:
                    del there.routes[topic_filter]
                self._on_route(node, topic_filter, n)

    def replaced(self, node: str, epoch: int, routes: Mapping[str, int]) -> None:
        """Take a node that has `joined` as the engine has it, in place of what is known of it."""
        there = self.members[node]
        if there.epoch == epoch:
            gone = [(one, 0) for one in there.routes if one not in routes]
            self.changed(node, epoch, [*gone, *routes.items()])
