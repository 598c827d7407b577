"""Latency profiles from files: lines of ``payload bytes,latency``, or a YAML mapping.

Each error names its place in the file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.plugins.withholding.profile import table_problem

CSV_SUFFIXES: Final = (".csv",)
YAML_SUFFIXES: Final = (".yaml", ".yml")

_MOST_DIGITS: Final = 18
"""Of payload bytes: far more than any message has."""

_ROW: Final = "payload bytes, a comma and a latency, such as 10000,1.0"
_KEY: Final = "payload bytes, such as 10000 or 10 kB"
_LATENCY: Final = "a latency, such as 1.0"


def is_csv(name: str) -> bool:
    """Say whether a profile's file has lines of CSV.

    Raises:
        ValueError: its suffix is neither of CSV nor of YAML.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix in (*CSV_SUFFIXES, *YAML_SUFFIXES):
        return suffix in CSV_SUFFIXES
    allowed = ", ".join((*CSV_SUFFIXES, *YAML_SUFFIXES))
    raise ValueError(f"a table, learned, or a file whose name ends in one of {allowed}")


def parse_csv_profile(text: str, file: str) -> dict[int, float]:
    """Return the table in a CSV text.

    Empty lines and lines that begin with ``#`` are ignored; the first other line may be a header.

    Args:
        text: of the file.
        file: its name, for errors.

    Raises:
        ConfigError: names every wrong line.
    """
    table: dict[int, float] = {}
    lines: dict[int, int] = {}
    problems: list[ConfigProblem] = []
    is_first = True
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if line.lstrip().startswith("#") or not any(cells):
            continue
        row = _row(cells)
        if row is None:
            is_header = is_first and len(cells) == 2 and not any(map(_number_in, cells))
            if not is_header:
                problems.append(ConfigProblem(f"line {number}", repr(line[:80]), _ROW))
        elif row[0] in table:
            read = f"{row[0]} bytes as in line {lines[row[0]]}"
            problems.append(ConfigProblem(f"line {number}", read, "each size once"))
        else:
            table[row[0]] = row[1]
            lines[row[0]] = number
        is_first = False
    if problems:
        raise ConfigError(file, problems)
    _check(table, file, {size: f"line {number}" for size, number in lines.items()})
    return table


def table_of_mapping(
    mapping: Mapping[Any, Any], file: str, read_size: Callable[[object], int | None]
) -> dict[int, float]:
    """Return the table in a YAML mapping.

    Args:
        mapping: from the file.
        file: its name, for errors.
        read_size: returns the bytes that a key stands for, or None where it is no size.

    Raises:
        ConfigError: names every wrong key or value.
    """
    problems = []
    table: dict[int, float] = {}
    for size, latency in mapping.items():
        n_bytes = read_size(size)
        if n_bytes is None:
            problems.append(ConfigProblem(str(size), f"the key {size!r}", _KEY))
        elif n_bytes in table:
            problems.append(ConfigProblem(str(size), f"{n_bytes} bytes again", "each size once"))
        elif type(latency) not in {int, float}:
            problems.append(ConfigProblem(str(size), repr(latency), _LATENCY))
        else:
            table[n_bytes] = math.inf if latency > sys.float_info.max else float(latency)
    if problems:
        raise ConfigError(file, problems)
    _check(table, file, {size: str(size) for size in table})
    return table


def _row(cells: list[str]) -> tuple[int, float] | None:
    size = cells[0]
    if len(cells) != 2 or not (size.isascii() and size.isdecimal()) or len(size) > _MOST_DIGITS:
        return None
    latency = _number_in(cells[1])
    return None if latency is None else (int(size), latency)


def _number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check(table: Mapping[int, float], file: str, places: Mapping[int, str]) -> None:
    """Check the rows together.

    Raises:
        ConfigError: they are not a profile.
    """
    problem = table_problem(table)
    if problem is None:
        return
    size, allowed = problem
    place = "file" if size is None else places[size]
    read = "no rows" if size is None else f"{size}: {table[size]:g}"
    raise ConfigError(file, [ConfigProblem(place, read, allowed)])
