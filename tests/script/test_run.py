from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from script.demo_program import run
from script.demo_program.errors import DemoError
from script.demo_program.programs import Programs
from script.demo_program.run import MARK, empty


def test_what_an_earlier_demo_left_goes(tmp_path: Path) -> None:
    """The folder is that of one run."""
    folder = tmp_path / "demo-output"
    empty(folder)
    (folder / "policy.yaml").touch()
    (folder / "pictures").mkdir()
    empty(folder)
    assert [file.name for file in folder.iterdir()] == [MARK]


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    """What the demo has not made is not the demo's to delete, nor is a broker's folder."""
    for name in ("thesis.txt", "policy.yaml"):
        file = tmp_path / name / name
        file.parent.mkdir()
        file.touch()
        with pytest.raises(DemoError, match="not the demo's") as caught:
            empty(file.parent)
        assert caught.value.status == 2
        assert file.exists()


def test_the_folder_of_a_running_broker_is_left_alone(tmp_path: Path) -> None:
    """A broker that was started by hand keeps its queue, and its process is named."""
    (tmp_path / "policy.yaml").touch()
    with (tmp_path / "queue.db.lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(DemoError, match="kill 4711"):
            empty(tmp_path)
    assert (tmp_path / "policy.yaml").exists()


def test_a_load_balancer_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the option that asked for it, and status 2."""

    def missing(name: str) -> str:
        raise NetemError(f"{name} is not installed")

    monkeypatch.setattr(run, "find_program", missing)
    with (
        Programs(tmp_path) as programs,
        pytest.raises(DemoError, match="--haproxy: haproxy is not installed") as caught,
    ):
        run.start_balancer(programs, tmp_path, [1883])
    assert caught.value.status == 2
