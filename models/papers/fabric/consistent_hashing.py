"""Consistent hashing without exclusion: the baseline of the fabric (paper 001, 3.2.3.1).

A key belongs to the node whose point follows the key's own on a circle of hashes. A node that does
not answer keeps its keys until its failure is detected; then they belong to the nodes that follow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final

DEFAULT_POINTS: Final = 256
"""The points of each node on the circle. With this number, the nodes' shares of the keys differ
by some 6 %."""


class ConsistentHashing:
    """The assignment of keys to nodes.

    Args:
        nodes: the names of the nodes, each once.
        points: the number of points of each node on the circle.

    Raises:
        ValueError: there is no node.
    """

    def __init__(self, nodes: Sequence[str], points: int = DEFAULT_POINTS) -> None:
        if not nodes:
            raise ValueError("nodes: read none; allowed: one or more")
        circle = sorted((_hash(f"{name} {k}"), name) for name in nodes for k in range(points))
        self._points = [point for point, _ in circle]
        self._nodes = [name for _, name in circle]

    def node_of(self, key: str, away: Collection[str] = ()) -> str | None:
        """Return the node of a key; None where all are away.

        Args:
            key: the key of a message.
            away: nodes that were declared away.
        """
        n = len(self._nodes)
        first = bisect_right(self._points, _hash(key))
        for k in range(n):
            name = self._nodes[(first + k) % n]
            if name not in away:
                return name
        return None


def _hash(text: str) -> int:
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
