"""threshold_l: the RTT of the uncongested path to one subscriber (paper 002).

There are four sources; the first that has a value decides:

1. The operator for this subscriber: a pattern of client ids, then one of user names.
2. The subscriber itself, in its CONNECT: it knows what network it is on.
3. The operator for all subscribers of its listener, then for all subscribers.
4. The value that the sampler has learned, in the link. The paper learns the moving average of
   recent RTTs. The least recent RTT is offered beside it, because an average takes long
   congestion for the normal state, and a minimum does not.

In place of seconds, the operator may say that the value is learned, which overrules the sources
below.

Fixed or learned, it is the RTT of a packet no larger than the first row of the latency profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from penstock.broker.link import Link

LearnedFrom = Literal["minimum", "average"]

USER_PROPERTY = "threshold_l"
"""User property of CONNECT with which a subscriber gives its own value, in seconds."""

MAX_ASKED_SECONDS = 900.0
"""Linux gives up a TCP connection after so long without an acknowledgement (`tcp_retries2`), so no
RTT is longer."""

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", re.ASCII)

MAX_KNOWN = 10_000
"""Subscribers whose pattern is cached: it is needed for each new estimate of each of them, and a
hundred patterns take 25 us."""

LONGEST_KNOWN = 256
"""Characters of client id and user name that are cached, as clients may make up long ones."""

SPREAD_RATIO = 4.0
"""Distance of threshold_l from the least RTT, over that of the lower quartile: the whole range of
evenly distributed RTTs, and two thirds of exponentially distributed ones. A sample of calm that is
above it is congestion of a second, whose cost is small; a tenth of a second below it on a path of
half a second, all large messages of a bad phase would be sent."""

_MOST_SHOWN = 40


def read_asked(user_properties: Sequence[tuple[str, str]]) -> tuple[float | None, str]:
    """Return the threshold_l that a subscriber gives.

    Args:
        user_properties: of its CONNECT.

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
        by_user: pattern of user names to seconds; a subscriber without a user name matches none.
        by_listener: name of a listener to seconds.
        learned_from: which value of the link is learned from.
        margin_ratio: factor from the learned RTT to the threshold, so that normal variation is no
            congestion.
        floor_seconds: least learned threshold.
    """

    fixed: float | None = None
    by_client: Mapping[str, float | None] = field(default_factory=dict)
    by_user: Mapping[str, float | None] = field(default_factory=dict)
    by_listener: Mapping[str, float | None] = field(default_factory=dict)
    learned_from: LearnedFrom = "minimum"
    margin_ratio: float = 1.0
    floor_seconds: float = 0.0
    _known: dict[tuple[str, str | None], tuple[float | None, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def threshold_l(self, link: Link) -> float:
        """Return threshold_l for this subscriber in seconds.

        Before anything is learned it is the floor.
        """
        given = self._given(link)
        if given is not None:
            return given
        learned = link.rtt_min if self.learned_from == "minimum" else link.threshold_l
        if learned is None:
            return self.floor_seconds
        margin = learned * self.margin_ratio
        if self.learned_from == "minimum" and link.rtt_quartile is not None:
            spread = SPREAD_RATIO * (link.rtt_quartile - learned)
            margin = min(margin, learned + max(self.floor_seconds, spread))
        return max(self.floor_seconds, margin)

    def _given(self, link: Link) -> float | None:
        """Return the given value, seconds, or None where it is to be learned."""
        if self.by_client or self.by_user:
            found = self._known.get((link.client_id, link.username))
            if found is None:
                found = self._find(link.client_id, link.username)
            if found:
                return found[0]
        if link.asked_threshold_l is not None:
            return link.asked_threshold_l
        return self.by_listener.get(link.listener, self.fixed)

    def _find(self, client_id: str, username: str | None) -> tuple[float | None, ...]:
        """Return the value of the first pattern that matches; an empty tuple without a match."""
        said = [s for pattern, s in self.by_client.items() if fnmatchcase(client_id, pattern)]
        if not said and username is not None:
            said = [s for pattern, s in self.by_user.items() if fnmatchcase(username, pattern)]
        found = tuple(said[:1])
        if len(client_id) + len(username or "") <= LONGEST_KNOWN:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[client_id, username] = found
        return found
