from __future__ import annotations

from pathlib import Path

import pytest

from models.withholding.plot import congested_times, draw, draw_trace
from models.withholding.simulation import Setting
from tests.models.withholding.small_sweep import small_results


def test_figures_are_written(tmp_path: Path) -> None:
    """A picture in the format of the suffix."""
    pytest.importorskip("matplotlib")
    draw(small_results(), tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


def test_unknown_format_is_named(tmp_path: Path) -> None:
    """Nothing is written where the suffix says nothing."""
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="pgn"):
        draw(small_results(), tmp_path / "figures.pgn")


def test_what_each_policy_did_is_written(tmp_path: Path) -> None:
    """A panel for each policy and the clairvoyant one, with its mean over what is shown."""
    pytest.importorskip("matplotlib")
    trace = [0.2] * 100 + [4.0] * 20 + [0.2] * 300
    draw_trace(trace, Setting(), tmp_path / "trace.svg")
    assert (tmp_path / "trace.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match="pgn"):
        draw_trace(trace, Setting(), tmp_path / "trace.pgn")


def test_congestion_is_the_seconds_above_the_threshold() -> None:
    """From its first second to the one after its last, the trace's end included."""
    assert list(congested_times([0.2, 1.0, 2.0, 0.5, 0.2, 3.0], 0.5)) == [(1, 3), (5, 6)]
