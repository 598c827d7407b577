"""Every scenario that comes with Penstock, in its short length, over real links that are bad."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netem.records import LinkRow
from netem.scenario_file import names, read_scenario
from netem.tables import read_table
from tests.helpers.networks import NEEDS_ROOT

pytestmark = NEEDS_ROOT

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 300.0
"""Of a run, on a machine that has other things to do as well."""


@pytest.mark.timeout(MOST_SECONDS + 30)
@pytest.mark.parametrize("name", names())
def test_what_is_no_timing_comes_out_as_it_is_to(name: str, tmp_path: Path) -> None:
    """Nothing lost, order kept, memory bounded; and links were bad, or it would say nothing."""
    command = [sys.executable, str(ROOT / "penstock.py"), "netem", "run", name]
    run = subprocess.run(
        [*command, "--short", "--check", "--out", str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    scenario = read_scenario(name, short=True)
    rows = read_table(tmp_path / "run", LinkRow)
    impaired = {(row.broker, row.link) for row in rows if row.is_impaired}
    links = {each.link for each in scenario.impairments}
    assert impaired == {(broker, link) for broker in scenario.brokers for link in links}
