from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import __main__ as command_line
from penstock.models.__main__ import main
from penstock.models.papers import live_comparison
from penstock.models.papers.fabric.sweep import FabricResults, FabricRuns
from penstock.models.planner import planning, report, validation
from penstock.models.planner.live_run import LiveRunResult, SubscriberShare
from penstock.models.recording.rows import MessageRow, RttRow, SubscriptionRow, Writer
from penstock.netem.errors import NetemError
from penstock.netem.figures.figure_file import Table, read_figure_file
from tests.models.papers.fabric.small_results import small_results
from tests.models.planner.small_plan import SMALL, small_plan

QUICK = ["--traces", "2", "--seconds", "100", "--thresholds", "0.5", "--probe-periods", "1"]


def test_plan_prints_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    """``penstock plan withholding`` gives tables of latency and verdicts."""
    assert command_line.main(["plan", "withholding", *QUICK]) == 0
    told = capsys.readouterr().out
    assert "| T_Q = 1 s | threshold_l 0.5 s |" in told
    assert "| claim | verdict | found |" in told


def test_traces_come_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that never changes costs every policy the same."""
    file = tmp_path / "calm.csv"
    file.write_text("seconds,rtt\n0,0.2\n99,0.2\n")
    assert main(["withholding", "--file", str(file), *QUICK]) == 0
    told = capsys.readouterr().out
    assert "over 1 independent trace of 100 s" in told
    assert "| historic | 1.00 |" in told
    assert "| clairvoyant | 1.00 |" in told


def test_same_seed_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """A result can be had again, and another seed gives another."""
    told = []
    for seed in ("1", "1", "5"):
        assert main(["withholding", *QUICK, "--seed", seed]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != told[2]


def test_tables_are_written_for_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that were printed, with the command that makes them again."""
    file = tmp_path / "out.json"
    words = ["withholding", *QUICK, "--figures", str(file)]
    assert main(words) == 0
    told = capsys.readouterr().out
    origin, tables = read_figure_file(file)
    assert origin.command == f"penstock plan {' '.join(words)}"
    assert tables
    assert all(f"\n{table}\n" in told for table in tables.values())


