from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from penstock.netem.__main__ import main
from penstock.netem.figures.figure_file import read_figure_file
from penstock.netem.links.namespaces import FOLDER
from penstock.netem.runs.scenario_file import names
from tests.helpers.forks import Popen
from tests.helpers.netem_runs import INFO, whole_run, write_run
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import SECONDS

ROOT = Path(__file__).resolve().parents[2]

LINK = """
profiles:
  good: {upstream: {delay: 0.02}, downstream: {delay: 0.02, rate: 2500000}}
  lossy: {downstream: {loss: 0.2}}
begin: good
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A link of two states."""
    path = tmp_path / "link.yaml"
    path.write_text(LINK)
    return path


@contextlib.contextmanager
def holding(file: Path, *options: str, stdin: int) -> Iterator[subprocess.Popen[str]]:
    """Run the program on a file, and at the end whatever a test has found, no more."""
    with Popen(
        [sys.executable, "-m", "penstock.netem", "link", str(file), *options],
        cwd=ROOT,
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        bufsize=1,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@NEEDS_ROOT
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_link_is_held_switched_and_taken_down(file: Path, number: signal.Signals) -> None:
    """It says how to use the hosts and what the link is; a signal ends it with status 0."""
    with holding(file, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        server, client = process.stdout.readline(), process.stdout.readline()
        assert server.startswith("server 198.18.0.1: ip netns exec penstock-")
        assert client.startswith("client 198.18.0.2: ip netns exec penstock-")
        namespace = client.split()[-2]
        assert process.stdout.readline() == "profile good: 40 ms round trip, 2,500 kB/s\n"
        process.stdin.write("lossy\nworse\n")
        told = {process.stdout.readline(), process.stdout.readline()}
        assert told == {
            "profile lossy: 0 ms round trip, any rate, 20 % lost\n",
            "profile: read 'worse'; allowed: good, lossy\n",
        }
        process.send_signal(number)
        assert process.stdout.read() == "taken down\n"
        assert process.wait(SECONDS) == 0
    assert not (FOLDER / namespace).exists()


@NEEDS_ROOT
def test_a_plan_is_followed_without_standard_input(file: Path) -> None:
    """At the end of the input the link goes on, and each change is told."""
    file.write_text(LINK + "trace: {at_seconds: [0.3, 0.4], profiles: [lossy, good]}")
    with holding(file, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        words = [process.stdout.readline().split()[:2] for _ in range(5)]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    assert words[2:] == [["profile", "good:"], ["profile", "lossy:"], ["profile", "good:"]]


def test_scenarios_are_listed_with_their_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each: name, title, how long the full one takes and the short one."""
    assert main(["scenarios"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    (line,) = (each for each in lines if each.startswith("transient-congestion "))
    assert re.search(r"Transient congestion: \d+ to \d+ min; short 12 to \d+ s$", line)


def test_without_root_it_ends_with_status_2(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told what is missing, without a traceback."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert main(["link", str(file)]) == 2
    told = capsys.readouterr().err
    assert told == "penstock netem: network namespaces need root; run it with sudo\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["link", "/none/such"], "/none/such"), (["link"], "FILE"), (["lnk"], "lnk")],
)
def test_a_mistake_ends_with_status_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named."""
    assert main(arguments) == 2
    assert named in capsys.readouterr().err


EXTRA = ("matplotlib", "numpy", "paho", "pyarrow", "rich")
"""Packages of the extra `netem`, by the names by which they are imported."""


def without(packages: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program where some packages are not installed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({packages}))\n"
        "from penstock.netem.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("package", EXTRA)
def test_experiments_without_the_extra_name_it(package: str, tmp_path: Path) -> None:
    """Whatever of it is missing: status 2 and how to get it, before anything is made."""
    folder = tmp_path / "run"
    run = without((package,), "run", "transient-congestion", "--short", "--out", str(folder))
    said = f"experiments need the package {package}: pip install 'penstock-mqtt[netem]'"
    assert (run.returncode, run.stderr) == (2, f"penstock netem: {said}\n")
    assert not folder.exists()


def test_tables_alone_need_no_matplotlib(tmp_path: Path) -> None:
    """A run without plots gets past what is missing, to the next mistake."""
    arguments = ("run", "transient-congestion", "--no-plots", "--brokers", "none-such")
    run = without(("matplotlib",), *arguments, "--out", str(tmp_path / "run"))
    assert run.returncode == 2
    assert "read 'none-such'" in " ".join(run.stderr.split())


def test_links_reports_and_lists_without_the_extra(tmp_path: Path, file: Path) -> None:
    """A report needs it, and says so; scenarios are listed, and links want root and no more."""
    assert without(EXTRA, "report", str(tmp_path)).stderr.endswith("'penstock-mqtt[netem]'\n")
    assert without(EXTRA, "scenarios").stdout.startswith("bystanders")
    file.write_text(LINK.replace("begin: good", "begin: gone"))
    link = without(EXTRA, "link", str(file))
    assert (link.returncode, "read 'gone'; allowed: good, lossy" in link.stderr) == (2, True)


def test_runs_with_other_seeds_make_one_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands in a folder of its own, with the units of all, and can be written again."""
    one, other, both = (tmp_path / name for name in ("one", "other", "both"))
    for folder in (one, other):
        folder.mkdir()
    write_run(one, INFO, whole_run())
    tables = whole_run()
    for each in fields(tables):
        rows = getattr(tables, each.name)
        rows[:] = [row._replace(seed=row.seed + 100) for row in rows]
    seeds = [seed + 100 for seed in INFO.scenario.seeds]
    write_run(other, replace(INFO, scenario=replace(INFO.scenario, seeds=seeds)), tables)
    assert main(["report", str(one), str(other)]) == 2
    assert "--out: read none; needed for several runs" in capsys.readouterr().err
    assert main(["report", str(one), str(other), "--out", str(both)]) == 0
    told = capsys.readouterr().out
    assert "not shown: small p90: adaptive 200 ms, mosquitto 2.0 s: 0.10 of it, 2 units" in told
    assert main(["report", str(both)]) == 0
    assert capsys.readouterr().out == told
    assert main(["report", str(one), str(one), "--out", str(tmp_path / "twice")]) == 2
    assert "is in more than one of" in capsys.readouterr().err


def test_a_report_is_written_again_from_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verdicts are said, one a line; a folder without a run is named, status 2."""
    write_run(tmp_path, INFO, whole_run())
    figures = tmp_path / "figures.json"
    assert main(["report", str(tmp_path), "--figures", str(figures)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not shown: small p90: adaptive 200 ms, mosquitto 2.0 s: 0.10 of it, 1 unit (at most 0.5)",
        "met: lost: adaptive 0 (at most 0)",
        str(tmp_path / "report.md"),
    ]
    _, tables = read_figure_file(figures)
    assert tables["verdicts"].rows[1][0] == "lost"
    assert main(["report", str(tmp_path), "--figures", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"penstock netem: --figures: {tmp_path}: not a regular file\n"
    )
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere/run.json" in capsys.readouterr().err
