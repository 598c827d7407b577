"""Topic Aliases: integers that stand for a topic on one network connection (MQTT 5.0, 3.3.2.3.4).

Theory of operation. A client fills a table of `topic_alias_maximum` places. Towards a subscriber
the broker chooses aliases itself, to save bytes: the first message of a topic with an alias is
three bytes longer, each later one is shorter by the topic less three bytes. While there are free
aliases, every topic of more than three bytes gets one. Then the least recently used topic loses its
alias, but only to a topic that has come twice since. So where a client gets more topics in turn
than it has aliases, the aliases stay, and do not change with every message.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode

PROPERTY_BYTES: Final = 3
"""The property takes so many bytes; a topic that is not longer gains nothing by an alias."""

_NO_TOPICS: Final[dict[int, bytes]] = {}
"""Clients that have used no Topic Alias, which are most, share this empty table."""


class IncomingAliases:
    """The topics of the Topic Aliases of one client's connection.

    Invariant: no alias is above the maximum or 0.

    Attributes:
        n_bytes: the bytes that the topics have.
    """

    __slots__ = ("_maximum", "_topics", "n_bytes")

    def __init__(self, maximum: int) -> None:
        """Make an empty table.

        Args:
            maximum: Topic Alias Maximum that the client was sent; 0 for none.
        """
        self._maximum = maximum
        self._topics = _NO_TOPICS
        self.n_bytes = 0

    def resolve(self, alias: int, topic_bytes: bytes) -> bytes:
        """Return the topic of a PUBLISH with a Topic Alias.

        A topic that comes with the alias is the alias's topic from now on.

        Args:
            alias: the alias as received.
            topic_bytes: Topic Name in UTF-8, as received; b"" where the alias replaces it.

        Raises:
            ProtocolError: topic alias invalid: above the maximum [MQTT-3.2.2-17] or 0
                [MQTT-3.3.2-8]; protocol error: an alias without a topic (3.3.4).
        """
        if topic_bytes:
            if not 0 < alias <= self._maximum:
                raise self._wrong(alias)
            self.n_bytes += len(topic_bytes) - len(self._topics.get(alias, b""))
            if not self._topics:
                self._topics = {}
            self._topics[alias] = topic_bytes
            return topic_bytes
        known = self._topics.get(alias)
        if known is None:
            raise self._wrong(alias)
        return known

    def _wrong(self, alias: int) -> ProtocolError:
        code = ReasonCode.TOPIC_ALIAS_INVALID
        if not self._maximum:
            allowed = "none, Topic Alias Maximum is 0"
        elif 0 < alias <= self._maximum:
            allowed = "one that was sent with a topic before"
            code = ReasonCode.PROTOCOL_ERROR
        else:
            allowed = f"1 to {self._maximum}"
        return ProtocolError(f"PUBLISH: Topic Alias {alias}; allowed: {allowed}", code)


class _Use:
    """One topic's alias, and the number of the message that used it last."""

    __slots__ = ("alias", "at")

    def __init__(self, alias: int, at: int) -> None:
        self.alias = alias
        self.at = at


NO_ALIASES: Final = IncomingAliases(0)
"""The table of all clients that have used no Topic Alias yet."""


class OutgoingAliases:
    """The Topic Aliases that the broker uses towards one client's connection.

    Invariant: `_uses` has at most `maximum` topics, each with another alias, the least recently
    used first; `_candidates` at most as many, the oldest first.

    Attributes:
        maximum: the highest alias, at least 1.
    """

    __slots__ = ("_candidates", "_free", "_highest", "_n_messages", "_uses", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._uses: OrderedDict[bytes, _Use] = OrderedDict()
        self._candidates: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self._highest = 0
        self._n_messages = 0

    def use(self, topic_bytes: bytes) -> tuple[int, bool]:
        """Choose the alias of the next message.

        Returns:
            (alias, or 0 for none; whether the client knows it, so that the topic is left out).
            Where the client does not know it and the message is not sent after all, call `forget`.
        """
        self._n_messages += 1
        use = self._uses.get(topic_bytes)
        if use is not None:
            use.at = self._n_messages
            self._uses.move_to_end(topic_bytes)
            return use.alias, True
        if len(topic_bytes) <= PROPERTY_BYTES:
            return 0, False
        alias = self._unused() or self._taken_over(topic_bytes)
        if alias:
            self._uses[topic_bytes] = _Use(alias, self._n_messages)
        return alias, False

    def topic_of(self, alias: int) -> bytes:
        """Return the topic that an alias stands for; b"" for none. It looks at all of them."""
        return next((topic for topic, use in self._uses.items() if use.alias == alias), b"")

    def _unused(self) -> int:
        """Return a free alias; 0 for none."""
        if self._free:
            return self._free.pop()
        if self._highest == self.maximum:
            return 0
        self._highest += 1
        return self._highest

    def _taken_over(self, topic_bytes: bytes) -> int:
        """Return the alias of the least recently used topic, if this one came twice since."""
        candidates = self._candidates
        seen_at = candidates.pop(topic_bytes, None)
        least_used, use = next(iter(self._uses.items()))
        if seen_at is not None and use.at < seen_at:
            del self._uses[least_used]
            return use.alias
        candidates[topic_bytes] = self._n_messages
        if len(candidates) > self.maximum:
            candidates.popitem(last=False)
        return 0

    def forget(self, topic_bytes: bytes) -> None:
        """Free an alias that was not sent to the client."""
        self._free.append(self._uses.pop(topic_bytes).alias)
