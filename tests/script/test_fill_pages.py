from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.netem.figures.figure_file import figure_files, fill_page
from script.fill_pages import PAGES, ROOT, main


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_of_a_page_are_those_of_the_run(page: Path) -> None:
    """What stands between the comments is what the file has; `python -m script.fill_pages`."""
    text = page.read_text(encoding="utf-8")
    assert fill_page(page) == text
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->")


def test_every_file_of_a_run_is_shown_by_a_page() -> None:
    """A file that no page shows is forgotten sooner or later."""
    shown = {file for page in PAGES for file in figure_files(page)}
    assert {file.resolve() for file in (ROOT / "docs" / "figures").glob("*")} == shown


def test_readme_says_in_words_what_the_tables_say() -> None:
    """Of a run's figures that stand in a sentence, none is left behind when the run is repeated."""
    file = ROOT / "docs" / "figures" / "transient-congestion.json"
    table = json.loads(file.read_text())["tables"]["small latency"]
    ours, theirs = (
        [
            seconds(row[table["columns"].index(figure)])
            for figure in ("p50", "p90")
            for row in table["rows"]
            if row[0] == broker
        ]
        for broker in ("adaptive", "mosquitto")
    )
    words = (
        f"{ours[0]:.1f} s in the median and {ours[1]:.1f} s at p90"
        f" (mosquitto: {theirs[0]:.1f} s and {theirs[1]:.1f} s)"
    )
    assert words in (ROOT / "README.md").read_text(encoding="utf-8")


def seconds(cell: str) -> float:
    """Return the value of a latency with its unit and its interval."""
    value, unit = cell.split()[:2]
    return float(value) / {"s": 1, "ms": 1000}[unit]


def test_pages_that_are_right_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, and no page is named."""
    main([])
    assert capsys.readouterr().out == ""
