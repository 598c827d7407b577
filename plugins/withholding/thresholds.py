"""threshold_l: the RTT of the uncongested path to one subscriber (paper 002).

There are four sources; the first that has a value decides:

1. The operator for this subscriber: a pattern of client ids.
2. The subscriber itself, in its CONNECT: it knows what network it is on.
3. The operator for all subscribers of its listener, then for all subscribers.
4. What the sampler has learned, in the link: the least recent RTT and 50 ms, or the paper's moving
   average of recent RTTs, which takes long congestion for the normal state.

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

MARGIN_SECONDS = 0.05
"""Learned threshold_l above the least RTT: so much it varies without congestion, also on a local
network. A sample of calm above it holds a large message until the next sample."""

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
        by_listener: name of a listener to seconds.
        learned_from: which value of the link is learned from.
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
