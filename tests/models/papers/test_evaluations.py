from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.models.__main__ import main
from penstock.models.papers import evaluations
from penstock.models.papers.dequeue import sweep as dequeue
from penstock.models.papers.evaluations import EVALUATIONS, Evaluation, EvaluationResults, tables
from penstock.models.papers.paper_figures import ReportedNumber
from penstock.netem.figures.estimates import Estimate, Standing
from penstock.netem.figures.figure_file import read_figure_file


def test_each_evaluation_of_the_papers_is_run_quick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``penstock plan papers --quick``: a row for each number, with the command that gives it."""
    file = tmp_path / "papers.json"
    assert main(["papers", "--quick", "--figures", str(file)]) == 0
    out, err = capsys.readouterr()
    _, found = read_figure_file(file)
    assert all(f"\n{table}\n" in out for table in found.values())
    numbers = found["numbers"]
    assert [row[0] for row in found["statements"].rows] == ["000", "001", "002", "003", "004"]
    assert {row[0] for row in numbers.rows} == {"000", "001", "002", "003", "004"}
    assert numbers.columns[-1] == "command"
    assert numbers.rows[0][-1] == "`penstock plan dequeue`"
    assert "100%: " in err  # each step was told, and no more of them than were expected
    assert "101%" not in err
    assert "no verdict here counts" in out


def test_statements_that_do_not_hold_are_told_each() -> None:
    """The others are counted."""
    number = ReportedNumber("gain", 2.0, Estimate(2.1, 2.0, 2.2, 8), "as it is")
    claims = [
        ("a", Standing.MET, "1"),
        ("b", Standing.MISSED, "2"),
        ("c", Standing.NOT_SHOWN, "3"),
        ("d", Standing.MET, "4"),
    ]
    made = tables({EVALUATIONS[0]: EvaluationResults([number], claims)})
    assert made["statements"].rows == [["000", "2", "1", "1", "`penstock plan dequeue`"]]
    assert made["statements that are not met"].rows == [
        ["000", "b", "missed", "2"],
        ["000", "c", "not shown", "3"],
    ]
    assert made["numbers"].rows[0][:3] == ["000", "gain", "2"]


EVIDENCE = Path(__file__).resolve().parents[3] / "docs" / "evidence"

FIGURES = {
    "000": {str(number) for number in range(1, 15)},
    "001": {
        f"{chapter}.{number}"
        for chapter, last in ((1, 8), (2, 12), (3, 17))  # chapter 4 has those of 000
        for number in range(1, last + 1)
    },
    "002": {str(number) for number in range(1, 11)},
    "003": {str(number) for number in range(1, 12)},
    "004": {str(number) for number in range(1, 16)},
}
"""The numbers of the figures that each paper has."""


@pytest.mark.parametrize("paper", FIGURES)
def test_every_figure_of_the_papers_has_its_row(paper: str) -> None:
    """In the first table of the paper's page; ``1.1 to 1.8, 2.1`` names nine of them."""
    (page,) = EVIDENCE.glob(f"paper-{paper}-*.md")
    table = page.read_text(encoding="utf-8").partition("| figure, table |")[2].partition("\n\n")[0]
    found = set()
    for figures in re.findall(r"^\| ([\d., to]+)", table, re.MULTILINE):
        for part in figures.split(","):
            first, _, last = part.strip().partition(" to ")
            if not last:
                found.add(first)
                continue
            head, dot, begin = first.rpartition(".")
            for number in range(int(begin), int(last.rpartition(".")[2]) + 1):
                found.add(f"{head}{dot}{number}")
    assert FIGURES[paper] - found == set()


def fails(_is_quick: bool, _tell: evaluations.Tell) -> None:  # noqa: FBT001 - the form of all
    """Evaluate nothing."""
    raise ValueError("overflows")


def test_an_evaluation_that_fails_ends_the_run() -> None:
    """Its error is that of the run; a table without it would look whole."""
    evaluation = Evaluation("000", "dequeue", fails, dequeue.numbers, dequeue.claims, (1, 1))
    with pytest.raises(ValueError, match="overflows"):
        evaluations.run([evaluation], lambda _step, _ratio: None, is_quick=True)
