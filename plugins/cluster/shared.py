"""Shared subscriptions over several nodes: each message goes to one member, on whatever node.

Theory of operation. While a node has members of its own, its broker gives them what comes there,
and the cluster has no part in it. A node without members offers messages to a `GroupSink`, which
sends each to one node that has some, in proportion to their numbers. That node gives it to one of
its members. Where none can take it, as the last one has just left, or where the node has died
before it was done with the message, the message is *returned*: it goes to any node with members,
the own one among them.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap, deque
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Protocol, cast

from penstock.broker.counters import count
from penstock.broker.extensions import MessageSink, Receipt, SinkCounts, SinkRoutes, SinkRun
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.cluster.frames import Lane, packet
from penstock.plugins.cluster.node_sink import Shared

RETRY_SECONDS: Final = 0.2
"""The interval at which messages that were returned are sent on."""

MOST_RETURNED: Final = 10_000
"""Runs of returned messages that wait; further ones are dropped and counted."""


AWAY: Final = "away"
"""Why a member gets a message only if no other one has room: what it is sent waits for its client.
"""


class MemberSink(Protocol):
    """Takes messages for members: another node with some, or the mailbox of one."""

    def lacks(self) -> str:
        """Return why there is no room; "" where there is some."""

    def accept_shared(self, shared: Shared) -> None:
        """Take messages, each for one member."""


class GroupSink(MessageSink):
    """The route target of a shared subscription that has no member in this broker.

    Args:
        share: ``$share/{ShareName}/{filter}``.
        sinks: sinks of all nodes by their names, and of mailboxes.
        clock: returns monotonic seconds.

    Attributes:
        name: unique among the broker's sinks.
        topic_filters: the filter of the subscription.
        counts: the counts for the ledger; what is stored is in the counts of a `NodeSink`, too.
        members: nodes, each with the number of its members; and mailboxes.
        is_routed: whether it is among the broker's sinks.
    """

    def __init__(
        self, share: str, sinks: Mapping[str, MemberSink], clock: Callable[[], float]
    ) -> None:
        self.name = f"cluster.{share}"
        self.topic_filters = [share.split("/", 2)[2]]
        self.counts = SinkCounts()
        self.members: dict[str, int] = {}
        self.is_routed = False
        self._share = share
        self._sinks = sinks
        self._clock = clock
        self._turns: list[tuple[float, str]] = []
        """A heap of members that had room, by when the turn of each is."""
        self._now = 0.0
        self._aside: deque[str] = deque()
        """Those that had none."""

    def reserve(self, message: Message) -> str:  # noqa: ARG002 (MessageSink's form)
        """Say whether any node has room; none is held, as messages are taken at once."""
        return self._lacks()

    def _lacks(self) -> str:
        """Return why no node has room; "" where one has."""
        reason = "no_member"
        for node in self.members:
            reason = self._lack_of(node)
            if reason in {"", AWAY}:
                return ""
        return reason

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Send a message to a node; see `MessageSink`."""
        try:
            version, head, payload = packet(message, self._clock())
        except OSError:
            self.counts.matched += 1
            count(self.counts.dropped, "payload_lost")
            if receipt is not None:
                receipt.settle(ReasonCode.UNSPECIFIED_ERROR)
            return
        self._send(version, message.qos, 1, head + payload, receipt)

    def reserve_run(self, n_messages: int, n_bytes: int) -> bool:  # noqa: ARG002
        """Say whether any node has room, as `reserve`."""
        return not self._lacks()

    def accept_run(self, run: SinkRun, receipt: Receipt | None) -> None:
        """Send messages that came together to one node; see `MessageSink`."""
        reason = "" if run.qos else self._lacks()
        if reason:
            self.counts.matched += run.n_messages
            count(self.counts.dropped, reason, run.n_messages)
            return
        self._send(run.version, run.qos, run.n_messages, run.packets, receipt)

    def _send(
        self, version: int, qos: int, n_messages: int, packets: bytes, receipt: Receipt | None
    ) -> None:
        self.counts.matched += n_messages
        node = self.choose(n_messages)
        if node is None:
            count(self.counts.dropped, "no_member", n_messages)
            if receipt is not None:
                receipt.settle(0)
            return
        self.counts.stored += n_messages
        done = _nothing if receipt is None else receipt.settle
        shared = Shared(Lane(version, self._share), qos, n_messages, packets, done)
        self._sinks[node].accept_shared(shared)

    def join(self, node: str, n_members: int) -> None:
        """Take note of a node, or a mailbox, and of the number of its members."""
        if node not in self.members:
            heappush(self._turns, (self._now, node))
        self.members[node] = n_members

    def remove(self, node: str) -> None:
        """Forget a node, or a mailbox, that has no members any more."""
        if self.members.pop(node, 0):
            self._turns = [one for one in self._turns if one[1] != node]
            heapify(self._turns)
            self._aside = deque(one for one in self._aside if one != node)

    def choose(self, n_messages: int = 1) -> str | None:
        """Return the node that gets some messages; those with room come first, None without any.

        Each has turns in proportion to its number of members, spread evenly. There may be thousands
        of mailboxes: each message looks at one member that had no room, whether it has some again.
        """
        turns, aside = self._turns, self._aside
        if aside:
            aside.rotate()
            if not self._lack_of(aside[0]):
                heappush(turns, (self._now, aside.popleft()))
        while turns:
            self._now, node = turns[0]
            if not self._lack_of(node):
                heapreplace(turns, (self._now + n_messages / self.members[node], node))
                return node
            heappop(turns)
            aside.append(node)
        for _ in range(len(aside)):
            if self._lack_of(aside[0]) == AWAY:
                return aside[0]
            aside.rotate()
        return next((node for node in aside if node in self._sinks), None)

    def _lack_of(self, node: str) -> str:
        return self._sinks[node].lacks() if node in self._sinks else "no_member"


