"""What plots have in common: labels, words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.netem.figures.canvas import (
    Canvas,
    begin,
    compare,
    show_seconds,
    spread,
)
from penstock.netem.figures.measures import Measures, show_bytes
from tests.helpers.netem_runs import INFO, SCENARIO, whole_run


def test_labels_do_not_touch_and_keep_their_order() -> None:
    """The lower ones stay where they belong, what is above them is pushed up."""
    assert spread([5.0, 1.0, 1.5], 1.0, 0.0) == [5.0, 1.0, 2.0]
    assert spread([-3.0, -2.0], 1.0, 0.5) == [0.5, 1.5]
    assert spread([], 1.0, 0.0) == []


def test_sizes_and_times_are_short_words() -> None:
    """As on axes and in keys."""
    assert [show_bytes(size) for size in (100, 1000, 300_000, 1e6)] == [
        "100 B",
        "1 kB",
        "300 kB",
        "1 MB",
    ]
    assert [show_seconds(each) for each in (0.001, 0.1, 1, 10)] == [
        "1 ms",
        "100 ms",
        "1 s",
        "10 s",
    ]
    assert begin("small q1-1MB") == "Small q1-1MB"
    assert begin("q1-1MB messages") == "q1-1MB messages"


def test_a_title_names_the_figure_of_both() -> None:
    """Whichever is better."""
    measures = Measures(SCENARIO, whole_run())
    assert compare(measures, "small max") == "200 ms with adaptive, 2.0 s with mosquitto"


def test_a_long_title_takes_room_from_what_is_below(tmp_path: Path) -> None:
    """Nothing is drawn over it, and the picture is a slide wide."""
    short, long = (Canvas(INFO, "word " * count, "about") for count in (3, 30))
    assert long.top < short.top
    short.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[16:20] == (1536).to_bytes(4, "big")


@pytest.mark.parametrize("commit", ["abc1234", None])
def test_the_foot_says_where_it_is_from(commit: str | None) -> None:
    """Command, length, seeds, date, commit where there is one, machine."""
    canvas = Canvas(dataclasses.replace(INFO, commit=commit), "title", "about")
    foot = canvas.figure.texts[-1].get_text()
    assert foot.startswith("penstock netem run made-up, full length, seed 1")
    assert ("commit abc1234" in foot) is (commit is not None)
    assert "2026-01-02" in foot
