"""A broker, a gateway and consumers on machines of their own, while those of the cluster fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fabric_faults
from benchmarks.fabric_faults import (
    FAULTS,
    QUICK,
    ClientRecords,
    judge,
    longest_gap,
    main,
    run,
    show,
)
from tests.helpers.networks import NEEDS_ROOT


@NEEDS_ROOT
@pytest.mark.parametrize("name", ["kill", "cut"])  # one that ends connections, one that does not
def test_clients_work_while_a_machine_fails(name: str, tmp_path: Path) -> None:
    """Nothing that was acknowledged is lost, nothing with an identifier is stored twice.

    Broker, gateway and clients are in three network namespaces, each machine in another one.
    """
    found = run(FAULTS[name], QUICK, 0, tmp_path)
    assert found.messages > 0
    assert (found.lost, found.doubled) == (0, 0)
    assert sum(found.by_second[1:]) > 0  # messages went on while the machine was away


def test_outcomes_are_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has a column for each fault; what is broken ends with status 1."""
    seen = ClientRecords()
    seen.acknowledged = {b"http a 0": 1.0}
    seen.steady = [(0.5, True), (0.6, False), (2.0, False)]
    monkeypatch.setattr(fabric_faults, "run", lambda *_, **__: judge(seen, set(), 0.0, 2.0))
    file, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    options = ["--quick", "--faults", "kill,cut", "--figures", str(file), "--plot", str(plot)]
    assert main([*options, "--shared-machine"]) == 1
    assert "BROKEN: 3 messages" in capsys.readouterr().out
    assert plot.stat().st_size > 0
    document = json.loads(file.read_text())
    assert document["tables"]["faults"]["columns"] == [
        "",
        FAULTS["kill"].about,
        FAULTS["cut"].about,
    ]
    (row,) = document["tables"]["compared"]["rows"]
    assert row[:4] == [FAULTS["kill"].about, "1", "1", "0.0 %"]
    assert document["origin"]["doubts"] == ["other programs ran on this machine"]


def test_what_came_is_held_against_what_was_acknowledged() -> None:
    """Lost and repeated messages, silences, and what the failed machine had."""
    seen = ClientRecords()
    seen.acknowledged = {b"http a 0": 1.0, b"http a 1": 5.0, b"mqtt b 0": 2.0}
    seen.received = [
        (b"http a 0", 0, 0, 1.5),
        (b"http a 0", 0, 0, 1.8),
        (b"http a 0", 0, 1, 2.0),
        (b"mqtt b 0", 1, 0, 3.0),
        (b"mqtt b 0", 2, 0, 9.0),
    ]
    seen.errors.update({"http": 1, "mqtt": 2, "receive": 4})
    found = judge(seen, {1}, 0.0, 10.0)
    assert (found.messages, found.errors, found.receive_errors) == (3, 3, 4)
    assert (found.lost, found.doubled, found.repeated, found.redelivered) == (1, 1, 1, 1)
    assert (found.silent_http_seconds, found.silent_mqtt_seconds) == (5.0, 8.0)
    assert (found.silent_receive_seconds, found.unreadable_seconds) == (6.0, 7.0)
    assert show("lost", [found, found]) == "2"
    assert show("unreadable_seconds", [found]) == "7.0"


def test_a_silence_goes_from_the_begin_to_the_end() -> None:
    """Also where nothing came."""
    assert longest_gap([], 1.0, 4.0) == 3.0
    assert longest_gap([0.0, 2.0, 9.0], 1.0, 4.0) == 2.0
