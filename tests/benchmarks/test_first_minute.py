from __future__ import annotations

import os
from pathlib import Path

from benchmarks import first_minute as program
from tests.helpers.fresh_environment import without_index


def test_each_step_of_the_readme_leads_to_the_next(tmp_path: Path) -> None:
    """From a virtual environment to a page that the shown password opens; packages are there."""
    environment = os.environ | without_index(tmp_path / "libraries")
    moments = program.run_steps(tmp_path, environment)
    assert len(moments) == len(program.STEPS)
    assert moments == sorted(moments)