def test_plot_is_written(tmp_path: Path) -> None:
    """Beside the tables; that of one trace too."""
    pytest.importorskip("matplotlib")
    files = [tmp_path / "out.svg", tmp_path / "trace.svg"]
    assert (
        main(["withholding", *QUICK, "--plot", str(files[0]), "--plot-trace", str(files[1])]) == 0
    )
    assert all("<svg" in file.read_text() for file in files)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--probe-periods", "0"], "read '0'; allowed: whole numbers above 0"),
        (["--probe-periods", "2.5"], "read '2.5'"),
        (["--thresholds", "2,1"], "read '2,1'; allowed: numbers above 0, ascending"),
        (["--thresholds", "1,nan"], "read '1,nan'"),
        (["--thresholds", "1,inf"], "read '1,inf'"),
        (["--thresholds", ""], "read ''"),
        (["--answers", "never"], "read 'never'; allowed: period or arrival"),
        (["--traces", "0"], "--traces"),
        (["--file", "missing.csv"], "missing.csv"),
        (["--plot-trace", "folder/that/is/not/x.png"], "folder/that/is/not"),
        (["--plot", "folder/that/is/not/x.png"], "folder/that/is/not"),
        (["--figures", "folder/that/is/not/x.json"], "--figures: folder/that/is/not/x.json: no"),
    ],
)
def test_wrong_input_is_named(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 2 and what was read, without a traceback."""
    monkeypatch.chdir(tmp_path)
    assert main(["withholding", *QUICK, *arguments]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert told in error
    assert "Traceback" not in error


def test_wrong_row_is_named_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line, what was read, what is allowed."""
    file = tmp_path / "t.csv"
    file.write_text("0,0.1\n1,fast\n")
    assert main(["withholding", "--file", str(file)]) == 2
    assert "line 2: read '1,fast'" in capsys.readouterr().err


def test_file_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no UTF-8 end in a message too."""
    file = tmp_path / "t.csv"
    file.write_bytes(b"\xff\xfe\x00")
    assert main(["withholding", "--file", str(file)]) == 2
    assert "t.csv" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--plot", "--plot-trace"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none/x.png", "no folder"),
        ("folder", "not a regular file"),
        ("x.xyz", "no form of picture; allowed: "),
    ],
)
def test_where_a_plot_cannot_be_written_nothing_is_simulated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    name: str,
    told: str,
) -> None:
    """It is said before a run of minutes."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("penstock.models.papers.commands.run", None)
    (tmp_path / "folder").mkdir()
    assert main(["withholding", option, str(tmp_path / name)]) == 2
    assert f"{option}: {tmp_path / name}: {told}" in capsys.readouterr().err


def test_plot_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables come without it; a picture needs it."""
    load = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("penstock.models.papers.commands.run", None)  # it is said before
    assert main(["withholding", *QUICK, "--plot", str(tmp_path / "x.png")]) == 2
    assert "penstock-mqtt[models]" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--sensitivity"]])
def test_links_are_compared(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables on standard output and in the file for pages, what is run on standard error."""
    file = tmp_path / "out.json"
    words = ["links", "--links", "1", "--seconds", "10", *options, "--figures", str(file)]
    assert main(words) == 0
    told = capsys.readouterr().out
    origin, tables = read_figure_file(file)
    assert origin.command.startswith("penstock plan links --links 1")
    assert all(str(table) in told for table in tables.values())


@pytest.mark.parametrize(
    ("words", "heading"),
    [
        ("dequeue --seeds 1 --seconds 1 --rates 50", "| figure 9: messages/s | lambda 50 |"),
        (
            "patterns --replications 2 --messages 1000",
            "| figure | reported | simulated | deviation | closed form | verdict |",
        ),
        (
            "visibility --replications 2 --seconds 1",
            "| figure 11: delivery time, s | n1 = n2 = 4 |",
        ),
    ],
)
def test_plan_gives_the_figures_of_a_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, heading: str
) -> None:
    """With their numbers and claims: papers 000, 003 and 004."""
    file = tmp_path / "figures.json"
    assert main([*words.split(), "--figures", str(file)]) == 0
    told = capsys.readouterr().out
    assert heading in told
    _, tables = read_figure_file(file)
    assert all(str(table) in told for table in tables.values())


def test_plan_runs_the_fabric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``penstock plan fabric`` gives paper 001's numbers, claims and figures."""
    pytest.importorskip("matplotlib")
    simulated: list[FabricRuns] = []

    def run(runs: FabricRuns, tell: Callable[[str], None]) -> FabricResults:
        simulated.append(runs)
        tell("all settings")
        return small_results()

    monkeypatch.setattr("penstock.models.papers.fabric.sweep.run", run)
    figures, plot = tmp_path / "figures.json", tmp_path / "figures.svg"
    words = ["--replications", "2", "--figures", str(figures), "--plot", str(plot)]
    assert main(["fabric", *words]) == 0
    told = capsys.readouterr()
    assert "| error responses with consistent hashing | 2379 |" in told.out
    assert (simulated, told.err) == ([FabricRuns(2)], "all settings\n")
    _, tables = read_figure_file(figures)
    assert all(str(table) in told.out for table in tables.values())
    assert "<svg" in plot.read_text()


