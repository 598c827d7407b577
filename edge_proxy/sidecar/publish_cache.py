"""Caches what is read of PUBLISH packets: topics for all clients, properties for each connection.

Most packets of a stream have a known topic, and the properties of the packet before, which are
recognised by their bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import read_topic
from penstock.edge_proxy.sidecar.config import ProxyLimits

MAX_TOPICS: Final = 10_000
"""How many topics are cached, in some 2 MB. With more topics the gate is asked again."""

LONGEST_KNOWN: Final = 256
"""Bytes of the longest cached topic: with the longest possible ones the cache would take 1.3 GB."""

_KNOWN_BYTES: Final = 128
"""Bytes of the longest properties that are compared with those of the packet before."""

_NO_PROPERTIES: Final[dict[str, Any]] = {}


class KnownTopic(NamedTuple):
    """A topic that was read before.

    Attributes:
        threshold_s: payload bytes above which a message is large; `sys.maxsize` for never.
    """

    name: str
    threshold_s: int


class TopicCache:
    """Caches topics for all clients.

    Attributes:
        known: topics that were read before, by their encoded names.
    """

    def __init__(self, threshold_s: Callable[[str], int | None]) -> None:
        self._threshold_s = threshold_s
        self.known: dict[bytes, KnownTopic] = {}

    def look_up(self, topic_bytes: bytes) -> KnownTopic:
        """Return a topic.

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


class PublishProperties:
    """Reads the properties of one connection's packets.

    Attributes:
        newest: bytes of the short properties that were last read and valid, with their length.
    """

    __slots__ = ("_limits", "newest")

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self.newest = b""

    def read(self, data: bytes, start: int, stop: int) -> dict[str, Any]:
        """Return the properties of a PUBLISH.

        Raises:
            PeerError: they are malformed, not allowed, or too many (quota exceeded).
        """
        if stop - start <= 1:
            return _NO_PROPERTIES
        limits = self._limits
        if stop - start > limits.properties_bytes:
            n_bytes, _ = read_variable_byte_integer(data, start)
            if n_bytes > limits.properties_bytes:
                raise ProtocolError("properties of PUBLISH", ReasonCode.QUOTA_EXCEEDED)
        properties, _ = read_publish_properties(data, start, limits.properties)
        if "topic_alias" in properties:
            raise ProtocolError(
                "PUBLISH with a Topic Alias; allowed: none, as Topic Alias Maximum is 0 "
                "[MQTT-3.1.2-27]",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if stop - start <= _KNOWN_BYTES:
            self.newest = data[start:stop]
        return properties
