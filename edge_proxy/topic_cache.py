"""What the proxy knows of a topic: its name and how long a message of it may be to be small."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import read_topic

MAX_TOPICS: Final = 10_000
"""Topics known at a time, some 2 MB; a broker with more has the gate asked again."""

LONGEST_KNOWN: Final = 256
"""Bytes of a topic that is known: with the longest there are it would be 1.3 GB."""


class KnownTopic(NamedTuple):
    """One Topic Name.

    Attributes:
        name: Topic Name.
        threshold_s: payload bytes above which a message is large; `sys.maxsize` for never.
    """

    name: str
    threshold_s: int


class TopicCache:
    """Topics by their bytes, for all clients."""

    def __init__(self, threshold_s: Callable[[str], int | None]) -> None:
        """Know no topic.

        Args:
            threshold_s: the gate's question of the same name.
        """
        self._threshold_s = threshold_s
        self._known: dict[bytes, KnownTopic] = {}

    def look_up(self, topic_bytes: bytes) -> KnownTopic:
        """Return what is known of a topic.

        Raises:
            MalformedPacketError: it is no Topic Name.
            ProtocolError: it is empty, as it is behind a Topic Alias.
        """
        known = self._known.get(topic_bytes)
        if known is None:
            known = self._new(topic_bytes)
            if len(topic_bytes) <= LONGEST_KNOWN:
                if len(self._known) >= MAX_TOPICS:
                    self._known.clear()
                self._known[topic_bytes] = known
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
