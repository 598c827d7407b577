"""A cache of topics: the name, and the size up to which a message is small."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import read_topic

MAX_TOPICS: Final = 10_000
"""Cached topics, some 2 MB; with more topics the gate is asked again."""

LONGEST_KNOWN: Final = 256
"""Bytes of a cached topic: with the longest possible ones the cache would take 1.3 GB."""


class KnownTopic(NamedTuple):
    """One Topic Name.

    Attributes:
        name: Topic Name.
        threshold_s: payload bytes above which a message is large; `sys.maxsize` for never.
    """

    name: str
    threshold_s: int


class TopicCache:
    """Topics by their encoded names, for all clients.

    Attributes:
        known: entries of topics that were looked up before, by their encoded names.
    """

    def __init__(self, threshold_s: Callable[[str], int | None]) -> None:
        """Begin with an empty cache.

        Args:
            threshold_s: the gate's method of that name.
        """
        self._threshold_s = threshold_s
        self.known: dict[bytes, KnownTopic] = {}

    def look_up(self, topic_bytes: bytes) -> KnownTopic:
        """Return the entry of a topic.

        Raises:
            MalformedPacketError: it is not a valid Topic Name.
            ProtocolError: it is empty, as with a Topic Alias.
        """
        known = self.known.get(topic_bytes)
        if known is None:
            known = self._new(topic_bytes)
            if len(topic_bytes) <= LONGEST_KNOWN:
                if len(self.known) >= MAX_TOPICS:
                    self.known.clear()
                self.known[topic_bytes] = known
        return known

    def _new(self, topic_bytes: bytes) -> KnownTopic:
        if not topic_bytes:
            raise ProtocolError(
                "PUBLISH with an empty topic; allowed: a Topic Name, as Topic Alias Maximum is 0 "
                "[MQTT-3.1.2-27]",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        name = read_topic(topic_bytes)
        threshold_s = self._threshold_s(name)
        return KnownTopic(name, sys.maxsize if threshold_s is None else threshold_s)