def _nothing(_reason_code: int) -> None:
    """Nobody waits for it."""


def awaited(waiting: list[asyncio.Future[None]]) -> Callable[[int], None]:
    """Return what is called once messages are done; a future that has that is among `waiting`."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(future)

    def done(_: int) -> None:
        if not future.done():
            future.set_result(None)

    return done


class Groups:
    """The shared subscriptions of the cluster, as one node has them.

    Args:
        own: name of the own node.
        sinks: sinks of all nodes by their names, of which that of the own one is no route target.
        routes: adds and removes sinks.
        clock: returns monotonic seconds.

    Attributes:
        mailboxes: further members by their names.
        n_returned: messages that were returned.
        dropped: of those, what was dropped, by reason.
    """

    def __init__(
        self,
        own: str,
        sinks: Mapping[str, MemberSink],
        routes: SinkRoutes,
        clock: Callable[[], float],
    ) -> None:
        self.mailboxes: dict[str, MemberSink] = {}
        self.n_returned = 0
        self.dropped: dict[str, int] = {}
        self._own = own
        self._sinks = ChainMap(cast("dict[str, MemberSink]", sinks), self.mailboxes)
        self._routes = routes
        self._clock = clock
        self._groups: dict[str, GroupSink] = {}
        self._returned: deque[Shared] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def change(self, share: str, node: str, n_members: int) -> None:
        """Take note of how many members a shared subscription has on a node."""
        group = self._groups.get(share)
        if group is None:
            group = self._groups[share] = GroupSink(share, self._sinks, self._clock)
        if n_members:
            group.join(node, n_members)
        else:
            group.remove(node)
        was_routed = group.is_routed
        group.is_routed = bool(group.members) and self._own not in group.members
        if group.is_routed and not was_routed:
            self._routes.add(group)
        elif was_routed and not group.is_routed:
            self._routes.remove(group)
        if not group.members:
            del self._groups[share]

    def left(self, node: str) -> None:
        """Take note that a node has no members any more."""
        for share in [s for s, group in self._groups.items() if node in group.members]:
            self.change(share, node, 0)

    def give_back(self, shared: Shared) -> None:
        """Send messages to other members, soon."""
        self.n_returned += shared.n_messages
        if len(self._returned) >= MOST_RETURNED:
            count(self.dropped, "too_many", shared.n_messages)
            shared.done(0)
            return
        self._returned.append(shared)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RETRY_SECONDS, self._pass_on)

    def _pass_on(self) -> None:
        self._timer = None
        returned, self._returned = self._returned, deque()
        for shared in returned:
            group = self._groups.get(shared.lane.share)
            node = None if group is None else group.choose(shared.n_messages)
            if node is None:  # as for a shared subscription that nobody has
                count(self.dropped, "no_member", shared.n_messages)
                shared.done(0)
            else:
                done = partial(self._passed_on, shared)
                self._sinks[node].accept_shared(shared._replace(done=done))

    def _passed_on(self, shared: Shared, reason_code: int) -> None:
        """Take note that messages are stored for a node, or try again."""
        if reason_code < 0x80:
            shared.done(0)
        else:
            self.give_back(shared)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
