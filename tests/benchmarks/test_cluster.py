from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cluster as program
from benchmarks.cluster_faults import ROWS
from penstock.netem.figures.figure_file import read_figure_file


def test_what_a_message_costs_is_measured_of_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages arrive; both brokers and Redis have a share, and others stand beside."""
    monkeypatch.setattr(program, "QUICK_SECONDS", 0.1)
    figures, file = tmp_path / "figures.json", tmp_path / "results.json"
    options = ["--quick", "--rows", "costs", "--repeats", "1"]
    assert program.main([*options, "--figures", str(figures), "--json", str(file)]) == 0
    _, tables = read_figure_file(figures)
    table = tables["costs"]
    assert [row[0] for row in table.rows] == [kind.words for kind in program.KINDS]
    found = json.loads(file.read_text())["microseconds"]
    names = {program.PUBLISHERS, program.REDIS, program.SUBSCRIBERS}
    names |= {program.ALONE, program.MOSQUITTO}
    assert all(found[kind.words].keys() == names for kind in program.KINDS)
    names = {program.WORKERS, program.REDIS, program.ALONE, program.MOSQUITTO}
    assert all(found[kind.words].keys() == names for kind in program.SPREAD)
    assert [row[0] for row in tables["workers"].rows] == [kind.words for kind in program.SPREAD]
    assert all(value[0] >= 0 for each in found.values() for value in each.values())


def test_what_clients_see_of_faults_is_measured(tmp_path: Path) -> None:
    """No message is lost, and each client finds its session."""
    figures = tmp_path / "figures.json"
    options = ["--quick", "--rows", ",".join(ROWS), "--figures", str(figures)]
    assert program.main(options) == 0
    _, tables = read_figure_file(figures)
    upgrade, reconnect, killed, engine = (row[1] for row in tables["faults"].rows)
    assert upgrade.endswith(" 0 lost")
    assert reconnect.startswith("all in after")
    assert killed.startswith("elsewhere after")
    assert engine.endswith(" 0 lost")


def test_the_target_is_for_all_processes_together() -> None:
    """The sum of the medians."""
    each = {program.PUBLISHERS: [1.0], program.REDIS: [1.0, 5.0, 1.0], program.SUBSCRIBERS: [1.0]}
    found = {
        kind.words: {**each, program.ALONE: [0.5], program.MOSQUITTO: [9.0]}
        for kind in program.KINDS
    }
    row = program.to_table(found).rows[0]
    assert row[4:6] == ["3.00", "at most 3: met"]


def test_workers_and_redis_are_compared_with_one_broker() -> None:
    """By the sum of the medians."""
    each = {program.WORKERS: [1.0, 4.0, 2.0], program.REDIS: [0.6], program.ALONE: [2.0]}
    found = {kind.words: {**each, program.MOSQUITTO: [9.0]} for kind in program.SPREAD}
    row = program.to_workers_table(found).rows[0]
    assert row[4:6] == ["1.30", "at most 1.3: met"]
