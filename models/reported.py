"""Figures that a paper reports, beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.netem.figures.estimates import Estimate, Standing, at_least, at_most
from penstock.netem.figures.figure_file import Table

TOLERANCE: Final = 0.1
"""Share of a reported figure by which ours may differ from it."""

Relation: TypeAlias = Literal["about", "at least", "at most"]


@dataclass(frozen=True, slots=True)
class Reported:
    """A figure of a paper's text, and ours.

    Attributes:
        what: it is of.
        value: as the paper has it.
        relation: of the figure to the value, in the paper.
        found: ours.
        reading: what we chose where the paper is silent, or why ours differs.
        closed_form: the figure without a simulation; nan where none is known.
        unit: behind the numbers.
    """

    what: str
    value: float
    found: Estimate
    reading: str = ""
    relation: Relation = "about"
    closed_form: float = math.nan
    unit: str = ""

    @property
    def deviation(self) -> float:
        """Ours over the paper's, less 1."""
        return self.found.value / self.value - 1

    @property
    def standing(self) -> Standing:
        """Whether ours agrees with the paper's."""
        if self.relation == "at least":
            return at_least(self.found, self.value)
        if self.relation == "at most":
            return at_most(self.found, self.value)
        return agrees(self.found, self.value)


def agrees(found: Estimate, value: float, tolerance: float = TOLERANCE) -> Standing:
    """Say whether a figure is that of another source.

    It is where the other lies in its interval, or all of the interval within the tolerance.

    Args:
        found: ours.
        value: the other source's.
        tolerance: share of the other's value.
    """
    if math.isnan(found.low):
        found = Estimate(found.value, found.value, found.value, found.n_units)
    low, high = value - tolerance * abs(value), value + tolerance * abs(value)
    if found.low <= value <= found.high or low <= found.low <= found.high <= high:
        return Standing.MET
    if found.high < low or found.low > high:
        return Standing.MISSED
    return Standing.NOT_SHOWN


def reported_table(rows: Iterable[Reported]) -> Table:
    """Return figures beside the paper's."""
    return Table(
        ["figure", "reported", "simulated", "deviation", "closed form", "verdict", "reading"],
        [
            [
                row.what,
                f"{'' if row.relation == 'about' else row.relation + ' '}{row.value:g}{row.unit}",
                _shown(row),
                "-" if math.isnan(row.deviation) else f"{row.deviation:+.1%}",
                "-" if math.isnan(row.closed_form) else f"{row.closed_form:.3g}{row.unit}",
                str(row.standing),
                row.reading,
            ]
            for row in rows
        ],
    )


def _shown(row: Reported) -> str:
    shown = row.found.show(lambda value: format(value, ".3g"))
    return shown if math.isnan(row.found.value) else shown + row.unit
