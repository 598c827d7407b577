from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from penstock.plugins.queue.cluster.__main__ import main
from tests.helpers.fabric import machines, write_nodes_file
from tests.helpers.process import Program


def test_a_plan_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of each machine, and the steps that make a fabric of them."""
    with machines("abc") as nodes:
        file = write_nodes_file(tmp_path, nodes)
        assert main(["plan", file, "--out", str(tmp_path / "out")]) == 0
        told = capsys.readouterr().out
        assert "18 servers on 3 machines" in told
        assert f"penstock fabric create {file}" in told
        assert (tmp_path / "out" / "c" / "6384.conf").exists()
        assert main(["create", file]) == 1  # nothing runs yet
        assert "Error 111 connecting" in capsys.readouterr().err


def test_a_wrong_file_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the place."""
    file = write_nodes_file(tmp_path, {})
    assert main(["plan", file, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"penstock fabric: {file}: nodes: read 0; allowed: ")
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_a_trial_and_its_servers(tmp_path: Path) -> None:
    """The program tells where the policy is, and ends with status 0."""
    with machines("abc") as nodes:
        file = write_nodes_file(tmp_path, nodes, replicas=1)
        command = [sys.executable, "-m", "penstock", "fabric", "up", file, "--folder", "trial"]
        trial = Program(command, cwd=tmp_path)
        try:
            trial.wait_for_log(f"policy: {tmp_path / 'trial' / 'policy.yaml'}")
            assert trial.stop(signal.SIGINT) == 0
        finally:
            trial.kill()
        assert main(["create", file]) == 1
