from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.conformance.statements import BINDS, VERSIONS, sort_key, statements


@pytest.mark.parametrize(("marker", "n_statements"), [("mqtt5", 251), ("mqtt311", 141)])
def test_every_number_of_the_specification_is_there(marker: str, n_statements: int) -> None:
    """The list has as many statements as Appendix B, in its order, without a gap."""
    numbers = list(statements(marker))
    assert len(numbers) == n_statements
    assert numbers == sorted(numbers, key=sort_key)
    by_section = itertools.groupby(numbers, key=lambda number: number.partition("-")[0])
    for section, group in by_section:
        found = [sort_key(number)[-1] for number in group]
        # MQTT 5.0 has no 2.2.1-1.
        first = 2 if (marker, section) == ("mqtt5", "2.2.1") else 1
        assert found == list(range(first, first + len(found))), section


@pytest.mark.parametrize("marker", VERSIONS)
def test_each_statement_says_whom_it_binds(marker: str) -> None:
    """A statement has a sentence of its own, and names server, client or both."""
    for number, statement in statements(marker).items():
        assert statement.binds in BINDS, number
        assert statement.says.endswith("."), number
        assert not statement.not_applicable.endswith("."), number
    counts = Counter(statement.binds for statement in statements(marker).values())
    assert counts["server"] > counts["client"]