def test_plan_simulates_a_path_of_patterns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option reaches the path."""
    file = tmp_path / "figures.json"
    words = "--arrival-rate 5 --lifetime 10 --capacity 20 --unreliable-publisher --publisher 40/40"
    words += " --unreliable-subscriber --subscriber 15/15 --broker 90/10 --network 70/10"
    words += " --processing-rate 60 --transmission-rate 30 --serve-expired --replications 2"
    assert main(["delivery", *words.split(), "--messages", "4000", "--figures", str(file)]) == 0
    told = capsys.readouterr().out
    assert "2 independent runs of 2,000 messages each" in told
    _, tables = read_figure_file(file)
    stages = {row[0]: row for row in tables["stages"].rows}
    assert stages["publisher's application"][1] == "0.167"  # 5 / (60 / 2)
    assert all(float(stages["publisher's application"][column]) > 0 for column in (2, 3))
    assert float(stages["publisher's transmission"][4]) > 0
    assert float(stages["broker's transmission"][4]) > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing option '--arrival-rate'"),
        (["--arrival-rate", "0"], "arrival_rate: read 0.0; allowed: a finite number above 0"),
        (["--arrival-rate", "40"], "publisher's transmission overflows: 40 messages/s arrive"),
        (["--arrival-rate", "2", "--lifetime", "-1"], "lifetime: read -1.0; allowed: above 0"),
        (["--arrival-rate", "2", "--capacity", "0"], "capacity: read 0; allowed: 1 or more"),
        (["--arrival-rate", "2", "--publisher", "40"], "--publisher: read '40'; allowed: two"),
        (["--arrival-rate", "2", "--broker", "0/1"], "--broker: read '0/1'"),
        (
            ["--arrival-rate", "2", "--messages", "1000", "--replications", "20"],
            "messages: read 1000; allowed: 2000 or more",
        ),
    ],
)
def test_a_path_that_cannot_be_names_what_is_wrong(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, the parameter or the stage, what was read and what is allowed."""
    assert main(["delivery", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_plan_simulates_a_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option reaches the queue; the analytic network stands where it describes it."""
    file = tmp_path / "figures.json"
    effort = ["--replications", "2", "--seconds", "20"]
    words = "--arrival-rate 8 --senders 2 --send-rate 5 --receivers 3 --receive-rate 4"
    words += " --reliability 0.8 --link-delay 0.5"
    given = [*words.split(), *effort, "--figures", str(file)]
    assert main(["lease", *given]) == 0
    _, tables = read_figure_file(file)
    assert str(tables["queue"]) in capsys.readouterr().out
    expected = {row[0]: row[2] for row in tables["queue"].rows}
    assert expected["utilisation of the senders"] == "0.8"
    assert expected["utilisation of the receivers"] == "0.833"
    assert float(expected["delivery time, s"]) > 2.2 * 0.5
    given = ["--arrival-rate", "2", "--order", "arrived", "--visibility-timeout", "0.1", *effort]
    assert main(["lease", *given]) == 0
    last = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert float(last[1]) > 10  # deliveries of 0.1 s on average
    assert last[2] == "- |"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing option '--arrival-rate'"),
        (["--arrival-rate", "70"], "sender overflows: 70 messages/s arrive, it serves 70/s"),
        (["--arrival-rate", "30", "--order", "settled"], "broker, one message at a time, overflow"),
        (["--arrival-rate", "30", "--order", "fifo"], "order: read 'fifo'; allowed: any, arrived"),
        (["--arrival-rate", "30", "--reliability", "2"], "reliability_ratio: read 2.0; allowed"),
        (
            ["--arrival-rate", "30", "--receivers", "0"],
            "'--receivers': read '0'; allowed: 1 or more",
        ),
    ],
)
def test_a_queue_that_cannot_be_names_what_is_wrong(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, the parameter or the stage, what was read and what is allowed."""
    assert main(["lease", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_plan_writes_what_a_fleet_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``penstock plan FILE.yaml`` prints each table, and writes a page and a policy file."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(planning, "make_plan", lambda _fleet, _tell: small_plan())
    file, page, policy = (tmp_path / name for name in ("plan.yaml", "plan.html", "policy.yaml"))
    file.write_text(SMALL)
    assert main([str(file), "--html", str(page), "--policy", str(policy)]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{table}\n" in told for table in report.tables(small_plan()).values())
    assert page.read_text().count("<table>") == len(report.tables(small_plan()))
    assert "recognition" in policy.read_text()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("link: mobile", "link: moon", "subscribers.operators.link: read 'moon'; allowed: wired"),
        ("per_second: 0.04", "per_second: 4", "link of operators overflows: 2.003e+06 bytes/s"),
        ("per_second: 0.04", "per_second: 4", "receivers of recognition overflows: 22.22 messages"),
    ],
)
def test_a_fleet_that_cannot_be_planned_for_names_what_is_wrong(
    old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2: the key, or each stage that overflows."""
    file = tmp_path / "plan.yaml"
    assert old in SMALL
    file.write_text(SMALL.replace(old, new))
    assert main([str(file)]) == 2
    assert told in capsys.readouterr().err


def test_where_a_plan_cannot_be_written_nothing_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said at once, and so is a file that is not there."""
    missing = str(tmp_path / "plan.yaml")
    assert main([missing]) == 2
    assert "No such file" in capsys.readouterr().err
    for option in ("--html", "--policy", "--figures"):
        assert main([missing, option, str(tmp_path / "none" / "x")]) == 2
        assert "no folder" in capsys.readouterr().err


def test_a_plan_is_validated_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--validate`` adds what was measured to the tables; it is for what subscribers get."""
    monkeypatch.setattr(planning, "make_plan", lambda _fleet, _tell: small_plan())
    share = SubscriberShare(100, 90, 80, 20.0)
    shares = {pair: [share] * 8 for pair in small_plan().deliveries}
    found = LiveRunResult(shares, shares, 0.05, 0.01)
    monkeypatch.setattr(validation, "run", lambda *_: found)
    file = tmp_path / "plan.yaml"
    file.write_text(SMALL)
    assert main([str(file), "--validate"]) == 0
    assert "| sensors to operators: delivered | 0." in capsys.readouterr().out

    def fails(*_: object) -> LiveRunResult:
        raise NetemError("broker plan has ended")

    monkeypatch.setattr(validation, "run", fails)
    assert main([str(file), "--validate"]) == 1
    assert "penstock plan: broker plan has ended" in capsys.readouterr().err
    fleet = replace(small_plan().fleet, subscribers={})
    alone = replace(small_plan(), fleet=fleet, deliveries={}, held={})
    monkeypatch.setattr(planning, "make_plan", lambda _fleet, _tell: alone)
    assert main([str(file), "--validate"]) == 2
    assert "a fleet with subscribers" in " ".join(capsys.readouterr().err.split())


def test_real_runs_are_told_with_their_doubts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--real` is of the models beside servers; a file says what is doubtful."""
    table = Table(["paper", "figure"], [["003", "success"]])
    monkeypatch.setattr(
        live_comparison,
        "run",
        lambda _, **__: live_comparison.LiveResults({"real runs": table}, ["busy"]),
    )
    file = tmp_path / "real.json"
    assert main(["papers", "--real", "--quick", "--figures", str(file)]) == 0
    assert "| 003 | success |" in capsys.readouterr().out
    origin, tables = read_figure_file(file)
    assert origin.doubts == ["busy"]
    assert tables == {"real runs": table}


def test_a_real_run_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, and no traceback."""

    def fail(*_: object, **__: object) -> None:
        raise NetemError("broker patterns has ended")

    monkeypatch.setattr(live_comparison, "run", fail)
    assert main(["papers", "--real"]) == 1
    assert "penstock plan: broker patterns has ended" in capsys.readouterr().err


def test_policies_are_compared_on_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One trace for each client, with its own large messages; the paper's numbers stay away."""
    writer = Writer(tmp_path / "recording", 100_000)
    for second in range(60):
        rtt = 3.0 if 20 <= second < 40 else 0.1
        row = RttRow(float(second), "far", True, rtt, 0, None, 0, None, None, None, None)
        writer.take(row)
        writer.take(row._replace(client="near", rtt_seconds=0.1))
    writer.take(SubscriptionRow(0.0, "far", "pictures/#"))
    writer.take(MessageRow(25.0, "pictures/1", 1_000_000, None))
    writer.close()
    assert main(["withholding", "--file", str(tmp_path / "recording"), *QUICK]) == 0
    told = capsys.readouterr().out
    assert "| far | 60 | 0.1 s | 3 s | 3 s | 1 | 10 to 10 |" in told
    assert "| near | 60 | 0.1 s | 0.1 s | 0.1 s | none: one in 5 s, as in the paper | 10 |" in told
    assert "| none | 7.75 |" in told  # a message in the bad time takes 15 s, all others 0.5 s
    assert "reported" not in told
    assert main(["withholding", "--file", str(tmp_path)]) == 2
    assert f"{tmp_path}: " in capsys.readouterr().err


def test_without_a_checkout_the_evaluations_say_that_they_need_one() -> None:
    """A wheel has none of them; planning goes on to work."""
    code = (
        "import sys\nsys.modules['penstock.models.papers'] = None\n"
        "from penstock.models.__main__ import main\n"
        "print(main(['dequeue', '--seeds', '1']), main(['lease', '--help']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("2 0\n")
    told = (
        "the papers' evaluations are not installed; allowed: a checkout of Penstock and in it pip"
    )
    assert told in done.stderr
