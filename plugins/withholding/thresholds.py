"""threshold_l: the RTT of the uncongested path to one subscriber (paper 002).

Fixed in the policy file, or learned from what the sampler writes into the link. The paper
learns it as the moving average of recent RTTs. The least recent RTT is offered beside it,
because an average takes long congestion for the normal state, and a minimum does not.

Fixed or learned, it is the RTT of a packet no larger than the first row of the latency profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from broker.link import Link

LearnedFrom = Literal["minimum", "average"]


@dataclass(frozen=True)
class Thresholds:
    """Finds threshold_l for each subscriber.

    Attributes:
        fixed: seconds for subscribers that no pattern names, or None to learn.
        by_client: pattern of client ids to seconds, the first match wins. A pattern is that
            of a shell: ``*``, ``?``, ``[...]``, case sensitive.
        learned_from: what the link holds that is learned from.
        margin_ratio: a learned RTT times this is the threshold, so that normal variation
            around it is no congestion.
        floor_seconds: least learned threshold.
    """

    fixed: float | None = None
    by_client: Mapping[str, float] = field(default_factory=dict)
    learned_from: LearnedFrom = "minimum"
    margin_ratio: float = 1.0
    floor_seconds: float = 0.0

    def threshold_l(self, link: Link) -> float:
        """Return threshold_l for this subscriber in seconds.

        Before there is anything to learn from it is the floor.
        """
        for pattern, seconds in self.by_client.items():
            if fnmatchcase(link.client_id, pattern):
                return seconds
        if self.fixed is not None:
            return self.fixed
        learned = link.rtt_min if self.learned_from == "minimum" else link.threshold_l
        if learned is None:
            return self.floor_seconds
        return max(self.floor_seconds, learned * self.margin_ratio)
