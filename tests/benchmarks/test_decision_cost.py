from __future__ import annotations

import pytest

from benchmarks import decision_cost
from benchmarks.decision_cost import POLICIES, Effort, main, subscribers_of, to_markdown
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate


def test_decisions_and_memory_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each policy has a line, and the first line says whether the target is met."""
    tiny = Effort(decisions=10, repetitions=1, subscribers=2)
    monkeypatch.setattr(decision_cost, "QUICK_EFFORT", tiny)
    assert main(["--quick"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(("Met: a decision takes", "Missed: a decision takes"))
    for name in POLICIES:
        assert f"\n| {name} | " in shown
    assert "commit: " in shown


def test_situations_are_what_they_are_called() -> None:
    """Each has the cause that it is to time."""
    gate = WithholdingGate(WithholdingConfig(policy="adaptive"))
    causes = {
        name: gate.decide(decision_cost.MESSAGE, each.link, 1.0, each.now).cause
        for name, each in subscribers_of(gate).items()
    }
    assert causes == {"good": "calm", "bad": "congested", "on the way": "on_way"}


@pytest.mark.parametrize(("slowest", "verdict"), [(9.94, "Met"), (12.0, "Missed")])
def test_the_slowest_decision_is_the_conclusion(slowest: float, verdict: str) -> None:
    """Estimates are shown and do not count."""
    times = {"good": 4.0, "bad": slowest, "estimate": 30.0}
    first, _, heads, _, line = to_markdown({"adaptive": times}, {"adaptive": 1_200.0})
    assert first == f"{verdict}: a decision takes {slowest:.1f} µs at most."
    assert heads == "| policy | good, µs | bad, µs | estimate, µs | B a subscriber |"
    assert line == f"| adaptive | 4.00 | {slowest:.2f} | 30.00 | 1,200 |"
