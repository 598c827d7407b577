"""Which messages are large, and which RTTs are long: the thresholds of paper 002.

A message is large if its payload has more than `threshold_s` bytes ("Message size classification").
The path of a subscriber is congested if its RTT is above `threshold_l`. For threshold_l there are
four sources; the first that has a value decides:

1. The operator for this subscriber: a pattern of client ids.
2. The subscriber itself, in its CONNECT: it knows what network it is on.
3. The operator for all subscribers of its listener, then for all subscribers.
4. What the sampler has learned, in the link: the least recent RTT and 50 ms, or the paper's moving
   average of recent RTTs, which takes long congestion for the normal state.

In place of seconds, the operator may say that the value is learned, which overrules the sources
below.

Fixed or learned, it is the RTT of a packet no larger than the first row of the latency profile,
which converts latencies from one message size to another (figure 3).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal

from penstock.broker.link import Link
from penstock.broker.mqtt.topics import matches

MAX_TOPICS: Final = 10_000
"""Topics whose class is cached, so that a publisher that makes up topics cannot fill the memory."""

LONGEST_KNOWN: Final = 256
"""Characters of a cached topic: 10,000 of the longest possible ones would take 650 MB."""

LearnedFrom = Literal["minimum", "average"]

USER_PROPERTY = "threshold_l"
"""User property of CONNECT with which a subscriber gives its own value, in seconds."""

MAX_ASKED_SECONDS = 900.0
"""Linux gives up a TCP connection after so long without an acknowledgement (`tcp_retries2`), so no
RTT is longer."""

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", re.ASCII)

MARGIN_SECONDS = 0.05
"""Learned threshold_l above the least RTT: so much it varies without congestion, also on a local
network. A sample of calm above it holds a large message until the next sample."""

_MOST_SHOWN = 40

MOST_RELATIVE: Final = 1e9
"""Upper bound of a relative latency: two rows that lie close together could extrapolate to an
overflow."""

_LOG_MOST_RELATIVE: Final = math.log(MOST_RELATIVE)


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
        """Return payload bytes above which messages of `topic` are large; None for never."""
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


def read_asked(user_properties: Sequence[tuple[str, str]]) -> tuple[float | None, str]:
    """Return the threshold_l that a subscriber gives.

    Returns:
        (seconds, or None where it gives none; what is wrong with it, or "").
    """
    values = [value for name, value in user_properties if name == USER_PROPERTY]
    if not values:
        return None, ""
    if len(values) > 1:
        return None, f"user property {USER_PROPERTY}: read {len(values)} of them; allowed: one"
    text = values[0]
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if 0 < seconds <= MAX_ASKED_SECONDS:
        return seconds, ""
    shown = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
    return None, (
        f"user property {USER_PROPERTY}: read {shown!r}; "
        f"allowed: seconds above 0, {MAX_ASKED_SECONDS:g} at most, such as 0.5"
    )


@dataclass(frozen=True)
class Thresholds:
    """Decides threshold_l for each subscriber.

    A pattern is that of a shell: ``*``, ``?``, ``[...]``, case sensitive; the first match decides.
    None in place of seconds means learned.

    Attributes:
        fixed: seconds for subscribers without a more specific value.
        by_client: pattern of client ids to seconds.
        by_listener: name of a listener to seconds.
    """

    fixed: float | None = None
    by_client: Mapping[str, float | None] = field(default_factory=dict)
    by_listener: Mapping[str, float | None] = field(default_factory=dict)
    learned_from: LearnedFrom = "minimum"

    def threshold_l(self, link: Link) -> float:
        """Return threshold_l for this subscriber in seconds."""
        given = self._given(link)
        if given is not None:
            return given
        if self.learned_from == "average" and link.threshold_l is not None:
            return max(MARGIN_SECONDS, link.threshold_l)
        return MARGIN_SECONDS + (link.rtt_min or 0.0)

    def _given(self, link: Link) -> float | None:
        """Return the given value, seconds, or None where it is to be learned."""
        for pattern, seconds in self.by_client.items():
            if fnmatchcase(link.client_id, pattern):
                return seconds
        if link.asked_threshold_l is not None:
            return link.asked_threshold_l
        return self.by_listener.get(link.listener, self.fixed)


class LatencyProfile:
    """Relative latency by payload size.

    Between two rows of the table it is interpolated on logarithmic axes, where measured latency is
    close to straight: a fixed part for small messages, in proportion to the size for large ones.
    Below the first row the first row's value applies, since a path has a least latency. Above the
    last row the line through the last two rows is extended.
    """

    __slots__ = ("_log_latencies", "_log_sizes", "_slopes", "reference_bytes")

    def __init__(self, table: Mapping[int, float]) -> None:
        """Take a table.

        Args:
            table: payload bytes to latency in any unit: only ratios are used.

        Raises:
            ValueError: the table is not of that form.
        """
        if not table:
            raise ValueError("at least one row of payload bytes: latency")
        rows = sorted(table.items())
        latencies = [latency for _, latency in rows]
        if rows[0][0] < 1:
            raise ValueError("payload bytes of at least 1")
        if not all(latency > 0 and math.isfinite(latency) for latency in latencies):
            raise ValueError("latencies above 0 and finite")
        if latencies != sorted(latencies):
            raise ValueError("latencies that never fall as payload bytes grow")
        self.reference_bytes = rows[0][0]
        self._log_sizes = [math.log(size) for size, _ in rows]
        self._log_latencies = [math.log(latency) - math.log(latencies[0]) for latency in latencies]
        self._slopes = [
            (self._log_latencies[i + 1] - self._log_latencies[i])
            / (self._log_sizes[i + 1] - self._log_sizes[i])
            for i in range(len(rows) - 1)
        ]

    def relative(self, payload_bytes: int) -> float:
        """Return the latency of a size over that of the first row; at least 1."""
        if payload_bytes <= self.reference_bytes or not self._slopes:
            return 1.0
        log_size = math.log(payload_bytes)
        row = min(bisect_right(self._log_sizes, log_size), len(self._slopes)) - 1
        beyond = log_size - self._log_sizes[row]
        log_relative = self._log_latencies[row] + self._slopes[row] * beyond
        return math.exp(min(log_relative, _LOG_MOST_RELATIVE))
