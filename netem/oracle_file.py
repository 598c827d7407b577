"""The file in which the harness gives the oracle the states of subscribers' links over time.

There is one JSON file for each broker, written before the traffic begins.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

TOLD: Final = "told.json"
"""The name of the file, in the working directory of the broker."""


class ToldState(NamedTuple):
    """The state of a link from a time on.

    Attributes:
        at: the time of the change, monotonic seconds.
        rate: the bytes a second towards the subscriber; None for no limit.
        loss: the share of packets towards the subscriber that are lost.
        rtt: the round-trip time of the link without queues, seconds.
    """

    at: float
    rate: float | None
    loss: float
    rtt: float


@dataclass(frozen=True, slots=True)
class ToldLink:
    """The link of a subscriber.

    Attributes:
        link: its name, which is equal for subscribers that share it.
        congestion_control: the congestion control of the connections over it.
        states: its states, one for each change, in the order of time.
    """

    link: str
    congestion_control: str
    states: tuple[ToldState, ...]

    def now(self, now: float) -> tuple[ToldState | None, float]:
        """Return the state at monotonic seconds, None before the first, and when it changes."""
        place = bisect_right(self.states, now, key=lambda state: state.at)
        ends_at = self.states[place].at if place < len(self.states) else math.inf
        return (self.states[place - 1] if place else None), ends_at


def write_told(file: Path, told: Mapping[str, ToldLink]) -> None:
    """Write what links are, by the Client Identifier of each subscriber; at once as a whole."""
    content = {
        client_id: {
            "link": each.link,
            "congestion_control": each.congestion_control,
            "states": each.states,
        }
        for client_id, each in told.items()
    }
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(file)


def read_told(file: Path) -> dict[str, ToldLink]:
    """Return what `write_told` wrote."""
    return {
        client_id: ToldLink(
            each["link"],
            each["congestion_control"],
            tuple(ToldState(*state) for state in each["states"]),
        )
        for client_id, each in json.loads(file.read_text()).items()
    }
