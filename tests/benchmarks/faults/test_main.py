from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.faults import __main__ as program
from benchmarks.faults.case import Effort, Fault, Finding
from benchmarks.faults.subject import Subject

TINY = Effort(scale=0.001, seconds=0.2)

LOADS = ("churn", "slow_readers", "stall_gate")
"""Their promises are about time; `benchmarks.churn` and `benchmarks.bystanders` have own tests."""


@pytest.mark.parametrize("fault", [name for name in program.FAULTS if name not in LOADS])
def test_each_fault_can_be_done_and_keeps_its_promises(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a tiny size: every finding is within its bound, for Penstock."""
    monkeypatch.setattr(program, "QUICK", TINY)
    status = program.main(["--quick", "--faults", fault, "--brokers", "penstock"])
    shown = capsys.readouterr()
    assert status == 0, shown.out
    assert shown.out.startswith("promises broken: none\n")


def test_a_broken_promise_is_told_with_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1, the fault and the finding in the first line; mosquitto breaks none of ours."""

    def inflict(_broker: Subject, rng: object, _effort: Effort) -> list[Finding]:
        assert rng is not None
        return [Finding("lost", 3, most=0), Finding("kept", 0.5, "MB", least=0.25)]

    monkeypatch.setitem(program.FAULTS, "made", Fault("made", "made for this test", inflict))
    file = tmp_path / "found.json"
    arguments = ["--faults", "made", "--seed", "7", "--json", str(file)]
    assert program.main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("promises broken: made: lost\n")
    assert "| made for this test | lost | at most 0 | 3.00 | 3.00 | 1 |" in shown.out
    assert "|  | kept | at least 0.25 MB | 0.50 MB | 0.50 MB | 1 |" in shown.out
    assert "made, penstock, seed 7: lost 3.00; kept 0.50 MB" in shown.err
    ours, theirs = json.loads(file.read_text())["outcomes"]
    assert [found["is_met"] for found in ours["findings"]] == [False, True]
    assert [found["is_met"] for found in theirs["findings"]] == [None, None]
    assert program.main([*arguments, "--brokers", "mosquitto"]) == 0


def test_a_fault_that_cannot_be_done_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not start is named with its last words, status 1."""

    def inflict(broker: Subject, _rng: object, _effort: Effort) -> list[Finding]:
        broker.configure({"limits": {"connections": "many"}})
        broker.start()
        return []

    monkeypatch.setitem(program.FAULTS, "made", Fault("made", "made for this test", inflict))
    assert program.main(["--faults", "made", "--brokers", "penstock"]) == 1
    told = capsys.readouterr().out
    assert "failed: made, penstock, seed 1: BenchmarkError: penstock does not start" in told
    assert "limits.connections" in told
