from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock import __main__ as command_line
from penstock import programs
from penstock.programs import FIRST, PROGRAMS, RUNNING


def test_unknown_program_names_it_and_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong program name is told beside the one that it may stand for, with status 2."""
    assert command_line.main(["borker"]) == 2
    assert "No such command 'borker'. Did you mean 'broker'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["broker"], "option '-c' / '--config'. Policy file, or aMQTT's YAML file; "),
        (["queue", "serve"], "option '-c' / '--config'. Policy file with the plugin queue; "),
        (["proxy"], "option '-c' / '--config'. The proxy's file, at least \"upstream: {address: "),
        (["proxy", "--mode", "edge"], "with --mode edge, a policy file with the plugin uplink: "),
    ],
)
def test_a_missing_file_is_told_with_what_writes_one(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has none yet knows what to do."""
    assert command_line.main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "'penstock init' writes " in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--verzion"], "No such option: --verzion (Possible options: --version)"),
        (["broker", "--confg", "x"], "No such option: --confg (Possible options: --config)"),
        (["netem", "lnk"], "No such command 'lnk'. Did you mean 'link'?"),
        (["spark", "--trigge", "1"], "No such option: --trigge (Possible options: --trigger)"),
        (["bench", "--quik"], "No such option: --quik (Possible options: --quick)"),
    ],
)
def test_a_misspelt_option_names_the_nearest(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the command as in each program, one plain line says it; status 2."""
    assert command_line.main(arguments) == 2
    assert f"Error: {told}\n" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_usage_lists_all_programs(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that people need come first, then those that look at a running broker."""
    assert command_line.main([argument]) == 0
    first, _, others = capsys.readouterr().out.partition("A running broker, here or elsewhere:")
    running, _, others = others.partition("More commands:")
    for name in PROGRAMS:
        section = first if name in FIRST else running if name in RUNNING else others
        assert f"  {name} " in section


def test_without_a_program_the_few_that_people_need_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is an error all the same."""
    assert command_line.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  penstock")] == list(FIRST)
    assert lines[-1] == "More commands: penstock --help"


def test_version_is_the_one_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """What to name in a report of a fault."""
    assert command_line.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {version('penstock-mqtt')}\n"


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
    monkeypatch.setattr(programs, "__file__", str(tmp_path / "penstock" / "programs.py"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" in path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    assert command_line.main(["bench"]) == 2
    assert capsys.readouterr().err == "penstock bench: runs from a checkout of the repository\n"


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
from penstock.programs import FIRST, PROGRAMS
"""


def test_each_program_without_its_extra_shows_its_help() -> None:
    """What a program takes can be read before anything else is installed."""
    code = "for name in PROGRAMS: print(name, command_line.main([name, '--help']))"
    done = python(WITHOUT_EXTRAS + code)
    assert (done.returncode, done.stderr) == (0, "")
    for name in PROGRAMS:
        assert f"\n{name} 0\n" in done.stdout


def test_a_program_without_its_extra_names_it(tmp_path: Path) -> None:
    """With how to install it; no traceback."""
    folders = [f"--{name}={tmp_path / name}" for name in ("output", "checkpoint")]
    code = WITHOUT_EXTRAS + "sys.exit(command_line.main(sys.argv[1:]))"
    done = python(code, "spark", "--url=http://127.0.0.1:9", "--queue=q", *folders)
    told = "penstock spark: needs the module pyarrow: pip install 'penstock-mqtt[spark]'\n"
    assert (done.returncode, done.stderr) == (2, told)


INTERRUPTED_WHILE = """
import os, signal, sys, types
from penstock import __main__ as command_line
from penstock.programs import FIRST, PROGRAMS, Program

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
PROGRAMS["slow"] = Program("slow", "")
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


LOADED = """
import sys
from penstock import __main__ as command_line
command_line.main(sys.argv[1:])
print(*sorted(name for name in sys.modules if name.startswith(("penstock.", "benchmarks"))))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["borker"], ["--version"]])
def test_no_program_is_loaded_that_is_not_named(arguments: list[str]) -> None:
    """The command answers before a broker, or Spark, could have been imported."""
    loaded = python(LOADED, *arguments).stdout.splitlines()[-1]
    assert loaded == "penstock.__main__ penstock.programs"


def test_a_named_program_is_loaded_alone() -> None:
    """The others, and what they need, stay where they are."""
    loaded = python(LOADED, "broker", "--help").stdout.splitlines()[-1].split()
    assert "penstock.broker.server" in loaded
    assert not [name for name in loaded if ".edge_proxy" in name or ".spark_bridge" in name]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("penstock im", ["import-mosquitto"]),
        ("penstock broker --con", ["--config"]),
        ("penstock netem ru", ["run"]),
        ("penstock spark run --trig", ["--trigger"]),
        ("penstock bench --quic", ["--quick"]),
        ("penstock client tra", ["trace"]),
        ("penstock retained rm --ye", ["--yes"]),
        ("penstock top --cont", ["--context"]),
        ("penstock sub --no-r", ["--no-retained"]),
    ],
)
def test_the_shell_completes_programs_and_their_options(typed: str, offered: list[str]) -> None:
    """As bash asks it, by the script of `--install-completion`."""
    asked = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    command = Path(sys.executable).with_name("penstock")
    done = subprocess.run(
        [command], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_completion_without_the_extra_offers_nothing() -> None:
    """And writes nothing into the terminal."""
    code = WITHOUT_EXTRAS + (
        "import os\n"
        "sys.modules['penstock.spark_bridge.__main__'] = None\n"
        "os.environ |= {'_PENSTOCK_COMPLETE': 'complete_bash', 'COMP_CWORD': '2',"
        " 'COMP_WORDS': 'penstock spark --trig'}\n"
        "sys.exit(command_line.main([]))"
    )
    done = python(code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
