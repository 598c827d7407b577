from __future__ import annotations

import io
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.plugins.access import passwd
from penstock.plugins.access.password_hash import (
    DEFAULT_ITERATIONS,
    PasswordHash,
    parse_hash,
    verify,
)
from penstock.plugins.access.scram import make_credentials, parse_credentials
from penstock.plugins.access.user_file import parse_users

SECRET = "secret\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return the program, with a file of its own."""
    return Run(tmp_path / "users", monkeypatch, capsys)


class Run:
    """Runs the program on one file."""

    def __init__(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.file = file
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, password: str = SECRET) -> str:
        """Run it with a password on standard input; return what it says where it fails."""
        self._monkeypatch.setattr("sys.stdin", io.StringIO(password))
        status = passwd.main([str(self.file), *arguments])
        told = self._capsys.readouterr().err
        assert bool(told) == bool(status)
        assert status in (0, 2)
        return told


def test_a_user_is_written_and_replaced(run: Run) -> None:
    """From standard input; the file is its owner's alone."""
    assert not run("ann")
    first = parse_users(run.file.read_text(), "users", parse_hash)["ann"]
    assert isinstance(first, PasswordHash)
    assert first.iterations == DEFAULT_ITERATIONS
    assert verify(b"secret", first)
    assert stat.S_IMODE(run.file.stat().st_mode) == 0o600
    assert not run("ann", "--iterations", "101", password="other")
    second = parse_users(run.file.read_text(), "users", parse_hash)["ann"]
    assert isinstance(second, PasswordHash)
    assert second.iterations == 101
    assert verify(b"other", second)
    assert second.salt != first.salt
    assert list(run.file.parent.iterdir()) == [run.file]


def test_a_file_holds_argon2id_beside_others(run: Run) -> None:
    """The broker takes each line as it is."""
    assert not run("ann")
    assert not run("eve", "--argon2id")
    assert run.file.read_text().splitlines()[1].startswith("eve:$argon2id$v=19$m=47104,t=1,p=1$")
    users = parse_users(run.file.read_text(), "users", parse_hash)
    assert all(verify(b"secret", users[name]) for name in ("ann", "eve"))
    assert not verify(b"other", users["eve"])


def test_the_file_is_shared_with_mosquitto_passwd(run: Run) -> None:
    """Each program changes what the other wrote; modes stay."""
    run.file.touch(mode=0o640)
    run.file.chmod(0o640)
    made = ["mosquitto_passwd", "-b", str(run.file), "bob", "b"]
    subprocess.run(made, check=True, capture_output=True)
    run.file.chmod(0o640)
    assert not run("ann")
    subprocess.run(
        ["mosquitto_passwd", "-D", str(run.file), "bob"], check=True, capture_output=True
    )
    assert list(parse_users(run.file.read_text(), "users", parse_hash)) == ["ann"]


def test_modes_stay(run: Run) -> None:
    """Whoever may read the file still may."""
    run.file.touch()
    run.file.chmod(0o640)
    assert not run("ann")
    assert stat.S_IMODE(run.file.stat().st_mode) == 0o640


def test_scram_users_are_written(run: Run) -> None:
    """Keys, never the password."""
    assert not run("--scram", "ann")
    text = run.file.read_text()
    stored = parse_users(text, "users", parse_credentials)["ann"]
    assert stored == make_credentials("secret", stored.salt)
    assert "secret" not in text


def test_a_user_is_deleted(run: Run) -> None:
    """Who is not there is named."""
    run("ann")
    assert not run("-D", "ann")
    assert run.file.read_text() == ""
    assert "read 'ann'; allowed: a user of this file" in run("-D", "ann")


@pytest.mark.parametrize(
    ("arguments", "password", "told"),
    [
        (["a:b"], "x", "user: read 'a:b'; allowed: a user name without colon"),
        (["ann"], "", "password: read nothing"),
        (["ann", "--iterations", "0"], "x", "--iterations: read 0; allowed: 1 to"),
        (["--scram", "ann", "--iterations", "4095"], "x", "allowed: 4096 to"),
        (["--scram", "ann"], "\u0007", "SASLprep"),
        (["--scram", "--argon2id", "ann"], "x", "--argon2id: allowed without --scram"),
        (["ann", "--argon2id", "--iterations", "9"], "x", "--argon2id: allowed without"),
        (["ann"], "\udcff", "password: read bytes that are no UTF-8"),
        (["--scram", "ann"], "\udcff", "password: read bytes that are no UTF-8"),
        (["\udcff"], "x", "user: read bytes that are no UTF-8"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    run: Run, arguments: list[str], password: str, told: str
) -> None:
    """What was read, what is allowed; status 2."""
    said = run(*arguments, password=password)
    assert told in said
    assert said.startswith("penstock passwd: ")
    assert said.count("\n") == 1
    assert not run.file.exists()


@pytest.mark.parametrize(("first", "second"), [([], ["--scram"]), (["--scram"], [])])
def test_a_file_holds_secrets_of_one_kind(run: Run, first: list[str], second: list[str]) -> None:
    """The broker would refuse the whole file; nothing is changed."""
    assert not run("ann", *first)
    before = run.file.read_text()
    said = run("bob", *second)
    assert f"{run.file}: line 1: read a line of a " in said
    assert run.file.read_text() == before


def test_a_file_that_cannot_be_used_is_named(run: Run) -> None:
    """For reading and for writing."""
    run.file.mkdir()
    assert f"{run.file}: cannot be read" in run("ann")
    run.file.rmdir()
    run.file = run.file / "below" / "nothing"
    assert f"{run.file}: cannot be written" in run("ann")


def test_the_package_runs_as_the_program(tmp_path: Path) -> None:
    """``python -m penstock.plugins.access`` writes a user."""
    file = tmp_path / "users"
    command = [sys.executable, "-m", "penstock.plugins.access", str(file), "ann"]
    subprocess.run(command, input="secret\n", text=True, check=True)
    assert file.read_text().startswith("ann:$7$")
