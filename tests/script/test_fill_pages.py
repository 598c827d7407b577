from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.netem.figures.figure_file import CELL, figure_files, fill_page
from script.fill_pages import PAGES, ROOT, main


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_of_a_page_are_those_of_the_run(page: Path) -> None:
    """What stands between the comments is what the file has; `python -m script.fill_pages`."""
    text = page.read_text(encoding="utf-8")
    assert fill_page(page) == text
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->")
    assert len(re.findall(r"<!-- figure: \S+\.json ", text)) == len(CELL.findall(text))


def test_every_file_of_a_run_is_shown_by_a_page() -> None:
    """A file that no page shows is forgotten sooner or later."""
    shown = {file for page in PAGES for file in figure_files(page)}
    assert {file.resolve() for file in (ROOT / "docs" / "figures").glob("*")} == shown


def test_pages_that_are_right_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, and no page is named."""
    main([])
    assert capsys.readouterr().out == ""
