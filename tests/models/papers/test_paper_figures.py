from __future__ import annotations

import math

from penstock.models.papers.paper_figures import ReportedNumber, paper_tables, reported_table
from penstock.netem.figures.estimates import Estimate, Standing


def test_a_row_has_deviation_reading_and_closed_form() -> None:
    """A reported bound is judged as a bound."""
    found = Estimate(0.8, 0.78, 0.82, 8)
    rows = [
        ReportedNumber("success", 0.73, found, "as it is", "at least", 0.83),
        ReportedNumber("response", 0.7, found, unit=" s"),
        ReportedNumber("cap", 0.7, found, relation="at most"),
        ReportedNumber("wait", 2.0, Estimate(math.nan, math.nan, math.nan, 8), unit=" s"),
    ]
    assert reported_table(rows).rows == [
        ["success", "at least 0.73", "0.8 (0.78 to 0.82)", "+9.6%", "0.83", "met", "as it is"],
        ["response", "0.7 s", "0.8 (0.78 to 0.82) s", "+14.3%", "-", "missed", ""],
        ["cap", "at most 0.7", "0.8 (0.78 to 0.82)", "+14.3%", "-", "missed", ""],
        ["wait", "2 s", "-", "-", "-", "not shown", ""],
    ]


def test_the_tables_of_a_paper_have_its_numbers_and_statements() -> None:
    """Each statement stands with its verdict, and with what was found."""
    number = ReportedNumber("success", 0.73, Estimate(0.8, 0.78, 0.82, 8))
    found = paper_tables([number], [("it grows", Standing.MET, "by 2")])
    assert found["reported"].rows[0][:2] == ["success", "0.73"]
    assert found["claims"].rows == [["it grows", "met", "by 2"]]
