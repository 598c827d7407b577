"""The topic filters of a broker's sinks, which change while it runs.

They stand in a trie of their own, as a sink may have a hundred thousand of them, and the levels of
subscriptions need no room for it: without sinks it is empty, and is not walked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.mqtt.topics import drop_levels, matching_nodes, node_of

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink

SWEPT_AT_ONCE: Final = 100
"""So many filters of a sink that was removed leave the trie at once, some 4 us each: another node
of a cluster may have a hundred thousand of them."""


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

    A sink that is removed gets nothing more from then on. Of very many filters, some leave the trie
    with each later call.

    Attributes:
        retaining: the sinks that are offered every message with RETAIN.
        has_sizes: some sink takes, or has taken, one size class alone.
    """

    def __init__(self) -> None:
        """Begin without sinks."""
        self._root = _Node()
        self._filters: dict[MessageSink, set[str]] = {}
        self._places: dict[MessageSink, int] = {}
        self._n_added = 0
        self._gone: dict[MessageSink, set[str]] = {}
        self.retaining: tuple[MessageSink, ...] = ()
        self.has_sizes = False

    def add_sink(self, sink: MessageSink) -> None:
        """Have one more sink, with its topic filters."""
        if sink in self._gone:
            self._sweep(sink, len(self._gone[sink]))
        self._n_added += 1
        self._places[sink] = self._n_added
        self._filters[sink] = set()
        for topic_filter in sink.topic_filters:
            self.add(sink, topic_filter)
        if sink.takes_retained:
            self.retaining = (*self.retaining, sink)
        self.has_sizes |= sink.sizes is not None

    def remove_sink(self, sink: MessageSink) -> set[str] | None:
        """Have a sink no more.

        Returns:
            The topic filters that it had; None for very many.
        """
        filters = self._gone[sink] = self._filters.pop(sink)
        del self._places[sink]
        self.retaining = tuple(each for each in self.retaining if each is not sink)
        if len(filters) > SWEPT_AT_ONCE:
            return None
        had = set(filters)
        self._sweep(sink, len(filters))
        return had

    def add(self, sink: MessageSink, topic_filter: str) -> bool:
        """Give a sink one more filter; return False where it has it."""
        self._sweep_some()
        filters = self._filters[sink]
        if topic_filter in filters:
            return False
        filters.add(topic_filter)
        node = node_of(self._root, topic_filter)
        node.sinks = (*node.sinks, sink)
        return True

    def remove(self, sink: MessageSink, topic_filter: str) -> bool:
        """Take a filter from a sink; return False where it has none such."""
        self._sweep_some()
        filters = self._filters.get(sink)
        if filters is None or topic_filter not in filters:
            return False
        filters.remove(topic_filter)
        self._take_off(sink, topic_filter)
        return True

    def matching(self, topic: str) -> tuple[MessageSink, ...]:
        """Return the sinks that have a filter that matches a topic, each once, in their order."""
        self._sweep_some()
        if not self._root:
            return ()
        found: set[MessageSink] = set()
        for node in matching_nodes(self._root, topic):
            found.update(node.sinks)
        if self._gone:
            found -= self._gone.keys()
        return tuple(sorted(found, key=self._places.__getitem__))

    def _take_off(self, sink: MessageSink, topic_filter: str) -> None:
        """Take a filter of a sink off the trie, with the levels that lead to it alone."""
        node = node_of(self._root, topic_filter)
        node.sinks = tuple(each for each in node.sinks if each is not sink)
        drop_levels(self._root, topic_filter, lambda node: node or node.sinks)

    def _sweep_some(self) -> None:
        if self._gone:
            self._sweep(next(iter(self._gone)), SWEPT_AT_ONCE)

    def _sweep(self, sink: MessageSink, n_most: int) -> None:
        """Take filters of a sink that was removed off the trie."""
        filters = self._gone[sink]
        for _ in range(min(n_most, len(filters))):
            self._take_off(sink, filters.pop())
        if not filters:
            del self._gone[sink]
