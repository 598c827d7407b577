"""The progress of a run on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

BAR_LETTERS: Final = 24
"""The width of the bar in characters, of the 80 that a terminal has at least."""


class Display:
    """The progress of a run."""

    def __init__(self, title: str, total_seconds: float) -> None:
        self._title = title
        self._total_seconds = total_seconds
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> Self:
        """Begin to show."""
        if sys.stderr.isatty():
            self._bar = Progress(
                BarColumn(BAR_LETTERS),
                TextColumn("{task.fields[left]} left"),
                # Last: what does not fit into the terminal is cut, and it is the longest.
                TextColumn(
                    "{task.description}",
                    table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
                ),
                expand=True,
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(
                self._title, total=self._total_seconds, left=clock(self._total_seconds)
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def stage(self, words: str) -> None:
        """Say what is going on now."""
        if words == self._stage:
            return
        self._stage = words
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=words)
        else:
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")
            sys.stderr.flush()

    def left(self, seconds: float) -> None:
        """Say how long it still takes at the least."""
        if self._bar is not None and self._task is not None:
            done = max(0.0, self._total_seconds - seconds)
            self._bar.update(self._task, completed=done, left=clock(seconds))


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02}"
