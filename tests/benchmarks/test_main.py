from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.peers import PEERS, Peer
from benchmarks.rows.row import Measurement, Row, Scale
from penstock.netem.figures.figure_file import read_figure_file


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--rows", "nothing"], "qos0_1to1"), (["--peers", "hivemq"], "mosquitto")],
)
def test_wrong_names_are_told_beside_the_right_ones(
    arguments: list[str], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """An unknown row or peer ends with status 2 and the names that are allowed."""
    assert program.main(arguments) == 2
    assert named in capfd.readouterr().err


def test_run_prints_a_table_and_writes_every_measurement(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table and the JSON hold results, ratios and where they come from."""
    monkeypatch.setattr(program, "QUICK", Scale(seconds=0.02, warm_up_messages=100))
    file = tmp_path / "results.json"
    chosen = ["--rows", "qos0_1to1", "--peers", "mosquitto,ceiling"]
    page = tmp_path / "figures.json"
    files = ["--json", str(file), "--figures", str(page)]
    assert program.main([*chosen, "--quick", "--repeats", "2", *files]) == 0
    origin, tables = read_figure_file(page)
    assert origin.command.startswith("penstock bench --rows qos0_1to1 ")
    assert tables["rows"].cell("`qos0_1to1`", "mosquitto")
    table = capfd.readouterr().out
    assert "| 2 |" in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    mosquitto, ceiling = document["results"]
    assert mosquitto["ratio_to_mosquitto"] == 1
    assert ceiling["ratio_to_mosquitto"] > 0
    assert len(ceiling["measurements"]) == 2
    assert document["run"]["command"].endswith(
        "--rows qos0_1to1 --peers mosquitto,ceiling --repeats 2 --quick"
    )


def test_further_broker_is_measured_by_its_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that nobody here knows stands in the table beside the others."""
    monkeypatch.setattr(program, "QUICK", Scale(seconds=0.02, warm_up_messages=100))
    relay = f"relay@1.0={sys.executable} -m benchmarks.loads.relay {{port}}"
    arguments = ["--rows", "qos0_1to1", "--quick", "--command", relay]
    assert program.main([*arguments, "--peers", "mosquitto"]) == 0
    shown = capfd.readouterr()
    assert "|  | relay | " in shown.out
    assert "relay 1.0 (" in shown.out
    assert "--command 'relay@1.0=" in shown.out
    assert "2/2, 0 min left: qos0_1to1 relay: " in shown.err
    assert program.main(["--command", "relay=sh"]) == 2
    assert "{port}" in capfd.readouterr().err


def test_missed_target_is_a_status_where_that_is_asked(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script can tell a run that met every target from one that did not."""
    outcomes = iter([0.5, 1.0, 0.5, 1.0, *[0.25] * 6])

    def measure(row: Row, _peer: Peer, _scale: Scale) -> Measurement:
        assert row.name == "memory_filters"
        return Measurement(next(outcomes))

    monkeypatch.setattr(program, "measure", measure)
    arguments = ["--rows", "memory_filters", "--peers", "penstock", "--repeats", "1"]
    assert program.main([*arguments, "--check"]) == 0
    assert capfd.readouterr().out.startswith("rows missed: none\n")
    assert program.main([*arguments, "--check"]) == 1
    # Two that disagree are repeated: 0.5, 1.0, then four of 0.25.
    assert program.main([*arguments[:-1], "2", "--check"]) == 0
    assert "| 6 | 0.25 - 1.00 |" in capfd.readouterr().out
    monkeypatch.setattr(program, "measure", lambda *_: Measurement(2.0))
    assert program.main(arguments) == 0
    assert "rows missed: memory_filters (2.00; at most 0.5)" in capfd.readouterr().out


def test_broker_that_does_not_start_ends_with_status_1_and_its_last_words(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that fails is named with what it said, without a traceback."""
    command = ["sh", "-c", "echo cannot; exit 3"]
    broken = Peer("broken", "ends at once", lambda _directory, _port: command, str)
    monkeypatch.setitem(PEERS, "broken", broken)
    assert program.main(["--rows", "qos0_1to1", "--peers", "broken"]) == 1
    told = capfd.readouterr().err
    assert "broker broken has ended with status 3: sh -c echo cannot; exit 3\ncannot" in told
    assert "Traceback" not in told
