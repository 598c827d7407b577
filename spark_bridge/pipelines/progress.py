"""The display of a run's progress: a table on a terminal, lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.spark_bridge.progress_totals import EXPIRED, MESSAGES

if TYPE_CHECKING:
    from penstock.spark_bridge.pipelines.running import Summaries, Summary

LINE_SECONDS: Final = 5.0
"""The seconds between two lines of a query."""


def describe(name: str, summary: Summary) -> str:
    """Return the counts of a query on one line."""
    batches = f"{summary.micro_batches:,} micro-batches, {summary.seconds:,.1f} s"
    parts = [f"{name}: {summary.rows:,} messages in {batches}"]
    counts = {"late": summary.late_groups, **summary.observed}
    parts += [f"{what} {n:,}" for what, n in counts.items() if n and what != MESSAGES]
    lag = sum(summary.lag.values())
    if lag:
        parts.append(f"{lag:,} wait")
    return ", ".join(parts)


class Display:
    """The display of a run's progress; use it as a context manager."""

    def __init__(
        self,
        console: Console,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._clock = clock
        self._next_at = clock()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, summaries: Summaries) -> None:
        """Show the counts so far."""
        if self._live is not None:
            self._live.update(to_table(summaries), refresh=True)
        elif self._clock() >= self._next_at:
            self._next_at = self._clock() + LINE_SECONDS
            for name, summary in summaries.items():
                if summary.rows:
                    self._say(describe(name, summary))


def to_table(summaries: Summaries) -> Table:
    """Return the counts as a table, a row for each query."""
    table = Table()
    table.add_column("query")
    for column in ("messages", "rows/s", "lag", "s/batch", "quarantined", "expired", "late"):
        table.add_column(column, justify="right")
    for name, summary in summaries.items():
        seconds = summary.seconds / max(1, summary.micro_batches)
        observed = dict(summary.observed)
        observed.pop(MESSAGES, None)
        expired = observed.pop(EXPIRED, 0)
        counts = (sum(observed.values()), expired, summary.late_groups)
        table.add_row(
            name,
            f"{summary.rows:,}",
            f"{summary.rate:,.0f}",
            f"{sum(summary.lag.values()):,}",
            f"{seconds:,.2f}",
            *(f"{count:,}" for count in counts),
        )
    return table
