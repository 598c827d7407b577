from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.peers import PEERS, Peer
from benchmarks.rows import Scale


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
    assert program.main([*chosen, "--quick", "--repeats", "2", "--json", str(file)]) == 0
    table = capfd.readouterr().out
    assert "| median of 2 |" in table
    assert "commit: " in table
    document = json.loads(file.read_text())
    mosquitto, ceiling = document["results"]
    assert mosquitto["ratio_to_mosquitto"] == 1
    assert ceiling["ratio_to_mosquitto"] > 0
    assert len(ceiling["measurements"]) == 2
    assert document["run"]["command"].endswith(
        "--rows qos0_1to1 --peers mosquitto,ceiling --repeats 2 --quick"
    )


def test_broker_that_does_not_start_ends_with_status_1_and_its_last_words(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that fails is named with what it said, without a traceback."""
    command = ["sh", "-c", "echo cannot; exit 3"]
    broken = Peer("broken", "ends at once", lambda _directory, _port: command, str)
    monkeypatch.setitem(PEERS, "broken", broken)
    assert program.main(["--rows", "qos0_1to1", "--peers", "broken"]) == 1
    told = capfd.readouterr().err
    assert "broken ended with status 3 at its start:\ncannot" in told
    assert "Traceback" not in told
