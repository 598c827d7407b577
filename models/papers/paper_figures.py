"""The numbers and the statements of a paper's text, each beside the simulation's result."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.netem.figures.estimates import Estimate, Standing, agrees, at_least, at_most
from penstock.netem.figures.figure_file import Table

Claim: TypeAlias = tuple[str, Standing, str]
"""A statement of a paper, whether it holds, and the simulation's result."""

Relation: TypeAlias = Literal["about", "at least", "at most"]


@dataclass(frozen=True, slots=True)
class ReportedNumber:
    """A number of a paper's text, and the simulation's.

    Attributes:
        reading: our choice where the paper is silent, or the reason why our number differs.
        relation: the relation between the figure and its number in the paper's text.
        closed_form: the figure by queueing theory; nan where no closed form is known.
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
        """The simulation's number over the paper's, less 1."""
        return self.found.value / self.value - 1

    @property
    def standing(self) -> Standing:
        """The standing of the simulation's number against the paper's."""
        if self.relation == "at least":
            return at_least(self.found, self.value)
        if self.relation == "at most":
            return at_most(self.found, self.value)
        return agrees(self.found, self.value)


def reported_table(rows: Iterable[ReportedNumber]) -> Table:
    """Return a paper's numbers beside the simulation's."""
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


def paper_tables(numbers: Iterable[ReportedNumber], claims: Iterable[Claim]) -> dict[str, Table]:
    """Return the tables of a paper's numbers and of its statements."""
    rows = [[claim, str(standing), found] for claim, standing, found in claims]
    return {
        "reported": reported_table(numbers),
        "claims": Table(["claim", "verdict", "found"], rows),
    }


def _shown(row: ReportedNumber) -> str:
    shown = format(row.found, ".3g")
    return shown if math.isnan(row.found.value) else shown + row.unit
