"""Consistent hashing without exclusion: the baseline of the fabric (paper 001, 3.2.3.1).

A key belongs to the node whose point follows the key's own on a circle of hashes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

N_POINTS: Final = 256
"""The points of each node on the circle. With this number, the nodes' shares of the keys differ
by some 6 %."""


class ConsistentHashing:
    """The assignment of keys to nodes."""

    def __init__(self, nodes: Sequence[str]) -> None:
        circle = sorted((_hash(f"{name} {k}"), name) for name in nodes for k in range(N_POINTS))
        self._points = [point for point, _ in circle]
        self._nodes = [name for _, name in circle]

    def node_of(self, key: str) -> str:
        """Return the node of a key."""
        return self._nodes[bisect_right(self._points, _hash(key)) % len(self._nodes)]


def _hash(text: str) -> int:
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
