from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import queue_strategies
from benchmarks.errors import BenchmarkError
from benchmarks.program import doubts
from benchmarks.queue_strategies import CEILING, STRATEGIES, Point, main, measure_point, tables
from penstock.netem.figures.figure_file import read_figure_file


def test_strategies_are_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages get through over HTTP; table, JSON and picture have each strategy."""
    load = queue_strategies._measure_load
    measured: dict[str, float] = {}

    def load_once(
        strategy: str, rate: float, seconds: float, sleep_time: float = 0.1
    ) -> dict[str, float]:
        """Return what one strategy does, for all: five gateways take minutes on a busy machine."""
        if not rate:
            return dict.fromkeys(("stored", "settled", "messages", "requests"), 1.0) | {
                "hit_dequeues": 1.0,
                "missed_dequeues": 0.0,
            }
        if not measured:
            measured.update(load(strategy, rate, seconds, sleep_time))
        return measured

    monkeypatch.setattr(queue_strategies, "_measure_load", load_once)
    monkeypatch.setattr(queue_strategies, "QUICK_SECONDS", 0.3)
    monkeypatch.setattr(queue_strategies, "QUICK_RATES", (50,))
    file, picture = tmp_path / "results.json", tmp_path / "curves.png"
    figures = tmp_path / "figures.json"
    arguments = ["--quick", "--repeats", "1", "--json", str(file), "--plot", str(picture)]
    assert main([*arguments, "--figures", str(figures)]) == 0
    table = capsys.readouterr().out
    assert "| rds, lambda 50 | conventional, lambda 50 |" in table
    assert "commit: " in table
    assert "| 5 s |" in table
    origin, shown = read_figure_file(figures)
    assert "--quick" in origin.command
    assert all(str(each) in table for each in shown.values())
    document = json.loads(file.read_text())
    received = document["messages_per_second"]
    assert set(received) == {*STRATEGIES, CEILING}
    assert all(value > 0 for by_rate in received.values() for (value,) in by_rate.values())
    assert picture.stat().st_size > 0


def points(conventional: float, rds: float) -> queue_strategies.Points:
    """Return measurements at one rate."""
    of = {"conventional": conventional, "pms": 120.0, "rds": rds, "rds+wake": 1.0}
    found = {name: {200: [Point(rate, 0.5, 3.0, 9.0)]} for name, rate in of.items()}
    return found | {CEILING: {0: [Point(200.0, 0.0, 0.0, 0.0)]}}


def test_table_says_whether_the_target_is_met() -> None:
    """RDS is held against conventional at the paper's highest rate, PMS against both."""
    both = "| rds, lambda 200 | conventional, lambda 200 |"
    slow = {5.0: [Point(170.0, 0.5, 3.0, 9.0)]}
    met = str(tables(points(100.0, 190.0), slow)["ratios"])
    with_sleep_time = "| rds, lambda 200, sleep time 5 s | conventional, lambda 200 |"
    assert f"{with_sleep_time} 1.70 | 1.70 - 1.70 | at least 1.8 | missed |" in met
    assert f"{both} 1.90 | 1.90 - 1.90 | at least 1.8 | met |" in met
    assert "| pms, lambda 200 | rds, lambda 200 | 0.63 | 0.63 - 0.63 | at most 1 | met |" in met
    assert f"| {CEILING} | conventional, lambda 200 | 2.00 | 2.00 - 2.00 | - | - |" in met
    assert "at least 1.8 | missed |" in str(tables(points(100.0, 150.0), slow)["ratios"])
    row = "| 200 | rds | 190 | 190 - 190 | 0.50 | 3.0 | 9 |"
    assert row in str(tables(points(100.0, 190.0), slow)["strategies"])


@pytest.mark.parametrize(("load", "n_doubts"), [(0.2, 0), (3.0, 1)])
def test_a_busy_machine_makes_the_figures_doubtful(
    monkeypatch: pytest.MonkeyPatch, load: float, n_doubts: int
) -> None:
    """A page that shows them says so."""
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    assert len(doubts()) == n_doubts


def test_load_that_fails_is_told() -> None:
    """A gateway that refuses its policy file ends the measurement with its words."""
    with pytest.raises(BenchmarkError, match="the gateway did not start"):
        measure_point("lifo", 10, 0.1)
