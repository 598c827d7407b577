from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import spark_kills
from benchmarks.faults.case import Finding
from benchmarks.spark_kills import QUICK_KILLS, VICTIMS, Place, drawn, judge, main

RIGHT: list[tuple[Place, bytes]] = [(("load", 0, 0), b"0"), (("load", 1, 0), b"1")]


def broken(rows: list[tuple[Place, bytes]]) -> dict[str, float]:
    """Return the values of promises that two messages' rows break."""
    return {each.name: each.value for each in judge(rows, 2) if each.is_met is False}


def test_each_message_once_breaks_nothing() -> None:
    """In any order."""
    assert broken(RIGHT[::-1]) == {}


@pytest.mark.parametrize(
    ("rows", "promises"),
    [
        (RIGHT[:1], {"messages lost": 1}),
        ([*RIGHT, (("load", 1, 1), b"1")], {"messages written again": 1}),
        (
            [*RIGHT, RIGHT[0]],
            {"messages written again": 1, "rows of a place that has another": 1},
        ),
        ([*RIGHT, (("load", 1, 1), b"2")], {"rows that nobody published": 1}),
    ],
)
def test_each_broken_promise_is_found(
    rows: list[tuple[Place, bytes]], promises: dict[str, float]
) -> None:
    """One row too much, or too few."""
    assert broken(rows) == promises


@pytest.mark.parametrize("seed", range(3))
def test_a_quick_run_kills_each_kind_of_victim(seed: int) -> None:
    """Whatever the seed; in an order that the seed says."""
    assert sorted(drawn(QUICK_KILLS, seed)) == sorted(VICTIMS)
    assert drawn(7, seed)[:QUICK_KILLS] == drawn(QUICK_KILLS, seed)


def test_a_broken_promise_ends_the_program_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the first line; the file has every number."""
    asked = []

    def run(count: int, victims: list[str], seed: int, *, engine: str) -> list[Finding]:
        asked.append((count, "redis" in victims, len(victims), seed, engine))
        return judge(RIGHT[:1], 2)

    monkeypatch.setattr(spark_kills, "run", run)
    file = tmp_path / "found.json"
    assert main(["--quick", "--seed", "7", "--json", str(file)]) == 1
    assert main(["--messages", "9", "--kills", "0"]) == 1
    assert main(["--messages", "9", "--kills", "5", "--engine", "redis"]) == 1
    assert asked == [
        (20_000, False, 5, 7, "sqlite"),
        (9, False, 0, 1, "sqlite"),
        (9, True, 5, 1, "redis"),
    ]
    assert capsys.readouterr().out.startswith("promises broken: messages lost\n")
    assert json.loads(file.read_text())["found"]["messages lost"] == 1
