from __future__ import annotations

from pathlib import Path

import pytest

from models.withholding.plot import draw
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
