from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from penstock.models.planner.page import write
from penstock.models.planner.report import tables
from tests.models.planner.small_plan import small_plan


class Reader(HTMLParser):
    """Counts the elements of a page, and checks that each ends.

    Attributes:
        counts: by name of the element.
        open: elements that have not ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        """Count it."""
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take no note of an empty one."""

    def handle_endtag(self, tag: str) -> None:
        """Check that it is the last that has begun."""
        assert self.open.pop() == tag


def test_the_page_has_every_table_and_the_plots(tmp_path: Path) -> None:
    """One file, without anything to load."""
    pytest.importorskip("matplotlib")
    made = tables(small_plan())
    file = tmp_path / "plan.html"
    write(small_plan(), made, file)
    text = file.read_text()
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert reader.counts["table"] == len(made)
    assert reader.counts["tr"] == sum(1 + len(each.rows) for each in made.values())
    assert reader.counts["svg"] == 1
    assert [text.count(f'id="axes_{number}"') for number in range(1, 6)] == [1, 1, 1, 1, 0]
    assert "<code>limits.connections</code>" in text
    assert "href=" not in text.replace("xlink:href=", "")
