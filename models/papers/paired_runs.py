"""The outcomes of a sweep: independent runs of each point, with the same seeds at every point.

Equal seeds make comparisons paired, so a ratio or a difference of two points has a much shorter
interval than its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.netem.figures.estimates import Estimate, bootstrap, difference, mean_of, ratio

Point = TypeVar("Point", bound=Hashable)
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class PairedRuns(Generic[Point, Outcome]):
    """The outcomes of the runs of a sweep.

    Attributes:
        by_point: the outcomes of each point, in the order of their seeds.
    """

    by_point: Mapping[Point, Sequence[Outcome]]

    def values(self, point: Point, measure: Callable[[Outcome], float]) -> list[float]:
        """Return a figure of each run of a point."""
        return list(map(measure, self.by_point[point]))

    def found(self, point: Point, measure: Callable[[Outcome], float]) -> Estimate:
        """Return the mean of a figure of a point, with its interval."""
        values = self.values(point, measure)
        return bootstrap(len(values), mean_of(values))

    def over(self, point: Point, other: Point, measure: Callable[[Outcome], float]) -> Estimate:
        """Return the mean of a figure of a point over that of another point."""
        ours, theirs = (self.values(each, measure) for each in (point, other))
        return bootstrap(len(ours), ratio(mean_of(ours), mean_of(theirs)))

    def gain(
        self,
        point: Point,
        other: Point,
        measure: Callable[[Outcome], float],
        other_measure: Callable[[Outcome], float] | None = None,
    ) -> Estimate:
        """Return by how much a figure of a point is above one of another point."""
        ours, theirs = self.values(point, measure), self.values(other, other_measure or measure)
        return bootstrap(len(ours), difference(mean_of(ours), mean_of(theirs)))
