"""Which message makes the cloud's broker end the connection, and which ones are set aside for it.

Theory of operation. A broker that does not take a message may say so by a reason code. Many end the
connection instead, and MQTT 3.1.1 has no other way. Where the ACL of some denies a topic of QoS 2,
they do so at the release. What was sent is sent again with the next connection, which ends as well,
so that nothing behind it ever passes.

The broker handles what it receives in its order, so what it has not answered when it ends a
connection is *suspect*. Where it has answered nothing on a connection, or connections are short
again and again, the next one is *careful*: it sends one thing at
a time, and the next one when the broker has answered that, a message of QoS 0 by the answer to a
PINGREQ. So when it ends again, what was under way is what the broker has *refused*. What it has
refused twice is set aside.

A lost network also ends connections. An end counts as a refusal only where a DISCONNECT has a
reason code that tells of a message, or where the connection was closed right after TCP had
acknowledged the whole message. In the latter case, it must be refused once more for each connection
that has lately ended in another way.

What is refused so and is retained is first tried without its flag: a broker of MQTT 3.1.1 that
retains nothing has no other way to say so. Where that is taken, messages go up without the flag for
a while. MQTT 5 has a reason code for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from penstock.broker.mqtt.reason_codes import ReasonCode

Key: TypeAlias = tuple[str, int | str]
"""By which a thing is known again."""

REFUSALS: Final = 2
"""After so many, a thing is set aside."""

RECENT_SECONDS: Final = 600.0
"""For which an end of another kind makes one without a word less credible, and for which a
connection is careful at most."""

ASIDE_SECONDS: Final = 3_600.0
"""For which a thing is set aside that is not of one message, such as a topic of QoS 0."""

PROMPT_SECONDS: Final = 2.0
"""A broker that closes the connection for a message does so in this time after TCP has acknowledged
its last byte. A relay on the way acknowledges what the broker has not got."""

CAREFUL_SECONDS: Final = 60.0
"""For which a connection is careful at most for what does not come again by itself."""

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
"""Reason codes of a DISCONNECT that may tell of a single packet."""


_OF_ONE_MESSAGE: Final = ("message", "release")
"""Kinds whose key has a packet identifier, which is another message's later."""


class SentItem(NamedTuple):
    """Something that was sent and that the cloud's broker may refuse.

    Attributes:
        kind: a message of QoS 1 or 2, the release (PUBREL) of one of QoS 2, a message of QoS 0, a
            topic filter, or a message of the uplink's own: its state, or a marker.
        name: topic at the site; of the latter two in the cloud; "" for a release that is sent again
            by the site's broker.
        packet_id: of a message of QoS 1 or 2, or its release; 0 for others.
        n_bytes: of the packet; 0 where that does not matter.
        is_retained: it has the RETAIN flag.
    """

    kind: Literal["message", "release", "qos0", "filter", "own"]
    name: str
    packet_id: int = 0
    n_bytes: int = 0
    is_retained: bool = False

    @property
    def key(self) -> Key:
        """By which it is known again: a message of QoS 1 or 2 keeps its packet identifier."""
        return self.kind, self.packet_id or self.name

    def __str__(self) -> str:
        """Name it for the log."""
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
        is_closed: the broker has ended it.
        code: reason code of its DISCONNECT; 0 where there was none.
        under_way: what it has not answered.
        has_answered: it has answered anything.
        is_prompt: it has ended right after TCP had acknowledged all that was sent.
        is_short: it was short, and so were those right before it.
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
        is_careful: the next connection, or this one, sends one thing at a time.
        is_idle: there is nothing that is doubted or set aside, and no care.
    """

    def __init__(self, clock: Callable[[], float], *, has_codes: bool = False) -> None:
        """Begin without a suspicion.

        Args:
            clock: monotonic seconds.
            has_codes: the broker has reason codes (MQTT 5): it says so where it retains nothing.
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

    def name_of(self, thing: SentItem) -> str:
        """Return the topic of a thing, also if the site's broker has not sent it again."""
        return thing.name or self._names.get(thing.key, "")

    def is_aside(self, thing: SentItem) -> bool:
        """Say whether a thing is not to be sent."""
        until = self._aside.get(thing.key)
        if until is not None and self._clock() >= until:
            self._forget(thing.key)
            return False
        return until is not None

    def is_doubted(self, thing: SentItem) -> bool:
        """Say whether a retained message is to be tried without its flag."""
        return thing.key in self._doubted

    @property
    def retains_nothing(self) -> bool:
        """Whether messages go up without the RETAIN flag: the broker has refused one for it."""
        return self._clock() < self._retains_nothing_until

    def flag_was_refused(self) -> None:
        """Note that the broker has taken a message that is doubted without its flag."""
        self._retains_nothing_until = self._clock() + ASIDE_SECONDS

    def answered(self, thing: SentItem) -> None:
        """Note that the broker has taken a thing, or that it need not be sent any more."""
        if self.is_idle:
            return
        self._n_refusals.pop(thing.key, None)
        self._doubted.discard(thing.key)
        self._watched.discard(thing.key)
        if thing.kind in _OF_ONE_MESSAGE:  # the next one may have its packet identifier
            self._aside.pop(thing.key, None)
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
        """Note that the broker could not be connected to, or has not accepted the connection."""
        self._other_ends.append(self._clock())
        self._n_other_ends()

    def _n_other_ends(self) -> int:
        """Return how many connections have lately ended in another way than by a refusal."""
        while self._other_ends and self._other_ends[0] < self._clock() - RECENT_SECONDS:
            self._other_ends.popleft()
        return len(self._other_ends)

    def ended(self, end: End) -> SentItem | None:
        """Take note of the end of a connection that the broker had accepted.

        Args:
            end: how it has ended.

        Returns:
            What the broker has refused; `is_aside` then says whether it is set aside.
        """
        self._names = {thing.key: self.name_of(thing) for thing in end.under_way}
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

    def _refused(self, thing: SentItem, most: int, code: int = 0) -> SentItem:
        n_refusals = self._n_refusals[thing.key] = self._n_refusals.get(thing.key, 0) + 1
        self._watch([thing])
        is_enough = n_refusals >= most
        is_for_flag = code == ReasonCode.RETAIN_NOT_SUPPORTED or (is_enough and not self._has_codes)
        if thing.is_retained and is_for_flag and thing.key not in self._doubted:
            self._doubted.add(thing.key)
            del self._n_refusals[thing.key]
        elif is_enough:
            del self._n_refusals[thing.key]
            self._doubted.discard(thing.key)
            self._watched.discard(thing.key)
            self._aside[thing.key] = self._clock() + ASIDE_SECONDS
        return thing._replace(name=self.name_of(thing))

    def _watch(self, things: Sequence[SentItem]) -> None:
        """Let the next connection be careful until these things are answered."""
        self._watched.update(thing.key for thing in things)
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
