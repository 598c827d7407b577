"""docs/example-plugin, as a distribution of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.process import ROOT


def test_the_example_is_installed_and_its_own_tests_pass(tmp_path: Path) -> None:
    """Pip installs it; a broker that is a process loads it by its name in the policy file."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(ROOT / "docs" / "example-plugin", source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, capture_output=True)
    (source / "penstock_recorder.py").unlink()  # what is tested is what was installed
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_recorder.py"],
        cwd=source,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
