from __future__ import annotations

from pathlib import Path

import pytest

from penstock.models.fabric.plot import draw
from tests.models.fabric.small_results import small_results


def test_figures_are_written(tmp_path: Path) -> None:
    """A picture in the format of the suffix."""
    pytest.importorskip("matplotlib")
    draw(small_results(), tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
