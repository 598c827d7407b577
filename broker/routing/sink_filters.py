"""The topic filters of a broker's sinks, which change while it runs.

They stand in a trie of their own, as a sink may have a hundred thousand of them, and the levels of
subscriptions need no room for it: without sinks it is empty, and is not walked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.mqtt.topics import matching_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.extensions import MessageSink


class _Node(dict[str, "_Node"]):
    """One topic level: a table of the next ones.

    Attributes:
        sinks: those that have the filter that ends here.
    """

    __slots__ = ("sinks",)

    def __init__(self) -> None:
        super().__init__()
        self.sinks: tuple[MessageSink, ...] = ()


class SinkFilters:
    """The sinks of a broker with their topic filters.

    Attributes:
        retaining: the sinks that are offered every message with RETAIN.
        has_sizes: some sink takes one size class alone.
    """

    def __init__(self) -> None:
        """Begin without sinks."""
        self._root = _Node()
        self._filters: dict[MessageSink, set[str]] = {}
        self._places: dict[MessageSink, int] = {}
        self.retaining: tuple[MessageSink, ...] = ()
        self.has_sizes = False

    def set_sinks(self, sinks: Iterable[MessageSink]) -> set[str]:
        """Have these sinks, in this order; return the topic filters of those that came or went."""
        wanted = tuple(sinks)
        self._places = {sink: place for place, sink in enumerate(wanted)}
        changed: set[str] = set()
        for sink in self._filters.keys() - self._places.keys():
            changed |= self._filters[sink]
            for topic_filter in tuple(self._filters[sink]):
                self.remove(sink, topic_filter)
            del self._filters[sink]
        for sink in wanted:
            if sink not in self._filters:
                self._filters[sink] = set()
                changed.update(sink.topic_filters)
                for topic_filter in sink.topic_filters:
                    self.add(sink, topic_filter)
        self.retaining = tuple(sink for sink in wanted if sink.takes_retained)
        self.has_sizes = any(sink.sizes for sink in wanted)
        return changed

    def add(self, sink: MessageSink, topic_filter: str) -> bool:
        """Give a sink one more filter; return False where it has it."""
        filters = self._filters[sink]
        if topic_filter in filters:
            return False
        filters.add(topic_filter)
        node = self._root
        for level in topic_filter.split("/"):
            child = node.get(level)
            if child is None:
                child = node[level] = _Node()
            node = child
        node.sinks = (*node.sinks, sink)
        return True

    def remove(self, sink: MessageSink, topic_filter: str) -> bool:
        """Take a filter from a sink; return False where it has none such."""
        filters = self._filters.get(sink, ())
        if not filters or topic_filter not in filters:
            return False
        self._filters[sink].remove(topic_filter)
        node = self._root
        path: list[tuple[_Node, str]] = []
        for level in topic_filter.split("/"):
            path.append((node, level))
            node = node[level]
        node.sinks = tuple(each for each in node.sinks if each is not sink)
        for parent, level in reversed(path):
            child = parent[level]
            if child or child.sinks:
                break
            del parent[level]
        return True

    def matching(self, topic: str) -> tuple[MessageSink, ...]:
        """Return the sinks that have a filter that matches a topic, each once, in their order."""
        if not self._root:
            return ()
        found: set[MessageSink] = set()
        for node in matching_nodes(self._root, topic):
            found.update(node.sinks)
        return tuple(sorted(found, key=self._places.__getitem__))
