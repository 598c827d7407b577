from __future__ import annotations

from typing import Final

from tests.conformance.statements import Statement
from tests.conformance.table import problems, render

KNOWN: Final = {
    "1.1.1-1": Statement("1.1.1-1", "server", "It is so."),
    "1.1.1-2": Statement("1.1.1-2", "client", "It is not.", "nobody asks"),
}


def test_the_table_shows_state_and_tests_of_each_statement() -> None:
    """Each statement has a row with its tests or its reason; the counts stand before."""
    passed = {"tests/a/test_b.py::test_c": "passed", "tests/a/test_a.py::test_d": "passed"}
    text = render({"mqtt5": {"1.1.1-1": passed}, "mqtt311": {}}, {"mqtt5": KNOWN, "mqtt311": KNOWN})
    assert "| MQTT 5.0 | 2 | 1 | 0 | 1 |" in text
    assert "| MQTT 3.1.1 | 2 | 0 | 1 | 1 |" in text
    links = "[d](../tests/a/test_a.py), [c](../tests/a/test_b.py)"
    assert f"| 1.1.1-1 | server | It is so. | {links} |" in text
    assert "| 1.1.1-1 | server | It is so. | **no test** |" in text
    assert text.count("| 1.1.1-2 | client | It is not. | *not applicable*: nobody asks |") == 2


def test_a_failing_proof_is_shown_as_failing() -> None:
    """One test that fails or is skipped takes the statement out of the proven ones."""
    outcomes = {"tests/test_a.py::test_c": "failed", "tests/test_a.py::test_d": "passed"}
    text = render(
        {"mqtt5": {"1.1.1-1": outcomes}, "mqtt311": {}}, {"mqtt5": KNOWN, "mqtt311": KNOWN}
    )
    assert "| MQTT 5.0 | 2 | 0 | 1 | 1 |" in text
    assert "| **failed**: [c](../tests/test_a.py), [d](../tests/test_a.py) |" in text


def test_problems_name_the_place_and_the_statement() -> None:
    """Unknown numbers, marks on what is not applicable, and statements without test are told."""
    marked = {"9.9.9-9": "tests/test_a.py:7", "1.1.1-2": "tests/test_a.py:9"}
    assert problems("mqtt5", KNOWN, marked) == [
        "tests/test_a.py:9: MQTT 5.0 statement 1.1.1-2 is declared not applicable",
        "tests/test_a.py:7: MQTT 5.0 has no statement '9.9.9-9'",
        "MQTT 5.0 statement 1.1.1-1 has neither a test nor a reason",
    ]
    assert problems("mqtt5", KNOWN, {"1.1.1-1": "tests/test_a.py:7"}) == []
