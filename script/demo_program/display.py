"""The demo's display while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from script.demo_program.books import read_ledger
from script.demo_program.side import Side


class Display:
    """Lines for finished steps, and below them a bar and counts that change.

    Where the output is no terminal, only the lines appear.
    """

    def __init__(self, console: Console) -> None:
        self._began_at = time.monotonic()
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays, with the time since the demo began."""
        elapsed = time.monotonic() - self._began_at
        self._console.print(f"{elapsed:5.1f} s  {line}", highlight=False)

    def show(self, doing: str, share: float, sides: Sequence[Side]) -> None:
        """Change the bar and the counts below the lines."""
        line = Table.grid()  # a bar alone does not end its line
        line.add_row(ProgressBar(total=1.0, completed=min(1.0, share), width=60))
        self._live.update(Group(Text(doing), line, counts(sides)))


def counts(sides: Sequence[Side]) -> Table:
    """Return where the messages of each broker are now."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column()
    for side in sides:
        table.add_column(side.name, justify="right")
    ledgers = [read_ledger(side.reader.figures()) for side in sides]
    rows = {
        "published": [side.n_published for side in sides],
        "acknowledged to the publisher": [side.publisher.n_acknowledged for side in sides],
        "at the direct subscriber": [side.direct.n_received for side in sides],
        "at the slow subscriber": [side.slow.n_received for side in sides],
        "withheld now": [ledger.withheld for ledger in ledgers],
        "queued and inflight now": [ledger.queued + ledger.inflight for ledger in ledgers],
    }
    for name, numbers in rows.items():
        table.add_row(name, *(f"{number:,}" for number in numbers))
    return table
