"""What is measured: each row is a question, a unit and a function that answers it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.peers import RunningPeer


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work one measurement is.

    Attributes:
        seconds: how long a throughput run should last.
        warm_up_messages: messages of the first, unmeasured run.
        stalled_subscribers: of the memory row.
        large_messages: of the memory row.
        large_bytes: payload of each of them.
    """

    seconds: float = 3.0
    warm_up_messages: int = 5_000
    stalled_subscribers: int = 75
    large_messages: int = 60
    large_bytes: int = 1_000_000


FULL = Scale()
QUICK = Scale(seconds=0.7, stalled_subscribers=25, large_messages=20)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One answer to a row's question.

    Attributes:
        value: in the row's unit.
        lost: messages that were not delivered.
        details: further numbers, by names that end in their unit.
    """

    value: float
    lost: int = 0
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """What Penstock must reach in a row; one of the two.

    Attributes:
        least_ratio: of its value to mosquitto's, or None.
        most_value: of its value, or None.
    """

    least_ratio: float | None = None
    most_value: float | None = None

    def __str__(self) -> str:
        """Return the target in words."""
        if self.least_ratio is not None:
            return f"at least {self.least_ratio:g} x mosquitto"
        return f"at most {self.most_value:g}"

    def is_met(self, value: float, ratio: float | None) -> bool | None:
        """Say whether a value and its ratio to mosquitto's meet it; None where that is unknown."""
        if self.most_value is not None:
            return value <= self.most_value
        if self.least_ratio is None or ratio is None:
            return None
        return ratio >= self.least_ratio


@dataclass(frozen=True, slots=True)
class Row:
    """One question.

    Attributes:
        name: as in ``--rows`` and in the results.
        title: the question in words.
        unit: of the value.
        target: what Penstock must reach.
        has_ceiling: whether the load's own limit can be measured on it.
        measure: answers it once on a started broker.
    """

    name: str
    title: str
    unit: str
    target: Target
    has_ceiling: bool
    measure: Callable[[RunningPeer, Scale], Measurement]
