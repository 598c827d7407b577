from __future__ import annotations

import pytest

from benchmarks import decision_cost, paired
from benchmarks.decision_cost import (
    COMPARISONS,
    POLICIES,
    ROWS,
    Effort,
    main,
    subscribers_of,
    to_markdown,
)
from benchmarks.errors import BenchmarkError
from benchmarks.paired import Interval
from benchmarks.rows import acknowledged, throughput
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from penstock.plugins.withholding.history import MAX_LENGTHS

TINY = Effort(decisions=10, repetitions=1, subscribers=2, ratios=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``--quick`` look but once, with cold caches."""
    monkeypatch.setattr(decision_cost, "QUICK_EFFORT", TINY)
    monkeypatch.setattr(paired, "WARM_UP_RATIOS", 0)


def test_decisions_memory_and_overhead_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each policy and the row have a line, and the first line says what is met."""
    assert main(["--quick", "--starts", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(("Met: a decision takes", "Missed: a decision takes"))
    for name in (*POLICIES, "qos1_1to1"):
        assert f"\n| {name} | " in shown
    assert "commit: " in shown


def test_situations_are_what_they_are_called() -> None:
    """Nothing is held on a calm path; the last one is as much as can be remembered."""
    gate = WithholdingGate(WithholdingConfig(policy="adaptive"))
    found = subscribers_of(gate)
    delivers = {
        name: gate.decide(decision_cost.MESSAGE, each.link, 1.0, each.now).deliver
        for name, each in found.items()
    }
    assert delivers == {"calm": True, "congested": False, "congested often": False}
    assert len(gate.histories[found["congested often"].link].lengths) == MAX_LENGTHS


@pytest.mark.parametrize(
    ("slowest", "found", "first_lines"),
    [
        (
            9.94,
            Interval(0.001, 0.012, 0.029),
            [
                "Met: a decision takes 9.9 µs at most.",
                (
                    "Met: where nothing is large, withholding and probing take +1.2% (+0.1% to"
                    " +2.9%) of processor time (qos0_1to1)."
                ),
            ],
        ),
        (
            12.0,
            Interval(0.031, 0.05, 0.06),
            [
                "Missed: a decision takes 12.0 µs at most.",
                (
                    "Missed: where nothing is large, withholding and probing take +5.0% (+3.1% to"
                    " +6.0%) of processor time (qos0_1to1)."
                ),
            ],
        ),
        (
            5.0,
            Interval(-0.01, 0.01, 0.04),
            [
                "Met: a decision takes 5.0 µs at most.",
                (
                    "Not resolved: where nothing is large, withholding and probing take +1.0%"
                    " (-1.0% to +4.0%) of processor time (qos0_1to1)."
                ),
            ],
        ),
    ],
)
def test_first_lines_are_the_conclusions(
    slowest: float, found: Interval, first_lines: list[str]
) -> None:
    """The slowest decision counts, estimates apart, and of a row all of its interval."""
    decisions = {
        "none": {"calm": 1.0, "estimate": 99.0},
        "adaptive": {"calm": slowest, "estimate": 2.0},
    }
    memory = {"none": 0.0, "adaptive": 900.0}
    lines = to_markdown(decisions, memory, {"qos0_1to1": found}, COMPARISONS["plugins"])
    assert lines[:2] == first_lines
    assert f"| adaptive | {slowest:.2f} | 2.00 | 900 |" in lines
    assert f"| qos0_1to1 | {found.median:+.1%} | {found.low:+.1%} | {found.high:+.1%} |" in lines


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_one_of_bench(name: str) -> None:
    """What is measured in bursts is what `penstock bench` measures at full speed."""
    assert name in {row.name for row in (*throughput.ROWS, *acknowledged.ROWS)}


def test_cost_of_timing_every_packet_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Another comparison, over the same rows; QoS 0 has a load of other processes."""
    assert main(["--quick", "--starts", "1", "--of", "puback", "--rows", "qos0_mixed"]) == 0
    shown = capsys.readouterr().out
    assert "\nNo target: where nothing is large, timing every packet takes " in shown


def test_wrong_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and what is allowed."""
    assert main(["--quick", "--rows", "qos9"]) == 2
    assert "no row 'qos9'; allowed: qos0_1to1" in " ".join(capsys.readouterr().err.split())


def test_broker_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1 and its last words."""

    def fail(*_: object, **__: object) -> None:
        raise BenchmarkError("penstock ended")

    monkeypatch.setattr(decision_cost, "measure_start", fail)
    assert main(["--quick", "--starts", "1"]) == 1
    assert "decision_cost: penstock ended" in capsys.readouterr().err
