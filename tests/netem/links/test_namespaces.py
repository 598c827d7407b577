from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links import namespaces
from penstock.netem.links.namespaces import (
    FOLDER,
    own_prefix,
    remove_leftovers,
    remove_namespaces,
    require_root,
    run_ip,
    start_time_of,
)
from tests.helpers.networks import NEEDS_ROOT

ROOT = Path(__file__).resolve().parents[3]


def test_without_root_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user learns what to do, not which call failed."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with pytest.raises(NetemError, match="need root; run it with sudo"):
        require_root()


@NEEDS_ROOT
@pytest.mark.parametrize("name", ["net_admin", "sys_admin"])
def test_a_root_that_may_not_is_told_what_is_missing(name: str) -> None:
    """Root of a container, as they are by default, is no root to the kernel."""
    code = "from penstock.netem.links.namespaces import require_root; require_root()"
    done = subprocess.run(
        ["setpriv", f"--bounding-set=-{name}", f"--inh-caps=-{name}", sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"need CAP_{name.upper()}, which root has not here; run a container" in done.stderr


@NEEDS_ROOT
def test_without_iproute2_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program that is missing is named with its package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetemError, match="install iproute2"):
        require_root()


def test_a_process_that_has_ended_has_no_start_time() -> None:
    """Neither one that is gone nor one that nobody has waited for counts as alive."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        began = start_time_of(process.pid)
        assert began is not None
        assert start_time_of(process.pid) == began
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_time_of(process.pid) is None
    assert start_time_of(process.pid) is None


@NEEDS_ROOT
def test_namespaces_of_the_living_stay(own_names: str) -> None:
    """What another process of the same id left goes; what is no network of ours stays."""
    own = f"{own_prefix()}test"
    stale = f"{own_names}{os.getpid()}-1-test"
    foreign = f"{own_names}of-somebody-{os.getpid()}"
    try:
        for name in (own, stale, foreign):
            run_ip("netns", "add", name)
        remove_leftovers()
        assert (FOLDER / own).exists()
        assert (FOLDER / foreign).exists()
        assert not (FOLDER / stale).exists()
    finally:
        for name in (own, foreign):
            run_ip("netns", "delete", name)


@NEEDS_ROOT
def test_removal_may_be_repeated() -> None:
    """A second removal finds nothing and says nothing."""
    prefix = f"{own_prefix()}twice-"
    run_ip("netns", "add", f"{prefix}one")
    remove_namespaces(prefix)
    remove_namespaces(prefix)
    assert not (FOLDER / f"{prefix}one").exists()


def test_without_any_namespace_there_is_nothing_to_remove(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine on which nobody ever made one has no folder of them."""
    monkeypatch.setattr(namespaces, "FOLDER", tmp_path / "none")
    remove_leftovers()


@NEEDS_ROOT
def test_a_command_that_fails_says_why() -> None:
    """The text holds the command and ip's own words."""
    with pytest.raises(NetemError, match=r"ip netns delete none-such: .*none-such"):
        run_ip("netns", "delete", "none-such")


@NEEDS_ROOT
def test_what_ran_in_a_namespace_has_ended_when_it_is_removed() -> None:
    """Not only is it told to end: what takes its time, as it has much to give back, is gone."""
    prefix = f"{own_prefix()}busy-"
    run_ip("netns", "add", f"{prefix}one")
    large = "import time; held = b'x' * 200_000_000; print(flush=True); time.sleep(1000)"
    with subprocess.Popen(
        ["ip", "netns", "exec", f"{prefix}one", sys.executable, "-c", large], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        remove_namespaces(prefix)
        assert start_time_of(process.pid) is None


@NEEDS_ROOT
def test_what_is_on_its_way_into_a_namespace_does_not_arrive_there() -> None:
    """A command that was started a moment before the end is still `ip`, and outside."""
    prefix = f"{own_prefix()}late-"
    run_ip("netns", "add", f"{prefix}one")
    command = ["ip", "netns", "exec", f"{prefix}one", "sleep", "1000"]
    with subprocess.Popen(command) as process:
        process.send_signal(signal.SIGSTOP)
        remove_namespaces(prefix)
        assert start_time_of(process.pid) is None


ENTERING = """
import ctypes, os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
print(flush=True)
while os.path.exists(sys.argv[1]):
    pass
assert ctypes.CDLL(None).setns(file, 0) == 0
print(flush=True)
time.sleep(1000)
"""
"""Has opened a namespace by its name, as `ip netns exec` does, and enters it once that is gone."""


@NEEDS_ROOT
def test_who_comes_in_while_a_namespace_is_removed_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run may be killed while it starts a program, which would else run on without a network."""
    name = f"{own_prefix()}entering-one"
    run_ip("netns", "add", name)
    with subprocess.Popen(
        [sys.executable, "-c", ENTERING, str(FOLDER / name)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        came_in = process.stdout.readline
        came_in()

        def run_and_let_in(*arguments: str, lines: str | None = None) -> str:
            said = run_ip(*arguments, lines=lines)
            came_in()
            return said

        monkeypatch.setattr(namespaces, "run_ip", run_and_let_in)
        try:
            remove_namespaces(name)
            assert start_time_of(process.pid) is None
        finally:
            process.kill()
    assert not (FOLDER / name).exists()


@NEEDS_ROOT
def test_many_namespaces_are_removed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts may be more than a process may have files open."""
    monkeypatch.setattr(namespaces, "MOST_AT_ONCE", 2)
    prefix = f"{own_prefix()}many-"
    for number in range(5):
        run_ip("netns", "add", f"{prefix}{number}")
    remove_namespaces(prefix)
    assert not list(FOLDER.glob(f"{prefix}*"))
