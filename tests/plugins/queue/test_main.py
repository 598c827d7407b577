from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("module", [["plugins.queue"], ["penstock", "queue"]])
def test_both_names_run_the_gateway(module: list[str], tmp_path: Path) -> None:
    """The program runs as a module and by the command, with the same answer to a mistake."""
    (tmp_path / "policy.yaml").write_text("plugins: {}")
    ended = subprocess.run(
        [sys.executable, "-m", *module, "-c", "policy.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "penstock queue: policy.yaml: plugins.queue: read nothing; allowed: the queues to serve\n"
    )
