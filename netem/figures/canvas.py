"""The canvas of all plots: a slide with a title, its key and its axes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from penstock.netem.figures.colours import find_focus, find_over
from penstock.netem.figures.intervals import union
from penstock.netem.figures.measures import Measures, show
from penstock.netem.runs.run_file import RunInfo

INCHES: Final = 12.8
"""The width of a slide: 1,536 pixels."""

DOTS_PER_INCH: Final = 120
TITLE_LETTERS: Final = 74
"""The most letters of a line of the title."""

INK: Final = "#222222"
FAINT: Final = "#666666"
IMPAIRED_COLOUR: Final = "#E4E4E4"
DIMMED_COLOUR: Final = "#A9C9DD"
"""The colour of areas that belong to the broker in focus."""
LEAST_LATENCY: Final = 0.001
"""The least latency in plots, seconds: a smaller one is drawn as this, because a log axis has no
zero."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture."""

    name: str
    title: str
    about: str


def spread(places: Sequence[float], least: float, low: float) -> list[float]:
    """Return places for labels near those given, so far from each other that none touch.

    Returns:
        A place for each, in the same order of height; moved up where there is no room below.
    """
    found = [0.0] * len(places)
    free = low
    for each in sorted(range(len(places)), key=lambda one: places[one]):
        found[each] = max(places[each], free)
        free = found[each] + least
    return found


class Canvas:
    """A picture with a title that says the finding, a description, and the origin of its figures.

    Attributes:
        top: the upper edge of the axes, as a share of the picture's height.
        bottom: the lower edge of the axes, likewise.
    """

    def __init__(self, info: RunInfo, title: str, about: str, *, inches: float = 7.2) -> None:
        lines = textwrap.wrap(title, TITLE_LETTERS)
        self.figure = Figure(figsize=(INCHES, inches), dpi=DOTS_PER_INCH, facecolor="white")
        self._inches = inches
        self.figure.text(
            0.012,
            self._below(0.14),
            "\n".join(lines),
            fontsize=20,
            fontweight="bold",
            color=INK,
            va="top",
            linespacing=1.15,
        )
        head = 0.14 + 0.36 * len(lines)
        self.figure.text(
            0.012, self._below(head + 0.04), about, fontsize=12.5, color=FAINT, va="top"
        )
        self.top = self._below(head + 0.42)
        self.bottom = 0.92 / inches
        self.figure.text(0.012, 0.1 / inches, _footer(info), fontsize=9.5, color=FAINT, va="bottom")

    def _below(self, inches: float) -> float:
        return 1 - inches / self._inches

    def key(self, handles: Iterable[Any], *, in_colours: bool = False) -> None:
        """Say what shapes mean, in a row below the title."""
        self.figure.legend(
            handles=list(handles),
            labelcolor="linecolor" if in_colours else INK,
            loc="upper left",
            bbox_to_anchor=(0.006, self.top + 0.02 / self._inches),
            ncols=8,
            frameon=False,
            fontsize=12,
            handletextpad=0.4,
            columnspacing=1.5,
            borderaxespad=0.0,
        )
        self.top -= 0.36 / self._inches

    def save(self, path: Path) -> None:
        """Write it as PNG."""
        self.figure.savefig(path, dpi=DOTS_PER_INCH)


def _footer(info: RunInfo) -> str:
    seeds = info.scenario.seeds
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    parts = [
        f"penstock netem run {info.scenario.name}, {info.length} length, {shown}",
        info.date[:10],
        f"commit {info.commit}" if info.commit else "",
        info.machine,
    ]
    return "  ·  ".join(part for part in parts if part)


def compare(measures: Measures, figure: str) -> str:
    """Return ``190 ms with adaptive, 10.8 s with mosquitto``."""
    scenario = measures.scenario
    names = [find_focus(scenario), find_over(scenario)]
    return ", ".join(
        f"{show(figure, measures.figure(figure, name))} with {name}"
        for name in names
        if name is not None
    )


def begin(sentence: str) -> str:
    """Return a sentence with its first letter large, unless its first word is a name (q1-1MB)."""
    word, _, rest = sentence.partition(" ")
    return f"{word.capitalize()} {rest}" if word.isalpha() else sentence


def tidy(axes: Axes) -> None:
    """Leave of the frame what is read."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(labelsize=12, colors=INK, length=3)
    axes.grid(visible=True, which="major", color="#D8D8D8", linewidth=0.7)
    axes.set_axisbelow(True)


def shaded(measures: Measures) -> list[Patch]:
    """Return what `shade` means, for a key: nothing where no link was ever impaired."""
    if not any(row.is_impaired for row in measures.tables.links):
        return []
    label = "link impaired" if _is_focus_impaired(measures) else "link of others impaired"
    return [Patch(color=IMPAIRED_COLOUR, label=label)]


def shade(axes: Axes, measures: Measures, broker: str, seed: int, unit: str | None = None) -> None:
    """Shade the times at which the way to a subscriber in focus was impaired.

    Where no such way is ever impaired, the times of any impaired link are shaded.
    """
    if _is_focus_impaired(measures):
        times = measures.impaired(broker, seed, unit)
    else:
        times = union(
            (row.begin_s, row.end_s)
            for row in measures.tables.links
            if row.is_impaired and (row.broker, row.seed) == (broker, seed)
        )
    for begin_s, end_s in times:
        axes.axvspan(begin_s, end_s, color=IMPAIRED_COLOUR, linewidth=0, zorder=0)


def _is_focus_impaired(measures: Measures) -> bool:
    runs = {(row.broker, row.seed) for row in measures.tables.links}
    return any(measures.impaired(broker, seed) for broker, seed in runs)


def show_seconds(seconds: float, _: object = None) -> str:
    """Return a tick of a latency axis."""
    return f"{1000 * seconds:g} ms" if seconds < 1 else f"{seconds:g} s"


def label_latencies(axes: Axes, which: str) -> None:
    """Make an axis of seconds logarithmic, with ticks in ms and s."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    if not axis.get_view_interval()[0] > 0:  # nothing came, so nothing has given it a range
        (axes.set_xlim if which == "x" else axes.set_ylim)(LEAST_LATENCY, 1.0)
    # Each power of ten, however low the panel.
    axis.set_major_locator(LogLocator(10, numticks=20))
    axis.set_major_formatter(FuncFormatter(show_seconds))
    axis.set_minor_formatter(NullFormatter())
