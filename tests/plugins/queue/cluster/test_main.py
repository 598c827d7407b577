from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml

from penstock.plugins.queue.cluster.__main__ import main
from tests.helpers.fabric import machines, write_nodes_file
from tests.helpers.gateway import gateway_of
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


@pytest.mark.parametrize("command", ["add", "drain"])
def test_a_machine_that_is_not_in_the_file_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside those that are."""
    with machines("abc") as nodes:
        file = write_nodes_file(tmp_path, nodes)
        assert main([command, file, "x"]) == 2
        told = capsys.readouterr().err
        assert "nodes: read none called x; allowed: one of a, b, c" in told


def test_the_last_machines_are_not_drained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each copy needs a machine of its own."""
    with machines("abc") as nodes:
        assert main(["drain", write_nodes_file(tmp_path, nodes), "a"]) == 2
        told = capsys.readouterr().err
        assert "nodes: read 3; allowed: 4 or more, one of which is drained" in told


def test_a_trial_is_shown_and_ended_by_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway runs on it by its policy; each physical queue is shown once; the status is 0."""
    with machines("abc") as nodes:
        file = write_nodes_file(tmp_path, nodes, replicas=1)
        command = [sys.executable, "-m", "penstock", "fabric", "up", file, "--folder", "trial"]
        trial = Program(command, cwd=tmp_path)
        try:
            trial.wait_for_log(f"policy: {tmp_path / 'trial' / 'policy.yaml'}")
            policy = yaml.safe_load((tmp_path / "trial" / "policy.yaml").read_text())
            queue = policy["plugins"]["queue"]
            queue |= {"queues": {"q": {"physical_queues": 8}}, "http": "127.0.0.1:0"}
            (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
            with gateway_of(tmp_path / "policy.yaml") as client:
                status = ["status", file, "-c", str(tmp_path / "policy.yaml")]
                assert main([*status, "--url", client.url]) == 0
                shown = capsys.readouterr().out
            assert "All is where the rings want it." in shown
            words = [line.replace(",", "").split() for line in shown.splitlines()]
            numbers = [one for row in words if row[1:2] == ["q"] for one in row[2:]]
            assert sorted(map(int, numbers)) == list(range(8))
            assert trial.stop(signal.SIGINT) == 0
        finally:
            trial.kill()
        assert main(["create", file]) == 1
