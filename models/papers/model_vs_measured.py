"""A model's figures beside the measured ones of a live run, unit by unit.

Each unit, a path or a queue, has the same random values in both: the creation of messages, the
times for which peers are on, and the service times. The ratio of the measured figure to the model's
is therefore known better than either figure, and it decides: a row **agrees** where the whole
interval of that ratio is within 10 %. The two means of a row have intervals of their own, over the
same units.
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


class ComparedUnit(NamedTuple):
    """A figure of one unit, as two sums whose ratio it is: for a mean time, seconds and messages.

    Attributes:
        modelled: the model's sums, (dividend, divisor).
        measured: the run's sums, (dividend, divisor).
    """

    modelled: tuple[float, float]
    measured: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of a model, and the same figure measured in a live run.

    Attributes:
        late_seconds: the lateness that 99 of 100 actions of the clients did not exceed, which this
            machine causes.
    """

    paper: str
    what: str
    units: Sequence[ComparedUnit]
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
        """The standing of the measured figure against the model's."""
        found = self.over
        return all_of((at_least(found, 1 - TOLERANCE), at_most(found, 1 + TOLERANCE)))

    def _statistic(self, which: int) -> Statistic:
        dividends = sum_of([unit[which][0] for unit in self.units])
        return ratio(dividends, sum_of([unit[which][1] for unit in self.units]))


def is_late(row: ComparedFigure) -> bool:
    """Say whether clients were too late for a verdict: other programs had the processors."""
    return row.late_seconds > MOST_LATE_SECONDS


def compared_table(rows: Sequence[ComparedFigure]) -> Table:
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
