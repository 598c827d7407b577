from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock import __main__ as command_line


def test_unknown_program_names_it_and_all_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong program name is told beside the right ones, with status 2."""
    assert command_line.main(["borker"]) == 2
    told = capsys.readouterr().err
    assert "'borker'" in told
    assert all(name in told for name in command_line.PROGRAMS)


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0)])
def test_usage_lists_all_programs(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help is on standard output with status 0; without a program it is an error."""
    assert command_line.main(arguments) == status
    captured = capsys.readouterr()
    told = captured.err if status else captured.out
    assert all(name in told for name in command_line.PROGRAMS)


def test_version_is_the_one_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """What to name in a report of a fault."""
    assert command_line.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {version('penstock')}\n"


def test_bench_runs_from_any_directory(tmp_path: Path) -> None:
    """The benchmarks are found in the checkout, wherever the command is given."""
    command = Path(sys.executable).with_name("penstock")
    shown = subprocess.run(
        [command, "bench", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "--repeats" in shown.stdout


def test_bench_without_a_checkout_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed Penstock has no benchmarks; the answer is a line and status 2."""
    monkeypatch.setattr(command_line, "__file__", str(tmp_path / "penstock" / "__main__.py"))
    assert command_line.main(["bench"]) == 2
    assert "checkout" in capsys.readouterr().err


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_standard_file_is_an_empty_one(redirection: str) -> None:
    """What is opened next does not take its place, neither here nor in a program started here."""
    code = (
        "import os, subprocess, sys; from penstock import __main__ as command_line; "
        "command_line.main(['--version']); "
        "told = subprocess.run([sys.executable, '-c', 'import os; os.fstat(0); os.fstat(1)']); "
        "sys.exit(told.returncode + 10 * (os.open('.', os.O_RDONLY) < 3))"
    )
    command = f'"$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code],
        cwd=Path(command_line.__file__).parents[1],
        check=False,
    )
    assert done.returncode == 0


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a process of its own, from the repository."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=Path(command_line.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


WITHOUT_EXTRAS = """
import sys
for module in ("pyspark", "pyarrow", "paho", "aiomqtt", "matplotlib", "numpy", "simpy", "trustme"):
    sys.modules[module] = None
from penstock import __main__ as command_line
"""


def test_each_program_without_its_extra_shows_its_help() -> None:
    """What a program takes can be read before anything else is installed."""
    code = "for name in command_line.PROGRAMS: print(name, command_line.main([name, '--help']))"
    done = python(WITHOUT_EXTRAS + code)
    assert (done.returncode, done.stderr) == (0, "")
    for name in command_line.PROGRAMS:
        assert f"\n{name} 0\n" in done.stdout


def test_a_program_without_its_extra_names_it(tmp_path: Path) -> None:
    """With how to install it; no traceback."""
    folders = [f"--{name}={tmp_path / name}" for name in ("output", "checkpoint")]
    code = WITHOUT_EXTRAS + "sys.exit(command_line.main(sys.argv[1:]))"
    done = python(code, "spark", "--url=http://127.0.0.1:9", "--queue=q", *folders)
    told = "penstock spark: needs the module pyarrow: pip install 'penstock[spark]'\n"
    assert (done.returncode, done.stderr) == (2, told)


INTERRUPTED_WHILE = """
import os, signal, sys, types
from penstock import __main__ as command_line

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "slow" and sys.argv[1] == "importing":
            os.kill(os.getpid(), signal.SIGINT)
        return None

def main(arguments):
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
sys.meta_path.insert(0, Finder())
if sys.argv[1] == "running":
    sys.modules["slow"] = types.ModuleType("slow")
    sys.modules["slow"].main = main
command_line.PROGRAMS["slow"] = ("slow", "")
sys.exit(command_line.main(["slow"]))
"""


@pytest.mark.parametrize(
    ("state", "status"), [("importing", -signal.SIGINT), ("running", command_line.INTERRUPTED)]
)
def test_an_interrupt_shows_no_traceback(state: str, status: int) -> None:
    """Neither while a program is imported, which takes long, nor before it listens for signals."""
    done = python(INTERRUPTED_WHILE, state)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_what_happens_at_an_interrupt_is_as_before_afterwards() -> None:
    """Here a program is a function call."""
    before = signal.getsignal(signal.SIGINT)
    assert command_line.main(["passwd", "--help"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
