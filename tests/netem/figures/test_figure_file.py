from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.figures.figure_file import (
    Table,
    begin,
    figure_files,
    fill_page,
    read_figure_file,
    write_figure_file,
)

LATENCY = Table(["policy", "seconds"], [["none", "12.40 (12.10 to 12.70)"]])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Return a page that shows a table as it was before the file was written, and an origin."""
    (tmp_path / "figures").mkdir()
    origin = begin("penstock plan x")
    write_figure_file(tmp_path / "figures/run.json", origin, {"latency": LATENCY})
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n\n"
        "<!-- figures: figures/run.json latency -->\n| old |\n<!-- /figures -->\n\nBetween.\n\n"
        "<!-- figures: figures/run.json origin -->\n<!-- /figures -->\nAfter.\n"
    )
    return page


def test_table_is_markdown() -> None:
    """A heading, the line below it, rows."""
    assert str(Table(["a", "b"], [["1", "2"]])) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_file_is_read_as_it_was_written(page: Path) -> None:
    """With the command, and where the figures are from."""
    origin, tables = read_figure_file(page.parent / "figures/run.json")
    assert tables == {"latency": LATENCY}
    assert origin.command == "penstock plan x"
    assert "cores" in str(origin)
    assert origin.date in str(origin)


@pytest.mark.parametrize(
    ("command", "is_look"),
    [
        ("penstock bench --quick --repeats 1 --rows all", True),
        ("penstock bench --repeats=1", True),
        ("penstock bench --repeats 10", False),
        ("penstock bench", False),
    ],
)
def test_a_single_measurement_is_no_claim(command: str, *, is_look: bool) -> None:
    """A page that shows the origin says that there is no spread."""
    assert ("**A look, no claim:**" in str(begin(command))) is is_look


def test_doubts_stand_behind_the_origin(tmp_path: Path) -> None:
    """So that a page that shows the origin shows them; a file without any is read as before."""
    origin = replace(begin("penstock plan x"), doubts=["busy for 9 s (of 10 s)", "late"])
    write_figure_file(tmp_path / "run.json", origin, {})
    read, _ = read_figure_file(tmp_path / "run.json")
    assert read == origin
    assert str(read).endswith(". **Doubtful:** busy for 9 s. 1 more in the file.")
    old = json.loads((tmp_path / "run.json").read_text())
    del old["origin"]["doubts"]
    (tmp_path / "run.json").write_text(json.dumps(old))
    assert "Doubtful" not in str(read_figure_file(tmp_path / "run.json")[0])


def test_page_shows_what_the_file_has(page: Path) -> None:
    """What stood there goes, the text around it stays; filled again, nothing changes."""
    filled = fill_page(page)
    assert "\n<!-- /figures -->\n\nBetween.\n\n<!-- figures: " in filled
    assert f"Before.\n\n<!-- figures: figures/run.json latency -->\n{LATENCY}\n<!--" in filled
    assert "| old |" not in filled
    assert "origin -->\n`penstock plan x`; " in filled
    assert filled.endswith("\n<!-- /figures -->\nAfter.\n")
    page.write_text(filled)
    assert fill_page(page) == filled


MANY = Table(["kind", "way", "mean"], [["a", "x", "1"], ["a", "y", "2"], ["b", "x", "3"]])


@pytest.mark.parametrize(
    ("asked", "columns", "rows"),
    [
        ("; where way is x", ["kind", "way", "mean"], [["a", "x", "1"], ["b", "x", "3"]]),
        ("; columns mean | kind", ["mean", "kind"], [["1", "a"], ["2", "a"], ["3", "b"]]),
        ("; where way is x | y; where kind is a; columns mean", ["mean"], [["1"], ["2"]]),
    ],
)
def test_page_shows_a_part_of_a_table(
    page: Path, asked: str, columns: list[str], rows: list[list[str]]
) -> None:
    """Rows by a cell of a column, columns by name; a row may be chosen by what is not shown."""
    write_figure_file(page.parent / "figures/run.json", begin("x"), {"many ways": MANY})
    page.write_text(f"<!-- figures: figures/run.json many ways{asked} -->\n<!-- /figures -->\n")
    filled = fill_page(page)
    assert filled == (
        f"<!-- figures: figures/run.json many ways{asked} -->\n"
        f"{Table(columns, rows)}\n<!-- /figures -->\n"
    )
    page.write_text(filled)
    assert fill_page(page) == filled


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("many ways; where way is z", "read 'z'; allowed: x, y"),
        ("many ways; where road is x", "read 'road'; allowed, once each: kind, way, mean"),
        ("many ways; columns kind | road", "read 'road'; allowed, once each: kind, way, mean"),
        ("many ways; kind", "read 'kind'; allowed: where COLUMN is VALUE, columns NAME"),
        ("origin; columns kind", "read 'origin'; allowed: a table"),
    ],
)
def test_part_that_is_not_there_is_named(page: Path, asked: str, told: str) -> None:
    """With what may be asked for."""
    write_figure_file(page.parent / "figures/run.json", begin("x"), {"many ways": MANY})
    page.write_text(f"<!-- figures: figures/run.json {asked} -->\n<!-- /figures -->\n")
    with pytest.raises(NetemError) as caught:
        fill_page(page)
    assert told in str(caught.value)


def test_sentence_shows_a_cell(page: Path) -> None:
    """What stood there goes; a line may show several."""
    shown = "<!-- figure: figures/run.json latency; none; seconds -->"
    page.write_text(f"It takes {shown}2 s<!-- /figure -->, or {shown}<!-- /figure -->.\n")
    cell = f"{shown}12.40 (12.10 to 12.70)<!-- /figure -->"
    assert fill_page(page) == f"It takes {cell}, or {cell}.\n"
    assert figure_files(page) == {page.parent.resolve() / "figures/run.json"}


def test_files_of_a_page_are_known(page: Path) -> None:
    """A file that no page shows is found by this."""
    assert figure_files(page) == {page.parent.resolve() / "figures/run.json"}


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("latency; historic; seconds", "read 'historic'; allowed, once each: none"),
        ("latency; none; mean", "read 'mean'; allowed, once each: policy, seconds"),
        ("origin; none; seconds", "read 'origin'; allowed: a table"),
    ],
)
def test_cell_that_is_not_there_is_named(page: Path, wanted: str, told: str) -> None:
    """With the page, the file and what may be read."""
    page.write_text(f"<!-- figure: figures/run.json {wanted} --><!-- /figure -->\n")
    with pytest.raises(NetemError, match=r"page\.md: figures/run\.json: ") as caught:
        fill_page(page)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("run.json latency", "run.json latencies", "read 'latencies'; allowed: origin, latency"),
        ("run.json latency", "no.json latency", "no.json: "),
        ("run.json latency", "../page.md latency", "page.md: "),
    ],
)
def test_what_is_not_there_is_named(page: Path, old: str, new: str, told: str) -> None:
    """The page or file, and what it may show."""
    page.write_text(page.read_text().replace(old, new))
    with pytest.raises(NetemError, match="figures: ") as caught:
        fill_page(page)
    assert told in str(caught.value)
