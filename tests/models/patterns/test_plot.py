from __future__ import annotations

from pathlib import Path

import pytest

from penstock.models.patterns import plot
from tests.models.patterns.small_results import small_results


def test_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture in the format of the suffix."""
    pytest.importorskip("matplotlib")
    for name, points in (
        ("PUBLISHER_ON", (40.0, 50.0)),
        ("SUBSCRIBER_ON", (15.0,)),
        ("ARRIVAL_RATES", (2.0, 20.0)),
    ):
        monkeypatch.setattr(plot, name, points)
    plot.draw(small_results(), tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
