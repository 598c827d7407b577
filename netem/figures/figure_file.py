"""Figures of pages: tables that a run wrote to a JSON file, and the pages that show them.

A page shows a table of a file between two comments, and nothing else stands there::

    <!-- figures: figures/withholding-simulation.json latency -->
    <!-- /figures -->

The file is relative to the page, the table is one of its names, or ``origin`` for a line with the
command, commit, machine and date of the run. A page may show some rows, some columns, or both::

    <!-- figures: figures/links.json kinds; where way is all; columns kind | units -->

A sentence shows a cell, by the first cell of its row and the heading of its column::

    <!-- figure: figures/demo.json small; two lanes; p90 -->1.05 s<!-- /figure -->

`fill_page` writes what belongs there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.netem.errors import NetemError
from penstock.netem.runs.provenance import commit, machine, python

ORIGIN: Final = "origin"
"""The name by which a page shows the line about the run; no table has this name."""

SHOWN: Final = re.compile(
    r"^<!-- figures: (?P<file>\S+) (?P<table>[^;\n]+?)(?P<part>;[^\n]+)? -->\n"
    r"(?P<shown>.*?)^<!-- /figures -->$",
    re.MULTILINE | re.DOTALL,
)
"""The comments between which a page shows a table of a file, or a part of it."""

CELL: Final = re.compile(
    r"<!-- figure: (?P<file>\S+\.json) (?P<table>[^;>]+); (?P<row>[^;>]+); (?P<column>[^;>]+) -->"
    r"(?P<shown>[^<]*)<!-- /figure -->"
)
"""The comments between which a sentence shows a cell of a file."""

ONCE: Final = re.compile(r" --repeats[ =]1(?!\d)")
"""The option of a command that measures each row once."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text, as a page shows it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def cell(self, row: str, column: str) -> str:
        """Return a cell.

        Raises:
            KeyError: there is not one such row and column; with what is allowed.
        """
        return self.rows[_index(row, [cells[0] for cells in self.rows])][self._column(column)]

    def part(self, clauses: str) -> Table:
        """Return some rows and columns of it.

        Args:
            clauses: each begins with ``;``: ``; where COLUMN is VALUE | VALUE`` keeps the rows
                that have one of these cells, ``; columns NAME | NAME`` the columns of these names.

        Raises:
            KeyError: there is no such column or cell, or a clause is neither; with what is allowed.
        """
        table = self
        for clause in (text.strip() for text in clauses.split(";")[1:]):
            if clause.startswith("where "):
                at, values = table._condition(clause.removeprefix("where "))
                table = Table(table.columns, [row for row in table.rows if row[at] in values])
            elif clause.startswith("columns "):
                names = clause.removeprefix("columns ").split(" | ")
                kept = [table._column(name) for name in names]
                rows = [[row[at] for at in kept] for row in table.rows]
                table = Table([table.columns[at] for at in kept], rows)
            else:
                raise KeyError(f"read {clause!r}; allowed: where COLUMN is VALUE, columns NAME")
        return table

    def _condition(self, text: str) -> tuple[int, list[str]]:
        """Return which column it is about, and the cells that are kept."""
        names = [name for name in self.columns if text.startswith(f"{name} is ")]
        at = self._column(max(names, key=len, default=text.partition(" is ")[0]))
        values = text.removeprefix(f"{self.columns[at]} is ").split(" | ")
        cells = [row[at] for row in self.rows]
        for value in values:
            if value not in cells:
                raise KeyError(f"read {value!r}; allowed: {', '.join(sorted(set(cells)))}")
        return at, values

    def _column(self, name: str) -> int:
        return _index(name, list(self.columns))

    def __str__(self) -> str:
        """Return it in Markdown, without a newline at its end."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _index(name: str, names: Sequence[str]) -> int:
    if list(names).count(name) != 1:
        raise KeyError(f"read {name!r}; allowed, once each: {', '.join(names)}")
    return list(names).index(name)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of figures.

    Attributes:
        commit: the commit of the checkout, as `provenance.commit` says.
        date: the date of its begin, as YYYY-MM-DD in UTC.
    """

    command: str
    commit: str | None
    machine: str
    python: str
    date: str
    doubts: Sequence[str] = ()

    def __str__(self) -> str:
        """Return it in a line, with the first doubt in short and how many more the file has."""
        made_by = f"commit {self.commit}" if self.commit else "an installed package"
        line = f"`{self.command}`; {made_by}, {self.date}, {self.python}, {self.machine}."
        if ONCE.search(self.command):
            line += " **A look, no claim:** each row was measured once, so no spread is known."
        if self.doubts:
            short = self.doubts[0].partition(" (")[0]
            line += f" **Doubtful:** {short}."
        if len(self.doubts) > 1:
            line += f" {len(self.doubts) - 1} more in the file."
        return line


