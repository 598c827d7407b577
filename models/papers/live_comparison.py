"""Live runs of a broker and a queue beside the models of papers 003 and 004."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.models.papers.model_vs_measured import ComparedFigure, compared_table, is_late
from penstock.models.papers.patterns import live_run as patterns
from penstock.models.papers.visibility import live_run as visibility
from penstock.netem.figures.figure_file import Table

RUNS: Final = (
    (patterns.PathRuns(), visibility.QueueRuns()),
    (patterns.PathRuns(6, 8.0), visibility.QueueRuns(6, 4.0)),
)
"""The extents of a run: whole, and quick."""


class LiveResults(NamedTuple):
    """The results of live runs."""

    tables: dict[str, Table]
    doubts: Sequence[str]


def run(tell: Callable[[str], None], *, is_quick: bool) -> LiveResults:
    """Run all live comparisons, one after the other.

    Raises:
        NetemError: a server or a client does not run.
    """
    of_patterns, of_visibility = RUNS[is_quick]
    rows = patterns.run(of_patterns, 0, tell)
    rows += visibility.run(of_visibility, 0, tell)
    return LiveResults({"real runs": compared_table(rows)}, list(doubts(rows)))


def doubts(rows: Sequence[ComparedFigure]) -> list[str]:
    """Return why the figures are doubtful, if clients were late in some of the runs."""
    n_late = sum(is_late(row) for row in rows)
    most = max((row.late_seconds for row in rows), default=0.0)
    if not n_late:
        return []
    told = (
        f"this machine was busy: clients were up to {most:.2g} s late in 99 of 100 cases, in"
        f" {n_late} of {len(rows)} rows by too much for a verdict"
    )
    return [told]
