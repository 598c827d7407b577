"""A model's figures beside the measured ones of a live run, unit by unit.

Each unit, a path or a queue, has the same draws in both: when messages are created, when peers are
on, how long services take. The measured figure over the model's is therefore known better than
either, and it decides: a row **agrees** where the whole interval of that ratio is within 10 %. The
two means of a row have intervals of their own, over the same units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.netem.figures.estimates import (
    BUSY,
    MOST_LATE_SECONDS,
    TOLERANCE,
    Estimate,
    Standing,
    Statistic,
    all_of,
    at_least,
    at_most,
    bootstrap,
    ratio,
    sum_of,
)
from penstock.netem.figures.figure_file import Table


class Unit(NamedTuple):
    """A figure of one unit, as the sums whose ratio it is: seconds and messages, for a mean.

    Attributes:
        modelled: (dividend, divisor).
        measured: (dividend, divisor).
    """

    modelled: tuple[float, float]
    measured: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of a model, and of the real run.

    Attributes:
        paper: the number of the paper.
        what: the name of the figure.
        units: independent ones.
        late_seconds: how late 99 of 100 actions of the clients were at most, by the fault of this
            machine.
    """

    paper: str
    what: str
    units: Sequence[Unit]
    late_seconds: float

    @property
    def modelled(self) -> Estimate:
        """The model's figure."""
        return bootstrap(len(self.units), self._statistic(0))

    @property
    def measured(self) -> Estimate:
        """The run's figure."""
        return bootstrap(len(self.units), self._statistic(1))

    @property
    def over(self) -> Estimate:
        """The measured figure over the model's, of the same units."""
        return bootstrap(len(self.units), ratio(self._statistic(1), self._statistic(0)))

    @property
    def standing(self) -> Standing:
        """Whether the measured figure agrees with the model's."""
        found = self.over
        return all_of((at_least(found, 1 - TOLERANCE), at_most(found, 1 + TOLERANCE)))

    def _statistic(self, which: int) -> Statistic:
        dividends = sum_of([unit[which][0] for unit in self.units])
        return ratio(dividends, sum_of([unit[which][1] for unit in self.units]))


def is_late(row: Compared) -> bool:
    """Say whether clients were too late for a verdict: other programs had the processors."""
    return row.late_seconds > MOST_LATE_SECONDS


def compared_table(rows: Sequence[Compared]) -> Table:
    """Return models beside real runs."""
    return Table(
        ["paper", "figure", "model", "measured", "measured over model", "verdict", "late by"],
        [
            [
                row.paper,
                row.what,
                format(row.modelled, ".3g"),
                format(row.measured, ".3g"),
                format(row.over, ".3f"),
                BUSY if is_late(row) else str(row.standing),
                f"{1000 * row.late_seconds:.0f} ms",
            ]
            for row in rows
        ],
    )
