"""The parts that the plots of all papers share: panels, and curves with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.netem.figures.estimates import Estimate


@contextmanager
def panels(file: Path, rows: int, columns: int, inches: tuple[float, float]) -> Iterator[Any]:
    """Yield the axes of a picture, as an array of rows and columns, and then write its file.

    Raises:
        ImportError: matplotlib is not installed (the extra ``models``).
        OSError: the file cannot be written.
        ValueError: there is no such format.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and tables come without it

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, grid = plt.subplots(rows, columns, figsize=inches, squeeze=False, layout="tight")
    try:
        yield grid
        figure.savefig(file, dpi=100)
    finally:
        plt.close(figure)


def draw_curve(
    axes: Any, places: Sequence[float], found: Sequence[Estimate], form: str = "", **options: Any
) -> None:
    """Draw a curve with a band for its intervals."""
    (line,) = axes.plot(places, [each.value for each in found], form, **options)
    lows, highs = [each.low for each in found], [each.high for each in found]
    axes.fill_between(places, lows, highs, alpha=0.2, color=line.get_color())
