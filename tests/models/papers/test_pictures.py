from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.models.papers.dequeue import plot as dequeue
from penstock.models.papers.fabric import plot as fabric
from penstock.models.papers.patterns import plot as patterns
from penstock.models.papers.visibility import plot as visibility
from penstock.models.papers.withholding import plot as withholding
from tests.models.papers.dequeue.small_results import small_results as of_dequeue
from tests.models.papers.fabric.small_results import small_results as of_fabric
from tests.models.papers.patterns.small_results import small_results as of_patterns
from tests.models.papers.visibility.small_results import small_results as of_visibility
from tests.models.papers.withholding.small_sweep import small_results as of_withholding


@pytest.mark.parametrize(
    ("draw", "results"),
    [
        (dequeue.draw, of_dequeue),
        (fabric.draw, of_fabric),
        (patterns.draw, of_patterns),
        (visibility.draw, of_visibility),
        (withholding.draw, of_withholding),
    ],
)
def test_figures_are_written(
    draw: Callable[[Any, Path], None],
    results: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each paper's plot is a picture in the format of the suffix."""
    pytest.importorskip("matplotlib")
    for name, points in (
        ("PUBLISHER_ON", (40.0, 50.0)),
        ("SUBSCRIBER_ON", (15.0,)),
        ("ARRIVAL_RATES", (2.0, 20.0)),
    ):
        monkeypatch.setattr(patterns, name, points)
    draw(results(), tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
