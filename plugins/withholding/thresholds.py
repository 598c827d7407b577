"""threshold_l: the RTT of the uncongested path to one subscriber (paper 002).

Four may say what it is; the first of them that does decides:

1. The operator about this subscriber: a pattern of client ids, then one of user names.
2. The subscriber itself, in its CONNECT: it knows what network it is on.
3. The operator about all that come by its listener, then about all.
4. What the sampler has written into the link. The paper learns the moving average of recent RTTs.
   The least recent RTT is offered beside it, because an average takes long congestion for the
   normal state, and a minimum does not.

In the place of seconds, the operator may say that it is learned, and so overrule what follows.

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
"""Name of the user property of CONNECT by which a subscriber gives its own, in seconds."""

MAX_ASKED_SECONDS = 900.0
"""Linux gives a TCP connection up that has been without acknowledgement for that long
(`tcp_retries2`): no RTT is longer."""

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", re.ASCII)

MAX_KNOWN = 10_000
"""Subscribers whose pattern is remembered: each new estimate of each of them asks for it, and a
hundred patterns take 25 us."""

LONGEST_KNOWN = 256
"""Characters of client id and user name that are remembered: strangers may make up long ones."""

_MOST_SHOWN = 40


def read_asked(user_properties: Sequence[tuple[str, str]]) -> tuple[float | None, str]:
    """Find the threshold_l that a subscriber asks for.

    Args:
        user_properties: of its CONNECT.

    Returns:
        (seconds, or None where it asks for none; what is wrong with it, or "").
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
    """Finds threshold_l for each subscriber.

    A pattern is that of a shell: ``*``, ``?``, ``[...]``, case sensitive; the first match wins.
    None in the place of seconds is to learn.

    Attributes:
        fixed: seconds for subscribers of which nothing else is said.
        by_client: pattern of client ids to seconds.
        by_user: pattern of user names to seconds; a subscriber without a user name matches none.
        by_listener: name of a listener to seconds.
        learned_from: what the link holds that is learned from.
        margin_ratio: a learned RTT times this is the threshold, so that normal variation
            around it is no congestion.
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

        Before there is anything to learn from it is the floor.
        """
        given = self._given(link)
        if given is not None:
            return given
        learned = link.rtt_min if self.learned_from == "minimum" else link.threshold_l
        if learned is None:
            return self.floor_seconds
        return max(self.floor_seconds, learned * self.margin_ratio)

    def _given(self, link: Link) -> float | None:
        """Return what somebody has said, seconds, or None where it is to be learned."""
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
        """Return what the first pattern that matches says; nothing where none does."""
        said = [s for pattern, s in self.by_client.items() if fnmatchcase(client_id, pattern)]
        if not said and username is not None:
            said = [s for pattern, s in self.by_user.items() if fnmatchcase(username, pattern)]
        found = tuple(said[:1])
        if len(client_id) + len(username or "") <= LONGEST_KNOWN:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[client_id, username] = found
        return found
