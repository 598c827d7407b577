"""The placement of physical queues on nodes (paper 001, 3.3.2.2).

The nodes stand in a circle. Each ring has one physical queue for each node, its *home*. The copies
of a physical queue are on the nodes that follow its home, in the direction of its ring, and its
*master* is the first of them that is there. Where a node is away, the queue of one ring is taken
over by the node behind it, and that of a ring of the other direction by the node before it: the
load of nodes that fail together goes to both sides.

A node that joins brings physical queues of its own, and no other physical queue gets another home.
Only the copies of the queues whose homes are near to it move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Direction: TypeAlias = Literal[1, -1]

CLOCKWISE: Final = 1
COUNTER_CLOCKWISE: Final = -1
COUNTER_ROTATING: Final[tuple[Direction, ...]] = (CLOCKWISE, COUNTER_CLOCKWISE)
"""Directions of the two rings."""
DEFAULT_COPIES: Final = 3
"""The copies of each message: with three, two nodes may fail (paper 001, 3.2.3.1)."""


class RingQueue(NamedTuple):
    """A physical queue of the fabric.

    Attributes:
        ring: the number of its ring, from 0.
        home: the name of the node that is its master while all nodes are there.
    """

    ring: int
    home: str

    def __str__(self) -> str:
        """Return the paper's name of it, such as ``Q1-A``."""
        return f"Q{self.ring + 1}-{self.home}"


class Rings:
    """The placement of physical queues on nodes.

    The placement is immutable: nodes that join or leave give other rings.

    Args:
        nodes: the names in the order of the circle, at least as many as `copies`.
        directions: the direction of each ring, 1 or -1.
        copies: the number of copies of each message.

    Raises:
        ValueError: says what is wrong.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        directions: Sequence[Direction] = COUNTER_ROTATING,
        copies: int = DEFAULT_COPIES,
    ) -> None:
        if copies < 1:
            raise ValueError(f"copies: read {copies}; allowed: 1 or more")
        if len(nodes) < copies:
            raise ValueError(f"nodes: read {len(nodes)}; allowed: {copies} or more, one a copy")
        twice = [name for name in nodes if nodes.count(name) > 1]
        if twice:
            raise ValueError(f"nodes: read {twice[0]} twice; allowed: each name once")
        self.nodes: Final = tuple(nodes)
        self.directions: Final = tuple(directions)
        self.copies: Final = copies
        self.queues: Final = tuple(
            RingQueue(ring, home) for home in nodes for ring in range(len(directions))
        )
        self._places = {name: place for place, name in enumerate(nodes)}

    def takeover_order(self, queue: RingQueue) -> tuple[str, ...]:
        """Return all nodes in the order in which they become master of a physical queue."""
        n, home = len(self.nodes), self._places[queue.home]
        step = self.directions[queue.ring]
        return tuple(self.nodes[(home + step * k) % n] for k in range(n))

    def holders(self, queue: RingQueue, away: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes that are to have a copy, the master first.

        Fewer than `copies` where too few nodes are there; none where none is.
        """
        there = [name for name in self.takeover_order(queue) if name not in away]
        return tuple(there[: self.copies])

    def masters(self, away: Collection[str] = ()) -> dict[RingQueue, str]:
        """Return the master of each physical queue; those that no node can hold are left out."""
        found = ((queue, self.holders(queue, away)) for queue in self.queues)
        return {queue: holders[0] for queue, holders in found if holders}
