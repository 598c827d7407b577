from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

SCRIPTS: Final = Path(__file__).resolve().parents[2] / "script"
SYSTEM_TOOLS: Final = (
    *("sh", "cat", "chmod", "cksum", "cut", "dirname", "env", "grep"),
    *("head", "mkdir", "mktemp", "nice", "readlink", "rm", "sed", "tail"),
)


class Checkout:
    """The scripts in a directory of their own, on a system of stand-in programs.

    The real ones would install packages; what is tested is when they are called, and how.

    Attributes:
        root: of the checkout.
    """

    def __init__(self, root: Path, programs: Path) -> None:
        self.root = root
        self._programs = programs
        shutil.copytree(SCRIPTS, root / "script", ignore=shutil.ignore_patterns("demo_program"))
        (root / "pyproject.toml").write_text("[project]\n")
        programs.mkdir()
        for name in SYSTEM_TOOLS:
            tool = shutil.which(name)
            assert tool is not None, name
            (programs / name).symlink_to(tool)
        self.add_program("id", "echo 1000")
        self.add_program("java", """echo 'openjdk version "17.0.1" 2021-10-19' >&2""")

    def add_program(self, name: str, body: str) -> None:
        """Put a program on PATH, or at a path in the checkout; each notes how it is called."""
        file = self.root / name if "/" in name else self._programs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\necho "{file.name} $*" >>"{self.root}/calls"\n{body}\n')
        file.chmod(0o755)

    def add_venv(self, pip: str = ":") -> None:
        """Make a virtual environment whose pip does as told."""
        self.add_program(".venv/bin/python", f'case "$*" in *"pip install"*) {pip} ;; esac')

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout and forget earlier calls."""
        (self.root / "calls").write_text("")
        return subprocess.run(
            command,
            cwd=self.root,
            env={"PATH": str(self._programs), "TMPDIR": str(self.root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def set_up(self, extra: str, programs: str) -> subprocess.CompletedProcess[str]:
        """Source script/setup as the other scripts do."""
        return self.run(
            "sh", "-euc", f"extra={extra} programs='{programs}'; . ./script/setup; echo $JAVA_HOME"
        )

    def calls(self, part: str) -> list[str]:
        """Return the calls since the last run that hold some text."""
        return [call for call in (self.root / "calls").read_text().splitlines() if part in call]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout that was never set up, on a system with Java 17 and without Python."""
    root = tmp_path / "a checkout"
    root.mkdir()
    return Checkout(root, tmp_path / "programs")


@pytest.mark.parametrize("python", [None, "exit 1"], ids=["no Python", "an old Python"])
def test_without_a_new_python_it_ends_with_status_2(checkout: Checkout, python: str | None) -> None:
    """The user is told which Python is needed; nothing is made."""
    if python:
        checkout.add_program("python3", python)
    ended = checkout.set_up("demo", "java")
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "setup: no Python 3.11 or newer on PATH; install one and run this again"
    ]
    assert not (checkout.root / ".venv").exists()


def test_missing_program_is_named_with_its_package(checkout: Checkout) -> None:
    """Who may not install packages gets one line to copy, and status 2."""
    ended = checkout.set_up("dev", "java no-such-broker")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "missing: no-such-broker;" in line
    assert "sudo apt-get install no-such-broker " in line


def test_packages_are_installed_once(checkout: Checkout) -> None:
    """A second run installs nothing and says nothing."""
    checkout.add_venv()
    first = checkout.set_up("demo", "java")
    assert (first.returncode, len(checkout.calls("pip install"))) == (0, 1)
    assert checkout.calls("--editable .[demo]")
    second = checkout.set_up("demo", "java")
    assert (second.returncode, second.stderr, checkout.calls("pip install")) == (0, "", [])


