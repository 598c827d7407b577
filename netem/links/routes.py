"""Shortest paths through a network of links. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class End:
    """A link as one of its hosts sees it.

    Attributes:
        device: the name of the link's device on this host.
        peer: the name of the other host.
        peer_address: the IPv4 address of the other host on this link.
        congestion_control: the congestion control of the TCP connections over it; None for the
            host's.
    """

    device: str
    peer: str
    peer_address: str
    congestion_control: str | None = None


def first_ends(start: str, ends: Mapping[str, Sequence[End]]) -> dict[str, End]:
    """Return the first link of the path to each other host that can be reached.

    Paths use the fewest links; of several such paths, the one over the links made first.
    """
    firsts: dict[str, End] = {}
    reached = deque([start])
    while reached:
        host = reached.popleft()
        for end in ends[host]:
            if end.peer != start and end.peer not in firsts:
                firsts[end.peer] = end if host == start else firsts[host]
                reached.append(end.peer)
    return firsts
