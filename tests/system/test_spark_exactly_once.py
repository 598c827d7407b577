"""``penstock spark`` writes each message exactly once, whatever is killed.

The program and Spark's Python workers have a folder on `PYTHONPATH` whose modules have the names of
Penstock's folders and raise when they are imported.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.spark_kills import run

MESSAGES = 20_000
"""Some twenty micro-batches: the three kills come within the first twelve."""

HOSTILE = """
import sys
with open({told!r}, "a") as file:
    file.write(" ".join(sys.orig_argv) + "\\n")
"""
"""Run at the start of each Python that has the folder on its path: tells which program it is."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder whose modules raise on import; its file `told` has a line for each Python."""
    folder = tmp_path / "hostile"
    for name in ("edge_proxy", "models", "netem", "plugins", "spark_bridge"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    (folder / "broker.py").write_text("raise SystemExit('the wrong broker')\n")
    (folder / "sitecustomize.py").write_text(HOSTILE.format(told=str(folder / "told")))
    return folder


@pytest.mark.timeout(1_200)
def test_each_message_is_written_once_whatever_is_killed(hostile: Path) -> None:
    """The driver, a broker that a gateway replaces, and a worker, at random moments.

    No message is lost and none comes twice, for Spark and for any reader of the files.
    """
    environment = os.environ | {"PYTHONPATH": str(hostile)}
    findings = run(MESSAGES, ["driver", "server", "worker"], 1, environment=environment)
    assert not [each for each in findings if each.is_met is False], findings
    found = {each.name: each.value for each in findings}
    assert found["rows"] == MESSAGES
    assert found["starts of the driver"] >= 2
    told = (hostile / "told").read_text()
    assert "-m penstock.spark_bridge --url" in told
    assert "-m pyspark.daemon" in told
