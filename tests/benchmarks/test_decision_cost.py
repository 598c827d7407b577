from __future__ import annotations

import pytest

from benchmarks import decision_cost
from benchmarks.decision_cost import POLICIES, main, subscribers_of, to_markdown
from benchmarks.errors import BenchmarkError
from plugins.withholding.config import WithholdingConfig
from plugins.withholding.gate import WithholdingGate
from plugins.withholding.history import MAX_LENGTHS


def test_decisions_memory_and_overhead_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each policy and the row have a line, and the first line says what is met."""
    assert main(["--quick", "--repeats", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(("Met: a decision takes", "Missed: a decision takes"))
    for name in (*POLICIES, "qos0_mixed"):
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
    ("slowest", "ratios", "first_line"),
    [
        (
            9.94,
            [0.04, 0.01, 0.02],
            (
                "Met: a decision takes 9.9 µs at most. Met: where nothing is large, withholding and"
                " probing take +2.0% of processor time at most (qos0_1to1)."
            ),
        ),
        (
            12.0,
            [0.05],
            (
                "Missed: a decision takes 12.0 µs at most. Missed: where nothing is large,"
                " withholding and probing take +5.0% of processor time at most (qos0_1to1)."
            ),
        ),
    ],
)
def test_first_line_is_the_conclusion(slowest: float, ratios: list[float], first_line: str) -> None:
    """The slowest decision counts, estimates apart, and of a row the median of its pairs."""
    decisions = {
        "none": {"calm": 1.0, "estimate": 99.0},
        "adaptive": {"calm": slowest, "estimate": 2.0},
    }
    memory = {"none": 0.0, "adaptive": 900.0}
    text = to_markdown(decisions, memory, {"qos1_1to1": [-0.01], "qos0_1to1": ratios})
    assert text.splitlines()[0] == first_line
    assert f"| adaptive | {slowest:.2f} | 2.00 | 900 |" in text


def test_wrong_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and what is allowed."""
    assert main(["--quick", "--rows", "qos9"]) == 2
    assert "no row 'qos9'; allowed: qos0_1to1" in " ".join(capsys.readouterr().err.split())


def test_broker_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1 and its last words."""

    def fail(*_: object) -> None:
        raise BenchmarkError("penstock ended")

    monkeypatch.setattr(decision_cost, "measure", fail)
    assert main(["--quick", "--repeats", "1"]) == 1
    assert "decision_cost: penstock ended" in capsys.readouterr().err