def test_packages_are_installed_again_for_another_project_file(checkout: Checkout) -> None:
    """A changed pyproject.toml may want other packages."""
    checkout.add_venv()
    checkout.set_up("demo", "java")
    (checkout.root / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    checkout.set_up("demo", "java")
    assert checkout.calls("--editable .[demo]")


@pytest.mark.parametrize(("first", "then", "calls"), [("dev", "demo", 0), ("demo", "dev", 1)])
def test_tests_need_more_than_the_demo(
    checkout: Checkout, first: str, then: str, calls: int
) -> None:
    """What the tests need holds what the demo needs, and not the other way round."""
    checkout.add_venv()
    checkout.set_up(first, "java")
    checkout.set_up(then, "java")
    assert len(checkout.calls("pip install")) == calls


def test_failed_installation_shows_why_and_is_tried_again(checkout: Checkout) -> None:
    """A failure leaves no stamp behind, nor temporary files."""
    checkout.add_venv(pip="echo 'no route to host' >&2; exit 1")
    ended = checkout.set_up("demo", "java")
    assert ended.returncode == 2
    assert "no route to host" in ended.stderr
    checkout.add_venv()
    assert checkout.set_up("demo", "java").returncode == 0
    assert checkout.calls("pip install")
    assert not list(checkout.root.glob("tmp.*"))


def test_java_that_is_too_old_is_passed_over(checkout: Checkout) -> None:
    """JAVA_HOME names the first Java of version 17 or newer."""
    checkout.add_venv()
    checkout.add_program("old/bin/java", """echo 'java version "1.8.0_402"' >&2""")
    script = "JAVA_HOME=$PWD/old extra=demo programs=java; . ./script/setup; echo $JAVA_HOME"
    ended = checkout.run("sh", "-euc", script)
    assert ended.returncode == 0
    assert ended.stdout.strip() == str(checkout.root.parent)


@pytest.mark.parametrize(("extra", "calls"), [("demo", 0), ("dev", 1)])
def test_an_archive_of_sparks_classes_is_written_once_for_the_tests(
    checkout: Checkout, extra: str, calls: int
) -> None:
    """The demo starts Spark once, which is no sooner with it."""
    checkout.add_venv()
    assert checkout.set_up(extra, "java").returncode == 0
    assert len(checkout.calls("-m penstock.spark_bridge prepare")) == calls
    assert checkout.set_up(extra, "java").returncode == 0
    assert not checkout.calls("prepare")


def test_tests_run_without_an_archive_of_sparks_classes(checkout: Checkout) -> None:
    """A home that cannot be written into is told, and ends nothing."""
    checkout.add_program(".venv/bin/python", 'case "$*" in *prepare*) exit 1 ;; esac')
    ended = checkout.set_up("dev", "java")
    assert ended.returncode == 0
    assert "setup: it could not be written" in ended.stderr


@pytest.fixture
def tested(checkout: Checkout) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs script/test with stand-ins, one of which fails."""
    checkout.add_venv()
    for name in (
        "chromedriver",
        "chromium",
        "git",
        "haproxy",
        "promtool",
        "systemd-analyze",
        "memcached",
        "mosquitto",
        "mosquitto_pub",
        "mosquitto_sub",
        "node",
        "npm",
        "redis-server",
    ):
        checkout.add_program(name, ":")

    def run(failing: str, status: int = 1) -> subprocess.CompletedProcess[str]:
        for name in ("ruff", "mypy", "pytest"):
            checkout.add_program(
                f".venv/bin/{name}", f'case "{name} $*" in "{failing}"*) exit {status} ;; esac'
            )
        return checkout.run("sh", "script/test", "-k", "two words")

    return run


@pytest.mark.parametrize(
    "failing", ["ruff format", "ruff check", "mypy", "pytest --numprocesses", "pytest -m memory"]
)
def test_any_failing_check_fails_the_whole(
    failing: str, checkout: Checkout, tested: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """All checks run, and the one that failed is named."""
    ended = tested(failing)
    assert ended.returncode == 1
    assert f"test: failed: {failing}" in ended.stderr
    called = [call.split()[0] for call in checkout.calls("")]
    assert sorted(called[-5:]) == ["mypy", "pytest", "pytest", "ruff", "ruff"]


def test_what_the_type_checker_finds_is_shown(
    checkout: Checkout, tested: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """It runs beside the tests; its words come in one piece, and no temporary file stays."""
    tested("nothing")
    checkout.add_program(".venv/bin/mypy", "echo 'a.py:1: error: wrong type'; exit 1")
    ended = checkout.run("sh", "script/test", "-x")
    assert (ended.returncode, ended.stdout) == (1, "a.py:1: error: wrong type\n")
    assert not list(checkout.root.glob("tmp.*"))


def test_arguments_go_to_pytest(
    checkout: Checkout, tested: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A developer runs a part of the tests by pytest's own options."""
    ended = tested("nothing")
    assert ended.returncode == 0
    assert [call.endswith(" -k two words") for call in checkout.calls("pytest ")] == [True, True]


def test_arguments_may_choose_no_test_of_memory(
    tested: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Status 5 of pytest: nothing was collected."""
    assert tested("pytest -m memory", 5).returncode == 0
    assert tested("pytest -m memory", 2).returncode == 1


def test_arguments_that_choose_no_test_at_all_fail(
    tested: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A misspelt name of a test is not a run that passes."""
    ended = tested("pytest", 5)
    assert ended.returncode == 1
    assert "test: failed: the arguments choose no test: -k two words" in ended.stderr


def test_tests_of_memory_run_alone(
    checkout: Checkout, tested: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Each measurement has the machine to itself."""
    assert tested("nothing").returncode == 0
    (checkout.root / "tests" / "__pycache__").mkdir(parents=True)
    (checkout.root / "tests" / "test_one.py").write_text("@pytest.mark.memory\n")
    (checkout.root / "tests" / "test_one.pyc").write_text("@pytest.mark.memory\n")
    (checkout.root / "tests" / "test_two.py").write_text("")
    assert checkout.run("sh", "script/test", "--all").returncode == 0
    beside, alone = checkout.calls("pytest ")
    assert beside.endswith("-m not memory")
    assert alone == "pytest -m memory tests/test_one.py"


def test_the_tests_of_a_new_checkout_are_compiled_once(
    checkout: Checkout, tested: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Before pytest starts several processes, each of which would compile all of them."""
    (checkout.root / "tests").mkdir()
    assert tested("nothing").returncode == 0
    calls = [call.partition(" -")[2] for call in checkout.calls("pytest ")]
    assert [call.split()[0] for call in calls] == ["-collect-only", "-numprocesses", "m"]


@pytest.mark.parametrize("given", [("-m", "mqtt5 or mqtt311"), ("-mmqtt5 or mqtt311",)])
def test_a_choice_of_marks_chooses_among_both_kinds_of_tests(
    checkout: Checkout,
    tested: Callable[..., subprocess.CompletedProcess[str]],
    given: tuple[str, ...],
) -> None:
    """Each test that is chosen runs once, and those of memory still run alone."""
    assert tested("nothing").returncode == 0
    assert checkout.run("sh", "script/test", "-x", *given, "-q").returncode == 0
    beside, alone = checkout.calls("pytest ")
    assert beside.endswith("-m (mqtt5 or mqtt311) and not memory -x -q")
    assert alone == "pytest -m (mqtt5 or mqtt311) and memory -x -q"


@pytest.mark.parametrize(
    ("given", "beside"),
    [
        ((), "not more and not memory"),
        (("-x",), "not more and not memory -x"),
        (("--all",), "not memory"),
        (("--all", "-x"), "not memory -x"),
        (("tests/broker",), "not memory tests/broker"),
        (("-k", "name"), "not memory -k name"),
    ],
)
def test_tests_of_the_second_tier_run_where_they_are_asked_for(
    checkout: Checkout,
    tested: Callable[..., subprocess.CompletedProcess[str]],
    given: tuple[str, ...],
    beside: str,
) -> None:
    """By `--all`, or by arguments that choose tests."""
    assert tested("nothing").returncode == 0
    (checkout.root / "tests" / "__pycache__").mkdir(parents=True)
    (checkout.root / "tests" / "test_one.py").write_text("@pytest.mark.memory\n")
    assert checkout.run("sh", "script/test", *given).returncode == 0
    first, second = checkout.calls("pytest ")
    assert first.endswith(f" -m {beside}")
    assert f" -m {beside}".replace("not memory", "memory") in f" {second}"


def test_help_runs_nothing(checkout: Checkout) -> None:
    """It says which tests run by default."""
    shown = checkout.run("sh", "script/test", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--all" in shown.stdout
    assert not checkout.calls("")


def test_continuous_integration_runs_all_tests(checkout: Checkout) -> None:
    """`.ci/run` is script/test --all, with its status."""
    (checkout.root / ".ci").mkdir()
    shutil.copy(SCRIPTS.parent / ".ci" / "run", checkout.root / ".ci" / "run")
    checkout.add_program("script/test", 'exit "$#"')
    bash = shutil.which("bash", path=os.defpath)
    assert bash is not None
    assert checkout.run(bash, ".ci/run", "-x", "name").returncode == 3
    assert checkout.calls("test --all -x name")
