from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_package_runs_as_the_program(tmp_path: Path) -> None:
    """``python -m penstock.plugins.access`` writes a user."""
    file = tmp_path / "users"
    command = [sys.executable, "-m", "penstock.plugins.access", str(file), "ann"]
    subprocess.run(command, input="secret\n", text=True, check=True)
    assert file.read_text().startswith("ann:$7$")
