"""Topic filters as sets of topics: intersections, and which filter covers another.

The intersection of two topic filters is always one topic filter, or empty. So a union of filters is
a set of filters of which none covers another, and needs no topics. A filter that begins with a
wildcard does not match topics that begin with ``$`` [MQTT-4.7.2-1], and ``a/#`` matches ``a``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from penstock.broker.mqtt.topics import drop_levels, node_of

_Levels: TypeAlias = "dict[str | None, Any]"
"""A node of the tree: level to the node behind it, and None to the filter that ends here."""

_WILDCARDS: Final = ("+", "#")

_CANONICAL: Final = {"+/#": "#", "/#": "/+/#"}


def canonical(topic_filter: str) -> str:
    """Return the one form that stands for all filters of the same topics.

    Only two pairs of filters match the same topics, as no topic is empty.
    """
    return _CANONICAL.get(topic_filter, topic_filter)


def intersection(one: str, other: str) -> str | None:
    """Return the filter of the topics that two filters match; None where there are none."""
    ones, others = one.split("/"), other.split("/")
    if (ones[0] in _WILDCARDS and others[0].startswith("$")) or (
        others[0] in _WILDCARDS and ones[0].startswith("$")
    ):
        return None
    has_rest, has_others_rest = ones[-1] == "#", others[-1] == "#"
    if has_rest:
        ones.pop()
    if has_others_rest:
        others.pop()
    common = []
    for level, other_level in zip(ones, others, strict=False):
        if other_level in ("+", level):
            common.append(level)
        elif level == "+":
            common.append(other_level)
        else:
            return None
    n_common = len(common)
    if (len(ones) > n_common and not has_others_rest) or (len(others) > n_common and not has_rest):
        return None
    common += ones[n_common:] or others[n_common:]
    if has_rest and has_others_rest:
        common.append("#")
    # "/#" and "+" would only have the empty topic in common, which does not exist.
    return canonical("/".join(common)) or None


def covers(wide: str, narrow: str) -> bool:
    """Say whether a filter matches every topic that another one matches."""
    return intersection(wide, narrow) == canonical(narrow)


class FilterTree:
    """A set of canonical topic filters with a search for those that cover another one.

    A search visits a part of the tree, not the whole set.
    """

    def __init__(self) -> None:
        self._root: _Levels = {}
        self._filters: set[str] = set()

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._filters

    def add(self, topic_filter: str) -> None:
        """Add a filter; nothing happens where the set has it."""
        node_of(self._root, topic_filter)[None] = topic_filter
        self._filters.add(topic_filter)

    def discard(self, topic_filter: str) -> None:
        """Remove a filter, if the set has it."""
        if topic_filter not in self._filters:
            return
        self._filters.discard(topic_filter)
        del node_of(self._root, topic_filter)[None]
        drop_levels(self._root, topic_filter)

    def covering(self, topic_filter: str) -> Iterator[str]:
        """Yield the filters that cover a filter, including itself where the set has it."""
        levels = topic_filter.split("/")
        has_rest = levels[-1] == "#"
        if has_rest:
            levels.pop()
        is_hidden = bool(levels) and levels[0].startswith("$")
        waiting = [(self._root, 0)]
        while waiting:
            node, depth = waiting.pop()
            takes_wildcards = depth > 0 or not is_hidden
            if takes_wildcards and "#" in node:
                yield node["#"][None]
            if depth == len(levels):
                if not has_rest and None in node:
                    yield node[None]
                continue
            level = levels[depth]
            if level in node:
                waiting.append((node[level], depth + 1))
            if level != "+" and takes_wildcards and "+" in node:
                waiting.append((node["+"], depth + 1))

    def covered_by(self, topic_filter: str) -> Iterator[str]:
        """Yield the filters that a filter covers, including itself where the set has it."""
        levels = topic_filter.split("/")
        has_rest = levels[-1] == "#"
        if has_rest:
            levels.pop()
        waiting = [(self._root, 0)]
        while waiting:
            node, depth = waiting.pop()
            if depth < len(levels) and levels[depth] != "+":
                if levels[depth] in node:
                    waiting.append((node[levels[depth]], depth + 1))
                continue
            if depth >= len(levels):
                if None in node:
                    yield node[None]
                if not has_rest:
                    continue
            for level, behind in node.items():
                is_further = level is not None and (level != "#" or depth >= len(levels))
                if is_further and (depth or not str(level).startswith("$")):
                    waiting.append((behind, depth + 1))
