"""Classes of messages: large or small (paper 002, "Message size classification"), and priority.

Priority messages leave before all others whatever their size; see
`penstock.broker.outbox.priority_outbox`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from penstock.broker.mqtt.topics import matches

MAX_TOPICS: Final = 10_000
"""Topics whose class is cached, so that a publisher that makes up topics cannot fill the memory."""

LONGEST_KNOWN: Final = 256
"""Characters of a cached topic: 10,000 of the longest possible ones would take 650 MB."""


class FirstTopics:
    """Topics whose messages leave before all others."""

    __slots__ = ("_known", "_topic_filters")

    def __init__(self, topic_filters: Sequence[str]) -> None:
        """Take valid topic filters."""
        self._topic_filters = tuple(topic_filters)
        self._known: dict[str, bool] = {}

    def has(self, topic: str) -> bool:
        """Say whether a topic matches one of the filters."""
        known = self._known.get(topic)
        if known is None:
            known = any(matches(topic_filter, topic) for topic_filter in self._topic_filters)
            if len(topic) <= LONGEST_KNOWN:
                if len(self._known) >= MAX_TOPICS:
                    self._known.clear()
                self._known[topic] = known
        return known


class SizeClasses:
    """threshold_s for every topic and every listener of subscribers.

    The first topic filter that matches decides, in the given order and whatever the listener. Where
    none matches, the subscriber's listener decides; then the general threshold.

    Attributes:
        has_listeners: whether any listener has a threshold of its own.
    """

    __slots__ = ("_by_listener", "_by_topic", "_least", "_threshold_s", "has_listeners")

    def __init__(
        self,
        threshold_s: int | None,
        by_topic: Mapping[str, int | None],
        by_listener: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        """Take the thresholds.

        Args:
            threshold_s: payload bytes above which a message is large; None for never.
            by_topic: valid topic filter to threshold_s, in order of precedence; None for never.
            by_listener: name of a listener to the threshold_s of its subscribers.
        """
        self._threshold_s = threshold_s
        self._by_topic = tuple(by_topic.items())
        self._by_listener = dict(by_listener)
        self.has_listeners = bool(by_listener)
        limits = [limit for limit in (threshold_s, *by_listener.values()) if limit is not None]
        self._least = min(limits, default=None)

    def least_threshold_s(self, topic: str) -> int | None:
        """Return the least threshold_s of `topic` for any subscriber; None for never large."""
        return self._of(topic, self._least)

    def threshold_s(self, topic: str, listener: str = "") -> int | None:
        """Return payload bytes above which messages of `topic` are large; None for never.

        Args:
            topic: Topic Name.
            listener: name of the subscriber's listener; "" for one without a threshold of its own.
        """
        return self._of(topic, self._by_listener.get(listener, self._threshold_s))

    def _of(self, topic: str, otherwise: int | None) -> int | None:
        for topic_filter, threshold_s in self._by_topic:
            if matches(topic_filter, topic):
                return threshold_s
        return otherwise

    def is_large(self, topic: str, payload_bytes: int, listener: str = "") -> bool:
        """Say whether a payload is large: strictly longer than threshold_s (paper 002)."""
        threshold_s = self.threshold_s(topic, listener)
        return threshold_s is not None and payload_bytes > threshold_s
