from __future__ import annotations

import pytest

from tests.conformance.marks import Mark, all_marks, marks_of
from tests.conformance.statements import VERSIONS, statements
from tests.conformance.table import problems


@pytest.mark.parametrize("marker", VERSIONS)
def test_each_statement_has_a_test_or_a_reason(marker: str) -> None:
    """A statement is marked by a test or declared not applicable; marks name what there is."""
    marked = {mark.number: mark.place for mark in all_marks() if mark.marker == marker}
    found = problems(marker, statements(marker), marked)
    assert not found, "\n".join(found)


def test_marks_are_found_wherever_they_stand() -> None:
    """A mark counts on a function, on a parameter and in pytestmark; a variable's does not."""
    source = """
import pytest
pytestmark = pytest.mark.mqtt311("1.5.3-1")
@pytest.mark.mqtt5("3.1.0-1", "3.1.0-2")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.mqtt5("4.1.0-1"))])
def test_it(x): pass
@pytest.mark.mqtt5(NUMBER)
def test_other(): pass
"""
    assert sorted(marks_of(source, "f.py")) == [
        Mark("mqtt311", "1.5.3-1", "f.py:3"),
        Mark("mqtt5", "", "f.py:7"),
        Mark("mqtt5", "3.1.0-1", "f.py:4"),
        Mark("mqtt5", "3.1.0-2", "f.py:4"),
        Mark("mqtt5", "4.1.0-1", "f.py:5"),
    ]
