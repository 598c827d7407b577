"""The marks of all test files, found in their text without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.conformance.statements import ROOT, VERSIONS


class Mark(NamedTuple):
    """One number in one mark.

    Attributes:
        marker: key of `VERSIONS`.
        number: as written; "" where it is not a literal.
        place: file and line, for a message.
    """

    marker: str
    number: str
    place: str


def marks_of(source: str, path: str) -> Iterator[Mark]:
    """Yield the marks in the text of one file: every ``pytest.mark.mqtt5(...)`` and its kin.

    Args:
        source: Python.
        path: of the file, for messages.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        marker = node.func.attr
        if marker not in VERSIONS or ast.unparse(node.func.value) != "pytest.mark":
            continue
        place = f"{path}:{node.lineno}"
        for argument in node.args or [ast.Constant("")]:
            is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            yield Mark(marker, ast.literal_eval(argument) if is_text else "", place)


@cache
def all_marks() -> list[Mark]:
    """Return the marks of every test file."""
    found: list[Mark] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text()
        if "pytest.mark.mqtt" in source:
            found += marks_of(source, file.relative_to(ROOT).as_posix())
    return found
