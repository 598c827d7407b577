"""Finds the message at which the cloud's broker ends the connection, and sets it aside.

Theory of operation. A broker that does not accept a message may say so by a reason code. Many end
the connection instead, and MQTT 3.1.1 has no other way. Where the ACL of some denies a topic of
QoS 2, they do so at the release. The message is sent again on the next connection, which ends as
well, so that nothing behind it ever passes.

The broker handles what it receives in order. So what it has not answered when it ends a connection
is *suspect*. Where it has answered nothing on a connection, or several connections in a row were
short, the next one is *careful*: it sends one item at a time, and the next item when the broker has
answered that; a message of QoS 0 counts as answered by the PINGRESP after it. When the connection
ends again, the broker has *refused* what was on its way. What it has refused twice is set aside.

A lost network also ends connections. An end counts as a refusal only where a DISCONNECT has a
reason code that may concern a message, or where the connection was closed right after TCP had
acknowledged the whole message. In the latter case, the message must be refused once more for each
connection that has recently ended in another way.

A retained message that is refused so is first tried without its RETAIN flag: a broker of MQTT 3.1.1
that retains nothing has no other way to say so. Where the broker accepts that, messages go up
without the flag for some time. MQTT 5 has a reason code for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from penstock.broker.mqtt.reason_codes import ReasonCode

Key: TypeAlias = tuple[str, int | str]
"""Identifies a sent item over connections."""

REFUSALS: Final = 2
"""After so many refusals, an item is set aside."""

RECENT_SECONDS: Final = 600.0
"""How long an end of another kind makes a wordless one less credible, and how long connections are
careful at most."""

ASIDE_SECONDS: Final = 3_600.0
"""How long an item is set aside that is not a single message, such as a topic of QoS 0."""

PROMPT_SECONDS: Final = 2.0
"""A broker that closes the connection because of a message does so in this time after TCP has
acknowledged its last byte. It is not 0, as a TCP proxy acknowledges what the broker has not got."""

CAREFUL_SECONDS: Final = 60.0
"""How long connections are careful at most for what is not sent again by itself."""

OF_A_MESSAGE: Final = frozenset(
    {
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_FILTER_INVALID,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        ReasonCode.RETAIN_NOT_SUPPORTED,
        ReasonCode.QOS_NOT_SUPPORTED,
    }
)
"""Reason codes of a DISCONNECT that may concern a single packet."""

_OF_ONE_MESSAGE: Final = ("message", "release")
"""Kinds whose key has a packet identifier, which another message has later."""


class SentItem(NamedTuple):
    """Something that was sent and that the cloud's broker may refuse.

    Attributes:
        kind: ``message`` for a message of QoS 1 or 2, ``release`` for the PUBREL of one of QoS 2,
            ``qos0``, ``filter`` for a topic filter, ``own`` for the uplink's state or a marker.
        name: topic at the site; for ``filter`` and ``own``, the filter or topic in the cloud; ""
            for a release that the site's broker repeats.
        packet_id: packet identifier of a message of QoS 1 or 2 or its release; 0 for others.
        n_bytes: bytes of the packet; 0 where they do not matter.
    """

    kind: Literal["message", "release", "qos0", "filter", "own"]
    name: str
    packet_id: int = 0
    n_bytes: int = 0
    is_retained: bool = False

    @property
    def key(self) -> Key:
        """What identifies it later on: a message of QoS 1 or 2 keeps its packet identifier."""
        return self.kind, self.packet_id or self.name

    def __str__(self) -> str:
        """Describe it for the log."""
        if self.kind == "filter":
            return f"the subscription to {self.name!r}"
        if self.kind == "own":
            return f"the uplink's own message of topic {self.name!r}"
        if self.kind == "release":
            return f"the release (PUBREL) of the message of topic {self.name!r} (QoS 2)"
        qos = "QoS 0" if self.kind == "qos0" else "QoS 1 or 2"
        retained = ", retained" if self.is_retained else ""
        return f"the message of topic {self.name!r} ({self.n_bytes} bytes, {qos}{retained})"


class End(NamedTuple):
    """How a connection has ended that the cloud's broker had accepted.

    Attributes:
        code: reason code of the broker's DISCONNECT; 0 where there was none.
        under_way: items that the broker has not answered.
        is_prompt: whether it has ended right after TCP had acknowledged all that was sent.
        is_short: whether it was short, and so were those right before it.
    """

    is_closed: bool
    code: int
    under_way: Sequence[SentItem]
    has_answered: bool
    is_prompt: bool
    is_short: bool


class Suspects:
    """What the cloud's broker may have refused, over all connections of an uplink or a lane.

    Attributes:
        is_careful: whether this connection, or the next one, sends one item at a time.
    """

    def __init__(self, clock: Callable[[], float], *, has_codes: bool = False) -> None:
        """Begin without a suspicion.

        Args:
            clock: monotonic seconds.
            has_codes: whether the broker speaks MQTT 5, and has a reason code for retaining
                nothing.
        """
        self.is_careful = False
        self.is_idle = True
        self._clock = clock
        self._has_codes = has_codes
        self._retains_nothing_until = -math.inf
        self._doubted: set[Key] = set()
        self._watched: set[Key] = set()
        self._careful_until = 0.0
        self._n_refusals: dict[Key, int] = {}
        self._aside: dict[Key, float] = {}
        self._other_ends: deque[float] = deque()
        self._names: dict[Key, str] = {}

    def name_of(self, item: SentItem) -> str:
        """Return the topic of an item, also of a release that the site's broker repeats."""
        return item.name or self._names.get(item.key, "")

    def is_aside(self, item: SentItem) -> bool:
        """Say whether an item is set aside, and must not be sent."""
        until = self._aside.get(item.key)
        if until is not None and self._clock() >= until:
            self._forget(item.key)
            return False
        return until is not None

    def is_doubted(self, item: SentItem) -> bool:
        """Say whether a retained message is to be tried without its flag."""
        return item.key in self._doubted

    @property
    def retains_nothing(self) -> bool:
        """Whether messages go up without the RETAIN flag, as the broker has refused one for it."""
        return self._clock() < self._retains_nothing_until

    def flag_was_refused(self) -> None:
        """Note that the broker has accepted a message without its RETAIN flag."""
        self._retains_nothing_until = self._clock() + ASIDE_SECONDS

    def answered(self, item: SentItem) -> None:
        """Note that the broker has accepted an item, or that it need not be sent any more."""
        if self.is_idle:
            return
        self._n_refusals.pop(item.key, None)
        self._doubted.discard(item.key)
        self._watched.discard(item.key)
        if item.kind in _OF_ONE_MESSAGE:  # the next one may have its packet identifier
            self._aside.pop(item.key, None)
        self.is_careful = self._is_careful()
        self._look()

    def accepted(self) -> None:
        """Note that the broker has accepted a connection."""
        has_message = any(kind in _OF_ONE_MESSAGE for kind, _ in self._watched)
        seconds = RECENT_SECONDS if has_message else CAREFUL_SECONDS
        self._careful_until = self._clock() + seconds
        self.is_careful = self._is_careful()
        self._look()

    def failed(self) -> None:
        """Note an attempt to connect that has failed."""
        self._other_ends.append(self._clock())
        self._n_other_ends()

    def _n_other_ends(self) -> int:
        """Return how many connections have recently ended in another way than by a refusal."""
        while self._other_ends and self._other_ends[0] < self._clock() - RECENT_SECONDS:
            self._other_ends.popleft()
        return len(self._other_ends)

    def ended(self, end: End) -> SentItem | None:
        """Note the end of a connection that the broker had accepted.

        Returns:
            What the broker has refused, or None. `is_aside` says whether it is set aside now.
        """
        self._names = {item.key: self.name_of(item) for item in end.under_way}
        is_worded = end.is_closed and end.code in OF_A_MESSAGE
        is_wordless = end.is_closed and not end.code
        if len(end.under_way) == 1:
            if is_worded:
                return self._refused(end.under_way[0], REFUSALS, end.code)
            if is_wordless and self.is_careful and end.is_prompt:
                return self._refused(end.under_way[0], REFUSALS + self._n_other_ends())
        if self.is_careful or not (is_wordless and end.under_way):
            self.failed()
        elif end.is_short or not end.has_answered:
            self._watch(end.under_way)
        if is_worded and end.under_way:
            self._watch(end.under_way)
        return None

    def _refused(self, item: SentItem, most: int, code: int = 0) -> SentItem:
        n_refusals = self._n_refusals[item.key] = self._n_refusals.get(item.key, 0) + 1
        self._watch([item])
        is_enough = n_refusals >= most
        is_for_flag = code == ReasonCode.RETAIN_NOT_SUPPORTED or (is_enough and not self._has_codes)
        if item.is_retained and is_for_flag and item.key not in self._doubted:
            self._doubted.add(item.key)
            del self._n_refusals[item.key]
        elif is_enough:
            del self._n_refusals[item.key]
            self._doubted.discard(item.key)
            self._watched.discard(item.key)
            self._aside[item.key] = self._clock() + ASIDE_SECONDS
        return item._replace(name=self.name_of(item))

    def _watch(self, items: Sequence[SentItem]) -> None:
        """Let the next connection be careful until these items are answered."""
        self._watched.update(item.key for item in items)
        self.is_careful = True
        self._look()

    def _is_careful(self) -> bool:
        if self._clock() >= self._careful_until:
            self._watched.clear()
        return bool(self._watched)

    def _forget(self, key: Key) -> None:
        del self._aside[key]
        self._look()

    def _look(self) -> None:
        self.is_idle = not (self.is_careful or self._n_refusals or self._doubted or self._aside)
