from __future__ import annotations

from typing import Final

from tests.conformance.statements import Statement, statements
from tests.conformance.table import TITLES, full_table, not_applicable, problems, render

KNOWN: Final = {
    "1.1.1-1": Statement("1.1.1-1", "server", "It is so."),
    "1.1.1-2": Statement("1.1.1-2", "client", "It is not.", "nobody asks"),
}


KNOWN_OF_BOTH: Final = {"mqtt5": KNOWN, "mqtt311": KNOWN}


def test_the_page_counts_the_statements_and_tests_of_each_section() -> None:
    """What is not proven stands below with its reason; what is proven is counted alone."""
    passed = {"tests/a/test_b.py::test_c": "passed", "tests/a/test_a.py::test_d": "passed"}
    text = render({"mqtt5": {"1.1.1-1": passed}, "mqtt311": {}}, KNOWN_OF_BOTH)
    assert "| MQTT 5.0 | 2 | 1 | 0 | 1 |" in text
    assert "| MQTT 3.1.1 | 2 | 0 | 1 | 1 |" in text
    assert "| 1.1 | 1/2 (2) | 0/2 (0) |" in text
    assert "| MQTT 5.0 | 1.1.1-1 |" not in text
    assert "| MQTT 3.1.1 | 1.1.1-1 | It is so. | **no test** |" in text
    assert "| MQTT 5.0 | a client's duty | 1.1.1-2 |" in text


def test_what_does_not_apply_stands_by_its_reason() -> None:
    """A client's duty needs no other one."""
    rows = [*KNOWN.values(), Statement("1.1.1-3", "server", "It may be so.", "nobody asks")]
    rows += [Statement("1.1.1-4", "client", "It was not.", "nobody knows")]
    known = {row.number: row for row in rows}
    assert not_applicable({"mqtt5": known, "mqtt311": {}})[2:] == [
        "| MQTT 5.0 | a client's duty | 1.1.1-2, 1.1.1-4 |",
        "| MQTT 5.0 | nobody asks | 1.1.1-3 |",
    ]


def test_a_failing_proof_is_shown_as_failing() -> None:
    """One test that fails or is skipped takes the statement out of the proven ones."""
    outcomes = {"tests/test_a.py::test_c": "failed", "tests/test_a.py::test_d": "passed"}
    proofs = {"mqtt5": {"1.1.1-1": outcomes}, "mqtt311": {}}
    for text in (render(proofs, KNOWN_OF_BOTH), full_table(proofs, KNOWN_OF_BOTH)):
        assert "| **failed**: `tests/test_a.py::test_c`, `tests/test_a.py::test_d` |" in text
    assert "| MQTT 5.0 | 2 | 0 | 1 | 1 |" in render(proofs, KNOWN_OF_BOTH)


def test_the_full_table_has_each_statement_with_its_tests() -> None:
    """Or with the reason for having none."""
    proofs = {"mqtt5": {"1.1.1-1": {"tests/test_a.py::test_c": "passed"}}, "mqtt311": {}}
    text = full_table(proofs, KNOWN_OF_BOTH)
    assert "| 1.1.1-1 | server | It is so. | `tests/test_a.py::test_c` |" in text
    assert text.count("| 1.1.1-2 | client | It is not. | not applicable: nobody asks |") == 2


def test_each_section_has_its_title() -> None:
    """As the specification has it."""
    for marker, titles in TITLES.items():
        sections = {".".join(number.split("-")[0].split(".")[:2]) for number in statements(marker)}
        assert sections <= titles.keys()


def test_problems_name_the_place_and_the_statement() -> None:
    """Unknown numbers, marks on what is not applicable, and statements without test are told."""
    marked = {"9.9.9-9": "tests/test_a.py:7", "1.1.1-2": "tests/test_a.py:9"}
    assert problems("mqtt5", KNOWN, marked) == [
        "tests/test_a.py:9: MQTT 5.0 statement 1.1.1-2 is declared not applicable",
        "tests/test_a.py:7: MQTT 5.0 has no statement '9.9.9-9'",
        "MQTT 5.0 statement 1.1.1-1 has neither a test nor a reason",
    ]
    assert problems("mqtt5", KNOWN, {"1.1.1-1": "tests/test_a.py:7"}) == []
