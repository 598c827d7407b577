"""Rows as aligned lines of text, safe for a terminal, and the forms of times and sizes in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.plugins.web.terminal_escape import printable

MOST_CHARACTERS: Final = 120
"""A longer text is cut off: one client may have a name of 64 KiB. JSON has all of it."""

UNKNOWN: Final = "-"
"""Stands for what is not known, and for an empty text."""

_DURATIONS: Final = (
    (0.9995, 0.001, "{:.3g} ms"),
    (100.0, 1.0, "{:.1f} s"),
    (7_200.0, 60.0, "{:.0f} min"),
    (172_800.0, 3_600.0, "{:.0f} h"),
)
"""Below so many seconds, the unit and how a number of it is written."""

_SIZES: Final = ((1e3, 1.0, "{:.0f} B"), (1e6, 1e3, "{:.1f} kB"), (1e9, 1e6, "{:.1f} MB"))


def text(value: Any) -> str:
    """Return a text of the program's or of a client's."""
    return printable(str(value)) if value not in (None, "") else UNKNOWN


def count(value: float | None) -> str:
    """Return a number of things, or a rate."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Return a time."""
    return _scaled(seconds, _DURATIONS, 86_400.0, "{:,.0f} d")


def size(n_bytes: float | None) -> str:
    """Return a number of bytes."""
    return _scaled(n_bytes, _SIZES, 1e9, "{:,.1f} GB")


def _scaled(
    value: float | None, steps: Sequence[tuple[float, float, str]], unit: float, form: str
) -> str:
    if value is None:
        return UNKNOWN
    for below, step_unit, step_form in steps:
        if value < below:
            return step_form.format(value / step_unit)
    return form.format(value / unit)


def yes_or_no(value: Any) -> str:
    """Return whether something is so."""
    return "yes" if value else "no"


class Column(NamedTuple):
    """A column of a table."""

    title: str
    key: str
    form: Callable[[Any], str] = text

    @property
    def is_number(self) -> bool:
        """Whether it is written to the right."""
        return self.form not in (text, yes_or_no)

    def of(self, row: Mapping[str, Any]) -> str:
        """Return the text of a row.

        Raises:
            KeyError: the row has no such key.
            TypeError: the value has another type; so does ValueError say.
        """
        return self.form(row[self.key])


def lines(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table; see `Column.of` for what is raised."""
    table = [[column.title for column in columns]]
    table += [[_cut(column.of(row)) for column in columns] for row in rows]
    yield from aligned(table, [column.is_number for column in columns])


def aligned(table: Sequence[Sequence[str]], is_right: Sequence[bool]) -> Iterator[str]:
    """Yield rows of cells as lines whose columns are aligned, some to the right."""
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    for cells in table:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_right, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _cut(cell: str) -> str:
    return cell if len(cell) <= MOST_CHARACTERS else f"{cell[: MOST_CHARACTERS - 1]}…"
