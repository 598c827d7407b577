from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.models.papers.withholding.claims import WORDS, verdicts
from penstock.models.papers.withholding.plot import (
    COLUMNS,
    FIGURE_INCHES,
    MARKS,
    congested_times,
    draw,
    draw_figures,
    draw_trace,
)
from penstock.models.papers.withholding.report import describe, sweep_tables
from penstock.models.papers.withholding.simulation import WithholdingSetting
from penstock.models.papers.withholding.sweep import POLICIES, WithholdingResults
from penstock.netem.figures.estimates import Standing
from tests.models.papers.withholding.small_sweep import small_results


def test_report_has_every_policy_and_every_claim() -> None:
    """All rows of a table are as wide as its head."""
    results = small_results()
    tables = sweep_tables(results)
    assert "over 6 independent traces of 300 s" in describe(results)
    assert list(tables) == ["T_Q 1 s", "T_Q 5 s", "by T_Q", "closed", "reported", "claims"]
    for table in tables.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert [row[0] for row in tables["T_Q 1 s"].rows] == [*POLICIES, "clairvoyant"]
    by_threshold = {row[0]: row for row in tables["T_Q 5 s"].rows}
    by_period = {row[0]: row for row in tables["by T_Q"].rows}
    assert by_threshold["historic"][2] == str(results.latency("historic", 5, 2.0))
    assert by_period["historic"][2] == str(results.latency("historic", 5, 2.0))
    closed = {row[0]: row for row in tables["closed"].rows}
    assert closed["historic"][1].startswith(f"{results.closed('historic', 1, 2.0).value:.1%} (")
    assert "Clairvoyant is the lowest on each trace (fig. 8)" in {
        row[0] for row in tables["claims"].rows
    }


def texts_of(results: WithholdingResults) -> list[Any]:
    """Return the texts of the figures that are not empty, each with its place in pixels."""
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=FIGURE_INCHES)
    draw_figures(results, figure)
    figure.canvas.draw()
    return [
        (text.get_text(), text.get_window_extent())
        for axes in figure.axes[2:]
        for text in axes.texts
    ]


def test_each_claim_stands_below_the_plots_with_what_was_found() -> None:
    """The picture alone says what the paper claims, and whether it holds."""
    results = small_results()
    shown = [" ".join(text.replace("\u2212", "-").split()) for text, _ in texts_of(results)]
    judged = verdicts(results)
    for verdict in judged:
        assert verdict.short in shown
        assert f"{WORDS[verdict.standing]}: {verdict.brief}" in shown
    for standing, (mark, _) in MARKS.items():
        assert shown.count(mark) == sum(verdict.standing == standing for verdict in judged)


def test_no_claim_covers_another_or_leaves_the_picture() -> None:
    """With every claim there is, those of all targets of adaptive included."""
    texts = texts_of(small_results(probe_periods=(1, 2, 3, 5, 10)))
    width, height = (100 * inches for inches in FIGURE_INCHES)
    check = MARKS[Standing.MET][0]
    for i, (text, place) in enumerate(texts):
        assert 0 <= place.x0 <= place.x1 <= width, text
        assert 0 <= place.y0 <= place.y1 <= height, text
        for other, elsewhere in texts[:i]:
            assert check in (text, other) or not place.overlaps(elsewhere), (text, other)


def test_claims_of_a_t_q_that_was_not_run_leave_room() -> None:
    """The headings stay; nothing is said of what was not simulated."""
    shown = [text for text, _ in texts_of(small_results(probe_periods=(2,)))]
    assert set(COLUMNS.values()) <= set(shown)
    assert not any("Historic" in text for text in shown)


def test_unknown_format_is_named(tmp_path: Path) -> None:
    """Nothing is written where the suffix says nothing."""
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="pgn"):
        draw(small_results(), tmp_path / "figures.pgn")


def test_what_each_policy_did_is_written(tmp_path: Path) -> None:
    """A panel for each policy and the clairvoyant one, with its mean over what is shown."""
    pytest.importorskip("matplotlib")
    trace = [0.2] * 100 + [4.0] * 20 + [0.2] * 300
    draw_trace(trace, WithholdingSetting(), tmp_path / "trace.svg")
    assert (tmp_path / "trace.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match="pgn"):
        draw_trace(trace, WithholdingSetting(), tmp_path / "trace.pgn")


def test_congestion_is_the_seconds_above_the_threshold() -> None:
    """From its first second to the one after its last, the trace's end included."""
    assert list(congested_times([0.2, 1.0, 2.0, 0.5, 0.2, 3.0], 0.5)) == [(1, 3), (5, 6)]