def check_writable(file: Path) -> None:
    """Check that a file can be written, without writing it.

    Raises:
        OSError: it cannot; without the name of the file.
    """
    folder = file.parent
    if not folder.is_dir():
        raise NotADirectoryError(f"no folder {folder}")
    if file.exists() and not file.is_file():
        raise IsADirectoryError("not a regular file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise PermissionError("cannot be written")


def begin(command: str) -> Origin:
    """Return the origin of a run that begins; what is committed later is not in it."""
    return Origin(command, commit(), machine(), python(), datetime.now(UTC).date().isoformat())


def write_figure_file(file: Path, origin: Origin, tables: Mapping[str, Table]) -> None:
    """Write the tables and the origin of a run; overwrite the file.

    Raises:
        OSError: the file cannot be written.
    """
    found = {
        "origin": asdict(origin),
        "tables": {name: asdict(table) for name, table in tables.items()},
    }
    text = json.dumps(found, ensure_ascii=False, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def read_figure_file(file: Path) -> tuple[Origin, dict[str, Table]]:
    """Return what a run has written: where it is from, and the tables by name.

    Raises:
        NetemError: the file cannot be read, or is none that `write_figure_file` wrote.
    """
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        tables = {name: Table(**table) for name, table in found["tables"].items()}
        return Origin(**found["origin"]), tables
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NetemError(f"figures: {file}: {error}") from None


def fill_page(page: Path) -> str:
    """Return the text of a page with each table and each cell as its file has it.

    Raises:
        NetemError: a file cannot be read or has no such table, row or column.
    """
    files: dict[str, dict[str, Origin | Table]] = {}

    def shown(found: re.Match[str]) -> Origin | Table:
        name, table = found["file"], found["table"]
        if name not in files:
            origin, tables = read_figure_file(page.parent / name)
            files[name] = {ORIGIN: origin, **tables}
        if table not in files[name]:
            allowed = ", ".join(files[name])
            raise NetemError(f"figures: {page}: {name}: read {table!r}; allowed: {allowed}")
        return files[name][table]

    def asked(found: re.Match[str], ask: Callable[[Table], Table | str]) -> Table | str:
        table = shown(found)
        if not isinstance(table, Table):
            raise NetemError(f"figures: {page}: {found['file']}: read {ORIGIN!r}; allowed: a table")
        try:
            return ask(table)
        except KeyError as error:
            raise NetemError(f"figures: {page}: {found['file']}: {error.args[0]}") from None

    def fill_table(found: re.Match[str]) -> str:
        part = found["part"]
        text = asked(found, lambda table: table.part(part)) if part else shown(found)
        return f"{found[0].partition('-->')[0]}-->\n{text}\n<!-- /figures -->"

    def fill_cell(found: re.Match[str]) -> str:
        cell = asked(found, lambda table: table.cell(found["row"], found["column"]))
        return f"{found[0].partition('-->')[0]}-->{cell}<!-- /figure -->"

    return CELL.sub(fill_cell, SHOWN.sub(fill_table, page.read_text(encoding="utf-8")))


def figure_files(page: Path) -> set[Path]:
    """Return the files that a page shows figures of."""
    text = page.read_text(encoding="utf-8")
    found = (*SHOWN.finditer(text), *CELL.finditer(text))
    return {(page.parent / each["file"]).resolve() for each in found}
