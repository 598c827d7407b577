"""Size class of a message: large or small (paper 002, "Message size classification")."""

from __future__ import annotations

from collections.abc import Mapping

from broker.mqtt.topics import matches


class SizeClasses:
    """threshold_s for every topic.

    The first filter that matches a topic decides, in the order in which they were given; a
    topic that none matches has the general threshold. First match, not most specific: what
    stands first wins, and nobody has to rank ``a/+/c`` against ``a/b/#``.
    """

    __slots__ = ("_by_topic", "_threshold_s")

    def __init__(self, threshold_s: int | None, by_topic: Mapping[str, int | None]) -> None:
        """Keep the thresholds.

        Args:
            threshold_s: payload bytes above which a message is large; None for never.
            by_topic: valid topic filter to threshold_s, in order of precedence; None for
                never.
        """
        self._threshold_s = threshold_s
        self._by_topic = tuple(by_topic.items())

    def threshold_s(self, topic: str) -> int | None:
        """Return payload bytes above which messages of `topic` are large; None for never."""
        for topic_filter, threshold_s in self._by_topic:
            if matches(topic_filter, topic):
                return threshold_s
        return self._threshold_s

    def is_large(self, topic: str, payload_bytes: int) -> bool:
        """Say whether a payload is large: strictly longer than threshold_s (paper 002)."""
        threshold_s = self.threshold_s(topic)
        return threshold_s is not None and payload_bytes > threshold_s
