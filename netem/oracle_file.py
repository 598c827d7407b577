"""The file by which the harness tells the oracle what subscribers' links are, and when.

One JSON file for a broker, written before the traffic begins.
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


class State(NamedTuple):
    """The state of a link from a time on.

    Attributes:
        at: monotonic seconds.
        rate: bytes per second towards the subscriber; None for no limit.
        loss: share of packets towards the subscriber that are lost.
        rtt: seconds, of an empty link.
    """

    at: float
    rate: float | None
    loss: float
    rtt: float


@dataclass(frozen=True, slots=True)
class Told:
    """The link of a subscriber.

    Attributes:
        link: its name, which subscribers that share it have in common.
        congestion_control: the congestion control of the connections over it.
        states: one from each change on, in the order of time.
    """

    link: str
    congestion_control: str
    states: tuple[State, ...]

    def now(self, now: float) -> tuple[State | None, float]:
        """Return the state at monotonic seconds, None before the first, and when it changes."""
        place = bisect_right(self.states, now, key=lambda state: state.at)
        ends_at = self.states[place].at if place < len(self.states) else math.inf
        return (self.states[place - 1] if place else None), ends_at


def write_told(file: Path, told: Mapping[str, Told]) -> None:
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


def read_told(file: Path) -> dict[str, Told]:
    """Return what `write_told` wrote."""
    return {
        client_id: Told(
            each["link"],
            each["congestion_control"],
            tuple(State(*state) for state in each["states"]),
        )
        for client_id, each in json.loads(file.read_text()).items()
    }
